"""Read-only access to a task's state: tables by name, rows as plain values.

A store has what the task itself would find in it: expired values are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from s4node import clocks
from s4node.events.keys import Key
from s4node.state import key_encoding
from s4node.state.key_value_store import in_time
from s4node.state.pe_store import place_of
from s4node.state.rows import PREFIX_BYTES
from s4node.state.task_state import TaskState

_decode = msgspec.msgpack.Decoder().decode


class StateReader:
    """The tables of a task: the names of its ``stores``, and those of its PEs in ``elements``.

    ``windowed`` are the PEs with windows. ``now`` gives Unix time in seconds.
    """

    def __init__(self, state: TaskState, now: Callable[[], float] | None = None) -> None:
        self._state = state
        self._now = now or clocks.wall
        self.stores = [n.removeprefix("store ") for n in state.tables if n.startswith("store ")]
        self.elements = [n.removeprefix("pe ") for n in state.tables if n.startswith("pe ")]
        self.windowed = {
            name
            for name in self.elements  # also of windows whose call has failed
            if state.meta(f"windows of {name.removesuffix(' (failed)')}") is not None
        }

    def store(self, name: str) -> Iterator[tuple[Key, Any]]:
        """The keys of a store with their values, by key group."""
        ttl = self._state.meta(f"ttl of {name}")  # True, or when the time to live was removed
        for key, data in self._rows(f"store {name}"):
            value = data if ttl is None else in_time(data, self._now() if ttl is True else ttl)
            if value is not None:
                yield key, _decode(value)

    def instances(self, name: str) -> Iterator[tuple[Key | None, dict[str, Any]]]:
        """The keys of a PE with the attributes of their instances; a singleton's key is None.

        The key of an instance with a window is a pair of its key and the window's start.
        """
        versions = self._state.meta(f"versions of {name}") or ()
        windowed = name in self.windowed
        for key, data in self._rows(f"pe {name}", windowed=windowed):
            row = _decode(data)
            if windowed:
                row = _decode(row[-1])
            if isinstance(row, dict):  # the instance has counts of triggers beside its state
                row = _decode(row["state"])
            fields = versions[row[0]]
            yield key, dict(zip((field for field, _ in fields), row[1:], strict=False))

    def _rows(self, table: str, *, windowed: bool = False) -> Iterator[tuple[Any, bytes]]:
        for row, data in self._state.database.table(self._state.tables[table]):
            if windowed:
                start, key = place_of(row)
                yield (key, start), data
            else:
                encoded = row[PREFIX_BYTES:]
                yield (key_encoding.decode(encoded) if encoded else None), data
