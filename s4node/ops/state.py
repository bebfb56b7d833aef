"""``s4 state``: what the tasks of an app keep, as of their last commits, whether it runs or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from s4node.config import Config
from s4node.errors import StateError
from s4node.keys import crc32
from s4node.ops.job import find_job
from s4node.state import epochs
from s4node.state.job import task_folder
from s4node.state.look import Look
from s4node.state.task_state import TaskState

Row = tuple[str, str, Any, Any]
"""Task, table, key and value."""


def scan(target: str, config: Config, *, table: str, task: str, limit: int, as_json: bool) -> int:
    """Print rows of stores and PEs; returns the exit status."""
    for number, row in enumerate(_rows(target, config, table, task)):
        if number == limit:
            break
        _show(*row, as_json=as_json)
    return 0


def get(target: str, key: str, config: Config, *, table: str, task: str, as_json: bool) -> int:
    """Print what is kept of one key, in text or as JSON; returns the exit status."""
    found = [row for row in _rows(target, config, table, task) if _is_key(row[2], key)]
    if not found:
        raise StateError(f"nothing is kept of {key!r}; s4 state scan {target} shows what is")
    for row in found:
        _show(*row, as_json=as_json)
    return 0


def _rows(
    target: str, config: Config, table: str, task: str
) -> Iterator[tuple[str, str, Any, Any]]:
    """All that is kept, in the order of tasks and tables."""
    job = find_job(target, config)
    job.check_task(task)
    known: set[str] = set()
    for name in [task] if task else job.checkpoints:
        folder = task_folder(job.folder, name)
        if not epochs.epochs_of(folder):
            continue
        with epochs.copied(folder) as database:
            look = Look(TaskState(database, crc32))
            for each, rows in (
                *((each, look.instances) for each in look.elements),
                *((each, look.store) for each in look.stores),
            ):
                known.add(each)
                if table in ("", each):
                    for key, value in rows(each):
                        yield name, each, key, value
    if table and table not in known:
        raise StateError(
            f"app {job.name!r} keeps no {table!r}; it keeps: "
            f"{', '.join(sorted(known)) or 'nothing'}"
        )


def _is_key(key: Any, text: str) -> bool:
    return text in (key, str(key), json.dumps(key, default=str))


def _show(task: str, table: str, key: Any, value: Any, *, as_json: bool) -> None:
    plain = json.dumps(value, default=str)
    if as_json:
        print(json.dumps({"task": task, "table": table, "key": key, "value": value}, default=str))
    else:
        print(f"{task}  {table}  {'-' if key is None else key}  {plain}")
