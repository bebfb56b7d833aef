"""A sample of what tasks of earlier versions keep, read by the version that is to go on from it.

Rules
- The sample is read from copies, before anything is stopped: the tasks' owners go on meanwhile.
- What is on this host is read. What is only at a URL, or cannot be copied, the start finds out.
- Of each PE and store some rows are read, of keys all over the task; of PEs, all versions of their
  classes are looked at. So what no row can be read of is always found, and a single bad row is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import trio

from s4node import threads
from s4node.app.app import App
from s4node.errors import StateError, StoreCorrupt
from s4node.events.keys import KEY_GROUPS, Hasher, Key
from s4node.logger import get_logger
from s4node.runtime.inputs.job_model import TaskModel
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.state import key_encoding
from s4node.state.database import Database
from s4node.state.job import kept_by
from s4node.state.rows import PREFIX_BYTES, prefix
from s4node.state.task_state import TaskState

log = get_logger("s4node.runtime")

ROWS = 100
"""So many rows of each PE and store of a task are read."""

_EACH = 4
"""The most of them whose keys are of one group."""

_STRIDE = 1021
"""From one group that is looked at to the next; it shares no factor with their number."""


async def check(app: App, folder: Path, tasks: Sequence[TaskModel], hasher: Hasher) -> None:
    """Raise StateError with what ``app`` cannot read of what its tasks keep in ``folder``."""
    clock = trio.lowlevel.current_clock().current_time
    for task in tasks:
        elements = PeProcessor(app, task.index, clock) if app.prototypes else None
        await threads.run_sync(_look, app, folder, task.name, elements, hasher)


def _look(app: App, folder: Path, task: str, elements: PeProcessor | None, hasher: Hasher) -> None:
    """Read a sample of what a task keeps, as of its last commit; in a thread."""
    with ExitStack() as copies:
        try:
            kept = copies.enter_context(kept_by(folder, task))
        except (StateError, StoreCorrupt) as error:
            _tell_unread(app, task, error)
            return
        try:
            if kept is not None:
                _read(app, elements, TaskState(kept.database, hasher))
        except StoreCorrupt as error:
            _tell_unread(app, task, error)


def _tell_unread(app: App, task: str, error: Exception) -> None:
    log.warning(
        "what a task keeps is not read before it is stopped",
        app=app.name,
        task=task,
        reason=str(error),
    )


def _read(app: App, elements: PeProcessor | None, state: TaskState) -> None:
    """Read a sample of each table that the app still has."""
    tables = dict(state.tables)
    for spec in app.stores.values():
        store = state.store(spec)
        for key in _keys(state.database, tables.get(f"store {spec.name}")):
            store.get(key)  # raises for one of another type
    if elements is not None:
        elements.keep(state)
        for name in app.prototypes:
            elements.have(name, _keys(state.database, tables.get(f"pe {name}")))


def _keys(database: Database, table: int | None) -> Iterator[Key]:
    """Some keys of a table, of groups all over it; a singleton, which has none, is read anyway."""
    if table is None:
        return
    left = ROWS
    for step in range(KEY_GROUPS):
        group = step * _STRIDE % KEY_GROUPS
        found = database.chunk(prefix(group, table), prefix(group, table + 1), min(left, _EACH))
        for row, _ in found:
            yield key_encoding.decode(row[PREFIX_BYTES:])
        left -= len(found)
        if not left:
            return
