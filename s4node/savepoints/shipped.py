"""The savepoints of a job whose state is shipped to a URL: each has all of its files there.

Rules
- ``savepoints/manifests/NAME`` is a manifest, and ``savepoints/files/NUMBER/TASK/FILE`` a file of
  the savepoint of that number. So all nodes find it, and it does not depend on the job's state.
- A task's owner makes its cut in its own folder by hard links. While the task goes on, it uploads
  the files, and then ``savepoints/cuts/NUMBER/TASK``, which has their names and hashes.
- To use a savepoint, its files are fetched into a temporary folder.
- The next savepoint removes the remains of an unfinished one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import CheckpointError
from s4node.failpoints import passing
from s4node.offsets.cuts import CutReport
from s4node.savepoints.folders import FolderSavepoints, translate_errors
from s4node.savepoints.manifest import Manifest, Restoring, SavedTask
from s4node.savepoints.place import (
    MANIFEST,
    SavepointPlace,
    check_file,
    cut_folder,
    cuts_folder,
    files_of,
    numbers_of_cuts,
    places_of,
    savepoints_folder,
)
from s4node.state.job import safe_name
from s4node.state.remote_job import RemoteJob

_decode_task = msgspec.json.Decoder(SavedTask).decode


def savepoints_of(folder: Path, remote_job: RemoteJob | None) -> SavepointPlace:
    return FolderSavepoints(folder) if remote_job is None else ShippedSavepoints(folder, remote_job)


class ShippedSavepoints(SavepointPlace):
    """The savepoints at the URL of ``remote_job``; cuts are made in the job's ``folder``."""

    def __init__(self, folder: Path, remote_job: RemoteJob) -> None:
        super().__init__(folder, f"{remote_job.url}/savepoints")
        self._files = remote_job.files
        self._root = f"{remote_job.files.root}/savepoints"

    def names(self) -> list[str]:
        with self._files.translate_errors():
            found = self._files.names(f"{self._root}/manifests")
            return [name for name in found if not name.endswith(".tmp")]

    def _manifest(self, name: str) -> bytes | None:
        return self._get(f"manifests/{name}")

    def _numbers(self) -> list[int]:
        with self._files.translate_errors():
            begun = self._files.names(f"{self._root}/files")
        here = numbers_of_cuts(self.folder)
        return [*here, *(int(number) for number in begun if number.isdigit())]

    # -- taking one ------------------------------------------------------------------------------

    def publish(self, number: int, cut: CutReport) -> None:
        own, task = cut_folder(self.folder, number, cut.task), safe_name(cut.task)
        files = files_of(own)
        for name in files:
            self._put_file(own / name, f"files/{number}/{task}", name)
        saved = SavedTask(cut.fence, cut.commit, files)
        self._put(f"cuts/{number}", task, msgspec.json.encode(saved))
        with translate_errors(self.folder):
            shutil.rmtree(own)

    def saved_task(self, number: int, cut: CutReport) -> SavedTask:
        data = self._get(f"cuts/{number}/{safe_name(cut.task)}")
        if data is None:
            raise CheckpointError(f"the cut of task {cut.task!r} has not arrived in {self.name}")
        return _decode_task(data)

    def write_manifest(self, manifest: Manifest) -> None:
        self._put("manifests", manifest.name, msgspec.json.encode(manifest))
        passing("savepoint.named")
        with self._files.translate_errors():
            there = self._files.names(f"{self._root}/files/{manifest.number}")
        if not {safe_name(task) for task in manifest.tasks} <= {*there}:
            self._remove(f"manifests/{manifest.name}")
            raise CheckpointError(
                f"the files of {manifest.name!r} in {self.name} were removed before it was whole, "
                f"by a savepoint that was taken on another machine; do it again"
            )
        self._remove(f"cuts/{manifest.number}")

    def discard(self, number: int) -> None:
        with translate_errors(self.folder):
            if (cuts := cuts_folder(self.folder, number)).exists():
                shutil.rmtree(cuts)
        found, damaged = self.look()
        if not damaged and number not in (each.number for each in found):
            self._remove(f"cuts/{number}")
            self._remove(f"files/{number}")

    # -- using one -------------------------------------------------------------------------------

    @contextmanager
    def opened(self, manifest: Manifest) -> Iterator[Path]:
        near = savepoints_folder(self.folder)  # where files can be linked
        parent = near if near.is_dir() else Path(tempfile.gettempdir())
        with disk.temporary_folder(parent) as room:
            for (task, name), path in places_of(room, manifest).items():
                path.parent.mkdir(exist_ok=True)
                self._fetch(f"files/{manifest.number}/{safe_name(task)}/{name}", path)
                check_file(manifest, task, name, path, manifest.tasks[task].files[name])
            (room / MANIFEST).write_bytes(msgspec.json.encode(manifest))
            yield room

    def own_bytes(self, manifest: Manifest) -> int:
        return manifest.bytes

    def remove(self, name: str) -> None:
        with suppress(CheckpointError):  # files that no manifest names go with the next savepoint
            files = f"files/{self.manifest_of(name).number}"
            self._remove(f"manifests/{name}")
            self._remove(files)
            return
        self._remove(f"manifests/{name}")

    # -- going back to one -----------------------------------------------------------------------

    def begin_restore(self, mark: Restoring) -> None:
        self._put("restoring", "mark", msgspec.json.encode(mark))

    def end_restore(self) -> None:
        self._remove("restoring/mark")

    def _mark(self) -> bytes | None:
        return self._get("restoring/mark")

    # -- objects ---------------------------------------------------------------------------------

    def _get(self, place: str) -> bytes | None:
        with self._files.translate_errors():
            try:
                return bytes(self._files.fs.cat_file(f"{self._root}/{place}"))
            except FileNotFoundError:
                return None

    def _fetch(self, place: str, path: Path) -> None:
        with (
            self._files.translate_errors(),
            suppress(FileNotFoundError),
        ):  # the check says what is missing
            self._files.fs.get_file(f"{self._root}/{place}", str(path))

    def _put(self, folder: str, name: str, data: bytes) -> None:
        with self._files.translate_errors():
            self._files.make_folder(f"{self._root}/{folder}")
            self._files.put(f"{self._root}/{folder}/{name}", data)

    def _put_file(self, path: Path, folder: str, name: str) -> None:
        with self._files.translate_errors():
            self._files.make_folder(f"{self._root}/{folder}")
            self._files.put_file(path, f"{self._root}/{folder}/{name}")

    def _remove(self, place: str) -> None:
        with self._files.translate_errors(), suppress(FileNotFoundError):
            self._files.fs.rm(f"{self._root}/{place}", recursive=True)
