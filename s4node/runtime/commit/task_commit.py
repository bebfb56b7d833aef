"""The commits of one task: state and progress of one moment, written and acknowledged.

Rules
- A task's state and the offsets of its inputs are in one database, and one write has both. A
  commit begins in the loop, while nothing of its task runs, and takes both as they are then. The
  rest runs beside the task: encoding changed PEs and outgoing events, in slices, then writing, in a
  thread.
- Events that the task has put for others are part of the commit. They may leave once it is written
  and no other container has taken the task over. A commit waits for no other task and no consumer.
- Everything in a commit is of one moment.
- A commit is acknowledged only once the next owner is certain to find it. Replayable inputs need no
  acknowledgement.
- A commit that cannot be written (a full disk, lost permissions) is logged once. The container
  stops only if that lasts for ``task.commit.timeout.ms``. It stops at once if another container has
  taken the task over, or a file is damaged.
- That a task is done is part of the commit of its last work. So its next owner neither starts it
  nor notifies it of the end of its inputs again. This holds for the run of the job.
- The offset of a startpoint is committed, with the id of the startpoint, before anything is read
  from there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import trio

from s4node import clocks, threads
from s4node.errors import CheckpointError, ProgressUnwritten, StateError, StoreCorrupt
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.metrics.statistics import CommitStatistics
from s4node.net.ingress.commit_rows import Producers, TakenProducers, rows_of
from s4node.net.wire.frame import TASK
from s4node.offsets.checkpoint import Checkpoint, SavedProducers
from s4node.offsets.cuts import Cuts
from s4node.offsets.input_progress import InputProgress, taken
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import Claim, TaskClaims, now_ms
from s4node.runtime.commit.retries import RETRY_SECONDS, Retries
from s4node.runtime.outputs.task_channels import TaskChannels
from s4node.runtime.task.task import Task
from s4node.savepoints.place import SavepointPlace
from s4node.state.checkpoint_policy import CheckpointRetention
from s4node.state.job import CUT, DONE, ENDED, EPOCH_OF, WRITTEN, checkpoint_of
from s4node.state.task_state import TaskState

log = get_logger("s4node.runtime")

R = TypeVar("R")

_ENCODING_SECONDS = 0.002
_ENCODED_AT_ONCE = 64
_EXPIRED_AT_ONCE = 256
_THREADS = 8
"""Databases that may be opened or written at a time."""
_UPLOADS = 2
"""Checkpoints that are shipped at a time. Each may take long, and slows down the commits."""


_TIMES_SECONDS = 10
_TIMES_KEPT = 600


class CommitTimes:
    """The commits of the last ten minutes, by ten seconds; ``bytes`` and ``seconds`` are of all."""

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds = 0.0
        self._recent: deque[CommitStatistics] = deque()

    def ended(self, now: float, seconds: float, size: int) -> None:
        """Count a commit that took so many ``seconds`` and wrote ``size`` bytes."""
        at = int(now) // _TIMES_SECONDS * _TIMES_SECONDS
        if not self._recent or self._recent[-1].at < at:
            self._recent.append(CommitStatistics(at))
        last = self._recent[-1]
        last.count += 1
        last.seconds += seconds
        last.longest = max(last.longest, seconds)
        last.bytes += size
        self.bytes += size
        self.seconds += seconds

    def recent(self, now: float) -> list[CommitStatistics]:
        """The commits of the last ten minutes."""
        while self._recent and self._recent[0].at < now - _TIMES_KEPT:
            self._recent.popleft()
        return list(self._recent)


class TaskProgress(NamedTuple):
    """The progress in a commit: offsets, consumed startpoints, and the numbers of producers."""

    offsets: Mapping[SystemStreamPartition, int]
    consumed: frozenset[str]
    producers: TakenProducers
    epochs: Mapping[SystemStreamPartition, int] = {}

    @property
    def rows(self) -> tuple[dict[str, int], frozenset[str], SavedProducers]:
        positions = {str(ssp): offset for ssp, offset in self.offsets.items()}
        return positions, self.consumed, rows_of(self.producers)


class Startpoints(Protocol):
    async def consumed(self, task: str, ids: Collection[str]) -> Collection[str]:
        """Remove startpoints that a task has committed as consumed; return the removed ones."""


@dataclass(eq=False, repr=False)
class CommitContext:
    """The parts that the commits of all tasks of a container share.

    ``progress`` is by task and partition. ``cuts`` are the cuts of the tasks. ``retries`` says for
    how long commits may fail, and gets their reasons. The ``store`` of claims and the ``run`` of
    the job are set by ``open``.
    """

    progress: Mapping[int, Mapping[SystemStreamPartition, InputProgress]]
    startpoints: Startpoints
    producers: Producers
    cuts: Cuts
    retries: Retries
    commits: int = 0
    failures: int = 0
    times: CommitTimes = field(default_factory=CommitTimes)
    store: TaskClaims | None = None
    run: int = 0
    encoding: trio.Lock = field(default_factory=trio.Lock)
    claiming: threading.Lock = field(default_factory=threading.Lock)
    """Held while a thread calls the store of claims."""

    def __post_init__(self) -> None:
        self._thread = trio.CapacityLimiter(1)
        self._threads = trio.CapacityLimiter(_THREADS)
        self._uploads = trio.CapacityLimiter(_UPLOADS)

    async def claims(self, function: Callable[..., R], *arguments: Any) -> R:
        """Call a method of the store of claims in a thread, one at a time."""

        def alone() -> R:
            with self.claiming:
                return function(*arguments)

        return await threads.run_sync(alone, limiter=self._thread)

    async def in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        return await threads.run_sync(function, *arguments, limiter=self._threads)

    async def upload(self, function: Callable[[], None]) -> None:
        """Call ``function``, which ships a checkpoint, in a thread; commits do not wait for it."""
        await threads.run_sync(function, limiter=self._uploads)


@dataclass(eq=False, repr=False, slots=True)
class TaskCommits:
    """The commits of ``task``: the claim to write it, its state, and its last checkpoint.

    ``writing``, ``again``, ``pending`` and ``leaving`` belong to the committer. ``spent`` is the
    time of the last commit in seconds, in total and without the time for a URL: processor time, or
    wall time if the state waits for a disk or a URL.
    """

    _context: CommitContext
    task: Task
    claim: Claim
    state: TaskState
    retention: CheckpointRetention
    channels: TaskChannels
    checkpoint: Checkpoint = field(init=False)
    writing: bool = False  # a commit runs
    pending: TaskProgress | None = None  # to write next, for a task that saves only this
    again: bool = False  # a commit was requested meanwhile
    leaving: bool = False  # its last commits are being written
    spent: tuple[float, float] = (0.0, 0.0)
    cut: int = 0  # the savepoint whose cut is the current commit
    _epochs: dict[tuple[str, str, int], int] = field(init=False)
    _written_ms: int = 0  # when the last commit began
    _bytes_before: int = 0  # that were written before it
    _failing_since: float | None = None
    _expire_at: dict[str, bytes] = field(default_factory=dict)
    _pe_expire_at: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checkpoint = checkpoint_of(self.state)
        self._epochs = dict(self.checkpoint.epochs)

    def close(self) -> None:
        """Close the task's files; uncommitted changes are lost."""
        try:
            self.state.close()
        except (StateError, StoreCorrupt) as error:  # the next owner has removed older files
            log.info(
                "a task's files could not be closed; its commits are safe",
                task=self.claim.task,
                error=str(error),
            )

    def roll_back(self, new: Task) -> None:
        self.task = new
        self.again = False
        self._expire_at = {}
        self._pe_expire_at = {}
        self.state = self.state.reloaded()
        self._epochs = dict(checkpoint_of(self.state).epochs)
        self.pending = None

    def remove_startpoints(self, startpoints: Collection[str]) -> None:
        self.checkpoint = self.checkpoint.without(startpoints)
        self.state.remove_consumed(startpoints)

    # -- changes ---------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True if it is committed that the task is done in this run of the job."""
        return bool(self.state.meta(DONE) == self._context.run)

    def begin_anew(self) -> None:
        """Have the next commit say that the task is not done."""
        self.state.set_meta(DONE, 0)

    @property
    def keeps(self) -> bool:
        """True if a commit may have more than the task's progress."""
        return self.task.gate.whole or self.channels.keeps

    @property
    def changed(self) -> bool:
        """True if a commit would write anything."""
        return (
            self.state.changed
            or self._context.cuts.is_due(self.task.partition)
            or self._context.producers.moved(self.task.partition)
            or self.channels.changed
            or self._has_read
            or self.task.processor.times.puts.moved
            or (self.task.done and not self.done)
        )

    @property
    def _has_read(self) -> bool:
        """True if the task is further in its inputs than its last commit."""
        offsets, consumed = taken(self._context.progress.get(self.task.partition, {}))
        known = self.checkpoint.offsets
        return bool(consumed) or any(known.get(ssp) != offsets[ssp] for ssp in offsets)

    def snapshot(self) -> TaskProgress:
        partition = self.task.partition
        progress = self._context.progress.get(partition, {})
        epochs = {ssp: each.epoch for ssp, each in progress.items()}
        offsets, consumed = taken(progress) if progress else ({}, frozenset())
        producers = self._context.producers.snapshot(partition)
        return TaskProgress(offsets, consumed, producers, epochs)

    # -- one commit ------------------------------------------------------------------------------

    def begin_commit(self, what: TaskProgress) -> None:
        """Take the current state, for the progress that belongs to it."""
        began = clocks.cpu()
        self._written_ms = now_ms()
        self._bytes_before = self.state.bytes_written
        self.state.set_meta(WRITTEN, self._written_ms)
        for ssp, epoch in what.epochs.items():
            if self._epochs.get(ssp, 0) != epoch:
                self._epochs[ssp] = epoch
                self.state.set_meta(f"{EPOCH_OF}{ssp}", epoch)
        times = self.task.processor.times
        if times.timed:
            times.save(self.state)
        if self.task.done:
            self.state.set_meta(DONE, self._context.run)
        cuts = self._context.cuts
        self.cut = cuts.begin(self.task.partition) if cuts.due else 0
        if self.cut:
            self.state.set_meta(CUT, self.cut)
        for stream, each in what.producers.items():
            if each.ended:
                ended = (self.state.meta(ENDED + stream) or 0) + each.ended
                self.state.set_meta(ENDED + stream, ended)
        self.channels.begin_commit()
        self.state.begin_commit(*what.rows)
        self.spent = (0.0, 0.0)
        self._spend(clocks.cpu() - began)

    async def save(self, what: TaskProgress) -> bool:
        """Write the commit that was begun; return False, after a pause, if it may be tried again.

        Raises NotSaveable if a part of it cannot be encoded.
        """
        written = False
        try:
            passing("commit.begin")
            await self._encode()
            passing("commit.encoded")
            written = await self._write(what)
        finally:
            self.state.end_commit(written=written)
            self.channels.end_commit(written=written)
        if not written:
            await trio.sleep(RETRY_SECONDS)
        return written

    async def _encode(self) -> None:
        """Encode the instances of a commit, in slices that do not hold up the loop.

        Only one task encodes at a time, because slices between two turns add up to one pause.
        """
        async with self._context.encoding:
            began, spent = clocks.steady(), clocks.cpu()
            while self.state.encode(_ENCODED_AT_ONCE) or self.channels.encode():
                if clocks.steady() - began > _ENCODING_SECONDS:
                    self._spend(clocks.cpu() - spent)
                    await trio.lowlevel.checkpoint()
                    began, spent = clocks.steady(), clocks.cpu()
            self._spend(clocks.cpu() - spent)

    def _spend(self, seconds: float, shipping: float = 0.0) -> None:
        took, here = self.spent
        self.spent = took + seconds, here + seconds - shipping

    async def _write(self, what: TaskProgress) -> bool:
        """Write in a thread; return False if that failed and may be tried again."""
        context = self._context
        leaves = self.channels.releases
        linked = leaves or _comes_from_tasks(what)  # others neither resend nor take back its events
        checks = bool(leaves or what.producers or what.consumed)
        done = context.run if self.task.done else 0
        try:
            unsure = await context.in_thread(self._write_here, linked, done, checks)
        except (ProgressUnwritten, StateError) as error:
            self._failed(error)
            return False
        self._succeeded()
        if unsure is not None:
            self._failed(unsure)
            await trio.sleep(RETRY_SECONDS)
            await self._check_owner()
        return True

    def _write_here(self, linked: bool, done: int, checks: bool) -> ProgressUnwritten | None:
        """Write in this thread; return why the next owner may not find it, or None."""
        store, number = self._context.store, self.state.last[1] + 1
        assert store is not None
        began, spent = clocks.steady(), clocks.cpu()
        try:
            with self._context.claiming:
                store.renew(self.claim, self._written_ms, number, linked=linked, done=done)
            passing("commit.write")
            self.state.write_commit()
            passing("commit.written")
            if checks:
                try:
                    with self._context.claiming:
                        store.acknowledge(self.claim, number)
                except ProgressUnwritten as error:
                    return error
            return None
        finally:
            if self.state.waits:
                self._spend(clocks.steady() - began, self.state.shipping)
            else:
                self._spend(clocks.cpu() - spent)

    async def _check_owner(self) -> None:
        """Wait until the next owner is certain to find the commit.

        Raises TaskFenced if another container has taken the task over.
        """
        assert self._context.store is not None
        while True:
            try:
                number = self.state.last[1]
                await self._context.claims(self._context.store.acknowledge, self.claim, number)
            except ProgressUnwritten as error:
                self._failed(error)
                await trio.sleep(RETRY_SECONDS)
            else:
                self._succeeded()
                return

    def _succeeded(self) -> None:
        if self._failing_since is not None:
            self._failing_since = None
            self._context.retries.failing.pop(self.claim.task, None)
            log.info("progress is written again", task=self.claim.task)

    def _failed(self, error: Exception) -> None:
        self._context.failures += 1
        retries = self._context.retries
        retries.failing[self.claim.task] = str(error)
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = now
            log.warning(
                "progress could not be written; retrying, and a crash now would replay more",
                task=self.claim.task,
                error=str(error),
            )
        elif now - self._failing_since >= retries.timeout:
            raise CheckpointError(
                f"the progress of task {self.claim.task!r} could not be written for "
                f"{retries.timeout:g} s (task.commit.timeout.ms): {error}"
            ) from error

    async def acknowledge(self, what: TaskProgress) -> None:
        self._context.commits += 1
        size, now = self.state.bytes_written - self._bytes_before, now_ms()
        self._context.times.ended(now / 1000, (now - self._written_ms) / 1000, max(0, size))
        self.task.failures.isolation.written()
        offsets, consumed, producers, _ = what
        keyed: dict[tuple[str, str, int], int] = dict(offsets.items())
        self.checkpoint = Checkpoint(keyed, self._written_ms, consumed).over(self.checkpoint)
        progress = self._context.progress.get(self.task.partition, {})
        for ssp, offset in offsets.items():
            progress[ssp].committed = offset
        self._context.producers.commit_written(self.task.partition, producers)
        if consumed:
            for each in progress.values():
                each.startpoints -= consumed
            if over := await self._context.startpoints.consumed(self.claim.task, consumed):
                self.remove_startpoints(over)
        if self.state.changes.dropped:
            await self._context.in_thread(self.state.changes.free)

    def keep_cut(self, place: SavepointPlace) -> None:
        """Keep the commit just written as the task's part of its savepoint.

        Called in a thread before the next commit. Raises StateError, and TaskFenced if another
        container has taken the task over.
        """
        assert self._context.store is not None
        place.keep_cut(self.cut, self.claim.task, self.state.database)
        with self._context.claiming:
            self._context.store.check_fence(self.claim)

    async def expire(self) -> None:
        """Delete expired rows of stores and PEs, in slices, as part of the next commit."""
        for name, store in self.state.stores.items():
            if store.expires:
                at = store.expire(_EXPIRED_AT_ONCE, self._expire_at.get(name, b""))
                self._expire_at[name] = at
                await trio.lowlevel.checkpoint()
        for _ in self.state.expire_instances(_EXPIRED_AT_ONCE, self._pe_expire_at):
            await trio.lowlevel.checkpoint()


def _comes_from_tasks(what: TaskProgress) -> bool:
    return any(
        saved.lane.producer.startswith(TASK)
        for each in what.producers.values()
        for saved in each.lanes
    )
