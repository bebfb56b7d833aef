"""The committer: has tasks claimed, and knows which of them commits when, and whom to tell.

Rules
- A commit is asked for in the loop, while nothing of its task runs; what it does is told where the
  commits of one task are: see task_commit.
- One commit of a task is under way at a time. Those asked for meanwhile become one, which is asked
  for again when that is over. Of a task that has nothing but its progress that is taken when it is
  asked for, so that it covers exactly the event that asks; unless there is more by then.
- A commit that could not be written is asked for again, with the newest offsets.
- ``finish`` returns when all that has changed is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import trio

from s4node import clocks
from s4node.config.paths import full_path
from s4node.config.settings import STATE_FOLDER
from s4node.errors import CheckpointError, NotSaveable
from s4node.events.keys import Hasher
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.net.ingress.producer_lane import origin_of
from s4node.offsets.checkpoint import Checkpoint, JobGuard
from s4node.offsets.task_claims import FILE, Claim, TaskClaims
from s4node.runtime.commit.task_commit import CommitContext, TaskCommits, TaskProgress
from s4node.runtime.task.poison import in_flight_journal
from s4node.runtime.task.task import Task
from s4node.state import epochs
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.commit_id import shipped_of
from s4node.state.database import Database
from s4node.state.job import named_folder, task_folder
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import check_newest
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState

log = get_logger("s4node.runtime")

_KEPT_EPOCHS = 2


class Committer:
    """Keeps state and progress of tasks below ``folder``.

    ``wake`` is told of tasks that have to commit once more. ``commits`` and ``failures`` count.
    """

    def __init__(
        self,
        folder: Path,
        context: CommitContext,
        *,
        hasher: Hasher,
        policy: Policy,
        depot: RemoteJob | None = None,
        sync: bool = False,
        changes_bytes: int = 64 << 20,
        wake: Callable[[Task], None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._context = context
        self._producers = context.producers
        self._exchange = context.exchange
        self._hasher = hasher
        self._sync = sync
        self._database = partial(Database, sync=sync)
        self._changes_bytes = changes_bytes
        self._policy = policy
        self._depot = depot
        self._wake = wake
        self._tasks: dict[int, TaskCommits] = {}
        self._finishing = False
        self._unused: set[str] = set()  # PEs of which that was told
        self._nursery: trio.Nursery
        self._ending = False
        self._quiet = trio.lowlevel.ParkingLot()

    # -- life --------------------------------------------------------------------------------

    async def open(self, job: JobGuard) -> None:
        """Open the store for a job; raises CheckpointError where its progress fits another one."""
        context = self._context
        open_claims = partial(TaskClaims, self._folder, sync=self._sync)
        context.store = await context.claims(open_claims)
        context.run = await context.claims(context.store.admit, job)
        if self._depot is not None:
            await context.claims(self._depot.admit, job)

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
            kept.close()
        self._tasks.clear()
        if self._context.store is not None:
            self._context.store.close()

    async def claim(self, task: Task, name: str, origin: str, epoch: int) -> Checkpoint:
        """Become the one who writes what a task keeps, and have it back; returns its progress."""
        store, in_thread = self._context.store, self._context.in_thread
        assert store is not None
        passing("claim.begin")
        folder = task_folder(self._folder, name)
        above = await in_thread(epochs.highest, folder)
        shipment = None if self._depot is None else self._depot.task(folder.name)
        if shipment is not None:
            above = max(above, await in_thread(shipment.highest))
        claim = await self._context.claims(store.claim, name, origin, epoch, above)
        passing("claim.fenced")
        if shipment is not None:
            await in_thread(shipment.claim, claim.fence, origin, epoch)
        database = await in_thread(epochs.claim, folder, claim.fence, self._database, shipment)
        try:
            state = TaskState(database, self._hasher, fence=claim.fence, ship=shipment)
            if self._depot is None and (url := shipped_of(database)):
                await in_thread(check_newest, url, folder.name, database)
            self._check_whole(claim, state, folder)
            keeping = CheckpointRetention(folder, claim.fence, self._policy, shipment)
            await in_thread(keeping.begin, state)
        except BaseException:
            database.close()
            raise
        kept = self._tasks[task.partition] = TaskCommits(self._context, task, claim, state, keeping)
        _tell_missing(claim, state)
        passing("claim.whole")
        await in_thread(epochs.sweep, folder, _KEPT_EPOCHS, math.inf, clocks.wall())
        producers = state.producers()
        self._producers.restore(task.partition, producers)
        positions = state.positions() | {
            origin_of(stream, task.partition, producer): row.number
            for (stream, producer), row in producers.items()
        }
        await in_thread(keeping.sweep)
        kept.under_way = await in_thread(in_flight_journal.enter, folder, claim.fence, positions)
        assert task.failures.isolation is not None
        task.failures.isolation.watch(kept.under_way)
        task.keep(state, self._changes_bytes)
        self._tell_unused(state.unused())
        left = await in_thread(state.rows, OUTBOX)
        self._exchange.open(task, state, claim.fence, left)
        return kept.checkpoint

    def is_done(self, task: Task) -> bool:
        """Whether a task had committed that it is done, in this run of the job."""
        return self._tasks[task.partition].done

    def begin_anew(self, task: Task) -> None:
        """A task goes on though it was done."""
        self._tasks[task.partition].begin_anew()

    async def end_run(self, tasks: Collection[str]) -> None:
        """The job has ended if all of these tasks are done: its next start is a new run."""
        context = self._context
        assert context.store is not None
        await context.claims(context.store.end_run, context.run, tasks)

    def _tell_unused(self, pes: Iterable[str]) -> None:
        """Say, once for all tasks, that a PE class was renamed or removed and its state was not."""
        new = sorted(set(pes) - self._unused)
        if new:
            self._unused.update(new)
            log.warning(
                "state of PE classes that the app no longer has is kept, and not used",
                pes=new,
                folder=str(self._folder),
            )

    def _check_whole(self, claim: Claim, state: TaskState, folder: Path) -> None:
        """Raise CheckpointError where a task has been set back, and others cannot go back."""
        if claim.linked and _is_behind(claim, state):
            raise CheckpointError(
                f"task {claim.task!r} has lost commits: {folder} has {state.last[1]} of "
                f"{claim.commit} that were begun; others were told of {claim.acknowledged}. It had "
                f"put events for other tasks or on streams, or had taken theirs, and they have "
                f"gone on: so it cannot begin again where it was without counting twice. To go on "
                f"it needs all tasks as of one moment: restore {self._folder} as a whole from a "
                f"backup that was made while the job stood; or remove it to begin anew, which puts "
                f"on streams again what is there already"
            )

    async def check(self) -> None:
        """Raise TaskFenced where one of the tasks is another container's by now."""
        context = self._context
        for kept in list(self._tasks.values()):
            assert context.store is not None  # opened before the first task is claimed
            await context.claims(context.store.check, kept.claim)

    async def release(self, task: Task) -> None:
        """Write what is not yet written of a task that has retired, and give its files back."""
        kept = self._tasks[task.partition]
        kept.leaving = True
        task.leave_none_behind()
        while kept.writing or kept.changed:
            if kept.writing:
                await self._quiet.park()
            else:
                self._begin(kept, kept.take())
        del self._tasks[task.partition]
        await self._context.in_thread(kept.close)

    async def wait_written(self, task: Task) -> None:
        """Return when no commit of a task is under way; it must not ask for another."""
        while self._tasks[task.partition].writing:
            await self._quiet.park()

    def go_back(self, new: Task) -> None:
        """Give ``new`` what the task in whose place it is has committed last."""
        kept = self._tasks[new.partition]
        kept.go_back(new)
        new.keep(kept.state, self._changes_bytes)
        self._exchange.go_back(new, kept.state)

    def forget(self, task: int, startpoints: Collection[str]) -> None:
        """Nobody can meet these startpoints of a task any more: its next commit leaves them out."""
        self._tasks[task].forget(startpoints)

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
            if kept.keeps:
                return False
            kept.pending = kept.take()
        elif kept.changed:
            self._begin(kept, kept.take())
        return True

    async def finish(self, tasks: Iterable[Task]) -> None:
        """Return when all is written of those of these tasks of which nothing runs."""
        self._finishing = True
        mine = [kept for task in tasks if (kept := self._tasks.get(task.partition)) is not None]
        while True:
            if self.writing:
                await self._quiet.park()
                continue
            due = [kept for kept in mine if kept.changed and not kept.task.busy]
            if not due:
                return
            for kept in due:
                self._begin(kept, kept.take())

    def changed(self, task: Task) -> bool:
        """Whether a commit of a task is under way, or would write anything."""
        kept = self._tasks.get(task.partition)
        return kept is not None and (kept.writing or kept.changed)

    def _patience(self, task: Task) -> float:
        """For how many seconds others can wait for a commit of a task; infinity if nobody does."""
        if self._exchange.awaited(task):
            return 0.0
        return self._producers.patience(task.partition)

    def writes(self, task: Task) -> bool:
        """Whether a commit of a task is under way."""
        return self._tasks[task.partition].writing

    def _begin(self, kept: TaskCommits, what: TaskProgress) -> None:
        kept.task.timetable.commit_begins(trio.current_time())
        kept.begin(what)
        kept.writing = True
        kept.again = False
        kept.pending = None
        self._nursery.start_soon(self._run, kept, what)

    async def _run(self, kept: TaskCommits, what: TaskProgress) -> None:
        written, spoiled = False, None
        try:
            written = await kept.save(what)
        except NotSaveable as error:
            spoiled = error
        if spoiled is not None:
            if self._finishing or kept.leaving:  # there is no time to find out what it is due to
                raise spoiled
            kept.writing = False
            kept.task.timetable.commit_ended(trio.current_time(), *kept.spent)
            self._quiet.unpark_all()
            kept.task.failures.spoiled(spoiled)
            return
        if written:
            await kept.tell(what)
            passing("commit.told")
            if kept.keeping.due:
                upload = await self._context.in_thread(kept.keeping.keep, kept.state)
                if upload is not None:
                    self._nursery.start_soon(self._context.in_thread, upload)
            if not (self._finishing or kept.leaving):
                await kept.expire()  # before anybody may close the state, or go back from it
        else:
            kept.again = True  # with the newest
        kept.writing = False
        kept.task.timetable.commit_ended(trio.current_time(), *kept.spent)
        if kept.pending is not None and kept.pending != what and not kept.keeps:
            self._begin(kept, kept.pending)
        elif not self._finishing:
            if kept.again:
                kept.task.want_commit()
            elif (patience := self._patience(kept.task)) < math.inf:
                kept.task.await_commit(patience)
            self._wake(kept.task)  # it may wait to be told of the end of its inputs
        self._quiet.unpark_all()

    # -- for those who look ----------------------------------------------------------------------

    @property
    def commits(self) -> int:
        """Commits that were written."""
        return self._context.commits

    @property
    def failures(self) -> int:
        """Commits that could not be written."""
        return self._context.failures

    @property
    def writing(self) -> bool:
        """Whether a commit is under way."""
        return any(kept.writing for kept in self._tasks.values())

    def committed(self) -> Mapping[int, Checkpoint]:
        """What is written of each task."""
        return {task: kept.checkpoint for task, kept in self._tasks.items()}


def _is_behind(claim: Claim, state: TaskState) -> bool:
    """Whether a database does not have all commits that were written."""
    # the last one that was begun may not have been written; those that others were told of were
    return state.last[1] < max(claim.commit - 1, claim.acknowledged)


def _tell_missing(claim: Claim, state: TaskState) -> None:
    """Say where a database does not have all commits that were written."""
    if _is_behind(claim, state):
        log.error(
            "commits of a task are missing; what they had done is done again from its "
            "inputs, and what producers were told is safe may be lost",
            task=claim.task,
            found=state.last[1],
            written=claim.commit,
            acknowledged=claim.acknowledged,
        )


def folder_of(root: str, cluster: str, app: str) -> Path:
    """Where the progress of an app on a cluster is kept; raises ConfigError if that cannot be."""
    return named_folder(named_folder(full_path(root, STATE_FOLDER.name), cluster), app)


def job_before(folder: Path, depot: RemoteJob | None) -> JobGuard | None:
    """What the job was like whose progress is in ``folder``, or in ``depot``; None without any."""
    guard = None
    if (folder / FILE).is_file():
        store = TaskClaims(folder)
        try:
            guard = store.job()
        finally:
            store.close()
    there = None if depot is None else depot.job()
    return guard if there is None else there if guard is None else there.over(guard)
