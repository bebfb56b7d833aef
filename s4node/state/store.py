"""Key-value stores of a task.

Rules
- What a task puts is there at once for itself, and durable with its next commit: a crash brings
  the last commit back, with the positions of the inputs that belong to it.
- A key is a ``str``, an ``int``, ``bytes``, or a tuple of those. Rows of a tuple key lie together
  by its first part, in order: ``range(("joe", 1), ("joe", 9))`` reads just those.
- Values are what msgspec encodes, of the declared type. None is no value: delete the key instead.
- Safe from all threads in which the task's own methods run.
- With a time to live, what was put that long ago is gone, whether or not it was read since.
"""

from __future__ import annotations

import heapq
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, get_origin

import msgspec

from s4node.errors import StateError
from s4node.keys import KEY_GROUPS, Hasher, Key
from s4node.state import ordered
from s4node.state.rows import PREFIX_BYTES, Changes, merged, prefix, with_text_rows
from s4node.stores import StoreSpec

K = TypeVar("K", bound=Key)
V = TypeVar("V")

_EXPIRY = struct.Struct(">Q")
_MISSING = object()


def in_time(data: bytes, now: float) -> memoryview | None:
    """The value in a row of a store with a time to live, which has the time at which it ends
    before it; None where that is over at ``now`` (Unix time)."""
    if _EXPIRY.unpack_from(data)[0] <= now * 1000:
        return None
    return memoryview(data)[_EXPIRY.size :]


class Rows(Protocol):
    """What a store reads from: the rows of whole commits."""

    def get(self, row: bytes, /) -> bytes | None:
        """One row's value."""
        ...

    def get_many(self, rows: list[bytes], /) -> list[bytes | None]:
        """Several rows' values."""
        ...

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Rows in order."""
        ...

    def chunk(self, start: bytes, end: bytes, rows: int, /) -> list[tuple[bytes, bytes]]:
        """The first so many of them."""
        ...


class KeyValueStore(Generic[K, V]):
    """One store of one task. ``groups`` are the key groups of the task."""

    def __init__(
        self,
        spec: StoreSpec[K, V],
        table: int,
        rows: Rows,
        changes: Changes,
        hasher: Hasher,
        groups: range = range(KEY_GROUPS),
        now: Callable[[], float] = time.time,
    ) -> None:
        self.spec = spec
        self._table = table
        self._rows = rows
        self._changes = changes
        self._hasher = hasher
        self._groups = groups
        self._now = now
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[Any], V] = msgspec.msgpack.Decoder(spec.value).decode
        self._ttl_ms = int(spec.ttl * 1000)
        self._key: type = get_origin(spec.key) or spec.key
        self._row: Callable[[K], bytes] = self._any_row
        if self._key is str:
            self._row = with_text_rows(self._any_row, table, hasher)

    def get(self, key: K, default: V | None = None) -> V | None:
        """The key's value, or ``default`` where it has none."""
        row = self._row(key)
        data: Any = self._changes.find(row, _MISSING)
        if data is _MISSING:
            data = self._rows.get(row)
        if data is None:
            return default
        value = self._value(data)
        return default if value is None else value

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that have one, in one reading."""
        row_of = self._row
        value_of = self._value if self._ttl_ms else self._decode
        rows = {key: row_of(key) for key in keys}
        found = self._found(list(rows.values()))
        try:
            return {
                key: value
                for key, data in zip(rows, found, strict=True)
                if data is not None and (value := value_of(data)) is not None
            }
        except msgspec.MsgspecError as error:
            raise self._unreadable(error) from error

    def _found(self, rows: list[bytes]) -> list[bytes | None]:
        """What the rows hold, changes included."""
        changed = self._changes.among(rows)
        if not changed:
            return self._rows.get_many(rows)
        stored = iter(self._rows.get_many([row for row in rows if row not in changed]))
        return [changed[row] if row in changed else next(stored) for row in rows]

    def put(self, key: K, value: V) -> None:
        """Set the key's value; raises StateError for what the store cannot hold."""
        self._changes.put(self._row(key), self._data(key, value))

    def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set several values: all of them, or none if one cannot be held."""
        pairs = items.items() if isinstance(items, Mapping) else items
        for row, data in [(self._row(key), self._data(key, value)) for key, value in pairs]:
            self._changes.put(row, data)

    def delete(self, key: K) -> None:
        """Forget the key; no error if it has no value."""
        self._changes.put(self._row(key), None)

    def delete_many(self, keys: Iterable[K]) -> None:
        """Forget several keys."""
        for row in [self._row(key) for key in keys]:
            self._changes.put(row, None)

    def range(self, start: K, end: K) -> Iterator[tuple[K, V]]:
        """The keys from ``start`` to before ``end`` with their values, in the keys' order.

        What is put meanwhile may or may not be seen. Tuples with the same first part are read in
        one piece; any other range looks into all key groups of the task.
        """
        first, last = self._checked(start), self._checked(end)
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

    def expire(self, limit: int, start: bytes = b"") -> bytes:
        """Delete what is over its time among the next ``limit`` rows.

        Returns where to go on, or no bytes when all have been looked at.
        """
        now = int(self._now() * 1000)
        for group in self._filled():
            begin, end = prefix(group, self._table), prefix(group, self._table + 1)
            if end <= start:
                continue
            for row, data in self._rows.scan(max(begin, start), end):
                if _EXPIRY.unpack_from(data)[0] <= now and (
                    self._changes.find(row, _MISSING) is _MISSING
                ):
                    self._changes.drop(row)
                limit -= 1
                if limit <= 0:
                    return row + b"\x00"
        return b""

    # -- inside ------------------------------------------------------------------------------

    def _checked(self, key: K) -> bytes:
        if type(key) is not self._key and not isinstance(key, self._key):
            raise StateError(
                f"store {self.spec.name!r}: {key!r} is a {type(key).__name__}; its keys are "
                f"{self._key.__name__}"
            )
        return ordered.encode(key)

    def _group(self, key: Key) -> int:
        return self._hasher(key[0] if isinstance(key, tuple) else key) % KEY_GROUPS

    def _any_row(self, key: K) -> bytes:
        encoded = self._checked(key)
        return prefix(self._group(key), self._table) + encoded

    def _data(self, key: K, value: V) -> bytes:
        if value is None:
            raise StateError(f"store {self.spec.name!r}: None put for {key!r}; use delete()")
        try:
            data = self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StateError(
                f"store {self.spec.name!r}: the value of {key!r} cannot be kept: {error}"
            ) from error
        if self._ttl_ms:
            return _EXPIRY.pack(int(self._now() * 1000) + self._ttl_ms) + data
        return data

    def _value(self, data: Any) -> V | None:
        if data is None:
            return None
        if self._ttl_ms and (data := in_time(data, self._now())) is None:
            return None
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StateError:
        return StateError(
            f"store {self.spec.name!r} holds a value that is no {self.spec.value}: {error}; "
            f"fields may only be appended, with defaults"
        )

    def _run(self, group: int, first: bytes, last: bytes) -> Iterator[tuple[bytes, K, V]]:
        begin = prefix(group, self._table)
        start, end = begin + first, begin + last
        changed = self._changes.between(start, end)
        for row, data in merged(self._rows.scan(start, end), changed):
            value = self._value(data)
            if value is not None:
                encoded = row[PREFIX_BYTES:]
                yield encoded, ordered.decode(encoded), value  # type: ignore[misc]

    def _filled(self) -> Iterator[int]:
        """The groups that may hold rows of the store, in order."""
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
