"""Where the savepoints of a job are on disk.

Rules
- ``savepoints/NAME`` is a savepoint: ``manifest.json``, and a folder for each task, in which the
  files of its database are.
- ``savepoints/.cut-NUMBER`` is one that is being taken: each task's owner makes its folder there,
  by hard links. When all are there, the command writes the manifest and renames the folder.
- What a command that was killed has left is removed when the next savepoint is taken.
- A file that is removed from a savepoint stays for the job, and the other way round.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import CheckpointError, ConfigError, ProgressUnwritten
from s4node.savepoints.manifest import Manifest, SavedFile, parse
from s4node.state.job import named_folder, safe_name

MANIFEST = "manifest.json"
_CUT = ".cut-"
_RESTORE = ".restore"
"""A file with the name of the savepoint from which the job is being restored."""
_NOT_SAVED = {"LOCK", "LOG"}


def savepoints_folder(job: Path) -> Path:
    """Where the savepoints of the job in this folder are."""
    return job / "savepoints"


def cuts_folder(job: Path, number: int) -> Path:
    """Where the cuts for the savepoint of this number are."""
    return savepoints_folder(job) / f"{_CUT}{number}"


def cut_folder(job: Path, number: int, task: str) -> Path:
    """Where the cut of a task is; raises ConfigError as :func:`named_folder` does."""
    return named_folder(cuts_folder(job, number), task)


def savepoint_folder(job: Path, name: str) -> Path:
    """Where the savepoint of this name is; raises ConfigError for what cannot be a name."""
    if not name or safe_name(name) != name:
        raise ConfigError(
            f"{name!r} cannot be the name of a savepoint; use letters, digits and . _ -, with no "
            f"dot in front"
        )
    return named_folder(savepoints_folder(job), name)


def found_in(job: Path) -> list[Manifest]:
    """The savepoints of a job, the oldest first; raises CheckpointError where one is damaged."""
    folder = savepoints_folder(job)
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    whole = [name for name in names if (folder / name / MANIFEST).exists()]
    return sorted((read(job, name) for name in whole if not name.startswith(".")), key=_number)


def _number(manifest: Manifest) -> int:
    return manifest.number


def read(job: Path, name: str) -> Manifest:
    """The manifest of a savepoint; raises CheckpointError where there is none that can be read."""
    place = savepoint_folder(job, name) / MANIFEST
    try:
        return parse(place.read_bytes(), place)
    except FileNotFoundError as error:
        names = ", ".join(each.name for each in found_in(job))
        raise CheckpointError(
            f"there is no savepoint {name!r} in {savepoints_folder(job)}; there are: "
            f"{names or 'none'}"
        ) from error


def files_of(folder: Path) -> dict[str, SavedFile]:
    """The files of a task's cut, read whole."""
    return {
        path.name: SavedFile(path.stat().st_size, _hash(path))
        for path in sorted(folder.iterdir())
        if path.name not in _NOT_SAVED and not path.name.startswith("LOG.")
    }


def check(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError unless all files in a savepoint's ``folder`` are as they were saved."""
    for task, saved in manifest.tasks.items():
        for name, file in saved.files.items():
            path = named_folder(folder, task) / name
            if "/" in name:
                why = "its manifest names it, and it leads elsewhere"
            elif not path.is_file():
                why = "it is missing"
            elif path.stat().st_size != file.size:
                why = f"it has {path.stat().st_size} bytes, and {file.size} were saved"
            elif _hash(path) != file.hash:
                why = "its content is not what was saved"
            else:
                continue
            raise CheckpointError(
                f"savepoint {manifest.name!r} is damaged: file {name} of task "
                f"{task!r}: {why}; use another savepoint, or a copy of this one"
            )


def finish(job: Path, manifest: Manifest, cuts: Path) -> None:
    """Make a savepoint of the tasks in a folder, under its name, which is not taken."""
    with told(job):
        for task, saved in manifest.tasks.items():
            folder = named_folder(cuts, task)
            disk.sync(*(folder / name for name in saved.files), folder)
        disk.write(cuts / MANIFEST, msgspec.json.encode(manifest))
        cuts.rename(savepoint_folder(job, manifest.name))
        disk.sync(savepoints_folder(job))


def remove(job: Path, name: str) -> None:
    """Remove a savepoint: its manifest first, so none is left in part."""
    folder = savepoint_folder(job, name)
    with told(job):
        (folder / MANIFEST).unlink()
        disk.sync(folder)
        shutil.rmtree(folder)


def remove_cuts(job: Path, but: int = 0) -> None:
    """Remove what was left of savepoints that were not finished, but for one number."""
    with told(job):
        for each in savepoints_folder(job).glob(f"{_CUT}*"):
            if each != cuts_folder(job, but):
                shutil.rmtree(each)


def import_folder(job: Path) -> Path:
    """Where a savepoint is that is being imported; what an earlier import left is removed."""
    place = savepoints_folder(job) / ".import"
    with told(job):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    return place


def begin_restore(job: Path, name: str) -> None:
    """Say that the tasks of a job are restored from a savepoint, one after the other."""
    with told(job):
        disk.write(savepoints_folder(job) / _RESTORE, name.encode())


def end_restore(job: Path) -> None:
    """Say that all tasks are."""
    with told(job):
        (savepoints_folder(job) / _RESTORE).unlink()
        disk.sync(savepoints_folder(job))


def check_restored(job: Path) -> None:
    """Raise CheckpointError if only some tasks of a job are restored from a savepoint."""
    place = savepoints_folder(job) / _RESTORE
    if place.exists():
        name = place.read_text()
        raise CheckpointError(
            f"only some of the tasks in {job} were restored from the savepoint {name!r}, for that "
            f"was cut short; start again with --from {name}"
        )


@contextmanager
def told(job: Path) -> Iterator[None]:
    """Say where something could not be written."""
    try:
        yield
    except OSError as error:
        raise ProgressUnwritten(
            f"savepoints cannot be written in {savepoints_folder(job)} ({error}); make room there, "
            f"or fix its permissions"
        ) from error


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
