"""The saved PE instances of one prototype in one task.

Rules
- An instance bears the mark of the time between two commits in which it was last touched. The
  dispatch looks at that before each event; touching an instance again costs nothing else.
- A commit takes the touched instances as they are and encodes them in slices between batches, those
  of a key group together and in order: sorted rows are written ten times as fast as others. One
  that is about to be touched again is encoded before that.
- What leaves the cache is encoded at once; it is read again when its key comes back.
- The one instance of a singleton has no key, and its row is in the task's own group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Protocol

from s4node.keys import KEY_GROUPS, Hasher, Key
from s4node.state import ordered
from s4node.state.database import Database
from s4node.state.rows import TASK_GROUP, Changes, prefix

_MISSING = object()
_row_of = attrgetter("_row")
_MANY = 4096


class Codec(Protocol):
    """Instances as bytes."""

    def encode(self, instance: Any, /) -> bytes:
        """One instance's state."""
        ...

    def encode_all(self, instances: list[Any], /) -> list[bytes]:
        """The states of several."""
        ...


class SavedInstances:
    """Where the instances of a prototype are kept; ``live`` are those in memory, by key.

    ``stored`` says whether there may be any that are not in memory.
    """

    def __init__(
        self,
        table: int,
        live: Mapping[Any, Any],
        codec: Codec,
        database: Database,
        changes: Changes,
        hasher: Hasher,
        *,
        stored: bool = True,
    ) -> None:
        self.stored = stored
        self.mark = object()
        self.touched: list[Any] = []  # once each
        self._left = 0  # of those, the ones that have left memory since
        self._saving = object()  # what bear those that a commit has not encoded yet,
        self._unsaved: list[Any] = []  # which are among these,
        self._grouped: defaultdict[int, list[Any]] = defaultdict(list)  # and then, by group, these
        self._groups: list[int] = []  # the first one last
        self._live = live
        self._codec = codec
        self._table = table
        self._database = database
        self._changes = changes
        self._hasher = hasher

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

    def touch(self, keys: Iterable[Key | None]) -> None:
        """Those of these that are in memory are about to change."""
        for key in keys:
            instance: Any = self._live.get(key)
            if instance is not None and instance._mark is not self.mark:
                self.touch_one(instance)

    def touch_one(self, instance: Any) -> None:
        """An instance that does not bear the ``mark`` is about to change."""
        if instance._mark is self._saving:
            self._commit(instance)
        instance._mark = self.mark
        self.touched.append(instance)

    def begin(self) -> None:
        """A commit begins: what was touched until now belongs to it."""
        assert not self._grouped, "a commit is under way"
        assert not self._unsaved, "a commit is under way"
        self._unsaved, self.touched, self._left = self.touched, [], 0
        self._saving, self.mark = self.mark, object()

    def save(self, limit: int) -> int:
        """Work on about ``limit`` instances of the commit; returns 0 when all are encoded."""
        if self._unsaved:
            chunk = self._unsaved[-limit:]
            del self._unsaved[-limit:]
            for row, instance in zip(self._rows(chunk), chunk, strict=True):
                self._grouped[row[0] << 8 | row[1]].append(instance)
            if not self._unsaved:
                self._groups = sorted(self._grouped, reverse=True)
        else:
            encoded = 0
            while encoded < limit and self._grouped:
                encoded += self._encode(self._grouped.pop(self._groups.pop()))
        if self._unsaved or self._grouped:
            return 1
        self._saving = object()
        return 0

    def _encode(self, instances: list[Any]) -> int:
        """Encode those of a group that are not encoded yet."""
        mine = [instance for instance in instances if instance._mark is self._saving]
        if mine:
            mine.sort(key=_row_of)
            self._changes.add_all(self._rows(mine), self._codec.encode_all(mine))
        return len(mine)

    def evict(self, key: Key | None) -> None:
        """The key's instance leaves the cache: keep its state. It is still in ``live``."""
        self.stored = True
        instance: Any = self._live.get(key)
        if instance._mark is self.mark:
            self._changes.put(self._row(key), self._codec.encode(instance))
            self._leaves(instance)
        elif self._changes.leaving:  # what a commit has encoded is not found before it is written
            self._commit(instance)
            instance._mark = None

    def forget(self, key: Key | None) -> None:
        """The key's instance is removed, and its state with it. It is still in ``live``."""
        instance: Any = self._live.get(key)
        if instance._mark is self._saving:
            self._commit(instance)
        if instance._mark is self.mark:
            self._leaves(instance)
        instance._mark = None
        self._changes.put(self._row(key), None)

    def _leaves(self, instance: Any) -> None:
        """One that was touched leaves memory; not before many have is their list gone through."""
        instance._mark = None
        self._left += 1
        if self._left > _MANY and self._left > len(self.touched) // 2:
            self.touched = [each for each in self.touched if each._mark is self.mark]
            self._left = 0

    def _commit(self, instance: Any) -> None:
        """Encode an instance of the commit under way now, before it is touched again."""
        self._changes.add(self._row(instance.key), self._codec.encode(instance))

    def _rows(self, instances: list[Any]) -> list[bytes]:
        """Where instances are saved; each knows it from the first time on."""
        try:
            return [instance._row for instance in instances]
        except AttributeError:
            for instance in instances:
                instance._row = self._row(instance.key)
            return [instance._row for instance in instances]

    def _row(self, key: Key | None) -> bytes:
        if key is None:
            return prefix(TASK_GROUP, self._table)
        return prefix(self._hasher(key) % KEY_GROUPS, self._table) + ordered.encode(key)
