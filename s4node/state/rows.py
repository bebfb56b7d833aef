"""The rows of a task's database: where each is, and what has changed since the last commit. Pure.

Rules
- A row's key is its key group (2 bytes), its table (2 bytes), and the key in the table. So another
  number of tasks is only another slicing of the same rows. What belongs to the task as a whole is
  in a group of its own, behind all others.
- Changes stay here until a commit takes them; the database only ever holds whole commits. A row
  that was changed is read from here.
- One set of changes at a time is on its way to the database, and is read from as well meanwhile.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from s4node.errors import NotSaveable, StateError
from s4node.events.keys import KEY_GROUPS, MULTIPLIER, Hasher, crc32m
from s4node.state import key_encoding

TASK_GROUP = 0xFFFF
"""The group of what belongs to no key."""

META, POSITIONS, PRODUCERS, OUTBOX, CONSUMED, REDO = range(6)
"""Tables of every task."""

FIRST_TABLE = 16
"""From here on tables are given to stores and PEs, by name."""

_PREFIX = struct.Struct(">HH")
PREFIX_BYTES = _PREFIX.size

prefix = _PREFIX.pack
"""How the keys of a table's rows in a group begin, given the group and the table."""

assert KEY_GROUPS <= TASK_GROUP


def task_row(table: int, key: bytes) -> bytes:
    """The key of a row that belongs to no key group."""
    return _PREFIX.pack(TASK_GROUP, table) + key


@cache
def _text_beginnings(table: int) -> list[bytes]:
    """How the rows of a table begin whose keys are text, by key group; one list a process."""
    return [prefix(group, table) + bytes([key_encoding.TEXT]) for group in range(KEY_GROUPS)]


def with_text_rows(
    any_row: Callable[[Any], bytes], table: int, hasher: Hasher
) -> Callable[[Any], bytes]:
    """As ``any_row``, which makes the keys of a table's rows with ``prefix`` and
    ``key_encoding.encode``: with the default hasher in a third of the time for text keys."""
    if hasher is not crc32m:
        return any_row
    beginnings, checksum = _text_beginnings(table), zlib.crc32

    def row(key: Any) -> bytes:
        if type(key) is not str or "\x00" in key:
            return any_row(key)
        try:
            raw = key.encode()
        except UnicodeEncodeError:
            return any_row(key)  # raises, and says why
        return beginnings[checksum(raw) * MULTIPLIER >> 20 & 0xFFF] + raw + b"\x00"

    return row


class Changes:
    """What has changed since the last commit: a value for each row, None where it is gone."""

    __slots__ = ("_dirty", "_leaving", "_rows", "_values", "bytes", "leaving", "spoiled")

    def __init__(self) -> None:
        self._dirty: dict[bytes, bytes | None] = {}
        self._leaving: dict[bytes, bytes | None] = {}
        self._rows: list[bytes] = []  # beside their values, for a million pairs would be a
        self._values: list[bytes] = []  # long pause of the garbage collector
        self.leaving = False  # a commit is under way
        self.bytes = 0
        self.spoiled: NotSaveable | None = None  # what has changed cannot be saved: no commit helps

    def __len__(self) -> int:
        return len(self._dirty)

    def put(self, row: bytes, value: bytes | None) -> None:
        """A row has this value from now on."""
        self._dirty[row] = value
        self.bytes += len(row) + (len(value) if value is not None else 0)

    def fill(self, row: bytes, value: bytes | None) -> None:
        """As put, unless the row has been changed by now; in one step, for there are threads."""
        self._dirty.setdefault(row, value)
        self.bytes += len(row) + (len(value) if value is not None else 0)

    def find(self, row: bytes, unchanged: object) -> object:
        """The row's value or None; ``unchanged`` where the database knows."""
        found = self._dirty.get(row, unchanged)
        return self._leaving.get(row, unchanged) if found is unchanged else found

    def among(self, rows: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Those of these rows that have changed, with their values."""
        dirty, leaving = self._dirty, self._leaving
        if not dirty and not leaving:
            return {}
        return {**_picked(leaving, rows), **_picked(dirty, rows)}

    def between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes | None]]:
        """The changed rows from ``start`` to before ``end``, in order."""
        found = {k: v for k, v in list(self._leaving.items()) if start <= k < end}
        found.update((k, v) for k, v in list(self._dirty.items()) if start <= k < end)
        return sorted(found.items())

    def begin(self) -> None:
        """A commit begins with all changes until now; they stay readable until ``written``."""
        assert not self.leaving, "a commit is under way"
        self.leaving = True
        self._dirty, self._leaving = {}, self._dirty
        self.bytes = 0

    def add(self, row: bytes, value: bytes | None) -> None:
        """This was so when the commit under way began, and belongs to it."""
        self._leaving[row] = value

    def add_all(self, rows: list[bytes], values: list[bytes]) -> None:
        """As add for many, whose values stay in memory elsewhere: ``find`` does not know them."""
        self._rows += rows
        self._values += values

    def leave(self) -> tuple[list[bytes], list[bytes | None]]:
        """The rows that the commit under way is to write, and their values; the newest last."""
        first = list(in_order(list(self._leaving.items())))
        rows, values = [row for row, _ in first], [value for _, value in first]
        rows += self._rows
        values += self._values
        return rows, values

    def written(self) -> None:
        """The database holds what the commit was to write."""
        self._leaving = {}
        self._rows, self._values = [], []
        self.leaving = False

    def failed(self) -> None:
        """The commit was not written: the next one takes what was in it."""
        failed = {**self._leaving, **dict(zip(self._rows, self._values, strict=True))}
        self.bytes += sum(len(k) + len(v or b"") for k, v in failed.items())
        self._dirty = {**failed, **self._dirty}
        self._leaving = {}
        self._rows, self._values = [], []
        self.leaving = False


class NoMoreChanges(Changes):
    """In the place of those of a task that went back: nothing can change any more."""

    __slots__ = ()

    def put(self, row: bytes, value: bytes | None) -> None:  # noqa: ARG002
        """Raise StateError."""
        raise StateError(
            "a store was written when its event had taken too long, and its task had gone back to "
            "its last commit; this write would be lost. End what an event has begun within "
            "task.callback.timeout.ms"
        )


def _picked(values: dict[bytes, bytes | None], rows: Iterable[bytes]) -> dict[bytes, bytes | None]:
    return {row: values[row] for row in values.keys() & rows}


def in_order(
    rows: Iterable[tuple[bytes, bytes | None]],
) -> Iterator[tuple[bytes, bytes | None]]:
    """Rows with their values in order, as they are written quickly; sorted a group at a time, so
    that other threads are not held up for long."""
    groups: defaultdict[int, list[tuple[bytes, bytes | None]]] = defaultdict(list)
    for each in rows:
        groups[each[0][0] << 8 | each[0][1]].append(each)
    for group in sorted(groups):
        yield from sorted(groups[group])


def merged(
    stored: Iterator[tuple[bytes, bytes]], changed: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Rows of the database and changed ones, both in order, as one; what is gone is left out."""
    at = 0
    for row, value in stored:
        while at < len(changed) and changed[at][0] < row:
            if (new := changed[at][1]) is not None:
                yield changed[at][0], new
            at += 1
        if at < len(changed) and changed[at][0] == row:
            if (new := changed[at][1]) is not None:
                yield row, new
            at += 1
        else:
            yield row, value
    for changed_row, new in changed[at:]:
        if new is not None:
            yield changed_row, new
