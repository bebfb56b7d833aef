"""The replacement of all tasks of a stopped job whose state is at a URL.

Rules
- The new tasks are shipped as a savepoint, so that any machine can complete what was decided on. As
  long as no mark says so, the job is as it was; what was left then is removed by the next command.
- From then on the job does not start before all of them are restored from it. Each step can be done
  again. The savepoint is removed at the end.
- Tasks that the job has no more are forgotten, and their owners fenced. Other machines forget what
  they have in their folders when the job starts there.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from s4node.config.config import Config
from s4node.deploy.savepoint_restore import SavepointRestore
from s4node.failpoints import passing
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.savepoints import writer
from s4node.savepoints.manifest import Manifest, Restoring
from s4node.savepoints.shipped import ShippedSavepoints
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import identity_of, safe_name, task_folder
from s4node.state.remote_job import RemoteJob

_WHY = "the tasks of another number of partitions, until they have replaced the former ones"


@dataclass(frozen=True)
class ShippedLayout:
    app: str
    folder: Path
    config: Config
    remote_job: RemoteJob

    @property
    def _savepoints(self) -> ShippedSavepoints:
        return ShippedSavepoints(self.folder, self.remote_job)

    @property
    def decided(self) -> bool:
        return self._savepoints.restoring() is not None

    def decide(self, job: JobGuard, tasks: Collection[str], made: Path) -> None:
        """Have the ``tasks`` of ``job``, which are in the folder ``made``, replace the former."""
        place = self._savepoints
        for left in place.look()[0]:
            if left.why == _WHY:
                place.remove(left.name)

        @contextmanager
        def opened(task: str) -> Iterator[Database]:
            with epochs.copied(task_folder(made, task)) as database:
                yield database

        name = f"repartition-{now_ms()}"
        about = writer.About(name, self.app, identity_of(self.folder, self.remote_job), job, _WHY)
        writer.write(place, about, list(tasks), opened)
        passing("repartition.made")
        place.begin_restore(Restoring(name, {}, len(tasks)))

    def complete(self) -> None:
        place = self._savepoints
        mark = place.restoring()
        assert mark is not None
        passing("repartition.decided")
        manifest = place.manifest_of(mark.name)
        with place.opened(manifest) as saved:
            self._replace(manifest, saved)
        passing("repartition.claimed")
        place.end_restore()
        place.remove(mark.name)

    def _replace(self, manifest: Manifest, saved: Path) -> None:
        job, tasks = JobGuard.from_row(manifest.job), list(manifest.tasks)
        folders = {safe_name(task) for task in tasks}
        restore = SavepointRestore(
            self.app, self.folder, self.config, self.remote_job, manifest, saved
        )
        with closing(TaskClaims(self.folder)) as store:
            for task in tasks:
                restore.restore_task(store, task)
            passing("repartition.replaced")
            self.remote_job.begin_layout(job, folders)
            passing("repartition.removed")
            for own in (self.folder / "tasks").iterdir():
                if own.name not in folders:
                    shutil.rmtree(own)
            store.begin_layout(job, tasks)
