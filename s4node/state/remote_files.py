"""The files of a job at a URL, on any file system of ``fsspec``.

Rules
- The file system has to show an object to everyone, also in listings, as soon as it is written. It
  needs neither locks nor an order of concurrent writes.
- An object is never overwritten: a new version has a new name. So nobody mistakes what a paused
  writer puts late for what was there.
- With ``sync``, an object that was put at a ``file://`` URL is on disk, with all names above it.
- A name that is read back is one part of a path, so that it cannot lead out of its folder.
- Every error of the file system becomes a StateError, which may be retried.
- All calls block: make them in threads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s4node import disk
from s4node.errors import ConfigError, S4Error, StateError


class RemoteFiles:
    """The files of the job in ``folder``, at the same place below ``url`` as on this node.

    ``url`` is for people; ``root`` is the path in the file system ``fs``.
    """

    def __init__(self, url: str, folder: Path, *, sync: bool = False) -> None:
        self._sync = sync
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"s4.state.url = {url} needs fsspec; run pip install 's4node[ship]', and install "
                f"the package that fsspec needs for this kind of URL"
            ) from error
        try:
            self.fs, root = fsspec.core.url_to_fs(url)
        except ImportError as error:  # its message names the package
            raise ConfigError(f"s4.state.url = {url}: {error}, on every node") from error
        except ValueError as error:
            known = ", ".join(sorted(fsspec.available_protocols()))
            raise ConfigError(
                f"s4.state.url = {url}: {error}; fsspec knows {known}, some of them only with "
                f"another package"
            ) from error
        below = f"{folder.parent.name}/{folder.name}"
        self.url = f"{url.rstrip('/')}/{below}"
        self.root = f"{root.rstrip('/')}/{below}"

    def names(self, folder: str) -> list[str]:
        """The names in a folder of the file system; empty if there is no such folder."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(folder, detail=False)
        except FileNotFoundError:  # an object store has no empty folders
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return [name for name in names if name not in ("", ".", "..")]

    def make_folder(self, folder: str) -> None:
        """Make a folder of the file system, and its missing parents."""
        if self._local and self._sync:
            disk.make_folders(Path(folder))
        else:
            self.fs.makedirs(folder, exist_ok=True)

    def put(self, place: str, data: bytes) -> None:
        """Write an object as a whole."""
        if not self._local:
            self.fs.pipe_file(place, data)
            return
        with self._whole(Path(place)) as new:
            new.write_bytes(data)

    def put_file(self, path: Path, place: str) -> None:
        """Copy a file to an object as a whole."""
        if not self._local:
            self.fs.put_file(str(path), place)
            return
        with self._whole(Path(place)) as new:
            shutil.copyfile(path, new)

    @contextmanager
    def _whole(self, place: Path) -> Iterator[Path]:
        """A local file that gets the object's name once it is whole."""
        new = place.with_name(f"{place.name}.tmp")  # no object has such a name
        yield new
        if self._sync:
            disk.sync(new)
        new.replace(place)
        if self._sync:
            disk.sync(place.parent)

    @property
    def _local(self) -> bool:
        return bool(getattr(self.fs, "local_file", False))

    @contextmanager
    def told(self) -> Iterator[None]:
        """Translate errors of the file system into StateError."""
        try:
            yield
        except S4Error:
            raise
        except Exception as error:
            raise StateError(
                f"{self.url} cannot be read or written: {type(error).__name__}: {error}; check "
                f"that this node can reach s4.state.url and may write to it"
            ) from error
