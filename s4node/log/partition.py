"""One partition of the log on disk: a SQLite database, a row a frame.

Rules
- A ``PartitionFile`` is written by one thread; a ``PartitionView`` reads beside it, with a
  connection of its own that cannot write. Both block: they are called in threads.
- A row has its first offset as key, and the running total of bytes. Offset, time of appending and
  total rise together: a time is found by halving, and what is there by subtracting, without an
  index.
- A group of frames is one transaction, with the numbers of its producers and the declarations of
  its types: after any crash the file holds all of it or nothing.
- A process that dies loses nothing that was committed, with any ``sync``: it is with the kernel by
  then. A power cut loses nothing with ``full``; with ``normal`` what was committed since the
  write-ahead log was last worked off, but the file is sound; with ``none`` it may damage the file.
- Only whole rows are deleted, from the old end. The oldest offset is written with them, so it
  survives the last row.
- The write-ahead log is worked off by a connection of its own (:meth:`PartitionFile.work_off`), in
  another thread, so that a commit seldom waits for the disk.
- What a disk, a lock or rights keep from being written is NotTaken: it may be tried again. So is
  what was written to a file that does not have the partition's name any more. SQLite opens what it
  may not write for reading alone, and leaves it at that: so it is opened again before a new try.
- Every row has a checksum. What does not fit is said, never guessed at: StoreCorrupt.
- A file that was given up is renamed to ``NNNN.lost`` by whoever gives it up, never by us. Its
  partition begins anew then, at an offset that no event of the former file can have had: so who
  goes on from there is told that events are gone, as by retention.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import samestat
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from s4node.errors import StoreCorrupt, StoreError
from s4node.events.schema import UNREADABLE, TypeDecl
from s4node.log.ledger import Entry, Known, Ledger, Plan
from s4node.log.retention import Held, Keep, Row, cut
from s4node.net.wire.frame import Section

FORMAT = 1
"""The version of the files; one with a higher one is refused."""

PAGE_BYTES = 16_384
"""A page of the database."""

WAL_BYTES = 4 << 20
"""So much in the write-ahead log is worked off into the database beside the writing."""

MAX_WAL_BYTES = 16 << 20
"""So much is worked off at once, while the writer waits: it writes faster than the disk."""

_APPLICATION = 0x53344C47  # "S4LG"
_SYNCHRONOUS = {"none": "OFF", "normal": "NORMAL", "full": "FULL"}
_BUSY_MS = 50  # so long a write waits for others before it is tried again later
_ROW_BYTES = 64  # what a row takes beside head and body, about
_STEP_ROWS = 128  # rows deleted at once
_STEP_PAGES = 16  # pages given back at once

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


class NotTaken(Exception):  # noqa: N818
    """It was not written for now, and may be tried again. Says why.

    Who tries again loads the book before: the disk may have it after all, and nobody was told.
    """


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


@dataclass(frozen=True, slots=True)
class StoredFrame:
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


class PartitionFile:
    """The writing side of one partition's file; opens what :func:`create` has made.

    ``sync`` is none, normal or full. Raises StoreError where the file is another's or of a newer
    format, StoreCorrupt where it is damaged; any call may raise StoreCorrupt or NotTaken.
    """

    def __init__(self, path: Path, stream: str, number: int, sync: str = "normal") -> None:
        self.path = path
        self.below = 0
        """Rows that end there or before are to be deleted: somebody asked."""
        self.unworked = 0
        """Bytes written since the write-ahead log was last worked off, about."""
        self.let_go: Callable[[], None] = lambda: None
        """Closes the connections of readers, in the writer's thread: while one is open, SQLite does
        not ask again what may be written."""
        self._synchronous = f"PRAGMA synchronous = {_SYNCHRONOUS[sync]}"
        self._wal = path.with_name(f"{path.name}-wal")
        self._read_only = False  # it was opened without the right to write
        self._database = _connect(path, "rw")
        try:
            with _told(path, writing=False):
                self._opened = path.stat()
                _check(self._database, path, stream, number)
                self._set_up()
                self.load()
                # others' writes are waited for by trying again: it holds nobody up meanwhile
                self._database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        except NotTaken as error:
            self._database.close()
            raise StoreError(str(error)) from error
        except BaseException:
            self._database.close()
            raise

    def _set_up(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(self._synchronous)
        # some builds overwrite what is deleted: deleting would cost as much as writing
        self._database.execute("PRAGMA secure_delete = OFF")
        self._database.execute(f"PRAGMA wal_autocheckpoint = {MAX_WAL_BYTES // PAGE_BYTES}")

    def load(self) -> None:
        """Read the book from the file, as it stands there."""
        with self._trying():
            if self._read_only:
                self._open_again()
            self._oldest = self._one("SELECT value FROM meta WHERE name = 'oldest'")[0]
            last = self._one(
                "SELECT first + count, appended_ms, total, start FROM frames ORDER BY start DESC"
            )
            upcoming, last_ms, total, newest = last or (self._oldest, 0, 0, 0)
            self._total: int = total
            self._newest: int = newest
            producers = self._database.execute("SELECT id, next, seen_ms FROM producers")
            types = self._database.execute("SELECT declaration FROM types")
            declarations = [_type_decoder.decode(row[0]) for row in types]
            self.ledger = Ledger(
                upcoming,
                last_ms,
                {name: Known(following, seen_ms) for name, following, seen_ms in producers},
                {declaration.fingerprint: declaration for declaration in declarations},
            )
            self.held = self._measured()

    def write(self, plan: Plan) -> None:
        """Write a plan of ``ledger`` in one transaction, and settle it."""
        if not plan.producers:
            return
        total = self._total
        rows: list[tuple[Any, ...]] = []
        for entry in plan.entries:
            rows.append(_row(entry, total))
            total = rows[-1][4]
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
        self.ledger.settle(plan)
        self.unworked += total - self._total + PAGE_BYTES
        self._total = total
        if rows:
            self._newest = plan.entries[-1].start
        self.held = self._measured()

    def delete(self, keep: Keep, now_ms: int) -> bool:
        """Delete some of the oldest rows that are to go; returns whether there were any."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT start, first + count, appended_ms, size FROM frames ORDER BY start LIMIT ?",
                (_STEP_ROWS,),
            )
            found = [Row(*row) for row in rows]
            gone = cut(found, self.held, keep, now_ms, self._newest)
            if gone > self._oldest:
                database.execute("DELETE FROM frames WHERE start < ?", (gone,))
                database.execute("UPDATE meta SET value = ? WHERE name = 'oldest'", (gone,))
        if gone == self._oldest:
            self.below = 0
            self.held = self.held._replace(below=0)
            return False
        self._oldest = gone
        self.held = self._measured()
        return True

    def shrink(self) -> bool:
        """Give some free pages back to the disk, once the write-ahead log is worked off."""
        before = self.held.free
        with self._transaction() as database:
            database.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
        self.held = self._measured()
        return self.held.free < before

    def work_off(self) -> None:
        """Work the write-ahead log off, as far as nobody reads it; for another thread."""
        with (
            contextlib.suppress(sqlite3.Error, StoreError),  # the writer will
            contextlib.closing(_connect(self.path, "rw")) as database,
        ):
            database.execute(self._synchronous)
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def cut_wal(self) -> bool:
        """Work the write-ahead log off and empty its file; returns False while others use it."""
        with self._trying():
            busy = self._one("PRAGMA wal_checkpoint(TRUNCATE)")[0]
        self.unworked = 0
        self.held = self._measured()
        return not busy

    def forget(self, producers: Sequence[str]) -> None:
        """Forget producers: what they send again is no longer known as a repetition."""
        with self._transaction() as database:
            database.executemany(
                "DELETE FROM producers WHERE id = ?", [(name,) for name in producers]
            )
        for name in producers:
            del self.ledger.producers[name]

    def ask(self, below: int) -> None:
        """Have rows deleted that end at or below an offset, by the next steps."""
        self.below = max(self.below, below)
        self.held = self.held._replace(below=self.below)

    @property
    def trimmed(self) -> bool:
        """Whether all that was asked for is deleted."""
        return self.below <= self._oldest or not self.held.size

    def close(self) -> None:
        """Close the file; everything that was written stays."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _open_again(self) -> None:
        """Take another connection: one that SQLite has opened without the right to write stays so,
        whatever rights are given later."""
        self._sizes()  # another file would get this one's write-ahead log
        for beside in ("-wal", "-shm"):  # SQLite made them with the rights that the file had then
            with contextlib.suppress(OSError):
                self.path.with_name(f"{self.path.name}{beside}").chmod(self.path.stat().st_mode)
        try:
            database = _connect(self.path, "rw")
        except StoreError as error:
            raise NotTaken(str(error)) from error
        self._database.close()
        self._database = database
        self.let_go()
        self._database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        self._set_up()
        self._read_only = False  # as far as is known

    def _one(self, query: str) -> Any:
        return self._database.execute(query).fetchone()

    def _measured(self) -> Held:
        with _told(self.path):
            first = self._one("SELECT start, appended_ms, total - size FROM frames ORDER BY start")
            pages, free = self._one("SELECT * FROM pragma_page_count, pragma_freelist_count")
            size, wal = self._sizes()
        oldest, oldest_ms, before = first or (self._oldest, 0, self._total)
        self._oldest = oldest
        return Held(
            oldest=oldest,
            size=self._total - before,
            oldest_ms=oldest_ms,
            several=first is not None and oldest < self._newest,
            last_ms=self.ledger.last_ms,
            below=self.below,
            file=max(pages * PAGE_BYTES, size),  # it shrinks with the log
            free=free * PAGE_BYTES,
            wal=wal,
        )

    def _sizes(self) -> tuple[int, int]:
        """The bytes of the file and of its write-ahead log, where they are still the partition's:
        SQLite goes on with a file that somebody has moved, and a restart would not find it."""
        status = self.path.stat() if self.path.exists() else None
        if status is None or not samestat(status, self._opened):
            raise NotTaken(
                f"{self.path} is not the file that was opened: it was moved or replaced while the "
                f"log is in use; put it back, or start the node again"
            )
        return status.st_size, self._wal.stat().st_size if self._wal.exists() else 0

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """SQLite's errors as ours, and whether it says that the connection cannot write."""
        with _told(self.path):
            try:
                yield
            except sqlite3.Error as error:
                self._read_only = self._read_only or _code(error) == sqlite3.SQLITE_READONLY
                raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._trying():
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    self._database.execute("ROLLBACK")
                raise


class PartitionView:
    """The reading side of one partition's file, for any thread, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._closed = False

    def read(self, offset: int, max_bytes: int) -> list[StoredFrame]:
        """The rows from the one that holds ``offset`` on, up to so many bytes, but at least one."""
        with self._turn, _told(self.path, writing=False, trim=True):
            cursor = self._open().execute(_SELECT, (offset,))
            rows: list[tuple[Any, ...]] = []
            size = 0
            for row in cursor:
                if rows and size + len(row[8]) > max_bytes:
                    break
                rows.append(row)
                size += len(row[8])
                if size >= max_bytes:
                    break
            cursor.close()  # what is open keeps the write-ahead log from starting over
            frames = [_stored(row, self.path) for row in rows]
        for one, next_one in pairwise(frames):
            if one.end != next_one.start:
                raise _corrupt(self.path, f"no frame has the offset {one.end}", trim=True)
        if frames and frames[0].end <= offset:
            raise _corrupt(self.path, f"no frame has the offset {offset}", trim=True)
        return frames

    def offset_at(self, millis: int) -> int | None:
        """The first offset appended at or after that time; None where none was."""
        with self._turn, _told(self.path, writing=False, trim=True):
            return _halve(self._open(), millis)

    def close(self) -> None:
        """Close the connection; reading raises StoreError from now on."""
        self._closed = True
        self.let_go()

    def let_go(self) -> None:
        """Close the connection, after a reading that is under way; the next one takes another."""
        with self._turn:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"{self.path} is closed; read from the log before it is")
        if self._database is None:
            self._database = _connect(self.path, "ro")
        return self._database


def create(path: Path, stream: str, number: int, oldest: int = 0) -> None:
    """Make the file of an empty partition, which begins at the offset ``oldest``; raises StoreError
    where the disk does not take it."""
    database = _connect(path, "rwc")
    try:
        with _told(path, writing=False):
            database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {FORMAT}")
            database.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
            database.executemany(
                "INSERT INTO meta VALUES (?,?)",
                [("stream", stream), ("partition", number), ("oldest", oldest)],
            )
            database.execute("PRAGMA journal_mode = WAL")
    finally:
        database.close()


def begin_anew(path: Path, stream: str, number: int) -> tuple[int, Path] | None:
    """Make the file of a partition whose former one was given up, and keep that under another
    name; returns the first offset, and that name.

    None where nothing is to be done. Raises OSError or StoreError where the disk does not take it.
    """
    lost = path.with_suffix(".lost")
    if path.exists() or not lost.exists():
        return None
    oldest = time.time_ns() // 1000  # nobody appends a million events a second for ever
    kept = path.with_suffix(f".lost-{oldest}")
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    create(new, stream, number, oldest)
    with contextlib.suppress(FileNotFoundError):  # it would be taken for the new file's
        path.with_name(f"{path.name}-wal").rename(kept.with_name(f"{kept.name}-wal"))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    new.rename(path)
    lost.rename(kept)
    return oldest, kept


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a file; threads take turns with the connection, which is left to the caller."""
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=1.0,
        )
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} cannot be opened ({error}); put the file back or mend its rights"
        ) from error


def _check(database: sqlite3.Connection, path: Path, stream: str, number: int) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise _corrupt(path, f"it is no file of a log: application id {application:#x}")
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
def _told(path: Path, writing: bool = True, trim: bool = False) -> Iterator[None]:
    """SQLite's errors as ours; ``trim`` as for damage."""
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        if code in _DAMAGED:
            raise _corrupt(path, str(error), trim) from error
        if not writing:
            raise StoreError(
                f"{path} cannot be used ({error}); see to its disk and rights"
            ) from error
        if code in _FULL:
            raise NotTaken(
                f"the disk takes nothing more ({path}: {error}); make room on it, or keep less"
            ) from error
        raise NotTaken(
            f"{path} cannot be written ({error}); see to its rights, and to who else has it open"
        ) from error
    except OSError as error:
        raise NotTaken(
            f"{path} cannot be looked at ({error}); see to its disk and rights"
        ) from error
    except (*UNREADABLE, TypeError) as error:
        raise _corrupt(path, str(error), trim) from error


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code of an error."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _corrupt(path: Path, what: str, trim: bool = False) -> StoreCorrupt:
    """``trim`` says that what comes behind the damage may still be read."""
    return StoreCorrupt(
        f"{path} is damaged ({what}); "
        f"{'trim the stream beyond what is damaged (s4 log trim), or ' if trim else ''}stop the "
        f"node and put back a copy of the file, or rename it to {path.stem}.lost: the partition "
        f"then begins anew, without what was in it"
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
        raise _corrupt(path, f"the frame at offset {start} has another checksum", trim=True)
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


def _halve(database: sqlite3.Connection, millis: int) -> int | None:
    """Where the first row starts that was appended at that time or later; None without one."""
    low, high = database.execute("SELECT min(start), max(start) FROM frames").fetchone()
    at = "SELECT start, appended_ms FROM frames WHERE start <= ? ORDER BY start DESC LIMIT 1"
    if low is None or database.execute(at, (high,)).fetchone()[1] < millis:
        return None
    while low < high:  # the row that starts at `high` is late enough, those before `low` are not
        middle = (low + high) // 2
        start, appended_ms = database.execute(at, (middle,)).fetchone()
        if appended_ms >= millis:
            high = start
        else:
            low = middle + 1
    return int(high)
