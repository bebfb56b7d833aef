"""Writes the state of a bootstrap as a savepoint of its job.

Rules
- Spark's executors write the rows of state (``task_writer``), each into the database of the task
  that owns its key.
- The last commit of a task has its positions, and the savepoint exists only once all tasks are
  written. So nodes have all of the history, or none of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import functions as f

from s4node import clocks, disk, tokens
from s4node.config import settings
from s4node.config.config import Config
from s4node.events.keys import KEY_GROUPS, hasher_named
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import now_ms
from s4node.runtime.container.durable_parts import kind_of
from s4node.runtime.event_time.saved_times import EVENT_TIME
from s4node.runtime.inputs.binding import replayable
from s4node.runtime.inputs.job_model import JobModel, TaskModel, model_of
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.savepoints import writer
from s4node.savepoints.manifest import Manifest
from s4node.savepoints.shipped import savepoints_of
from s4node.spark.history.bootstrap import Bootstrapped
from s4node.spark.history.replay import AppSource
from s4node.spark.history.stage_rows import STATE
from s4node.spark.history.task_writer import TASK, WRITTEN_TASKS, TaskWriter, commit
from s4node.state.database import Database
from s4node.state.job import DONE, EPOCH_OF, WRITTEN, folder_of, identity_of
from s4node.state.remote_job import RemoteJob, remote_job_of
from s4node.state.rows import TASK_GROUP
from s4node.state.task_state import TaskState


def check_free(source: AppSource, name: str) -> None:
    """Raise CheckpointError if the app has a savepoint of this name."""
    app = source.made().name
    job, remote_job = _place_of(app, Config.from_values(source.values))
    savepoints_of(job, remote_job).prepare(name, app)


def write_savepoint(found: Bootstrapped, name: str) -> Manifest:
    """Write a savepoint among those of the app; raises CheckpointError if the name is taken."""
    config = Config.from_values(found.source.values)
    app = found.app.name
    job, remote_job = _place_of(app, config)
    model = _model(found, config)
    facts = model.facts
    guard = JobGuard(
        facts.tasks, facts.grouper, config[settings.HASHER], facts.counts, facts.rerouted
    )
    about = writer.About(name, app, identity_of(job, remote_job), guard, "made of history by Spark")
    tasks = {task.name: task for task in model.tasks}
    written = _written(found, len(tasks))

    @contextmanager
    def opened(task: str) -> Iterator[Database]:
        disk.make_folder(job)
        with TemporaryDirectory(prefix=".bootstrap-", dir=job) as room:
            place = written.get(tasks[task].index)
            if place is not None:
                shutil.copytree(place, room, dirs_exist_ok=True)
            with closing(Database(Path(room))) as database:
                _complete(database, found, config, tasks[task])
                yield database

    return writer.write(savepoints_of(job, remote_job), about, list(tasks), opened)


def _place_of(app: str, config: Config) -> tuple[Path, RemoteJob | None]:
    """The folder of the app's job, and where its state is shipped, if it is."""
    job = folder_of(config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME], app)
    return job, remote_job_of(config, job)


def _model(found: Bootstrapped, config: Config) -> JobModel:
    inputs = [(stream.system, stream.name) for stream in replayable(found.app)]
    counts = {(system, name): found.counts[name] for system, name in inputs}
    return model_of(config, kind_of(found.app), inputs, counts)


def _written(found: Bootstrapped, tasks: int) -> dict[int, str]:
    """Have Spark's executors write the state of tasks; returns the folders of their databases."""
    spot = f.col("spot")
    of_task = f.floor(spot * tasks / KEY_GROUPS).cast("int")
    rows = found.rows.where(f.col("kind") == STATE).select(
        f.when(spot == TASK_GROUP, 0).otherwise(of_task).alias(TASK), "name", "spot", "key", "value"
    )
    folder = str(found.folder / f"tasks-{tokens.fresh(10)}")
    written = rows.repartition(tasks, TASK).sortWithinPartitions(TASK)
    places = written.mapInArrow(TaskWriter(found.source, folder), WRITTEN_TASKS).collect()
    return {row["task"]: row["place"] for row in places}


def _complete(database: Database, found: Bootstrapped, config: Config, task: TaskModel) -> None:
    """Write where a task goes on, in the commit after its rows."""
    state = TaskState(database, hasher_named(config[settings.HASHER]))
    PeProcessor(found.app, task.index, clocks.steady).attach_state(state)  # its tables and facts
    if found.times.watermarks:
        state.set_meta(EVENT_TIME, found.times.saved(found.app, task.ssps))
    positions = {}
    for ssp in task.ssps:
        if ssp.stream not in found.positions:
            continue  # the job begins it where its settings or a startpoint say
        at = found.positions[ssp.stream][ssp.partition]
        positions[str(ssp)] = at.offset
        state.set_meta(EPOCH_OF + str(ssp), at.epoch)
    state.set_meta(WRITTEN, now_ms())
    state.set_meta(DONE, 0)
    commit(state, positions, [])
