"""Writes the state of a bootstrap as a savepoint of its job.

Rules
- The rows are those that a commit of a node writes, in the database of the task of their key.
- The positions are in the same commit as the rows, and the savepoint exists when all tasks are
  there: nodes have all of the history, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from s4node import clocks
from s4node.app.pe_codec import ElementCodec
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import CheckpointError, ConfigError
from s4node.events.keys import KEY_GROUPS, hasher_named
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import now_ms
from s4node.runtime.commit.committer import folder_of
from s4node.runtime.container.durable_parts import kind_of
from s4node.runtime.inputs.binding import replayable
from s4node.runtime.inputs.job_model import JobModel, TaskModel, model_of
from s4node.savepoints import folders
from s4node.savepoints.manifest import FORMAT, Manifest, SavedTask
from s4node.spark.history.bootstrap import Bootstrapped
from s4node.spark.history.replay import STATE
from s4node.state.commit_id import known_of
from s4node.state.database import Database
from s4node.state.job import CUT, DONE, EPOCH_OF, WRITTEN, identity_of
from s4node.state.rows import TASK_GROUP, prefix
from s4node.state.task_state import TaskState
from s4node.version import __version__

_ROWS = 200_000  # of one commit


def write_savepoint(
    found: Bootstrapped, name: str, tell: Callable[[int, int], None] = lambda _, __: None
) -> Manifest:
    """Write a savepoint of this name into the state folder of the app's settings. Raises
    CheckpointError where there is one of that name, or the app runs with other tasks."""
    config = Config.from_values(found.source.values)
    job = folder_of(config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME], found.app.name)
    if config[settings.STATE_URL]:
        raise ConfigError(
            f"the state of {found.app.name} is shipped to {config[settings.STATE_URL]}, and "
            f"savepoints are of state in a folder only; leave s4.state.url out"
        )
    if folders.savepoint_folder(job, name).exists():
        raise CheckpointError(
            f"app {found.app.name!r} has a savepoint {name!r} already; take another name, or "
            f"remove that one: s4 savepoints remove {found.app.name} {name}"
        )
    model = _model(found, config)
    number = max([each.number + 1 for each in folders.found_in(job)] + [now_ms()])
    tasks = {}
    try:
        for done, task in enumerate(model.tasks):
            tell(done, len(model.tasks))
            tasks[task.name] = _write_task(found, config, job, number, task, len(model.tasks))
        facts = model.facts
        guard = JobGuard(
            facts.tasks, facts.grouper, config[settings.HASHER], facts.counts, facts.rerouted
        )
        manifest = Manifest(
            FORMAT,
            name,
            number,
            found.app.name,
            identity_of(job, None),
            int(clocks.wall() * 1000),
            __version__,
            guard.to_row(),
            tasks,
            "made of history by Spark",
        )
        folders.finish(job, manifest, folders.cuts_folder(job, number))
    finally:
        folders.remove_cuts(job)
    tell(len(model.tasks), len(model.tasks))
    return manifest


def _model(found: Bootstrapped, config: Config) -> JobModel:
    """The tasks of the job, as its nodes will compute them."""
    inputs = [(stream.system, stream.name) for stream in replayable(found.app)]
    missing = [name for _, name in inputs if name not in found.positions]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} is read from a system, and its history is not that log; give "
            f"the address of the log as its history, so that nodes go on where it ends"
        )
    counts = {(system, name): len(found.positions[name]) for system, name in inputs}
    return model_of(config, kind_of(found.app), inputs, counts)


def _write_task(
    found: Bootstrapped, config: Config, job: Path, number: int, task: TaskModel, tasks: int
) -> SavedTask:
    folder = job / f".bootstrap-{number}-{task.index}"
    folder.mkdir(parents=True)
    cut = folders.cut_folder(job, number, task.name)
    cut.parent.mkdir(parents=True, exist_ok=True)
    database = Database(folder)
    try:
        state = TaskState(database, hasher_named(config[settings.HASHER]))
        tables = {}
        for name, (prototype, _) in found.app.prototypes.items():
            tables[name] = state.table(f"pe {name}")
            state.set_meta(f"versions of {name}", ElementCodec(prototype.cls).versions)
        spot = f.col("spot")
        of_task = f.floor(spot * tasks / KEY_GROUPS) == task.index
        if task.index == 0:
            of_task |= spot == TASK_GROUP
        rows = found.rows.where((f.col("kind") == STATE) & of_task)
        table = rows.select("name", "spot", "key", "value").toArrow()
        for batch in table.to_batches(_ROWS):
            names, spots, keys, values = (column.to_pylist() for column in batch.columns)
            places = [
                prefix(spot, tables[name]) + key
                for name, spot, key in zip(names, spots, keys, strict=True)
            ]
            _commit(state, {}, sorted(zip(places, values, strict=True)))
        positions = {}
        for ssp in task.ssps:
            at = found.positions[ssp.stream][ssp.partition]
            positions[str(ssp)] = at.offset
            state.set_meta(EPOCH_OF + str(ssp), at.epoch)
        state.set_meta(WRITTEN, now_ms())
        state.set_meta(DONE, 0)
        state.set_meta(CUT, number)
        _commit(state, positions, [])
        fence, commit, _ = known_of(database)
        database.checkpoint(cut)
    finally:
        database.close()
        _remove(folder)
    return SavedTask(fence, commit, folders.files_of(cut))


def _commit(state: TaskState, positions: dict[str, int], rows: list[tuple[bytes, Any]]) -> None:
    state.begin_commit(positions)
    state.changes.add_all([row for row, _ in rows], [value for _, value in rows])
    state.write_commit()
    state.end_commit(written=True)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
