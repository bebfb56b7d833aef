"""Key-value stores of a task.

Rules
- A task reads its own writes at once. They become durable with its next commit: a crash restores
  the last commit, with the positions of the inputs that belong to it.
- A key is a ``str``, an ``int``, ``bytes``, or a tuple of those, of the declared type and parts.
  Rows with the same first part of a tuple key are stored together, in order:
  ``range(("joe", 1), ("joe", 9))`` reads only those.
- ``tuple[str, int]`` allows two parts of these types and ``tuple[str, ...]`` any number. ``tuple``,
  or one with an unpacked part such as ``tuple[str, *tuple[int, ...]]``, allows any parts. A part
  has one of the types of keys; if the declaration names none of them, any is allowed. The bound of
  a range may be the beginning of a key.
- A value is anything of the declared type that msgspec can encode and decode; ``put`` refuses
  anything else. None is not a value: delete the key instead.
- A store is safe to use from all threads in which the task's own methods run.
- With a time to live, a value expires that long after it was put, whether or not it was read.
- Each row has its own time of expiry. So a store may be given a time to live later: old rows get
  theirs as the store is swept. If the time to live is removed, rows that have expired by then stay
  expired, and all others stay.
"""

from __future__ import annotations

import heapq
import struct
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, Unpack, get_args, get_origin

import msgspec

from s4node import clocks
from s4node.errors import StateError
from s4node.events.keepable import saver_of
from s4node.events.keys import KEY_GROUPS, Hasher, Key
from s4node.state import key_encoding
from s4node.state.database import Database
from s4node.state.rows import PREFIX_BYTES, Changes, NoMoreChanges, merged, prefix, with_text_rows
from s4node.store_spec import StoreSpec

K = TypeVar("K", bound=Key)
V = TypeVar("V")

_EXPIRY = struct.Struct(">Q")
_NO_EXPIRY = 1 << 56  # larger than any time: the first byte of a row without expiry is never 0
_LONGEST = 1e12  # the longest time to live in seconds, which keeps times of expiry below that
_PLAIN = (str, int, float, bool, bytes)
_MISSING = object()


def in_time(data: bytes, now: float) -> bytes | memoryview | None:
    """The value in a row; None if it has expired at ``now`` (Unix time). It is ``data`` itself if
    the row does not expire, and else follows the time of expiry."""
    if len(data) <= _EXPIRY.size:
        return data
    ends: int = _EXPIRY.unpack_from(data)[0]
    if ends >= _NO_EXPIRY:
        return data
    return None if ends <= now * 1000 else memoryview(data)[_EXPIRY.size :]


class KeyValueStore(Generic[K, V]):
    """One store of one task. ``groups`` are the key groups of the task.

    ``ended`` is when the store's time to live was removed (Unix time), if it ever had one.
    """

    def __init__(
        self,
        spec: StoreSpec[K, V],
        table: int,
        rows: Database,
        changes: Changes,
        hasher: Hasher,
        groups: range = range(KEY_GROUPS),
        now: Callable[[], float] | None = None,
        ended: float | None = None,
    ) -> None:
        self.spec = spec
        self._table = table
        self._rows = rows
        self._changes = changes
        self._hasher = hasher
        self._groups = groups
        self._now = now = now or clocks.wall
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[Any], V] = msgspec.msgpack.Decoder(spec.value).decode
        self._saver = saver_of(spec.value)
        # values of these types decode to themselves; others are decoded on trial by put
        self._plain = next((each for each in _PLAIN if each is spec.value), None)
        self._type = spec.value.__name__ if isinstance(spec.value, type) else str(spec.value)
        self._ttl_ms = max(1, int(min(spec.ttl, _LONGEST) * 1000)) if spec.ttl else 0
        # gives the time at which a row has to end to have expired; None if rows never expire
        self._over: Callable[[], float] | None = None
        if spec.ttl:
            self._over = now
        elif ended is not None:
            self._over = lambda: ended
        self._key: type = get_origin(spec.key) or spec.key
        self._parts = parts_of(spec.key)
        decode_key = key_encoding.decode_tuple if self._key is tuple else key_encoding.decode
        self._key_of: Callable[[bytes], K] = decode_key  # type: ignore[assignment]
        self._row: Callable[[K], bytes] = self._any_row
        if self._key is str:
            self._row = with_text_rows(self._any_row, table, hasher)

    def invalidate(self) -> None:
        """Refuse later writes: another store replaces this one."""
        self._changes = NoMoreChanges()

    def get(self, key: K, default: V | None = None) -> V | None:
        """The value of the key, or ``default`` if it has none."""
        row = self._row(key)
        data: Any = self._changes.find(row, _MISSING)
        if data is _MISSING:
            data = self._rows.get(row)
        value = self._value(key, data)
        return default if value is None else value

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        row_of = self._row
        rows = {key: row_of(key) for key in keys}
        found = zip(rows, self._found(list(rows.values())), strict=True)
        there = [(key, data) for key, data in found if data is not None]
        if self._over is None:
            decode = self._decode
            with suppress(msgspec.MsgspecError):  # reported below, with the key
                return {key: decode(data) for key, data in there}
        values = ((key, self._value(key, data)) for key, data in there)
        return {key: value for key, value in values if value is not None}

    def _found(self, rows: list[bytes]) -> list[bytes | None]:
        """The contents of the rows, including changes."""
        changed = self._changes.among(rows)
        if not changed:
            return self._rows.get_many(rows)
        stored = iter(self._rows.get_many([row for row in rows if row not in changed]))
        return [changed[row] if row in changed else next(stored) for row in rows]

    def put(self, key: K, value: V) -> None:
        """Set the value of the key; raises StateError if the store cannot hold it."""
        self._changes.put(self._row(key), self._data(key, value))

    def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set several values: all of them, or none if the store cannot hold one."""
        pairs = items.items() if isinstance(items, Mapping) else items
        for row, data in [(self._row(key), self._data(key, value)) for key, value in pairs]:
            self._changes.put(row, data)

    def delete(self, key: K) -> None:
        """Delete the key; a key without a value is not an error."""
        self._changes.put(self._row(key), None)

    def delete_many(self, keys: Iterable[K]) -> None:
        for row in [self._row(key) for key in keys]:
            self._changes.put(row, None)

    def range(self, start: K, end: K) -> Iterator[tuple[K, V]]:
        """The keys from ``start`` to before ``end`` with their values, in the order of keys.

        Values put meanwhile may or may not be seen. Tuples with the same first part are read in one
        piece; any other range looks into all key groups of the task.
        """
        first, last = self._checked(start, bound=True), self._checked(end, bound=True)
        if isinstance(start, tuple) and isinstance(end, tuple) and start[0] == end[0]:
            runs = [self._run(self._group(start), first, last)]
        else:
            runs = [self._run(group, first, last) for group in self._filled()]
        for _, key, value in heapq.merge(*runs, key=lambda item: item[0]):
            yield key, value

    def all(self) -> Iterator[tuple[K, V]]:
        """All keys with their values, by key group and in order within each."""
        for group in self._filled():
            for _, key, value in self._run(group, b"", b"\xff"):
                yield key, value

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    @property
    def expires(self) -> bool:
        return self._over is not None

    def expire(self, limit: int, start: bytes = b"") -> bytes:
        """Delete the expired rows among the next ``limit``.

        Rows that were put before the store had a time to live start it now. Returns where to
        continue, or no bytes at the end.
        """
        assert self._over is not None, "rows have no end"
        over = self._over()
        end_now = _EXPIRY.pack(int(over * 1000) + self._ttl_ms)
        for group in self._filled():
            begin, end = prefix(group, self._table), prefix(group, self._table + 1)
            if end <= start:
                continue
            for row, data in self._rows.scan(max(begin, start), end):
                value = in_time(data, over)
                endless = value is data and self._ttl_ms
                if (value is None or endless) and self._changes.find(row, _MISSING) is _MISSING:
                    self._changes.fill(row, end_now + data if endless else None)
                limit -= 1
                if limit <= 0:
                    return row + b"\x00"
        return b""

    # -- inside ------------------------------------------------------------------------------

    def _checked(self, key: K, *, bound: bool = False) -> bytes:
        if type(key) is not self._key and not isinstance(key, self._key):
            raise self._no_key(key, f"is a {type(key).__name__}")
        if self._parts is not None and isinstance(key, tuple):
            wrong = self._parts.wrong(key, beginning=bound)
            if wrong:
                raise self._no_key(key, wrong)
        return key_encoding.encode(key)

    def _no_key(self, key: K, wrong: str) -> StateError:
        keys = self._key.__name__ if self._parts is None else self.spec.key
        return StateError(f"store {self.spec.name!r}: {key!r} {wrong}; its keys are {keys}")

    def _group(self, key: Key) -> int:
        return self._hasher(key[0] if isinstance(key, tuple) else key) % KEY_GROUPS

    def _any_row(self, key: K) -> bytes:
        encoded = self._checked(key)
        return prefix(self._group(key), self._table) + encoded

    def _data(self, key: K, value: V) -> bytes:
        if value is None:
            raise StateError(f"store {self.spec.name!r}: None put for {key!r}; use delete()")
        try:
            data = self._encode(value if self._saver is None else self._saver(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StateError(
                f"store {self.spec.name!r}: the value of {key!r} cannot be stored: {error}"
            ) from error
        if type(value) is not self._plain:
            try:
                self._decode(data)
            except msgspec.MsgspecError as error:
                raise StateError(
                    f"store {self.spec.name!r}: the value of {key!r} is not of type {self._type}: "
                    f"{error}"
                ) from error
        if self._ttl_ms:
            return _EXPIRY.pack(int(self._now() * 1000) + self._ttl_ms) + data
        return data

    def _value(self, key: K, data: Any) -> V | None:
        if data is None:
            return None
        if self._over is not None and (data := in_time(data, self._over())) is None:
            return None
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise StateError(
                f"store {self.spec.name!r} holds a value for {key!r} that is not of type "
                f"{self._type}: {error}; fields may only be appended, with defaults"
            ) from error

    def _run(self, group: int, first: bytes, last: bytes) -> Iterator[tuple[bytes, K, V]]:
        begin = prefix(group, self._table)
        start, end = begin + first, begin + last
        changed = self._changes.between(start, end)
        for row, data in merged(self._rows.scan(start, end), changed):
            encoded = row[PREFIX_BYTES:]
            key = self._key_of(encoded)
            value = self._value(key, data)
            if value is not None:
                yield encoded, key, value

    def _filled(self) -> Iterator[int]:
        """The key groups that may hold rows of the store, in order."""
        table = self._table.to_bytes(2, "big")
        filled = {
            int.from_bytes(row[:2], "big")
            for row, _ in self._changes.between(b"", b"\xff\xff")
            if row[2:PREFIX_BYTES] == table
        }
        group, stop = self._groups.start, self._groups.stop
        while group < stop:
            next_row = self._rows.chunk(prefix(group, self._table), prefix(stop, 0), 1)
            if not next_row:
                break
            row = next_row[0][0]
            found = int.from_bytes(row[:2], "big")
            if row[2:PREFIX_BYTES] == table:
                filled.add(found)
            ours_follows = found > group and row[2:PREFIX_BYTES] < table
            group = found if ours_follows else found + 1
        return iter(sorted(filled))


_TYPES = (str, int, bytes)


class KeyParts:
    """The parts that the ``declared`` type allows, such as ``tuple[str, int]``."""

    def __init__(self, declared: Any) -> None:
        kinds = get_args(declared)
        self._any_number = kinds[1:] == (...,)
        self._allowed = [_types_of(kind) for kind in kinds if kind is not ...]
        self._exactly: tuple[type, ...] = ()  # if there is one type for each part
        if not self._any_number and all(len(each) == 1 for each in self._allowed):
            self._exactly = tuple(kind for each in self._allowed for kind in each)

    def wrong(self, key: tuple[Any, ...], *, beginning: bool = False) -> str:
        """The mistake in a key, or in the ``beginning`` of one; empty if there is none."""
        found = tuple(map(type, key))
        if found == self._exactly:
            return ""
        allowed = self._allowed * len(key) if self._any_number else self._allowed
        if len(key) > len(allowed) or (len(key) < len(allowed) and not beginning):
            return f"has {len(key)} part{'' if len(key) == 1 else 's'}"
        for place, (kind, kinds) in enumerate(zip(found, allowed, strict=False), 1):
            if kind not in kinds:
                return f"has part {place} of type {kind.__name__}"
        return ""


def parts_of(declared: Any) -> KeyParts | None:
    """The parts of a store's keys; None if any are allowed, or if keys are not tuples."""
    kinds = get_args(declared)
    if get_origin(declared) is not tuple or not kinds or any(map(_is_unpacked, kinds)):
        return None
    return KeyParts(declared)


def _is_unpacked(kind: Any) -> bool:
    """Return True for a type such as ``*tuple[int, ...]``, which stands for any number of parts."""
    return get_origin(kind) is Unpack or getattr(kind, "__unpacked__", False) is True


def _types_of(kind: Any) -> frozenset[type]:
    return _named(kind) or frozenset(_TYPES)


def _named(kind: Any) -> frozenset[type]:
    if hasattr(kind, "__supertype__"):  # a NewType
        return _named(kind.__supertype__)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        named = [_named(each) for each in inner if each is not types.NoneType]
        return frozenset().union(*named) if all(named) else frozenset()
    if origin is Annotated:
        return _named(inner[0])
    if origin is Literal:
        return frozenset(type(each) for each in inner)
    return frozenset(each for each in _TYPES if isinstance(kind, type) and issubclass(kind, each))
