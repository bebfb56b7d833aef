"""Takes a savepoint of a job, whether that runs or not.

Rules
- Of a job that runs, the tasks make their cuts while they go on; of one that is stopped, their last
  commits are the cuts.
- A task that is taken over before the manifest is there makes the number fail, because its new
  owner may not know of the cut. Then the savepoint is taken again under another number, at most
  three times.
- Nothing is left of one that fails, and the job goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from s4node import clocks, threads
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.state_coordination import StateCoordination
from s4node.config.config import Config
from s4node.errors import CheckpointError, EntryExists, StateError
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.cuts import CutReport
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.savepoints import folders
from s4node.savepoints.manifest import FORMAT, Manifest, SavedTask
from s4node.state import epochs
from s4node.state.commit_id import known_of
from s4node.state.job import task_folder
from s4node.version import __version__

TIMEOUT = 60.0
"""Seconds within which all tasks are to have made their cuts."""

_TRIES = 3


@dataclass(frozen=True)
class SavepointOf:
    """The job to take savepoints of: ``app`` in ``folder``, with these ``tasks``. ``state`` is the
    identity of its state. ``tell(made, tasks)`` is called with the progress."""

    app: str
    folder: Path
    config: Config
    guard: JobGuard
    tasks: Sequence[str]
    state: str
    tell: Callable[[int, int], None] = lambda _, __: None

    def prepare(self, name: str) -> int:
        """Return the number of a savepoint that is called ``name``; raises CheckpointError where
        that is taken."""
        if folders.savepoint_folder(self.folder, name).exists():
            raise CheckpointError(
                f"app {self.app!r} has a savepoint {name!r} already; take another name, or remove "
                f"that one: s4 savepoints remove {self.app} {name}"
            )
        last = max((each.number for each in folders.found_in(self.folder)), default=0)
        return max(last + 1, now_ms())

    async def take(self, name: str, why: str = "", timeout: float = TIMEOUT) -> Manifest:
        """Take one while the job runs. Raises CheckpointError where that is not possible."""
        number = await threads.run_sync(self.prepare, name)
        coordination = StateCoordination(self.folder, self.config)
        failed = ""
        async with coordination.registry(f"s4 savepoint {self.app}") as registry:
            for each in range(number, number + _TRIES):
                try:
                    await registry.request_savepoint(self.state, each)
                except EntryExists as error:
                    raise CheckpointError(
                        f"another savepoint of {self.app!r} is being taken; wait for it"
                    ) from error
                try:
                    await threads.run_sync(folders.remove_cuts, self.folder, each)
                    cuts = await self._cuts(registry, each, timeout)
                    return await threads.run_sync(self._finish, name, each, cuts, why)
                except _CutsError as error:
                    failed = str(error)
                finally:
                    with trio.CancelScope(shield=True):
                        await registry.withdraw_savepoint(self.state)
                        await threads.run_sync(folders.remove_cuts, self.folder)
        raise CheckpointError(f"no savepoint of {self.app!r} was taken: {failed}")

    async def _cuts(
        self, registry: Registry, number: int, timeout: float
    ) -> Mapping[str, CutReport]:
        """Return the cuts of all tasks; raises CheckpointError if one has made none in time."""
        path = registry.path_of_savepoint(self.state)
        cuts: dict[str, CutReport] = {}
        with trio.move_on_after(timeout):
            while True:
                seen = await registry.session.change(path)
                cuts = await registry.cuts(self.state, number)
                self.tell(len(cuts), len(self.tasks))
                for report in cuts.values():
                    if report.error:
                        raise _CutsError(f"task {report.task!r}: {report.error}")
                if cuts.keys() >= set(self.tasks):
                    return cuts
                await registry.session.wait_change(path, seen)
        missing = ", ".join(sorted(set(self.tasks) - cuts.keys()))
        raise CheckpointError(
            f"no savepoint of {self.app!r} was taken: no cut within {timeout:g} s of {missing}; "
            f"see whether a container has them, and what it logs"
        )

    def take_stopped(self, name: str, why: str = "") -> Manifest:
        """Take one of a job that is kept from starting meanwhile. Raises CheckpointError."""
        number = self.prepare(name)
        cuts = {}
        try:
            for task in self.tasks:
                with epochs.copied(task_folder(self.folder, task)) as database:
                    fence, commit, _ = known_of(database)
                    database.checkpoint(folders.cut_folder(self.folder, number, task))
                cuts[task] = CutReport(task, fence, commit)
                self.tell(len(cuts), len(self.tasks))
            return self._finish(name, number, cuts, why)
        except StateError as error:
            raise CheckpointError(f"no savepoint of {self.app!r} was taken: {error}") from error
        finally:
            folders.remove_cuts(self.folder)

    def _finish(self, name: str, number: int, cuts: Mapping[str, CutReport], why: str) -> Manifest:
        tasks = {}
        for task, cut in cuts.items():
            files = folders.files_of(folders.cut_folder(self.folder, number, task))
            tasks[task] = SavedTask(cut.fence, cut.commit, files)
        self._check_owners(cuts)
        manifest = Manifest(
            FORMAT,
            name,
            number,
            self.app,
            self.state,
            int(clocks.wall() * 1000),
            __version__,
            dict(self.guard.to_row()),
            tasks,
            why,
        )
        folders.finish(self.folder, manifest, folders.cuts_folder(self.folder, number))
        return manifest

    def _check_owners(self, cuts: Mapping[str, CutReport]) -> None:
        """Raise CheckpointError where a task has been taken over since its cut."""
        store = TaskClaims(self.folder)
        try:
            fences = store.fences()
        finally:
            store.close()
        for task, cut in cuts.items():
            if fences.get(task, 0) != cut.fence:
                raise _CutsError(f"task {task!r} was taken over after it had made its cut")


class _CutsError(CheckpointError):
    """The cuts of this number are of no use; those of another one may be."""
