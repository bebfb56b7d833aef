"""A SQLite database as a file of s4node: opening, identity, transactions and errors.

Rules
- Calls block: make them in threads where blocking is not allowed. Threads take turns.
- The owner of the file translates every SQLite error.
- A new file is for its own user only. SQLite gives those beside it the same permissions.
- The owner of the file decides how many of the last writes a power cut may lose.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from s4node import disk
from s4node.failpoints import passing
from s4node.open_files import opened

_TRIES, _PAUSE_SECONDS = 50, 0.01
"""The tries, and the pause between them, while another connection changes a file."""


class Database:
    """One connection to the file at ``path``.

    ``mode`` is rwc to create a missing file, rw, or ro to only read. A call waits ``patience``
    seconds for another connection's lock.
    """

    def __init__(self, path: Path, mode: str = "rwc", *, patience: float) -> None:
        self.path = path
        self.waits = False
        """True if each transaction waits for the disk."""
        if mode == "rwc":
            with suppress(OSError):  # which SQLite will report
                os.close(disk.private(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL))
        try:
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=patience,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self.unopened(error) from error
        self.execute = self._db.execute
        self.executemany = self._db.executemany
        opened(self, path)

    def explain(self, error: sqlite3.Error) -> Exception:
        """The owner's error for an SQLite error."""
        return error

    def unopened(self, error: sqlite3.Error) -> Exception:
        """The owner's error for a file that cannot be opened."""
        return self.explain(error)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Translate SQLite errors raised in the block."""
        try:
            yield
        except sqlite3.Error as error:
            meant = self.explain(error)
            if meant is error:
                raise
            raise meant from error

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[None]:
        with self.explained():
            if write:
                passing("disk.write")
            self.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield
                self.execute("COMMIT")
                if self.waits and write:
                    passing("disk.synced")
            except BaseException:
                if self._db.in_transaction:  # some errors have rolled back already
                    with suppress(sqlite3.Error):
                        self.execute("ROLLBACK")
                raise

    def one(self, query: str, values: tuple[object, ...] = ()) -> Any:
        return self.execute(query, values).fetchone()

    def marks(self) -> tuple[int, int]:
        """The application and the format of the file; both are 0 in a new one."""
        return self.one("PRAGMA application_id")[0], self.one("PRAGMA user_version")[0]

    def is_empty(self) -> bool:
        return self.marks() == (0, 0) and not self.one("SELECT 1 FROM sqlite_master LIMIT 1")

    def make(self, application: int, version: int, schema: str) -> None:
        """Mark the file and create its tables, within the current transaction."""
        self.execute(f"PRAGMA application_id = {application}")
        self.execute(f"PRAGMA user_version = {version}")
        for statement in schema.split(";"):
            self.execute(statement)

    def write_ahead(self) -> None:
        """Use a write-ahead log, from now on for everyone who opens the file.

        Waits for a connection that is doing the same, which SQLite does not.
        """
        for left in range(_TRIES, -1, -1):
            if self.one("PRAGMA journal_mode")[0] == "wal":
                return
            try:
                self.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if not left or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        self._db.close()
