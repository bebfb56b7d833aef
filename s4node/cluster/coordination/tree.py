"""The tree of entries in a SQLite database, shared by the processes of one machine.

Rules
- Plain blocking calls, one transaction each, of a tenth of a millisecond or so; who may not block
  calls them from a thread. One thread at a time.
- A transaction that belongs to a session looks first whether the session is still there, so a
  session that was ended writes nothing more, whenever its process wakes up.
- Errors of SQLite leave this module as CoordinationError, or as TreeBusy, after which nothing has
  happened and the call can be made again.
- The database outlives crashes of processes, and a power cut: each change waits for the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from s4node.cluster.coordination.contract import Entry, parent_of
from s4node.errors import (
    BadVersion,
    CoordinationError,
    EntryExists,
    EntryNotEmpty,
    NoEntry,
    SessionLost,
)
from s4node.sqlite import Database

ENDED = (
    "the others ended it, for it gave no sign of life for too long; start anew, and see what "
    "stopped the process: a handler that blocks its loop, SIGSTOP, or a disk that took no writes"
)
"""Why a session is over that did not end itself."""

FORMAT = 1
_APPLICATION = 0x53344E6F  # "S4No", SQLite's place for saying whose file this is
_PATIENCE_SECONDS = 0.2
"""How long a call waits for another process before it raises TreeBusy."""

_SCHEMA = """
CREATE TABLE session (id TEXT PRIMARY KEY, name TEXT, timeout REAL) WITHOUT ROWID;
CREATE TABLE entry (
    path TEXT PRIMARY KEY, parent TEXT, data BLOB, version INTEGER, session TEXT,
    created INTEGER, changed INTEGER
);
CREATE INDEX entry_parent ON entry (parent);
CREATE INDEX entry_session ON entry (session) WHERE session != '';
INSERT INTO entry VALUES ('/', '', x'', 0, '', 0, 0);
"""


class LastingTreeError(CoordinationError):
    """The database is none that we can use; waiting does not help."""


class DamagedTreeError(LastingTreeError):
    """The database is none any more. SQLite also says so where the disk cannot be read (EIO)."""


class TreeBusy(Exception):  # noqa: N818 - a reason to try again, never seen outside of the room
    """Another process is writing; nothing has happened."""


class SessionRow(NamedTuple):
    """A session as all know it; ``timeout`` in seconds."""

    id: str
    name: str
    timeout: float


class _TreeFile(Database):
    def explain(self, error: sqlite3.Error) -> Exception:
        """What it means to somebody who starts nodes."""
        return _explain(self.path, error)


class Tree(_TreeFile):
    """The database at ``path``, which is made if it is missing.

    Only one process at a time may be making it: hold a lock around the constructor.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, patience=_PATIENCE_SECONDS)
        try:
            with self.explained():
                self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        self.execute("PRAGMA synchronous = FULL")
        if self.is_empty():
            self.execute("PRAGMA journal_mode = WAL")
            with self.transaction():
                self.make(_APPLICATION, FORMAT, _SCHEMA)
            return
        application, version = self.marks()
        if application != _APPLICATION:
            raise LastingTreeError(
                f"{self.path} is a database of another program; take another folder: "
                f"s4.coordination.folder"
            )
        if version != FORMAT:
            raise LastingTreeError(
                f"{self.path} is written in format {version}, this s4node reads format {FORMAT}; "
                f"stop all nodes and delete the folder, or run the s4node that made it"
            )

    def watch(self) -> Watch:
        """A view of the same database that only says when it changes."""
        return Watch(self.path)

    # --- sessions --------------------------------------------------------------------------------

    def open_session(self, session: SessionRow) -> None:
        """Make a session known to all."""
        with self.transaction():
            self.execute("INSERT INTO session VALUES (?, ?, ?)", session)

    def end_session(self, session: str) -> bool:
        """Delete a session and its ephemeral entries; False if somebody else has done it."""
        with self.transaction():
            if not self.execute("DELETE FROM session WHERE id = ?", (session,)).rowcount:
                return False
            rows = self.execute("SELECT path FROM entry WHERE session = ?", (session,))
            for (path,) in rows.fetchall():
                self._remove(path)
            return True

    def sessions(self) -> list[SessionRow]:
        """All sessions that nobody has ended."""
        with self.transaction(write=False):
            rows = self.execute("SELECT id, name, timeout FROM session ORDER BY id")
            return [SessionRow(*row) for row in rows]

    # --- entries: the calls of coordination.Session, for one session -----------------------------

    def create(self, session: str, path: str, data: bytes, ephemeral: bool) -> None:
        """See :meth:`coordination.Session.create`."""
        with self._for(session):
            if self._version(path) is not None:
                raise EntryExists(f"there is an entry {path!r} already; {_LOOK}")
            missing = [path]
            above = parent_of(path)
            while self._version(above) is None:
                missing.append(above)
                above = parent_of(above)
            if self.one("SELECT session FROM entry WHERE path = ?", (above,))[0]:
                raise CoordinationError(
                    f"{path!r} would be below {above!r}, which is ephemeral and can have nothing "
                    f"below it; put it elsewhere"
                )
            number = self._next_number()
            for one in reversed(missing):
                mine = one == path
                self.execute(
                    "INSERT INTO entry VALUES (?, ?, ?, 0, ?, ?, ?)",
                    (
                        one,
                        parent_of(one),
                        data if mine else b"",
                        session if mine and ephemeral else "",
                        number,
                        number,
                    ),
                )
            self._touch(above, number)

    def get(self, session: str, path: str) -> Entry | None:
        """See :meth:`coordination.Session.get`."""
        with self._for(session, write=False):
            row = self.one(
                "SELECT data, version, session, created FROM entry WHERE path = ?", (path,)
            )
            return Entry(*row) if row else None

    def set(self, session: str, path: str, data: bytes, version: int | None) -> int:
        """See :meth:`coordination.Session.set`."""
        with self._for(session):
            found = self._expect(path, version)
            self.execute(
                "UPDATE entry SET data = ?, version = ? WHERE path = ?", (data, found + 1, path)
            )
            self._touch(path, self._next_number())
            return found + 1

    def delete(self, session: str, path: str, version: int | None) -> None:
        """See :meth:`coordination.Session.delete`."""
        with self._for(session):
            self._expect(path, version)
            if self.one("SELECT 1 FROM entry WHERE parent = ?", (path,)):
                raise EntryNotEmpty(f"{path!r} has entries below it; delete those first")
            self._remove(path)

    def children(self, session: str, path: str) -> list[str]:
        """See :meth:`coordination.Session.children`."""
        with self._for(session, write=False):
            rows = self.execute("SELECT path FROM entry WHERE parent = ?", (path,))
            return sorted(child.rpartition("/")[2] for (child,) in rows)

    def change(self, session: str, path: str) -> int:
        """See :meth:`coordination.Session.change`.

        A deleted entry leaves no trace but in the entries above it, so these answer for it.
        """
        with self._for(session, write=False):
            while True:
                found = self.one("SELECT changed FROM entry WHERE path = ?", (path,))
                if found:
                    return int(found[0])
                path = parent_of(path)

    # --- inside a transaction --------------------------------------------------------------------

    def _version(self, path: str) -> int | None:
        row = self.one("SELECT version FROM entry WHERE path = ?", (path,))
        return int(row[0]) if row else None

    def _expect(self, path: str, version: int | None) -> int:
        found = self._version(path)
        if found is None or path == "/":
            raise NoEntry(f"there is no entry {path!r}; create it first")
        if version is not None and version != found:
            raise BadVersion(f"{path!r} is at version {found}, not {version}; {_LOOK}")
        return found

    def _next_number(self) -> int:
        """Every change touches the root, so the root knows the last number."""
        row = self.one("SELECT changed FROM entry WHERE path = '/'")
        return int(row[0]) + 1

    def _touch(self, path: str, number: int) -> None:
        """Everything from ``path`` up to the root has changed."""
        while True:
            self.execute("UPDATE entry SET changed = ? WHERE path = ?", (number, path))
            if path == "/":
                return
            path = parent_of(path)

    def _remove(self, path: str) -> None:
        number = self._next_number()
        self.execute("DELETE FROM entry WHERE path = ?", (path,))
        self._touch(parent_of(path), number)

    @contextmanager
    def _for(self, session: str, *, write: bool = True) -> Iterator[None]:
        """A transaction of a session, which is still there."""
        with self.transaction(write=write):
            if not self.one("SELECT 1 FROM session WHERE id = ?", (session,)):
                raise SessionLost(ENDED)
            yield


class Watch(_TreeFile):
    """Says whether anybody has changed the database at ``path``, without ever waiting."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, patience=0)
        self._last: int | None = None

    def changed(self) -> bool:
        """Whether somebody committed since the last call; True for the first one.

        Raises TreeBusy and CoordinationError as all calls do.
        """
        with self.explained():
            version = int(self.one("PRAGMA data_version")[0])
        before, self._last = self._last, version
        return version != before


_LOOK = "read it again, and decide anew"


def _explain(path: Path, error: sqlite3.Error) -> Exception:
    """What SQLite's error means to somebody who starts nodes."""
    if isinstance(error, sqlite3.ProgrammingError):
        return error  # a mistake of ours, such as a closed database
    name = getattr(error, "sqlite_errorname", "")
    base = "_".join(name.split("_")[:2])
    if base in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"):
        return TreeBusy(str(error))
    fix = {
        "SQLITE_FULL": "the disk is full: make room on it",
        "SQLITE_CORRUPT": "it is damaged, or its disk cannot be read: look at the disk (dmesg); "
        "if it is well, stop all nodes and delete the folder; they make it anew",
        "SQLITE_NOTADB": "it is damaged: stop all nodes and delete the folder; they make it anew",
        "SQLITE_READONLY": "it cannot be written: fix its permissions, or take another folder",
        "SQLITE_CANTOPEN": "it cannot be opened: fix the folder's permissions, or take another",
    }.get(base, "see whether its disk works and its folder is still there")
    damaged = base in ("SQLITE_CORRUPT", "SQLITE_NOTADB")
    return (DamagedTreeError if damaged else CoordinationError)(
        f"the coordination's database {path} cannot be used ({error}); {fix} "
        f"(setting s4.coordination.folder)"
    )
