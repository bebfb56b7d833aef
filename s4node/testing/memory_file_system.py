"""The file system of ``fsspec`` for the store in memory; importing this module registers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from s4node.testing import memory_store


class MemoryFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The file system that ``fsspec`` finds at the URL."""

    protocol = "s4-test", "s3"  # as s3, it puts an object only if there is none
    cachable = False

    @property
    def _objects(self) -> dict[str, bytes]:
        store = memory_store.current()
        store.request()
        return store.objects

    def ls(self, path: str, detail: bool = False, **_: Any) -> list[Any]:
        folder = f"{path.rstrip('/')}/"
        below = (each[len(folder) :] for each in self._objects if each.startswith(folder))
        names = {each.partition("/")[0] for each in below}
        if not names:
            raise FileNotFoundError(path)
        return [
            {"name": folder + name, "size": 0, "type": "file"} if detail else folder + name
            for name in sorted(names)
        ]

    def find(self, path: str, *_: Any, **__: Any) -> list[str]:
        folder = f"{path.rstrip('/')}/"
        return sorted(each for each in self._objects if each.startswith(folder))

    def exists(self, path: str, **_: Any) -> bool:
        return path in self._objects

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: folders exist with what is in them."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        memory_store.current().put(path, bytes(memoryview(value)), new=mode == "create")

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        found = self._objects.get(path)
        if found is None:
            raise FileNotFoundError(path)
        return found[start:end]

    def rm_file(self, path: str) -> None:
        if self._objects.pop(path, None) is None:
            raise FileNotFoundError(path)

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def get_file(self, rpath: str, lpath: str, *_: Any, **__: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))


fsspec.register_implementation("s4-test", MemoryFileSystem, clobber=True)
