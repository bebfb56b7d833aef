"""The committer: begins the commits of all tasks, and repeats those that fail.

Rules
- A commit begins in the loop, while nothing of its task runs (with ``task.async.commit`` events may
  be in flight: they come again after a crash). ``task_commit`` takes what it saves, and
  ``state.task_state`` says what it promises, and writes it.
- A task has one commit running at a time. Requests made meanwhile become one commit after it.
- If a task saves only its progress, a request takes the progress at once. So the commit covers
  exactly the event that requested it, if no other request follows before the commit begins.
- A commit that could not be written is repeated with the newest offsets.
- ``wait_written`` returns once all changes are written.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import trio

from s4node.errors import CheckpointError, NotSaveable, ProgressUnwritten, StateError, StoreCorrupt
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.offsets.checkpoint import Checkpoint, JobGuard
from s4node.offsets.cuts import CutReport
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.runtime.commit.savepoint_requests import SavepointRequests
from s4node.runtime.commit.task_commit import CommitContext, CommitTimes, TaskCommits, TaskProgress
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.task.actions import HandOn
from s4node.runtime.task.gate import Phase
from s4node.runtime.task.task import Task
from s4node.savepoints.replacement import check_complete
from s4node.savepoints.shipped import savepoints_of
from s4node.state.remote_job import RemoteJob

log = get_logger("s4node.runtime")

_CUT_ERRORS = (OSError, CheckpointError, ProgressUnwritten, StateError, StoreCorrupt)
"""The errors for which a cut cannot be kept, and the job goes on."""


class Committer:
    """Saves the state and progress of tasks below ``folder``."""

    def __init__(
        self,
        folder: Path,
        context: CommitContext,
        loop: RunLoop,
        remote_job: RemoteJob | None,
        *,
        sync: bool,
    ) -> None:
        self._folder = folder
        self._context = context
        self._producers = context.producers
        self._remote_job = remote_job
        self._savepoints = savepoints_of(folder, remote_job)
        self._sync = sync
        self._loop = loop
        self._tasks: dict[int, TaskCommits] = {}
        self._finishing = False
        self._nursery: trio.Nursery
        self._ending = False
        self._quiet = trio.lowlevel.ParkingLot()
        self.requests: SavepointRequests
        """They report the cuts of tasks; set before tasks start."""

    # -- life --------------------------------------------------------------------------------

    async def open(self, job: JobGuard) -> None:
        """Open the store for a job; raises CheckpointError if its progress is of another job."""
        context, answer = self._context, self._context.retries.answer
        await context.in_thread(check_complete, self._folder)
        await answer("", partial(context.in_thread, self._savepoints.check_restored))
        open_claims = partial(TaskClaims, self._folder, sync=self._sync)
        context.store = await context.claims(open_claims)
        if self._remote_job is not None:
            follow = partial(self._follow_layout, context.store, self._remote_job)
            await answer("", partial(context.claims, follow))
        context.run = await context.claims(context.store.admit, job)
        known = await context.claims(context.store.job)
        assert known is not None
        self._producers.begin_layout(known.layout or 0)
        if self._remote_job is not None:
            await answer("", partial(context.claims, self._remote_job.admit, job))

    def _follow_layout(self, store: TaskClaims, remote_job: RemoteJob) -> None:
        """Forget the tasks in this folder if the job was given other partitions elsewhere."""
        there = remote_job.job()
        if there is not None:
            forget = partial(shutil.rmtree, self._folder / "tasks", ignore_errors=True)
            store.begin_layout(there, forget=forget)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write commits until cancelled; raises errors that stop the container."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._ending = True

    def close(self) -> None:
        """Close all files, once nothing runs; uncommitted changes are lost."""
        for commits in self._tasks.values():
            commits.close()
        self._tasks.clear()
        if self._context.store is not None:
            self._context.store.close()

    @property
    def owned(self) -> Mapping[int, TaskCommits]:
        return self._tasks

    def add(self, commits: TaskCommits) -> None:
        """Write the commits of one more task, which this container owns."""
        self._tasks[commits.task.partition] = commits

    async def end_run(self, tasks: Collection[str]) -> None:
        """End the run of the job if all of these tasks are done; its next start is a new run."""
        context = self._context
        assert context.store is not None
        await context.claims(context.store.end_run, context.run, tasks)

    async def check_fences(self) -> None:
        """Raise TaskFenced if another container owns one of the tasks now."""
        context = self._context
        for commits in list(self._tasks.values()):
            assert context.store is not None  # opened before the first task is claimed
            await context.claims(context.store.check_fence, commits.claim)

    async def release(self, task: Task) -> None:
        """Write the last commits of a retired task, and close its files."""
        commits = self._tasks[task.partition]
        commits.leaving = True
        self._loop.carry_out(task, task.leave_none_behind())
        while commits.writing or commits.changed:
            if commits.writing:
                await self._quiet.park()
            else:
                self._begin(commits, commits.snapshot())
        del self._tasks[task.partition]
        await self._context.in_thread(commits.close)

    async def written(self, task: Task) -> TaskCommits:
        """Wait for the running commit of a task, which must not request another."""
        commits = self._tasks[task.partition]
        while commits.writing:
            await self._quiet.park()
        return commits

    # -- committing --------------------------------------------------------------------------

    def commit(self, task: Task) -> bool:
        """Take the task's state and offsets, and write them soon; return False if not taken yet."""
        if self._ending:  # a task has taken one more step during cancellation
            return False
        commits = self._tasks.get(task.partition)
        if (
            commits is None
        ):  # a stopping member that just takes the task over has done nothing of it
            return False
        if commits.writing:
            commits.again = True
            if commits.keeps:
                return False
            commits.pending = commits.snapshot()
        elif commits.changed:
            self._begin(commits, commits.snapshot())
        return True

    async def wait_written(self, tasks: Iterable[Task]) -> None:
        """Write the changes of all these tasks that are idle."""
        self._finishing = True
        mine = [
            commits for task in tasks if (commits := self._tasks.get(task.partition)) is not None
        ]
        while True:
            for commits in mine:  # also while that of another task hangs
                if commits.changed and not (commits.writing or commits.task.busy):
                    self._begin(commits, commits.snapshot())
            if not self.writing:
                return
            await self._quiet.park()

    def changed(self, task: Task) -> bool:
        """Return True if a commit of a task runs, or would write anything."""
        commits = self._tasks.get(task.partition)
        return commits is not None and (commits.writing or commits.changed)

    def _patience(self, commits: TaskCommits) -> float:
        """For how many seconds others can wait for a commit of a task; infinity if none waits."""
        if commits.channels.awaited:
            return 0.0
        return self._producers.patience(commits.task.partition)

    def writes(self, task: Task) -> bool:
        return self._tasks[task.partition].writing

    def _begin(self, commits: TaskCommits, what: TaskProgress) -> None:
        task = commits.task
        task.schedule.commit_begins(trio.current_time())
        if letters := task.failures.isolation.taken(end_notified=task.gate.end_notified):
            self._loop.carry_out(task, [HandOn("", stream, [event]) for stream, event in letters])
        commits.begin_commit(what)
        commits.writing = True
        commits.again = False
        commits.pending = None
        self._nursery.start_soon(self._run, commits, what)

    async def _run(self, commits: TaskCommits, what: TaskProgress) -> None:
        try:
            written = await commits.save(what)
        except NotSaveable:
            if commits.task.gate.phase is not Phase.FAILED:  # else that state is discarded
                raise
            commits.writing = False
            commits.task.schedule.commit_ended(trio.current_time(), *commits.spent)
            self._quiet.unpark_all()
            return
        if written:
            self._loop.nudge()  # it sends verdicts once this task waits
            await commits.acknowledge(what)
            passing("commit.acknowledged")
            if commits.cut:
                await self._keep_cut(commits)
            if commits.retention.due:
                upload = await self._context.in_thread(
                    commits.retention.make_checkpoint, commits.state
                )
                if upload is not None:
                    self._nursery.start_soon(self._context.upload, upload)
            if not (self._finishing or commits.leaving):
                await commits.expire()  # before the state may be closed or rolled back
        else:
            commits.again = True  # with the newest offsets
            if commits.cut:  # what it is part of now has more than the cut
                cut = CutReport(commits.claim.task, commits.claim.fence, 0)
                why = self._context.retries.failing[commits.claim.task]
                await self._cut_failed(commits.cut, cut, f"its commit could not be written: {why}")
        commits.writing = False
        commits.task.schedule.commit_ended(trio.current_time(), *commits.spent)
        if commits.pending is not None and commits.pending != what and not commits.keeps:
            self._begin(commits, commits.pending)
        elif not self._finishing:
            if commits.again:
                commits.task.want_commit()
            elif (patience := self._patience(commits)) < math.inf:
                commits.task.await_commit(patience)
            self._loop.wake(commits.task)  # the end of its inputs may wait for the commit
        self._quiet.unpark_all()

    async def _keep_cut(self, commits: TaskCommits) -> None:
        """Keep a task's cut; if that fails, the savepoint fails and the task goes on."""
        passing("savepoint.cut")
        report = CutReport(commits.claim.task, commits.claim.fence, commits.state.last[1])
        try:
            await self._context.in_thread(commits.keep_cut, self._savepoints)
        except _CUT_ERRORS as error:
            await self._cut_failed(commits.cut, report, str(error))
            return
        passing("savepoint.kept")
        if self._remote_job is None:
            await self._publish_cut(commits.cut, report)
        else:  # which takes long
            self._nursery.start_soon(self._publish_cut, commits.cut, report)

    async def _publish_cut(self, number: int, report: CutReport) -> None:
        """Have a cut where the command finds it, while the task goes on."""
        try:
            await self._context.in_thread(self._savepoints.publish, number, report)
        except _CUT_ERRORS as error:
            await self._cut_failed(number, report, str(error))
            return
        await self.requests.report_cut(number, report)

    async def _cut_failed(self, number: int, cut: CutReport, reason: str) -> None:
        log.warning(
            "a savepoint fails, for the part of a task could not be kept; the job goes on",
            task=cut.task,
            reason=reason,
        )
        await self.requests.report_cut(number, msgspec.structs.replace(cut, error=reason))

    # -- observing -------------------------------------------------------------------------------

    @property
    def commits(self) -> int:
        return self._context.commits

    @property
    def failures(self) -> int:
        """The number of commits that could not be written."""
        return self._context.failures

    @property
    def writing(self) -> bool:
        return any(commits.writing for commits in self._tasks.values())

    @property
    def times(self) -> CommitTimes:
        return self._context.times

    @property
    def age(self) -> float:
        """Seconds since the last commit of a task that has changed since; 0 if none has."""
        now = now_ms()
        ages = [
            now - each.checkpoint.written_ms
            for each in self._tasks.values()
            if each.checkpoint.written_ms and each.changed
        ]
        return max(0, *ages, 0) / 1000

    def committed(self) -> Mapping[int, Checkpoint]:
        return {task: commits.checkpoint for task, commits in self._tasks.items()}
