"""Who may write the progress of an app's tasks: a SQLite database that the processes share.

Rules
- One row a task. Who wants to write its progress and state claims it first; a claim fences all
  earlier ones, which raise TaskFenced from then on, whenever their process wakes up. A claim by an
  older epoch of the same coordination is refused.
- Offsets and state are in a database of the task's own, in a folder of the claim; see state/epochs.
- Plain blocking calls, one transaction each; who may not block calls them from a thread, one at a
  time.
- What a passing trouble may be (full disk, another's lock, lost rights) raises ProgressUnwritten:
  nothing has happened, and it can be tried again. Damage and a newer format are CheckpointError.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node.errors import CheckpointError, ProgressUnwritten, TaskFenced
from s4node.progress.checkpoint import JobGuard

FORMAT = 2
FILE = "progress.sqlite"
_APPLICATION = 0x53344E70  # "S4Np", SQLite's place for saying whose file this is
_PATIENCE_SECONDS = 2.0

_SCHEMA = """
CREATE TABLE job (one INTEGER PRIMARY KEY CHECK (one = 1), guard TEXT NOT NULL);
CREATE TABLE task (
    name TEXT PRIMARY KEY, fence INTEGER NOT NULL, origin TEXT NOT NULL, epoch INTEGER NOT NULL,
    written_ms INTEGER NOT NULL
) WITHOUT ROWID;
"""


class Claim(NamedTuple):
    """The right to write a task's progress, as long as nobody has claimed it since."""

    task: str
    fence: int


class ProgressStore:
    """The database ``progress.sqlite`` in ``folder``, both made where missing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProgressUnwritten(
                f"progress cannot be kept in {folder} ({error}); mend its rights, or set "
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
        db = self._db
        db.execute("PRAGMA synchronous = NORMAL")
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            db.execute("PRAGMA journal_mode = WAL")
        with self._transaction():  # of two that begin at once, one makes it
            version = db.execute("PRAGMA user_version").fetchone()[0]
            application = db.execute("PRAGMA application_id").fetchone()[0]
            empty = not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            if empty and (version, application) == (0, 0):
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {FORMAT}")
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
            elif application != _APPLICATION:
                raise CheckpointError(
                    f"{self.path} is a database of another program; set s4.state.folder to another "
                    f"folder"
                )
            elif version != FORMAT:
                raise CheckpointError(
                    f"{self.path} is written in format {version}, and this s4node reads format "
                    f"{FORMAT}; run the s4node that wrote it"
                )

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        self._db.close()

    # -- the job -----------------------------------------------------------------------------

    def admit(self, job: JobGuard) -> None:
        """Let the job go on from what is here, and remember what it is like.

        Raises CheckpointError with every reason why it cannot.
        """
        with self._transaction():
            row = self._db.execute("SELECT guard FROM job").fetchone()
            before = None if row is None else JobGuard.of(self._parsed(row[0]))
            if before is not None:
                problems = job.problems(before)
                if problems:
                    listed = "\n".join(f"- {problem}" for problem in problems)
                    raise CheckpointError(
                        f"the progress in {self.path} does not fit this job:\n{listed}\nOr delete "
                        f"that folder, to begin without any progress."
                    )
                job = job.over(before)
            text = msgspec.json.encode(job.to_row()).decode()
            self._db.execute("INSERT OR REPLACE INTO job VALUES (1, ?)", (text,))

    # -- tasks -------------------------------------------------------------------------------

    def claim(self, task: str, origin: str, epoch: int, above: int = 0) -> Claim:
        """Become the one who writes a task's progress, with a fence higher than ``above``.

        ``origin`` names the coordination that gave the task away in ``epoch``. Raises TaskFenced
        where a later epoch of the same coordination has claimed it already.
        """
        with self._transaction():
            row = self._db.execute(
                "SELECT fence, origin, epoch FROM task WHERE name = ?", (task,)
            ).fetchone()
            if row is not None and row[1] == origin and row[2] > epoch:
                raise TaskFenced(
                    f"task {task!r} belongs to epoch {row[2]} by now, and this container had "
                    f"it in epoch {epoch}; it stops, for two owners would count twice"
                )
            fence = max(0 if row is None else row[0], above) + 1
            self._db.execute(
                "INSERT INTO task VALUES (?, ?, ?, ?, 0) ON CONFLICT (name) DO UPDATE "
                "SET fence = excluded.fence, origin = excluded.origin, epoch = excluded.epoch",
                (task, fence, origin, epoch),
            )
        return Claim(task, fence)

    def renew(self, claim: Claim, written_ms: int) -> None:
        """Say that a task's progress is written now; raises TaskFenced where another has claimed
        it since."""
        with self._transaction():
            renewed = self._db.execute(
                "UPDATE task SET written_ms = ? WHERE name = ? AND fence = ?", (written_ms, *claim)
            ).rowcount
        if not renewed:
            raise TaskFenced(
                f"another container has taken task {claim.task!r} over; this one stops, and what "
                f"it has processed since its last commit is processed again there"
            )

    def tasks(self) -> dict[str, int]:
        """The tasks that somebody has claimed, and when each has last written (Unix time, ms)."""
        with self._transaction(write=False):
            return dict(self._db.execute("SELECT name, written_ms FROM task").fetchall())

    # -- inside ------------------------------------------------------------------------------

    def _parsed(self, text: str) -> object:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, TypeError) as error:
            raise CheckpointError(f"{self.path} is damaged ({error}); {_MEND}") from error

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[None]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise ProgressUnwritten(
                f"progress cannot be kept in {self.path} ({error}); make room on the disk, or mend "
                f"the rights"
            ) from error
        except sqlite3.DatabaseError as error:
            raise CheckpointError(f"{self.path} is damaged ({error}); {_MEND}") from error


_MEND = "put a copy of it back, or delete it: what the tasks keep is in folders beside it"


def now_ms() -> int:
    """Unix time, for checkpoints."""
    return int(time.time() * 1000)
