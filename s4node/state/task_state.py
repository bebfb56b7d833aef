"""The state of one task: its database, its stores, and the changes for the next commit.

Theory of operation

A commit is one write to the task's database. It has what has changed in stores and instances, the
positions of the inputs, the numbers of producers, and the events that the task has put for others
and whose receivers have not committed them. All of it is of one moment. An example, with a PE that
counts events and puts every count on a stream:

    the last commit    count 100, position 100, frames up to 100
    in memory          count 120, position 120, frames up to 120
    kill -9            count 100, position 100: events 101 to 120 come again, once

If the count were written before the position, a crash in between would count 101 to 120 twice. If
the position were written first, they would be lost. If the frames of 101 to 120 had left before the
commit, consumers would get them twice, and from a handler that reads the clock as other events.

The order of a commit (``runtime.commit.task_commit``), and what a crash after each step leaves:

    begin     in the loop, while no event of the task runs: take all changes, copy nothing
    encode    in slices between other turns; then renew the claim
                                       crash: the last commit, and everything is replayed
    ship      to the URL, if there is one
                                       crash: the next owner finds the commit there, whole
    write     the rows, in a thread
                                       crash: the commit is there, without acknowledgements:
                                       producers send again, and their numbers are trimmed
    check     the claim; a former owner stops here, and acknowledges nothing
    release   acknowledge producers, let the frames leave
                                       crash: frames leave again, under the same numbers

The task processes events meanwhile. What it changes after ``begin`` is part of the next commit, so
an instance that is encoded is taken as of ``begin``: a handler that reaches it first has it encoded
before it runs.

Rules
- Call ``begin_commit`` while no event of the task is in flight; it only takes the changes.
  Instances are encoded after that, in slices; then ``write_commit`` runs in a thread.
- One commit at a time; the changes of a failed one are part of the next. If the task has rolled
  back in between, the next one has these rows as they were before: the failed one may be shipped.
- A table gets a number for its name once, and keeps it.
- Commits are numbered and name their writer, so a missing commit is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from s4node import clocks, tokens
from s4node.errors import StateError
from s4node.events.keys import KEY_GROUPS, Hasher
from s4node.offsets.checkpoint import (
    Closings,
    Producer,
    SavedProducer,
    SavedProducers,
    producer_of,
    row_of,
)
from s4node.state.commit_id import COMMIT_ROW, OWNERS_ROW, SHIPPED_ROW, known_of, owners_of
from s4node.state.database import Database
from s4node.state.key_value_store import KeyValueStore
from s4node.state.pe_store import Codec, SavedInstances, SavedTimers, SavedWindowInstances
from s4node.state.remote_log import CommitId, Row
from s4node.state.remote_task import RemoteTask
from s4node.state.rows import (
    CLOSINGS,
    CONSUMED,
    FIRST_TABLE,
    META,
    POSITIONS,
    PRODUCERS,
    TASK_GROUP,
    Changes,
    prefix,
    task_row,
)
from s4node.store_spec import StoreSpec

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_producer = msgspec.msgpack.Decoder(SavedProducer).decode
_decode_closings = msgspec.msgpack.Decoder(Closings).decode
_TABLE = b"table:"

CHANGES_BYTES = 64 << 20
"""A task commits early when the changes of its stores since its last commit, or what receivers have
not committed of a stream of its, take more bytes of memory than this."""
_NOBODY: SavedProducers = {}


class TaskState:
    """The state of a task in ``database``. ``groups`` are the key groups of its keys.

    ``fence`` is the owner's. Each commit is given to ``ship`` before it is written. ``last`` is the
    last commit, with number 0 before the first; ``tries`` counts the commits that this owner has
    begun to write. ``owners`` are the names of owners by fence: owners of different folders may
    have the same fence, but never the same name. ``unsure`` are rows of tries that may be shipped,
    and are not in the database.
    """

    def __init__(
        self,
        database: Database,
        hasher: Hasher,
        groups: range = range(KEY_GROUPS),
        now: Callable[[], float] | None = None,
        fence: int = 0,
        ship: RemoteTask | None = None,
        name: str = "",
        tries: int = 0,
        unsure: Collection[bytes] = (),
    ) -> None:
        self.database = database
        self.fence = fence
        self.ship = ship
        self.last: CommitId = known_of(database)
        self._tries = tries
        self._unsure = set(unsure)
        shipped_as = "" if ship is None else ship.owner.name
        self._name = name or shipped_as or tokens.fresh(8)
        self._said = False  # True once a commit has recorded the owner and the place
        known = owners_of(database)
        if ship is None:  # nobody needs the other owners
            known = {f: owner for f, owner in known.items() if f == self.last[0]}
        self.owners: dict[int, str] = {**known, fence: self._name}
        self.changes = Changes()
        self._hasher = hasher
        self._groups = groups
        self.now = now or clocks.wall
        self.tables = {
            row[len(task_row(META, _TABLE)) :].decode(): _decode(value)
            for row, value in self._task_rows(META)
            if row.startswith(task_row(META, _TABLE))
        }
        self.stores: dict[str, KeyValueStore[Any, Any]] = {}
        self.instances: dict[str, SavedInstances] = {}
        self.timers: list[SavedTimers] = []
        self.commits = 0
        self.bytes_written = 0
        self.shipping = 0.0  # the seconds that shipping the last commit took

    def reloaded(self) -> TaskState:
        """A new state as of the last commit, to replace this one; its owner is the same."""
        for store in self.stores.values():
            store.invalidate()
        return TaskState(
            self.database,
            self._hasher,
            self._groups,
            self.now,
            self.fence,
            self.ship,
            self._name,
            self._tries,
            self._unsure,
        )

    def table(self, name: str) -> int:
        """The number of a table; a new table gets one with the next commit."""
        number = self.tables.get(name)
        if number is None:
            number = max(self.tables.values(), default=FIRST_TABLE - 1) + 1
            self.tables[name] = number
            self.set_meta("table:" + name, number)
        return number

    def store(self, spec: StoreSpec[Any, Any]) -> KeyValueStore[Any, Any]:
        if spec.name not in self.stores:
            self.stores[spec.name] = KeyValueStore(
                spec,
                self.table(f"store {spec.name}"),
                self.database,
                self.changes,
                self._hasher,
                self._groups,
                self.now,
                self._ended(spec),
            )
        return self.stores[spec.name]

    def _ended(self, spec: StoreSpec[Any, Any]) -> float | None:
        """Record whether a store has a time to live; returns when that was removed, if ever."""
        fact = f"ttl of {spec.name}"
        known = self.meta(fact)
        if spec.ttl:
            if known is not True:
                self.set_meta(fact, True)
            return None
        if known is True:
            known = self.now()
            self.set_meta(fact, known)
        return known  # type: ignore[no-any-return]

    def saved(self, name: str, live: Mapping[Any, Any], codec: Codec) -> SavedInstances:
        stored = f"pe {name}" in self.tables
        saved = self.instances[name] = SavedInstances(
            self.table(f"pe {name}"),
            live,
            codec,
            self.database,
            self.changes,
            self._hasher,
            stored=stored,
        )
        return saved

    def saved_windows(self, name: str, codec: Any) -> SavedWindowInstances:
        saved = self.instances[name] = SavedWindowInstances(
            self.table(f"pe {name}"), codec, self.database, self.changes, self._hasher
        )
        return saved

    def saved_timers(self, name: str) -> SavedTimers:
        table = self.table(f"timers {name}")
        self.timers.append(SavedTimers(table, self.database, self.changes, self._hasher))
        return self.timers[-1]

    def expire_instances(self, limit: int, starts: dict[str, bytes]) -> Iterator[None]:
        """Delete rows of PEs that have ended, a part of each; ``starts`` says where to go on."""
        for name, saved in self.instances.items():
            if saved.ends:
                starts[name] = saved.expire(limit, starts.get(name, b""), self._groups)
                yield

    def unused(self) -> list[str]:
        pes = [name.removeprefix("pe ") for name in self.tables if name.startswith("pe ")]
        return [name for name in pes if name not in self.instances]

    def has_rows(self, pe: str) -> bool:
        """Return True if anything of a PE that has a table is saved, as of the last commit."""
        return self.has_table_rows(f"pe {pe}")

    def has_table_rows(self, table: str) -> bool:
        return next(self.database.table(self.tables[table]), None) is not None

    def meta(self, name: str) -> Any:
        data = self.database.get(task_row(META, name.encode()))
        return None if data is None else _decode(data)

    def facts(self, prefix: str) -> set[str]:
        """The rest of the names of facts that begin so, as of the last commit."""
        start = task_row(META, prefix.encode())
        return {
            row[len(start) :].decode() for row, _ in self._task_rows(META) if row.startswith(start)
        }

    def set_meta(self, name: str, value: Any) -> None:
        self.changes.put(task_row(META, name.encode()), _encode(value))

    def positions(self) -> dict[str, int]:
        """The position at which each input resumes, as of the last commit."""
        start = len(task_row(POSITIONS, b""))
        return {row[start:].decode(): _decode(value) for row, value in self._task_rows(POSITIONS)}

    def rows(self, table: int) -> list[tuple[bytes, bytes]]:
        """The rows of a table of the task, without their prefix, as of the last commit."""
        start = len(task_row(table, b""))
        return [(row[start:], value) for row, value in self._task_rows(table)]

    def consumed(self) -> frozenset[str]:
        """The ids of the startpoints that inputs were read from, as of the last commit."""
        start = len(task_row(CONSUMED, b""))
        return frozenset(row[start:].decode() for row, _ in self._task_rows(CONSUMED))

    def producers(self) -> dict[Producer, SavedProducer]:
        """How far each producer's numbers are committed."""
        start = len(task_row(PRODUCERS, b""))
        return {
            producer_of(row[start:]): _decode_producer(value)
            for row, value in self._task_rows(PRODUCERS)
        }

    def closings(self) -> dict[Producer, Closings]:
        """The final numbers of producers in layouts that have ended."""
        return {producer_of(row): _decode_closings(data) for row, data in self.rows(CLOSINGS)}

    def remove_consumed(self, consumed: Iterable[str]) -> None:
        """Remove these ids with the next commit."""
        for each in consumed:
            self.changes.put(task_row(CONSUMED, each.encode()), None)

    @property
    def changed(self) -> bool:
        """Return True if a commit would write more than positions."""
        changes = self.changes
        touched = any(each.has_touched for each in self.instances.values())
        return bool(changes) or changes.spoiled is not None or touched

    def begin_commit(
        self,
        positions: Mapping[str, int],
        consumed: Iterable[str] = (),
        producers: SavedProducers = _NOBODY,
    ) -> None:
        for row, value in _progress_rows(positions, consumed, producers):
            self.changes.put(row, value)
        self.changes.begin_commit()
        for each in self._parts:
            each.begin_commit()

    def encode(self, limit: int) -> int:
        """Encode about ``limit`` instances of the commit; returns 0 once all are encoded."""
        return sum(each.save(limit) for each in self._parts)

    @property
    def _parts(self) -> list[SavedInstances | SavedTimers]:
        return [*self.instances.values(), *self.timers]

    @property
    def waits(self) -> bool:
        """Return True if commits wait for the disk or are shipped."""
        return self.database.sync or self.ship is not None

    def write_commit(self) -> None:
        """Write the commit, in a thread. Raises StateError if nothing was written."""
        rows, values = self.changes.rows_to_write()
        self._tries += 1
        last = self.fence, self.last[1] + 1, self._tries
        rows.append(COMMIT_ROW)
        values.append(_encode(last))
        if not self._said:
            place = "" if self.ship is None else self.ship.job_url
            rows += [OWNERS_ROW, SHIPPED_ROW]
            values += [_encode(self.owners), _encode(place)]
        if self._unsure:  # from before the task rolled back
            others = list(self._unsure.difference(rows))
            rows += others
            values += self.database.get_many(others)
        try:
            if self.ship is not None:
                self._ship(last, list(zip(rows, values, strict=True)))
            self.bytes_written += self.database.write(rows, values)
        except StateError:
            if self.ship is not None:
                self._unsure.update(rows)
            raise
        self._unsure.clear()
        self.last = last
        self._said = True

    def _ship(self, commit: CommitId, rows: list[Row]) -> None:
        assert self.ship is not None
        began = clocks.steady()
        try:
            self.ship.commit(commit, rows)
        finally:
            self.shipping = clocks.steady() - began

    def end_commit(self, *, written: bool) -> None:
        if written:
            self.commits += 1
            self.changes.written()
        else:
            self.changes.failed()

    def close(self) -> None:
        """Close the database; uncommitted changes are lost."""
        self.database.close()

    def _task_rows(self, table: int) -> Iterator[tuple[bytes, bytes]]:
        return self.database.scan(prefix(TASK_GROUP, table), prefix(TASK_GROUP, table + 1))


def _progress_rows(
    positions: Mapping[str, int], consumed: Iterable[str], producers: SavedProducers
) -> list[tuple[bytes, bytes | None]]:
    rows: list[tuple[bytes, bytes | None]] = [
        (task_row(POSITIONS, place.encode()), _encode(at)) for place, at in positions.items()
    ]
    rows += [(task_row(CONSUMED, each.encode()), b"") for each in consumed]
    for producer, kept in producers.items():
        value = None if kept is None else _encode(kept)
        rows.append((task_row(PRODUCERS, row_of(producer)), value))
        if kept is None:
            rows.append((task_row(CLOSINGS, row_of(producer)), None))
    return rows
