"""The restore of tasks: each gets back its saved state, from the claim to its inputs.

Rules
- A task is restored before it starts, in this order: the claim to write it; its database, and a
  check that no commit is missing; its producers' numbers, and the deaths of its owners; its state,
  and the events that it had put for others; the offsets of its inputs. The inputs are read after
  the start, so that the task may say where to begin.
- While the URL does not answer, the claim is made again and again, as commits are, for as long.
- A member that has followed a task goes on from its standby, with what the log has after it.
- Tasks are restored together, because most of the time goes to waiting for disks.
- Former folders are removed once the tasks have started: removing large files takes long.
- A task that fails is restored from its last commit; its files stay open.
- A task that has committed that it is done rests with every owner.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import trio

from s4node import clocks
from s4node.app.app import App
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import CheckpointError, StartpointError, StateUnreachable
from s4node.events.event import LIVE
from s4node.events.keys import hasher_named
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.net.ingress.producer_lane import origin_of
from s4node.offsets import death_files
from s4node.offsets.checkpoint import Checkpoint
from s4node.offsets.death_files import DeathFiles
from s4node.offsets.deaths import WELL_PAST_SECONDS
from s4node.offsets.startpoint import Startpoint
from s4node.offsets.startpoint_fan_out import Request, id_of_start, ids_of_start
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import Claim
from s4node.runtime.commit.committer import Committer
from s4node.runtime.commit.recovery import Recovery
from s4node.runtime.commit.task_commit import CommitContext, TaskCommits
from s4node.runtime.container.partitions import Partitions
from s4node.runtime.container.standbys import Standbys
from s4node.runtime.inputs.binding import live_of
from s4node.runtime.inputs.job_model import JobModel
from s4node.runtime.inputs.startpoints import Startpoints
from s4node.runtime.inputs.system_consumers import Gained, SystemConsumers
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.task_channels import ChannelContext
from s4node.runtime.task.gate import Phase
from s4node.runtime.task.task import Task
from s4node.state import epochs, task_state
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.commit_id import shipped_of
from s4node.state.database import Database
from s4node.state.job import CUT, task_folder
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import RemoteTask, check_newest
from s4node.state.rows import OUTBOX
from s4node.state.standby.follower import STANDBY, Follower, remove_standby
from s4node.state.task_state import TaskState
from s4node.systems.live import LiveSource

log = get_logger("s4node.runtime")

_Claimed = tuple[Claim, TaskState, CheckpointRetention]

_KEPT_EPOCHS = 2

_RESTORED_AT_ONCE = 500


class Restore:
    """Restores the tasks of ``app`` that this container gets, from ``folder`` and ``remote_job``.

    Restored tasks are added to ``committer`` and ``consumers``. ``start`` is the name of this start
    of the job, once it is known. ``standbys`` are the tasks of others that it follows, if it does.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        model: JobModel,
        folder: Path,
        remote_job: RemoteJob | None,
        context: CommitContext,
        *,
        channels: ChannelContext,
        partitions: Partitions,
        recovery: Recovery,
        committer: Committer,
        startpoints: Startpoints,
        consumers: SystemConsumers,
        loop: RunLoop,
    ) -> None:
        self.start = ""
        self.standbys: Standbys | None = None
        self._app = app
        self._model = model
        self._folder = folder
        self._remote_job = remote_job
        self._context = context
        self._channels = channels
        self._partitions = partitions
        self._recovery = recovery
        self._committer = committer
        self._startpoints = startpoints
        self._consumers = consumers
        self._loop = loop
        self._hasher = hasher_named(config[settings.HASHER])
        self.open = partial(Database, sync=config[settings.STATE_SYNC] == "full")
        self._policy = Policy(config[settings.STATE_CHECKPOINT_INTERVAL])
        self._begin_at: dict[int, tuple[Checkpoint, Mapping[SystemStreamPartition, Request]]] = {}
        self._unused: set[str] = set()  # PEs that were reported
        self._restoring: dict[str, RemoteTask] = {}
        self._swept: dict[int, trio.Event] = {}  # of started tasks
        self._after_deaths: dict[int, DeathFiles] = {}
        self._sweeping = trio.Lock()  # one at a time, so that events go on
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Remove former folders of started tasks, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def progress(self) -> dict[str, tuple[int, int]]:
        """By task that is being restored from a URL, the fetched and the wanted objects."""
        return {name: (one.fetched, one.wanted) for name, one in self._restoring.items()}

    async def restore(self, tasks: Collection[Task], origin: str, since: Sequence[int]) -> None:
        """Restore tasks, which start next; ``since`` are the epochs of their assignment to us."""
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(self._restore, task, origin, since[task.partition])
        for task in tasks:  # after the inputs of all tasks are known
            if task.gate.phase is Phase.RESTING:
                self._loop.finished(task)

    async def _restore(self, task: Task, origin: str, epoch: int) -> None:
        model, in_thread = self._model.tasks[task.partition], self._context.in_thread
        folder = task_folder(self._folder, model.name)
        task.failures.isolate(self._recovery)
        claim, state, retention = await self._claim(task, folder, origin, epoch)
        channels = self._channels.of_task(task, state, claim.fence)
        commits = TaskCommits(self._context, task, claim, state, retention, channels)
        self._committer.add(commits)
        if claim.lacks(state.last[1]):
            log.error(
                "commits of a task are missing; its inputs are replayed, and events that were "
                "acknowledged to producers may be lost",
                task=claim.task,
                found=state.last[1],
                written=claim.commit,
                acknowledged=claim.acknowledged,
            )
        passing("claim.whole")
        await in_thread(epochs.unmark, folder / STANDBY)  # it counts no more

        # its producers' numbers, and the deaths of its owners
        producers = state.producers()
        self._context.producers.restore(task.partition, producers, state.closings())
        positions = state.positions() | {
            origin_of(stream, task.partition, producer): row.number
            for (stream, producer), row in producers.items()
        }
        await in_thread(retention.sweep)
        files = await in_thread(death_files.enter, folder, claim.fence, positions)
        self._recovery.careful.add(task, files)
        self._recovery.skip_named(task, files)
        if files.deaths.count:
            self._after_deaths[task.partition] = files

        # its state, and the events that it had put for others
        self._context.cuts.restore(task.partition, state.meta(CUT) or 0)
        task.attach_state(state, task_state.CHANGES_BYTES)
        await _restore_all(task)
        self._log_unused(state.unused())
        left = await in_thread(state.rows, OUTBOX)
        self._channels.tasks[task.partition] = channels
        channels.restore(left)

        # the offsets of its inputs, and whether it starts at all
        kept = commits.checkpoint
        pending = await self._startpoints.pending_of(model.name, kept.consumed)
        startpoints = {
            ssp: request
            for ssp, request in pending.items()
            if id_of_start(self.start, ssp) not in kept.consumed
        }
        commits.remove_startpoints(kept.consumed - ids_of_start(kept.consumed, self.start))
        self._begin_at[task.partition] = kept, startpoints
        if commits.done:
            if task.may_rest and not startpoints and kept.offsets.keys() >= set(model.ssps):
                task.gate.enter(Phase.RESTING)
            else:
                commits.begin_anew()
        self._consumers.add(task, model.ssps)

    async def _claim(self, task: Task, folder: Path, origin: str, epoch: int) -> _Claimed:
        """Claim a task and open its database; while the URL does not answer, try again."""
        name = self._model.tasks[task.partition].name
        follower = None if self.standbys is None else await self.standbys.take(task.partition)

        async def claim() -> _Claimed:
            nonlocal follower
            try:
                return await self._claim_once(name, folder, origin, epoch, follower)
            except StateUnreachable:
                if follower is not None:
                    await self._context.in_thread(follower.close)
                    follower = None  # the next restore is from the URL
                raise

        return await self._context.retries.answer(name, claim)

    async def _claim_once(
        self, name: str, folder: Path, origin: str, epoch: int, follower: Follower | None
    ) -> _Claimed:
        in_thread = self._context.in_thread
        remote_task = None if self._remote_job is None else self._remote_job.task(folder.name)
        if follower is not None:
            remote_task = follower.task

        # the claim to write it
        passing("claim.begin")
        above = await in_thread(epochs.highest, folder)
        if remote_task is not None:
            above = max(above, await in_thread(remote_task.highest))
        store = self._context.store
        assert store is not None
        claim = await self._context.claims(store.claim, name, origin, epoch, above)
        passing("claim.fenced")
        if remote_task is not None:
            await in_thread(remote_task.claim, claim.fence, origin, epoch)

        # its database, and whether a commit is missing
        if remote_task is not None:
            self._restoring[name] = remote_task
        try:
            followed = None if follower is None else await in_thread(follower.follow_to_claim)
            database = await in_thread(
                epochs.claim, folder, claim.fence, self.open, remote_task, followed
            )
        finally:
            self._restoring.pop(name, None)
        try:
            state = TaskState(database, self._hasher, fence=claim.fence, ship=remote_task)
            if self._remote_job is None and (url := shipped_of(database)):
                await in_thread(check_newest, url, folder.name, database)
            self._check_whole(claim, state, folder)
            retention = CheckpointRetention(folder, claim.fence, self._policy, remote_task)
            await in_thread(retention.take_over, state)
        except BaseException:
            database.close()
            raise
        return claim, state, retention

    async def start_reading(self, tasks: Iterable[Task]) -> None:
        """Read the inputs of started tasks, and begin to remove their former folders."""
        self._context.retries.has_begun = True
        begin_at = [(task, self._begin_at.pop(task.partition)) for task in tasks]
        for task, _ in begin_at:
            self._swept[task.partition] = trio.Event()
            self._nursery.start_soon(self._sweep, task.partition)
            if (files := self._after_deaths.pop(task.partition, None)) is not None:
                self._nursery.start_soon(self._well_past_in_time, task.partition, files)
        gained = [
            Gained(task, self._model.tasks[task.partition].ssps, *known, self.start)
            for task, known in begin_at
            if task.gate.phase is not Phase.RESTING
        ]
        for each in gained:
            await self._check_requested(each.task, each.ssps)
        self._consumers.assign(gained, _requested)

    async def _well_past_in_time(self, partition: int, files: DeathFiles) -> None:
        """Note after a time that a task is well past where it began; a quiet one may stay there."""
        await trio.sleep(WELL_PAST_SECONDS)
        self._recovery.careful.well_past(partition, files)

    async def _sweep(self, partition: int) -> None:
        """Remove what a started task needs no more: former epochs, and its standby."""
        folder = task_folder(self._folder, self._model.tasks[partition].name)
        try:
            async with self._sweeping:
                await self._context.in_thread(
                    epochs.sweep, folder, _KEPT_EPOCHS, math.inf, clocks.wall()
                )
                await self._context.in_thread(remove_standby, folder)
        except OSError as error:
            log.warning("former folders stay", folder=str(folder), reason=str(error))
        finally:
            self._swept[partition].set()

    async def wait_swept(self, partition: int) -> None:
        """Return once the former folders of a started task are removed. Only then may it be handed
        over, as its next standby has the same folder."""
        await self._swept[partition].wait()

    async def restore_failed(self, old: Task) -> Task:
        """Make a task that replaces a failed one, as of its last commit, without starting it.

        It gets no event before its start.
        """
        commits = await self._committer.written(old)
        new = self._partitions.replace(old, self._model.tasks[old.partition].ssps)
        new.failures.isolate(self._recovery)
        new.succeed(old)
        self._recovery.careful.replaced(new)
        commits.roll_back(new)
        new.attach_state(commits.state, task_state.CHANGES_BYTES)
        new.processor.restore(sys.maxsize)  # at once: no frame may arrive until all have gone back
        commits.channels.roll_back(new, commits.state)
        progress = self._consumers.progress[old.partition].items()
        committed = {str(ssp): one.committed for ssp, one in progress if one.committed is not None}
        new.failures.isolation.poison_events.going_back(committed)
        self._consumers.replace(old, new)
        return new

    # -- checks ------------------------------------------------------------------------------

    def _check_whole(self, claim: Claim, state: TaskState, folder: Path) -> None:
        """Raise CheckpointError if a task has lost commits that others rely on."""
        if claim.linked and claim.lacks(state.last[1]):
            raise CheckpointError(
                f"task {claim.task!r} has lost commits: {folder} has {state.last[1]} of "
                f"{claim.commit} that were begun, and {claim.acknowledged} were acknowledged to "
                f"others. The task had sent events to other tasks or streams, or received theirs, "
                f"so resuming it from an earlier state would count events twice. All tasks have to "
                f"be of one moment: go on from a savepoint (--from NAME); or restore "
                f"{self._folder} as a whole from a backup made while the job was stopped; or "
                f"remove it to begin anew, which puts events on streams again"
            )

    def _log_unused(self, pes: Iterable[str]) -> None:
        """Log, once for all tasks, that the class of saved PE state was renamed or removed."""
        new = sorted(set(pes) - self._unused)
        if new:
            self._unused.update(new)
            log.warning(
                "saved state of PE classes that the app no longer has is kept but not used",
                pes=new,
                folder=str(self._folder),
            )

    async def _check_requested(self, task: Task, ssps: Collection[SystemStreamPartition]) -> None:
        """Raise StartpointError if a task sets the offset of an input that is not its own."""
        for ssp, startpoint in _requested(task).items():
            if ssp.system == LIVE:
                live = LiveSource(live_of(self._app), len(self._model.tasks))
                await live.resolve(ssp, startpoint)
            elif ssp not in ssps:
                raise StartpointError(
                    f"task {task.partition} sets the starting offset of {ssp}, but does not read "
                    f"it; it reads {', '.join(map(str, ssps)) or 'nothing'}"
                )


def _requested(task: Task) -> Mapping[SystemStreamPartition, Startpoint]:
    starts: Mapping[SystemStreamPartition, Startpoint] = task.starts
    return starts


async def _restore_all(task: Task) -> None:
    """Restore the saved windows and timers of a task in parts, so that other tasks go on."""
    while task.processor.restore(_RESTORED_AT_ONCE):
        await trio.lowlevel.checkpoint()
