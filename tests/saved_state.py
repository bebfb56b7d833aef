"""Saved state of the tasks of an app, for tests that look at it or put it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from s4node.events.keys import crc32m
from s4node.net.egress.outbox_rows import sort_rows
from s4node.offsets.checkpoint import Producer, SavedProducer
from s4node.offsets.task_claims import TaskClaims
from s4node.runtime.outputs.channels import to_consumers
from s4node.savepoints.place import opened_task
from s4node.savepoints.shipped import savepoints_of
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.job import folder_of, task_folder
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState


def saved_positions(app: Path) -> dict[str, dict[str, int]]:
    """The offsets that were committed, by task and partition; of an app that may run."""
    return {task: state.positions() for task, state in _tasks(app)}


def save_positions(app: Path, task: str, positions: dict[str, int]) -> None:
    """Have a task begin with these."""
    store = TaskClaims(app)
    folder = task_folder(app, task)
    claim = store.claim(task, "", 0, epochs.highest(folder))
    state = TaskState(epochs.claim(folder, claim.fence, Database), crc32m)
    state.begin_commit(positions)
    state.write_commit()
    state.end_commit(written=True)
    state.close()
    store.close()


def saved_instances(app: Path) -> dict[str, dict[str, Any]]:
    """The saved PEs of an app by key, as of the last commits."""
    found = {}
    for _, state in _tasks(app):
        for name in (look := StateReader(state)).elements:
            found.update(look.instances(name))
    return found


def states_in_savepoint(folder: Path, savepoint: str, app: str) -> dict[str, dict[Any, Any]]:
    place = savepoints_of(folder_of(str(folder), "default", app), None)
    found: dict[str, dict[Any, Any]] = {}
    with place.opened(place.manifest_of(savepoint)) as saved:
        for task in saved.iterdir():
            if not task.is_dir():
                continue
            with TemporaryDirectory() as room:
                epochs.inherit(task, Path(room))
                database = Database(Path(room))
                reader = StateReader(TaskState(database, crc32m))
                for pe in reader.elements:
                    rows = dict(reader.instances(pe))
                    assert not rows.keys() & found.setdefault(pe, {}).keys()
                    found[pe].update(rows)
                database.close()
    return found


def waiting_in_savepoint(folder: Path, savepoint: str, app: str) -> int:
    """The frames in a savepoint that consumers had yet to acknowledge."""
    place = savepoints_of(folder_of(str(folder), "default", app), None)
    manifest, found = place.manifest_of(savepoint), 0
    with place.opened(manifest) as saved:
        for task in manifest.tasks:
            with opened_task(saved, task) as state:
                assert state is not None
                for name, rows in to_consumers(state.rows(OUTBOX)).items():
                    found += sum(map(len, sort_rows(name, rows).frames.values()))
    return found


def saved_rows(app: Path, store: str) -> dict[Any, Any]:
    """The rows of the tasks of an app in a store, as of the last commits."""
    found: dict[Any, Any] = {}
    for _, state in _tasks(app):
        found.update(StateReader(state).store(store))
    return found


def saved_producers(app: Path) -> dict[str, dict[Producer, SavedProducer]]:
    return {task: state.producers() for task, state in _tasks(app)}


def _tasks(app: Path) -> Iterator[tuple[str, TaskState]]:
    for folder in sorted(app.glob("tasks/*")):
        if epochs.epochs_of(folder):
            with epochs.copied(folder) as database:
                yield unquote(folder.name), TaskState(database, crc32m)
