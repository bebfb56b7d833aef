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
        self._new: list[Any] = []  # made since the last commit began, without a row
        self._arriving: list[Any] = []  # those of the commit that are in no group yet
        self._unsaved: dict[bytes, list[Any]] = {}  # the others of the commit, by group
        self._order: list[bytes] | None = None  # the groups, the first one last
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
            instance._mark = self.mark
            self._new.append(instance)

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
        return bool(self._new) or any(self._touched.values())

    def begin_commit(self) -> None:
        assert not self._unsaved, "a commit is under way"
        assert not self._arriving, "a commit is under way"
        touched = self._touched
        for group in [*touched]:
            listed = touched.pop(group)
            if instances := listed[:]:
                self._unsaved[group] = instances
                del listed[: len(instances)]
        self._arriving = self._new[:]
        del self._new[: len(self._arriving)]
        self._left = 0
        self._saving, self.mark = self.mark, object()

    def save(self, limit: int) -> int:
        """Encode about ``limit`` instances of the commit; returns 0 once all are encoded.

        Raises NotSaveable if an instance cannot be encoded, even if it was to be encoded earlier.
        """
        if self._changes.spoiled is not None:
            raise self._changes.spoiled
        saving = self._saving
        if self._arriving:
            for each in self._arriving[-limit:]:
                if each._mark is saving:
                    self._unsaved.setdefault(self._assign(each).row, []).append(each)
            del self._arriving[-limit:]
            return 1
        if self._order is None:
            self._order = sorted(self._unsaved, reverse=True)
        some: list[Any] = []
        while self._order and len(some) < limit:
            some += self._unsaved.pop(self._order.pop())
        mine = [instance for instance in some if instance._mark is saving]
        if mine:
            mine.sort(key=_row_of)
            rows, values = list(map(_row_of, mine)), self._codec.encode_all(mine)
            taken = [instance._mark is saving for instance in mine]
            if not all(taken):  # a thread has touched some meanwhile, and encoded them before
                rows, values = list(compress(rows, taken)), list(compress(values, taken))
            self._changes.add_all(rows, values)
        if self._order:
            return 1
        self._saving, self._order = object(), None
        return 0

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
        is_new = instance._mark is self.mark and not hasattr(instance, "_row")
        self._untouch(instance)
        if not is_new:
            self._changes.put(self._row_of(instance), None)

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
                for instances in [self._new, *self._touched.values()]:
                    before = instances[:]
                    still = [each for each in before if each._mark is self.mark]
                    instances[: len(before)] = still
            self._left = 0
            left = sum(map(len, self._touched.values())) + len(self._new)
            self._left_at_most = max(_MANY, left)

    def _commit(self, instance: Any) -> None:
        """Encode an instance for the commit under way, before it is touched again."""
        try:
            self._changes.add(self._row_of(instance), self._codec.encode(instance))
        except NotSaveable as error:
            self._changes.spoil(error)

    def _row_of(self, instance: Any) -> bytes:
        return getattr(instance, "_row", None) or self._row_at(instance)

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


class Gathering(Protocol):
    """Instances that are made, or touched, when a commit begins."""

    @property
    def has_news(self) -> bool:
        """True if any would be touched now."""
        ...

    def gather(self) -> None:
        """Touch those for which there is anything new."""
        ...


class SavedWindowInstances(SavedInstances):
    """The saved instances of a prototype with windows; ``held_back`` are those that an order by
    time makes."""

    held_back: Gathering | None = None

    def __init__(
        self, table: int, codec: Codec, database: Database, changes: Changes, hasher: Hasher
    ) -> None:
        super().__init__(table, {}, codec, database, changes, hasher, stored=False)

    @property
    def touched(self) -> bool:
        return super().touched or (self.held_back is not None and self.held_back.has_news)

    def begin_commit(self) -> None:
        if self.held_back is not None:
            self.held_back.gather()
        super().begin_commit()

    def all_rows(self) -> Iterator[tuple[float, Any, bytes]]:
        for row, data in self._database.table(self._table):
            yield *place_of(row), data

    def _leaves(self, instance: Any) -> None:
        """As for any instance; one whose window ends was touched right before."""
        touched = getattr(instance, "_group", self._new)
        if touched and touched[-1] is instance:
            touched.pop()
        else:
            super()._leaves(instance)

    def moved(self, instance: Any) -> None:
        """Save an instance, which was touched, under the new start of its window."""
        if hasattr(instance, "_row"):
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
        assert not self._unsaved, "a commit is under way"
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
