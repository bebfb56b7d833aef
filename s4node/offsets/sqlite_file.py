"""A small SQLite database that several processes of one machine share.

Rules
- Plain blocking calls; who may not block makes them from a thread, one at a time. What is written
  is there for every later process, after a crash of this one as well; a power cut may take the last
  writes.
- A file says whose it is and in which format; one of another program or another format is refused.
- Where the file may not be written it is opened to be read, and leaves nothing behind; what would
  write is a passing trouble.
- What a passing trouble may be (full disk, another's lock, lost rights) raises ``unwritten`` of its
  form: nothing has happened, and it can be tried again. Damage and another format raise
  ``damaged``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node.errors import S4Error
from s4node.events.schema import UNREADABLE

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
        if self.path.exists() and not _writable(folder, self.path):
            self._open_to_read()
            return
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

    def _open_to_read(self) -> None:
        """Open the file to be read."""
        place = f"{self.path.absolute().as_uri()}?mode=ro"
        if not self.path.with_name(f"{self.path.name}-wal").exists():
            place += "&immutable=1"  # nobody has it open, and nothing can be put beside it
        with self._explained():
            self._db = sqlite3.connect(
                place, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip
        try:
            with self._transaction(write=False):
                self._check()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db, form = self._db, self._form
        db.execute("PRAGMA synchronous = NORMAL")
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            db.execute("PRAGMA journal_mode = WAL")
        with self._transaction():  # of two that begin at once, one makes it
            empty = not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            if empty and self._marks() == (0, 0):
                db.execute(f"PRAGMA application_id = {form.application}")
                db.execute(f"PRAGMA user_version = {form.version}")
                for statement in form.schema.split(";"):
                    db.execute(statement)
            self._check()

    def _marks(self) -> tuple[int, int]:
        """Whose file it is, and in which format."""
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        return application, self._db.execute("PRAGMA user_version").fetchone()[0]

    def _check(self) -> None:
        application, version = self._marks()
        if application != self._form.application:
            raise self._form.damaged(
                f"{self.path} is a database of another program; set s4.state.folder to another "
                f"folder"
            )
        if version != self._form.version:
            raise self._form.damaged(
                f"{self.path} is written in format {version}, and this s4node reads format "
                f"{self._form.version}; run the s4node that wrote it"
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
        except (*UNREADABLE, TypeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> S4Error:
        """What to raise where something in the file cannot be read."""
        return self._form.damaged(f"{self.path} is damaged ({error}); {self._form.mend}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if not _writable(self.path.parent, self.path):
                raise self._form.unwritten(
                    f"{self.path} cannot be used as it is: it may not be written ({error}); mend "
                    f"its rights and its folder's, or set s4.state.folder to a copy of that folder"
                ) from error
            raise self._form.unwritten(
                f"{self._form.what} cannot be kept in {self.path} ({error}); make room on the "
                f"disk, or mend the rights"
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error


def _writable(folder: Path, file: Path) -> bool:
    """Whether this process may write the file, and put others beside it."""
    return os.access(folder, os.W_OK) and os.access(file, os.W_OK)
