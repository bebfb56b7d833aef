"""A partition's file as a SQLite database: its format, how it is made and opened, and its errors.

Rules
- What a disk, a lock or rights keep from being written is NotTaken: it may be tried again.
- What does not fit is said, never guessed at: StoreCorrupt.
- A file that was given up is renamed to ``NNNN.lost`` by whoever gives it up, never by us. Its
  partition begins anew then, at an offset that no event of the former file can have had: so who
  goes on from there is told that events are gone, as by retention.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from s4node.errors import StoreCorrupt, StoreError
from s4node.events.schema import UNREADABLE
from s4node.log.partition_rows import FRAMES_TABLE

FORMAT = 1
"""The version of the files; one with a higher one is refused."""

PAGE_BYTES = 16_384
"""A page of the database."""

_APPLICATION = 0x53344C47  # "S4LG"

_SCHEMA = f"""{FRAMES_TABLE}
CREATE TABLE types (fingerprint BLOB PRIMARY KEY, declaration BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE producers (
    id TEXT PRIMARY KEY, next INTEGER NOT NULL, seen_ms INTEGER NOT NULL
) WITHOUT ROWID;
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
    database = connect(path, "rwc")
    try:
        with sqlite_errors_as_ours(path, writing=False):
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
    create_database(new, stream, number, oldest)
    with contextlib.suppress(FileNotFoundError):  # it would be taken for the new file's
        path.with_name(f"{path.name}-wal").rename(kept.with_name(f"{kept.name}-wal"))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    new.rename(path)
    lost.rename(kept)
    return oldest, kept


def connect(path: Path, mode: str) -> sqlite3.Connection:
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


def check(database: sqlite3.Connection, path: Path, stream: str, number: int) -> None:
    """Raise what is wrong where it is not the file of this partition, in a format that we read."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise corrupt(path, f"it is no file of a log: application id {application:#x}")
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
def sqlite_errors_as_ours(path: Path, writing: bool = True, trim: bool = False) -> Iterator[None]:
    """SQLite's errors as ours; ``trim`` as for damage."""
    try:
        yield
    except sqlite3.Error as error:
        code = primary_code(error)
        if code in _DAMAGED:
            raise corrupt(path, str(error), trim) from error
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
        raise corrupt(path, str(error), trim) from error


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary code of an error."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def corrupt(path: Path, what: str, trim: bool = False) -> StoreCorrupt:
    """``trim`` says that what comes behind the damage may still be read."""
    return StoreCorrupt(
        f"{path} is damaged ({what}); "
        f"{'trim the stream beyond what is damaged (s4 log trim), or ' if trim else ''}stop the "
        f"node and put back a copy of the file, or rename it to {path.stem}.lost: the partition "
        f"then begins anew, without what was in it"
    )
