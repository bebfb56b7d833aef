"""Takes a savepoint of a job that runs or is stopped.

Rules
- The tasks of a running job make their cuts while they go on. For a stopped job, the tasks' last
  commits are the cuts.
- An attempt fails if a task is taken over before the manifest is written, because its new owner may
  not know of the cut. It also fails if startpoints are set or consumed meanwhile. The savepoint is
  then taken again under another number, at most three times.
- A savepoint that fails leaves nothing, and the job goes on as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import trio

from s4node import threads
from s4node.cluster.coordination.more_sessions import in_sessions
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.startpoint_store import StartpointStore
from s4node.cluster.coordination.state_coordination import StateCoordination
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.answers import report
from s4node.errors import CheckpointError, EntryExists, SessionLost, StateError, StoreCorrupt
from s4node.failpoints import passing
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.cuts import CutReport
from s4node.offsets.startpoint_fan_out import Requests
from s4node.offsets.task_claims import TaskClaims
from s4node.savepoints import writer
from s4node.savepoints.manifest import Manifest, Upgrade
from s4node.savepoints.place import SavepointPlace
from s4node.savepoints.shipped import savepoints_of
from s4node.state.database import Database
from s4node.state.job import folder_of, identity_of, known_job, safe_name, saved_state
from s4node.state.remote_job import RemoteJob, remote_job_of

TIMEOUT = 60.0
"""Seconds within which all tasks are to have made their cuts."""

_TRIES = 3


@dataclass(frozen=True)
class SavepointOf:
    """The job to take savepoints of: ``app`` in ``folder``, with these ``tasks``.

    Its state is shipped to ``remote_job`` if given. ``on_progress`` is called with the numbers of
    cuts and of tasks.
    """

    app: str
    folder: Path
    config: Config
    guard: JobGuard
    tasks: Sequence[str]
    remote_job: RemoteJob | None = None
    on_progress: Callable[[int, int], None] = lambda _, __: None

    @property
    def place(self) -> SavepointPlace:
        return savepoints_of(self.folder, self.remote_job)

    async def take(self, name: str, why: str = "", timeout: float = TIMEOUT) -> Manifest:
        """Take a savepoint while the job runs; raises CheckpointError if that fails."""
        place = self.place
        state = await threads.run_sync(identity_of, self.folder, self.remote_job)
        coordination = StateCoordination(self.folder, self.config)
        each = 0

        async def work(registry: Registry) -> Manifest:
            nonlocal each
            failed = ""
            for _ in range(_TRIES):
                each = max(each + 1, await threads.run_sync(place.prepare, name, self.app))
                try:
                    await registry.job.request_savepoint(state, each)
                except EntryExists as error:
                    raise CheckpointError(
                        f"another savepoint of {self.app!r} is being taken; wait for it"
                    ) from error
                try:
                    passing("savepoint.asked")
                    await threads.run_sync(place.sweep, each)
                    startpoints = await self._startpoints(state)
                    cuts = await self._cuts(registry, state, each, timeout)
                    passing("savepoint.cuts")
                    if startpoints != await self._startpoints(state):
                        raise _CutsError("startpoints were set or consumed meanwhile")
                    about = writer.About(name, self.app, state, self.guard, why, startpoints)
                    return await threads.run_sync(self._finish, about, each, cuts)
                except _CutsError as error:
                    failed = str(error)
                finally:
                    with trio.CancelScope(shield=True):
                        with suppress(SessionLost):
                            await registry.job.withdraw_savepoint(state)
                        await threads.run_sync(place.discard, each)
            raise CheckpointError(f"no savepoint of {self.app!r} was taken: {failed}")

        opened = partial(coordination.registry, f"s4 savepoint take {self.app}")
        return await in_sessions(opened, work, f"savepoint of {self.app!r}", report)

    async def _startpoints(self, state: str) -> Requests:
        store = StartpointStore(self.folder, self.config)
        return await store.requests(state) if store.exists else Requests()

    async def _cuts(
        self, registry: Registry, state: str, number: int, timeout: float
    ) -> Mapping[str, CutReport]:
        """Wait for the cuts of all tasks; raises CheckpointError if one is not made in time."""
        path = registry.job.path_of_savepoint(state)
        cuts: dict[str, CutReport] = {}
        with trio.move_on_after(timeout):
            while True:
                seen = await registry.session.change(path)
                cuts = await registry.job.cuts(state, number)
                self.on_progress(len(cuts), len(self.tasks))
                for report in cuts.values():
                    if report.error:
                        raise _CutsError(f"task {report.task!r}: {report.error}")
                if cuts.keys() >= set(self.tasks):
                    return cuts
                await registry.session.wait_change(path, seen)
        waiting: Counter[str] = Counter()
        for drain in await registry.job.drains(state, number):
            waiting.update(drain.waiting)
        if +waiting:
            streams = ", ".join(f"{each} ({waiting[each]})" for each in sorted(+waiting))
            raise CheckpointError(
                f"no savepoint of {self.app!r} was taken: its fast streams were held for "
                f"{timeout:g} s, and the events that waited then were not all processed: "
                f"{streams}. The app goes on; try again when it has less to do, or with a longer "
                f"--timeout"
            )
        missing = ", ".join(sorted(set(self.tasks) - cuts.keys()))
        raise CheckpointError(
            f"no savepoint of {self.app!r} was taken: no cut within {timeout:g} s of {missing}; "
            f"see whether a container has them, and what it logs"
        )

    def take_stopped(self, name: str, why: str = "", upgrade: Upgrade | None = None) -> Manifest:
        """Take a savepoint while the job is stopped and kept from starting.

        Raises CheckpointError if that fails.
        """
        state = identity_of(self.folder, self.remote_job)
        startpoints = trio.run(self._startpoints, state)
        about = writer.About(name, self.app, state, self.guard, why, startpoints, upgrade)
        self.place.check_restored()
        self.place.sweep()
        try:
            return writer.write(self.place, about, self.tasks, self._kept, self.on_progress)
        except (StateError, StoreCorrupt) as error:
            raise CheckpointError(f"no savepoint of {self.app!r} was taken: {error}") from error

    @contextmanager
    def _kept(self, task: str) -> Iterator[Database]:
        with saved_state(self.folder, task, self.remote_job) as state:
            if state is None:
                raise StateError(f"task {task!r} has no state in {self.folder}")
            if self.remote_job is None:
                with closing(TaskClaims(self.folder)) as store:
                    store.check_whole(task, state.last[1])
            yield state.database

    def _finish(self, about: writer.About, number: int, cuts: Mapping[str, CutReport]) -> Manifest:
        place = self.place
        tasks = {task: place.saved_task(number, cut) for task, cut in cuts.items()}
        self._check_owners(cuts)
        held = max(cut.held_ms for cut in cuts.values())
        manifest = msgspec.structs.replace(about.manifest(number, tasks), held_ms=held)
        place.write_manifest(manifest)
        return manifest

    def _check_owners(self, cuts: Mapping[str, CutReport]) -> None:
        """Raise CheckpointError if a task was taken over after its cut."""
        if self.remote_job is not None:
            fences = {task: self.remote_job.task(safe_name(task)).highest() for task in cuts}
        else:
            with closing(TaskClaims(self.folder)) as store:
                fences = store.fences()
        for task, cut in cuts.items():
            if fences.get(task, 0) != cut.fence:
                raise _CutsError(f"task {task!r} was taken over after it had made its cut")


def savepoint_of(app: str, config: Config) -> SavepointOf | None:
    """The job of ``app`` with these settings; None if it has no saved state."""
    folder = folder_of(config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME], app)
    remote_job = remote_job_of(config, folder)
    guard, tasks = known_job(folder, remote_job)
    if guard is None or not tasks:
        return None
    return SavepointOf(app, folder, config, guard, tasks, remote_job)


class _CutsError(CheckpointError):
    """The cuts of one number cannot be used; another attempt may succeed."""
