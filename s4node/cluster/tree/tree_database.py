"""The tree of entries in a SQLite database that the processes of one machine share.

Rules
- Calls block, one transaction each, for a tenth of a millisecond or so; one thread at a time.
- A transaction of a session first checks that the session still exists. So a session that was ended
  writes nothing more, whenever its process wakes up.
- Errors of SQLite become CoordinationError, or TreeBusy if nothing has happened and the call can be
  retried.
- The database survives crashes of processes, and power cuts: each change waits for the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from s4node.cluster.tree.contract import Entry, LastingTreeError, parent_of
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
    "the others ended it, because it sent no heartbeat for too long; restart it, and find out what "
    "stopped the process: a handler that blocks its loop, SIGSTOP, or a disk that failed"
)
"""The reason for the end of a session that did not close itself."""

FORMAT = 1
_APPLICATION = 0x53344E6F  # "S4No", by which SQLite's tools know whose file this is
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


class DamagedTreeError(LastingTreeError):
    """The database is damaged. SQLite also reports that if the disk cannot be read (EIO)."""


class TreeBusy(Exception):  # noqa: N818 - a reason to retry, never seen outside of the room
    """Another process is writing; nothing has happened."""


class SessionRow(NamedTuple):
    """A session as all processes know it; ``timeout`` in seconds."""

    id: str
    name: str
    timeout: float


class _TreeFile(Database):
    def explain(self, error: sqlite3.Error) -> Exception:
        return _explain(self.path, error)


class Tree(_TreeFile):
    """The database at ``path``, which is created if missing.

    Only one process at a time may create it: hold a lock around the constructor.
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
                f"{self.path} is a database of another program; set s4.coordination.folder to "
                f"another folder"
            )
        if version != FORMAT:
            raise LastingTreeError(
                f"{self.path} has format {version}, and this s4node reads format {FORMAT}; stop "
                f"all nodes and delete the folder, or use the s4node that created it"
            )

    def watch(self) -> Watch:
        """A connection to the same database that only notices changes."""
        return Watch(self.path)

    # --- sessions --------------------------------------------------------------------------------

    def open_session(self, session: SessionRow) -> None:
        with self.transaction():
            self.execute("INSERT INTO session VALUES (?, ?, ?)", session)

    def end_session(self, session: str) -> bool:
        """Delete a session and its ephemeral entries; returns False if it was deleted already."""
        with self.transaction():
            if not self.execute("DELETE FROM session WHERE id = ?", (session,)).rowcount:
                return False
            rows = self.execute("SELECT path FROM entry WHERE session = ?", (session,))
            for (path,) in rows.fetchall():
                self._remove(path)
            return True

    def sessions(self) -> list[SessionRow]:
        with self.transaction(write=False):
            rows = self.execute("SELECT id, name, timeout FROM session ORDER BY id")
            return [SessionRow(*row) for row in rows]

    # --- entries: the calls of contract.Session, for one session ---------------------------------

    def add_entry(self, session: str, path: str, data: bytes, ephemeral: bool) -> None:
        with self._of_session(session):
            if self._version(path) is not None:
                raise EntryExists(f"the entry {path!r} exists already; {_READ_AGAIN}")
            missing = [path]
            above = parent_of(path)
            while self._version(above) is None:
                missing.append(above)
                above = parent_of(above)
            if self.one("SELECT session FROM entry WHERE path = ?", (above,))[0]:
                raise CoordinationError(
                    f"{path!r} would be below {above!r}, which is ephemeral and can have no "
                    f"entries below it; choose another path"
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
        with self._of_session(session, write=False):
            row = self.one(
                "SELECT data, version, session, created FROM entry WHERE path = ?", (path,)
            )
            return Entry(*row) if row else None

    def set(self, session: str, path: str, data: bytes, version: int | None) -> int:
        with self._of_session(session):
            found = self._expect(path, version)
            self.execute(
                "UPDATE entry SET data = ?, version = ? WHERE path = ?", (data, found + 1, path)
            )
            self._touch(path, self._next_number())
            return found + 1

    def delete(self, session: str, path: str, version: int | None) -> None:
        with self._of_session(session):
            self._expect(path, version)
            if self.one("SELECT 1 FROM entry WHERE parent = ?", (path,)):
                raise EntryNotEmpty(f"{path!r} has entries below it; delete those first")
            self._remove(path)

    def children(self, session: str, path: str) -> list[str]:
        with self._of_session(session, write=False):
            rows = self.execute("SELECT path FROM entry WHERE parent = ?", (path,))
            return sorted(child.rpartition("/")[2] for (child,) in rows)

    def change(self, session: str, path: str) -> int:
        """See :meth:`coordination.Session.change`.

        A deleted entry is only noted in the entries above it, so the nearest of these answers.
        """
        with self._of_session(session, write=False):
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
            raise BadVersion(f"{path!r} is at version {found}, not {version}; {_READ_AGAIN}")
        return found

    def _next_number(self) -> int:
        """The next number; every change touches the root, which has the last one."""
        row = self.one("SELECT changed FROM entry WHERE path = '/'")
        return int(row[0]) + 1

    def _touch(self, path: str, number: int) -> None:
        """Mark the entries from ``path`` up to the root as changed."""
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
    def _of_session(self, session: str, *, write: bool = True) -> Iterator[None]:
        """A transaction of a session that still exists; else raises SessionLost."""
        with self.transaction(write=write):
            if not self.one("SELECT 1 FROM session WHERE id = ?", (session,)):
                raise SessionLost(ENDED)
            yield


class Watch(_TreeFile):
    """Notices changes of the database at ``path``, without ever waiting."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, patience=0)
        self._last: int | None = None

    def changed(self) -> bool:
        """Return True if anybody has committed since the last call; True at the first call.

        Raises TreeBusy and CoordinationError as all calls do.
        """
        with self.explained():
            version = int(self.one("PRAGMA data_version")[0])
        before, self._last = self._last, version
        return version != before


_READ_AGAIN = "read it again before you decide"


def _explain(path: Path, error: sqlite3.Error) -> Exception:
    """The error that explains SQLite's error to operators."""
    if isinstance(error, sqlite3.ProgrammingError):
        return error  # a bug of ours, such as a closed database
    name = getattr(error, "sqlite_errorname", "")
    base = "_".join(name.split("_")[:2])
    if base in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"):
        return TreeBusy(str(error))
    fix = {
        "SQLITE_FULL": "the disk is full: free some space on it",
        "SQLITE_CORRUPT": "it is damaged, or its disk cannot be read: check the disk (dmesg); if "
        "the disk is sound, stop all nodes and delete the folder; they create it again",
        "SQLITE_NOTADB": "it is damaged: stop all nodes and delete the folder; they create it "
        "again",
        "SQLITE_READONLY": "it cannot be written: fix its permissions, or use another folder",
        "SQLITE_CANTOPEN": "it cannot be opened: fix the folder's permissions, or use another one",
    }.get(base, "check that its disk works and its folder exists")
    damaged = base in ("SQLITE_CORRUPT", "SQLITE_NOTADB")
    return (DamagedTreeError if damaged else CoordinationError)(
        f"the coordination's database {path} cannot be used ({error}); {fix} "
        f"(setting s4.coordination.folder)"
    )
