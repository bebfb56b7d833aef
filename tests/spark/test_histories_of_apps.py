"""A bootstrap on Spark has the rows of an app that gets its events live, or reads them again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from s4node.spark.history.bootstrap import bootstrap
from s4node.testing import AppTest
from tests.timed_apps import Case, Rate, cases

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

COLUMNS = {
    "trades": "symbol string, price double, at double, n long",
    "rates": "symbol string, rate double, at double, n long",
    "mentions": "topic string, at long, n long",
}


def closed(case: Case) -> dict[str, list[Any]]:
    """The events, with a last one of each input that is later than all that is due."""
    units = {name: 1000 if isinstance(each[0].at, int) else 1 for name, each in case.events.items()}
    end = max(each[-1].at / units[name] for name, each in case.events.items()) + 1000
    return {
        name: [*each, msgspec.structs.replace(each[-1], at=type(each[-1].at)(end * units[name]))]
        for name, each in case.events.items()
    }


def run(case: Case, *, live: bool) -> Counter[str]:
    """The rows of the app, one event after the other or from logs that are full."""
    inputs = ",".join(f"log.{name}" for name in case.events)
    with AppTest(case.app, settings={} if live else {"task.inputs": inputs}) as test:
        sent = [(name, event) for name, events in closed(case).items() for event in events]
        sent.sort(key=lambda each: (each[1].at, isinstance(each[1], Rate)))
        log = test._runtime.world.inputs.system("log")
        test._runtime.world.call(log.go_away)
        for name, event in sent:
            test.send(name, event)
        test._runtime.world.call(log.come_back)
        test.advance(seconds=1)
        return Counter(
            repr(msgspec.structs.astuple(row)) for name in case.rows for row in test.output(name)
        )


@pytest.mark.parametrize("name", ["AsOfApp", "NearApp", "TrendingApp"])
def test_the_rows_of_an_app_are_the_same_live_in_a_replay_and_on_spark(
    spark: SparkSession, name: str
) -> None:
    case = cases(seed=2)[name]
    histories = {
        stream: spark.createDataFrame(
            [(*msgspec.structs.astuple(each), n) for n, each in enumerate(events)], COLUMNS[stream]
        )
        for stream, events in closed(case).items()
    }
    found = bootstrap(
        spark, f"tests.timed_apps:{name}", histories, order=["n"], keep=list(case.rows)
    )
    on_spark = Counter(
        repr(tuple(row)) for stream in case.rows for row in found.output(stream).collect()
    )
    found.close()
    expected = run(case, live=True)
    assert expected
    assert (on_spark - expected, expected - on_spark) == (Counter(), Counter())
    assert run(case, live=False) == expected
