"""A small SQLite database that several processes of one machine share.

Rules
- Calls block, one at a time; use a thread where blocking is not allowed. What is written is there
  for every later process, after a crash of this one as well; a power cut may lose the last writes,
  unless each write waits for the disk.
- A file has its application and format; one of another program or another format is refused.
- A file that may not be written is opened read-only, and leaves nothing behind; a write then is a
  temporary error.
- A temporary error (full disk, another's lock, lost rights) raises the form's ``unwritten``:
  nothing has happened, and it can be retried. Damage and another format raise ``damaged``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node import disk
from s4node.errors import S4Error
from s4node.events.schema import UNREADABLE
from s4node.sqlite import Database

_PATIENCE_SECONDS = 2.0


class Form(NamedTuple):
    """The kind of a file.

    ``application`` is the number by which SQLite says whose file it is. ``what`` describes the
    content in messages, and ``fix`` says what to do about a damaged file.
    """

    file: str
    application: int
    version: int
    schema: str
    what: str
    fix: str
    unwritten: type[S4Error]
    damaged: type[S4Error]


class SqliteFile(Database):
    """The database of this form in ``folder``, both made if missing.

    With ``sync`` each transaction waits for the disk.
    """

    def __init__(self, folder: Path, form: Form, *, sync: bool) -> None:
        self.path = folder / form.file
        self._form = form
        if self.path.exists() and not _writable(folder, self.path):
            self._open_to_read()
            return
        try:
            disk.make_folders(folder)
        except OSError as error:
            raise form.unwritten(
                f"{form.what} cannot be saved in {folder} ({error}); fix its permissions, or set "
                f"s4.state.folder to another folder"
            ) from error
        super().__init__(self.path, patience=_PATIENCE_SECONDS)
        self.waits = sync
        with self._closed_if_unfit():
            self._prepare()

    def _open_to_read(self) -> None:
        beside = self.path.with_name(f"{self.path.name}-wal")
        # without one no process has it open, and nothing can be put beside it
        mode = "ro" if beside.exists() else "ro&immutable=1"
        super().__init__(self.path, mode, patience=_PATIENCE_SECONDS)
        with self._closed_if_unfit(), self.transaction(write=False):
            self._check()

    @contextmanager
    def _closed_if_unfit(self) -> Iterator[None]:
        try:
            with self.explained():
                yield
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        self.execute(f"PRAGMA synchronous = {'FULL' if self.waits else 'NORMAL'}")
        self.write_ahead()
        with self.transaction():  # of two that begin at once, one makes it
            if self.is_empty():
                self.make(self._form.application, self._form.version, self._form.schema)
            self._check()

    def _check(self) -> None:
        application, version = self.marks()
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

    def _parsed(self, text: str) -> object:
        """JSON that was written here."""
        try:
            return msgspec.json.decode(text)
        except (*UNREADABLE, TypeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> S4Error:
        """The error for a file with an unreadable part."""
        return self._form.damaged(f"{self.path} is damaged ({error}); {self._form.fix}")

    def explain(self, error: sqlite3.Error) -> Exception:
        """The error for people who start nodes."""
        if isinstance(error, sqlite3.OperationalError):
            if not _writable(self.path.parent, self.path):
                return self._form.unwritten(
                    f"{self.path} cannot be used as it is: it may not be written ({error}); fix "
                    f"its permissions and its folder's, or set s4.state.folder to a copy of it"
                )
            return self._form.unwritten(
                f"{self._form.what} cannot be saved in {self.path} ({error}); make room on the "
                f"disk, or fix the permissions"
            )
        return self._damaged(error) if isinstance(error, sqlite3.DatabaseError) else error


def _writable(folder: Path, file: Path) -> bool:
    """Return True if this process may write the file, and create others beside it."""
    return os.access(folder, os.W_OK) and os.access(file, os.W_OK)
