"""Spark's sink at length: many writes, many tasks in one commit, a driver that is often killed.

The numbers are small here; ``make sink-at-length`` has larger ones.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_job import SHARE, kill, start
from spark_rows import Node, Row, node_in, until

from s4node import Oldest, SyncClient

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

WRITES = int(os.environ.get("SINK_WRITES", "50"))
TASKS = int(os.environ.get("SINK_TASKS", "200"))
ROWS = int(os.environ.get("SINK_ROWS", "100000"))
KILLS = int(os.environ.get("SINK_KILLS", "0"))
ROWS_OF_WRITE = 5
START_SECONDS = 600
MOST_GROWTH = 32 << 20
"""The bytes that a node may grow by, from a fifth of the writes on."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with node_in(tmp_path) as node:
        node.create("clicks")
        yield node


def check(node: Node, stream: str, total: int) -> None:
    """Raise AssertionError unless each number below ``total`` is in the stream once."""
    count = node.count(stream)
    assert count == total
    seen = bytearray(total)
    with (
        SyncClient(node.address) as client,
        client.subscribe(stream, types=Row, start=Oldest()) as events,
    ):
        for _ in range(count):
            seen[next(events).n] += 1
    assert seen == bytes([1]) * total


def save(rows: Any, node: Node) -> None:
    writer = rows.write.format("s4").mode("append")
    writer.options(address=node.address, stream="clicks", type="tests.spark_rows:Row").save()


def test_many_writes_leave_no_sink_and_no_memory_and_each_row_once(spark: Any, node: Node) -> None:
    before = 0
    for number in range(WRITES):
        if number == WRITES // 5:
            before = node.resident_bytes
        first = number * ROWS_OF_WRITE
        rows = spark.range(first, first + ROWS_OF_WRITE, 1, 1)
        save(rows.selectExpr("concat('u', id % 100) as user", "id as n"), node)
        if number % 100 == 0:
            assert node.ask("sink.list")["sinks"] == []
    after = node.resident_bytes
    print(f"{WRITES} writes: the node has {after >> 20} MiB, and {before >> 20} after a fifth")
    assert after - before < MOST_GROWTH
    for _ in range(2):
        assert node.ask("sink.list")["sinks"] == []
        assert node.staged == []
        assert node.ask("describe", stream="clicks")["producers"] == 0
        check(node, "clicks", WRITES * ROWS_OF_WRITE)
        node.stop()
        node.start()


def test_one_commit_of_many_tasks_has_each_row_once(spark: Any, node: Node) -> None:
    rows = spark.range(0, ROWS, 1, TASKS)
    save(rows.selectExpr("concat('u', id % 1000) as user", "id as n"), node)
    check(node, "clicks", ROWS)
    assert node.staged == []


@pytest.mark.skipif(not KILLS, reason="a minute for each kill: make sink-at-length")
def test_a_query_whose_driver_is_killed_again_and_again_writes_each_row_once(
    node: Node, tmp_path: Path
) -> None:
    chance = random.Random(1)
    batches = 3 * KILLS + 2
    commits = tmp_path / "checkpoint" / "commits"
    found: Counter[str] = Counter()

    def seen(staged: int) -> tuple[int, bool]:
        """The last batch that is published, and whether so many bytes are staged."""
        sinks = node.ask("sink.list")["sinks"]
        batch = max([each["batch"] for each in sinks], default=-1)
        return batch, any(each["staged_bytes"] > staged for each in sinks)

    for _ in range(KILLS):
        before, _ = seen(0)
        staged = chance.choice([0, chance.randrange(100_000), 1 << 40])  # 1 << 40: published
        with start(node, tmp_path, "stream", "local[2]", batches) as job:

            def is_time(before: int = before, staged: int = staged, job: Any = job) -> bool:
                batch, much = seen(staged)
                return (batch > before and (much or staged == 1 << 40)) or job.poll() is not None

            until(is_time, "a batch is published, and the next one staged", START_SECONDS)
            kill(job)
        known = max([int(each.name) for each in commits.glob("[0-9]*")], default=-1)
        found["published" if seen(0)[0] > known else "staging"] += 1
    with start(node, tmp_path, "stream", "local[3]", batches) as job:
        out, _ = job.communicate(timeout=START_SECONDS)
    assert "done" in out, (tmp_path / "spark.log").read_text()[-3000:]
    print(f"drivers killed: {dict(found)}")
    check(node, "clicks", SHARE * batches)
