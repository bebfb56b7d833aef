"""Values that Spark ships to executors: each is as it was, or says what the executor lacks."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import msgspec
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from s4node.spark.history.replay import AppSource, Encoding, Replay
from s4node.spark.history.stages import Stage
from s4node.spark.sink import BatchWriter, Sink, Target

pytestmark = pytest.mark.long


def test_a_writer_arrives_as_it_was_and_an_executor_without_the_package_says_so(
    tmp_path: Path,
) -> None:
    target = Target(("tcp://node:1",), "clicks", "shop:Click")
    writer = BatchWriter(Sink(target, StructType()), "nightly")
    data = cloudpickle.dumps(lambda rows: writer.write(rows))  # type: ignore[no-untyped-call]
    arrived = pickle.loads(cloudpickle.dumps(writer))  # type: ignore[no-untyped-call]
    assert isinstance(arrived, BatchWriter)
    assert arrived._place() == ("job/nightly", 0)
    assert arrived._sink._target == target

    check_told(data, tmp_path)


def test_an_executor_without_the_package_says_so_when_pes_run_over_history(tmp_path: Path) -> None:
    stage = Stage(0, ("visitor",), ("visits",), single=False)
    replay = Replay(AppSource("shop:Shop", {}, 1), stage, StructType(), frozenset())
    encoding = Encoding(replay.source, "visits", StructType())
    check_told(cloudpickle.dumps((replay, encoding)), tmp_path)  # type: ignore[no-untyped-call]


def check_told(data: bytes, tmp_path: Path) -> None:
    """Check what a Python without the package says about pickled objects."""
    (tmp_path / "pickled").write_bytes(data)
    (tmp_path / "executor.py").write_text(EXECUTOR)
    done = subprocess.run(
        [sys._base_executable, "executor.py"],  # type: ignore[attr-defined]
        cwd=tmp_path,
        # the libraries, without what .pth files add to them
        env={**os.environ, "PYTHONPATH": str(Path(msgspec.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("No module named 's4node' for "), done.stderr
    assert "of Spark's executor on " in done.stdout
    fix = "install s4node[spark] there, as a wheel, or ship it with --py-files, and call "
    assert f"{fix}s4node.spark.register(spark)" in done.stdout
    assert "hidden 1" in done.stdout


EXECUTOR = """
import os, pickle
from pathlib import Path

try:
    pickle.loads(Path("pickled").read_bytes())
except ImportError as error:
    print(error)
print("hidden", os.environ["SPARK_HIDE_TRACEBACK"])
"""
