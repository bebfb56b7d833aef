"""Apps with event time: live, in a replay of logs and over a history they have the same rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, LongType, StructField, StructType
from timed_apps import Case, cases

from s4node.app.app import App
from s4node.app.plan.window_dispatch import time_rule
from s4node.spark.history.event_batches import unpacked
from s4node.spark.history.event_times import AT
from s4node.spark.history.replay import AppSource, Encoding, Replay
from s4node.spark.history.stage_rows import EVENT, PATH, rows_of
from s4node.spark.history.stages import stages
from s4node.testing import AppTest

ORDER = StructType([StructField(AT, DoubleType()), StructField("n", LongType())])
SCHEMA = to_arrow_schema(rows_of(ORDER.fields), timezone="UTC")
NAMES = sorted(cases(0))


def shuffled(app: App, case: Case, chance: random.Random) -> list[tuple[str, Any]]:
    """The events of all inputs, out of order within the lateness."""
    found = []
    for name, events in case.events.items():
        stream = app.streams[name]
        rule = time_rule(stream)
        slack = stream.time.lateness * 0.99 if stream.time is not None else 0
        for event in events:
            at = rule.find(event) if rule is not None else event.at
            found.append((at + chance.uniform(0, slack), name, event))
    found.sort(key=lambda each: each[0])
    return [(name, event) for _, name, event in found]


def end_of(case: Case) -> float:
    """A time after all that is due."""
    times = [event.at for events in case.events.values() for event in events]
    latest = max(times) / (1000 if isinstance(times[0], int) else 1)
    return latest + 1000


def rows(test: AppTest[Any], case: Case) -> Counter[str]:
    windowed = [name for name, (pe, _) in test.app.prototypes.items() if pe.windows]
    assert not any(map(test.late, windowed))
    assert not test.refused
    return Counter(repr(row) for name in case.rows for row in test.output(name))


def live(case: Case, chance: random.Random) -> Counter[str]:
    """The rows if few events come at a time."""
    with AppTest(case.app) as test:
        sent = shuffled(test.app, case, chance)
        while sent:
            size = chance.randint(1, 3)
            for name, each in groupby(sent[:size], key=lambda pair: pair[0]):
                test.send(name, *(event for _, event in each))
            del sent[:size]
        for name in case.events:
            test.advance_watermark(name, end_of(case))
        test.advance(seconds=1)
        return rows(test, case)


def replay(case: Case, chance: random.Random, partitions: int) -> Counter[str]:
    """The rows if the logs of all inputs are full before one of them is read."""
    inputs = ",".join(f"log.{name}" for name in case.events)
    with AppTest(case.app, partitions=partitions, settings={"task.inputs": inputs}) as test:
        log = test._runtime.world.inputs.system("log")
        test._runtime.world.call(log.go_away)
        for name, event in shuffled(test.app, case, chance):
            test.send(name, event)
        test._runtime.world.call(log.come_back)
        for name in case.events:
            test.end_input(name)
        test.advance(seconds=3)
        return rows(test, case)


def history(case: Case) -> Counter[str]:
    """The rows of a bootstrap, whose stages run here and not on Spark."""
    source = AppSource(case.app, {}, 1)
    app = source.made()
    until = dict.fromkeys(app.prototypes, end_of(case))
    made: list[dict[str, Any]] = []
    for name, events in case.events.items():
        rule = time_rule(app.streams[name])
        columns = [
            {**msgspec.structs.asdict(each), AT: each.at if rule is None else rule.find(each),
             "n": n} for n, each in enumerate(events)
        ]  # fmt: skip
        encode = Encoding(source, name, ORDER)
        made += listed(encode(iter([pa.RecordBatch.from_pylist(columns)])))
    for stage in stages(app):
        mine = [row for row in made if row["kind"] == EVENT and row["name"] in stage.streams]
        mine.sort(key=lambda row: (row[AT], -1 if row["n"] is None else row["n"], row[PATH]))
        parts = (mine[at : at + 64] for at in range(0, len(mine), 64))
        batches = (pa.RecordBatch.from_pylist(part, schema=SCHEMA) for part in parts)
        kept = frozenset(app.streams)
        made += listed(Replay(source, stage, ORDER, kept, until=until, now=end_of(case))(batches))
    return Counter(
        repr(unpacked(app.streams[row["name"]].types[row["type"]], [row["value"]])[0])
        for row in made
        if row["kind"] == EVENT and row["name"] in case.rows
    )


def listed(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("name", NAMES)
def test_live_in_a_replay_and_over_a_history_an_app_has_the_same_rows(name: str) -> None:
    chance = random.Random(name)
    case = cases(seed=1)[name]
    expected = live(case, chance)
    assert expected
    for partitions in (1, 2):
        replayed = replay(case, chance, partitions)
        assert (replayed - expected, expected - replayed) == (Counter(), Counter())
    found = history(case)
    assert (found - expected, expected - found) == (Counter(), Counter())
