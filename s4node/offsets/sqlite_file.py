"""A small SQLite database that several processes of one machine share.

Rules
- Calls block, one at a time. Every later process sees what was written, even if this one crashes; a
  power cut may lose the last writes, unless each write waits for the disk.
- A file names its application and format; a file of another program or format is refused.
- A file without write permission is opened read-only, and nothing is created beside it; a write is
  then a temporary error.
- A temporary error (full disk, another's lock, lost permissions) raises the form's ``unwritten``:
  nothing was written, and it may be retried. Damage and another format raise ``damaged``.
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
    """A kind of file.

    ``application`` is the number by which SQLite's tools know whose file it is. ``what`` names the
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
    """The database of this form in ``folder``; both are created if missing.

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
        # without that file no process has the database open, and none can be created
        mode = "ro" if beside.exists() else "ro&immutable=1"
        super().__init__(self.path, mode, patience=_PATIENCE_SECONDS)
        with self._closed_if_unfit(), self.transaction(write=False):
            self._check_file()

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
        with self.transaction():  # of two processes that start at once, one creates it
            if self.is_empty():
                self.make(self._form.application, self._form.version, self._form.schema)
            self._check_file()

    def _check_file(self) -> None:
        application, version = self.marks()
        if application != self._form.application:
            raise self._form.damaged(
                f"{self.path} is a database of another program; set s4.state.folder to another "
                f"folder"
            )
        if version != self._form.version:
            raise self._form.damaged(
                f"{self.path} has format {version}, and this s4node reads format "
                f"{self._form.version}; use the s4node that wrote it"
            )

    def _parsed(self, text: str) -> object:
        """Decode JSON that an SqliteFile has written."""
        try:
            return msgspec.json.decode(text)
        except (*UNREADABLE, TypeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> S4Error:
        return self._form.damaged(f"{self.path} is damaged ({error}); {self._form.fix}")

    def explain(self, error: sqlite3.Error) -> Exception:
        if isinstance(error, sqlite3.OperationalError):
            if not _writable(self.path.parent, self.path):
                return self._form.unwritten(
                    f"{self.path} cannot be used: it is not writable ({error}); fix the "
                    f"permissions of the file and its folder, or set s4.state.folder to a copy"
                )
            return self._form.unwritten(
                f"{self._form.what} cannot be saved in {self.path} ({error}); free some space on "
                f"the disk, or fix the permissions"
            )
        return self._damaged(error) if isinstance(error, sqlite3.DatabaseError) else error


def _writable(folder: Path, file: Path) -> bool:
    """Return True if this process may write the file, and create others beside it."""
    return os.access(folder, os.W_OK) and os.access(file, os.W_OK)
