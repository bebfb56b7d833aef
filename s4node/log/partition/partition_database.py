"""The SQLite database in a partition's file: its format, creation, checks and errors.

Rules
- A write that fails because of the disk, a lock or permissions raises NotTaken: it may be retried.
- Anything unexpected in a file is reported as StoreCorrupt, never guessed at.
- The operator gives up a damaged file by renaming it to ``NNNN.lost``. The partition then starts
  again at an offset that no event of the former file can have had, so a reader that resumes from
  the former file learns that events are lost, as after retention.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from s4node import clocks, disk
from s4node.errors import StoreCorrupt, StoreError
from s4node.events.schema import UNREADABLE
from s4node.log.partition.partition_rows import FRAMES_TABLE
from s4node.sqlite import Database

FORMAT = 2
"""The version of the files; a file of any other version is refused."""

PAGE_BYTES = 16_384
"""The page size of the database."""

_APPLICATION = 0x53344C47  # "S4LG"

_SCHEMA = f"""{FRAMES_TABLE}
CREATE TABLE types (fingerprint BLOB PRIMARY KEY, declaration BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE producers (
    id TEXT PRIMARY KEY, next INTEGER NOT NULL, life INTEGER NOT NULL,
    incarnation TEXT NOT NULL, own_id INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE epochs (epoch INTEGER PRIMARY KEY, first INTEGER NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
"""
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class NotTaken(Exception):  # noqa: N818
    """A write failed for now and may be retried; the message says why.

    Load the ledger before you retry: the failed write may be on disk after all.
    """


def create_database(path: Path, stream: str, number: int, oldest: int = 0) -> None:
    """Create the file of an empty partition that begins at the offset ``oldest``. Raises StoreError
    if that fails."""
    database = PartitionDatabase(path, "rwc")
    try:
        with database.explained():
            database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            with database.transaction():
                database.make(_APPLICATION, FORMAT, _SCHEMA)
                database.executemany(
                    "INSERT INTO meta VALUES (?,?)",
                    [("stream", stream), ("partition", number), ("oldest", oldest)],
                )
            database.execute("PRAGMA journal_mode = WAL")
    finally:
        database.close()


def begin_anew(path: Path, stream: str, number: int) -> tuple[int, Path] | None:
    """Replace a partition's file that was given up by an empty one, and rename the former.

    Returns the first offset and the former file's new name, or None if there is nothing to do.
    Raises OSError or StoreError if the disk fails.
    """
    lost = path.with_suffix(".lost")
    if path.exists() or not lost.exists():
        return None
    oldest = int(clocks.wall() * 1_000_000)  # no partition gets a million events a second for ever
    kept = path.with_suffix(f".lost-{oldest}")
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    create_database(new, stream, number, oldest)
    with contextlib.suppress(FileNotFoundError):  # SQLite would take it for the new file's log
        path.with_name(f"{path.name}-wal").rename(kept.with_name(f"{kept.name}-wal"))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    new.rename(path)
    lost.rename(kept)
    disk.sync(path.parent)
    return oldest, kept


class PartitionDatabase(Database):
    """A connection to a partition's file, for one thread at a time.

    If ``writing``, errors of the disk raise NotTaken. ``trim`` adds to messages about damage that
    the events after it may still be read.
    """

    def __init__(self, path: Path, mode: str, *, writing: bool = False, trim: bool = False) -> None:
        super().__init__(path, mode, patience=1.0)
        self.writing = writing
        self.read_only = False
        """True once SQLite has refused to write for lack of permission."""
        self._trim = trim

    def check(self, stream: str, number: int) -> None:
        """Raise StoreError or StoreCorrupt unless this is the file of this partition, in our
        format."""
        application, version = self.marks()
        if application != _APPLICATION:
            raise corrupt(self.path, f"it is not a log file: application id {application:#x}")
        if version != FORMAT:
            raise StoreError(
                f"{self.path} has format {version}, and this s4node reads format {FORMAT}; use the "
                f"s4node that wrote it"
            )
        meta = dict(self.execute("SELECT name, value FROM meta"))
        if (meta.get("stream"), meta.get("partition")) != (stream, number):
            raise StoreError(
                f"{self.path} is partition {meta.get('partition')} of stream "
                f"{meta.get('stream')!r}, not partition {number} of {stream!r}; put each file "
                f"back in its own place"
            )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Translate errors of SQLite, of the disk and of decoding into ours."""
        try:
            with super().explained():
                yield
        except OSError as error:
            raise NotTaken(
                f"{self.path} cannot be accessed ({error}); check its disk and permissions"
            ) from error
        except (*UNREADABLE, TypeError) as error:
            raise corrupt(self.path, str(error), self._trim) from error

    def unopened(self, error: sqlite3.Error) -> Exception:
        return StoreError(
            f"{self.path} cannot be opened ({error}); put the file back or fix its permissions"
        )

    def explain(self, error: sqlite3.Error) -> Exception:
        code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
        self.read_only = self.read_only or code == sqlite3.SQLITE_READONLY
        if code in _DAMAGED:
            return corrupt(self.path, str(error), self._trim)
        if not self.writing:
            return StoreError(
                f"{self.path} cannot be used ({error}); check its disk and permissions"
            )
        if code in _FULL:
            return NotTaken(
                f"the disk is full ({self.path}: {error}); free some space, or retain less"
            )
        return NotTaken(
            f"{self.path} cannot be written ({error}); check its permissions, and whether another "
            f"program has it open"
        )


def corrupt(path: Path, what: str, trim: bool = False) -> StoreCorrupt:
    """The error for a damaged file; if ``trim``, the events after the damage may still be read."""
    return StoreCorrupt(
        f"{path} is damaged ({what}); "
        f"{'trim the stream beyond the damage (s4 log trim), or ' if trim else ''}stop the node "
        f"and put back a copy of the file, or rename it to {path.stem}.lost: the partition then "
        f"starts again without the events of this file"
    )
