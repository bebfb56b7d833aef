"""The state of a job on disk, for containers and for commands.

Rules
- A task's folder has the name of the task. In it is a folder for each time that a container took
  the task over.
- Commands read copies, so the job may run meanwhile. A job has to be stopped before it is changed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from s4node import disk, tokens
from s4node.config import kinds
from s4node.config.paths import full_path
from s4node.config.settings import STATE_FOLDER
from s4node.errors import ConfigError, ProgressUnwritten
from s4node.events.keys import crc32m
from s4node.offsets.checkpoint import Checkpoint, JobGuard, Producer, SavedProducer
from s4node.offsets.task_claims import FILE, Claim, TaskClaims
from s4node.state import epochs
from s4node.state.commit_id import shipped_of
from s4node.state.database import Database
from s4node.state.remote_job import RemoteJob
from s4node.state.task_state import TaskState

WRITTEN = "written"
"""The fact that says when a task's progress was written (Unix time, ms)."""

_IDENTITY_BYTES = 16

DONE = "done"
"""The fact that says in which run of its job a task was done; 0 for none."""

ENDED = "ended on "
"""The fact how many events of a durable stream came from producers that are forgotten."""

SENT = "sent"
"""The fact how much the task has sent to consumers, in lives of channels that are over."""

LIFE = "life"
"""The fact that names the life of the task as a producer."""

CUT = "cut"
"""The fact for which savepoint the task has made its last cut, by number."""

EPOCH_OF = "epoch of "
"""The fact that says which epoch of an input partition a position belongs to; 0 if unknown."""


def safe_name(name: str) -> str:
    """A folder name for ``name``: letters, digits and ``._-`` stay, except a dot at the start.

    So different names have different folders, and no name leads out of its folder.
    """
    safe = "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):02x}" for c in name)
    return f"%2e{safe[1:]}" if safe.startswith(".") else safe


def named_folder(folder: Path, name: str) -> Path:
    """The folder of ``name`` below ``folder``; raises ConfigError if the name is too long."""
    safe = safe_name(name)
    if len(safe.encode()) > kinds.PART_BYTES:
        raise ConfigError(
            f"{name!r} is too long for a folder name in {folder}: {len(safe.encode())} bytes, at "
            f"most {kinds.PART_BYTES} are allowed; choose a shorter name"
        )
    return folder / safe


def folder_of(root: str, cluster: str, app: str) -> Path:
    """The folder with the state of an app on a cluster; raises ConfigError for a bad name."""
    return named_folder(named_folder(full_path(root, STATE_FOLDER.name), cluster), app)


def task_of(name: str) -> str:
    """The task of a folder's name. A name with symbols beyond Latin-1 may come back spelled
    otherwise; it leads to the same folder."""
    read = re.sub("%([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), name)
    if safe_name(read) == name:
        return read
    return re.sub("%([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), name)


def task_folder(folder: Path, task: str) -> Path:
    """The folder of a task's state; raises as :func:`named_folder` does."""
    return named_folder(folder / "tasks", task)


def known_job(folder: Path, remote_job: RemoteJob | None) -> tuple[JobGuard | None, list[str]]:
    """The job with progress in ``folder`` or ``remote_job``, if there is one, and its tasks."""
    guard, tasks = None, set[str]()
    if (folder / FILE).is_file():
        store = TaskClaims(folder)
        try:
            guard = store.job()
            tasks.update(store.tasks())
        finally:
            store.close()
    if remote_job is not None:
        there = remote_job.job()
        if there is not None:
            if there.follows(guard):  # the tasks here are those of a former layout
                tasks.clear()
            guard = there if guard is None else there.over(guard)
        here = {safe_name(task) for task in tasks}
        tasks.update(task_of(each) for each in remote_job.tasks() if each not in here)
    return guard, sorted(task for task in tasks if guard is None or guard.has(task))


def identity_of(folder: Path, remote_job: RemoteJob | None, *, new: bool = True) -> str:
    """The identity of the state of the job in ``folder``, which all its copies share.

    A folder without one gets that of ``remote_job``, or a new one. Without ``new`` nothing is
    written, and the result may be empty. Of several callers the first one decides. Raises
    ProgressUnwritten if the folder cannot be written, or the URL cannot be reached.
    """
    place = folder / "identity"
    try:
        own = place.read_text() if place.exists() else ""
        there = own or (tokens.fresh(_IDENTITY_BYTES) if new else "")
        if remote_job is not None:
            there = remote_job.identity(there)
        if there != own and new:
            disk.make_folders(folder)
            if own:
                disk.write(place, there.encode())
            elif not disk.create(place, there.encode()):
                there = place.read_text()
    except OSError as error:
        raise ProgressUnwritten(
            f"{place} cannot be written ({error}); fix its permissions, or set s4.state.folder to "
            f"another folder"
        ) from error
    return there


def elsewhere(own: str, wanted: str) -> str:
    """The message for state that belongs to another place, and what to do."""
    return (
        f"it is {own}, and the app has {wanted}. Set s4.state.url, or set s4.state.folder to the "
        f"folder of the other nodes; to continue with the state here instead, stop all containers "
        f"and set s4.state.adopt = true"
    )


def checkpoint_of(state: TaskState) -> Checkpoint:
    """The progress of a task, as of its last commit."""
    positions = state.positions()
    found = Checkpoint.at(positions, state.meta(WRITTEN) or 0, state.consumed())
    known = zip(found.offsets, positions, strict=True)
    epochs = {at: epoch for at, place in known if (epoch := state.meta(EPOCH_OF + place))}
    return dataclasses.replace(found, epochs=epochs)


class Progress(NamedTuple):
    """The progress of a task as of one commit, in its inputs and for its producers. ``shipped`` is
    the URL below which its commits are shipped, or empty."""

    checkpoint: Checkpoint = Checkpoint()
    producers: Mapping[Producer, SavedProducer] = MappingProxyType({})
    shipped: str = ""

    @classmethod
    def from_state(cls, state: TaskState) -> Progress:
        return cls(checkpoint_of(state), state.producers(), shipped_of(state.database))


@contextmanager
def saved_state(
    folder: Path, task: str, remote_job: RemoteJob | None = None
) -> Iterator[TaskState | None]:
    """A copy of the state of a task of the job in ``folder``; None if there is none.

    With ``remote_job`` it is the state that the next owner would start from, shipped or local.
    Raises StoreCorrupt if it is damaged, and StateError if it cannot be read.
    """
    place = task_folder(folder, task)
    if remote_job is None and not epochs.epochs_of(place):
        yield None
        return
    remote_task = None if remote_job is None else remote_job.task(place.name)
    with epochs.copied(place, remote_task) as database:
        yield TaskState(database, crc32m)


def current_states(
    folder: Path, tasks: Sequence[str], remote_job: RemoteJob | None
) -> tuple[Callable[[str], AbstractContextManager[TaskState | None]], set[str]]:
    """A function that opens a copy of the state that a task's next owner would start from, and the
    names of the ``tasks`` whose state is only in ``remote_job``, from where it is fetched."""
    shipped = [] if remote_job is None else remote_job.tasks()
    places = {task: task_folder(folder, task) for task in tasks}
    there = {task for task, place in places.items() if place.name in shipped}

    def opened(task: str) -> AbstractContextManager[TaskState | None]:
        return saved_state(folder, task, remote_job if task in there else None)

    return opened, {task for task in there if not epochs.epochs_of(places[task])}


@contextmanager
def taken_over(
    folder: Path,
    store: TaskClaims,
    task: str,
    remote_job: RemoteJob | None,
    saved: Path | None = None,
    above: int = 0,
) -> Iterator[tuple[Claim, TaskState]]:
    """The claim and the state of a task of a stopped job, as its next owner has them.

    With ``saved`` the state is that of a savepoint, whose files are in this folder. The claim's
    fence is higher than ``above``.
    """
    place = task_folder(folder, task)
    remote_task = None if remote_job is None else remote_job.task(place.name)
    above = max(above, epochs.highest(place), 0 if remote_task is None else remote_task.highest())
    claim = store.claim(task, "", 0, above)
    if remote_task is not None:
        remote_task.claim(claim.fence, "", 0)
    elsewhere = remote_task if saved is None else None
    database = epochs.claim(place, claim.fence, Database, elsewhere, saved)
    state = TaskState(database, crc32m, fence=claim.fence, ship=remote_task)
    try:
        yield claim, state
    finally:
        state.close()
