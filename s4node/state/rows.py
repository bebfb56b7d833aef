"""Rows of a task's database: their keys, and the changes since the last commit. Pure.

Rules
- The key of a row is its key group (2 bytes), its table (2 bytes), and the key in the table. If
  the number of tasks changes, the rows stay, and each task gets other ranges of them. Rows of the
  task as a whole are in a group of their own, after all others.
- Changes stay here until a commit takes them; the database only ever holds whole commits. A changed
  row is read from here.
- One set of changes at a time is being written to the database, and is read from here meanwhile.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from s4node.errors import NotSaveable, StateError
from s4node.events.keys import KEY_GROUPS, MULTIPLIER, Hasher, crc32m
from s4node.state import key_encoding

_PIECE = 4096

TASK_GROUP = 0xFFFF
"""The group of rows without a key group."""

META, POSITIONS, PRODUCERS, OUTBOX, CONSUMED, REDO, CLOSINGS, OUTLET = range(8)
"""The tables that every task has."""

FIRST_TABLE = 16
"""The first number of the tables of stores and PEs, which are numbered by name."""

_PREFIX = struct.Struct(">HH")
PREFIX_BYTES = _PREFIX.size

prefix = _PREFIX.pack
"""The beginning of a row's key, from its key group and table."""

assert KEY_GROUPS <= TASK_GROUP


def group_and_table(row: bytes) -> tuple[int, int]:
    group, table = _PREFIX.unpack_from(row)
    return group, table


def task_row(table: int, key: bytes) -> bytes:
    return _PREFIX.pack(TASK_GROUP, table) + key


@cache
def _text_beginnings(table: int) -> list[bytes]:
    """The beginnings of a table's rows with text keys, by key group; cached for the process."""
    return [prefix(group, table) + bytes([key_encoding.TEXT]) for group in range(KEY_GROUPS)]


def with_text_rows(
    any_row: Callable[[Any], bytes], table: int, hasher: Hasher
) -> Callable[[Any], bytes]:
    """A faster ``any_row``, which makes a row's key from ``prefix`` and ``key_encoding.encode``.
    With the default hasher, text keys take a third of the time."""
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
    """The changes since the last commit: a value for each row, None if the row is deleted."""

    __slots__ = (
        "_dirty", "_leaving", "_rows", "_values", "bytes", "dropped", "later", "leaving",
        "spoiled",
    )  # fmt: skip

    def __init__(self) -> None:
        self._dirty: dict[bytes, bytes | None] = {}
        self._leaving: dict[bytes, bytes | None] = {}
        self._rows: list[bytes] = []  # two lists, as a million pairs would
        self._values: list[bytes] = []  # pause the process for garbage collection
        self.leaving = False  # True while the last commit has not ended
        self.dropped: list[Any] = []
        self.bytes = 0
        self.later = 0  # changed rows that are made when a commit begins
        self.spoiled: NotSaveable | None = None

    def __len__(self) -> int:
        return len(self._dirty) + self.later

    def spoil(self, error: NotSaveable) -> None:
        """Note that a change cannot be saved: a commit is due at once, and raises ``error``."""
        self.spoiled = error
        self.bytes = sys.maxsize

    def put(self, row: bytes, value: bytes | None) -> None:
        self._dirty[row] = value
        self.bytes += len(row) + (len(value) if value is not None else 0)

    def fill(self, row: bytes, value: bytes | None) -> None:
        """Set the value of a row unless it has changed; atomic, as there are threads."""
        self._dirty.setdefault(row, value)
        self.bytes += len(row) + (len(value) if value is not None else 0)

    def find(self, row: bytes, unchanged: object) -> object:
        """The row's value or None; ``unchanged`` if the row has not changed."""
        found = self._dirty.get(row, unchanged)
        return self._leaving.get(row, unchanged) if found is unchanged else found

    def among(self, rows: Iterable[bytes]) -> dict[bytes, bytes | None]:
        dirty, leaving = self._dirty, self._leaving
        if not dirty and not leaving:
            return {}
        return {**_picked(leaving, rows), **_picked(dirty, rows)}

    def between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes | None]]:
        found = {k: v for k, v in list(self._leaving.items()) if start <= k < end}
        found.update((k, v) for k, v in list(self._dirty.items()) if start <= k < end)
        return sorted(found.items())

    def begin_commit(self) -> None:
        """Begin a commit of all changes until now; they stay readable until ``written``."""
        assert not self.leaving, "the last commit has not ended"
        self.leaving = True
        self._dirty, self._leaving = {}, self._dirty
        self.bytes = self.later = 0

    def add(self, row: bytes, value: bytes | None) -> None:
        """Add a row, as it was when the commit under way began, to that commit."""
        self._leaving[row] = value

    def add_all(self, rows: list[bytes], values: list[bytes]) -> None:
        """Add many rows whose values stay in memory elsewhere: ``find`` does not see them."""
        self._rows += rows
        self._values += values

    def rows_to_write(self) -> tuple[list[bytes], list[bytes | None]]:
        """The rows that the commit under way writes, and their values; the newest last."""
        rows, values = list[bytes](), list[bytes | None]()
        for group in in_order(self._leaving):
            rows += group
            values += map(self._leaving.__getitem__, group)
        for at in range(0, len(self._rows), _PIECE):  # all at once would be a pause
            rows += self._rows[at : at + _PIECE]
            values += self._values[at : at + _PIECE]
        return rows, values

    def written(self) -> None:
        """Drop the changes of the commit, which the database now has; ``free`` frees many."""
        if len(self._leaving) + len(self._rows) > _PIECE:
            self.dropped += [self._leaving, self._rows, self._values]
        self._leaving = {}
        self._rows, self._values = [], []
        self.leaving = False

    def free(self) -> None:
        """Free what is ``dropped`` piece by piece, in a thread: a million at once is a pause."""
        while self.dropped:
            each = self.dropped.pop()
            while each:
                if isinstance(each, dict):
                    each.popitem()
                else:
                    del each[-_PIECE:]

    def failed(self) -> None:
        failed = {**self._leaving, **dict(zip(self._rows, self._values, strict=True))}
        self.bytes += sum(len(k) + len(v or b"") for k, v in failed.items())
        self._dirty = {**failed, **self._dirty}
        self.written()


class NoMoreChanges(Changes):
    """The changes of a task that has rolled back: writing to them raises StateError."""

    __slots__ = ()

    def put(self, row: bytes, value: bytes | None) -> None:  # noqa: ARG002
        """Raise StateError."""
        raise StateError(
            "a store was written after its event had taken too long and its task had rolled back "
            "to its last commit; this write would be lost. Finish the work of an event within "
            "task.callback.timeout.ms"
        )


def _picked(values: dict[bytes, bytes | None], rows: Iterable[bytes]) -> dict[bytes, bytes | None]:
    return {row: values[row] for row in values.keys() & rows}


def in_order(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Rows in order, as sorted rows are written faster. One group at a time is sorted, so that
    other threads can run in between."""
    groups: defaultdict[int, list[bytes]] = defaultdict(list)
    for row in rows:
        groups[row[0] << 8 | row[1]].append(row)
    for group in sorted(groups):
        yield sorted(groups.pop(group))


def merged(
    stored: Iterator[tuple[bytes, bytes]], changed: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of the database with the changes applied, both in order."""
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
