"""The dead letter queue: stores events that cannot be read, and those that tasks skip.

Rules
- An event of a replayable input that does not decode, or whose key is not found, stops the
  container, or is dropped and counted, or is stored in the dead letter stream, as the settings say.
- The offset of such an event counts as processed once the event is dropped, or stored in the dead
  letter stream; until then the progress of the input waits there.
- The first such event of a stream is logged; all are counted.
- A task does not commit while one of its dead letters is being sent: the commit would cover the
  event, and a crash would lose the dead letter. A dead letter is sent once, even if its task rolls
  back and reads the event again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from s4node.errors import DecodeError
from s4node.events.event import GenericEvent
from s4node.logger import get_logger
from s4node.metrics.statistics import Rejected
from s4node.offsets.input_progress import InputReceipt
from s4node.offsets.task_claims import now_ms
from s4node.runtime.task.poison.dead_letter import dead_letter
from s4node.runtime.task.poison.poison_events import Place

if TYPE_CHECKING:
    from s4node.runtime.loop.run_loop import RunLoop
    from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

Keep = Callable[[GenericEvent], Awaitable[None]]
"""Stores a dead letter; returns once it is safe."""

MAX_KNOWN = 10_000
"""Dead letters that a container remembers, so that none is sent twice."""

_LAST = 50
_LONGEST_REASON = 500

_Place = tuple[int, str, int]

MAX_WAITING = 1000
"""Dead letters that may wait to be stored; more hold up the reading of inputs."""


class DeadLetterQueue:
    """Stores bad events with ``keep``, or drops them if ``drop``, or else stops the container.

    ``counts`` are by stream, and ``last`` has the last events that were given up. Tasks go on in
    ``loop`` once all their dead letters are stored.
    """

    def __init__(self, loop: RunLoop, *, drop: bool, keep: Keep | None) -> None:
        self.counts: Counter[str] = Counter()
        self.last: deque[Rejected] = deque(maxlen=_LAST)
        self._drop = drop
        self._keep = keep
        self._loop = loop
        self._known: dict[_Place, None] = {}  # their dead letters are stored, or being sent
        self._waiting = 0
        self._room = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self._ending = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Store dead letters until cancelled; raises the errors of storing."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._ending = True

    @property
    def full(self) -> bool:
        """True if so many dead letters wait that reading has to wait."""
        return self._waiting >= MAX_WAITING

    async def wait_room(self) -> None:
        while self.full:
            await self._room.park()

    async def wait_empty(self) -> None:
        while self._waiting:
            await self._room.park()

    def reject(
        self,
        task: Task,
        receipt: InputReceipt,
        number: int,
        reason: str,
        event: Any,
    ) -> None:
        """Store or drop an event of ``receipt``'s batch; ``event`` is bytes if it does not decode.

        Raises DecodeError if the settings stop the container.
        """
        ssp = receipt.progress.ssp
        if self._keep is None and not self._drop:
            raise DecodeError(
                f"{ssp} offset {number}: {reason}. The container stops here; fix the producer, or "
                f"set task.dead.letter.stream to store such events, or "
                f"task.drop.deserialization.errors = true to drop them"
            )
        stream = f"{ssp.system}.{ssp.stream}"
        if not self.counts[stream]:
            log.warning(
                "an event of an input cannot be processed; further ones are only counted",
                input=str(ssp),
                offset=number,
                reason=reason,
                kept=self._keep is not None,
            )
        self.counts[stream] += 1
        self.remember(task, stream, f"{ssp.partition}:{number}", reason)
        place = (task.partition, str(ssp), number)
        if self._keep is None or place in self._known:
            return
        receipt.hold(number)
        self._send(task, place, dead_letter(ssp, str(ssp), number, reason, event), receipt)

    def remember(self, task: Task, stream: str, at: str, reason: str, pe: str = "") -> None:
        """Remember what was given up, and why, for those who watch."""
        self.last.append(Rejected(now_ms(), task.name, stream, at, pe, reason[:_LONGEST_REASON]))

    def send_skipped(self, task: Task, at: Place, what: GenericEvent) -> None:
        """Send the dead letter of an event that ``task`` has skipped, unless it was sent before."""
        place = (task.partition, *at)
        if place not in self._known:
            self._send(task, place, what)

    def _send(
        self,
        task: Task,
        place: _Place,
        what: GenericEvent,
        receipt: InputReceipt | None = None,
    ) -> None:
        assert self._nursery is not None
        if self._ending:  # a task has taken one more step during cancellation
            return
        what.put("app", task.app.name)
        what.put("task", task.name)
        self._known[place] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._waiting += 1
        task.failures.isolation.poison_events.unsafe += 1
        self._nursery.start_soon(self._store, task, what, receipt)

    async def _store(self, task: Task, what: GenericEvent, receipt: InputReceipt | None) -> None:
        assert self._keep is not None
        await self._keep(what)
        if receipt is not None:
            receipt.release(what.offset)
        task.failures.isolation.poison_events.unsafe -= 1
        if not task.failures.dead_letters_wait:
            self._loop.wake_partition(task.partition)
        self._waiting -= 1
        self._room.unpark_all()
