"""The progress of an app's tasks in a SQLite database, shared by the processes of one machine.

Rules
- One row a task. Who wants to write it claims it first; a claim fences all earlier ones, whose
  writes raise TaskFenced from then on, whenever their process wakes up. A claim by an older epoch
  of the same coordination is refused.
- Plain blocking calls, one transaction each. A power cut may take the last commits, after which
  inputs are replayed.
- What a passing trouble may be raises ProgressUnwritten, damage and a newer format CheckpointError.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node.errors import CheckpointError, ProgressUnwritten, TaskFenced
from s4node.progress.checkpoint import Checkpoint, JobGuard
from s4node.progress.sqlite_file import Form, SqliteFile

FORMAT = 1
FILE = "progress.sqlite"

_SCHEMA = """
CREATE TABLE job (one INTEGER PRIMARY KEY CHECK (one = 1), guard TEXT NOT NULL);
CREATE TABLE task (
    name TEXT PRIMARY KEY, fence INTEGER NOT NULL, origin TEXT NOT NULL, epoch INTEGER NOT NULL,
    offsets TEXT NOT NULL, written_ms INTEGER NOT NULL
) WITHOUT ROWID;
"""

_FORM = Form(
    FILE,
    0x53344E70,  # "S4Np"
    FORMAT,
    _SCHEMA,
    "progress",
    "delete it to begin without any progress (inputs then begin where samza.offset.default says), "
    "or put a copy of it back",
    ProgressUnwritten,
    CheckpointError,
)


class Claim(NamedTuple):
    """The right to write a task's row, as long as nobody has claimed it since."""

    task: str
    fence: int


class ProgressStore(SqliteFile):
    """The database ``progress.sqlite`` in ``folder``, both made where missing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORM)

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

    def job(self) -> JobGuard | None:
        """What the job was like that wrote here."""
        with self._transaction(write=False):
            row = self._db.execute("SELECT guard FROM job").fetchone()
        return None if row is None else JobGuard.of(self._parsed(row[0]))

    # -- tasks -------------------------------------------------------------------------------

    def claim(self, task: str, origin: str, epoch: int) -> tuple[Claim, Checkpoint]:
        """Become the one who writes a task's progress; returns what is kept of it.

        ``origin`` names the coordination that gave the task away in ``epoch``. Raises TaskFenced
        where a later epoch of the same coordination has claimed it already.
        """
        with self._transaction():
            row = self._db.execute(
                "SELECT fence, origin, epoch, offsets, written_ms FROM task WHERE name = ?", (task,)
            ).fetchone()
            if row is None:
                fence, kept = 1, Checkpoint()
                self._db.execute(
                    "INSERT INTO task VALUES (?, 1, ?, ?, '[]', 0)", (task, origin, epoch)
                )
            else:
                if row[1] == origin and row[2] > epoch:
                    raise TaskFenced(
                        f"task {task!r} belongs to epoch {row[2]} by now, and this container had "
                        f"it in epoch {epoch}; it stops, for two owners would count twice"
                    )
                fence = row[0] + 1
                kept = Checkpoint.of(self._parsed(row[3]), row[4])
                self._db.execute(
                    "UPDATE task SET fence = ?, origin = ?, epoch = ? WHERE name = ?",
                    (fence, origin, epoch, task),
                )
        return Claim(task, fence), kept

    def write(self, claim: Claim, checkpoint: Checkpoint) -> None:
        """Keep a task's progress; raises TaskFenced where another has claimed it since."""
        text = msgspec.json.encode(checkpoint.rows()).decode()
        with self._transaction():
            written = self._db.execute(
                "UPDATE task SET offsets = ?, written_ms = ? WHERE name = ? AND fence = ?",
                (text, checkpoint.written_ms, *claim),
            ).rowcount
        if not written:
            raise TaskFenced(
                f"another container has taken task {claim.task!r} over; this one stops, and what "
                f"it has processed since its last commit is processed again there"
            )

    def read(self) -> dict[str, Checkpoint]:
        """What is kept of each task."""
        with self._transaction(write=False):
            rows = self._db.execute("SELECT name, offsets, written_ms FROM task").fetchall()
        return {name: Checkpoint.of(self._parsed(text), ms) for name, text, ms in rows}

    def replace(self, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Have tasks go on elsewhere, all of them or none; for a job that does not run."""
        with self._transaction():
            for task, checkpoint in checkpoints.items():
                text = msgspec.json.encode(checkpoint.rows()).decode()
                self._db.execute(
                    "INSERT INTO task VALUES (?, 1, '', 0, ?, ?) ON CONFLICT (name) DO UPDATE SET "
                    "fence = fence + 1, offsets = excluded.offsets, "
                    "written_ms = excluded.written_ms",
                    (task, text, checkpoint.written_ms),
                )


def now_ms() -> int:
    """Unix time, for checkpoints."""
    return int(time.time() * 1000)
