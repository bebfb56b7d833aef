"""The committer: writes state and progress of tasks, each as of a moment between two of its events.

Rules
- A task's state and the offsets of its inputs are in one database and written in one batch. A
  commit is asked for in the loop, while nothing of its task runs; it takes both as they are then,
  and the task goes on. What follows runs beside it: encode the PEs that have changed, and what the
  task has put on streams, in slices; then write, in a thread.
- What the task has put for others is part of the commit, and may leave when it is written and the
  task was not taken over meanwhile. A commit waits for no other task, and for no consumer.
- All that belongs to a commit is of one moment.
- One commit of a task is under way at a time. Those asked for meanwhile become one, which is asked
  for again when that is over. Of a task that has nothing but its progress that is taken when it is
  asked for, so that it covers exactly the event that asks; unless there is more by then.
- Nobody is told of a commit before it is sure that the next owner finds it. Who reads an input
  again needs no word.
- A commit that cannot be written (a full disk, lost rights) is told once, and tried again with the
  newest offsets; the container stops only if that lasts for ``task.commit.timeout.ms``. A task that
  another container has taken over, and a damaged file, stop the container at once.
- An input that was begun at a startpoint keeps its old offset until an event of it is processed;
  the commit that covers that one also says that the startpoint is consumed.
- ``finish`` returns when all that has changed is written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import trio

from s4node.config.paths import full_path
from s4node.config.settings import STATE_FOLDER
from s4node.errors import CheckpointError, NotSaveable, ProgressUnwritten, StateError, StoreCorrupt
from s4node.events.keys import Hasher
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.net.ingress.producer_lane import origin_of
from s4node.net.wire.frame import TASK
from s4node.offsets.checkpoint import Checkpoint, JobGuard
from s4node.offsets.input_progress import InputProgress, taken
from s4node.offsets.producer_offsets import KeptProducers
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import Claim, ProgressStore, now_ms
from s4node.runtime.commit.producers import Producers, TakenProducers, rows_of
from s4node.runtime.outputs.exchange import Exchange
from s4node.runtime.task.poison import in_flight_journal as under_way
from s4node.runtime.task.task import Task
from s4node.state import epochs
from s4node.state.checkpoint_policy import Keeping, Policy
from s4node.state.commit_id import shipped_of
from s4node.state.database import Database
from s4node.state.job import WRITTEN, checkpoint_of, named_folder, task_folder
from s4node.state.remote_backup import Depot, check_newest
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState

log = get_logger("s4node.progress")

R = TypeVar("R")


class TaskProgress(NamedTuple):
    """What a commit says of the progress of a task: offsets, startpoints that are consumed, and how
    far the numbers of producers are done."""

    offsets: Mapping[SystemStreamPartition, int]
    consumed: frozenset[str]
    producers: TakenProducers

    @property
    def rows(self) -> tuple[dict[str, int], frozenset[str], KeptProducers]:
        """As it is written."""
        positions = {str(ssp): offset for ssp, offset in self.offsets.items()}
        return positions, self.consumed, rows_of(self.producers)


RETRY_SECONDS = 1.0

_ENCODING_SECONDS = 0.005
_ENCODED_AT_ONCE = 512
_EXPIRED_AT_ONCE = 256
_KEPT_EPOCHS = 2
_THREADS = 8
"""Databases that are opened or written at a time."""


class _Kept:
    """What a task keeps: the right to write it, and what is written."""

    __slots__ = (
        "again",
        "checkpoint",
        "claim",
        "expire_at",
        "failing_since",
        "keeping",
        "leaving",
        "pending",
        "state",
        "task",
        "under_way",
        "writing",
    )

    def __init__(self, task: Task, claim: Claim, state: TaskState, keeping: Keeping) -> None:
        self.task = task
        self.claim = claim
        self.state = state
        self.keeping = keeping
        self.under_way: under_way.UnderWay | None = None
        self.checkpoint = checkpoint_of(state)
        self.writing = False
        self.pending: TaskProgress | None = None  # what to write next, if it is all
        self.again = False  # a commit was asked for meanwhile
        self.leaving = False  # its last commits are being written
        self.failing_since: float | None = None
        self.expire_at: dict[str, bytes] = {}


class Committer:
    """Keeps state and progress of tasks below ``folder``.

    ``progress`` is by task and partition, ``producers`` are those of durable streams.
    ``on_consumed(name, ids)`` is called with the startpoints that a task has consumed, and returns
    whether nobody can meet them any more. ``exchange`` is what tasks put for others. ``wake`` is
    told of tasks that have to commit once more. ``timeout`` (seconds) is for how long commits may
    fail. ``commits`` and ``failures`` count.
    """

    def __init__(
        self,
        folder: Path,
        progress: Mapping[int, Mapping[SystemStreamPartition, InputProgress]],
        on_consumed: Callable[[str, Collection[str]], Awaitable[bool]],
        producers: Producers,
        *,
        hasher: Hasher,
        timeout: float,
        policy: Policy,
        depot: Depot | None = None,
        sync: bool = False,
        changes_bytes: int = 64 << 20,
        exchange: Exchange,
        wake: Callable[[Task], None] = lambda _: None,
    ) -> None:
        self.commits = 0
        self.failures = 0
        self._folder = folder
        self._progress = progress
        self._on_consumed = on_consumed
        self._producers = producers
        self._hasher = hasher
        self._timeout = timeout
        self._database = partial(Database, sync=sync)
        self._changes_bytes = changes_bytes
        self._policy = policy
        self._depot = depot
        self._exchange = exchange
        self._wake = wake
        self._tasks: dict[int, _Kept] = {}
        self._finishing = False
        self._unused: set[str] = set()  # PEs of which that was told
        self._thread = trio.CapacityLimiter(1)
        self._threads = trio.CapacityLimiter(_THREADS)
        self._encoding = trio.Lock()
        self._store: ProgressStore | None = None
        self._nursery: trio.Nursery
        self._ending = False
        self._quiet = trio.lowlevel.ParkingLot()

    # -- life --------------------------------------------------------------------------------

    async def open(self, job: JobGuard) -> None:
        """Open the store for a job; raises CheckpointError where its progress fits another one."""
        self._store = await self._claims(ProgressStore, self._folder)
        await self._claims(self._store.admit, job)
        if self._depot is not None:
            await self._claims(self._depot.admit, job)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write commits until cancelled; raises what stops the container."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._ending = True

    def close(self) -> None:
        """Give all files back, when nothing runs any more; what was not committed is gone."""
        for kept in self._tasks.values():
            self._give_back(kept)
        self._tasks.clear()
        if self._store is not None:
            self._store.close()

    async def claim(self, task: Task, name: str, origin: str, epoch: int) -> Checkpoint:
        """Become the one who writes what a task keeps, and have it back; returns its progress."""
        assert self._store is not None
        passing("claim.begin")
        folder = task_folder(self._folder, name)
        above = await self._in_thread(epochs.highest, folder)
        shipment = None if self._depot is None else self._depot.task(folder.name)
        if shipment is not None:
            above = max(above, await self._in_thread(shipment.highest))
        claim = await self._claims(self._store.claim, name, origin, epoch, above)
        passing("claim.fenced")
        if shipment is not None:
            await self._in_thread(shipment.claim, claim.fence, origin, epoch)
        database = await self._in_thread(
            epochs.claim, folder, claim.fence, self._database, shipment
        )
        try:
            state = TaskState(database, self._hasher, fence=claim.fence, ship=shipment)
            if self._depot is None and (url := shipped_of(database)):
                await self._in_thread(check_newest, url, folder.name, database)
            self._check_whole(claim, state, folder)
            keeping = Keeping(folder, claim.fence, self._policy, shipment)
            await self._in_thread(keeping.begin, state)
        except BaseException:
            database.close()
            raise
        kept = self._tasks[task.partition] = _Kept(task, claim, state, keeping)
        _tell_missing(claim, state)
        passing("claim.whole")
        await self._in_thread(epochs.sweep, folder, _KEPT_EPOCHS, math.inf, time.time())
        producers = state.producers()
        self._producers.restore(task.partition, producers, kept.checkpoint.written_ms)
        positions = state.positions() | {
            origin_of(stream, task.partition, producer): row.number
            for (stream, producer), row in producers.items()
        }
        await self._in_thread(keeping.sweep)
        kept.under_way = await self._in_thread(under_way.enter, folder, claim.fence, positions)
        assert task.isolation is not None
        task.isolation.watch(kept.under_way)
        task.keep(state, self._changes_bytes)
        self._tell_unused(state.unused())
        left = await self._in_thread(state.rows, OUTBOX)
        self._exchange.open(task, state, claim.fence, left)
        return kept.checkpoint

    def _tell_unused(self, pes: Iterable[str]) -> None:
        """Say, once for all tasks, that a PE class was renamed or removed and its state was not."""
        new = sorted(set(pes) - self._unused)
        if new:
            self._unused.update(new)
            log.warning("state of PE classes that the app no longer has is kept, and not used",
                        pes=new, folder=str(self._folder))  # fmt: skip

    def _check_whole(self, claim: Claim, state: TaskState, folder: Path) -> None:
        """Raise CheckpointError where a task has been set back, and others cannot go back."""
        if claim.linked and _is_behind(claim, state):
            raise CheckpointError(
                f"task {claim.task!r} has lost commits: of {claim.commit} that were begun {folder} "
                f"has {state.last[1]}. It had put events for other tasks or on streams, or had "
                f"taken theirs, and they have gone on: so it cannot begin again where it was "
                f"without counting twice. Restore {self._folder} as a whole from a backup; or "
                f"remove it to begin anew, which puts on streams again what is there already"
            )

    async def check(self) -> None:
        """Raise TaskFenced where one of the tasks is another container's by now."""
        assert self._store is not None
        for kept in list(self._tasks.values()):
            await self._claims(self._store.check, kept.claim)

    async def release(self, task: Task) -> None:
        """Write what is not yet written of a task that has retired, and give its files back."""
        kept = self._tasks[task.partition]
        kept.leaving = True
        task.leave_none_behind()
        while kept.writing or self._changed(kept):
            if kept.writing:
                await self._quiet.park()
            else:
                self._begin(kept, self._taken(kept))
        del self._tasks[task.partition]
        await self._in_thread(self._give_back, kept)

    @staticmethod
    def _give_back(kept: _Kept) -> None:
        if kept.under_way is not None:
            assert kept.task.isolation is not None
            kept.under_way.close(kept.task.isolation.suspects)
        try:
            kept.state.close()
        except (StateError, StoreCorrupt) as error:  # others go on, and have removed what is older
            log.info("a task's files could not be closed; what was committed is safe",
                     task=kept.claim.task, error=str(error))  # fmt: skip

    async def wait_written(self, task: Task) -> None:
        """Return when no commit of a task is under way; it must not ask for another."""
        while self._tasks[task.partition].writing:
            await self._quiet.park()

    def go_back(self, new: Task) -> None:
        """Give ``new`` what the task in whose place it is has committed last."""
        kept = self._tasks[new.partition]
        kept.task = new
        kept.again = False
        kept.expire_at = {}
        kept.state = kept.state.reloaded()
        kept.pending = None
        new.keep(kept.state, self._changes_bytes)
        self._exchange.go_back(new, kept.state)

    async def _claims(self, function: Callable[..., R], *arguments: Any) -> R:
        """Call it where nothing else calls the store of claims."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._thread)

    async def _in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._threads)

    # -- asking ------------------------------------------------------------------------------

    def commit(self, task: Task) -> bool:
        """Take the task's state and offsets as they are now, to be written soon; whether they were
        taken, or else are going to be."""
        if self._ending:  # all is being cancelled, and a task has taken one more step
            return False
        kept = self._tasks.get(task.partition)
        if kept is None:  # a member that stops is just taking it over, and has done nothing of it
            return False
        if kept.writing:
            kept.again = True
            if self._keeps(kept):
                return False
            kept.pending = self._taken(kept)
        elif self._changed(kept):
            self._begin(kept, self._taken(kept))
        return True

    async def finish(self, tasks: Iterable[Task]) -> None:
        """Return when all is written of those of these tasks of which nothing runs."""
        self._finishing = True
        mine = [kept for task in tasks if (kept := self._tasks.get(task.partition)) is not None]
        while True:
            if self.writing:
                await self._quiet.park()
                continue
            due = [kept for kept in mine if self._changed(kept) and not kept.task.busy]
            if not due:
                return
            for kept in due:
                self._begin(kept, self._taken(kept))

    def _keeps(self, kept: _Kept) -> bool:
        """Whether a commit of a task may have anything but its progress."""
        return kept.task.whole or self._exchange.keeps(kept.task)

    def changed(self, task: Task) -> bool:
        """Whether a commit of a task is under way, or would write anything."""
        kept = self._tasks.get(task.partition)
        return kept is not None and (kept.writing or self._changed(kept))

    def awaited(self, task: Task) -> bool:
        """Whether others wait for what a commit of a task would write."""
        return self._producers.moved(task.partition) or self._exchange.awaited(task)

    def writes(self, task: Task) -> bool:
        """Whether a commit of a task is under way."""
        return self._tasks[task.partition].writing

    def _taken(self, kept: _Kept) -> TaskProgress:
        partition = kept.task.partition
        offsets, consumed = taken(self._progress.get(partition, {}))
        return TaskProgress(offsets, consumed, self._producers.take(partition, now_ms()))

    def _changed(self, kept: _Kept) -> bool:
        partition = kept.task.partition
        offsets, consumed = taken(self._progress.get(partition, {}))
        known = kept.checkpoint.offsets
        return (
            bool(consumed)
            or kept.state.changed
            or self._producers.moved(partition)
            or self._exchange.changed(kept.task)
            or any(known.get(ssp) != offset for ssp, offset in offsets.items())
        )

    def _begin(self, kept: _Kept, what: TaskProgress) -> None:
        """Take the state as it is now, with progress that belongs to it."""
        if kept.task.isolation is not None:
            kept.task.isolation.taken()
        kept.state.set_meta(WRITTEN, now_ms())
        self._exchange.begin(kept.task)
        kept.state.begin_commit(*what.rows)
        kept.writing = True
        kept.again = False
        kept.pending = None
        self._nursery.start_soon(self._run, kept, what)

    async def _run(self, kept: _Kept, what: TaskProgress) -> None:
        written, spoiled = False, None
        try:
            passing("commit.begin")
            await self._encode(kept)
            passing("commit.encoded")
            written = await self._write(kept, what)
        except NotSaveable as error:
            spoiled = error
        finally:
            kept.state.end_commit(written=written)
            self._exchange.end(kept.task, written=written)
        if spoiled is not None:
            if self._finishing or kept.leaving:  # there is no time to find out what it is due to
                raise spoiled
            kept.writing = False
            self._quiet.unpark_all()
            kept.task.spoiled(spoiled)
            return
        if written:
            await self._written(kept, what)
            passing("commit.told")
            if kept.keeping.due:
                upload = await self._in_thread(kept.keeping.keep, kept.state)
                if upload is not None:
                    self._nursery.start_soon(self._in_thread, upload)
            if not (self._finishing or kept.leaving):
                await self._expire(kept)  # before anybody may close the state, or go back from it
        else:
            await trio.sleep(RETRY_SECONDS)
            kept.again = True  # with the newest
        kept.writing = False
        if kept.pending is not None and kept.pending != what and not self._keeps(kept):
            self._begin(kept, kept.pending)
        elif not self._finishing:
            if kept.again:
                kept.task.want_commit()
            self._wake(kept.task)  # it may wait to be told of the end of its inputs
        self._quiet.unpark_all()

    # -- writing -----------------------------------------------------------------------------

    async def _encode(self, kept: _Kept) -> None:
        """Have the instances of a commit encoded, without holding up others for long.

        One task at a time, for all that they do between two turns of the loop is one pause.
        """
        async with self._encoding:
            began = time.perf_counter()
            while kept.state.encode(_ENCODED_AT_ONCE) or self._exchange.encode(kept.task):
                if time.perf_counter() - began > _ENCODING_SECONDS:
                    await trio.lowlevel.checkpoint()
                    began = time.perf_counter()

    def _linked(self, kept: _Kept, what: TaskProgress) -> bool:
        """Whether others will not give again, or take back, what a commit says."""
        heard = (lane.producer for each in what.producers.values() for lane in each.lanes)
        return self._exchange.leaves(kept.task) or any(name.startswith(TASK) for name in heard)

    async def _write(self, kept: _Kept, what: TaskProgress) -> bool:
        """Write in a thread; False if that failed and may be tried again."""
        assert self._store is not None
        try:
            await self._claims(
                partial(self._store.renew, linked=self._linked(kept, what)),
                kept.claim,
                now_ms(),
                kept.state.last[1] + 1,
            )
            passing("commit.write")
            await self._in_thread(kept.state.write)
            passing("commit.written")
        except (ProgressUnwritten, StateError) as error:
            self._failed(kept, error)
            return False
        self._succeeded(kept)
        if self._exchange.leaves(kept.task) or what.producers or what.consumed:
            await self._check(kept)
        return True

    async def _check(self, kept: _Kept) -> None:
        """Return when it is sure that what was just written is what the task's next owner finds;
        raises TaskFenced if another has taken it over."""
        assert self._store is not None
        while True:
            try:
                await self._claims(self._store.check, kept.claim)
            except ProgressUnwritten as error:
                self._failed(kept, error)
                await trio.sleep(RETRY_SECONDS)
            else:
                self._succeeded(kept)
                return

    async def _written(self, kept: _Kept, what: TaskProgress) -> None:
        """State or offsets, or both, are safe."""
        self.commits += 1
        if kept.task.isolation is not None:
            kept.task.isolation.written()
        offsets, consumed, producers = what
        keyed: dict[tuple[str, str, int], int] = dict(offsets.items())
        kept.checkpoint = Checkpoint(keyed, now_ms(), consumed).over(kept.checkpoint)
        progress = self._progress.get(kept.task.partition, {})
        for ssp, offset in offsets.items():
            progress[ssp].committed = offset
        self._producers.committed(kept.task.partition, producers)
        if consumed:
            for each in progress.values():
                if each.startpoint in consumed:
                    each.startpoint = ""
            if await self._on_consumed(kept.claim.task, consumed):
                self.forget(kept.task.partition, consumed)

    def forget(self, task: int, startpoints: Collection[str]) -> None:
        """Nobody can meet these startpoints of a task any more: its next commit leaves them out."""
        kept = self._tasks[task]
        kept.checkpoint = kept.checkpoint.without(startpoints)
        kept.state.forget(startpoints)

    @staticmethod
    def _succeeded(kept: _Kept) -> None:
        if kept.failing_since is not None:
            kept.failing_since = None
            log.info("progress is written again", task=kept.claim.task)

    def _failed(self, kept: _Kept, error: Exception) -> None:
        self.failures += 1
        now = trio.current_time()
        if kept.failing_since is None:
            kept.failing_since = now
            log.warning("progress could not be written; it is tried again, and a crash now replays "
                        "more", task=kept.claim.task, error=str(error))  # fmt: skip
        elif now - kept.failing_since >= self._timeout:
            raise CheckpointError(
                f"the progress of task {kept.claim.task!r} could not be written for "
                f"{self._timeout:g} s (task.commit.timeout.ms): {error}"
            ) from error

    async def _expire(self, kept: _Kept) -> None:
        """Delete what is over its time, in slices; the next commit has it."""
        for name, store in kept.state.stores.items():
            if store.expires:
                at = store.expire(_EXPIRED_AT_ONCE, kept.expire_at.get(name, b""))
                kept.expire_at[name] = at
                await trio.lowlevel.checkpoint()

    @property
    def writing(self) -> bool:
        """Whether a commit is under way."""
        return any(kept.writing for kept in self._tasks.values())

    def committed(self) -> Mapping[int, Checkpoint]:
        """What is written of each task."""
        return {task: kept.checkpoint for task, kept in self._tasks.items()}


def _is_behind(claim: Claim, state: TaskState) -> bool:
    """Whether a database does not have all commits that were written."""
    return state.last[1] < claim.commit - 1  # the last one may have been about to be written


def _tell_missing(claim: Claim, state: TaskState) -> None:
    """Say where a database does not have all commits that were written."""
    if _is_behind(claim, state):
        log.error("commits of a task are missing; what they had done is done again from its "
                  "inputs, and what producers were told is safe may be lost",
                  task=claim.task, found=state.last[1], written=claim.commit)  # fmt: skip


def folder_of(root: str, cluster: str, app: str) -> Path:
    """Where the progress of an app on a cluster is kept; raises ConfigError if that cannot be."""
    return named_folder(named_folder(full_path(root, STATE_FOLDER.name), cluster), app)
