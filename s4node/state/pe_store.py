"""The saved PE instances of one prototype in one task.

Rules
- An instance bears the mark of the time between two commits in which it was last touched. The
  dispatch looks at that before each event; touching an instance again costs nothing else.
- What is touched is noted by key group. A commit takes the touched instances as they are and
  encodes them in slices between batches, a group after the other and in order: sorted rows are
  written ten times as fast as others. One that is about to be touched again is encoded before that.
- What leaves the cache is encoded at once; it is read again when its key comes back. If it cannot
  be, the changes are spoiled, and whose task it is goes back before anything else.
- Handlers in threads touch instances beside all of this. They only append to the lists, and here a
  list changes no further than it was looked at.
- The one instance of a singleton has no key, and its row is in the task's own group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from threading import Lock
from typing import Any, Protocol

from s4node.errors import NotSaveable
from s4node.events.keys import KEY_GROUPS, Hasher, Key
from s4node.state import key_encoding
from s4node.state.database import Database
from s4node.state.rows import TASK_GROUP, Changes, prefix, with_text_rows

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
        stored: bool,
    ) -> None:
        self.stored = stored
        self.mark = object()
        self._touched: dict[bytes, list[Any]] = {}  # by group, once each
        self._left = 0  # of those, the ones that have left memory since
        self._leaving = Lock()
        self._left_at_most = _MANY
        self._saving = object()  # what bear those that a commit has not encoded yet,
        self._unsaved: list[list[Any]] = []  # which are among these, the first group last
        self._live = live
        self._codec = codec
        self._table = table
        self._database = database
        self._changes = changes
        self._hasher = hasher
        self._row = with_text_rows(self._any_row, table, hasher)

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
        try:
            instance._group.append(instance)
        except AttributeError:  # it has not been kept before
            self._place(instance)
            instance._group.append(instance)

    @property
    def touched(self) -> bool:
        """Whether any was, since the last commit began."""
        return any(self._touched.values())

    def begin(self) -> None:
        """A commit begins: what was touched until now belongs to it."""
        assert not self._unsaved, "a commit is under way"
        touched = self._touched
        for group in sorted(touched, reverse=True):
            if instances := touched[group][:]:
                self._unsaved.append(instances)
                del touched[group][: len(instances)]
        self._left = 0
        self._saving, self.mark = self.mark, object()

    def save(self, limit: int) -> int:
        """Work on about ``limit`` instances of the commit; returns 0 when all are encoded.

        Raises NotSaveable for one that cannot be, whenever it was to be encoded.
        """
        if self._changes.spoiled is not None:
            raise self._changes.spoiled
        encoded = 0
        while self._unsaved:
            if encoded >= limit:
                return 1
            encoded += self._encode(self._unsaved.pop())
        self._saving = object()
        return 0

    def _encode(self, instances: list[Any]) -> int:
        """Encode those of a group that are not encoded yet."""
        saving = self._saving
        mine = [instance for instance in instances if instance._mark is saving]
        if mine:
            mine.sort(key=_row_of)
            self._changes.add_all(list(map(_row_of, mine)), self._codec.encode_all(mine))
        return len(mine)

    def evict(self, key: Key | None) -> None:
        """The key's instance leaves the cache: keep its state. It is still in ``live``."""
        self.stored = True
        instance: Any = self._live.get(key)
        if instance._mark is self.mark:
            try:
                self._changes.put(self._row(key), self._codec.encode(instance))
            except NotSaveable as error:  # due to an event that may have been long ago
                self._changes.spoiled = error
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
        if self._left > self._left_at_most:
            with self._leaving:
                for instances in list(self._touched.values()):
                    before = instances[:]
                    still = [each for each in before if each._mark is self.mark]
                    instances[: len(before)] = still
            self._left = 0
            self._left_at_most = max(_MANY, sum(map(len, self._touched.values())))

    def _commit(self, instance: Any) -> None:
        """Encode an instance of the commit under way now, before it is touched again."""
        try:
            self._changes.add(self._row(instance.key), self._codec.encode(instance))
        except NotSaveable as error:
            self._changes.spoiled = error

    def _place(self, instance: Any) -> None:
        """Have an instance know where it is saved, and where it is noted when it is touched."""
        row = instance._row = self._row(instance.key)
        group = row[:2]
        instance._group = self._touched.setdefault(group, [])

    def _any_row(self, key: Key | None) -> bytes:
        if key is None:
            return prefix(TASK_GROUP, self._table)
        return prefix(self._hasher(key) % KEY_GROUPS, self._table) + key_encoding.encode(key)
