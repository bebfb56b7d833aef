"""The state of a task that a version of an app uses: tables, and keys of streams. Pure.

Rules
- A task notes both with a commit, so a savepoint says what its version used. Rows of other versions
  go with it, and are ignored.
- A version that replaces another one, or goes on from its savepoint, uses what that one used, by
  the same keys: a renamed PE would begin anew, and another key would mix instances. The user may
  agree to either.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from s4node.app.app import App
from s4node.app.in_order import IN_ORDER
from s4node.app.stream import OutputStream
from s4node.errors import StateError
from s4node.events.routing import KeyRule, key_text
from s4node.runtime.event_time.window_state import FAILED
from s4node.savepoints.manifest import StateCheck

if TYPE_CHECKING:
    from s4node.state.task_state import TaskState

USE = "used"
"""The fact that has the tables and keys of the version that wrote the last commit."""


def note_use(app: App, state: TaskState) -> bool:
    """Note with the next commit what this version of the app uses; return True if another version
    has noted something else."""
    use = {"tables": sorted(_tables_of(app)), "keys": _keys_of(app)}
    before = state.meta(USE)
    if before != use:
        state.set_meta(USE, use)
    return before not in (None, use)


def unused_in(state: TaskState) -> list[str]:
    """The tables with rows that the version which wrote the last commit did not use."""
    used = (state.meta(USE) or {}).get("tables", state.tables)
    return sorted(each for each in state.tables if each not in used and state.has_table_rows(each))


def check_use(app: App, state: TaskState, check: StateCheck, savepoint: str) -> bool:
    """Raise StateError if the app does not use what the version before it did, without consent.

    That version is the one of a ``savepoint``, or the one that runs. Returns True if it may be
    refused for rows of another task.
    """
    use = state.meta(USE) or {"tables": state.tables, "keys": {}}
    unused = [
        each
        for each in sorted(set(use["tables"]) - _tables_of(app))
        if owner_of(each) not in check.unused
        if not each.endswith(IN_ORDER)  # which has a check of its own
    ]
    gone = [each for each in unused if each in state.tables and state.has_table_rows(each)]
    where = f"savepoint {savepoint!r}" if savepoint else "the app that runs"
    if gone:
        names = " ".join(f"--unused {each}" for each in sorted(set(map(owner_of, gone))))
        fix = (
            "use a version that has them, or another savepoint" if savepoint else "keep their names"
        )
        raise StateError(
            f"{where} has state that this version of app {app.name!r} has no place for: "
            f"{', '.join(gone)}; {fix}, or leave it unused: s4 deploy {names}"
        )
    for stream, key in _keys_of(app).items():
        before = use["keys"].get(stream, key)
        if not check.same_keys and (key[0] != before[0] or not _keeps(key[1], before[1])):
            raise StateError(
                f"{where} has instances by the key {_shown(before)} of stream {stream!r}, and this "
                f"version of app {app.name!r} would mix them with those by {_shown(key)}; keep the "
                f"key, deploy it under another --name, or say that both give the same keys: "
                f"s4 deploy --same-keys"
            )
    return bool(unused)


def owner_of(table: str) -> str:
    return re.sub(r" \(\w+\)$", "", table.partition(" ")[2])


def _tables_of(app: App) -> set[str]:
    tables = {f"store {name}" for name in app.stores}
    for name in app.prototypes:
        tables |= {f"pe {name}", f"pe {name}{FAILED}", f"timers {name}"}
    return tables


def _keys_of(app: App) -> dict[str, list[Any]]:
    """The name and the types as text of the key of each stream to PEs."""
    keys = {}
    for stream in app.streams.values():
        if stream.key is not None and not isinstance(stream, OutputStream):
            parts = KeyRule(stream.key, generic=True).attributes
            typed = [{f[0]: f[1] for f in each.declaration.fields} for each in stream.types]
            kinds = {",".join(each.get(part, "") for part in parts) for each in typed if each}
            keys[stream.name] = [key_text(stream.key), sorted(kinds - {""})]
    return keys


def _keeps(now: Collection[str], before: Collection[str]) -> bool:
    """Return True if keys of all types from before are still keys; those of no type may be."""
    return not now or not before or set(before) <= set(now)


def _shown(key: list[Any]) -> str:
    name, kinds = key
    return f"{name} ({' or '.join(kinds)})" if kinds else f"{name}"
