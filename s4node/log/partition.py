"""One partition of the log on disk: a SQLite database, a row a frame.

Rules
- A ``PartitionFile`` is written by one thread; a ``PartitionView`` reads beside it, with a
  connection of its own that cannot write. Both block: they are called in threads.
- A row has its first offset as key, and the running total of bytes. Offset, time of appending and
  total rise together, so any of them is found by halving, without an index.
- A group of frames is one transaction, with the numbers of its producers and the declarations of
  its types: after any crash the file holds all of it or nothing.
- Only whole rows are deleted, from the old end. The oldest offset is written with them, so it
  survives the last row.
- Every row has a checksum. What does not fit is said, never guessed at: StoreCorrupt.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from s4node.comm.frame import Section
from s4node.errors import StoreCorrupt, StoreError
from s4node.log.ledger import Entry, Incoming, Known, Ledger, Plan
from s4node.schema import TypeDecl

FORMAT = 1
"""The version of the files; one with a higher one is refused."""

PAGE_BYTES = 16_384
"""A page of the database."""

_APPLICATION = 0x53344C47  # "S4LG"
_SYNCHRONOUS = {"none": "OFF", "normal": "NORMAL", "full": "FULL"}
_ROW_BYTES = 64  # what a row takes beside head and body, about

_SCHEMA = """
CREATE TABLE frames (
    start INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL, total INTEGER NOT NULL, size INTEGER NOT NULL,
    producer TEXT NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL,
    head BLOB NOT NULL, body BLOB NOT NULL
);
CREATE TABLE types (fingerprint BLOB PRIMARY KEY, declaration BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE producers (
    id TEXT PRIMARY KEY, next INTEGER NOT NULL, seen_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
"""
_INSERT = "INSERT INTO frames VALUES (?,?,?,?,?,?,?,?,?,?,?)"
_SELECT = (
    "SELECT start, first, count, appended_ms, producer, number, checksum, head, body FROM frames "
    "WHERE start >= ifnull((SELECT max(start) FROM frames WHERE start <= ?), 0) ORDER BY start"
)
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_NUMBERS = struct.Struct("<qqqqq")


class NoRoom(Exception):  # noqa: N818
    """The disk did not take it; nothing was changed, and it may be tried again."""


class _Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    encoding: int
    routing: str
    created_ms: int
    sections: tuple[Section, ...]
    order: bytes
    headers: Mapping[str, Any]


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(_Head)
_type_decoder = msgspec.msgpack.Decoder(TypeDecl)


class StoredFrame(NamedTuple):
    """A frame as it was appended: its body begins at the offset ``first``.

    Offsets below ``start`` belong to rows before: they were there when it came, a repetition.
    ``number`` is its producer's for the body's first event; ``appended_ms`` is Unix time.
    """

    start: int
    first: int
    count: int
    appended_ms: int
    producer: str
    number: int
    encoding: int
    routing: str
    created_ms: int
    sections: tuple[Section, ...]
    order: bytes
    headers: Mapping[str, Any]
    body: bytes

    @property
    def end(self) -> int:
        """The offset behind its last event."""
        return self.first + self.count


class Extent(NamedTuple):
    """What the rows of a partition come to: their bytes, how many there are more than one of, and
    when the oldest was appended (Unix time, ms; 0 where there is none)."""

    oldest: int
    size: int
    oldest_ms: int
    several: bool


class PartitionFile:
    """The writing side of one partition's file; opens what :func:`create` has made.

    ``sync`` is none, normal or full. Raises StoreError where the file is another's or of a newer
    format, StoreCorrupt where it is damaged.
    """

    def __init__(self, path: Path, stream: str, number: int, sync: str = "normal") -> None:
        self.path = path
        self.stream = stream
        self.number = number
        self._database = _connect(path, "rw")
        try:
            with _told(path):
                _check(self._database, path, stream, number)
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[sync]}")
                self.load()
        except BaseException:
            self._database.close()
            raise

    def load(self) -> None:
        """Read the book from the file, as it stands there."""
        one = self._one
        self._oldest = one("SELECT value FROM meta WHERE name = 'oldest'")[0]
        last = one("SELECT first + count, appended_ms, total FROM frames ORDER BY start DESC")
        upcoming, last_ms, self._total = last or (self._oldest, 0, 0)
        producers = self._database.execute("SELECT id, next, seen_ms FROM producers")
        types = self._database.execute("SELECT declaration FROM types")
        declarations = [_type_decoder.decode(row[0]) for row in types]
        self.ledger = Ledger(
            upcoming,
            last_ms,
            {name: Known(following, seen_ms) for name, following, seen_ms in producers},
            {declaration.fingerprint: declaration for declaration in declarations},
        )
        self._measure()

    @property
    def extent(self) -> Extent:
        """What the rows come to."""
        return self._extent

    def write(self, plan: Plan) -> None:
        """Write a plan of ``ledger`` in one transaction, and settle it.

        Raises NoRoom with nothing changed.
        """
        if not plan.producers:
            return
        total, rows = self._total, []
        for entry in plan.entries:
            row = _row(entry, total)
            total = row[4]
            rows.append(row)
        with self._transaction() as database:
            database.executemany(_INSERT, rows)
            database.executemany(
                "INSERT OR REPLACE INTO producers VALUES (?,?,?)",
                [(name, *known) for name, known in plan.producers.items()],
            )
            if plan.types:
                database.executemany(
                    "INSERT OR IGNORE INTO types VALUES (?,?)",
                    [
                        (mark.to_bytes(8, "big"), _encoder.encode(declaration))
                        for mark, declaration in plan.types.items()
                    ],
                )
        was_empty = self._total == 0 and not self._extent.size
        self.ledger.settle(plan)
        added, self._total = total - self._total, total
        if was_empty:
            self._measure()
        elif rows:
            self._extent = self._extent._replace(size=self._extent.size + added, several=True)

    def delete(self, below: int, most: int) -> int:
        """Delete rows that end at or below an offset, at most so many; returns the oldest offset."""
        ends = self._database.execute(
            "SELECT first + count FROM frames WHERE start < ? ORDER BY start LIMIT ?", (below, most)
        ).fetchall()
        gone = max((end for (end,) in ends if end <= below), default=self._oldest)
        if gone > self._oldest:
            with self._transaction() as database:
                database.execute("DELETE FROM frames WHERE start < ?", (gone,))
                database.execute("UPDATE meta SET value = ? WHERE name = 'oldest'", (gone,))
            self._oldest = gone
            self._measure()
        return self._oldest

    def forget(self, producers: Sequence[str]) -> None:
        """Forget producers: what they send again is no longer known as a repetition."""
        with self._transaction() as database:
            database.executemany(
                "DELETE FROM producers WHERE id = ?", [(name,) for name in producers]
            )
        for name in producers:
            del self.ledger.producers[name]

    def first_after(self, column: str, value: int) -> int:
        """The first offset of the first row whose time or total is ``value`` or more, or the
        upcoming one. See :func:`_halve`."""
        with _told(self.path):
            return _halve(self._database, column, value)

    def close(self) -> None:
        """Close the file; everything that was written stays."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _one(self, query: str) -> tuple[Any, ...]:
        return self._database.execute(f"{query} LIMIT 1").fetchone()

    def _measure(self) -> None:
        first = self._one("SELECT start, appended_ms, total - size FROM frames ORDER BY start")
        if first is None:
            self._extent = Extent(self._oldest, 0, 0, False)
            return
        start, oldest_ms, before = first
        last = self._one("SELECT start FROM frames ORDER BY start DESC")[0]
        self._oldest = start
        self._extent = Extent(start, self._total - before, oldest_ms, last > start)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _told(self.path):
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        self._database.execute("ROLLBACK")
                raise


class PartitionView:
    """The reading side of one partition's file, for any thread, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def read(self, offset: int, max_bytes: int) -> list[StoredFrame]:
        """The rows from the one that holds ``offset`` on, up to so many bytes, but at least one."""
        with self._turn, _told(self.path):
            cursor = self._open().execute(_SELECT, (offset,))
            rows, size = [], 0
            for row in cursor:
                if rows and size + len(row[8]) > max_bytes:
                    break
                rows.append(row)
                size += len(row[8])
                if size >= max_bytes:
                    break
            cursor.close()
        return [_stored(row, self.path) for row in rows]

    def offset_at(self, millis: int) -> int | None:
        """The first offset appended at or after that time; None where none was."""
        with self._turn, _told(self.path):
            return _halve(self._open(), "appended_ms", millis)

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        with self._turn:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = _connect(self.path, "ro")
        return self._database


def create(path: Path, stream: str, number: int) -> None:
    """Make the file of an empty partition; raises NoRoom if the disk is full."""
    database = _connect(path, "rwc")
    try:
        with _told(path):
            database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {FORMAT}")
            database.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
            database.executemany(
                "INSERT INTO meta VALUES (?,?)",
                [("stream", stream), ("partition", number), ("oldest", 0)],
            )
            database.execute("PRAGMA journal_mode = WAL")
    finally:
        database.close()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a file; threads take turns with the connection, which is left to the caller."""
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=10.0,
        )
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} cannot be opened ({error}); put the file back or mend its rights"
        ) from error


def _check(database: sqlite3.Connection, path: Path, stream: str, number: int) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise StoreError(
            f"{path} is no file of a log (application id {application:#x}); put the partition's "
            f"own file there"
        )
    if version > FORMAT:
        raise StoreError(
            f"{path} has format {version}, and this s4node reads formats up to {FORMAT}; use the "
            f"newer s4node that wrote it"
        )
    meta = dict(database.execute("SELECT name, value FROM meta"))
    if (meta.get("stream"), meta.get("partition")) != (stream, number):
        raise StoreError(
            f"{path} is partition {meta.get('partition')} of stream {meta.get('stream')!r}, not "
            f"partition {number} of {stream!r}; put each file back to its own place"
        )


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _DAMAGED:
            raise _corrupt(path, str(error)) from error
        if code in _FULL:
            raise NoRoom(f"{path}: {error}") from error
        raise StoreError(f"{path} cannot be used ({error})") from error
    except (msgspec.MsgspecError, TypeError) as error:
        raise _corrupt(path, str(error)) from error


def _corrupt(path: Path, what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path} is damaged ({what}); put back a copy of the file, or trim the stream beyond what "
        f"is damaged"
    )


def _row(entry: Entry, total: int) -> tuple[Any, ...]:
    frame = entry.frame
    head = _encoder.encode(
        (
            frame.encoding,
            frame.routing,
            frame.created_ms,
            frame.sections,
            frame.order,
            frame.headers,
        )
    )
    size = len(head) + len(frame.body) + _ROW_BYTES
    numbers = (entry.start, entry.first, frame.count, entry.appended_ms, frame.first)
    return (
        *numbers[:4],
        total + size,
        size,
        frame.producer,
        frame.first,
        _checksum(numbers, head, frame.body),
        head,
        frame.body,
    )


def _checksum(numbers: tuple[int, int, int, int, int], head: bytes, body: bytes) -> int:
    return crc32(body, crc32(head, crc32(_NUMBERS.pack(*numbers))))


def _stored(row: tuple[Any, ...], path: Path) -> StoredFrame:
    start, first, count, appended_ms, producer, number, checksum, head, body = row
    if _checksum((start, first, count, appended_ms, number), head, body) != checksum:
        raise _corrupt(path, f"the frame at offset {start} has another checksum")
    decoded = _head_decoder.decode(head)
    return StoredFrame(
        start,
        first,
        count,
        appended_ms,
        producer,
        number,
        decoded.encoding,
        decoded.routing,
        decoded.created_ms,
        decoded.sections,
        decoded.order,
        decoded.headers,
        body,
    )


def _halve(database: sqlite3.Connection, column: str, value: int) -> int | None:
    """The start of the first row whose ``column``, which rises with the offsets, is at least
    ``value``; None where there is none."""
    low, high = database.execute("SELECT min(start), max(start) FROM frames").fetchone()
    if low is None:
        return None
    at = f"SELECT start, {column} FROM frames WHERE start <= ? ORDER BY start DESC LIMIT 1"
    if database.execute(at, (high,)).fetchone()[1] < value:
        return None
    # the row at or below `high` is always far enough, those below `low` never
    while low < high:
        start, found = database.execute(at, ((low + high) // 2,)).fetchone()
        if found >= value:
            high = start
        else:
            low = (low + high) // 2 + 1
    return database.execute(at, (high,)).fetchone()[0]
