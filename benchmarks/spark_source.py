"""spark-source: a stream of the log as a DataFrame, beside the same rows from Parquet.

The limit is Spark's own reader of Parquet behind an identity ``mapInArrow``: the rows pass a Python
worker once, as those of the source do. Both are in one session, in turn, with the node on the same
machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import workload
from benchmarks.process import Role
from benchmarks.result import Result, middle
from s4node.events.schema import EventType
from s4node.net.client.sync_client import SyncClient
from s4node.spark.java import spark_session

PARTITIONS = 4


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """One row."""
    runs, events = (1, 20_000) if quick else (5, 1_000_000)
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("replayed", folder=folder, partitions=PARTITIONS) as node,
        spark_session("spark-source") as spark,
    ):
        address = node.hear()["address"]
        say(f"append {events} events")
        _append(address, events)
        df = spark.read.format("s4").option("address", address).option("stream", "readings").load()
        place = f"{folder}/parquet"
        df.write.parquet(place)
        parquet = spark.read.parquet(place)
        same = parquet.mapInArrow(_identity, parquet.schema)
        seconds: dict[str, list[float]] = {"limit": [], "source": []}
        for number in range(runs + (not quick)):  # the first one warms up
            say(f"run {number} of {runs}")
            for name, rows in (("limit", same), ("source", df)):
                began = time.perf_counter()
                rows.write.format("noop").mode("overwrite").save()
                seconds[name].append(time.perf_counter() - began)
        right = df.selectExpr("count(distinct _partition, _offset)").first()
        assert right is not None
    limit, source = seconds["limit"][-runs:], seconds["source"][-runs:]
    return [
        Result(
            "spark-source",
            events=events,
            seconds=middle(source),
            events_per_s=events / middle(source),
            limit_events_per_s=events / middle(limit),
            ratio=middle([a / b for a, b in zip(limit, source, strict=True)]),
            checked=right[0] == events,
        )
    ]


def _append(address: str, events: int) -> None:
    keys = workload.key_sequence()
    kind = EventType(workload.Reading)
    with SyncClient(address) as client:
        stream = client.stream("readings", key="key", types=kind.cls)
        for first in range(0, events, 4000):
            stream.send_many(
                workload.Reading(keys[n % len(keys)], n % 1000, workload.FIRST_TS + n)
                for n in range(first, min(first + 4000, events))
            )


def _identity(batches: Any) -> Any:
    return batches
