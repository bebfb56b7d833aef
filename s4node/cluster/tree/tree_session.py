"""The calls of a session whose tree is in a database that this process can open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from s4node.cluster.tree.contract import Entry, check_data, check_path
from s4node.cluster.tree.tree_database import Tree

T = TypeVar("T")


class TreeSession:
    """The calls of :class:`s4node.cluster.tree.contract.Session`; the rest is of the class below.

    ``_in_tree`` makes a call, or raises SessionLost.
    """

    def __init__(self, id_: str, tree: Tree) -> None:
        self.id = id_
        self._tree = tree
        self._changed = trio.Event()

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        check_path(path)
        check_data(path, data)
        add = lambda: self._tree.add_entry(self.id, path, data, ephemeral)  # noqa: E731
        await self._in_tree(add, write=True)

    async def get(self, path: str) -> Entry | None:
        check_path(path)
        return await self._in_tree(lambda: self._tree.get(self.id, path))

    async def set(self, path: str, data: bytes, version: int | None = None) -> int:
        check_path(path)
        check_data(path, data)
        return await self._in_tree(lambda: self._tree.set(self.id, path, data, version), write=True)

    async def delete(self, path: str, version: int | None = None) -> None:
        check_path(path)
        await self._in_tree(lambda: self._tree.delete(self.id, path, version), write=True)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._in_tree(lambda: self._tree.children(self.id, path))

    async def change(self, path: str) -> int:
        check_path(path)
        return await self._in_tree(lambda: self._tree.change(self.id, path))

    async def wait_change(self, path: str, seen: int) -> int:
        while True:
            changed = self._changed  # before reading: a later change sets this very event
            number = await self.change(path)
            if number > seen:
                return number
            await changed.wait()

    async def check_closed(self) -> None:
        """Do nothing: the owner of the database keeps others from it."""
        await trio.lowlevel.checkpoint()

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _in_tree(self, step: Callable[[], T], *, write: bool = False) -> T:
        raise NotImplementedError
