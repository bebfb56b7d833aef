"""The replacement of all tasks of a stopped job by others, at once.

Rules
- The new tasks are made in a folder beside the job's. As long as nothing says that they are whole,
  the job is as it was, and what was left is removed when the next ones are begun.
- Once they are decided on, the job does not start before they have taken the place of the former
  ones. Each step of that can be done again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import CheckpointError
from s4node.failpoints import passing
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.savepoints.folders import told

_FOLDER = ".repartition"
_DECIDED = "decided.json"


class Decided(msgspec.Struct, frozen=True):
    """The job that it will be, and the fence and last commit of each of its tasks."""

    job: dict[str, object]
    tasks: dict[str, tuple[int, int]]

    @property
    def partitions(self) -> int:
        return len(self.tasks)


def decided(job: Path) -> Decided | None:
    """The replacement that was decided on and not completed."""
    place = job / _FOLDER / _DECIDED
    return msgspec.json.decode(place.read_bytes(), type=Decided) if place.exists() else None


def check_complete(job: Path) -> None:
    """Raise CheckpointError if only some of a job's tasks may have been replaced."""
    found = decided(job)
    if found is not None:
        raise CheckpointError(
            f"the job in {job} was getting {found.partitions} partitions, and that was cut short; "
            f"complete it: s4 repartition {job.name} {found.partitions}"
        )


def begin(job: Path) -> Path:
    """Begin new tasks; returns the folder in place of the job's, for their folders."""
    with told(job):
        discard(job)
        (job / _FOLDER / "new").mkdir(parents=True)
    return job / _FOLDER / "new"


def discard(job: Path) -> None:
    """Remove new tasks that are not decided on."""
    shutil.rmtree(job / _FOLDER, ignore_errors=True)


def decide(job: Path, replacement: Decided) -> None:
    """Have the new tasks, which are on disk, replace the former ones."""
    with told(job):
        disk.sync(job / _FOLDER / "new" / "tasks", job / _FOLDER / "new", job / _FOLDER, job)
        passing("repartition.made")
        disk.write(job / _FOLDER / _DECIDED, msgspec.json.encode(replacement))
        disk.sync(job / _FOLDER, job)


def complete(job: Path, store: TaskClaims) -> None:
    """Do what was decided on, from where it was left."""
    found = decided(job)
    assert found is not None
    new, former, tasks = job / _FOLDER / "new" / "tasks", job / _FOLDER / "former", job / "tasks"
    with told(job):
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
