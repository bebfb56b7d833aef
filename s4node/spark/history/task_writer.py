"""Writes the state of an app's tasks into databases, on the executors of Spark.

Rules
- The databases are in folders that the driver and all executors reach. An attempt of a task of
  Spark has folders of its own; only the folders that its result names count.
- The rows are those that a node's commit writes. Where tasks go on is written by the driver.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from s4node import clocks, tokens
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.events.keys import hasher_named
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.spark.history.replay import AppSource
from s4node.spark.shipped import Shipped
from s4node.spark.short_errors import short_errors
from s4node.state.database import Database
from s4node.state.rows import prefix
from s4node.state.task_state import TaskState

TASK = "task"
"""The column with the number of the app's task that a row of state belongs to."""

WRITTEN_TASKS = "task int, place string"
"""The columns of the result: tasks, and the folders of their databases."""


@dataclass(frozen=True)
class TaskWriter(Shipped):
    """Writes rows of state, sorted by ``TASK``, into databases in ``folder``."""

    source: AppSource
    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with short_errors():
            for task, parts in groupby(_parts(batches), key=lambda part: part[0]):
                place = Path(self.folder, f"task-{task}-{tokens.fresh(10)}")
                place.mkdir(mode=0o777, parents=True)
                self._write(task, place, (part for _, part in parts))
                yield pa.record_batch(
                    {"task": pa.array([task], pa.int32()), "place": pa.array([str(place)])}
                )

    def _write(self, task: int, place: Path, parts: Iterator[pa.RecordBatch]) -> None:
        hasher = hasher_named(Config.from_values(self.source.values)[settings.HASHER])
        with closing(Database(place)) as database:
            state = TaskState(database, hasher)
            PeProcessor(self.source.made(), task, clocks.steady).attach_state(state)  # its tables
            for part in parts:
                wanted = ("name", "spot", "key", "value")
                names, spots, keys, values = (part.column(each).to_pylist() for each in wanted)
                places = [
                    prefix(spot, state.tables[name]) + key
                    for name, spot, key in zip(names, spots, keys, strict=True)
                ]
                commit(state, {}, sorted(zip(places, values, strict=True)))


@dataclass(frozen=True)
class Reached(Shipped):
    """Leaves a file in ``folder``, which the driver has made."""

    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with short_errors():
            host = socket.gethostname()
            for batch in batches:
                try:
                    Path(self.folder, tokens.fresh(10)).write_text(host)
                except OSError as error:
                    raise ConfigError(
                        f"the executor on {host} does not reach {Path(self.folder).parent} "
                        f"({error.strerror}); name a folder that all executors reach with work "
                        f"(--work)"
                    ) from error
                yield pa.record_batch({"seen": pa.array([len(batch)], pa.int32())})


def commit(state: TaskState, positions: dict[str, int], rows: list[tuple[bytes, bytes]]) -> None:
    state.begin_commit(positions)
    state.changes.add_all([row for row, _ in rows], [value for _, value in rows])
    state.write_commit()
    state.end_commit(written=True)


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        tasks = batch.column(TASK)
        for task in pc.unique(tasks).to_pylist():
            yield task, batch.filter(pc.equal(tasks, task))
