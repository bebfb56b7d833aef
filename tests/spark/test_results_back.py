"""From Spark's log through PEs back to Spark: each result once, and what comes of going back."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_nodes import ROOT, Node, running_node, to_the_end

from s4node.spark.connection import ask
from tests.spark.replayed_app import Payment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TARGET = "tests.spark.totals_app:Totals"
PAYMENTS = [Payment(f"a{n % 9}", 0, n) for n in range(600)]
EXPECTED: dict[tuple[str, int], int] = {}
for _number, _payment in enumerate(PAYMENTS):
    EXPECTED[_payment.account, _number // 9 + 1] = 1


def options(node: Node, folder: Path) -> list[str]:
    given = {
        "task.inputs": "log.payments",
        "systems.log.address": node.address,
        "systems.log.samza.offset.default": "oldest",
        "s4.stream.totals.consumers": "archive",
        "s4.cluster.archive.address": node.address,
        "s4.state.folder": str(folder),
    }
    return [word for name, value in given.items() for word in ("-p", f"{name}={value}")]


@contextmanager
def running_totals(node: Node, folder: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "s4node", "run", TARGET, "--listen", "tcp://127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--json", *options(node, folder), *more], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "it did not start"
        yield process
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def wait_for_totals(node: Node, count: int) -> None:
    deadline = time.monotonic() + 200
    while (found := upcoming(node)) < count:
        assert time.monotonic() < deadline, f"{found} of {count} totals came"
        time.sleep(0.2)
    assert found == count


def upcoming(node: Node) -> int:
    described = ask([node.address], 10, "describe", stream="totals")
    return sum(each["upcoming"] for each in described["partitions"])


def read_on(spark: SparkSession, node: Node, folder: Path) -> Counter[tuple[str, int]]:
    """Have a query read what it has not read yet; returns all that it has ever read."""
    to_the_end(
        spark.readStream.format("s4")
        .option("address", node.address)
        .option("stream", "totals")
        .option("type", "tests.spark.totals_app:Total")
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    rows: list[Any] = spark.read.parquet(str(folder / "out")).collect()
    return Counter((row["account"], row["number"]) for row in rows)


def test_each_result_comes_back_once_and_again_only_after_the_app_has_gone_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    query, state = tmp_path / "query", tmp_path / "state"
    with running_node(tmp_path / "log") as node:
        node.create("payments", 2, key="account")
        node.create("totals", 2)
        node.append("payments", PAYMENTS[:200], key="account")
        with running_totals(node, state) as app:
            wait_for_totals(node, 200)
            read_on(spark, node, query)
            node.append("payments", PAYMENTS[200:400], key="account")
            app.kill()  # wherever it is
        with running_totals(node, state):
            wait_for_totals(node, 400)
        command = [sys.executable, "-m", "s4node", "savepoint", "take", "Totals", "--name", "here"]
        subprocess.run([*command, *options(node, state)], check=True, cwd=ROOT)
        shutil.copytree(query, tmp_path / "copy")
        with running_totals(node, state):
            node.append("payments", PAYMENTS[400:], key="account")
            wait_for_totals(node, 600)
        assert read_on(spark, node, query) == EXPECTED

        # Spark's checkpoint goes back, and what it has written: the log has the same results
        shutil.rmtree(query)
        shutil.copytree(tmp_path / "copy", query)
        assert read_on(spark, node, query) == EXPECTED

        # the app goes back: what it had put since then comes again, after what the log has
        with running_totals(node, state, "--from", "here", "--outputs", "again"):
            wait_for_totals(node, 800)
        twice = Counter(EXPECTED)
        twice.update((p.account, n // 9 + 1) for n, p in enumerate(PAYMENTS) if n >= 400)
        assert read_on(spark, node, query) == twice

        # both go back: the results before are read again, and those that came again as well
        shutil.rmtree(query)
        shutil.copytree(tmp_path / "copy", query)
        assert read_on(spark, node, query) == twice
