"""The whole way in one job: a DataFrame into state, into a stream, through PEs, and back.

Spark cleans the flights of 2013 and joins planes and weather. It runs the PEs of the unmodified app
over the first nine months; nodes go on from the savepoint of that. The rest goes into their log,
each row once. Their reports come back from the log as a DataFrame. With the state of the keys that
had no flight since, it has to be equal, key by key, to what Spark itself counts over the whole
year. Ends with status 0 only then.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from apps.flights.data import flights_csv, tables
from apps.flights.events import KINDS, Figures, Flight
from apps.flights.spark_job import batch_aggregates, read_flights
from apps.running import Failed, Running, running, running_log, s4
from s4node.spark.history.bootstrap import bootstrap
from s4node.spark.history.savepoint import write_savepoint
from s4node.spark.java import spark_session

CUT = "2013-10-01 00:00:00"
"""Flights that depart from then on (UTC) go through the log."""
SETTLE_SECONDS = 60

_PARTITIONS = "4"


def main() -> int:
    try:
        return _demo()
    except Failed as failed:
        print(f"FAILED: {failed}", flush=True)
        return 1


def _demo() -> int:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="s4node-flights-") as name:
        folder = Path(name)
        with running_log(folder) as archive:
            address = archive.address
            s4("log", "create", "flights", "--partitions", _PARTITIONS, "--key", "route",
               "--to", address)  # fmt: skip
            s4("log", "create", "reports", "--to", address)
            say("the log is open; starting Spark")
            spark = spark_session("flights")
            try:
                return _whole_way(spark, folder, archive, say)
            finally:
                spark.stop()


def _whole_way(spark: SparkSession, folder: Path, archive: Running, say: Any) -> int:
    address = archive.address
    flights = _joined(spark, folder)
    total = flights.count()
    say(f"{total:,} flights, cleaned and joined with planes and weather")
    rows = flights.select(*Flight.__struct_fields__)
    before = f.col("time") < f.unix_millis(f.to_timestamp(f.lit(CUT)))
    history, rest = rows.where(before), rows.where(~before)
    settings = {
        "task.inputs": "log.flights",
        "systems.log.address": address,
        "systems.log.samza.offset.default": "oldest",
        "s4.state.folder": str(folder / "state"),
        "s4.stream.reports.consumers": "archive",
        "s4.cluster.archive.address": address,
    }
    found = bootstrap(
        spark,
        "apps.flights.app:FlightsApp",
        {"flights": history},
        order=["time", "carrier", "route", "tailnum", "dep_delay", "arr_delay"],
        config=settings,
        report=lambda line: say(f"  {line}"),
    )
    write_savepoint(found, "nine-months")
    found.close()
    say(f"state of {history.count():,} flights is in the savepoint nine-months")
    values = [word for name, value in settings.items() for word in ("-p", f"{name}={value}")]
    with running("run", "apps.flights.app", "--from", "nine-months", *values) as node:
        say("the node goes on from there")
        (
            rest.write.format("s4")
            .option("address", address)
            .option("stream", "flights")
            .option("type", "apps.flights.events:Flight")
            .mode("append")
            .save()
        )
        say(f"{rest.count():,} flights sent, each once")
        sparks = batch_aggregates(flights)
        say("Spark has counted the whole year in one batch")
        reports, past = _reports(spark, address), _of_savepoint(spark, folder / "state")
        ours = _latest(reports, past)
        deadline = time.monotonic() + SETTLE_SECONDS
        while ours != sparks and time.monotonic() < deadline:
            archive.check()
            node.check()
            time.sleep(0.5)
            ours = _latest(reports, past)
    return _compare(reports.count(), ours, sparks, say)


def _joined(spark: SparkSession, folder: Path) -> DataFrame:
    """The cleaned flights, each with its aircraft's maker and the weather at its departure."""
    flights = read_flights(spark, flights_csv(folder))
    data = tables()
    planes = spark.read.csv(str(data / "planes.csv"), header=True).select("tailnum", "manufacturer")
    weather = (
        spark.read.csv(str(data / "weather.csv"), header=True)
        .select("origin", f.unix_millis(f.to_timestamp("time_hour")).alias("hour"), "visib")
        .dropDuplicates(["origin", "hour"])
    )
    hour = f.col("time") - f.col("time") % 3_600_000
    return (
        flights.withColumn("hour", hour)
        .join(planes.dropDuplicates(["tailnum"]), "tailnum", "left")
        .join(weather, ["origin", "hour"], "left")
        .cache()
    )


def _reports(spark: SparkSession, address: str) -> DataFrame:
    reader = spark.read.format("s4").option("address", address).option("stream", "reports")
    return reader.option("type", "apps.flights.events:Report").load()


def _of_savepoint(spark: SparkSession, state: Path) -> dict[str, dict[str, Figures]]:
    """The figures of each key after the history: keys without a flight since have no report."""
    found = {}
    for kind in KINDS:
        reader = spark.read.format("s4").option("state", f"FlightsApp/{kind}")
        rows = reader.options(folder=str(state), savepoint="nine-months").load().collect()
        found[kind] = {row["key"]: _figures(row) for row in rows}
    return found


def _latest(
    reports: DataFrame, past: dict[str, dict[str, Figures]]
) -> dict[str, dict[str, Figures]]:
    """The last report of each key, or its figures in the past."""
    newest = Window.partitionBy("kind", "key").orderBy(f.desc("_offset"))
    rows = reports.withColumn("place", f.row_number().over(newest)).where("place = 1").collect()
    found = {kind: dict(past[kind]) for kind in KINDS}
    for row in rows:
        found[row["kind"]][row["key"]] = _figures(row)
    return found


def _figures(row: Any) -> Figures:
    return Figures(*(row[name] for name in Figures._fields))


def _compare(
    reports: int,
    ours: dict[str, dict[str, Figures]],
    sparks: dict[str, dict[str, Figures]],
    say: Any,
) -> int:
    keys = sum(map(len, sparks.values()))
    say(f"{reports:,} reports are back as a DataFrame; with the savepoint, {keys:,} keys")
    wrong = [
        f"{kind} {key}: s4node {ours[kind].get(key)}, Spark {sparks[kind].get(key)}"
        for kind in KINDS
        for key in sorted(ours[kind].keys() | sparks[kind].keys())
        if ours[kind].get(key) != sparks[kind].get(key)
    ]
    for line in wrong[:20]:
        say(f"differs: {line}")
    if wrong:
        say(f"FAILED: {len(wrong):,} of {keys:,} keys differ")
        return 1
    say(f"Equal: all {keys:,} keys, every figure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
