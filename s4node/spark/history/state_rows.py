"""The rows of a task's database that a commit of a node would write for instances and timers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from s4node.app.instances import Instances
from s4node.app.window_instances import WindowInstances
from s4node.events.keys import Hasher
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.state.database import Database
from s4node.state.rows import PREFIX_BYTES, group_and_table
from s4node.state.task_state import TaskState

_INSTANCES = 8_192  # of one commit


class StateRow(NamedTuple):
    """A row: its table, its key group, the rest of its key, and its value."""

    table: str
    spot: int
    key: bytes
    value: bytes


class _Empty:
    def get(self, _row: bytes) -> None: ...

    def get_many(self, rows: Sequence[bytes]) -> list[None]:
        return [None] * len(rows)

    def scan(self, _start: bytes, _end: bytes) -> Iterator[Any]:
        return iter(())

    def table(self, _table: int) -> Iterator[Any]:
        return iter(())


def state_rows(
    processor: PeProcessor, instances: Mapping[str, Instances], hasher: Hasher
) -> Iterator[list[StateRow]]:
    return filter(None, _parts(processor, instances, hasher))


def _parts(
    processor: PeProcessor, instances: Mapping[str, Instances], hasher: Hasher
) -> Iterator[list[StateRow]]:
    every = {name: _all(each) for name, each in instances.items()}  # as without state until now
    state = TaskState(cast("Database", _Empty()), hasher)
    processor.attach_state(state)
    names = {number: name for name, number in state.tables.items()}
    for name, each in instances.items():
        saved, left = state.instances[name], every.pop(name)
        while some := list(islice(left, _INSTANCES)):
            for one in some:
                if one._mark is not saved.mark:
                    saved.touch_one(one)
            yield _written(state, names)
        if each.timers is not None:
            each.timers.save_all()
            yield _written(state, names)


def _all(instances: Instances) -> Iterator[Any]:
    every: Iterable[Any] = instances.values()
    if isinstance(instances, WindowInstances):
        every = instances.all()
    return iter(list(every))


def _written(state: TaskState, names: Mapping[int, str]) -> list[StateRow]:
    """The rows of a commit of what has changed, without facts about the task."""
    state.begin_commit({})
    while state.encode(_INSTANCES):
        pass
    rows, values = state.changes.rows_to_write()
    state.end_commit(written=True)
    state.changes.free()
    found = []
    for row, value in zip(rows, values, strict=True):
        spot, table = group_and_table(row)
        if table in names and value is not None:
            found.append(StateRow(names[table], spot, row[PREFIX_BYTES:], value))
    return found
