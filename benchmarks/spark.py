"""Data through Spark, each way in one session with its limit, in turn.

spark-source: a stream of the log as a DataFrame, beside the same rows from Parquet behind an
identity ``mapInArrow``: the rows pass a Python worker once, as those of the source do. The node is
on the same machine.

spark-sink: a DataFrame into a stream of the log, beside an Arrow writer of Spark that looks at no
row. Rows are staged and published (until ``save()`` returns, and until an app that reads the log
has counted them), or sent to an app's fast stream at least once. Node, app and Spark share the
machine. Further rows have the time of a micro-batch of 1,000 rows beside Spark's ``noop``, and that
of publishing what is staged.

bootstrap: a keyed count over history, beside an identity ``mapInArrow`` after the same shuffle and
sort, which writes nothing. The bootstrap also writes the state of all keys.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource

from benchmarks import workload
from benchmarks.runner import Result, Role, middle
from s4node import tokens
from s4node.app.app import App
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType
from s4node.net.client.sync_client import SyncClient
from s4node.net.wire import frame as wire
from s4node.spark.connection import ask, connect
from s4node.spark.history.bootstrap import bootstrap
from s4node.spark.history.stage_rows import STATE
from s4node.spark.java import spark_session
from s4node.spark.sink import BatchWriter, Sink, Staged, Target
from s4node.spark.upload import Upload

PARTITIONS = 4
_TYPE = "benchmarks.workload:Reading"
_PATIENCE = 60.0
_CHUNK = 4096
_COLUMNS = (
    "concat('key-', cast(pmod(id * 7368787, 10000) as string)) as key",
    "id % 1000 as value",
    f"{workload.FIRST_TS} + id as ts",
)


class Discard(DataSource):
    """The format of a sink that looks at no row."""

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:  # noqa: ARG002
        return BatchWriter(_Discarding(Target((), "", ""), schema))


class _Discarding(Sink):
    def write_rows(
        self,
        sink: str,
        batch: int,
        batches: Iterator[Any],
        *,
        last: bool,  # noqa: ARG002
    ) -> Staged:
        for _ in batches:
            pass
        return Staged(sink, batch, "", {})

    def publish(self, messages: Any, *, last: bool) -> None: ...


def run_sink(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each way and number of rows, for micro-batches, and for publishing."""
    sizes = [(20_000, 1)] if quick else [(1_000_000, 5), (5_000_000, 3)]
    batches = 3 if quick else 12
    results = []
    with spark_session("spark-sink") as spark:
        spark.dataSource.register(Discard)
        for events, runs in sizes:
            results += _ways(spark, events, runs, say, warm=not quick)
        say(f"{batches} micro-batches of 1,000 rows")
        micro = _micro_batches(spark, batches)
    events = sizes[0][0]
    say(f"publish {events} staged rows")
    published, first, again, wait = _publish(events)
    return [
        *results,
        Result(
            "spark-sink",
            events=1000,
            seconds=micro["s4"],
            ratio=micro["noop"] / micro["s4"],
            checked=micro["events"] == batches * 1000,
            notes={"until": "a micro-batch", "noop_ms": micro["noop"] * 1e3},
        ),
        Result(
            "spark-sink",
            events=events,
            seconds=first,
            events_per_s=events / first,
            checked=published == [(True, events), (False, events)],
            notes={"until": "published", "again_ms": again * 1e3, "live_p99_ms": wait * 1e3},
        ),
    ]


def _ways(
    spark: Any, events: int, runs: int, say: Callable[[str], None], *, warm: bool
) -> list[Result]:
    """A row for each way; with ``warm`` one more run before."""
    seconds: dict[str, list[float]] = {"discard": [], "save": [], "counted": [], "fast": []}
    right = []
    rows = spark.range(0, events, 1, 2).selectExpr(*_COLUMNS)
    for number in range(1 - warm, runs + 1):
        say(f"run {number} of {runs}: {events} rows discarded, staged, sent")
        began = time.perf_counter()
        rows.write.format("Discard").mode("append").save()
        seconds["discard"].append(time.perf_counter() - began)
        for name, value in {**_staged(rows, events), **_fast(rows, events)}.items():
            if name in seconds:
                seconds[name].append(value)
            else:
                right.append(bool(value))
    best = {name: found[-runs:] for name, found in seconds.items()}
    limit = middle([events / each for each in best["discard"]])
    return [
        Result(
            "spark-sink",
            events=events,
            seconds=middle(best[name]),
            events_per_s=middle([events / each for each in best[name]]),
            limit_events_per_s=limit,
            ratio=middle([a / b for a, b in zip(best["discard"], best[name], strict=True)]),
            checked=all(right),
            notes={"until": until, "rows": events},
        )
        for name, until in (
            ("save", "save() returns"),
            ("counted", "the app has counted"),
            ("fast", "save() returns, at least once"),
        )
    ]


def _write(rows: Any, address: str, **more: str) -> float:
    began = time.perf_counter()
    rows.write.format("s4").mode("append").options(
        address=address, stream="readings", type=_TYPE, **more
    ).save()
    return time.perf_counter() - began


def _staged(rows: Any, events: int) -> dict[str, float]:
    """Write to a log that an app reads."""
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as roles:
        node = roles.enter_context(Role("log.hosting", folder=folder, partitions=PARTITIONS))
        address = node.hear()["address"]
        reader = roles.enter_context(
            Role("log.replaying", address=address, folder=folder, events=events)
        )
        began = time.perf_counter()
        save = _write(rows, address)
        read = reader.hear()
        counted = time.perf_counter() - began
    return {"save": save, "counted": counted, "staged is right": read["counted"] == events}


def _fast(rows: Any, events: int) -> dict[str, float]:
    """Write to an app's stream, at least once."""
    settings = {"s4.cluster.partitions": str(PARTITIONS)}
    with Role("keyed_count.node", settings=settings) as node:
        seconds = _write(rows, node.hear()["address"], delivery="at-least-once")
        node.tell({})
        counted = node.hear()["events"]
    return {"fast": seconds, "fast is right": counted == events}


def _micro_batches(spark: Any, batches: int) -> dict[str, float]:
    """The median seconds of a trigger with 1,000 rows, without and with the sink."""
    found: dict[str, list[float]] = {"noop": [], "s4": []}
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as name, ExitStack() as roles:
        folder = Path(name)
        node = roles.enter_context(Role("log.hosting", folder=name, partitions=PARTITIONS))
        address = node.hear()["address"]
        for number in range(batches):
            one = spark.range(number * 1000, number * 1000 + 1000, 1, 2)
            one.selectExpr(*_COLUMNS).write.parquet(str(folder / "rows" / str(number)))
        schema = "key string, value long, ts long"
        for sink in found:
            options = {"address": address, "stream": "readings", "type": _TYPE}
            query = (
                spark.readStream.schema(schema)
                .option("maxFilesPerTrigger", 2)  # one of each task
                .parquet(str(folder / "rows" / "*"))
                .writeStream.format(sink)
                .options(**(options if sink == "s4" else {}))
                .option("checkpointLocation", str(folder / sink))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            found[sink] = [
                each["durationMs"]["triggerExecution"] / 1e3
                for each in query.recentProgress
                if each["numInputRows"]
            ]
        kept = ask([address], _PATIENCE, "describe", stream="readings")["partitions"]
    medians = {sink: median(times[1:] or times) for sink, times in found.items()}
    return {**medians, "events": sum(each["upcoming"] for each in kept)}


class _Live(threading.Thread):
    """Appends single events to the stream, one by one; ``waits`` has the seconds of each."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.begun = threading.Event()
        self.over = False
        self._log = connect([address], _PATIENCE)

    def run(self) -> None:
        kind = EventType(workload.Reading)
        body = kind.encode([workload.Reading("live", 1, workload.FIRST_TS)])
        event = {
            "stream": "readings",
            "partition": 0,
            "producer": "live",
            "count": 1,
            "types": (kind.declaration,),
            "sections": (wire.Section(kind.fingerprint, 1, len(body)),),
            "body": body,
        }
        while not self.over:
            began = time.perf_counter()
            self._log.query("append", {**event, "first": len(self.waits)})
            self.waits.append(time.perf_counter() - began)
            self.begun.set()
        self._log.close()


def _publish(events: int) -> tuple[list[tuple[bool, int]], float, float, float]:
    """The answers to a publication and its repetition, the seconds of each, and how long others who
    append wait meanwhile (seconds, the 99th percentile)."""
    kind = EventType(workload.Reading)
    partition_of = Partitioner(PARTITIONS).partition_of
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("log.hosting", folder=folder, partitions=PARTITIONS) as node,
    ):
        to = [node.hear()["address"]]
        spool = ask(to, _PATIENCE, "sink.stage", sink="bench", stream="readings")["spool"]
        upload = Upload(to, spool, f"bench-{tokens.fresh(6)}", kind.declaration, _PATIENCE)
        for start in range(0, events, _CHUNK):
            shares: dict[int, list[workload.Reading]] = {}
            for n in range(start, min(start + _CHUNK, events)):
                reading = workload.Reading(f"key-{n % 10_000}", n % 1000, n)
                shares.setdefault(partition_of(reading.key), []).append(reading)
            for partition, share in shares.items():
                upload.send(partition, len(share), kind.encode(share), routed=True)
        attempts = [(upload.producer, upload.finish())]
        answers, taken = [], []
        batch = {"sink": "bench", "stream": "readings", "batch": 0, "attempts": attempts}
        log = connect(to, _PATIENCE)
        live = _Live(to[0])
        live.start()
        live.begun.wait(_PATIENCE)
        for _ in range(2):
            began = time.perf_counter()
            answer = log.query("sink.publish", batch)
            taken.append(time.perf_counter() - began)
            answers.append((answer["published"], answer["events"]))
            live.over = True
        live.join()
        log.close()
    waits = sorted(live.waits)
    return answers, taken[0], taken[1], waits[len(waits) * 99 // 100]


def run_source(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """One row."""
    runs, events = (1, 20_000) if quick else (5, 1_000_000)
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("log.hosting", folder=folder, partitions=PARTITIONS) as node,
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


class Counting(App):
    def on_init(self) -> None:
        self.create_input_stream("readings", self.create_pe(workload.Tally), key="key")


def run_bootstrap(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each number of events."""
    sizes = [(20_000, 1)] if quick else [(1_000_000, 5), (10_000_000, 3)]
    with spark_session("bootstrap") as spark:
        return [_bootstrapped(spark, *size, say, warm=not quick) for size in sizes]


def _bootstrapped(
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
                "benchmarks.spark:Counting",
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
