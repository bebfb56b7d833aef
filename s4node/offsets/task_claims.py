"""The claims of a job's tasks: which owner may write, in a SQLite file that processes share.

Theory of operation

A task has one owner. The coordination decides which, but it cannot stop a former owner: that may
be paused by the system for a minute, or cut off from the network, and still believe that it owns
the task. So the right to write is not a belief. It is a row, and each write checks it.

An owner *claims* the task before it reads anything. The claim raises the row's *fence*, a number
that only grows. Before each commit the owner renews the claim with its fence; if the row has a
higher one, it raises TaskFenced and stops. An example:

    A claims, fence 4          A has counted up to event 100
    A is paused                its session ends, and the task is assigned to B
    B claims, fence 5          B restores the count at 100, and commits 150
    A wakes up                 A has counted to 120, and wants to commit that
    A renews with fence 4      the row has 5: TaskFenced; the count stays 150

Without the check A would write 120 over 150, and acknowledge events 101 to 120 a second time.

The fence alone is not enough: A could renew, be paused, and write after B's claim. So B does not
write to A's files. Each fence has a folder of its own, which begins as a copy (``state.epochs``).
What A still writes goes to a folder that nobody reads. It must not be acknowledged, though: A would
report to producers as safe what only its folder has. So A checks the claim *after* the write, too,
before it acknowledges anything (``acknowledge``). For state at a URL, which all machines write to,
``state.remote_log`` does the same with numbered objects.

The row also has the number of the last commit, written before the commit, and of the last one that
was acknowledged. A disk that returns from a power cut, or from a backup, may have an older state:

    acknowledged is 8, the next owner finds commit 6
    commits 7 and 8 are missing, and their producers have dropped the events: that is an error

If the row has commit 8, acknowledged 7, and the owner finds 7, nothing is missing: the eighth was
about to be written (``Claim.lacks``).

Rules
- Each task has one row. A claim fences all earlier ones. A claim by an older epoch of the same
  coordination is refused, because its request was delayed.
- A job has one *run* after another. The next run begins when all tasks were done and the last
  container has stopped in order. A task that is done stays done for the run, which neither a crash
  nor an upgrade ends.
- Calls block, one transaction each, one at a time.
- A temporary error (full disk, another's lock, lost permissions) raises ProgressUnwritten: nothing
  was written, and it may be retried. Damage and a newer format raise CheckpointError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node import clocks
from s4node.errors import CheckpointError, ProgressUnwritten, TaskFenced
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.sqlite_file import Form, SqliteFile

FORMAT = 7
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
    "put back a copy of it, or delete it: the state of the tasks is in folders beside it",
    ProgressUnwritten,
    CheckpointError,
)


class Claim(NamedTuple):
    """The right to write a task's progress, until another owner claims the task.

    ``commit`` is the number of the last commit that was about to be written, 0 for none, and
    ``acknowledged`` that of the last commit that was acknowledged. ``linked`` says that others
    depend on the task's commits: they have received its events or acknowledgements, and have
    dropped those events.
    """

    task: str
    fence: int
    commit: int = 0
    linked: bool = False
    acknowledged: int = 0

    def lacks(self, found: int) -> bool:
        """Return True if commits that were written are missing in a state whose last is ``found``.

        The last commit that was begun may not have been written; acknowledged ones were.
        """
        return found < max(self.commit - 1, self.acknowledged)


class TaskClaims(SqliteFile):
    """The database ``progress.sqlite`` in ``folder``; both are created if missing.

    With ``sync`` a power cut loses nothing.
    """

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        super().__init__(folder, _FORM, sync=sync)

    # -- the job -----------------------------------------------------------------------------

    def admit(self, job: JobGuard) -> int:
        """Record the job and let it resume; returns its run.

        Raises CheckpointError, with every reason, if the job cannot resume from this progress.
        """
        with self.transaction():
            row = self.execute("SELECT guard FROM job").fetchone()
            before = None if row is None else JobGuard.from_row(self._parsed(row[0]))
            if before is not None:
                job.check(
                    before,
                    f"the progress in {self.path}",
                    "Or delete that folder, to start without any progress.",
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
        """Begin another run at the next start, if all of these tasks are done in this run."""
        with self.transaction():
            rows = self.execute("SELECT name FROM task WHERE done = ?", (run,)).fetchall()
            if not {name for (name,) in rows}.issuperset(tasks):
                return False
            self.execute("UPDATE job SET run = ? WHERE run = ?", (run + 1, run))
        return True

    def job(self) -> JobGuard | None:
        with self.transaction(write=False):
            row = self.execute("SELECT guard FROM job").fetchone()
        return None if row is None else JobGuard.from_row(self._parsed(row[0]))

    def begin_layout(
        self, job: JobGuard, keep: Collection[str] = (), forget: Callable[[], None] = lambda: None
    ) -> None:
        """Go on with the tasks to ``keep`` only, unless this layout of ``job`` has begun already;
        calls ``forget`` before that is known."""
        with self.transaction():
            row = self.execute("SELECT guard FROM job").fetchone()
            if not job.follows(None if row is None else JobGuard.from_row(self._parsed(row[0]))):
                return
            forget()
            gone = [name for (name,) in self.execute("SELECT name FROM task") if name not in keep]
            for name in gone:
                self.execute("DELETE FROM task WHERE name = ?", (name,))
            text = msgspec.json.encode(job.to_row()).decode()
            self.execute(
                "INSERT INTO job VALUES (1, ?, 1) ON CONFLICT (one) DO UPDATE "
                "SET guard = excluded.guard",
                (text,),
            )

    def set_tasks(
        self, job: JobGuard, tasks: Mapping[str, tuple[int, int]], written_ms: int
    ) -> None:
        """Have a stopped ``job`` go on with other tasks, by name: the fence of each, which is above
        all before, and its last commit. No former owner may write from now on."""
        with self.transaction():
            text = msgspec.json.encode(job.to_row()).decode()
            self.execute("UPDATE job SET guard = ?", (text,))
            self.execute("DELETE FROM task")
            for name, (fence, commit) in tasks.items():
                self.execute(
                    "INSERT INTO task VALUES (?, ?, '', 0, ?, ?, ?, 0, 0)",
                    (name, fence, written_ms, commit, commit),
                )

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
                    f"task {task!r} now belongs to epoch {row[2]}, and this container has epoch "
                    f"{epoch}; it stops, because two owners would count twice"
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
        """Record that a task's progress is written now, with ``commit`` about to be written.

        ``linked`` remains once it is set. ``done`` is the run in which the task is done, 0 for
        none. Raises TaskFenced if another owner has claimed the task.
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
        """Record that a commit was acknowledged, so that its loss would be noticed.

        Raises TaskFenced if another owner has claimed the task.
        """
        with self.transaction():
            found = self.execute(
                "UPDATE task SET acknowledged = ? WHERE name = ? AND fence = ?",
                (commit, claim.task, claim.fence),
            ).rowcount
        if not found:
            raise _taken_over(claim)

    def check_whole(self, task: str, found: int) -> None:
        """Raise CheckpointError if a task has lost commits: ``found`` is the last of its state."""
        with self.transaction(write=False):
            row = self.execute(
                "SELECT fence, commits, linked, acknowledged FROM task WHERE name = ?", (task,)
            ).fetchone()
        if row is not None and Claim(task, *row).lacks(found):
            raise CheckpointError(
                f"task {task!r} has lost commits: its state in {self.path.parent} has {found} of "
                f"{row[1]}; put back its folder, or go on from a savepoint (--from NAME)"
            )

    def check_fence(self, claim: Claim) -> None:
        """Raise TaskFenced if another owner has claimed the task."""
        with self.transaction(write=False):
            found = self.execute(
                "SELECT 1 FROM task WHERE name = ? AND fence = ?", (claim.task, claim.fence)
            ).fetchone()
        if found is None:
            raise _taken_over(claim)

    def fences(self) -> dict[str, int]:
        with self.transaction(write=False):
            return dict(self.execute("SELECT name, fence FROM task").fetchall())

    def tasks(self) -> dict[str, int]:
        """The claimed tasks, and when each was last written (Unix time, ms)."""
        with self.transaction(write=False):
            return dict(self.execute("SELECT name, written_ms FROM task").fetchall())


def _taken_over(claim: Claim) -> TaskFenced:
    return TaskFenced(
        f"another container has taken over task {claim.task!r}; this container stops, and the "
        f"other one processes again what came after the last commit"
    )


def now_ms() -> int:
    """Unix time in milliseconds, for checkpoints."""
    return int(clocks.wall() * 1000)
