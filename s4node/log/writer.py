"""The log writer: one thread that commits frames of all partitions in groups.

Rules
- Frames that arrive during a commit are written together, in one transaction per partition. Then
  all their callbacks run in one call into trio's thread.
- A group takes a frame of each producer in turn, so a busy producer delays the others by one group
  at most.
- If the disk is full, the quota is used up, or a file is locked or cannot be written, the partition
  waits: its frames stay unanswered and are retried after a pause. That is logged once, if deleting
  rows has not helped, and once when it is over. Other partitions continue.
- A damaged file fails only the frames of its own partition, with StoreCorrupt. Any other error
  means that the log is closed; all later frames get it, too. So no frame is written while an
  earlier one of its producer and partition may still arrive.
- Housekeeping (:mod:`s4node.log.partition.retention`) runs between groups, in small steps, for at
  most ``HOUSEKEEPING_SECONDS`` at a time.
- A second thread checkpoints the write-ahead logs, which is what waits for the disk.
- A producer with queued frames is not forgotten.
- Attributes named ``_w_...`` belong to the writer's thread; the queues are protected by the lock.

With pages of 16 KiB, a frame of 32 KiB takes two pages beside its row. In groups of 16 that wrote
1.5 times as many frames as pages of 4 or 64 KiB; mapping the file into memory made no difference.
Checkpointing 4 MiB in the writer's thread stopped it for 11 ms. A second thread made writing a
quarter faster, and stops nothing until a single partition takes some 200 MB/s.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import trio

from s4node import clocks, threads
from s4node.errors import S4Error, StoreCorrupt, StoreError, UnknownStream
from s4node.failpoints import passing
from s4node.log.partition.ledger import Appended, Incoming
from s4node.log.partition.partition_database import NotTaken
from s4node.log.partition.partition_file import WAL_BYTES, PartitionFile, Standing
from s4node.log.partition.retention import ClockSteps, Keep, Work, admitted, next_step, tight
from s4node.logger import get_logger

_log = get_logger("s4node.log")

GROUP_BYTES = 4 << 20
"""The approximate number of bytes that are written together."""

FRAME_BYTES = 256
"""The bytes that a frame counts beside its body."""

RETRY_SECONDS = 0.25
"""The pause before a partition that could not be written is retried."""

TICK_SECONDS = 1.0
"""How often an idle writer looks for rows to delete."""

HOUSEKEEPING_SECONDS = 0.02
"""The pause between two runs of housekeeping while frames arrive; a run takes half of it."""

Answer: TypeAlias = Appended | S4Error
Done: TypeAlias = Callable[[Answer], None]


class Waiting(NamedTuple):
    frame: Incoming
    done: Done

    @property
    def weight(self) -> int:
        """The bytes that the frame counts in the queue."""
        return len(self.frame.body) + len(self.frame.order) + FRAME_BYTES


@dataclass(eq=False, repr=False, slots=True)
class Lane:
    """The writer's state of one partition; ``report`` is called in trio's thread."""

    file: PartitionFile
    keep: Keep
    report: Callable[[Standing], None]
    queues: dict[str, deque[Waiting]] = field(default_factory=dict)
    """Frames by producer; the first producer is next."""
    asked: list[Done] = field(default_factory=list)  # trims to answer
    forgotten: list[tuple[Sequence[str], Done]] = field(default_factory=list)  # names to forget
    broken: S4Error | None = None  # a damaged file gets no housekeeping
    dropped: S4Error | None = None  # the answer to everything, once its stream is dropped
    doubtful: bool = False  # a write failed, but may be in the file: load the ledger again
    resume_at: float = 0.0
    trouble: str = ""

    def certain(self) -> PartitionFile:
        if self.doubtful:
            self.file.load()
            self.doubtful = False
        return self.file


class Delivery:
    """The results of a group, to be delivered in trio's thread."""

    def __init__(self) -> None:
        self.answers: list[tuple[Done, Answer]] = []
        self.standings: list[tuple[Lane, Standing]] = []


class LogWriter:
    """Writes the frames of all partitions of a folder in a thread of its own.

    Create it, and call ``append`` and ``trim``, in trio's thread. ``clock`` gives Unix time in
    seconds, in place of both clocks of the machine. ``quota`` (bytes) bounds the files of all
    partitions; 0 means no bound.
    """

    def __init__(
        self,
        quota: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.trouble = ""
        """The reason why appending waits; empty if it does not."""
        self._quota = quota
        self._clock, self._steady = clock or clocks.wall, clock or clocks.steady
        self._w_steps = ClockSteps(int(self._clock() * 1000), int(self._steady() * 1000))
        self._token = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()
        self._ready: dict[Lane, None] = {}
        self._asked: list[tuple[Lane, int, Done]] = []
        self._dropped: list[tuple[Lane, Done]] = []
        self._lanes: list[Lane] = []
        self._closing = False
        self._failed: S4Error | None = None
        self._has_ended = trio.Event()
        self._w_last_run = clocks.steady()
        self._w_used = 0  # bytes of all files, if there is a quota
        self._w_last = -1  # the partition of the last step of housekeeping
        self._w_more = False  # housekeeping has more to do
        self._w_trouble = ""
        self._unworked: deque[PartitionFile] = deque()
        self._checkpoints = threads.worker(self._work_off, "log checkpoints")
        self._writer = threads.worker(self._step, "log writer")

    # --- trio's side ------------------------------------------------------------------------------

    def add(self, lane: Lane) -> None:
        """Start to serve a partition."""
        with self._lock:
            self._lanes.append(lane)

    def append(self, lane: Lane, frame: Incoming, done: Done) -> None:
        """Queue a frame; ``done`` is called with its answer once it is on disk."""
        with self._lock:
            if self._serves(lane, done):
                lane.queues.setdefault(frame.producer, deque()).append(Waiting(frame, done))
                self._ready[lane] = None

    def trim(self, lane: Lane, below: int, done: Done) -> None:
        """Delete rows that end at or below an offset; ``done`` is called once they are deleted."""
        with self._lock:
            if self._serves(lane, done):
                self._asked.append((lane, below, done))

    def forget(self, lane: Lane, producers: Sequence[str], done: Done) -> None:
        """Forget those producers that have no queued frames, before any frame appended later. Then
        ``done`` is called."""
        with self._lock:
            if self._serves(lane, done):
                idle = [name for name in producers if name not in lane.queues]
                lane.forgotten.append((idle, done))

    def drop_lane(self, lane: Lane, done: Done) -> None:
        """Serve a partition no more, and answer what it has queued with UnknownStream; then
        ``done`` is called."""
        with self._lock:
            if self._serves(lane, done):
                self._dropped.append((lane, done))

    def _serves(self, lane: Lane, done: Done) -> bool:
        """Wake the thread for a partition; False, and an answer, if it is served no more."""
        failed = self._failed or lane.dropped
        if failed is not None:
            self._token.run_sync_soon(done, failed)
            return False
        self._writer.wake()
        return True

    async def aclose(self) -> None:
        """Write the queued frames and end the threads.

        Frames that cannot be written, and all later ones, are answered with a StoreError.
        """
        with self._lock:
            self._closing = True
        self._writer.wake()
        await self._writer.wait_ended()
        await self._checkpoints.wait_ended()

    async def wait_failed(self) -> None:
        """Raise StoreError once the writer has failed; return if it has been closed."""
        await self._has_ended.wait()
        if self.trouble:
            raise StoreError(self.trouble)

    # --- the thread's side ------------------------------------------------------------------------

    def _step(self) -> float | None:
        """Do what is due; return the seconds to the next step, None at the end."""
        failure = StoreError("the log is closed; append before you close it")
        try:
            seconds = self._round()
            if seconds is not None:
                return seconds
        except Exception as error:
            _log.exception("the log's writer has failed")
            failure = StoreError(f"the log's writer has failed ({error!r}); restart the node")
            failure.__cause__ = error
        self._end(failure)
        self._checkpoints.wake()
        return None

    def _work_off(self) -> float | None:
        """Checkpoint what is due, in the second thread."""
        over = self._failed is not None
        while self._unworked:
            self._unworked.popleft().work_off()
        return None if over else math.inf

    def _round(self) -> float | None:
        """Write a group and do housekeeping; returns the seconds until more is due, None once
        everything is done at the end."""
        group, asked, closing = self._next_group()
        try:
            delivery = Delivery()
            for lane, below, done in asked:
                if lane.broken is None:
                    lane.file.ask(below)
                    lane.asked.append(done)
                else:
                    delivery.answers.append((done, lane.broken))
            self._measure()
            for lane in list(self._lanes):
                if lane.forgotten:
                    self._forget(lane, delivery)
            for lane, frames in group.items():
                self._write(lane, frames, delivery)
            if not closing:
                self._housekeeping(delivery, busy=bool(group))
            self._drop(delivery)
        except Exception:
            for lane, frames in group.items():
                self._put_back(lane, frames)
            raise
        self._deliver(delivery)
        with self._lock:
            if self._due() or self._asked or self._dropped or self._closing is not closing:
                return 0
            if closing:
                return None
            pause = RETRY_SECONDS if self._ready else TICK_SECONDS
            return HOUSEKEEPING_SECONDS / 2 if self._w_more else pause

    def _next_group(
        self,
    ) -> tuple[dict[Lane, list[Waiting]], list[tuple[Lane, int, Done]], bool]:
        """Returns frames, trims, and whether the log is closing."""
        with self._lock:
            asked, self._asked = self._asked, []
            return self._take(self._due()), asked, self._closing

    def _due(self) -> list[Lane]:
        """The partitions whose queued frames may be written or retried now."""
        now = clocks.steady()
        return [lane for lane in self._ready if lane.resume_at <= now]

    def _take(self, lanes: Sequence[Lane]) -> dict[Lane, list[Waiting]]:
        """Take the frames of the next group by partition; one of each producer in turn."""
        group: dict[Lane, list[Waiting]] = {lane: [] for lane in lanes}
        taken = 0
        while taken < GROUP_BYTES and lanes:
            for lane in lanes:
                for producer in list(lane.queues):
                    queue = lane.queues.pop(producer)
                    waiting = queue.popleft()
                    group[lane].append(waiting)
                    taken += waiting.weight
                    if queue:
                        lane.queues[producer] = queue  # after the others
                    if taken >= GROUP_BYTES:
                        break
                if taken >= GROUP_BYTES:
                    break
            lanes = [lane for lane in lanes if lane.queues]
        group = {lane: frames for lane, frames in group.items() if frames}
        for lane in group:
            del self._ready[lane]
            if lane.queues:
                self._ready[lane] = None  # after those that had no turn
        return group

    def _put_back(self, lane: Lane, frames: Sequence[Waiting]) -> None:
        with self._lock:
            for waiting in reversed(frames):
                lane.queues.setdefault(waiting.frame.producer, deque()).appendleft(waiting)
            self._ready[lane] = None

    def _write(self, lane: Lane, frames: list[Waiting], delivery: Delivery) -> None:
        file = lane.file
        lane.resume_at, lane.trouble = 0.0, ""
        count = self._admitted(file, frames)
        if count < len(frames):
            self._blocked(lane, frames[count:], self._over_quota())
            del frames[count:]
        if not frames:
            return
        before = file.held.disk
        try:
            plan = lane.certain().ledger.plan(
                [waiting.frame for waiting in frames], int(self._clock() * 1000)
            )
            passing("log.append")
            file.write_plan(plan)
            passing("log.appended")
        except NotTaken as error:
            lane.doubtful = True
            self._blocked(lane, frames, str(error))
            frames.clear()
            return
        except StoreCorrupt as error:
            delivery.answers += [(waiting.done, error) for waiting in frames]
        else:
            answers = zip(frames, plan.answers, strict=True)
            delivery.answers += [(waiting.done, answer) for waiting, answer in answers]
            delivery.standings.append((lane, Standing.from_file(file, plan.producers, plan.types)))
            self._w_used += file.held.disk - before
            if file.unworked > WAL_BYTES:
                file.unworked = 0
                self._unworked.append(file)
                self._checkpoints.wake()

    def _blocked(self, lane: Lane, frames: Sequence[Waiting], trouble: str) -> None:
        self._put_back(lane, frames)
        lane.resume_at = clocks.steady() + RETRY_SECONDS
        lane.trouble = trouble

    def _measure(self) -> None:
        if self._quota:
            self._w_used = sum(lane.file.held.disk for lane in self._lanes)

    def _admitted(self, file: PartitionFile, frames: Sequence[Waiting]) -> int:
        """The number of these frames that the quota admits."""
        if not self._quota:
            return len(frames)
        weights = [waiting.weight for waiting in frames]
        count = admitted(weights, file.held.free, self._w_used, self._quota)
        if count < len(frames):  # write-ahead logs need not take up space: cut them before waiting
            for lane in self._lanes:
                if lane.file.held.wal:
                    with contextlib.suppress(StoreCorrupt, NotTaken):
                        lane.file.cut_wal()
            self._measure()
            count = admitted(weights, file.held.free, self._w_used, self._quota)
        return count

    def _over_quota(self) -> str:
        return (
            f"the log's files take {self._w_used} bytes and would exceed s4.log.quotaBytes "
            f"({self._quota}), although nothing is retained longer than required; raise the quota, "
            f"or shorten s4.log.retention.ms"
        )

    def _housekeeping(self, delivery: Delivery, busy: bool) -> None:
        began = clocks.steady()
        self._w_more = busy and began - self._w_last_run < HOUSEKEEPING_SECONDS
        if self._w_more:  # frames go first
            return
        with self._lock:
            lanes = [lane for lane in self._lanes if lane.broken is None]
        now_ms = int(self._clock() * 1000)
        self._w_steps.note(now_ms, int(self._steady() * 1000))
        trouble = next((lane.trouble for lane in lanes if lane.trouble), "")
        until = began + HOUSEKEEPING_SECONDS / 2
        freed = self._make_room(lanes, now_ms, until, bool(trouble), delivery)
        self._answer_trims(lanes, delivery)
        if trouble and freed:
            for lane in lanes:
                lane.resume_at = 0.0  # there may be space now: retry before reporting
        else:
            self._log_trouble(trouble)
        self._w_last_run = clocks.steady()

    def _make_room(
        self, lanes: Sequence[Lane], now_ms: int, until: float, blocked: bool, delivery: Delivery
    ) -> bool:
        """Run steps of retention until ``until``; returns whether more than write-ahead logs went.

        Stops early if nothing is left to do or a step fails. If frames are ``blocked``, it makes
        space for them.
        """
        freed = False
        changed: dict[Lane, None] = {}
        keeps = [self._w_steps.kept(lane.keep) for lane in lanes]
        while True:
            held = [lane.file.held for lane in lanes]
            self._measure()
            pressed = blocked or tight(self._w_used, self._quota)
            step = next_step(held, keeps, now_ms, pressed, self._w_last)
            if step is None:
                break
            lane, self._w_last = lanes[step.partition], step.partition
            if not self._do(lane, step.work, now_ms, delivery):
                break  # the disk or a reader is in the way: try again at the next tick
            changed[lane] = None
            freed = freed or step.work is not Work.CUT_WAL
            if clocks.steady() > until:
                self._w_more = True
                break
        delivery.standings += [(lane, Standing.from_file(lane.file)) for lane in changed]
        return freed

    def _answer_trims(self, lanes: Sequence[Lane], delivery: Delivery) -> None:
        for lane in lanes:
            if lane.asked and lane.file.trimmed:
                oldest = lane.file.held.oldest
                delivery.answers += [(done, Appended(oldest, 0, 0)) for done in lane.asked]
                lane.asked.clear()

    def _do(self, lane: Lane, work: Work, now_ms: int, delivery: Delivery) -> bool:
        """Run one step; returns False if it could not be done now."""
        try:
            file = lane.certain()  # wrong sizes would make it delete too much
            if work is Work.DELETE:
                file.delete_rows(self._w_steps.kept(lane.keep), now_ms)
                done = True
            else:
                done = file.shrink() if work is Work.SHRINK else file.cut_wal()
        except NotTaken:  # the next append reports it
            lane.doubtful = True
            return False
        except StoreCorrupt as error:
            _log.error("a damaged log file gets no more housekeeping", why=str(error))
            delivery.answers += [(answer, error) for answer in lane.asked]
            lane.asked.clear()
            lane.broken = error
            return False
        return done

    def _forget(self, lane: Lane, delivery: Delivery) -> None:
        with self._lock:
            asked, lane.forgotten = lane.forgotten, []
        gone = [name for names, _ in asked for name in names]
        answer: Answer = Appended(0, 0, 0)
        try:
            lane.certain().forget(gone)
        except NotTaken:  # try again next time
            lane.doubtful = True
            with self._lock:
                lane.forgotten = asked + lane.forgotten
            return
        except StoreCorrupt as error:
            answer = error
        else:
            delivery.standings.append((lane, Standing.from_file(lane.file, forgotten=gone)))
        delivery.answers += [(done, answer) for _, done in asked]

    def _drop(self, delivery: Delivery) -> None:
        """Remove the partitions of dropped streams."""
        with self._lock:
            asked, self._dropped = self._dropped, []
            gone = UnknownStream("the stream was dropped; create it again to append to it")
            for lane, done in asked:
                lane.dropped = gone
                self._lanes.remove(lane)
                self._ready.pop(lane, None)
                waiting = [each for queue in lane.queues.values() for each in queue]
                lane.queues.clear()
                delivery.answers += [(each.done, gone) for each in waiting]
                delivery.answers += [(answer, gone) for answer in lane.asked]
                delivery.answers += [(answer, gone) for _, answer in lane.forgotten]
                delivery.answers.append((done, Appended(0, 0, 0)))

    def _log_trouble(self, trouble: str) -> None:
        if trouble and not self._w_trouble:
            _log.error("appending to the log is waiting", why=trouble)
        elif self._w_trouble and not trouble:
            _log.info("appending to the log has resumed")
        self._w_trouble = trouble

    def _deliver(self, delivery: Delivery) -> None:
        """Deliver the results of a group in one call."""
        trouble = self._w_trouble
        if not delivery.answers and not delivery.standings and trouble == self.trouble:
            return

        def deliver() -> None:
            self.trouble = trouble
            for lane, standing in delivery.standings:
                lane.report(standing)
            for done, answer in delivery.answers:
                done(answer)

        with contextlib.suppress(trio.RunFinishedError):  # trio has ended: nobody waits for them
            self._token.run_sync_soon(deliver)

    def _end(self, failure: S4Error) -> None:
        """Answer all queued requests with ``failure``."""
        delivery = Delivery()
        with self._lock:
            self._failed = failure
            for lane in self._lanes:
                for queue in lane.queues.values():
                    delivery.answers += [(waiting.done, failure) for waiting in queue]
                delivery.answers += [(done, failure) for done in lane.asked]
                delivery.answers += [(done, failure) for _, done in lane.forgotten]
            delivery.answers += [(done, failure) for _, _, done in self._asked]
            delivery.answers += [(done, failure) for _, done in self._dropped]
        self._w_trouble = str(failure) if failure.__cause__ else ""
        self._deliver(delivery)
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._has_ended.set)
