"""The saved PE instances of one prototype in one task.

Rules
- Which keys were touched is known batch by batch: their states are written with the next commit.
- A commit takes the touched keys as a set and encodes them in slices between batches. A key of the
  set that is about to be touched again is encoded before that.
- What leaves the cache is encoded at once; it is read again when its key comes back.
- The one instance of a singleton has no key, and its row is in the task's own group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Protocol

from s4node.keys import KEY_GROUPS, Hasher, Key
from s4node.state import ordered
from s4node.state.database import Database
from s4node.state.rows import TASK_GROUP, Changes, prefix

_MISSING = object()


class Codec(Protocol):
    """Instances as bytes."""

    def encode(self, instance: Any, /) -> bytes:
        """One instance's state."""
        ...


class SavedInstances:
    """Where the instances of a prototype are kept; ``live`` are those in memory, by key."""

    def __init__(
        self,
        table: int,
        live: Mapping[Any, Any],
        codec: Codec,
        database: Database,
        changes: Changes,
        hasher: Hasher,
    ) -> None:
        self._table = table
        self._live = live
        self._codec = codec
        self._database = database
        self._changes = changes
        self._hasher = hasher
        self._touched: set[Key | None] = set()
        self._saving: set[Key | None] = set()
        self._known: set[Key | None] = set()  # whose instances are in memory, or about to be

    def fresh(self, keys: set[Key | None]) -> set[Key | None]:
        """Those of these keys that were not touched since the last commit began."""
        return keys - self._touched

    def unknown(self, keys: set[Key | None]) -> set[Key | None]:
        """Those of these keys whose state may have to be found before they are touched."""
        return keys - self._known

    def know(self, keys: set[Key | None]) -> None:
        """These have been found, or begin anew with their next event."""
        self._known |= keys

    @property
    def touched(self) -> bool:
        """Whether the next commit has anything of them."""
        return bool(self._touched)

    def find(self, keys: Iterable[Key | None]) -> dict[Key | None, bytes]:
        """The saved states of those keys that have one, in one reading."""
        found: dict[Key | None, bytes] = {}
        rows: dict[Key | None, bytes] = {}
        for key in keys:
            row = self._row(key)
            data = self._changes.find(row, _MISSING)
            if data is _MISSING:
                rows[key] = row
            elif data is not None:
                found[key] = data  # type: ignore[assignment]
        if rows:
            stored = self._database.get_many(list(rows.values()))
            found.update((k, row) for k, row in zip(rows, stored, strict=True) if row is not None)
        return found

    def touch(self, keys: set[Key | None]) -> None:
        """These are about to change."""
        if self._saving:
            for key in keys & self._saving:
                self._commit(key)
        self._touched |= keys

    def begin(self) -> None:
        """A commit begins: what was touched until now belongs to it."""
        assert not self._saving, "a commit is under way"
        self._saving, self._touched = self._touched, set()

    def save(self, limit: int) -> int:
        """Encode up to ``limit`` instances of the commit; returns how many are left."""
        for key in list(islice(self._saving, limit)):
            self._commit(key)
        return len(self._saving)

    def evict(self, key: Key | None) -> None:
        """The key's instance leaves the cache: keep its state. It is still in ``live``."""
        self._known.discard(key)
        if key in self._saving:
            self._commit(key)
        if key in self._touched:
            self._touched.discard(key)
            self._changes.put(self._row(key), self._codec.encode(self._live.get(key)))

    def forget(self, key: Key | None) -> None:
        """The key's instance is removed, and its state with it. It is still in ``live``."""
        self._known.discard(key)
        if key in self._saving:
            self._commit(key)
        self._touched.discard(key)
        self._changes.put(self._row(key), None)

    def _commit(self, key: Key | None) -> None:
        self._saving.discard(key)
        instance = self._live.get(key)  # which is no use of it
        if instance is not None:
            self._changes.add(self._row(key), self._codec.encode(instance))

    def _row(self, key: Key | None) -> bytes:
        if key is None:
            return prefix(TASK_GROUP, self._table)
        return prefix(self._hasher(key) % KEY_GROUPS, self._table) + ordered.encode(key)
