"""The rows of a database as of its last commit, whatever is written meanwhile.

A commit that is written in pieces is seen whole or not at all: :meth:`Database.committed` waits
until it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from s4node.state.rows import PREFIX_BYTES, TASK_GROUP, prefix


class Committed:
    """The rows of a snapshot of RocksDB; they are read as those of a Database."""

    def __init__(self, snapshot: Any) -> None:
        self._snapshot = snapshot

    def close(self) -> None:
        """Let go of the snapshot, which keeps the database open."""
        self._snapshot = None

    def get(self, row: bytes) -> bytes | None:
        for found, value in self._from(row):
            return value if found == row else None
        return None

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from ``start`` to before ``end``, in order."""
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
        it = self._snapshot.iter()
        try:
            it.seek(start)
            while it.valid():
                yield it.key(), it.value()
                it.next()
            it.status()
        finally:
            del it  # which keeps the database open
