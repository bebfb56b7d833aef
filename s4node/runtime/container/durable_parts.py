"""The parts of a container whose tasks keep state: readers, dead letters, and commits.

Rules
- They exist only if the app has replayable inputs or durable streams. Systems are asked for the
  partitions of each input before the parts are made; later they run beside the container.
- A stream that is missing in the log of this process, or of the process that started it, is created
  as the app declares it; of containers that start together, one creates it. Streams of other
  systems are never created, because they may belong to others.
- The progress of a task is claimed before the task starts, and its inputs are read after that, so
  that the task may say where to begin. Tasks get startpoints before any task is claimed.
- What reads the place for state before the first task is restored waits until it answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import trio

from s4node import threads
from s4node.app.app import App
from s4node.app.plan import graph
from s4node.app.stream import InputStream, OutputStream, outlets_of
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import StateUnreachable, UnknownStream
from s4node.events.event import LIVE
from s4node.events.keys import Partitioner, hasher_named
from s4node.logger import get_logger
from s4node.metrics.statistics import ReplayStatistics, RestoreStatistics
from s4node.net.ingress.commit_rows import Producers
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.job_lock import JobLock
from s4node.offsets.startpoint import Oldest
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import now_ms
from s4node.runtime.commit.committer import Committer
from s4node.runtime.commit.dead_letter_queue import DeadLetterQueue
from s4node.runtime.commit.dead_letter_stream import DeadLetterStream
from s4node.runtime.commit.recovery import Recovery
from s4node.runtime.commit.retries import Retries
from s4node.runtime.commit.savepoint_requests import SavepointRequests
from s4node.runtime.commit.task_commit import CommitContext
from s4node.runtime.container import saved_sample
from s4node.runtime.container.fast_parts import FastParts
from s4node.runtime.container.partitions import Partitions
from s4node.runtime.container.restore import Restore
from s4node.runtime.container.standbys import Standbys
from s4node.runtime.inputs.binding import durable_of, inner_of, live_of, replayable
from s4node.runtime.inputs.fast_inputs import FastInputs
from s4node.runtime.inputs.job_model import AppKind, JobModel
from s4node.runtime.inputs.ports import Ports
from s4node.runtime.inputs.starting_offsets import default_offset
from s4node.runtime.inputs.startpoints import Startpoints
from s4node.runtime.inputs.system_consumers import SystemConsumers, watch
from s4node.runtime.loop.run_loop import Rest, RunLoop
from s4node.runtime.outputs.outlets import OutletContext, check_outlets, receiving
from s4node.runtime.outputs.outputs import Outputs
from s4node.runtime.task.task import Task
from s4node.savepoints.manifest import StateCheck
from s4node.savepoints.place import manifest_in, opened_task
from s4node.savepoints.replacement import check_complete
from s4node.state.job import current_states, elsewhere, folder_of, identity_of, known_job
from s4node.state.remote_job import RemoteJob, remote_job_of
from s4node.state.remote_log import CREATE
from s4node.state.standby.follower import remove_standbys
from s4node.systems.embedded_log import EmbeddedLog
from s4node.systems.live import LiveSource
from s4node.systems.registry import Systems

log = get_logger("s4node.runtime")

_LOOK_SECONDS = 0.005


class DurableParts(FastParts):
    """The systems, consumers and progress of ``app``; made by :meth:`prepared`.

    ``stopping`` is set when the container has to end.
    """

    keeps = True

    def __init__(self, app: App, config: Config, own_log: str, stopping: trio.Event) -> None:
        super().__init__(app, config)
        self.systems = Systems(config, own_log)
        self.retries = Retries(config[settings.COMMIT_TIMEOUT], stopping)
        self.failing = self.retries.failing
        self.durable = durable_of(app, config) | inner_of(app)
        self.rest = Rest()
        self.consumers: SystemConsumers
        self.committer: Committer
        self.dead_letters: DeadLetterQueue
        self.recovery: Recovery
        self.restore: Restore
        self._remote_job: RemoteJob | None
        self._own_log = own_log
        self._letters = DeadLetterStream(app, config, self.systems)
        self._partitions: Partitions
        self._model: JobModel
        self._startpoints: Startpoints
        self._savepoints: SavepointRequests
        self._presence: JobLock
        self._loop: RunLoop
        self._outputs: Outputs
        self._name = ""

    @classmethod
    async def prepared(
        cls, app: App, config: Config, own_log: str, stopping: trio.Event, away: set[str]
    ) -> FastParts:
        """Ask the systems for the inputs of ``app``; its parts do nothing if tasks keep no state.

        ``own_log`` is the address of the log of this process, or of the process that started it, if
        there is one. ``away`` has the systems that cannot be reached, meanwhile and later. Raises
        UnknownStream for a system or stream that does not exist.
        """
        streams = replayable(app)
        outlets = outlets_of(app.streams)
        if not streams and not durable_of(app, config) and not outlets:
            return FastParts(app, config)
        replay = cls(app, config, own_log, stopping)
        replay.away = away
        for outlet in outlets:
            receiving(replay.systems, outlet)
        for stream in streams:
            replay.systems[stream.system]  # raises if there is none
        letters = replay._letters
        async with trio.open_nursery() as nursery:
            for each in replay.systems:
                await nursery.start(each.run)
                nursery.start_soon(watch, each, away)
            for stream in streams:
                rule = graph.rule_of(stream)
                key = rule.name if rule is not None else ""
                count = await replay._partitions_of(stream.system, stream.name, key)
                replay.counts[stream.system, stream.name] = count
                identity = await replay.systems[stream.system].identity(stream.name)
                replay.identities[stream.system, stream.name] = identity
            await check_outlets(replay.systems, outlets)
            if letters.place is not None:
                letters.partitions = await replay._partitions_of(*letters.place)
            nursery.cancel_scope.cancel()
        return replay

    async def _partitions_of(self, system: str, stream: str, key: str = "") -> int:
        """The number of partitions of a stream, which is created if our own log lacks it."""
        home, wanted = self.systems[system], self._app.partitions
        if not isinstance(home, EmbeddedLog) or home.address != self._own_log:
            return await home.partitions(stream)
        try:
            count = await home.partitions(stream)
        except UnknownStream:
            await home.create(stream, wanted, key=key)
            log.info(
                "created a stream in the log of this node",
                stream=f"{system}.{stream}",
                partitions=wanted,
                key=key,
            )
            return wanted
        if count != wanted:
            log.info(
                "a stream of the log of this node has another number of partitions than the "
                "app declares, and keeps it",
                stream=f"{system}.{stream}",
                partitions=count,
                declared=wanted,
            )
        return count

    def _folder(self, name: str) -> Path:
        config = self._config
        return folder_of(config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME], name)

    async def check_saved_state(
        self, name: str, model: JobModel, before: JobGuard | None, check: StateCheck
    ) -> None:
        """Raise StateError or CheckpointError if the app cannot read a sample of its saved state,
        does not use it, or if only some of its tasks may have been replaced.

        ``before`` are the facts of the job ``name`` that runs. If ``check`` names a savepoint, its
        state is read instead.
        """
        if check.savepoint:
            await self._check_savepoint(model, check)
            return
        folder = self._folder(name)
        await threads.run_sync(check_complete, folder)  # first: the facts may be of the new tasks
        if before is not None:
            model.facts.check(
                before,
                f"the progress in {folder}",
                "Or deploy it under another name (--name), to begin without progress.",
            )
        hasher = hasher_named(self._config[settings.HASHER])
        remote_job = remote_job_of(self._config, folder)
        names = [task.name for task in model.tasks]
        opened, fetched = await threads.run_sync(current_states, folder, names, remote_job)
        await saved_sample.check(self._app, opened, model.tasks, hasher, check, fetched=fetched)

    async def _check_savepoint(self, model: JobModel, check: StateCheck) -> None:
        """Raise StateError or CheckpointError if the app cannot go on from the savepoint in a
        folder."""
        folder = Path(check.savepoint)
        manifest = await threads.run_sync(manifest_in, folder)
        model.facts.check(
            JobGuard.from_row(manifest.job),
            f"the savepoint {manifest.name!r}",
            "Or go on from another savepoint.",
        )
        hasher = hasher_named(self._config[settings.HASHER])
        opened = partial(opened_task, folder)
        await saved_sample.check(self._app, opened, model.tasks, hasher, check, manifest.name)

    async def before(self, name: str, *, waits: bool) -> JobGuard | None:
        """The facts of the job that is resumed under ``name``; None for a new one.

        With ``waits`` it waits for a place for state that does not answer.
        """
        graph.check_saveable(self._app)
        folder = self._folder(name)
        ask = partial(threads.run_sync, known_job, folder, remote_job_of(self._config, folder))
        guard, _ = await (self.retries.answer("", ask) if waits else ask())
        return guard

    def make(
        self,
        name: str,
        model: JobModel,
        partitioner: Partitioner,
        partitions: Partitions,
        outputs: Outputs,
        inputs: Ports,
        loop: RunLoop,
    ) -> None:
        config = self._config
        self._loop, self._outputs = loop, outputs
        producers = Producers(inputs.durable, trio.lowlevel.current_clock().current_time)
        fast = FastInputs(inputs.ports.values(), outputs)
        self._name = name
        self._model = model
        self._partitions = partitions
        self.dead_letters = DeadLetterQueue(
            loop,
            drop=config[settings.DROP_UNDECODED],
            keep=partial(self._letters.keep, outputs) if self._letters else None,
        )
        self.consumers = SystemConsumers(
            config,
            self.systems,
            partitioner,
            partitions,
            self.dead_letters,
            streams=replayable(self._app),
            counts=self.counts,
            identities=self.identities,
            broadcast=model.tasks[0].broadcast if model.tasks else (),
            name=name,
            grown=model.grown,
            away=self.away,
        )
        self.held = self.consumers.waiting
        folder = self._folder(name)
        remote_job = self._remote_job = remote_job_of(config, folder)
        self._presence = JobLock(folder)
        self._startpoints = Startpoints(folder, remote_job, model.tasks, config, name)
        context = CommitContext(
            self.consumers.progress,
            self._startpoints,
            producers,
            cuts=self.cuts,
            retries=self.retries,
        )
        self.committer = Committer(
            folder, context, loop, remote_job, sync=config[settings.STATE_SYNC] == "full"
        )
        names = {task.index: task.name for task in model.tasks}
        if isinstance(outputs.context, OutletContext):
            outputs.context.prepare(self.systems, self.committer, loop)
        self._savepoints = SavepointRequests(
            folder, remote_job, config, names, self.retries, self.cuts, fast, loop.waker
        )
        self.committer.requests = self._savepoints
        self.recovery = Recovery(self._app, config, self.dead_letters, loop, self.committer)
        self.restore = Restore(
            self._app,
            config,
            model,
            folder,
            remote_job,
            context,
            channels=outputs.context,
            partitions=partitions,
            recovery=self.recovery,
            committer=self.committer,
            startpoints=self._startpoints,
            consumers=self.consumers,
            loop=loop,
        )

    def close(self) -> None:
        """Close all files, once nothing runs."""
        self.recovery.careful.close()
        self.committer.close()

    async def start(self, nursery: trio.Nursery, enrolment: Enrolment | None) -> None:
        """Run in ``nursery``, as a member if there is an ``enrolment``.

        Raises CheckpointError if the folder has progress of another job.
        """
        await self.committer.open(self._model.facts)
        await nursery.start(self._be_present, enrolment)
        await self.retries.answer("", self._startpoints.enter)
        if enrolment is not None:
            await self._start_standbys(nursery)
        nursery.start_soon(self._savepoints.run)
        await nursery.start(self.restore.run)
        await nursery.start(self.committer.run)
        for system in self.systems:
            await nursery.start(system.run)
        await nursery.start(self.dead_letters.run)
        await nursery.start(self.consumers.run)
        await nursery.start(self._outputs.context.run)

    async def _start_standbys(self, nursery: trio.Nursery) -> None:
        folder, remote_job = self._folder(self._name), self._remote_job
        wanted = bool(self._config[settings.STATE_STANDBY])
        if remote_job is None:
            await threads.run_sync(remove_standbys, folder)
            return
        ask = partial(threads.run_sync, remote_job.append_mode)
        if await self.retries.answer("", ask) != CREATE:
            if wanted:
                log.warning(
                    "no task has a standby, because the place for state knows no conditional "
                    "writes",
                    app=self._name,
                    url=remote_job.url,
                )
            return
        self.can_be_standby = wanted
        names = {task.index: task.name for task in self._model.tasks}
        self.standbys = Standbys(folder, remote_job, names, self.restore.open)
        self.restore.standbys = self.standbys
        await nursery.start(self.standbys.run)

    async def _enter(self, enrolment: Enrolment) -> None:
        """Enter the job, which spans all nodes; without its state here, get no tasks."""
        adopt = self._config[settings.STATE_ADOPT]
        at_start = self._startpoints.fan_out
        entered = await enrolment.presence().enter(self._identify, at_start, adopt=adopt)
        self.restore.start, self.state, jobs = entered
        if self.state != jobs:
            log.error(
                "gets no tasks: the state of the app is not here",
                app=self._name,
                folder=str(self._folder(self._name)),
                reason=elsewhere(self.state, jobs),
            )

    async def _enter_alone(self) -> None:
        try:
            if await threads.run_sync(self._presence.hold):
                await self._startpoints.fan_out()
            self.restore.start = await threads.run_sync(self._presence.enter)
        except StateUnreachable:
            self._presence.leave()
            raise

    async def _identify(self) -> str:
        """The identity of the job's state."""
        return await threads.run_sync(identity_of, self._folder(self._name), self._remote_job)

    async def _be_present(
        self,
        enrolment: Enrolment | None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hold the lock that shows that the job runs; the first container also starts the job."""
        try:
            if enrolment is not None:  # all nodes share one start, whatever folders they have
                await threads.run_sync(self._presence.enter)
                await self.retries.answer("", partial(self._enter, enrolment))
            else:
                await self.retries.answer("", self._enter_alone)
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._presence.leave()

    # -- tasks -------------------------------------------------------------------------------

    async def release(self, task: Task) -> None:
        """Commit the work of a retired task, and stop writing it."""
        await self.committer.release(task)
        self.consumers.drop_progress(task.partition)

    def statistics(self) -> ReplayStatistics:
        return ReplayStatistics(
            tuple(self.consumers.statistics({one.index: one.name for one in self._model.tasks})),
            self.committer.commits,
            self.committer.failures,
            dict(self.dead_letters.counts),
            dict(self.consumers.starts.lost),
            dict(self.recovery.counts),
            {name: RestoreStatistics(*found) for name, found in self.restore.progress().items()},
            {} if self.standbys is None else self.standbys.lags(),
            dict(self.retries.failing),
            dict.fromkeys(self.away, "it cannot be reached") | self._outputs.context.failing(),
            self.committer.times.bytes,
            self.committer.times.seconds,
            self.committer.age,
            self.committer.times.recent(now_ms() / 1000),
            list(self.dead_letters.last),
        )

    @property
    def died(self) -> tuple[str, int]:
        return self.recovery.careful.died

    async def restore_tasks(
        self, tasks: Collection[Task], origin: str, epochs: Sequence[int]
    ) -> None:
        await self.restore.restore(tasks, origin, epochs)
        for task in tasks:  # before they start: later watermarks wait for these events
            self._outputs.tasks[task.partition].return_own_events()

    async def start_reading(self, tasks: Collection[Task]) -> None:
        await self.restore.start_reading(tasks)

    def released(self) -> None:
        self.consumers.released()

    # -- the end -----------------------------------------------------------------------------

    async def stop_reading(self) -> None:
        """Read and begin nothing further that can be replayed."""
        await self.consumers.stop()
        self._loop.give_back()

    async def end_run(self) -> None:
        """Write all changes, and end the run of the job if all its tasks are done."""
        await self._outputs.wait_acknowledged()
        await self.committer.wait_written(self._partitions.tasks.values())
        await self._outputs.context.publish_last()
        await self.committer.wait_written(self._partitions.tasks.values())
        if self._loop.stopped_itself and not self._outputs.context.unpublished():
            live = bool(live_of(self._app))
            names = [task.name for task in self._model.tasks if live or task.ssps]
            await self.committer.end_run(names)

    def check_published(self) -> None:
        if self._loop.stopped_itself:
            self._outputs.context.check_published()

    async def commit_ended(self, tasks: Iterable[Task]) -> None:
        """Begin nothing more, and commit each task of which no handler is running."""
        for task in tasks:
            task.retire()
            task.interrupt()
        while True:
            await self.committer.wait_written(tasks)
            if not any(task.busy for task in tasks):
                return
            await trio.sleep(_LOOK_SECONDS)  # its handler may end in time


def kind_of(app: App) -> AppKind:
    """The streams of an app that find tasks by partition number."""
    fed = [stream for stream in app.streams.values() if not isinstance(stream, OutputStream)]
    return AppKind(
        keyed=[stream.name for stream in fed if stream.key is not None],
        internal=[stream.name for stream in fed if not isinstance(stream, InputStream)],
        live=live_of(app),
    )


async def check_live(app: App, config: Config) -> None:
    """Raise StartpointError if the settings begin a live input anywhere but at "upcoming"."""
    live = live_of(app)
    source = LiveSource(live, app.partitions)
    for name in live:
        if default_offset(config, LIVE, name) != "upcoming":
            await source.resolve(SystemStreamPartition(LIVE, name, 0), Oldest())
