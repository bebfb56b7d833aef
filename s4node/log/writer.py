"""The one writer of the log: a thread that commits what has come, in groups.

Rules
- What came while the last commit was under way is written together, one transaction a partition;
  then its callbacks run, all in one call into trio's thread.
- A group takes a frame of each producer in turn, so that who sends much holds nobody up for longer
  than a group.
- A disk that is full, or a quota that is used up, is waited for: nothing of that partition is
  answered, and the same frames are tried again after a pause. It is told once, and once when it is
  over.
- Housekeeping is done between groups in small steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import structlog
import trio

from s4node.errors import S4Error, StoreError
from s4node.log.ledger import Appended, Incoming, Known
from s4node.log.partition import NoRoom, PartitionFile
from s4node.schema import TypeDecl

_log = structlog.get_logger()

GROUP_BYTES = 4 << 20
"""The most bytes of bodies that are written together."""

QUEUE_BYTES = 16 << 20
"""The bytes that may be queued, about: the writer's ``room`` when nothing is."""

FRAME_BYTES = 256
"""What a queued frame counts beside its body."""

PAUSE = 0.25
"""Seconds until a full disk is tried again."""

Answer: TypeAlias = Appended | S4Error
Done: TypeAlias = Callable[[Answer], None]


class Standing(NamedTuple):
    """A partition as it stands on the disk, and what has changed there since the last one."""

    oldest: int
    upcoming: int
    size: int
    last_ms: int
    producers: Mapping[str, Known]
    types: Mapping[int, TypeDecl]


class Waiting(NamedTuple):
    """A frame in the queue."""

    frame: Incoming
    done: Done

    @property
    def weight(self) -> int:
        """What it counts in the queue, in bytes."""
        return len(self.frame.body) + FRAME_BYTES


class Lane:
    """One partition as the writer has it; ``told`` is called in trio's thread."""

    def __init__(self, file: PartitionFile, told: Callable[[Standing], None]) -> None:
        self.file = file
        self.told = told
        self.queues: dict[str, deque[Waiting]] = {}  # by producer
        self.retry: list[Waiting] = []


class LogWriter:
    """Writes the frames of all partitions of a folder, in a thread of its own.

    Made in trio's thread, where ``append`` and everything without another word is called. ``clock``
    is Unix time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._token = trio.lowlevel.current_trio_token()
        self._turn = threading.Condition()
        self._ready: dict[Lane, None] = {}
        self._queued = 0
        self._parked = trio.lowlevel.ParkingLot()
        self._closing = False
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    # --- trio's side ------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes that may still be queued; appending at 0 or less works, and should be left."""
        return QUEUE_BYTES - self._queued

    async def wait_room(self) -> None:
        """Wait until there is room; who waits longest is first. Cancelling leaves nothing."""
        while self.room <= 0:
            await self._parked.park()

    def append(self, lane: Lane, frame: Incoming, done: Done) -> None:
        """Queue a frame; ``done`` is called with its answer once it is on the disk."""
        waiting = Waiting(frame, done)
        self._queued += waiting.weight
        with self._turn:
            lane.queues.setdefault(frame.producer, deque()).append(waiting)
            self._ready[lane] = None
            self._turn.notify()

    async def aclose(self) -> None:
        """Write what is queued, as far as the disk takes it, and end the thread."""
        with self._turn:
            self._closing = True
            self._turn.notify()
        await trio.to_thread.run_sync(self._thread.join)

    # --- the thread's side ------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._turn:
                while not self._ready and not self._closing:
                    self._turn.wait()
                if not self._ready:
                    return
                group = self._take()
            self._write(group)

    def _take(self) -> dict[Lane, list[Waiting]]:
        """The frames of the next group, by partition, in order."""
        group: dict[Lane, list[Waiting]] = {}
        for lane in self._ready:
            group[lane] = lane.retry + [w for queue in lane.queues.values() for w in queue]
            lane.retry = []
            lane.queues.clear()
        self._ready.clear()
        return group

    def _write(self, group: Mapping[Lane, Sequence[Waiting]]) -> None:
        now_ms = int(self._clock() * 1000)
        answers: list[tuple[Waiting, Answer]] = []
        standings: list[tuple[Lane, Standing]] = []
        trouble = ""
        for lane, frames in group.items():
            plan = lane.file.ledger.plan([waiting.frame for waiting in frames], now_ms)
            try:
                lane.file.write(plan)
            except NoRoom as error:
                trouble = str(error)
                with self._turn:
                    lane.retry = [*frames]
                    self._ready[lane] = None
            except S4Error as error:
                answers += [(waiting, error) for waiting in frames]
            else:
                answers += zip(frames, plan.answers, strict=True)
                standings.append((lane, _standing(lane.file, plan.producers, plan.types)))
        self._hand_over(answers, standings, trouble)
        if trouble:
            time.sleep(PAUSE)

    def _hand_over(
        self,
        answers: list[tuple[Waiting, Answer]],
        standings: list[tuple[Lane, Standing]],
        trouble: str,
    ) -> None:
        def deliver() -> None:
            self._queued -= sum(waiting.weight for waiting, _ in answers)
            for lane, standing in standings:
                lane.told(standing)
            for waiting, answer in answers:
                waiting.done(answer)
            if self.room > 0:
                self._parked.unpark_all()
            self.trouble = trouble

        try:
            self._token.run_sync_soon(deliver)
        except trio.RunFinishedError:
            pass  # nobody is left who could be told


def _standing(
    file: PartitionFile, producers: Mapping[str, Known], types: Mapping[int, TypeDecl]
) -> Standing:
    extent, ledger = file.extent, file.ledger
    return Standing(extent.oldest, ledger.upcoming, extent.size, ledger.last_ms, producers, types)
