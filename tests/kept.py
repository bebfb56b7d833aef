"""What the tasks of an app keep, for tests that look at it or put it there."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from s4node.keys import crc32
from s4node.progress.store import ProgressStore
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import task_folder
from s4node.state.task_state import TaskState


def kept_positions(app: Path) -> dict[str, dict[str, int]]:
    """The offsets that were committed, by task and partition; of an app that may run."""
    found = {}
    for folder in sorted(app.glob("tasks/*")):
        if epochs.epochs_of(folder):
            with epochs.copied(folder) as database:
                found[unquote(folder.name)] = TaskState(database, crc32).positions()
    return found


def keep_positions(app: Path, task: str, positions: dict[str, int]) -> None:
    """Have a task begin with these."""
    store = ProgressStore(app)
    folder = task_folder(app, task)
    claim = store.claim(task, "", 0, epochs.highest(folder))
    state = TaskState(epochs.claim(folder, claim.fence, Database), crc32)
    state.begin_commit(positions)
    state.write()
    state.end_commit(written=True)
    state.close()
    store.close()
