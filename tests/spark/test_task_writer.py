"""Executors write the state of an app's tasks into databases."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from s4node import App, Event, ProcessingElement
from s4node.errors import ConfigError
from s4node.events.keys import KEY_GROUPS, crc32m
from s4node.spark.history.replay import AppSource, Replay
from s4node.spark.history.stage_rows import STATE
from s4node.spark.history.stages import stages
from s4node.spark.history.task_writer import TASK, Reached, TaskWriter
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.task_state import TaskState

TASKS = 3


class Visit(Event):
    user: str


class Visitor(ProcessingElement):
    visits: int = 0

    def on_event(self, _: Visit) -> None:
        self.visits += 1


class Visits(App):
    def on_init(self) -> None:
        visitor = self.create_pe(Visitor)
        self.create_input_stream("visits", visitor, key="user", types=Visit)


def test_the_state_of_a_history_is_in_the_databases_of_the_tasks_that_own_its_keys(
    tmp_path: Path,
) -> None:
    order = StructType([StructField("at", LongType())])
    source = AppSource(Visits, {"s4.cluster.partitions": str(TASKS)}, TASKS)
    users = sorted(f"u{n % 40}" for n in range(100))
    history = pa.record_batch({"user": users, "at": range(100)})
    (stage,) = stages(source.made())
    rows = pa.Table.from_batches(
        Replay(source, stage, order, frozenset(), "visits")(iter([history]))
    )
    rows = rows.filter(pa.compute.equal(rows["kind"], STATE))
    tasks = [spot * TASKS // KEY_GROUPS for spot in rows["spot"].to_pylist()]
    rows = rows.append_column(TASK, pa.array(tasks, pa.int32())).sort_by(TASK)
    written = TaskWriter(source, str(tmp_path))(iter(rows.to_batches(max_chunksize=7)))
    places = {row["task"]: row["place"] for batch in written for row in batch.to_pylist()}

    assert sorted(places) == list(range(TASKS))
    found: dict[str, int] = {}
    for place in places.values():
        database = Database(Path(place))
        state = StateReader(TaskState(database, crc32m))
        mine = {key: row["visits"] for key, row in state.instances("Visitor")}
        database.close()
        assert mine
        assert not mine.keys() & found.keys()
        found |= mine
    assert found == {user: users.count(user) for user in users}


def test_an_executor_that_does_not_reach_the_folder_says_so(tmp_path: Path) -> None:
    row = pa.record_batch({"id": [1]})
    with pytest.raises(ConfigError, match=r"the executor on .* does not reach .*absent.*--work"):
        list(Reached(str(tmp_path / "absent" / "place"))(iter([row])))
    list(Reached(str(tmp_path))(iter([row])))
    assert len(list(tmp_path.iterdir())) == 1
