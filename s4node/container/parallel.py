"""Handlers of a parallel stream: several outstanding in one task, each key in order.

Rules
- ``async`` handlers overlap on the loop; plain ones run in threads of their own.
- A run takes batches of its stream as they come, so single events overlap as well. While it lasts
  nothing else of the task is processed; it takes nothing more once something else waits, and ends
  when its last handler has.
- A batch is done when all its events are. What a handler has put is handed on when it ends.
- Which event may begin is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

import trio

from s4node.executors.parallel import KeyOrder
from s4node.stream import emitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from s4node.container.task import Task
    from s4node.event import EventBatch

_AHEAD = 4
"""Events looked at for each handler that may be outstanding, to find other keys."""


class _Job:
    """One event of a batch."""

    __slots__ = ("event", "index", "progress")

    def __init__(self, progress: _Progress, index: int) -> None:
        self.progress = progress
        self.index = index
        self.event = progress.batch.events[index]


class _Progress:
    """A batch whose events are under way; ``left`` have not ended."""

    __slots__ = ("batch", "left")

    def __init__(self, batch: EventBatch) -> None:
        self.batch = batch
        self.left = len(batch.events) - batch.at


class ParallelRun:
    """Processes the batch at hand of ``task`` and what follows it on the same stream.

    ``nudge`` is called whenever something has been handed on.
    """

    def __init__(
        self, task: Task, limit: int, threads: trio.CapacityLimiter, nudge: Callable[[], None]
    ) -> None:
        assert task.batch is not None
        self._task = task
        self.stream = task.batch.stream
        self.source = task.batch.source
        self._plan = task.plans[self.stream]
        self._threads = threads
        self._nudge = nudge
        self._order: KeyOrder[_Job] = KeyOrder(limit)
        self._ahead = limit * _AHEAD
        self._lot = trio.lowlevel.ParkingLot()
        self._jobs = self._of(task.batch)
        task.on_offer = self._wake

    async def run(self) -> None:
        """Run until nothing is outstanding; raises what a handler raised.

        Cancelling waits for the threads and leaves the batches unacknowledged.
        """
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._load()
                    while (begun := self._order.begin()) is not None:
                        nursery.start_soon(self._handle, *begun)
                    if not self._order.outstanding:
                        break
                    await self._lot.park()
        finally:
            self._task.on_offer = None

    def _wake(self) -> None:
        self._lot.unpark_all()

    def _load(self) -> None:
        """Look at further events, and take further batches unless something else waits."""
        task = self._task
        allowed = task.allowance(self.source)
        while self._order.waiting < self._ahead and allowed > 0 and task.goes_on(self.source):
            job = next(self._jobs, None)
            if job is None:
                batch = None if task.waiting else task.next_batch(self.source)
                if batch is None:
                    return
                self._jobs = self._of(batch)
                continue
            self._order.add(self._key(job), job)
            task.begun(job.progress.batch)
            allowed -= 1

    def _of(self, batch: EventBatch) -> Iterator[_Job]:
        progress = _Progress(batch)
        if not progress.left:
            self._task.ended(batch, 0, last=True)
        for index in range(batch.at, len(batch.events)):
            yield _Job(progress, index)

    def _key(self, job: _Job) -> Hashable:
        try:
            key: Hashable = self._task.key_of(self.stream, job.event)
            hash(key)
        except Exception:
            return job  # the dispatch will say what is wrong with it
        return key

    async def _handle(self, key: Hashable, job: _Job) -> None:
        task = self._task
        batch = job.progress.batch
        put: list[list[Any]] = [[] for _ in task.emitted]
        emitted.set(put)
        try:
            one = iter([job.event])
            if self._plan.is_async:
                await self._plan.run(one)
            else:
                await trio.to_thread.run_sync(self._plan.run, one, limiter=self._threads)
        except Exception as error:
            task.failed(batch, error, job.index)
        task.hand_on(self.stream, put)
        job.progress.left -= 1
        self._order.end(key)
        task.ended(batch, 1, last=not job.progress.left)
        self._wake()
        self._nudge()
