"""A small SQLite database that several processes of one machine share.

Rules
- Plain blocking calls; who may not block makes them from a thread, one at a time. What is written
  is there for every later process, after a crash of this one as well; a power cut may take the last
  writes.
- A file says whose it is and in which format; one of another program or another format is refused.
- What a passing trouble may be (full disk, another's lock, lost rights) raises ``unwritten`` of its
  form: nothing has happened, and it can be tried again. Damage and another format raise
  ``damaged``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node.errors import S4Error

_PATIENCE_SECONDS = 2.0


class Form(NamedTuple):
    """What kind of file it is.

    ``application`` is the number by which SQLite says whose file it is. ``what`` is kept in it, in
    words for messages, and ``mend`` says what to do about a damaged one.
    """

    file: str
    application: int
    version: int
    schema: str
    what: str
    mend: str
    unwritten: type[S4Error]
    damaged: type[S4Error]


class SqliteFile:
    """The database of this form in ``folder``, both made where missing."""

    def __init__(self, folder: Path, form: Form) -> None:
        self.path = folder / form.file
        self._form = form
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise form.unwritten(
                f"{form.what} cannot be kept in {folder} ({error}); mend its rights, or set "
                f"s4.state.folder to another folder"
            ) from error
        with self._explained():
            self._db = sqlite3.connect(
                self.path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._explained():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db, form = self._db, self._form
        db.execute("PRAGMA synchronous = NORMAL")
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            db.execute("PRAGMA journal_mode = WAL")
        with self._transaction():  # of two that begin at once, one makes it
            version = db.execute("PRAGMA user_version").fetchone()[0]
            application = db.execute("PRAGMA application_id").fetchone()[0]
            empty = not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            if empty and (version, application) == (0, 0):
                db.execute(f"PRAGMA application_id = {form.application}")
                db.execute(f"PRAGMA user_version = {form.version}")
                for statement in form.schema.split(";"):
                    db.execute(statement)
            elif application != form.application:
                raise form.damaged(
                    f"{self.path} is a database of another program; set s4.state.folder to another "
                    f"folder"
                )
            elif version != form.version:
                raise form.damaged(
                    f"{self.path} is written in format {version}, and this s4node reads format "
                    f"{form.version}; run the s4node that wrote it"
                )

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        self._db.close()

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[None]:
        """All that is done inside happens, or nothing of it."""
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _parsed(self, text: str) -> object:
        """JSON that was written here."""
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, TypeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> S4Error:
        """What to raise where something in the file cannot be read."""
        return self._form.damaged(f"{self.path} is damaged ({error}); {self._form.mend}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise self._form.unwritten(
                f"{self._form.what} cannot be kept in {self.path} ({error}); make room on the "
                f"disk, or mend the rights"
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error
