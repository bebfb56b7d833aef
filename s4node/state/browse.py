"""Read-only access to a task's state: tables by name, rows as plain values.

A store has what the task itself would find in it: expired values are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from s4node import clocks
from s4node.events.keys import KEY_GROUPS, Hasher, Key
from s4node.state import key_encoding
from s4node.state.key_value_store import in_time
from s4node.state.pe_store import place_of
from s4node.state.rows import PREFIX_BYTES, TASK_GROUP, prefix
from s4node.state.task_state import TaskState

_decode = msgspec.msgpack.Decoder().decode


class Committed:
    """The rows of a snapshot that is ``held``; they are read as those of a Database."""

    def __init__(self, held: list[Any]) -> None:
        self._held = held

    def get(self, row: bytes) -> bytes | None:
        for found, value in self._from(row):
            return value if found == row else None
        return None

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row, value in self._from(start):
            if row >= end:
                return
            yield row, value

    def table(self, number: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table after one of them, by key group."""
        table = number.to_bytes(2, "big")
        start = after + b"\x00" if after else prefix(0, number)
        while start:
            last, start = start, b""
            for row, value in self._from(last):
                if row[2:PREFIX_BYTES] == table:
                    yield row, value
                    continue
                group = int.from_bytes(row[:2], "big") + (row[2:PREFIX_BYTES] > table)
                start = prefix(group, number) if group <= TASK_GROUP else b""
                break

    def _from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        it = self._held[0].iter()
        try:
            it.seek(start)
            while it.valid():
                yield it.key(), it.value()
                it.next()
            it.status()
        finally:
            del it  # which keeps the database open


class StateReader:
    """The tables of a task: the names of its ``stores``, and those of its PEs in ``elements``.

    ``windowed`` are the PEs with windows. ``now`` gives Unix time in seconds.
    """

    def __init__(self, state: TaskState, now: Callable[[], float] | None = None) -> None:
        self._state = state
        self._now = now or clocks.wall
        self._facts: dict[str, Any] = {}
        self.stores = [n.removeprefix("store ") for n in state.tables if n.startswith("store ")]
        self.elements = [n.removeprefix("pe ") for n in state.tables if n.startswith("pe ")]
        self.windowed = {
            name
            for name in self.elements  # also of windows whose call has failed
            if state.meta(f"windows of {name.removesuffix(' (failed)')}") is not None
        }

    def store(self, name: str) -> Iterator[tuple[Key, Any]]:
        for key, data in self._rows(f"store {name}"):
            value = self._stored(name, data)
            if value is not None:
                yield key, value[0]

    def instances(self, name: str) -> Iterator[tuple[Key | None, dict[str, Any]]]:
        """The keys of a PE with the attributes of their instances; a singleton's key is None.

        The key of an instance with a window is a pair of its key and the window's start.
        """
        for key, data in self._rows(f"pe {name}", windowed=name in self.windowed):
            yield key, self._attributes(name, data)

    def _stored(self, name: str, data: bytes) -> tuple[Any] | None:
        """The value in a row of a store; None if it has expired."""
        ttl = self._fact(f"ttl of {name}")  # True, or when the time to live was removed
        value = data if ttl is None else in_time(data, self._now() if ttl is True else ttl)
        return None if value is None else (_decode(value),)

    def _fact(self, name: str) -> Any:
        if name not in self._facts:
            self._facts[name] = self._state.meta(name)
        return self._facts[name]

    def _attributes(self, name: str, data: bytes) -> dict[str, Any]:
        row = _decode(data)
        if name in self.windowed:
            row = _decode(row[-1])
        if isinstance(row, dict):  # the instance has counts of triggers beside its state
            row = _decode(row["state"])
        versions = self._fact(f"versions of {name}") or ()
        fields = versions[row[0]]
        return dict(zip((field for field, _ in fields), row[1:], strict=False))

    def _rows(self, table: str, *, windowed: bool = False) -> Iterator[tuple[Any, bytes]]:
        for row, data in self._state.database.table(self._state.tables[table]):
            yield _key_of(row, windowed=windowed), data


class StateOf(NamedTuple):
    """All of a key: the value of a store or the attributes of an instance, in a tuple if there is
    one; those of its windows by start; its timers by name, with their times."""

    value: tuple[Any, ...]
    windows: dict[float, Any]
    timers: dict[str, float]


class StateLookup(StateReader):
    """Finds keys of a task without reading all others."""

    def __init__(self, state: TaskState, rows: Committed, hasher: Hasher) -> None:
        super().__init__(state)
        self._committed = rows
        self._hasher = hasher

    def of_key(self, name: str, key: Key) -> StateOf:
        encoded, group = key_encoding.encode(key), self._hasher(key) % KEY_GROUPS
        tables, rows = self._state.tables, self._committed
        value: tuple[Any, ...] = ()
        windows: dict[float, Any] = {}
        timers: dict[str, float] = {}
        if (number := tables.get(f"store {name}")) is not None:
            data = rows.get(prefix(group, number) + encoded)
            value = (data is not None and self._stored(name, data)) or ()
        if (number := tables.get(f"pe {name}")) is not None and name in self.windowed:
            for row, data in rows.scan(prefix(group, number), prefix(group, number + 1)):
                start, its = place_of(row)
                if its == key:
                    windows[start] = self._attributes(name, data)
        elif number is not None and (data := rows.get(prefix(group, number) + encoded)) is not None:
            value = (self._attributes(name, data),)
        if (number := tables.get(f"timers {name}")) is not None:
            start_of = prefix(group, number) + encoded
            for row, data in rows.scan(start_of, prefix(group, number + 1)):
                if not row.startswith(start_of):
                    break
                size, timer, time, _ = _decode(data)
                if size == len(encoded):
                    timers[timer] = time
        return StateOf(value, windows, timers)

    def page(self, name: str, after: bytes, most: int) -> Iterator[tuple[bytes, Any, Any]]:
        """At most so many rows of a store or a PE after one: each, its key and its value."""
        kind = "pe" if name in self.elements else "store"
        windowed = name in self.windowed
        rows = self._committed.table(self._state.tables[f"{kind} {name}"], after)
        for row, data in islice(rows, most):
            key = _key_of(row, windowed=windowed)
            found = (self._attributes(name, data),) if kind == "pe" else self._stored(name, data)
            if found is not None:
                yield row, key, found[0]


def _key_of(row: bytes, *, windowed: bool) -> Any:
    """The key of a row, or a pair of its key and the window's start; a singleton's is None."""
    if windowed:
        start, key = place_of(row)
        return key, start
    encoded = row[PREFIX_BYTES:]
    return key_encoding.decode(encoded) if encoded else None
