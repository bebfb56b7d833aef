"""Gives a stopped job another number of partitions.

Rules
- The tasks of the new layout are made from the last commits of the former ones, and replace all of
  them at once (``savepoints.replacement``; ``shipped_layout`` for state at a URL). Until then the
  job is unchanged.
- The rows of a key move with its key group; ``new_layout`` decides what becomes of the others.
- A former task is restored twice, which takes long from a URL: for what belongs to no key, as the
  new layout depends on all tasks, and for the rows of its keys, which are moved in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from s4node import disk
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.new_layout import FormerTask, NewLayout, check_number, groups_of, new_layout
from s4node.deploy.shipped_layout import ShippedLayout
from s4node.errors import CheckpointError
from s4node.events.keys import KEY_GROUPS, Hasher, hasher_named
from s4node.failpoints import passing
from s4node.net.wire.frame import TASK
from s4node.offsets.checkpoint import JobGuard, row_of
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.runtime.outputs.outlet_rows import outlets_in
from s4node.savepoints import replacement
from s4node.savepoints.replacement import Decided
from s4node.savepoints.shipped import savepoints_of
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import CUT, DONE, WRITTEN, saved_state, task_folder
from s4node.state.remote_job import RemoteJob
from s4node.state.rows import (
    CLOSINGS,
    FIRST_TABLE,
    META,
    OUTBOX,
    OUTLET,
    PREFIX_BYTES,
    TASK_GROUP,
    prefix,
    task_row,
)
from s4node.state.task_state import TaskState

ROWS = 4096
"""Rows that are copied at a time."""

_END_OF_KEYS = prefix(KEY_GROUPS, 0)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Repartition:
    """Gives the job of ``app`` in ``folder`` another number of ``partitions``.

    ``remote_job`` is where its state is shipped, if it is. ``on_progress`` is called with the
    number of tasks that are made, and of all.
    """

    app: str
    folder: Path
    config: Config
    guard: JobGuard
    partitions: int
    remote_job: RemoteJob | None = None
    stores_by_key: bool = False
    on_progress: Callable[[int, int], None] = lambda _, __: None

    @property
    def cut_short(self) -> bool:
        """True if a change was decided on and not completed."""
        mark = savepoints_of(self.folder, self.remote_job).restoring()
        of_url = mark is not None and mark.partitions > 0
        return of_url or replacement.decided(self.folder) is not None

    def check(self) -> None:
        """Raise CheckpointError where the job cannot have so many partitions at all."""
        place = savepoints_of(self.folder, self.remote_job)
        mark, decided = place.restoring(), replacement.decided(self.folder)
        if mark is not None and mark.partitions != self.partitions:
            place.check_restored()
        if decided is not None and decided.partitions != self.partitions:
            replacement.check_complete(self.folder)
        if not self.cut_short:
            check_number(self.guard, self.partitions)

    def run(self) -> int:
        """Repartition, or complete a repartition that was cut short; return the rows moved.

        Raises CheckpointError if something prevents it, StateError or ProgressUnwritten if the disk
        fails; the job is unchanged then.
        """
        self.check()
        if self.remote_job is not None:
            return self._run_shipped(self.remote_job)
        moved = self._make() if replacement.decided(self.folder) is None else 0
        with closing(TaskClaims(self.folder)) as store:
            replacement.complete(self.folder, store)
        return moved

    @property
    def _new_guard(self) -> JobGuard:
        return replace(self.guard, tasks=self.partitions, layout=(self.guard.layout or 0) + 1)

    def _make(self) -> int:
        """Make the tasks of the new layout, and decide on them."""
        try:
            tasks, moved = self._make_tasks(replacement.begin(self.folder))
            replacement.decide(self.folder, Decided(self._new_guard.to_row(), tasks))
        except BaseException:
            if replacement.decided(self.folder) is None:
                replacement.discard(self.folder)
            raise
        return moved

    def _run_shipped(self, remote_job: RemoteJob) -> int:
        layout, moved = ShippedLayout(self.app, self.folder, self.config, remote_job), 0
        if not layout.decided:
            try:
                place = replacement.begin(self.folder)
                tasks, moved = self._make_tasks(place)
                layout.decide(self._new_guard, tasks, place)
            finally:
                replacement.discard(self.folder)
        layout.complete()
        return moved

    def _make_tasks(self, place: Path) -> tuple[dict[str, tuple[int, int]], int]:
        """Make the tasks of the new layout in ``place``; returns the fence and commit of each, and
        how many rows have moved."""
        former = [task for p in range(self.guard.tasks) if (task := self._former(p)) is not None]
        own = f"{TASK}{self.config[settings.CLUSTER_NAME]}/{self.app}/"
        layout = new_layout(
            former, self.guard, self.partitions, own, stores_by_key=self.stores_by_key
        )
        with closing(TaskClaims(self.folder)) as store:
            fences = store.fences()
        moved = 0
        tasks = {}
        with closing(_LastOpened(self._kept)) as kept:
            for partition in range(self.partitions):
                self.on_progress(partition, self.partitions)
                name = _name(partition)
                above = max(epochs.highest(task_folder(self.folder, name)), fences.get(name, 0))
                tasks[name] = above + 1, 1
                moved += self._make_task(place, partition, above + 1, layout, kept)
                passing("repartition.moved")
        self.on_progress(self.partitions, self.partitions)
        return tasks, moved

    @contextmanager
    def _kept(self, partition: int) -> Iterator[TaskState | None]:
        with saved_state(self.folder, _name(partition), self.remote_job) as state:
            yield None if state is None else TaskState(state.database, self._hasher)

    @property
    def _hasher(self) -> Hasher:
        return hasher_named(self.guard.hasher)

    def _former(self, partition: int) -> FormerTask | None:
        """The state of a task that belongs to no key; None if the task has never run."""
        with self._kept(partition) as state:
            if self.remote_job is None:
                with closing(TaskClaims(self.folder)) as store:
                    store.check_whole(_name(partition), 0 if state is None else state.last[1])
            if state is None:
                return None
            first, end = prefix(TASK_GROUP, FIRST_TABLE), prefix(TASK_GROUP, 0xFFFF)
            tables = {_table_of(row) for row, _ in state.database.scan(first, end)}
            former = FormerTask(
                _name(partition),
                partition,
                {row.decode(): data for row, data in state.rows(META)},
                state.positions(),
                state.consumed(),
                state.producers(),
                state.closings(),
                state.rows(OUTBOX),
                frozenset(tables),
            )
            self._check_groups(former, state.database)
            for system, found in outlets_in(state.rows(OUTLET)).items():
                if found.batches:
                    raise CheckpointError(
                        f"{former.name} has records for system {system!r} that are not known to be "
                        f"there; run {self.app} until it stops in order, while the system answers"
                    )
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

    def _make_task(
        self, place: Path, partition: int, fence: int, layout: NewLayout, kept: _LastOpened
    ) -> int:
        """Make the database of a new task; return how many rows of keys it has."""
        folder, moved = task_folder(place, _name(partition)), 0
        groups = groups_of(partition, self.partitions)
        database = epochs.claim(folder, fence, Database)
        try:
            for former in range(*_touching(groups, self.guard.tasks)):
                before = kept.task(former)
                if before is not None:
                    numbers = layout.renumbered[former]
                    moved += _move(before.database, database, groups, numbers)
            _write_rest(TaskState(database, self._hasher, fence=fence), layout, partition)
            database.write_tables()
        finally:
            database.close()
        own = database.folder
        disk.sync(*(each for each in own.iterdir() if each.name != "LOCK"), own, folder)
        return moved


class _LastOpened:
    """The former tasks, of which the one that was asked for last stays open."""

    def __init__(self, kept: Callable[[int], AbstractContextManager[TaskState | None]]) -> None:
        self._kept = kept
        self._open = ExitStack()
        self._partition = -1
        self._state: TaskState | None = None

    def task(self, partition: int) -> TaskState | None:
        """The state of a task; None if it has never run. Ask in the order of partitions."""
        if partition != self._partition:
            self.close()
            self._state = self._open.enter_context(self._kept(partition))
            self._partition = partition
        return self._state

    def close(self) -> None:
        self._partition = -1
        self._open.close()


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
        rows = source.chunk(start, end, ROWS)
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
