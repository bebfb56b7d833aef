"""The startpoints of a job in a SQLite database, shared by the processes of one machine.

Rules
- It is separate from progress: a request touches no checkpoint. It can be used whether the job runs
  or not.
- A request waits in ``request``, one row for each partition and task. What a start of the job made
  of it waits in ``pending``, by task, until the task has consumed it. Both change in one
  transaction, so a crash leaves either.
- Of two requests the one that was written later is the later one, whatever the clock did between.
- A job without any request has no such file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from s4node import tokens
from s4node.errors import StartpointError
from s4node.events.schema import UNREADABLE
from s4node.failpoints import passing
from s4node.offsets.sqlite_file import Form, SqliteFile
from s4node.offsets.startpoint import Startpoint
from s4node.offsets.startpoint_fan_out import Fanned, Place, Request, fan_out, without

FILE = "startpoints.sqlite"

_SCHEMA = """
CREATE TABLE request (
    system TEXT NOT NULL, stream TEXT NOT NULL, partition INTEGER NOT NULL, task TEXT NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (system, stream, partition, task)
) WITHOUT ROWID;
CREATE TABLE pending (
    task TEXT NOT NULL, system TEXT NOT NULL, stream TEXT NOT NULL, partition INTEGER NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (task, system, stream, partition)
) WITHOUT ROWID;
"""

_FORGET = {
    "request": "DELETE FROM request WHERE task = ? AND system = ? AND stream = ? AND partition = ?",
    "pending": "DELETE FROM pending WHERE task = ? AND system = ? AND stream = ? AND partition = ?",
}

_FORM = Form(
    FILE,
    0x53344E73,  # "S4Ns"
    1,
    _SCHEMA,
    "startpoints",
    "delete it, and ask for what is still wanted again",
    StartpointError,
    StartpointError,
)


class StartpointStore(SqliteFile):
    """The database ``startpoints.sqlite`` in the job's ``folder``, both made if missing.

    It waits for the disk: what is removed must not come back when a task has forgotten that it has
    consumed it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORM, sync=True)

    # -- what is asked for -------------------------------------------------------------------

    def put(
        self, places: Iterable[Place], startpoint: Startpoint, now_ms: int, task: str = ""
    ) -> list[Request]:
        """Request a startpoint for these partitions, in all tasks that read them or in one.

        It replaces an earlier request for the same partition and task.
        """
        written = []
        with self.transaction():
            everything = [*self._requests(), *(r for _, r in self._waiting())]
            for place in places:
                latest = max((r.created_ms for r in everything if r.place == place), default=0)
                created = now_ms if now_ms >= latest else latest + 1  # the clock went backwards
                request = Request(tokens.fresh(6), *place, startpoint, created, task)
                self.execute(
                    "INSERT OR REPLACE INTO request VALUES (?, ?, ?, ?, ?)",
                    (*place, task, _text(request)),
                )
                written.append(request)
        return written

    def requests(self) -> list[Request]:
        """The requests that wait for a start of the job, expired ones too."""
        with self.transaction(write=False):
            return self._requests()

    def pending(self) -> list[tuple[str, Request]]:
        """The pending startpoints, each with its task."""
        with self.transaction(write=False):
            return self._waiting()

    def delete(self, places: Collection[Place] | None = None, task: str | None = None) -> int:
        """Delete the requests for these partitions (all, if None) and their pending startpoints.

        With a ``task``, delete the requests for that task alone, and what is pending for it.
        Returns how many were deleted.
        """
        gone = 0
        with self.transaction():
            everything = [("request", r.task, r) for r in self._requests()]
            everything += [("pending", owner, r) for owner, r in self._waiting()]
            for table, owner, request in everything:
                if (places is None or request.place in places) and task in (None, owner):
                    self._forget(table, owner, request)
                    gone += 1
        return gone

    # -- the job's side ----------------------------------------------------------------------

    def fan_out(self, tasks: Mapping[str, Collection[Place]], now_ms: int) -> Fanned:
        """At a start of the job, give each task what holds for its partitions."""
        with self.transaction():
            requests = self._requests()
            before: dict[str, list[Request]] = {}
            for task, request in self._waiting():
                before.setdefault(task, []).append(request)
            fanned = fan_out(tasks, requests, before, now_ms)
            for task, waiting in fanned.pending.items():
                for request in waiting:
                    self.execute(
                        "INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?, ?)",
                        (task, *request.place, _text(request)),
                    )
            passing("startpoint.fanning")
            for request in requests:
                if request.id in fanned.spent:
                    self._forget("request", request.task, request)
        return fanned

    def take(self, task: str, consumed: Collection[str]) -> tuple[Request, ...]:
        """The pending startpoints of a task; those it has ``consumed`` are removed."""
        with self.transaction():
            mine = [request for owner, request in self._waiting() if owner == task]
            for request in mine:
                if request.id in consumed:
                    self._forget("pending", task, request)
        return without(mine, consumed)

    # -- inside ------------------------------------------------------------------------------

    def _requests(self) -> list[Request]:
        return [self._read(body) for (body,) in self.execute("SELECT body FROM request")]

    def _waiting(self) -> list[tuple[str, Request]]:
        rows = self.execute("SELECT task, body FROM pending")
        return [(task, self._read(body)) for task, body in rows]

    def _forget(self, table: str, task: str, request: Request) -> None:
        self.execute(_FORGET[table], (task, *request.place))

    def _read(self, body: str) -> Request:
        try:
            return msgspec.json.decode(body, type=Request)
        except (*UNREADABLE, TypeError) as error:
            raise self._damaged(error) from error


def existing(folder: Path) -> StartpointStore | None:
    """The job's store, if it exists."""
    return StartpointStore(folder) if (folder / FILE).exists() else None


def _text(request: Request) -> str:
    return msgspec.json.encode(request).decode()
