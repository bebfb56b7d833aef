"""Trending topics in one job: text, Spark's structured streaming, windows in PEs, and back.

Spark reads a growing folder of posts as a stream and takes the topics out of the text; each mention
goes once into a stream of a node's log. The app counts mentions in overlapping windows of event
time and lists the ten topics of each minute. Spark reads these lists as a stream. They have to be
equal, row by row, to those that Spark's own windows give over the same posts. Ends with status 0
only then.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from apps.running import Failed, Running, running, running_log, s4
from apps.trending.app import LATENESS, PLACES
from apps.trending.posts import BEGIN, MINUTES, write_posts
from s4node.spark.java import spark_session

POSTS = 100_000
SEED = 7
END = (int(BEGIN.timestamp()) + MINUTES * 60 - LATENESS) // 60 * 60 - 60
"""Windows that end by then (seconds since 1970) have ended; later posts could still be older than
those that have come."""
SETTLE_SECONDS = 120

_PARTITIONS = "4"

Rows = set[tuple[int, int, str, int]]


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

    with tempfile.TemporaryDirectory(prefix="s4node-trending-") as name:
        folder = Path(name)
        with running_log(folder) as archive:
            address = archive.address
            s4("log", "create", "mentions", "--partitions", _PARTITIONS, "--key", "topic",
               "--to", address)  # fmt: skip
            s4("log", "create", "trends", "--to", address)
            say("the log is open; starting Spark")
            spark = spark_session("trending")
            try:
                return _whole_way(spark, folder, archive, say)
            finally:
                spark.stop()


def _whole_way(spark: SparkSession, folder: Path, archive: Running, say: Any) -> int:
    address = archive.address
    posts = folder / "posts"
    posts.mkdir()
    write_posts(posts, POSTS, SEED)
    say(f"{POSTS:,} posts of {MINUTES} minutes are in {len(list(posts.iterdir()))} files")
    settings = {
        "task.inputs": "log.mentions",
        "systems.log.address": address,
        "systems.log.samza.offset.default": "oldest",
        "s4.state.folder": str(folder / "state"),
        "s4.stream.trends.consumers": "archive",
        "s4.cluster.archive.address": address,
    }
    values = [word for name, value in settings.items() for word in ("-p", f"{name}={value}")]
    with running("run", "apps.trending.app", *values) as node:
        say("the app runs; Spark reads the posts, file by file")
        text = spark.readStream.option("maxFilesPerTrigger", 1).text(str(posts))
        sending = (
            _mentions(text)
            .writeStream.format("s4")
            .option("address", address)
            .option("stream", "mentions")
            .option("type", "apps.trending.app:Mention")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        sending.awaitTermination()
        mentions = _mentions(spark.read.text(str(posts)))
        batches = len(sending.recentProgress)
        say(f"{mentions.count():,} mentions sent, each once, in {batches} batches")
        sparks = _sparks_trends(mentions)
        say(f"Spark's own windows give {len(sparks):,} places in lists")
        ours = _trends(spark, [archive, node], sparks)
    return _compare(ours, sparks, say)


def _mentions(text: DataFrame) -> DataFrame:
    """The topics of posts, each with the time of its post in milliseconds."""
    parts = f.split("value", "\t")
    tags = f.explode(f.regexp_extract_all(parts[1], f.lit(r"#(\w+)")))
    return text.select(tags.alias("topic"), f.unix_millis(f.to_timestamp(parts[0])).alias("at"))


def _sparks_trends(mentions: DataFrame) -> Rows:
    """The same lists by Spark, in one batch."""
    when = f.timestamp_millis("at")
    counts = mentions.groupBy(
        f.window(when, "5 minutes", "1 minute").alias("window"), "topic"
    ).count()
    ended = counts.withColumn("end", f.unix_seconds("window.end")).where(f.col("end") <= END)
    most = Window.partitionBy("end").orderBy(f.desc("count"), "topic")
    lists = ended.withColumn("place", f.row_number().over(most)).where(f.col("place") <= PLACES)
    rows = lists.select(f.col("end") * 1000 - 1, "place", "topic", "count").collect()
    return {tuple(row) for row in rows}


def _trends(spark: SparkSession, nodes: Sequence[Running], wanted: Rows) -> Rows:
    """The lists of ended windows that have come back, once there are as many as ``wanted``."""
    returned = (
        spark.readStream.format("s4")
        .option("address", nodes[0].address)
        .option("stream", "trends")
        .option("type", "apps.trending.app:Trend")
        .load()
        .select("at", "place", "topic", "count")
        .writeStream.format("memory")
        .queryName("trends")
        .start()
    )
    try:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            listed = spark.table("trends").where(f.col("at") < END * 1000).collect()
            if len(listed) >= len(wanted) or time.monotonic() > deadline:
                break
            for node in nodes:
                node.check()
            if not returned.isActive:
                raise Failed(f"the query that reads the trends has ended: {returned.exception()}")
            time.sleep(0.5)
    finally:
        returned.stop()
    if not listed:
        raise Failed(f"no list has come back from the app within {SETTLE_SECONDS} s")
    rows = {tuple(row) for row in listed}
    if len(rows) < len(listed):
        raise RuntimeError(f"{len(listed) - len(rows)} places came twice")
    return rows


def _compare(ours: Rows, sparks: Rows, say: Any) -> int:
    for place in sorted(sparks - ours)[:10]:
        say(f"Spark has, and the PEs have not: {place}")
    for place in sorted(ours - sparks)[:10]:
        say(f"the PEs have, and Spark has not: {place}")
    if ours != sparks:
        say(f"FAILED: {len(ours ^ sparks):,} places differ")
        return 1
    last = max(at for at, _, _, _ in ours)
    best = [f"{topic} ({count})" for at, _, topic, count in sorted(ours) if at == last][:3]
    say(f"the last list begins with {', '.join(best)}")
    say(f"Equal: all {len(ours):,} places of {len({at for at, *_ in ours}):,} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
