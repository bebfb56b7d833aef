"""A check of an upgrade: the new version reads a sample of the state of the running one.

Rules
- The sample is read from copies, before anything is stopped; the tasks' owners go on meanwhile.
- State on this host is read. Of that which is only at a URL one task is fetched; others only if
  their rows may decide. State that cannot be copied is checked by the start.
- Before an app goes on from a savepoint, that is read in the same way. What the version before used
  has to be used (``state_use``).
- Some rows of each PE and store are read, with keys from all over the task, and all class versions
  of PEs are checked. So a table that cannot be read at all is always found; a single bad row is
  not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import trio

from s4node import threads
from s4node.app.app import App
from s4node.errors import StateError, StoreCorrupt
from s4node.events.keys import KEY_GROUPS, Hasher, Key, crc32m
from s4node.logger import get_logger
from s4node.runtime.event_time.state_use import check_use
from s4node.runtime.event_time.window_state import check_order
from s4node.runtime.inputs.job_model import TaskModel
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.savepoints.manifest import AS_IS, StateCheck
from s4node.state import epochs, key_encoding
from s4node.state.database import Database
from s4node.state.rows import PREFIX_BYTES, prefix
from s4node.state.task_state import TaskState

log = get_logger("s4node.runtime")

ROWS = 100
"""The rows to read of each PE and store of a task."""

_EACH = 4
"""At most so many of them have keys of one group."""

_STRIDE = 1021
"""The step from one key group to the next; it shares no factor with the number of groups."""

Opened = Callable[[str], AbstractContextManager[TaskState | None]]
"""Opens a copy of a task's state for a block; None if it has none."""


async def check(
    app: App,
    opened: Opened,
    tasks: Sequence[TaskModel],
    hasher: Hasher,
    agreed: StateCheck = AS_IS,
    savepoint: str = "",
    fetched: Collection[str] = (),
) -> None:
    """Raise StateError if ``app`` cannot read a sample of the state of ``tasks``, or leaves more of
    it unused than was ``agreed``. That of a ``savepoint`` of this name has to be read; that of
    tasks which are ``fetched`` only until one of them shows what the others have."""
    clock = trio.lowlevel.current_clock().current_time
    for task in sorted(tasks, key=lambda each: each.name in fetched):
        elements = PeProcessor(app, task.index, clock) if app.prototypes else None
        look = partial(_look, app, opened, task.name, elements, hasher, agreed, savepoint)
        settled = await threads.run_sync(look)
        if settled and task.name in fetched:
            return


def check_unused(folder: Path) -> None:
    """Raise StateError if the state of a task in ``folder``, which no version of the app is going
    to use, holds events back. Of state that cannot be read nothing is said."""
    for place in sorted(folder.iterdir()):
        with ExitStack() as copies:
            try:
                database = copies.enter_context(epochs.copied(place))
            except (StateError, StoreCorrupt):
                continue
            check_order(TaskState(database, crc32m))


def _look(
    app: App,
    opened: Opened,
    task: str,
    elements: PeProcessor | None,
    hasher: Hasher,
    agreed: StateCheck,
    savepoint: str,
) -> bool:
    """Read a sample of a task's state as of its last commit; called in a thread.

    Returns True if the rows of no other task decide what is unused.
    """
    with ExitStack() as copies:
        try:
            kept = copies.enter_context(opened(task))
        except (StateError, StoreCorrupt) as error:
            if savepoint:
                raise
            _log_unread(app, task, error)
            return False
        try:
            if kept is not None:
                _read(app, elements, TaskState(kept.database, hasher))
                return not check_use(app, kept, agreed, savepoint)
        except StoreCorrupt as error:
            if savepoint:
                raise
            _log_unread(app, task, error)
        return False


def _log_unread(app: App, task: str, error: Exception) -> None:
    log.warning(
        "the state of a task could not be checked before the task is stopped",
        app=app.name,
        task=task,
        reason=str(error),
    )


def _read(app: App, elements: PeProcessor | None, state: TaskState) -> None:
    tables = dict(state.tables)
    for spec in app.stores.values():
        store = state.store(spec)
        for key in _keys(state.database, tables.get(f"store {spec.name}")):
            store.get(key)  # raises for a value of another type
    if elements is not None:
        elements.attach_state(state)
        elements.restore(sys.maxsize)
        for name in [n for n, (p, _) in app.prototypes.items() if p.windows is None]:
            elements.have(name, _keys(state.database, tables.get(f"pe {name}")))


def _keys(database: Database, table: int | None) -> Iterator[Key]:
    """Some keys of a table, from groups all over it; singletons, without keys, are read anyway."""
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
