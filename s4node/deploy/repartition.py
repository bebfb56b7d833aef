"""Gives a stopped job another number of partitions.

Rules
- The tasks of the new layout are made from the last commits of the former ones, and replace all of
  them at once (``savepoints.replacement``). Until then the job is unchanged.
- The rows of a key move with its key group; ``new_layout`` decides what becomes of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from s4node import disk
from s4node.deploy.new_layout import (
    FormerTask,
    NewLayout,
    check_number,
    groups_of,
    new_layout,
)
from s4node.errors import CheckpointError
from s4node.events.keys import KEY_GROUPS, Hasher
from s4node.failpoints import passing
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.producer_offsets import row_of
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.savepoints import replacement
from s4node.savepoints.replacement import Decided
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import CUT, DONE, WRITTEN, task_folder
from s4node.state.rows import (
    CLOSINGS,
    FIRST_TABLE,
    META,
    OUTBOX,
    PREFIX_BYTES,
    TASK_GROUP,
    prefix,
    task_row,
)
from s4node.state.task_state import TaskState

_ROWS = 4096
"""Rows that are copied at a time."""

_END_OF_KEYS = prefix(KEY_GROUPS, 0)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Repartition:
    """Gives the job in ``folder`` another number of ``partitions``.

    ``own`` is the prefix of its tasks' producer ids. ``tell(made, tasks)`` is called with the
    progress.
    """

    folder: Path
    guard: JobGuard
    hasher: Hasher
    own: str
    partitions: int
    stores_by_key: bool = False
    tell: Callable[[int, int], None] = lambda _, __: None

    def run(self) -> int:
        """Repartition, or complete a repartition that was cut short; return the rows moved.

        Raises CheckpointError if something prevents it, StateError or ProgressUnwritten if the disk
        fails; the job is unchanged then.
        """
        moved = 0
        if (cut_short := replacement.decided(self.folder)) is not None:
            if cut_short.partitions != self.partitions:
                replacement.check_complete(self.folder)
        else:
            check_number(self.guard, self.partitions)
            moved = self._make()
        store = TaskClaims(self.folder)
        try:
            replacement.complete(self.folder, store)
        finally:
            store.close()
        return moved

    def _make(self) -> int:
        """Make the tasks of the new layout, and decide on them."""
        former = [task for p in range(self.guard.tasks) if (task := self._former(p)) is not None]
        layout = new_layout(
            former, self.guard, self.partitions, self.own, stores_by_key=self.stores_by_key
        )
        store = TaskClaims(self.folder)
        try:
            fences = store.fences()
        finally:
            store.close()
        moved = 0
        tasks = {}
        try:
            place = replacement.begin(self.folder)
            for partition in range(self.partitions):
                self.tell(partition, self.partitions)
                name = _name(partition)
                above = max(epochs.highest(task_folder(self.folder, name)), fences.get(name, 0))
                tasks[name] = above + 1, 1
                moved += self._make_task(place, partition, above + 1, layout)
                passing("repartition.moved")
            job = {
                **self.guard.to_row(),
                "tasks": self.partitions,
                "layout": (self.guard.layout or 0) + 1,
            }
            replacement.decide(self.folder, Decided(job, tasks))
        except BaseException:
            if replacement.decided(self.folder) is None:
                replacement.discard(self.folder)
            raise
        self.tell(self.partitions, self.partitions)
        return moved

    def _former(self, partition: int) -> FormerTask | None:
        """What belongs to a task and to no key; None if the task has never run."""
        name = _name(partition)
        folder = task_folder(self.folder, name)
        if not epochs.epochs_of(folder):
            return None
        with epochs.copied(folder) as database:
            state = TaskState(database, self.hasher)
            first, end = prefix(TASK_GROUP, FIRST_TABLE), prefix(TASK_GROUP, 0xFFFF)
            tables = {_table_of(row) for row, _ in database.scan(first, end)}
            former = FormerTask(
                name,
                partition,
                {row.decode(): data for row, data in state.rows(META)},
                state.positions(),
                state.consumed(),
                state.producers(),
                state.closings(),
                state.rows(OUTBOX),
                frozenset(tables),
            )
            self._check_groups(former, database)
            return former

    def _check_groups(self, task: FormerTask, database: Database) -> None:
        """Raise CheckpointError if a task has rows of keys of other tasks."""
        groups = groups_of(task.partition, self.guard.tasks)
        ranges = (prefix(0, 0), prefix(groups.start, 0)), (prefix(groups.stop, 0), _END_OF_KEYS)
        for first, end in ranges:
            for row, _ in database.chunk(first, end, 1) if first < end else ():
                names = {number: name for name, number in task.tables.items()}
                table = names.get(_table_of(row), "a table")
                raise CheckpointError(
                    f"{task.name} has a row in {table} whose key is of another task, so what is "
                    f"in it belongs to the task and cannot move: {row[PREFIX_BYTES:]!r}"
                )

    def _make_task(self, place: Path, partition: int, fence: int, layout: NewLayout) -> int:
        """Make the database of a new task; return how many rows of keys it has."""
        folder, moved = task_folder(place, _name(partition)), 0
        groups = groups_of(partition, self.partitions)
        database = epochs.claim(folder, fence, Database)
        try:
            for former in range(*_touching(groups, self.guard.tasks)):
                before = task_folder(self.folder, _name(former))
                if epochs.epochs_of(before):
                    with epochs.copied(before) as source:
                        moved += _move(source, database, groups, layout.renumbered[former])
            _write_rest(TaskState(database, self.hasher, fence=fence), layout, partition)
            database.write_tables()
        finally:
            database.close()
        own = database.folder
        disk.sync(*(each for each in own.iterdir() if each.name != "LOCK"), own, folder)
        return moved


def _name(partition: int) -> str:
    return f"Partition {partition}"


def _table_of(row: bytes) -> int:
    return int.from_bytes(row[2:PREFIX_BYTES], "big")


def _touching(groups: range, partitions: int) -> tuple[int, int]:
    """The bounds of the range of partitions that have any of these key groups."""
    first, last = (group * partitions // KEY_GROUPS for group in (groups[0], groups[-1]))
    return first, last + 1


def _move(source: Database, database: Database, groups: range, numbers: Mapping[int, int]) -> int:
    """Copy the rows of these key groups, with new ``numbers`` of tables; return how many."""
    start, end, moved = prefix(groups.start, 0), prefix(groups.stop, 0), 0
    while True:
        rows = source.chunk(start, end, _ROWS)
        if not rows:
            return moved
        start, moved = rows[-1][0] + b"\x00", moved + len(rows)
        keys = [row for row, _ in rows]
        if numbers:
            keys = [_renumbered(row, numbers) for row in keys]
        database.fill(keys, [value for _, value in rows])


def _renumbered(row: bytes, numbers: Mapping[int, int]) -> bytes:
    table = _table_of(row)
    return row[:2] + numbers.get(table, table).to_bytes(2, "big") + row[PREFIX_BYTES:]


def _write_rest(state: TaskState, layout: NewLayout, partition: int) -> None:
    """Write what belongs to no key, as the first commit of a new task."""
    task, now = layout.tasks[partition], now_ms()
    for name, data in task.facts.items():
        state.changes.put(task_row(META, name.encode()), data)
    for producer, closings in layout.closings.items():
        state.changes.put(task_row(CLOSINGS, row_of(producer)), _encode(closings))
    state.set_meta(WRITTEN, now)
    state.set_meta(DONE, 0)
    if layout.cut:
        state.set_meta(CUT, layout.cut)
    state.begin_commit(task.positions, layout.consumed, layout.producers)
    state.write_commit()
    state.end_commit(written=True)
