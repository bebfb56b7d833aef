"""The operations on the savepoints of a job, in a folder or at a URL.

Rules
- A savepoint has a unique name and a unique number. Tasks make their cuts under the number. The
  manifest has the name and is written last; it makes the savepoint exist.
- A task's owner copies its cut by hard links. Then it *publishes* the cut, so that the command
  finds it while the task goes on.
- All files are checked against the manifest before any of them is used.
- A job that is being restored has a mark, and does not start until all of its tasks are restored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import CheckpointError, ConfigError
from s4node.events.keys import crc32m
from s4node.events.schema import UNREADABLE
from s4node.offsets.cuts import CutReport
from s4node.offsets.task_claims import now_ms
from s4node.savepoints.manifest import Manifest, Restoring, SavedFile, SavedTask, parse
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import named_folder, safe_name
from s4node.state.remote_task import hash_of
from s4node.state.task_state import TaskState

MANIFEST = "manifest.json"

_NOT_SAVED = {"LOCK", "LOG", "complete"}
_CUT = ".cut-"


class SavepointPlace(ABC):
    """The savepoints of the job in ``folder``; messages call the place ``name``. Calls block."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    # -- finding them ----------------------------------------------------------------------------

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all savepoints, including damaged ones."""

    @abstractmethod
    def _manifest(self, name: str) -> bytes | None:
        """The manifest of a savepoint; None if there is none."""

    def look(self) -> tuple[list[Manifest], dict[str, str]]:
        """All sound savepoints, oldest first, and what is wrong with each damaged one, by name."""
        found, damaged = [], {}
        for name in sorted(self.names()):
            try:
                found.append(self.manifest_of(name))
            except CheckpointError as error:
                damaged[name] = str(error)
        return sorted(found, key=lambda each: (each.created_ms, each.number)), damaged

    def manifest_of(self, name: str) -> Manifest:
        """The manifest of a savepoint; raises CheckpointError if it is missing or damaged."""
        self.check_exists(name)
        data = self._manifest(name)
        if data is None:
            raise CheckpointError(
                f"savepoint {name!r} in {self.name} is damaged: its manifest is missing, as if it "
                f"was copied in part; use another savepoint, or a copy of this one"
            )
        manifest = parse(data, f"the manifest of savepoint {name!r} in {self.name}")
        return msgspec.structs.replace(manifest, name=name)  # its folder may be a copy, or renamed

    def check_exists(self, name: str) -> None:
        """Raise CheckpointError unless there is a savepoint of this name, whole or not."""
        check_name(name)
        if name not in (names := self.names()):
            raise CheckpointError(
                f"there is no savepoint {name!r} in {self.name}; there are: "
                f"{', '.join(sorted(names)) or 'none'}"
            )

    def prepare(self, name: str, app: str) -> int:
        """Return a number for a new savepoint; raises CheckpointError if ``name`` is taken."""
        check_name(name)
        if name in self.names():
            raise CheckpointError(
                f"app {app!r} has a savepoint {name!r} already; take another name, or remove that "
                f"one: s4 savepoint remove {app} {name}"
            )
        return max([*self._numbers(), now_ms()]) + 1

    @abstractmethod
    def _numbers(self) -> list[int]:
        """The numbers of savepoints that were begun here, finished or not."""

    # -- taking one ------------------------------------------------------------------------------

    def keep_cut(self, number: int, task: str, database: Database) -> None:
        """Copy the cut of a task by hard links; nobody may write to its database meanwhile."""
        database.checkpoint(cut_folder(self.folder, number, task))

    @abstractmethod
    def publish(self, number: int, cut: CutReport) -> None:
        """Put a task's cut where the command finds it."""

    @abstractmethod
    def saved_task(self, number: int, cut: CutReport) -> SavedTask:
        """The part of a task in the manifest, for a cut that was published."""

    @abstractmethod
    def write_manifest(self, manifest: Manifest) -> None:
        """Make a savepoint of the published cuts."""

    def sweep(self, but: int = 0) -> None:
        """Remove the remains of unfinished savepoints, except of the number ``but`` and of those
        that are being brought here."""
        finished = {each.number for each in self.look()[0]}
        for number in {*self._numbers()} - finished - {but}:
            cuts = cuts_folder(self.folder, number)
            with disk.locked(cuts) as ours:
                if ours or not cuts.exists():
                    self.discard(number)

    @contextmanager
    def bringing(self, number: int) -> Iterator[Path]:
        """The folder of the cuts of a savepoint that comes from elsewhere; no other savepoint of
        this machine removes it during the block. Raises OSError."""
        cuts, held = cuts_folder(self.folder, number), False
        try:
            while not held:  # else it was removed just now
                disk.make_folder(cuts)
                with disk.locked(cuts) as held:
                    if held:
                        yield cuts
        finally:
            self.discard(number)

    @abstractmethod
    def discard(self, number: int) -> None:
        """Remove the cuts of an unfinished savepoint."""

    # -- using one -------------------------------------------------------------------------------

    @abstractmethod
    def opened(self, manifest: Manifest) -> AbstractContextManager[Path]:
        """A folder with the manifest and the files of each task, to be read during the block.

        Raises CheckpointError unless all files are as they were saved.
        """

    @abstractmethod
    def own_bytes(self, manifest: Manifest) -> int:
        """The bytes that removing this savepoint would free."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a savepoint, its manifest first, so that no part of it counts as a savepoint."""

    # -- going back to one -----------------------------------------------------------------------

    @abstractmethod
    def begin_restore(self, mark: Restoring) -> None:
        """Mark the job as being restored, so that it does not start."""

    @abstractmethod
    def end_restore(self) -> None:
        """Remove the mark."""

    @abstractmethod
    def _mark(self) -> bytes | None:
        """The mark as it is stored; None if there is none."""

    def restoring(self) -> Restoring | None:
        """The mark of a restore that was cut short; None if there is none."""
        data = self._mark()
        try:
            return None if data is None else msgspec.json.decode(data, type=Restoring)
        except UNREADABLE as error:
            raise CheckpointError(
                f"the mark that the job in {self.name} is being restored is damaged: {error}; put "
                f"back a copy of the folder"
            ) from error

    def check_restored(self) -> None:
        """Raise CheckpointError if only some tasks of a job are restored."""
        mark = self.restoring()
        if mark is not None:
            raise CheckpointError(cut_short(self.name, self.folder.name, mark))


def cut_short(place: str, app: str, mark: Restoring) -> str:
    """A message that says how to complete a restore that was cut short."""
    if mark.partitions:
        return (
            f"the job in {place} was getting {mark.partitions} partitions, and that was cut short; "
            f"complete it: s4 repartition {app} {mark.partitions}"
        )
    if not mark.name:
        return (
            f"only some of the tasks in {place} were emptied, for s4 state reset was cut short; "
            f"run it again"
        )
    return (
        f"only some of the tasks in {place} were restored from the savepoint {mark.name!r}, for "
        f"that was cut short; start again with --from {mark.name}"
    )


def check_name(name: str) -> None:
    """Raise ConfigError unless ``name`` can be the name of a savepoint."""
    if not name or safe_name(name) != name or name.endswith(".tmp"):
        raise ConfigError(
            f"{name!r} cannot be the name of a savepoint; use letters, digits and . _ -, with no "
            f"dot at the start, and no .tmp at the end"
        )
    named_folder(Path(), name)  # raises if it is too long


def savepoints_folder(job: Path) -> Path:
    return job / "savepoints"


def cuts_folder(job: Path, number: int) -> Path:
    return savepoints_folder(job) / f"{_CUT}{number}"


def cut_folder(job: Path, number: int, task: str) -> Path:
    """Where the cut of a task is; raises ConfigError as :func:`named_folder` does."""
    return named_folder(cuts_folder(job, number), task)


def numbers_of_cuts(job: Path) -> list[int]:
    """The numbers of savepoints that are being taken, or were begun, in this folder."""
    found = (each.name.removeprefix(_CUT) for each in savepoints_folder(job).glob(f"{_CUT}*"))
    return [int(number) for number in found if number.isdigit()]


def files_of(folder: Path) -> dict[str, SavedFile]:
    """The files of a task's cut; reads all of them."""
    return {
        path.name: SavedFile(path.stat().st_size, hash_of(path))
        for path in sorted(folder.iterdir())
        if path.name not in _NOT_SAVED and not path.name.startswith("LOG.")
    }


def check_file(manifest: Manifest, task: str, name: str, path: Path, file: SavedFile) -> None:
    """Raise CheckpointError unless the file at ``path`` is as it was saved."""
    if not path.is_file():
        why = "it is missing"
    elif path.stat().st_size != file.size:
        why = f"it has {path.stat().st_size} bytes, and {file.size} were saved"
    elif hash_of(path) != file.hash:
        why = "its content is not what was saved"
    else:
        return
    raise CheckpointError(
        f"savepoint {manifest.name!r} is damaged: file {name} of task {task!r}: {why}; use another "
        f"savepoint, or a copy of this one"
    )


def check(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError unless all files in a savepoint's ``folder`` are as they were saved."""
    for (task, name), path in places_of(folder, manifest).items():
        check_file(manifest, task, name, path, manifest.tasks[task].files[name])


def places_of(folder: Path, manifest: Manifest) -> Mapping[tuple[str, str], Path]:
    """The paths of a savepoint's files in a folder, by task and name.

    Raises CheckpointError if one is outside the folder.
    """
    found = {}
    for task, name, _ in manifest.files():
        if "/" in name or name in ("", ".", ".."):
            raise CheckpointError(
                f"savepoint {manifest.name!r} is damaged: its manifest names a file {name!r} of "
                f"task {task!r}, which leads elsewhere; use another savepoint, or a copy of this "
                f"one"
            )
        found[task, name] = named_folder(folder, task) / name
    return found


def manifest_in(folder: Path) -> Manifest:
    return parse((folder / MANIFEST).read_bytes(), folder)


@contextmanager
def opened_task(folder: Path, task: str) -> Iterator[TaskState | None]:
    """A copy of the state of a task in the folder of a savepoint; None if it has no such task."""
    if not named_folder(folder, task).is_dir():
        yield None
        return
    with disk.temporary_folder(folder.parent) as room:
        own = room / "database"
        own.mkdir(mode=0o700)
        epochs.inherit(named_folder(folder, task), own)
        database = Database(own)
        try:
            yield TaskState(database, crc32m)
        finally:
            database.close()
