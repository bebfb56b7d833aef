"""A Spark program for tests that kill it, or that need a session of their own.

``python -m tests.spark_job MASTER KIND ADDRESS STREAM FOLDER FILES``: writes the numbers below
FILES times SHARE to a stream, each with a user that every computation draws anew, behind a shuffle.
KIND is ``batch``, or ``stream`` (a batch for each file; FOLDER has source and checkpoint), or
``copying``: a batch, which a query then copies to the stream ``copy``. ``killing`` is a batch whose
first task takes its executor down, ``holding`` a stream whose first task stops midway. With
``-numbered`` behind it the sink recognises rows by their numbers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from s4node.spark.java import java_home
from tests import spark_sinks
from tests.harness import ROOT, environment
from tests.spark_nodes import to_the_end
from tests.spark_rows import Node, drawn_anew, python_path

SHARE = 10_000
FILES = 4
TOTAL = FILES * SHARE
SCHEMA = "user string, n long"


@contextmanager
def start(
    node: Node, folder: Path, kind: str, master: str, files: int = FILES
) -> Iterator[subprocess.Popen[str]]:
    """Run the program, whose errors are then in ``spark.log`` of the folder; it is killed if it has
    not ended by the end of the block."""
    job = [sys.executable, "-m", "tests.spark_job", master, kind, node.address, "clicks", folder]
    with (
        (folder / "spark.log").open("a") as log,
        subprocess.Popen(
            [*job, str(files)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            kill(process)


def kill(job: subprocess.Popen[str]) -> None:
    """Kill a driver with all of its processes."""
    if job.poll() is None:
        job.send_signal(signal.SIGKILL)
        subprocess.run(["pkill", "-KILL", "-s", str(job.pid)], check=False)


def session(master: str) -> Any:
    python_path()
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if not master.startswith("spark:"):  # else executors on other machines have to reach this one
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder
    builder = (
        builder.remote(master[8:]) if master.startswith("connect:") else builder.master(master)
    )
    return (
        builder.appName("job")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )


def drawn(rows: Any) -> Any:
    return rows.selectExpr("id as n").repartition(4, "n").mapInArrow(drawn_anew, SCHEMA)


def query(rows: Any, sink: str, options: dict[str, str], folder: str) -> None:
    """Have a query write what there is now."""
    writer = rows.writeStream.format(sink).options(**options)
    to_the_end(writer.option("checkpointLocation", f"{folder}/checkpoint"))


def main(master: str, kind: str, address: str, stream: str, folder: str, files: int) -> None:
    total = files * SHARE
    spark = session(master)
    options = {"address": address, "stream": stream, "type": "tests.spark_rows:Row"}
    kind, _, numbered = kind.partition("-")
    sink = "Numbered" if numbered else "s4"
    if kind in ("killing", "holding"):
        options["fault"], sink = f"{kind}:{folder}/{kind}", sink.replace("s4", "Staged")
    if sink != "s4":
        spark.dataSource.register(getattr(spark_sinks, sink))
    if kind in ("stream", "holding"):
        source = f"{folder}/source"
        if not Path(source).exists():
            spark.range(0, total, 1, files).write.parquet(source)  # a file for each part
        each = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        query(drawn(each.parquet(source)), sink, options, folder)
    else:
        rows = drawn(spark.range(total))
        rows.write.format(sink).mode("append").options(**options).save()
    if kind == "copying":
        read = spark.readStream.format("s4").options(**options, columns="user,n")
        rows = read.option("maxEventsPerTrigger", total // 2).load()
        query(rows, sink, {**options, "stream": "copy"}, folder)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    assert str(ROOT) in sys.path or ROOT.samefile(".")
    *words, number = sys.argv[1:]
    main(*words, int(number))
