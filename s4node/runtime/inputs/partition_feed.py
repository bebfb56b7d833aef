"""The feed of an input partition: one reader, and the tasks that get its batches.

Rules
- A partition has one reader, whichever tasks read it. Each task has its own start, position and
  progress. When a task joins, the reader begins anew at the lowest position.
- The reader reads only while every task that may get the events has room, so a slow task bounds the
  memory. It does not read while the partition runs ahead of other inputs of a task in time.
- Events of a keyed stream go to the tasks of their keys. A batch that was routed by the same rule
  has only events of its task; from others, the reading task sends on the events of other tasks.
- When reading stops, the feed is cancelled at once; batches that were read go to their tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import trio

from s4node.errors import InputLost
from s4node.events.event import EventBatch
from s4node.events.routing import Router
from s4node.logger import get_logger
from s4node.offsets.input_progress import InputProgress, InputReceipt
from s4node.offsets.receipts import Onward
from s4node.offsets.system import (
    EndOfStream,
    InputBatch,
    PartitionReader,
    System,
    SystemStreamPartition,
)
from s4node.runtime.commit.dead_letter_queue import DeadLetterQueue
from s4node.runtime.inputs.input_batches import MixedBatch, TaskBatch
from s4node.runtime.inputs.starting_offsets import Known, StartingOffsets
from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")


class FedTasks(Protocol):
    """The container's tasks, as far as feeds know them, and the way between them."""

    @property
    def outputs(self) -> Onward: ...

    def feed(self, task: Task, batch: EventBatch) -> None: ...

    def backpressured(self, task: Task, stream: str) -> bool:
        """Return True if too many events that a task has sent on wait; then it reads no more."""
        ...


class FeedOwner(Protocol):
    """The owner of all feeds of a container, which stop together."""

    dead_letters: DeadLetterQueue
    starts: StartingOffsets
    stopped: bool

    def until_stopped(self, scope: trio.CancelScope) -> AbstractContextManager[None]:
        """A scope that is cancelled when reading stops."""
        ...

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; it is checked between turns."""
        ...

    def runs_ahead(self, ssp: SystemStreamPartition, tasks: Iterable[Task]) -> bool: ...

    def report_ends(self, ssp: SystemStreamPartition) -> None: ...


_KNOWN_BATCHES = 1000


class Taker:
    """A task that reads a partition; ``next`` is the next offset to give it, and ``epoch`` the one
    that its first offset belongs to. Events that cannot be processed are ``dead_letters``."""

    def __init__(
        self,
        task: Task,
        ssp: SystemStreamPartition,
        known: Known,
        dead_letters: DeadLetterQueue,
    ) -> None:
        self.task = task
        self.ssp = ssp
        self.known = known
        self._dead_letters = dead_letters
        self.next = 0
        self.epoch = 0
        self.end_reported = False
        self.progress: InputProgress
        self._given: deque[tuple[int, int]] = deque(maxlen=_KNOWN_BATCHES)

    def was_given(self, batch: InputBatch) -> None:
        self._given.append((batch.end, batch.created_ms))

    def late(self, now_ms: int) -> float:
        """Seconds since the oldest given event that is not processed was sent; 0 if all are."""
        while self._given and self._given[0][0] <= self.progress.safe:
            self._given.popleft()
        return max(0, now_ms - self._given[0][1]) / 1000 if self._given else 0.0

    def reject(self, receipt: InputReceipt, number: int, reason: str, event: Any) -> None:
        self._dead_letters.reject(self.task, receipt, number, reason, event)


class Keyed(NamedTuple):
    """The routing of a keyed stream; ``router`` finds the partitions of its events.

    The events of a batch with the same non-empty ``routing`` are in their partition already.
    """

    router: Router
    routing: str


class PartitionFeed:
    """Reads a partition of ``system``, with events of ``types``, for its ``takers`` by task.

    ``keyed`` is None if all events go to all takers. ``join`` says whether to start ``run``.
    """

    def __init__(
        self,
        ssp: SystemStreamPartition,
        system: System,
        types: Sequence[type],
        keyed: Keyed | None,
        tasks: FedTasks,
        owner: FeedOwner,
    ) -> None:
        self.ssp = ssp
        self.takers: dict[int, Taker] = {}
        self.ended = False
        self._system = system
        self._types = types
        self._keyed = keyed
        self._tasks = tasks
        self._owner = owner
        self._scope = trio.CancelScope()
        self._runs = False
        self._anew = False  # the reader has to begin anew at the lowest position
        self._reader: PartitionReader | None = None

    @property
    def lag(self) -> int | None:
        """Events to the last known end of the partition; None while the end is unknown."""
        return None if self._reader is None else self._reader.lag

    @property
    def uncommitted(self) -> int:
        """Records behind an open transaction, which only some systems have."""
        return getattr(self._reader, "uncommitted", 0)

    def unprocessed(self, safe: int) -> int | None:
        """Events from ``safe`` to the last known end of the partition; None while it is unknown."""
        lag, reader = self.lag, self._reader
        return None if lag is None or reader is None else max(0, reader.position + lag - safe)

    def join(self, taker: Taker) -> bool:
        """Read for one more task, from its position; return True if ``run`` has to be started."""
        self.takers[taker.task.partition] = taker
        self.ended = False
        self._anew = True
        if self._runs:
            self._scope.cancel()  # the reader begins anew
            return False
        self._runs = True
        return True

    def revoke(self, partition: int) -> bool:
        """Stop reading for a task; return True if it was one of the takers."""
        if self.takers.pop(partition, None) is None:
            return False
        self._anew = True
        self._scope.cancel()
        return True

    async def run(self) -> None:
        """Read for all takers until the end of the partition, or until reading stops."""
        reader: PartitionReader | None = None
        try:
            while not self._owner.stopped and not self.ended and self.takers:
                self._scope = trio.CancelScope()
                end: EndOfStream | None = None
                if self._anew:
                    await _close(reader)
                    reader, self._anew = None, False
                with self._owner.until_stopped(self._scope):
                    if reader is None and self.takers:
                        first = min(self.takers.values(), key=lambda taker: taker.next)
                        place = self.ssp, first.next, self._types
                        if epoch := first.progress.epoch:  # systems without epochs take none
                            reader = await self._system.open(*place, epoch)
                        else:
                            reader = await self._system.open(*place)
                        self._reader = reader
                    if reader is not None and not self._stale():  # takers come and go meanwhile
                        end = await self._read(reader)
                if end is None:
                    self._anew = True
                else:
                    self.ended = True
                    log.info("input has ended", input=str(self.ssp))
                    self._owner.report_ends(self.ssp)
        finally:
            self._runs = False  # a task that joins while the reader closes starts a new run
            await _close(reader)

    def _stale(self) -> bool:
        """Return True if the reader begins anew, so its batches are discarded."""
        return self._anew

    async def _read(self, reader: PartitionReader) -> EndOfStream | None:
        """Read while all tasks have room, and give them the batches.

        Return the end of the partition, or None if the reader must begin anew.
        """
        owner, keyed, stream = self._owner, self._keyed, self.ssp.stream
        tasks = [taker.task for taker in self.takers.values()]
        stages = [task.backlog.stages[self.ssp] for task in tasks]
        while True:
            if any(stage.full for stage in stages):
                await owner.wait(lambda: all(stage.roomy for stage in stages))
            if keyed is not None and self._tasks.backpressured(tasks[0], stream):
                await owner.wait(lambda: not self._tasks.backpressured(tasks[0], stream))
            if owner.runs_ahead(self.ssp, tasks):
                await owner.wait(lambda: not owner.runs_ahead(self.ssp, tasks))
            if owner.dead_letters.full:
                await owner.dead_letters.wait_room()
            try:
                batch = await reader.read()
            except InputLost as error:
                await self._skip(reader.position, error)
                return None
            if self._stale():
                return None
            if isinstance(batch, EndOfStream):
                return batch
            if epoch := getattr(reader, "epoch", 0):
                for taker in self.takers.values():
                    taker.progress.epoch = epoch
            if keyed is None or (batch.routing != "" and batch.routing == keyed.routing):
                self._give(batch)
            else:
                self._give_mixed(batch, keyed)

    async def _skip(self, position: int, error: InputLost) -> None:
        """Go on at the oldest event, if the settings allow it."""
        bounds = await self._system.bounds(self.ssp)
        oldest = self._owner.starts.skipped(self.ssp, position, bounds.oldest, error)
        for taker in self.takers.values():
            if taker.next < oldest:
                taker.progress.complete(taker.next, oldest)
                taker.progress.epoch = bounds.epoch
                taker.next = oldest

    def _give_mixed(self, batch: InputBatch, keyed: Keyed) -> None:
        """Queue a batch for its task, which sends on the events of other tasks."""
        (taker,) = self.takers.values()
        task, end = taker.task, batch.end
        if taker.next < end:
            mine = MixedBatch(
                batch,
                task.partition,
                taker.progress,
                taker.next,
                keyed.router,
                self._tasks.outputs,
            )
            taker.next = end
            taker.was_given(batch)
            self._tasks.feed(task, mine)

    def _give(self, batch: InputBatch) -> None:
        end, shared = batch.end, len(self.takers) > 1
        for taker in self.takers.values():
            if taker.next < end:
                place = taker.task.partition, taker.progress, taker.next
                mine = TaskBatch(batch, *place, shared=shared)
                taker.next = end
                taker.was_given(batch)
                self._tasks.feed(taker.task, mine)


async def _close(reader: PartitionReader | None) -> None:
    if reader is not None:
        with trio.CancelScope(shield=True):
            await reader.aclose()
