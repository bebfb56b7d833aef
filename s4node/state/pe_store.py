"""The saved PE instances of one prototype in one task.

Rules
- An instance has the ``mark`` of the interval between commits in which it was last touched. The
  dispatch compares marks before each event; touching an instance again costs nothing else.
- Touched instances are listed by key group. A commit takes the lists and encodes the instances in
  slices between batches, group by group and in order: sorted rows are written ten times as fast. An
  instance that is about to be touched again is encoded first. A commit looks only at groups of
  touched instances: there are thousands of others.
- An instance that leaves the cache is encoded at once, and loaded again when its key comes back. If
  it cannot be encoded, the changes are spoiled, and the next commit, at once, raises the reason.
- Handlers in threads touch instances at the same time. They only append to lists; here only the
  part of a list that was looked at is changed.
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
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, float, int | bool]).decode

_START = struct.Struct(">d")
_KEY_AT = PREFIX_BYTES + _START.size


class Group(list[Any]):
    """The touched instances of a key group, each once; its ``row`` is how their rows begin."""

    __slots__ = ("row",)

    def __init__(self, row: bytes) -> None:
        super().__init__()
        self.row = row


class Codec(Protocol):
    def encode(self, instance: Any, /) -> bytes: ...

    def encode_all(self, instances: list[Any], /) -> list[bytes]: ...

    def ended(self, key: Any, data: bytes, /) -> bytes | None:
        """A row of a PE whose state ends: None if it has ended, otherwise as it is to be."""
        ...


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
        self._groups: dict[bytes, Group] = {}
        self._touched: dict[bytes, Group] = {}  # those of instances touched since the last commit
        self._left = 0  # how many of them have left memory since
        self._leaving = Lock()
        self._left_at_most = _MANY
        self._saving = object()  # the mark of instances that the commit has not encoded yet
        self._unsaved: list[list[Any]] = []  # the lists that have these, the first group last
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

    def touch_one(self, instance: Any) -> None:
        """Mark an instance that does not have the current ``mark``, before it changes."""
        if instance._mark is self._saving:
            self._commit(instance)
        instance._mark = self.mark
        try:
            group = instance._group
        except AttributeError:  # it has never been saved
            group = self._assign(instance)
        group.append(instance)
        self._touched[group.row] = group  # after the other: a commit may begin in between

    @property
    def touched(self) -> bool:
        """Return True if any instance was touched since the last commit began."""
        return any(self._touched.values())

    def begin_commit(self) -> None:
        assert not self._unsaved, "a commit is under way"
        touched = self._touched
        for group in sorted(touched, reverse=True):
            listed = touched.pop(group)
            if instances := listed[:]:
                self._unsaved.append(instances)
                del listed[: len(instances)]
        self._left = 0
        self._saving, self.mark = self.mark, object()

    def save(self, limit: int) -> int:
        """Encode about ``limit`` instances of the commit; returns 0 once all are encoded.

        Raises NotSaveable if an instance cannot be encoded, even if it was to be encoded earlier.
        """
        if self._changes.spoiled is not None:
            raise self._changes.spoiled
        some: list[Any] = []
        while self._unsaved and len(some) < limit:
            some += self._unsaved.pop()
        saving = self._saving
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
        self._saving = object()
        return 0

    def evict(self, key: Key | None) -> None:
        """Save the instance of a key that leaves the cache. It is still in ``live``."""
        self.stored = True
        instance: Any = self._live.get(key)
        if instance._mark is self.mark:
            try:
                self._changes.put(self._row(key), self._codec.encode(instance))
            except NotSaveable as error:  # the event that caused it may be long past
                self._changes.spoil(error)
            self._leaves(instance)
        elif self._changes.leaving:  # `find` does not see what a commit has encoded until written
            self._commit(instance)
            instance._mark = None

    def remove(self, key: Key | None) -> None:
        instance: Any = self._live.get(key)
        self._untouch(instance)
        self._changes.put(getattr(instance, "_row", None) or self._row(key), None)

    def _untouch(self, instance: Any) -> None:
        """Stop saving an instance. The commit in progress still writes what it holds."""
        if instance._mark is self._saving:
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
        """Count a touched instance that leaves memory; when many have left, prune the lists."""
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
        """Encode an instance for the commit under way, before it is touched again."""
        try:
            self._changes.add(self._row(instance.key), self._codec.encode(instance))
        except NotSaveable as error:
            self._changes.spoil(error)

    def _assign(self, instance: Any) -> Group:
        """Note in an instance where it is saved, and in which list it is when it is touched."""
        row = instance._row = self._row_at(instance)
        group = self._groups.get(row[:2])
        if group is None:
            group = self._groups.setdefault(row[:2], Group(row[:2]))
        instance._group = group
        return group

    def _row_at(self, instance: Any) -> bytes:
        return self._row(instance.key)


class Changing(Protocol):
    """Instances that are touched when a commit begins."""

    @property
    def changes(self) -> bool:
        """True if any would be touched now."""
        ...

    def touch_changed(self) -> None:
        """Touch those that have changed since the last commit."""
        ...


class SavedWindowInstances(SavedInstances):
    """The saved instances of a prototype with windows; ``held_back`` are those that an order by
    time makes."""

    held_back: Changing | None = None

    def __init__(
        self, table: int, codec: Codec, database: Database, changes: Changes, hasher: Hasher
    ) -> None:
        super().__init__(table, {}, codec, database, changes, hasher, stored=False)

    @property
    def touched(self) -> bool:
        return super().touched or (self.held_back is not None and self.held_back.changes)

    def begin_commit(self) -> None:
        if self.held_back is not None:
            self.held_back.touch_changed()
        super().begin_commit()

    def all_rows(self) -> Iterator[tuple[float, Any, bytes]]:
        for row, data in self._database.table(self._table):
            yield *place_of(row), data

    def _leaves(self, instance: Any) -> None:
        """As for any instance; one whose window ends was touched right before."""
        touched = instance._group
        if touched and touched[-1] is instance:
            touched.pop()
        else:
            super()._leaves(instance)

    def erase(self, instance: Any) -> None:
        self._untouch(instance)
        self._changes.put(getattr(instance, "_row", None) or self._row_at(instance), None)

    def moved(self, instance: Any) -> None:
        """Save an instance, which was touched, under the new start of its window."""
        self._changes.put(instance._row, None)
        instance._row = self._row_at(instance)

    def _commit(self, instance: Any) -> None:
        try:
            self._changes.add(instance._row, self._codec.encode(instance))
        except NotSaveable as error:
            self._changes.spoil(error)

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
    """The saved timers of one prototype in one task: a row for each key and name."""

    def __init__(self, table: int, database: Database, changes: Changes, hasher: Hasher) -> None:
        self._table = table
        self._database = database
        self._changes = changes
        self._key_row = key_rows(table, hasher)

    def timers(self) -> Iterator[tuple[Any, str, float, int]]:
        for row, data in self._database.table(self._table):
            size, name, time, by_wall = _decode(data)
            encoded = row[PREFIX_BYTES : PREFIX_BYTES + size]
            yield (key_encoding.decode(encoded) if size else None), name, time, by_wall

    def set_timer(self, key: Any, name: str, time: float, *, by_wall: int) -> None:
        row = self._key_row(key)
        data = _encode((len(row) - PREFIX_BYTES, name, time, by_wall))
        self._changes.put(row + name.encode(), data)

    def forget_timer(self, key: Any, name: str) -> None:
        """Delete a timer with the next commit."""
        self._changes.put(self._key_row(key) + name.encode(), None)
