"""The files of a job at a URL: any file system of ``fsspec``, and where in it they are.

Rules
- The place needs to show an object to all as soon as it is there, in listings as well. It needs
  neither locks nor an order for what two write at a time.
- An object never gets other content under its name: what is put again has another name, so that
  nobody takes what a paused writer puts late for what was there.
- With ``sync`` what is put at a ``file://`` URL is on the disk, with all names above it.
- A name that is read back is one part of a path: none leads out of its folder.
- Whatever its file system raises is a StateError: it can be tried again.
- Everything blocks, and is called in threads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s4node import disk
from s4node.errors import ConfigError, S4Error, StateError


class RemoteFiles:
    """The files of the job in ``folder``, which is below the ``url`` as it is on this node.

    ``url`` is where they are, for people; ``root`` is the same for the file system ``fs``.
    """

    def __init__(self, url: str, folder: Path, *, sync: bool = False) -> None:
        self._sync = sync
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"s4.state.url = {url} needs fsspec; pip install 's4node[ship]', and what fsspec "
                f"needs for that kind of URL"
            ) from error
        try:
            self.fs, root = fsspec.core.url_to_fs(url)
        except ImportError as error:  # it names the package
            raise ConfigError(f"s4.state.url = {url}: {error}, where each node runs") from error
        except ValueError as error:
            known = ", ".join(sorted(fsspec.available_protocols()))
            raise ConfigError(
                f"s4.state.url = {url}: {error}; fsspec knows {known}, some of them with a package "
                f"of their own"
            ) from error
        below = f"{folder.parent.name}/{folder.name}"
        self.url = f"{url.rstrip('/')}/{below}"
        self.root = f"{root.rstrip('/')}/{below}"

    def names(self, folder: str) -> list[str]:
        """What is in a folder of the file system; nothing where there is none."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(folder, detail=False)
        except FileNotFoundError:  # an object store knows no empty folders
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return [name for name in names if name not in ("", ".", "..")]

    def make_folder(self, folder: str) -> None:
        """Make a folder of the file system, and what is missing above it."""
        if self._local and self._sync:
            disk.make_folders(Path(folder))
        else:
            self.fs.makedirs(folder, exist_ok=True)

    def put(self, place: str, data: bytes) -> None:
        """Put an object there, as a whole."""
        if not self._local:
            self.fs.pipe_file(place, data)
            return
        with self._whole(Path(place)) as new:
            new.write_bytes(data)

    def put_file(self, path: Path, place: str) -> None:
        """Put a copy of a file there, as a whole."""
        if not self._local:
            self.fs.put_file(str(path), place)
            return
        with self._whole(Path(place)) as new:
            shutil.copyfile(path, new)

    @contextmanager
    def _whole(self, place: Path) -> Iterator[Path]:
        """A file that gets the name of an object when it is whole; elsewhere one always is."""
        new = place.with_name(f"{place.name}.tmp")  # which is no name of ours
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
        """Say whose error it is."""
        try:
            yield
        except S4Error:
            raise
        except Exception as error:
            raise StateError(
                f"{self.url} cannot be read or written: {type(error).__name__}: {error}; see that "
                f"s4.state.url is a place which this node reaches and may write to"
            ) from error
