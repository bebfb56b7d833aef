"""Windows and timers in a bootstrap: an app that goes on from it ends as if it had had it all."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from spark_nodes import run_to_the_end, running_node, s4

from s4node import Event
from s4node.app.stream import StreamTime
from s4node.config.config import Config
from s4node.deploy.savepoint_restore import SavepointRestore
from s4node.events.keys import KEY_GROUPS, crc32m
from s4node.events.schema import EventType
from s4node.runtime.event_time.saved_times import EVENT_TIME
from s4node.savepoints.shipped import savepoints_of
from s4node.spark.history.bootstrap import Bootstrapped, bootstrap
from s4node.spark.history.event_times import AT, event_times, with_time
from s4node.spark.history.replay import AppSource
from s4node.spark.history.savepoint import write_savepoint
from s4node.state.job import folder_of, saved_state
from s4node.testing import AppTest
from tests.spark.windowed_app import LATENESS, Answer, Reading, Windowed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TARGET = "tests.spark.windowed_app:Windowed"
INPUTS = ("readings", "sorted", "asked", "answers", "plain")
PES = {
    "tumbling", "hopping", "uneven", "session", "graceful", "Streak", "second-hop", "Declared",
    "Timed", "Digest", "pair", "alone", "counted",
}  # fmt: skip


class InSeconds(Event):
    at: float


class InMilliseconds(Event):
    at: int


class AsDatetime(Event):
    at: datetime


class Renamed(Event, rename={"at": "created-at"}):
    at: float


def histories(seed: int) -> dict[str, list[Any]]:
    """Events of each input, out of order within its lateness."""
    some = Random(seed)

    def events(kind: type, count: int) -> list[Any]:
        found, at = [], 1000.0
        for _ in range(count):
            at += some.choice([0.0, 0.25, 1.0, 1.0, 30.0 if some.random() < 0.02 else 2.0])
            early = some.choice([0.0, 0.0, some.randrange(4 * LATENESS) / 4])
            found.append(kind(f"m{some.randrange(7)}", some.randrange(1000), max(1.0, at - early)))
        return found

    return {name: events(Answer if name == "answers" else Reading, 400) for name in INPUTS}


def frame(spark: SparkSession, events: list[Any]) -> DataFrame:
    rows = [(*msgspec.structs.astuple(event), number) for number, event in enumerate(events)]
    return spark.createDataFrame(rows, "meter string, value long, at double, n long")


def text(row: Any) -> str:
    return f"{row.pe} {row.key} {row.at} {list(map(float, row.values))}"


def settings(folder: Path, partitions: int) -> dict[str, str]:
    return {"s4.state.folder": str(folder), "s4.cluster.partitions": str(partitions)}


def restored(folder: Path, partitions: int) -> None:
    """Have the app go on from the savepoint that was made of the history."""
    config = Config.from_values(settings(folder, partitions))
    job = folder_of(str(folder), "default", "Windowed")
    place = savepoints_of(job, None)
    manifest = place.manifest_of("history")
    with place.opened(manifest) as saved:
        restore = SavepointRestore("Windowed", job, config, None, manifest, saved)
        restore.restore(outputs_again=False, accept_loss=False)


def ended(
    folder: Path, partitions: int, sent: dict[str, list[Any]], some: Random
) -> tuple[Counter[str], dict[Any, Any]]:
    """Send the events in parts; the rows that come of it, and the state of all PEs at the end."""
    with AppTest(Windowed, partitions=partitions, settings=settings(folder, partitions)) as test:
        for name, events in sent.items():
            at = 0
            while at < len(events):
                size = some.randint(1, 60)
                test.send(name, *events[at : at + size])
                at += size
        test.advance(3)
        rows = Counter(map(text, test.output("rows")))
        late = {
            name: test.late(name) for name, (pe, _) in test.app.prototypes.items() if pe.windows
        }
        assert not any(late.values()), late
        assert not test.refused
    return rows, states(folder, partitions)


def states(folder: Path, partitions: int) -> dict[Any, Any]:
    """The rows of all tables, and the watermarks, by task."""
    found: dict[Any, Any] = {}
    for number in range(partitions):
        task = f"Partition {number}"
        with saved_state(folder_of(str(folder), "default", "Windowed"), task) as state:
            assert state is not None
            for name, table in state.tables.items():
                for row, data in state.database.table(table):
                    value = msgspec.msgpack.decode(data)
                    if name == "pe session":
                        value[3] = None  # True once an event has extended a session out of order
                    found[name, row[:2], row[4:]] = value
            streams, windows, _ = state.meta(EVENT_TIME)
            found[task] = {name: each[0] for name, each in streams.items()}
            found[task, "windows"] = windows
    return found


@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), (2, 3)])
def test_a_history_and_what_comes_after_it_end_as_if_all_had_come(
    spark: SparkSession, tmp_path: Path, seed: int, partitions: int
) -> None:
    some, events = Random(seed), histories(seed)
    rows, state = ended(tmp_path / "live", partitions, events, some)
    first = {name: some.randrange(150, 350) for name in events}

    on_spark = settings(tmp_path / "spark", partitions)
    found: Bootstrapped = bootstrap(
        spark,
        TARGET,
        {name: frame(spark, each[: first[name]]) for name, each in events.items()},
        order=["n"],
        config=on_spark,
        keep=["rows"],
    )
    before = Counter(map(text, found.output("rows").collect()))
    write_savepoint(found, "history")
    found.close()
    restored(tmp_path / "spark", partitions)
    rest = {name: each[first[name] :] for name, each in events.items()}
    after, there = ended(tmp_path / "spark", partitions, rest, some)
    missing = rows - (before + after)
    more = (before + after) - rows
    assert (missing, more) == (Counter(), Counter())
    assert there == state
    assert {row.partition(" ")[0] for row in before} == PES


def test_windows_over_a_log_go_on_after_the_command_with_each_result_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = histories(3)["readings"]
    wanted: Counter[tuple[str, float]] = Counter()
    for each in events:
        wanted[each.meter, each.at // 10 * 10 + 10] += each.value
    with running_node(tmp_path / "log") as node:
        node.create("readings", 2, key="meter")
        node.create("rows", 1)
        node.append("readings", events[:250], key="meter")
        values = {
            "task.inputs": "log.readings",
            "systems.log.address": node.address,
            "systems.log.samza.offset.default": "oldest",
            "s4.state.folder": str(tmp_path / "state"),
            "s4.stream.rows.consumers": "archive",
            "s4.cluster.archive.address": node.address,
        }
        app = "tests.spark.windowed_app:OverLog"
        s4("bootstrap", app, "--name", "history", "--outputs", node.address, **values)
        log = spark.read.format("s4").options(address=node.address, stream="rows")
        assert len(assert_right(log.load().collect(), wanted)) > 100
        node.append("readings", events[250:], key="meter")
        latest: dict[int, float] = {}
        for each in events:
            part = partition_of(each.meter, 2)
            latest[part] = max(latest.get(part, 0.0), each.at - LATENESS)
        over = {each for each in wanted if each[1] <= latest[partition_of(each[0], 2)]}
        more, found = ["--from", "history"], set[tuple[str, float]]()
        deadline = time.monotonic() + 200
        while found != over:  # a node may stop before the last windows have ended
            assert time.monotonic() < deadline, (over - found, found - over)
            run_to_the_end(node, app, values, len(events), *more)
            more = []
            found = assert_right(log.load().collect(), wanted)


def partition_of(key: str, partitions: int) -> int:
    return crc32m(key) % KEY_GROUPS * partitions // KEY_GROUPS


def assert_right(rows: list[Any], wanted: Counter[tuple[str, float]]) -> set[tuple[str, float]]:
    """The keys and ends of these windows; check that each result is right, and there once."""
    found = {(row.key, row.values[1]): row.values[3] for row in rows}
    assert len(found) == len(rows)
    assert found == {each: wanted[each] for each in found}
    return set(found)


def test_the_time_of_a_history_is_that_which_a_node_would_take(spark: SparkSession) -> None:
    def times(cls: type, column: str, *values: Any) -> list[float | None]:
        stream: Any = SimpleNamespace(time=StreamTime("at", 0.0, 30.0), types=[EventType(cls)])
        name = cls.__struct_encode_fields__[0]  # type: ignore[attr-defined]
        df = spark.createDataFrame([(value,) for value in values], f"`{name}` {column}")
        return [row[AT] for row in with_time(df, stream, 1e9).collect()]

    assert times(InSeconds, "double", 1.5, 0.0, -1.0, float("nan"), 2e9, None) == [1.5, *[None] * 5]
    assert times(InSeconds, "int", 7) == [7.0]
    assert times(Renamed, "double", 1.5, 0.0) == [1.5, None]
    assert times(Renamed, "long", 7) == [7.0]
    assert times(InMilliseconds, "long", 200_000_000_500, 7) == [200_000_000.5, None]
    assert times(AsDatetime, "timestamp", datetime.fromtimestamp(12.5, UTC)) == [12.5]


def test_a_partition_that_is_idle_does_not_hold_the_watermark_of_a_history(
    spark: SparkSession,
) -> None:
    app = AppSource("tests.spark.windowed_app:OverLog", {}, 1).made()

    def watermark(*appended: float, now: float) -> float:
        rows = [
            (number, 100.0 * number + 100, datetime.fromtimestamp(at, UTC))
            for number, at in enumerate(appended)
        ]
        df = spark.createDataFrame(rows, f"_partition int, {AT} double, _time timestamp")
        return event_times(app, {"readings": df}, ["readings"], now).watermarks["readings"]

    assert watermark(1000.0, 1000.0, now=1010.0) == 95.0
    assert watermark(900.0, 1000.0, now=1010.0) == 195.0
    assert watermark(900.0, 1000.0, now=2000.0) == 95.0
