"""The saved PE instances of one prototype in one task.

Rules
- An instance has the ``mark`` of the interval between commits in which it was last touched. The
  dispatch compares marks before each event; touching an instance again costs nothing else.
- Touched instances are in one list, to which the dispatch appends without a call. A commit takes
  the list, sorts the instances by key group, and encodes them group by group and in order: sorted
  rows are written ten times as fast. It does both in slices between batches. An instance that is
  about to be touched again is encoded first.
- An instance that was made since the last commit has no row: its ``_row`` is empty until a commit
  comes to it. If it is gone before that, there is nothing to delete.
- An instance that leaves the cache is encoded at once, and loaded again when its key comes back. If
  it cannot be encoded, the changes are spoiled, and the next commit, at once, raises the reason.
- Handlers in threads touch instances at the same time. They only append to the list; here only the
  part of it that was looked at is changed. A new list is there before its mark is.
- The instance of a singleton has no key; its row is in the task's own group.
- A row of an instance with a window has the start of the window, eight bytes, before the key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress
from operator import attrgetter
from threading import Lock
from typing import Any, Protocol

import msgspec

from s4node.errors import NotSaveable
from s4node.events.keys import KEY_GROUPS, Hasher, Key
from s4node.state import key_encoding
from s4node.state.database import Database
from s4node.state.rows import PREFIX_BYTES, TASK_GROUP, Changes, prefix, with_text_rows

_MISSING = object()
_row_of = attrgetter("_row")
_MANY = 4096
_SORTED_AT_ONCE = 512
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, float, int | bool]).decode

_START = struct.Struct(">d")
_KEY_AT = PREFIX_BYTES + _START.size


class Codec(Protocol):
    def encode(self, instance: Any, /) -> bytes: ...

    def encode_all(self, instances: list[Any], /) -> list[bytes]: ...

    def ended(self, key: Any, data: bytes, /) -> bytes | None:
        """A row of a PE whose state ends: None if it has ended, otherwise as it is to be."""


class SavedInstances:
    """The saved instances of a prototype; ``live`` are the instances in memory, by key.

    ``stored`` is False while there are surely none that are only in the database. ``ends`` says
    that they end some time after their last event.
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
        self.ends = False
        self.mark = object()
        self.saving = object()  # the mark of instances that the commit has not encoded yet
        self.touched: list[Any] = []  # since the last commit began
        self._left = 0  # how many of them have left memory since
        self._leaving = Lock()
        self._left_at_most = _MANY
        self._unsorted: list[Any] = []  # those of the commit, until they are in their group
        self._groups: dict[bytes, tuple[bytes, list[Any]]] = {}  # by how their rows begin
        self._unsaved: list[tuple[bytes, list[Any]]] = []  # those with any; ``_ordered``: from last
        self._ordered = False
        self._live = live
        self._codec = codec
        self._table = table
        self._database = database
        self._changes = changes
        self._row = key_rows(table, hasher)

    def find(self, keys: Iterable[Key | None]) -> dict[Key | None, bytes]:
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
        """Mark those of these instances that are in memory, before they change."""
        for key in keys:
            instance: Any = self._live.get(key)
            if instance is not None and instance._mark is not self.mark:
                self.touch_one(instance)

    def touch_new(self, instance: Any) -> None:
        """Mark an instance that was made, and has no row; it gets one if it is still there then."""
        if self.ends:  # a row that has ended may be there
            self.touch_one(instance)
        else:
            instance._row = b""
            instance._mark = self.mark
            self.touched.append(instance)

    def touch_one(self, instance: Any) -> None:
        """Mark an instance that does not have the current ``mark``, before it changes."""
        if instance._mark is self.saving:
            self._commit(instance)
        instance._mark = self.mark
        self.touched.append(instance)

    @property
    def has_touched(self) -> bool:
        """Return True if any instance was touched since the last commit began."""
        return bool(self.touched)

    def begin_commit(self) -> None:
        assert not self._unsorted, "the last commit has not ended"
        assert not self._unsaved, "the last commit has not ended"
        with self._leaving:
            self._unsorted, self.touched = self.touched, []
            self.saving, self.mark = self.mark, object()
        self._left = 0

    def save(self, limit: int) -> int:
        """Encode about ``limit`` instances of the commit; returns 0 once all are encoded.

        Raises NotSaveable if an instance cannot be encoded, even if it was to be encoded earlier.
        """
        if self._changes.spoiled is not None:
            raise self._changes.spoiled
        saving = self.saving
        if self._unsorted:
            self._sort(saving)
        if self._unsorted:
            return 1
        if not self._ordered:
            self._unsaved.sort(reverse=True)
            self._ordered = True
        some: list[Any] = []
        while self._unsaved and len(some) < limit:
            _, group = self._unsaved.pop()
            some += group
            group.clear()
        mine = [instance for instance in some if instance._mark is saving]
        if mine:
            mine.sort(key=_row_of)
            rows, values = list(map(_row_of, mine)), self._codec.encode_all(mine)
            taken = [instance._mark is saving for instance in mine]
            if not all(taken):  # a thread has touched some meanwhile, and encoded them before
                rows, values = list(compress(rows, taken)), list(compress(values, taken))
            self._changes.add_all(rows, values)
        if self._unsaved:
            return 1
        self.saving, self._ordered = object(), False
        return 0

    def _sort(self, saving: object) -> None:
        """Put instances of the commit into their groups; new ones get their rows."""
        some = self._unsorted[-_SORTED_AT_ONCE:]
        for each in some:
            if each._mark is saving:
                try:
                    group = each._group
                except AttributeError:  # it has never been saved
                    row = each._row = self._row_at(each)
                    group = each._group = self._groups.setdefault(row[:2], (row[:2], []))
                if not group[1]:
                    self._unsaved.append(group)
                group[1].append(each)
        del self._unsorted[-len(some) :]

    def evict(self, key: Key | None) -> None:
        """Save the instance of a key that leaves the cache. It is still in ``live``."""
        self.stored = True
        instance: Any = self._live.get(key)
        if instance._mark is self.mark:
            try:
                self._changes.put(self._row_of(instance), self._codec.encode(instance))
            except NotSaveable as error:  # the event that caused it may be long past
                self._changes.spoil(error)
            self._leaves(instance)
        elif self._changes.leaving:  # `find` does not see what a commit has encoded until written
            self._commit(instance)
            instance._mark = None

    def remove(self, key: Key | None) -> None:
        self.erase(self._live.get(key))

    def erase(self, instance: Any) -> None:
        """Delete the saved state of an instance that is gone."""
        is_new = instance._mark is self.mark and getattr(instance, "_row", None) == b""
        self._untouch(instance)
        if not is_new:
            self._changes.put(self._row_of(instance), None)

    def _untouch(self, instance: Any) -> None:
        """Stop saving an instance. The commit in progress still writes what it holds."""
        if instance._mark is self.saving:
            self._commit(instance)
        if instance._mark is self.mark:
            self._leaves(instance)
        instance._mark = None

    def has_rows(self) -> bool:
        return next(iter(self._database.table(self._table)), None) is not None

    def expire(self, limit: int, start: bytes, groups: range) -> bytes:
        """Delete the rows that have ended among the next ``limit``, unless they are in memory.

        Returns where to continue, or no bytes at the end.
        """
        for group in groups:
            begin, end = prefix(group, self._table), prefix(group, self._table + 1)
            if end <= start:
                continue
            for row, data in self._database.scan(max(begin, start), end):
                key = key_encoding.decode(row[PREFIX_BYTES:])
                if key not in self._live and self._changes.find(row, _MISSING) is _MISSING:
                    kept = self._codec.ended(key, data)
                    if kept is not data:
                        self._changes.fill(row, kept)
                limit -= 1
                if limit <= 0:
                    return row + b"\x00"
            limit -= 1  # looking takes time, too
            if limit <= 0:
                return end
        return b""

    def _leaves(self, instance: Any) -> None:
        """Count a touched instance that leaves memory; when many have left, prune the list."""
        instance._mark = None
        self._left += 1
        if self._left > self._left_at_most:
            with self._leaving:
                touched = self.touched
                before = touched[:]
                touched[: len(before)] = [each for each in before if each._mark is not None]
            self._left = 0
            self._left_at_most = max(_MANY, len(self.touched))

    def _commit(self, instance: Any) -> None:
        """Encode an instance for the commit under way, before it is touched again."""
        instance._row = self._row_of(instance)
        try:
            self._changes.add(instance._row, self._codec.encode(instance))
        except NotSaveable as error:
            self._changes.spoil(error)

    def _row_of(self, instance: Any) -> bytes:
        return getattr(instance, "_row", None) or self._row_at(instance)

    def _row_at(self, instance: Any) -> bytes:
        return self._row(instance.key)


class Gathering(Protocol):
    """Instances that are made, or touched, when a commit begins."""

    @property
    def has_news(self) -> bool:
        """True if any would be touched now."""

    def gather(self) -> None:
        """Touch those for which there is anything new."""


class SavedWindowInstances(SavedInstances):
    """The saved instances of a prototype with windows; ``held_back`` are those that an order by
    time makes."""

    held_back: Gathering | None = None

    def __init__(
        self, table: int, codec: Codec, database: Database, changes: Changes, hasher: Hasher
    ) -> None:
        super().__init__(table, {}, codec, database, changes, hasher, stored=False)

    @property
    def has_touched(self) -> bool:
        return super().has_touched or (self.held_back is not None and self.held_back.has_news)

    def begin_commit(self) -> None:
        if self.held_back is not None:
            self.held_back.gather()
        super().begin_commit()

    def all_rows(self) -> Iterator[tuple[bytes, float, Any, bytes]]:
        for row, data in self._database.table(self._table):
            yield row, *place_of(row), data

    def _leaves(self, instance: Any) -> None:
        """As for any instance; one whose window ends was touched right before."""
        if self.touched and self.touched[-1] is instance:
            self.touched.pop()
        else:
            super()._leaves(instance)

    def moved(self, instance: Any) -> None:
        """Save an instance, which was touched, under the new start of its window."""
        if instance._row:
            self._changes.put(instance._row, None)
            instance._row = self._row_at(instance)

    def _row_at(self, instance: Any) -> bytes:
        row = self._row(instance.key)
        return row[:PREFIX_BYTES] + _START.pack(instance._span[0]) + row[PREFIX_BYTES:]


def key_rows(table: int, hasher: Hasher) -> Callable[[Key | None], bytes]:
    """The function that makes the row of a key in a table of PEs; a singleton has no key."""

    def any_row(key: Key | None) -> bytes:
        if key is None:
            return prefix(TASK_GROUP, table)
        return prefix(hasher(key) % KEY_GROUPS, table) + key_encoding.encode(key)

    return with_text_rows(any_row, table, hasher)


def place_of(row: bytes) -> tuple[float, Any]:
    """The start of the window and the key in the key of a row."""
    encoded = row[_KEY_AT:]
    start: float = _START.unpack(row[PREFIX_BYTES:_KEY_AT])[0]
    return start, (key_encoding.decode(encoded) if encoded else None)


class SavedTimers:
    """The saved timers of one prototype in one task: a row for each key and name.

    A commit makes the rows of what has changed; a timer that was set and has fired since the last
    one has none.
    """

    def __init__(self, table: int, database: Database, changes: Changes, hasher: Hasher) -> None:
        self._table = table
        self._database = database
        self._changes = changes
        self._key_row = key_rows(table, hasher)
        # the time, which clock, and True if there is no row; None for one that is deleted
        self._changed: dict[tuple[Any, str], tuple[float, int, bool] | None] = {}
        self._unsaved: dict[tuple[Any, str], tuple[float, int, bool] | None] = {}

    def timers(self) -> Iterator[tuple[Any, str, float, int]]:
        for row, data in self._database.table(self._table):
            size, name, time, by_wall = _decode(data)
            encoded = row[PREFIX_BYTES : PREFIX_BYTES + size]
            yield (key_encoding.decode(encoded) if size else None), name, time, by_wall

    def set_timer(
        self, key: Any, name: str, time: float, *, by_wall: int, known: bool = True
    ) -> None:
        """Save a timer with the next commit; not ``known``: none of that name is saved."""
        place = key, name
        before = self._changed.get(place, _MISSING)
        if before is _MISSING:
            self._changes.later += 1
        is_new = not known if before is _MISSING else before is not None and before[2]  # type: ignore[index]
        self._changed[place] = time, by_wall, is_new

    def forget_timer(self, key: Any, name: str) -> None:
        """Delete a timer with the next commit."""
        place = key, name
        before = self._changed.get(place)
        if before is not None and before[2]:
            del self._changed[place]
            self._changes.later -= 1
            return
        if place not in self._changed:
            self._changes.later += 1
        self._changed[place] = None

    def begin_commit(self) -> None:
        """Begin a commit of the timers that have changed until now."""
        assert not self._unsaved, "the last commit has not ended"
        self._unsaved, self._changed = self._changed, {}

    def save(self, limit: int) -> int:
        """Make about ``limit`` rows of the commit; returns 0 once all are made."""
        while self._unsaved and limit:
            (key, name), timer = self._unsaved.popitem()
            row, data = self._key_row(key), None
            if timer is not None:
                data = _encode((len(row) - PREFIX_BYTES, name, timer[0], timer[1]))
            self._changes.add(row + name.encode(), data)
            limit -= 1
        return bool(self._unsaved)
