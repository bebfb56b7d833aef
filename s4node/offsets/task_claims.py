"""Which owner may write the progress of an app's tasks: a SQLite database that processes share.

Rules
- One row a task. An owner claims the task before it writes progress and state; a claim fences all
  earlier ones, which raise TaskFenced from then on, whenever their process resumes. A claim by an
  older epoch of the same coordination is refused.
- Offsets and state are in a database of the task's own, in a folder of the claim; see state/epochs.
- A job has one *run* after the other. The next begins when one has ended: all tasks are done, and
  the last container has stopped in order. That a task is done holds for the run, which neither a
  crash nor an upgrade ends.
- Calls block, one transaction each, one at a time; use a thread where blocking is not allowed.
- A temporary error (full disk, another's lock, lost rights) raises ProgressUnwritten: nothing has
  happened, and it can be retried. Damage and a newer format are CheckpointError.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node import clocks
from s4node.errors import CheckpointError, ProgressUnwritten, TaskFenced
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.sqlite_file import Form, SqliteFile

FORMAT = 6
FILE = "progress.sqlite"

_SCHEMA = """
CREATE TABLE job (
    one INTEGER PRIMARY KEY CHECK (one = 1), guard TEXT NOT NULL, run INTEGER NOT NULL
);
CREATE TABLE task (
    name TEXT PRIMARY KEY, fence INTEGER NOT NULL, origin TEXT NOT NULL, epoch INTEGER NOT NULL,
    written_ms INTEGER NOT NULL, commits INTEGER NOT NULL, acknowledged INTEGER NOT NULL,
    linked INTEGER NOT NULL, done INTEGER NOT NULL
) WITHOUT ROWID;
"""

_FORM = Form(
    FILE,
    0x53344E70,  # "S4Np"
    FORMAT,
    _SCHEMA,
    "progress",
    "put a copy of it back, or delete it: the state of the tasks is in folders beside it",
    ProgressUnwritten,
    CheckpointError,
)


class Claim(NamedTuple):
    """The right to write a task's progress, until another owner claims it.

    ``commit`` is the number of the last commit that was about to be written before, 0 without one,
    and ``acknowledged`` that of the last one that others were told of.
    ``linked`` says that others depend on its commits: they have received events that left with
    them, or an acknowledgement, and do not keep those events any more.
    """

    task: str
    fence: int
    commit: int = 0
    linked: bool = False
    acknowledged: int = 0


class TaskClaims(SqliteFile):
    """The database ``progress.sqlite`` in ``folder``, both made if missing.

    With ``sync`` a power cut takes nothing of it.
    """

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        super().__init__(folder, _FORM, sync=sync)

    # -- the job -----------------------------------------------------------------------------

    def admit(self, job: JobGuard) -> int:
        """Let the job resume from what is here, and save what it is like; returns its run.

        Raises CheckpointError with every reason why it cannot.
        """
        with self.transaction():
            row = self.execute("SELECT guard FROM job").fetchone()
            before = None if row is None else JobGuard.of(self._parsed(row[0]))
            if before is not None:
                job.check(
                    before,
                    f"the progress in {self.path}",
                    "Or delete that folder, to begin without any progress.",
                )
                job = job.over(before)
            text = msgspec.json.encode(job.to_row()).decode()
            (run,) = self.execute(
                "INSERT INTO job VALUES (1, ?, 1) ON CONFLICT (one) DO UPDATE "
                "SET guard = excluded.guard RETURNING run",
                (text,),
            ).fetchone()
        return int(run)

    def end_run(self, run: int, tasks: Iterable[str]) -> bool:
        """Make the next start another run, if all of these tasks are done in this one."""
        with self.transaction():
            rows = self.execute("SELECT name FROM task WHERE done = ?", (run,)).fetchall()
            if not {name for (name,) in rows}.issuperset(tasks):
                return False
            self.execute("UPDATE job SET run = ? WHERE run = ?", (run + 1, run))
        return True

    def job(self) -> JobGuard | None:
        """The job that wrote here."""
        with self.transaction(write=False):
            row = self.execute("SELECT guard FROM job").fetchone()
        return None if row is None else JobGuard.of(self._parsed(row[0]))

    # -- tasks -------------------------------------------------------------------------------

    def claim(self, task: str, origin: str, epoch: int, above: int = 0) -> Claim:
        """Become the owner that writes a task's progress, with a fence higher than ``above``.

        ``origin`` names the coordination that assigned the task in ``epoch``. Raises TaskFenced if
        a later epoch of the same coordination has claimed it already.
        """
        with self.transaction():
            row = self.execute(
                "SELECT fence, origin, epoch, commits, linked, acknowledged FROM task "
                "WHERE name = ?",
                (task,),
            ).fetchone()
            if row is not None and row[1] == origin and row[2] > epoch:
                raise TaskFenced(
                    f"task {task!r} belongs to epoch {row[2]} by now, and this container had "
                    f"it in epoch {epoch}; it stops, for two owners would count twice"
                )
            fence = max(0 if row is None else row[0], above) + 1
            self.execute(
                "INSERT INTO task VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0) ON CONFLICT (name) DO UPDATE "
                "SET fence = excluded.fence, origin = excluded.origin, epoch = excluded.epoch",
                (task, fence, origin, epoch),
            )
        if row is None:
            return Claim(task, fence)
        return Claim(task, fence, row[3], bool(row[4]), row[5])

    def renew(
        self,
        claim: Claim,
        written_ms: int,
        commit: int | None = None,
        *,
        linked: bool = False,
        done: int = 0,
    ) -> None:
        """Record that a task's progress is written now, with this ``commit`` about to be written;
        once ``linked``, it remains so. ``done`` is the run in which the task is done, 0 for none.

        Raises TaskFenced if another owner has claimed it since.
        """
        with self.transaction():
            renewed = self.execute(
                "UPDATE task SET written_ms = ?, commits = COALESCE(?, commits), "
                "linked = linked OR ?, done = ? WHERE name = ? AND fence = ?",
                (written_ms, commit, linked, done, claim.task, claim.fence),
            ).rowcount
        if not renewed:
            raise _taken_over(claim)

    def acknowledge(self, claim: Claim, commit: int) -> None:
        """Say that others are told of a commit; that it is lost can be known from then on.

        Raises TaskFenced where another has claimed the task since.
        """
        with self.transaction():
            found = self.execute(
                "UPDATE task SET acknowledged = ? WHERE name = ? AND fence = ?",
                (commit, claim.task, claim.fence),
            ).rowcount
        if not found:
            raise _taken_over(claim)

    def check(self, claim: Claim) -> None:
        """Raise TaskFenced if another owner has claimed the task since."""
        with self.transaction(write=False):
            found = self.execute(
                "SELECT 1 FROM task WHERE name = ? AND fence = ?", (claim.task, claim.fence)
            ).fetchone()
        if found is None:
            raise _taken_over(claim)

    def tasks(self) -> dict[str, int]:
        """The claimed tasks, and when each has last written (Unix time, ms)."""
        with self.transaction(write=False):
            return dict(self.execute("SELECT name, written_ms FROM task").fetchall())


def _taken_over(claim: Claim) -> TaskFenced:
    return TaskFenced(
        f"another container has taken task {claim.task!r} over; this one stops, and what it has "
        f"processed since its last commit is processed again there"
    )


def now_ms() -> int:
    """Unix time, for checkpoints."""
    return int(clocks.wall() * 1000)
