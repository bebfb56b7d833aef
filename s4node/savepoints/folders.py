"""The savepoints of a job whose state is in a folder: beside the state, by hard links.

Rules
- ``savepoints/NAME`` is a savepoint: ``manifest.json``, and a folder for each task with the files
  of its database.
- ``savepoints/.cut-NUMBER`` is a savepoint that is being taken: each task's owner makes its folder
  there, by hard links. When all are there, the command writes the manifest and renames the folder.
- The next savepoint removes what a killed command has left.
- Removing a file from a savepoint leaves the job's own link to it, and the other way round.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import ConfigError, ProgressUnwritten
from s4node.failpoints import passing
from s4node.offsets.cuts import CutReport
from s4node.savepoints.manifest import Manifest, Restoring, SavedTask
from s4node.savepoints.place import (
    MANIFEST,
    SavepointPlace,
    check,
    cut_folder,
    cuts_folder,
    files_of,
    numbers_of_cuts,
    places_of,
    savepoints_folder,
)
from s4node.state.job import named_folder

_RESTORE = ".restore"


class FolderSavepoints(SavepointPlace):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, str(savepoints_folder(folder)))
        self._all = savepoints_folder(folder)

    def names(self) -> list[str]:
        if not self._all.is_dir():
            return []
        return [each.name for each in self._all.iterdir() if not each.name.startswith(".")]

    def _manifest(self, name: str) -> bytes | None:
        try:
            return (self._all / name / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _numbers(self) -> list[int]:
        finished = [each.number for each in self.look()[0]]
        return [*numbers_of_cuts(self.folder), *finished]

    # -- taking one ------------------------------------------------------------------------------

    def publish(self, number: int, cut: CutReport) -> None:
        """Do nothing: the cut is where the command finds it."""

    def saved_task(self, number: int, cut: CutReport) -> SavedTask:
        files = files_of(cut_folder(self.folder, number, cut.task))
        return SavedTask(cut.fence, cut.commit, files)

    def write_manifest(self, manifest: Manifest) -> None:
        cuts = cuts_folder(self.folder, manifest.number)
        with translate_errors(self.folder):
            for path in places_of(cuts, manifest).values():
                disk.sync(path)
            disk.sync(*(named_folder(cuts, task) for task in manifest.tasks))
            disk.write(cuts / MANIFEST, msgspec.json.encode(manifest))
            passing("savepoint.manifest")
            cuts.rename(self._all / manifest.name)
            disk.sync(self._all)
        passing("savepoint.named")

    def discard(self, number: int) -> None:
        with translate_errors(self.folder):
            cuts, tries = cuts_folder(self.folder, number), 10
            while cuts.exists():
                try:
                    shutil.rmtree(cuts)
                except OSError:  # an owner that does not know of it yet adds to it
                    tries -= 1
                    if not tries:
                        raise

    # -- using one -------------------------------------------------------------------------------

    @contextmanager
    def opened(self, manifest: Manifest) -> Iterator[Path]:
        folder = self._all / manifest.name
        check(folder, manifest)
        yield folder

    def own_bytes(self, manifest: Manifest) -> int:
        paths = places_of(self._all / manifest.name, manifest).values()
        found = [path.stat() for path in paths if path.is_file()]
        return sum(each.st_size for each in found if each.st_nlink == 1)

    def remove(self, name: str) -> None:
        folder = self._all / name
        with translate_errors(self.folder):
            (folder / MANIFEST).unlink(missing_ok=True)
            disk.sync(folder)
            shutil.rmtree(folder)

    # -- going back to one -----------------------------------------------------------------------

    def begin_restore(self, mark: Restoring) -> None:
        with translate_errors(self.folder):
            disk.make_folders(self._all)
            disk.write(self._all / _RESTORE, msgspec.json.encode(mark))

    def end_restore(self) -> None:
        with translate_errors(self.folder):
            (self._all / _RESTORE).unlink()
            disk.sync(self._all)

    def _mark(self) -> bytes | None:
        try:
            return (self._all / _RESTORE).read_bytes()
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            file = next(each for each in (self._all, *self._all.parents) if each.is_file())
            raise ConfigError(
                f"{file} is a file, where a folder for state has to be; set s4.state.folder to "
                f"another folder, or move the file away"
            ) from error


@contextmanager
def translate_errors(job: Path) -> Iterator[None]:
    """Raise ProgressUnwritten, with the folder, for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise ProgressUnwritten(
            f"savepoints cannot be written in {savepoints_folder(job)} ({error}); make room there, "
            f"or fix its permissions"
        ) from error
