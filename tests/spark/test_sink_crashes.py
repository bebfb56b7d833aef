"""Spark's sink when executors, drivers and nodes are killed: each row is in the stream once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import msgspec
import pytest

pytest.importorskip("pyspark")

from harness import ROOT, environment
from spark_job import TOTAL, kill, start
from spark_rows import Node, check_exact, node_in, until

from s4node.failpoints import POINTS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

SECONDS = 600
START_SECONDS = 600
"""How long a job of Spark may take until its first rows."""
STEPS = [name for name in POINTS if name.startswith("sink.")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "node").mkdir()
    with node_in(tmp_path / "node") as node:
        node.create("clicks")
        yield node


def check(node: Node, kind: str) -> None:
    """Each row is there once, unless they are recognised by their numbers."""
    if kind.endswith("-numbered"):
        with pytest.raises(AssertionError, match="rows doubled"):
            check_exact(node.rows("clicks"), TOTAL)
    else:
        check_exact(node.rows("clicks"), TOTAL)


def run(node: Node, folder: Path, kind: str, master: str = "local[2,4]") -> None:
    with start(node, folder, kind, master) as job:
        out, _ = job.communicate(timeout=SECONDS)
    assert "done" in out, (folder / "spark.log").read_text()[-3000:]


def test_an_executor_that_is_killed_midway_leaves_each_row_once(node: Node, tmp_path: Path) -> None:
    run(node, tmp_path, "killing", "local-cluster[2,1,1024]")
    assert (tmp_path / "killing").exists()
    check(node, "killing")


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
    commits = tmp_path / "checkpoint" / "commits"
    for batch in range(2):
        node.stop()
        node.start("sink.answer")  # it dies when the batch is visible, and the driver waits
        with start(node, tmp_path, "stream", "local[2]") as job:
            until(
                lambda job=job: node.died or job.poll() is not None,
                "a batch is published",
                START_SECONDS,
            )
            kill(job)
        assert not (commits / str(batch)).exists()
    node.stop()
    node.start()
    (sink,) = node.ask("sink.list")["sinks"]
    assert sink["batch"] == 1
    run(node, tmp_path, "stream", "local[3]")
    check(node, "stream")


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


@pytest.mark.parametrize("connect", ["", "connect:"])
def test_executors_get_the_package_by_py_files_and_say_so_if_they_lack_it(
    node: Node, tmp_path: Path, connect: str
) -> None:
    archive = tmp_path / "shipped.zip"
    with ZipFile(archive, "w") as file:
        for each in ("s4node", "pyspark_s4", "tests/spark_rows.py", "tests/harness.py"):
            for path in [ROOT / each] if each.endswith(".py") else (ROOT / each).rglob("*.py"):
                file.write(path, path.relative_to(ROOT))
        file.writestr("tests/__init__.py", "")
    python = sys._base_executable  # type: ignore[attr-defined]
    master = f"{connect}local-cluster[1,1,1024]"
    libraries = str(Path(msgspec.__file__).parents[1])  # without what .pth files there add
    done = subprocess.run(
        [python, "-m", "tests.spark_shipping", master, archive, node.address, "clicks"],
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": libraries},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "shipped 1000" in done.stdout, done.stdout + done.stderr[-3000:]
    said = done.stdout.partition("shipped")[0]
    if connect:  # the server, which plans, lacks the package as well
        assert "DATA_SOURCE_NOT_FOUND" in said
    else:
        assert "Traceback" not in said
        assert "No module named 's4node' for " in said
        assert "as a wheel, or ship it with --py-files" in said
    check_exact(node.rows("clicks"), 1000)
