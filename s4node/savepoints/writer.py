"""Writes savepoints of databases that nobody changes meanwhile, and makes all manifests.

Rules
- ``write`` makes a savepoint of any tasks' databases: those of a stopped job, or ones made for the
  purpose. ``state.task_state`` says what a database holds.
- A savepoint that fails leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from s4node import clocks
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.cuts import CutReport
from s4node.offsets.startpoint_fan_out import Requests
from s4node.savepoints.manifest import FORMAT, Manifest, SavedTask, Upgrade
from s4node.savepoints.place import SavepointPlace
from s4node.state.commit_id import known_of
from s4node.state.database import Database
from s4node.version import __version__

_NONE = Requests()


@dataclass(frozen=True)
class About:
    """The contents of a manifest besides its tasks; see :class:`Manifest`.

    A job must fit the ``guard`` to go on from the savepoint.
    """

    name: str
    app: str
    state: str
    guard: JobGuard
    why: str = ""
    startpoints: Requests = _NONE
    upgrade: Upgrade | None = None

    def manifest(self, number: int, tasks: Mapping[str, SavedTask]) -> Manifest:
        return Manifest(
            FORMAT,
            self.name,
            number,
            self.app,
            self.state,
            int(clocks.wall() * 1000),
            __version__,
            dict(self.guard.to_row()),
            dict(tasks),
            self.why,
            self.startpoints,
            self.upgrade,
        )


def write(
    place: SavepointPlace,
    about: About,
    tasks: Sequence[str],
    opened: Callable[[str], AbstractContextManager[Database]],
    on_progress: Callable[[int, int], None] = lambda _, __: None,
) -> Manifest:
    """Write the savepoint of ``tasks``; ``opened(task)`` opens a task's database for a block.

    ``on_progress`` is called with the number of tasks that are written, and of all. Raises
    CheckpointError if the name is taken, ProgressUnwritten or StateError if the savepoint cannot be
    written.
    """
    number = place.prepare(about.name, about.app)
    try:
        saved = {}
        for task in tasks:
            with opened(task) as database:
                fence, commit, _ = known_of(database)
                cut = CutReport(task, fence, commit)
                place.keep_cut(number, task, database)
            place.publish(number, cut)
            saved[task] = place.saved_task(number, cut)
            on_progress(len(saved), len(tasks))
        manifest = about.manifest(number, saved)
        place.write_manifest(manifest)
        return manifest
    finally:
        place.discard(number)


def empty(app: str, guard: JobGuard, tasks: Sequence[str], now_ms: int) -> Manifest:
    """The manifest of a nameless savepoint in which no task has state, to begin anew from."""
    saved = {task: SavedTask(0, 0, {}) for task in tasks}
    row = dict(guard.to_row())
    return Manifest(FORMAT, "", now_ms, app, "", now_ms, __version__, row, saved)
