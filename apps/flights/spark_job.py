"""The Spark side: read and clean the flights, count them in one batch, send them to the adapter.

Rules
- ``Row``'s fields are columns of the cleaned DataFrame, so a row of them is a Row's arguments.
- Rows leave from the executors' Python workers, never through the driver.
- Every partition is one producer with a stable id, and keeps the file's order.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from itertools import islice, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import Accumulator, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from apps.flights.events import KINDS, LATE_MINUTES, Figures, Row
from s4node import Credentials, SyncClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTITIONS = 4
STREAM = "rows"

_CHUNK = 2000  # rows handed to the client in one call: large enough that the call costs nothing
_PROGRESS_SECONDS = 0.25

# Reading with a schema saves the pass over the file that guessing one takes.
_SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, "
    "origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour TIMESTAMP"
)


def read_flights(spark: SparkSession, csv_path: Path | str) -> DataFrame:
    """The cleaned flights: a Row's columns and ``route``, such as "JFK-LAX".

    Lazy, and cached by the first action on it; ``unpersist`` it after the last. A header that is
    not the schema's, or a value in a column used here that does not fit it, fails that action. See
    Row for units and for what is missing when.
    """
    spark.conf.set("spark.sql.files.minPartitionNum", str(PARTITIONS))
    raw = spark.read.csv(
        str(csv_path),
        schema=_SCHEMA,
        header=True,
        enforceSchema=False,  # compare the header's names with the schema's
        nullValue="NA",
        mode="FAILFAST",
    )
    return raw.select(
        "carrier",
        f.coalesce("tailnum", f.lit("unknown")).alias("tailnum"),
        "origin",
        "dest",
        f.concat_ws("-", "origin", "dest").alias("route"),
        "dep_delay",
        "arr_delay",
        # time_hour is the scheduled departure without its minutes.
        (f.unix_millis("time_hour") + f.col("minute") * 60_000).alias("time"),
    ).cache()


def batch_aggregates(df: DataFrame) -> dict[str, dict[str, Figures]]:
    """Spark's own figures by kind (see KINDS) and key, in one job over read_flights' result."""
    columns = {"carrier": "carrier", "route": "route", "aircraft": "tailnum"}
    keys = [f.col(columns[kind]) for kind in KINDS]
    delay = f.col("arr_delay")
    flights = f.count(f.lit(1))
    figures = {
        "flights": flights,
        "cancelled": flights - f.count("dep_delay"),
        "delay_count": f.count(delay),
        "delay_sum": f.coalesce(f.sum(delay), f.lit(0)),
        "delay_max": f.max(delay),
        "delay_min": f.min(delay),
        "late": f.count_if(delay > LATE_MINUTES),
    }
    # Grouping sets answer all kinds in one pass; in a kind's rows the other kinds' keys are null.
    grouped = df.groupingSets([[key] for key in keys], *keys)
    rows = grouped.agg(*(figures[name].alias(name) for name in Figures._fields)).collect()
    result: dict[str, dict[str, Figures]] = {kind: {} for kind in KINDS}
    for row in rows:
        for kind, key in zip(KINDS, row[: len(KINDS)], strict=True):
            if key is not None:
                result[kind][key] = Figures(*row[len(KINDS) :])
    return result


def send(
    df: DataFrame,
    address: str,
    partitions: int = PARTITIONS,
    progress: Callable[[int], None] | None = None,
    credentials: Credentials | None = None,
) -> int:
    """Send all rows to the stream "rows" of the adapter at ``address``; returns how many.

    Returns when the adapter has processed every row. ``progress`` is called from another thread
    with the number of rows sent so far, each time that a partition is finished. Raises
    RuntimeError if the adapter refused rows; what fails in a worker, such as that nobody listens
    at ``address``, is raised by Spark. ``credentials`` are for an address with TLS.
    """
    rows = df.select(*Row.__struct_fields__)
    present = rows.rdd.getNumPartitions()
    if partitions < present:
        rows = rows.coalesce(partitions)
    elif partitions > present:
        rows = rows.repartition(partitions)
    counter = df.sparkSession.sparkContext.accumulator(0)
    with _watched(counter, progress):
        sent = rows.rdd.mapPartitions(partial(_ship, address, credentials, counter)).collect()
    total = sum(part.rows for part in sent)
    refused = sum(part.refused for part in sent)
    if refused:
        first = next(part.first for part in sent if part.refused)
        raise RuntimeError(
            f"the node at {address} refused {refused} of {total} rows on stream {STREAM!r}, the "
            f"first: {first}. Look at the node's log for its side of it"
        )
    return total


class _Sent(NamedTuple):
    rows: int
    refused: int
    first: str
    """The first refusal in words; empty if there is none."""


def _ship(
    address: str,
    credentials: Credentials | None,
    counter: Accumulator[int],
    rows: Iterator[Any],
) -> Iterator[_Sent]:
    """Send one partition; runs in an executor's Python worker."""
    context = TaskContext.get()
    assert context is not None
    count = 0
    producer = f"spark-{context.partitionId()}"
    if credentials is not None:
        producer = credentials.holder.own_id(producer)
    with SyncClient(address, producer=producer, timeout=10, credentials=credentials) as client:
        stream = client.stream(STREAM)
        while chunk := list(starmap(Row, islice(rows, _CHUNK))):
            stream.send_many(chunk)
            count += len(chunk)
        refused = client.flush()
    counter.add(count)
    yield _Sent(count, len(refused), str(refused[0]) if refused else "")


@contextmanager
def _watched(counter: Accumulator[int], progress: Callable[[int], None] | None) -> Iterator[None]:
    """Report the counter's changes to ``progress``, the last one included, during the block."""
    if progress is None:
        yield
        return
    report, done = progress, threading.Event()

    def watch() -> None:
        told, ended = 0, False
        while not ended:
            ended = done.wait(_PROGRESS_SECONDS)
            if counter.value != told:
                told = counter.value
                report(told)

    watcher = threading.Thread(target=watch, name="progress of send", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
