"""The commits of one task: its state and progress of one moment, encoded, written, and told.

Rules
- A task's state and the offsets of its inputs are in one database and written in one batch. A
  commit begins in the loop, while nothing of its task runs; it takes both as they are then, and the
  task goes on. What follows runs beside it: encode the PEs that have changed, and what the task has
  put on streams, in slices; then write, in a thread.
- What the task has put for others is part of the commit, and may leave when it is written and the
  task was not taken over meanwhile. A commit waits for no other task, and for no consumer.
- All that belongs to a commit is of one moment.
- Nobody is told of a commit before it is sure that the next owner finds it. Who reads an input
  again needs no word.
- A commit that cannot be written (a full disk, lost rights) is told once; the container stops only
  if that lasts for ``task.commit.timeout.ms``. A task that another container has taken over, and a
  damaged file, stop the container at once.
- That a task is done is part of the commit that covers what it did last: so its next owner neither
  starts it nor tells it of the end of its inputs again. It holds for the run of the job.
- The offset that a startpoint has become is committed, with the id of the startpoint, before
  anything is read from there.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import trio

from s4node import clocks, threads
from s4node.errors import CheckpointError, ProgressUnwritten, StateError, StoreCorrupt
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.net.wire.frame import TASK
from s4node.offsets.checkpoint import Checkpoint
from s4node.offsets.cuts import Cuts
from s4node.offsets.input_progress import InputProgress, taken
from s4node.offsets.producer_offsets import KeptProducers
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import Claim, TaskClaims, now_ms
from s4node.runtime.commit.producers import Producers, TakenProducers, rows_of
from s4node.runtime.outputs.exchange import Exchange
from s4node.runtime.task.poison.in_flight_journal import InFlightJournal
from s4node.runtime.task.task import Task
from s4node.savepoints.folders import cut_folder
from s4node.state.checkpoint_policy import CheckpointRetention
from s4node.state.job import CUT, DONE, EPOCH_OF, WRITTEN, checkpoint_of
from s4node.state.task_state import TaskState

log = get_logger("s4node.runtime")

R = TypeVar("R")

RETRY_SECONDS = 1.0

_ENCODING_SECONDS = 0.005
_ENCODED_AT_ONCE = 512
_EXPIRED_AT_ONCE = 256
_THREADS = 8
"""Databases that are opened or written at a time."""


class TaskProgress(NamedTuple):
    """What a commit says of the progress of a task: offsets, startpoints that are consumed, and how
    far the numbers of producers are done."""

    offsets: Mapping[SystemStreamPartition, int]
    consumed: frozenset[str]
    producers: TakenProducers
    epochs: Mapping[SystemStreamPartition, int] = {}

    @property
    def rows(self) -> tuple[dict[str, int], frozenset[str], KeptProducers]:
        """As it is written."""
        positions = {str(ssp): offset for ssp, offset in self.offsets.items()}
        return positions, self.consumed, rows_of(self.producers)


class CommitContext:
    """What the commits of all tasks of a container have in common.

    ``progress`` is by task and partition, ``producers`` are those of durable streams.
    ``on_consumed(name, ids)`` is called with the startpoints that a task has consumed, and returns
    those that nobody can meet any more. ``exchange`` is what tasks put for others, ``cuts`` are
    those of the tasks. ``timeout``
    (seconds) is for how long commits may fail. ``commits`` and ``failures`` count. The ``store`` of
    claims and the ``run`` of the job are set when it is open.
    """

    def __init__(
        self,
        progress: Mapping[int, Mapping[SystemStreamPartition, InputProgress]],
        on_consumed: Callable[[str, Collection[str]], Awaitable[Collection[str]]],
        producers: Producers,
        *,
        exchange: Exchange,
        cuts: Cuts,
        timeout: float,
    ) -> None:
        self.commits = 0
        self.failures = 0
        self.progress = progress
        self.on_consumed = on_consumed
        self.producers = producers
        self.exchange = exchange
        self.cuts = cuts
        self.timeout = timeout
        self.store: TaskClaims | None = None
        self.run = 0
        self.encoding = trio.Lock()
        self.claiming = threading.Lock()
        """Held by the thread that calls the store of claims."""
        self._thread = trio.CapacityLimiter(1)
        self._threads = trio.CapacityLimiter(_THREADS)

    async def claims(self, function: Callable[..., R], *arguments: Any) -> R:
        """Call it where nothing else calls the store of claims."""

        def alone() -> R:
            with self.claiming:
                return function(*arguments)

        return await threads.run_sync(alone, limiter=self._thread)

    async def in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        """Call it beside the loop, as so many others may be at a time."""
        return await threads.run_sync(function, *arguments, limiter=self._threads)


class TaskCommits:
    """The commits of ``task``, and what it has: the right to write it, and what is written.

    ``writing``, ``again``, ``pending`` and ``leaving`` are the committer's. ``spent`` is the time
    that the last commit took, in seconds: of the processor, or where it waits for a disk or a URL
    of the clock; and the same without the time at the URL.
    """

    __slots__ = (
        "_context",
        "_epochs",
        "_expire_at",
        "_failing_since",
        "_written_ms",
        "again",
        "checkpoint",
        "claim",
        "cut",
        "keeping",
        "leaving",
        "pending",
        "spent",
        "state",
        "task",
        "under_way",
        "writing",
    )

    def __init__(
        self,
        context: CommitContext,
        task: Task,
        claim: Claim,
        state: TaskState,
        keeping: CheckpointRetention,
    ) -> None:
        self.task = task
        self.claim = claim
        self.state = state
        self.keeping = keeping
        self.under_way: InFlightJournal | None = None
        self.checkpoint = checkpoint_of(state)
        self._epochs = dict(self.checkpoint.epochs)
        self.writing = False  # a commit is under way
        self.pending: TaskProgress | None = None  # what to write next, if it is all
        self.again = False  # a commit was asked for meanwhile
        self.leaving = False  # its last commits are being written
        self.spent = (0.0, 0.0)
        self.cut = 0  # the number of the savepoint that the commit under way is the cut of
        self._context = context
        self._written_ms = 0  # when the last commit began
        self._failing_since: float | None = None
        self._expire_at: dict[str, bytes] = {}

    def close(self) -> None:
        """Give the task's files back; what was not committed is gone."""
        if self.under_way is not None:
            assert self.task.failures.isolation is not None
            self.under_way.close(self.task.failures.isolation.suspects)
        try:
            self.state.close()
        except (StateError, StoreCorrupt) as error:  # others go on, and have removed what is older
            log.info(
                "a task's files could not be closed; what was committed is safe",
                task=self.claim.task,
                error=str(error),
            )

    def go_back(self, new: Task) -> None:
        """Go on with ``new`` and what is committed, in place of a task that has failed."""
        self.task = new
        self.again = False
        self._expire_at = {}
        self.state = self.state.reloaded()
        self._epochs = dict(checkpoint_of(self.state).epochs)
        self.pending = None

    def forget(self, startpoints: Collection[str]) -> None:
        """Nobody can meet these startpoints any more: the next commit leaves them out."""
        self.checkpoint = self.checkpoint.without(startpoints)
        self.state.forget(startpoints)

    # -- what there is to commit -----------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it is committed that the task is done, in this run of the job."""
        return bool(self.state.meta(DONE) == self._context.run)

    def begin_anew(self) -> None:
        """The task is done no longer, as of the next commit."""
        self.state.set_meta(DONE, 0)

    @property
    def keeps(self) -> bool:
        """Whether a commit may have anything but the task's progress."""
        return self.task.gate.whole or self._context.exchange.keeps(self.task)

    @property
    def changed(self) -> bool:
        """Whether a commit would write anything."""
        return (
            self.state.changed
            or self._context.cuts.is_due(self.task.partition)
            or self._context.producers.moved(self.task.partition)
            or self._context.exchange.changed(self.task)
            or self._has_read
            or (self.task.done and not self.done)
        )

    @property
    def _has_read(self) -> bool:
        """Whether the task has come further in its inputs than is committed."""
        offsets, consumed = taken(self._context.progress.get(self.task.partition, {}))
        known = self.checkpoint.offsets
        return bool(consumed) or any(known.get(ssp) != offsets[ssp] for ssp in offsets)

    def take(self) -> TaskProgress:
        """The progress as it is now."""
        partition = self.task.partition
        offsets, consumed = taken(self._context.progress.get(partition, {}))
        epochs = {ssp: self._context.progress[partition][ssp].epoch for ssp in offsets}
        producers = self._context.producers.take(partition)
        return TaskProgress(offsets, consumed, producers, epochs)

    # -- one commit ------------------------------------------------------------------------------

    def begin(self, what: TaskProgress) -> None:
        """Take the state as it is now, with progress that belongs to it."""
        began = clocks.cpu()
        self._written_ms = now_ms()
        self.state.set_meta(WRITTEN, self._written_ms)
        for ssp, epoch in what.epochs.items():
            if self._epochs.get(ssp, 0) != epoch:
                self._epochs[ssp] = epoch
                self.state.set_meta(f"{EPOCH_OF}{ssp}", epoch)
        if self.task.done:
            self.state.set_meta(DONE, self._context.run)
        self.cut = self._context.cuts.begin(self.task.partition)
        if self.cut:
            self.state.set_meta(CUT, self.cut)
        self._context.exchange.begin(self.task)
        self.state.begin_commit(*what.rows)
        self.spent = (0.0, 0.0)
        self._spend(clocks.cpu() - began)

    async def save(self, what: TaskProgress) -> bool:
        """Write what was begun; False, after a while, if that failed and may be tried again.

        Raises NotSaveable where a part of it cannot be encoded.
        """
        written = False
        try:
            passing("commit.begin")
            await self._encode()
            passing("commit.encoded")
            written = await self._write(what)
        finally:
            self.state.end_commit(written=written)
            self._context.exchange.end(self.task, written=written)
        if not written:
            await trio.sleep(RETRY_SECONDS)
        return written

    async def _encode(self) -> None:
        """Have the instances of a commit encoded, without holding up others for long.

        One task at a time, for all that they do between two turns of the loop is one pause.
        """
        async with self._context.encoding:
            began, spent = clocks.steady(), clocks.cpu()
            while self.state.encode(_ENCODED_AT_ONCE) or self._context.exchange.encode(self.task):
                if clocks.steady() - began > _ENCODING_SECONDS:
                    self._spend(clocks.cpu() - spent)
                    await trio.lowlevel.checkpoint()
                    began, spent = clocks.steady(), clocks.cpu()
            self._spend(clocks.cpu() - spent)

    def _spend(self, seconds: float, shipping: float = 0.0) -> None:
        took, here = self.spent
        self.spent = took + seconds, here + seconds - shipping

    async def _write(self, what: TaskProgress) -> bool:
        """Write in a thread; False if that failed and may be tried again."""
        context = self._context
        leaves = context.exchange.leaves(self.task)
        linked = leaves or _hears_tasks(what)  # others will not give again, or take back
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
            await self._check()
        return True

    def _write_here(self, linked: bool, done: int, checks: bool) -> ProgressUnwritten | None:
        """Write in this thread. What is returned says why it is written, and not sure that the next
        owner finds it."""
        store, number = self._context.store, self.state.last[1] + 1
        assert store is not None
        began, spent = clocks.steady(), clocks.cpu()
        try:
            with self._context.claiming:
                store.renew(self.claim, self._written_ms, number, linked=linked, done=done)
            passing("commit.write")
            self.state.write()
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

    async def _check(self) -> None:
        """Return when it is sure that what was just written is what the task's next owner finds;
        raises TaskFenced if another has taken it over."""
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
            log.info("progress is written again", task=self.claim.task)

    def _failed(self, error: Exception) -> None:
        self._context.failures += 1
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = now
            log.warning(
                "progress could not be written; it is tried again, and a crash now replays more",
                task=self.claim.task,
                error=str(error),
            )
        elif now - self._failing_since >= self._context.timeout:
            raise CheckpointError(
                f"the progress of task {self.claim.task!r} could not be written for "
                f"{self._context.timeout:g} s (task.commit.timeout.ms): {error}"
            ) from error

    async def tell(self, what: TaskProgress) -> None:
        """State or offsets, or both, are safe."""
        self._context.commits += 1
        if self.task.failures.isolation is not None:
            self.task.failures.isolation.written()
        offsets, consumed, producers, _ = what
        keyed: dict[tuple[str, str, int], int] = dict(offsets.items())
        self.checkpoint = Checkpoint(keyed, self._written_ms, consumed).over(self.checkpoint)
        progress = self._context.progress.get(self.task.partition, {})
        for ssp, offset in offsets.items():
            progress[ssp].committed = offset
        self._context.producers.committed(self.task.partition, producers)
        if consumed:
            for each in progress.values():
                each.startpoints -= consumed
            if over := await self._context.on_consumed(self.claim.task, consumed):
                self.forget(over)

    def keep_cut(self, job: Path) -> None:
        """Keep what the commit just written holds as the task's part of its savepoint; in a thread,
        before the next commit. Raises StateError."""
        self.state.database.checkpoint(cut_folder(job, self.cut, self.claim.task))

    async def expire(self) -> None:
        """Delete what is over its time, in slices; the next commit has it."""
        for name, store in self.state.stores.items():
            if store.expires:
                at = store.expire(_EXPIRED_AT_ONCE, self._expire_at.get(name, b""))
                self._expire_at[name] = at
                await trio.lowlevel.checkpoint()


def _hears_tasks(what: TaskProgress) -> bool:
    """Whether other tasks are among the producers that a commit says something of."""
    lanes = [lane for each in what.producers.values() for lane in each.lanes]
    return any(lane.producer.startswith(TASK) for lane in lanes)
