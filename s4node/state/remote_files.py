"""The files of a job at a URL: any file system of ``fsspec``, and where in it they are.

Rules
- The place needs to show an object to all as soon as it is there, in listings as well. It needs
  neither locks nor an order for what two write at a time.
- Whatever its file system raises is a StateError: it can be tried again.
- Everything blocks, and is called in threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s4node.errors import ConfigError, S4Error, StateError


class RemoteFiles:
    """The files of the job in ``folder``, which is below the ``url`` as it is on this node.

    ``url`` is where they are, for people; ``root`` is the same for the file system ``fs``.
    """

    def __init__(self, url: str, folder: Path) -> None:
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
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

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
