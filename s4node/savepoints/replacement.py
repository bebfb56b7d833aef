"""The replacement of all tasks of a stopped job by others, at once.

Rules
- The new tasks are made in a folder within the job's. Until they are complete and ``decide`` is
  called, the job is unchanged, and the next ``begin`` removes them.
- After ``decide`` the job does not start until the new tasks have replaced the former ones. Each
  step of the replacement may be repeated.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import CheckpointError
from s4node.events.schema import UNREADABLE
from s4node.failpoints import passing
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.savepoints.folders import translate_errors
from s4node.savepoints.manifest import Restoring
from s4node.savepoints.place import cut_short

_FOLDER = ".repartition"
_DECIDED = "decided.json"


class Decided(msgspec.Struct, frozen=True):
    """The future job, as a row of its guard, and the fence and last commit of each task."""

    job: dict[str, object]
    tasks: dict[str, tuple[int, int]]

    @property
    def partitions(self) -> int:
        return len(self.tasks)


def decided(job: Path) -> Decided | None:
    """The replacement that was decided on and is not complete; None if there is none.

    Raises CheckpointError if it cannot be read.
    """
    place = job / _FOLDER / _DECIDED
    try:
        return msgspec.json.decode(place.read_bytes(), type=Decided) if place.exists() else None
    except (OSError, *UNREADABLE) as error:
        raise CheckpointError(
            f"{place}, which says what the job was repartitioned to, is damaged: {error}; put back "
            f"a copy of the job's folder"
        ) from error


def check_complete(job: Path) -> None:
    """Raise CheckpointError if only some of a job's tasks may have been replaced."""
    found = decided(job)
    if found is not None:
        mark = Restoring("", {}, found.partitions)
        raise CheckpointError(cut_short(str(job), job.name, mark))


def begin(job: Path) -> Path:
    """Begin a replacement; return the folder for the new tasks' folders."""
    with translate_errors(job):
        discard(job)
        disk.make_folder(job / _FOLDER / "new")
    return job / _FOLDER / "new"


def discard(job: Path) -> None:
    """Remove new tasks that are not decided on."""
    shutil.rmtree(job / _FOLDER, ignore_errors=True)


def decide(job: Path, replacement: Decided) -> None:
    """Decide that the new tasks, which are complete, replace the former ones."""
    with translate_errors(job):
        disk.sync(job / _FOLDER / "new" / "tasks", job / _FOLDER / "new", job / _FOLDER, job)
        passing("repartition.made")
        disk.write(job / _FOLDER / _DECIDED, msgspec.json.encode(replacement))
        disk.sync(job / _FOLDER, job)


def complete(job: Path, store: TaskClaims) -> None:
    found = decided(job)
    assert found is not None
    new, former, tasks = job / _FOLDER / "new" / "tasks", job / _FOLDER / "former", job / "tasks"
    with translate_errors(job):
        passing("repartition.decided")
        if new.exists():
            if tasks.exists():
                tasks.rename(former)
                disk.sync(job / _FOLDER, job)
                passing("repartition.removed")
            new.rename(tasks)
            disk.sync(new.parent, job)
        passing("repartition.replaced")
        store.set_tasks(JobGuard.from_row(found.job), found.tasks, now_ms())
        passing("repartition.claimed")
        (job / _FOLDER / _DECIDED).unlink()
        disk.sync(job / _FOLDER)
        discard(job)
