"""The readers' side of a partition: frames from an offset, and the offset of a time.

Rules
- A view has a read-only connection of its own beside the writer's. Its calls block.
- A view holds no read transaction between calls: that would keep the write-ahead log from starting
  over.
- A gap between rows, or a wrong checksum, raises StoreCorrupt.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from s4node.errors import StoreError
from s4node.log.partition.partition_database import PartitionDatabase, corrupt
from s4node.log.partition.partition_rows import (
    SELECT_FRAMES,
    SELECT_ROWS,
    OtherChecksum,
    StagedRow,
    StoredFrame,
    frame_of,
)


class PartitionView:
    """The readers' side of one partition's file, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._database: PartitionDatabase | None = None
        self._closed = False

    def read(self, offset: int, max_bytes: int) -> list[StoredFrame]:
        """The frames from the one with ``offset`` on: at least one, about ``max_bytes`` of them."""
        with self._turn, self._opened() as database:
            cursor = database.execute(SELECT_FRAMES, (offset,))
            rows: list[tuple[Any, ...]] = []
            size = 0
            for row in cursor:
                if rows and size + len(row[8]) > max_bytes:
                    break
                rows.append(row)
                size += len(row[8])
                if size >= max_bytes:
                    break
            cursor.close()  # an open one keeps the write-ahead log from starting over
            try:
                frames = [frame_of(row) for row in rows]
            except OtherChecksum as error:
                raise corrupt(self.path, str(error), trim=True) from error
        for one, next_one in pairwise(frames):
            if one.end != next_one.start:
                raise corrupt(self.path, f"the offset {one.end} has no frame", trim=True)
        if frames and frames[0].end <= offset:
            raise corrupt(self.path, f"the offset {offset} has no frame", trim=True)
        return frames

    def rows(self) -> list[StagedRow]:
        """All rows, without their events."""
        with self._turn, self._opened() as database:
            return [StagedRow(*row) for row in database.execute(SELECT_ROWS)]

    def offset_at(self, millis: int) -> int | None:
        """The first offset appended at or after that Unix time; None if there is none."""
        with self._turn, self._opened() as database:
            return _halve(database, millis)

    def close(self) -> None:
        """Close the connection; later reads raise StoreError."""
        self._closed = True
        self.let_go()

    def let_go(self) -> None:
        """Close the connection, after a read in progress; the next read opens another."""
        with self._turn:
            if self._database is not None:
                self._database.close()
                self._database = None

    @contextmanager
    def _opened(self) -> Iterator[PartitionDatabase]:
        if self._closed:
            raise StoreError(f"{self.path} is closed; read from the log before you close it")
        if self._database is None:
            self._database = PartitionDatabase(self.path, "ro", trim=True)
        with self._database.explained():
            yield self._database


def _halve(database: PartitionDatabase, millis: int) -> int | None:
    """Find by bisection where the first row at or after that time starts; None if there is none."""
    low, high = database.one("SELECT min(start), max(start) FROM frames")
    at = "SELECT start, appended_ms FROM frames WHERE start <= ? ORDER BY start DESC LIMIT 1"
    if low is None or database.one(at, (high,))[1] < millis:
        return None
    while low < high:  # the row that starts at `high` is late enough, rows before `low` are not
        middle = (low + high) // 2
        start, appended_ms = database.one(at, (middle,))
        if appended_ms >= millis:
            high = start
        else:
            low = middle + 1
    return int(high)
