"""Typed entries of the coordination's tree, through one session.

Rules
- Entries are JSON. Newer versions may add fields, which older ones ignore.
- A name may be any text: it is quoted to become a part of a path.
- An entry without data is only the parent of others.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import TYPE_CHECKING, TypeVar

import msgspec
import trio

from s4node.cluster.coordination.entries import AppId, Found
from s4node.errors import CoordinationError, EntryExists, EntryNotEmpty, NameTaken, NoEntry
from s4node.events.schema import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from s4node.cluster.tree.contract import Entry, Session

T = TypeVar("T", bound=msgspec.Struct)


class TypedEntries:
    """Reads and writes entries as structs."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def get(self, path: str, kind: type[T]) -> Found[T] | None:
        """The entry with its version; None if there is none, or only as the parent of others."""
        entry = await self.session.get(path)
        if entry is None or not entry.data:  # only the parent of other entries
            return None
        return decoded(path, entry, kind)

    async def all(self, path: str, kind: type[T]) -> dict[str, Found[T]]:
        found = {}
        for part in await self.session.children(path):
            one = await self.get(f"{path}/{part}", kind)
            if one is not None:
                found[urllib.parse.unquote(part)] = one
        return found

    async def names(self, path: str) -> list[str]:
        """The names directly below ``path``, sorted."""
        return sorted(urllib.parse.unquote(part) for part in await self.session.children(path))

    async def put(self, path: str, value: msgspec.Struct) -> None:
        data = msgspec.json.encode(value)
        while True:
            try:
                await self.session.create(path, data)
            except EntryExists:
                try:
                    await self.session.set(path, data)
                except NoEntry:  # deleted in between
                    continue
            return

    async def create_or_fill(self, path: str, value: msgspec.Struct) -> None:
        """Create an entry, or fill one that is only the parent of others."""
        data = msgspec.json.encode(value)
        try:
            await self.session.create(path, data)
        except EntryExists:
            entry = await self.session.get(path)
            if entry is None or entry.data:
                raise
            await self.session.set(path, data, entry.version)

    async def claim(self, path: str, value: T, taken: Callable[[T], str], patience: float) -> None:
        """Create an ephemeral entry; one of this session is replaced.

        Raises NameTaken with the text of ``taken`` if another session's does not end within
        ``patience`` seconds.
        """
        deadline = trio.current_time() + patience
        while True:
            try:
                await self.session.create(path, msgspec.json.encode(value), ephemeral=True)
            except EntryExists:
                seen = await self.session.change(path)
                entry = await self.session.get(path)
                if entry is None:  # deleted in between
                    continue
                living = decoded(path, entry, type(value))
                if living.session == self.session.id:
                    await self.session.set(path, msgspec.json.encode(value))
                    return
                with trio.move_on_at(deadline) as scope:
                    await self.session.wait_change(path, seen)
                if scope.cancelled_caught:
                    raise NameTaken(taken(living.value)) from None
            else:
                return

    async def delete_tree(self, path: str) -> None:
        """Delete an entry and all below it; a missing one is not an error."""
        while True:
            for part in await self.session.children(path):
                await self.delete_tree(f"{path}/{part}")
            try:
                await self.session.delete(path)
            except EntryNotEmpty:
                continue
            except NoEntry:
                pass
            return

    async def text(self, path: str) -> str:
        entry = await self.session.get(path)
        return "" if entry is None else entry.data.decode()

    async def set_text(self, path: str, text: str) -> None:
        with contextlib.suppress(EntryExists):
            await self.session.create(path)
        await self.session.set(path, text.encode())


def decoded(path: str, entry: Entry, kind: type[T]) -> Found[T]:
    """The value of an entry; raises CoordinationError if it is of another form."""
    try:
        value = msgspec.json.decode(entry.data, type=kind)
    except UNREADABLE as error:
        raise unreadable(path, error) from error
    return Found(value, entry.version, entry.session, entry.created)


def unreadable(path: str, error: Exception) -> CoordinationError:
    return CoordinationError(
        f"the entry {path!r} cannot be read ({error}); another version of s4node may have written "
        f"it: run one version, or delete it"
    )


def _part(name: str) -> str:
    quoted = urllib.parse.quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def below(path: str, name: str) -> str:
    return f"{path}/{_part(name)}"


def path_to(*names: str) -> str:
    return "".join(f"/{_part(name)}" for name in names)


def path_of_app(app: AppId) -> str:
    """The path of an app's description; all that belongs to the app is below it."""
    return path_to("clusters", app.cluster, "apps", app.app)
