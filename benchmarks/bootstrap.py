"""bootstrap: a keyed count over history on Spark, beside Spark's own part of the work.

The limit is an identity ``mapInArrow`` after the same shuffle and sort, which writes nothing. Both
are in one session, in turn. The bootstrap also writes the state of all keys.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from benchmarks import workload
from benchmarks.result import Result, middle
from s4node.app.app import App
from s4node.spark.history.bootstrap import bootstrap
from s4node.spark.history.stage_rows import STATE
from s4node.spark.java import spark_session

_COLUMNS = (
    "concat('key-', cast(pmod(id * 7368787, 10000) as string)) as key",
    "id % 1000 as value",
    f"{workload.FIRST_TS} + id as ts",
)


class Counting(App):
    """A count for each key."""

    def on_init(self) -> None:
        self.create_input_stream("readings", self.create_pe(workload.Tally), key="key")


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each number of events."""
    sizes = [(20_000, 1)] if quick else [(1_000_000, 5), (10_000_000, 3)]
    with spark_session("bootstrap") as spark:
        return [_measured(spark, *size, say, warm=not quick) for size in sizes]


def _measured(
    spark: SparkSession, events: int, runs: int, say: Callable[[str], None], *, warm: bool
) -> Result:
    """A row; with ``warm`` there is one more run before."""
    seconds: dict[str, list[float]] = {"limit": [], "bootstrap": []}
    keys = 0
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        spark.range(0, events, 1, 2).selectExpr(*_COLUMNS).write.parquet(f"{folder}/history")
        history = spark.read.parquet(f"{folder}/history")
        same = history.repartition("key").sortWithinPartitions("ts")
        for number in range(1 - warm, runs + 1):
            say(f"run {number} of {runs}: {events} events")
            began = time.perf_counter()
            same.mapInArrow(_identity, history.schema).write.format("noop").mode("overwrite").save()
            seconds["limit"].append(time.perf_counter() - began)
            began = time.perf_counter()
            found = bootstrap(
                spark,
                "benchmarks.bootstrap:Counting",
                {"readings": history},
                order=["ts"],
                work=f"{folder}/work-{number}",
            )
            seconds["bootstrap"].append(time.perf_counter() - began)
            keys = found.rows.where(f.col("kind") == STATE).count()
            found.close()
    limit, ours = seconds["limit"][-runs:], seconds["bootstrap"][-runs:]
    return Result(
        "bootstrap",
        events=events,
        seconds=middle(ours),
        events_per_s=events / middle(ours),
        limit_events_per_s=events / middle(limit),
        ratio=middle([a / b for a, b in zip(limit, ours, strict=True)]),
        checked=keys == min(events, 10_000),
        notes={"rows": events, "keys": keys},
    )


def _identity(batches: Any) -> Any:
    return batches
