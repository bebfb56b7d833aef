"""Spark's sink when executors, drivers and nodes are killed: each row is in the stream once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from harness import ROOT, environment
from spark_job import FILES, TOTAL
from spark_rows import Node, check_exact, node_in, until

from s4node.failpoints import POINTS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 300
START_SECONDS = 150
"""How long a job of Spark may take until its first rows."""
STEPS = [name for name in POINTS if name.startswith("sink.")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "node").mkdir()
    with node_in(tmp_path / "node") as node:
        node.create("clicks")
        yield node


def start(node: Node, folder: Path, kind: str, master: str) -> subprocess.Popen[str]:
    with (folder / "spark.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark_job", master, kind, node.address, "clicks", folder],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def check(node: Node, kind: str) -> None:
    """Each row is there once, unless they are recognised by their numbers."""
    if kind.endswith("-numbered"):
        with pytest.raises(AssertionError, match="rows doubled"):
            check_exact(node.rows("clicks"), TOTAL)
    else:
        check_exact(node.rows("clicks"), TOTAL)


def kill(job: subprocess.Popen[str]) -> None:
    """Kill a driver with all of its processes."""
    if job.poll() is None:
        job.send_signal(signal.SIGKILL)
        subprocess.run(["pkill", "-KILL", "-s", str(job.pid)], check=False)


def run(node: Node, folder: Path, kind: str, master: str = "local[2,4]") -> None:
    with start(node, folder, kind, master) as job:
        out, _ = job.communicate(timeout=SECONDS)
    assert "done" in out, (folder / "spark.log").read_text()[-3000:]


def test_an_executor_that_is_killed_midway_leaves_each_row_once(node: Node, tmp_path: Path) -> None:
    run(node, tmp_path, "killing", "local-cluster[2,1,1024]")
    assert (tmp_path / "killing").exists()
    check_exact(node.rows("clicks"), TOTAL)


def test_spark_connect_writes_and_reads_each_row_once_in_batches_and_streaming(
    node: Node, tmp_path: Path
) -> None:
    node.create("copy")
    run(node, tmp_path, "copying", "connect:local[2]")
    for stream in ("clicks", "copy"):
        check_exact(node.rows(stream), TOTAL)


def test_a_driver_that_is_killed_between_decision_and_commit_log_writes_each_row_once(
    node: Node, tmp_path: Path
) -> None:
    killed = 0
    commits = tmp_path / "checkpoint" / "commits"
    for batch in range(FILES):
        with start(node, tmp_path, "stream", "local[2]") as job:

            def published(batch: int = batch) -> bool:
                sinks = node.ask("sink.list")["sinks"]
                return any(each["batch"] >= batch for each in sinks)

            until(
                lambda: published() or job.poll() is not None, "a batch is published", START_SECONDS
            )
            killed += not (commits / str(batch)).exists()
            if job.poll() is None:
                job.send_signal(signal.SIGKILL)
                subprocess.run(["pkill", "-KILL", "-s", str(job.pid)], check=False)
    assert killed
    run(node, tmp_path, "stream", "local[3]")
    check_exact(node.rows("clicks"), TOTAL)


def test_a_driver_that_is_killed_before_the_commit_log_doubles_and_loses_rows_that_are_numbered(
    node: Node, tmp_path: Path
) -> None:
    kind = "holding-numbered"
    with start(node, tmp_path, kind, "local[2]") as job:
        until(
            lambda: (tmp_path / "holding").exists() or job.poll() is not None,
            "rows are sent",
            START_SECONDS,
        )
        kill(job)
    run(node, tmp_path, kind, "local[3]")
    check(node, kind)


def test_a_node_that_is_killed_at_every_step_during_a_query_gets_each_row_once(
    node: Node, tmp_path: Path
) -> None:
    with start(node, tmp_path, "stream", "local[2]") as job:
        for step in STEPS:
            node.stop()
            node.start(step)
            until(
                lambda: node.died or job.poll() is not None,
                f"the node dies at {step}",
                START_SECONDS,
            )
            if job.poll() is not None:
                break
        if node.died:
            node.start()
        out, _ = job.communicate(timeout=SECONDS)
    assert "done" in out, (tmp_path / "spark.log").read_text()[-3000:]
    check_exact(node.rows("clicks"), TOTAL)
