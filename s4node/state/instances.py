"""The saved PE instances of one prototype in one task.

Rules
- Which keys were touched is known batch by batch: their states are written with the next commit.
- A commit takes the touched keys as a set and encodes them in slices between batches. A key of the
  set that is about to be touched again is encoded before that.
- What leaves the cache is encoded at once; it is read again when its key comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

from s4node.keys import KEY_GROUPS, Hasher, Key
from s4node.state import ordered
from s4node.state.database import Database
from s4node.state.rows import Changes, prefix

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
        live: dict[Key, Any],
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
        self._touched: set[Key] = set()
        self._saving: set[Key] = set()

    def find(self, keys: Iterable[Key]) -> dict[Key, bytes]:
        """The saved states of those keys that have one, in one reading."""
        found: dict[Key, bytes] = {}
        rows: dict[Key, bytes] = {}
        for key in keys:
            row = self._row(key)
            data = self._changes.find(row, _MISSING)
            if data is _MISSING:
                rows[key] = row
            elif data is not None:
                found[key] = data  # type: ignore[assignment]
        stored = self._database.get_many(list(rows.values()))
        found.update((k, data) for k, data in zip(rows, stored, strict=True) if data is not None)
        return found

    def touch(self, keys: set[Key]) -> None:
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

    def evict(self, key: Key) -> None:
        """The key's instance leaves the cache: keep its state. It is still in ``live``."""
        if key in self._saving:
            self._commit(key)
        if key in self._touched:
            self._touched.discard(key)
            self._changes.put(self._row(key), self._codec.encode(self._live[key]))

    def forget(self, key: Key) -> None:
        """The key's instance is removed, and its state with it. It is still in ``live``."""
        if key in self._saving:
            self._commit(key)
        self._touched.discard(key)
        self._changes.put(self._row(key), None)

    def _commit(self, key: Key) -> None:
        self._saving.discard(key)
        self._changes.add(self._row(key), self._codec.encode(self._live[key]))

    def _row(self, key: Key) -> bytes:
        return prefix(self._hasher(key) % KEY_GROUPS, self._table) + ordered.encode(key)
