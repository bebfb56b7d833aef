"""A partition's file as a SQLite database: its format, how it is made and opened, and its errors.

Rules
- What a disk, a lock or rights keep from being written is NotTaken: it may be tried again.
- What does not fit is said, never guessed at: StoreCorrupt.
- A file that was given up is renamed to ``NNNN.lost`` by its owner, never by us. Its
  partition begins anew then, at an offset that no event of the former file can have had: so who
  goes on from there is told that events are gone, as by retention.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from s4node import clocks, disk
from s4node.errors import StoreCorrupt, StoreError
from s4node.events.schema import UNREADABLE
from s4node.log.partition_rows import FRAMES_TABLE
from s4node.sqlite import Database

FORMAT = 2
"""The version of the files; one with another is refused."""

PAGE_BYTES = 16_384
"""A page of the database."""

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
    """It was not written for now, and may be tried again. Says why.

    Who tries again loads the book before: the disk may have it after all, and nobody was told.
    """


def create_database(path: Path, stream: str, number: int, oldest: int = 0) -> None:
    """Make the file of an empty partition, which begins at the offset ``oldest``; raises StoreError
    where the disk does not take it."""
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
    """Make the file of a partition whose former one was given up, and keep that under another
    name; returns the first offset, and that name.

    None where nothing is to be done. Raises OSError or StoreError where the disk does not take it.
    """
    lost = path.with_suffix(".lost")
    if path.exists() or not lost.exists():
        return None
    oldest = int(clocks.wall() * 1_000_000)  # nobody appends a million events a second for ever
    kept = path.with_suffix(f".lost-{oldest}")
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    create_database(new, stream, number, oldest)
    with contextlib.suppress(FileNotFoundError):  # it would be taken for the new file's
        path.with_name(f"{path.name}-wal").rename(kept.with_name(f"{kept.name}-wal"))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    new.rename(path)
    lost.rename(kept)
    disk.sync(path.parent)
    return oldest, kept


class PartitionDatabase(Database):
    """A connection to a partition's file, for threads in turn.

    Who is ``writing`` may try again what was not taken. ``trim`` says that what comes behind a
    damage may still be read.
    """

    def __init__(self, path: Path, mode: str, *, writing: bool = False, trim: bool = False) -> None:
        super().__init__(path, mode, patience=1.0)
        self.writing = writing
        self.read_only = False
        """It was opened without the right to write, as SQLite has said."""
        self._trim = trim

    def check(self, stream: str, number: int) -> None:
        """Raise what is wrong where it is not the file of this partition, in a format that we
        read."""
        application, version = self.marks()
        if application != _APPLICATION:
            raise corrupt(self.path, f"it is no file of a log: application id {application:#x}")
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
                f"back to its own place"
            )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Errors of SQLite as ours, and those of the disk and of what was written there."""
        try:
            with super().explained():
                yield
        except OSError as error:
            raise NotTaken(
                f"{self.path} cannot be looked at ({error}); see to its disk and rights"
            ) from error
        except (*UNREADABLE, TypeError) as error:
            raise corrupt(self.path, str(error), self._trim) from error

    def unopened(self, error: sqlite3.Error) -> Exception:
        """Why it cannot be opened."""
        return StoreError(
            f"{self.path} cannot be opened ({error}); put the file back or fix its permissions"
        )

    def explain(self, error: sqlite3.Error) -> Exception:
        """What it is to the log."""
        code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
        self.read_only = self.read_only or code == sqlite3.SQLITE_READONLY
        if code in _DAMAGED:
            return corrupt(self.path, str(error), self._trim)
        if not self.writing:
            return StoreError(f"{self.path} cannot be used ({error}); see to its disk and rights")
        if code in _FULL:
            return NotTaken(
                f"the disk takes nothing more ({self.path}: {error}); make room on it, or keep less"
            )
        return NotTaken(
            f"{self.path} cannot be written ({error}); see to its rights, and to who else has it "
            f"open"
        )


def corrupt(path: Path, what: str, trim: bool = False) -> StoreCorrupt:
    """``trim`` says that what comes behind the damage may still be read."""
    return StoreCorrupt(
        f"{path} is damaged ({what}); "
        f"{'trim the stream beyond what is damaged (s4 log trim), or ' if trim else ''}stop the "
        f"node and put back a copy of the file, or rename it to {path.stem}.lost: the partition "
        f"then begins anew, without what was in it"
    )
