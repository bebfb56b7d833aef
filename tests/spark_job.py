"""A Spark program for tests that kill it, or that need a session of their own.

``python -m tests.spark_job MASTER KIND ADDRESS STREAM FOLDER``: writes the numbers below TOTAL to a
stream, each with a user that every computation draws anew, behind a shuffle. KIND is ``batch``, or
``stream`` (with FOLDER for source and checkpoint), or ``numbered``: as a sink would that recognises
rows by their numbers. With ``killing`` the first tasks take their executor down.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from s4node import SyncClient
from s4node.spark.java import java_home
from tests.harness import ROOT
from tests.spark_rows import Row, drawn_anew, failing_once, python_path

TOTAL = 40_000
FILES = 4
SCHEMA = "user string, n long"


def session(master: str) -> Any:
    python_path()
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
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
    """The rows in another order, and with other users, in each computation."""
    return rows.selectExpr("id as n").repartition(4, "n").mapInArrow(drawn_anew, SCHEMA)


def killing(marker: str) -> Any:
    """Kills the executor, a JVM, of the first attempt that comes here after some rows."""

    def kill(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 3:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(_jvm(), signal.SIGKILL)
            yield batch

    return kill


def _jvm() -> int:
    """The nearest process above this one that is a Java."""
    pid = os.getppid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def numbered(address: str, stream: str) -> Any:
    """Sends rows as a producer of the partition, which skips as many as were sent before."""

    def send(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        rows = [Row(row["user"], row["n"]) for batch in batches for row in batch.to_pylist()]
        with SyncClient(address, producer=f"numbered-{context.partitionId()}") as client:
            opened = client.stream(stream, key=lambda _: "one partition")
            done = sum(opened.resume_at(partition) for partition in range(opened.partitions))
            if context.attemptNumber() == 0:
                opened.send_many(rows[: len(rows) // 2])
                client.flush()
                raise RuntimeError("the first attempt fails")
            opened.send_many(rows[done:])
        return iter(())

    return send


def main(master: str, kind: str, address: str, stream: str, folder: str) -> None:
    spark = session(master)
    options = {"address": address, "stream": stream, "type": "tests.spark_rows:Row"}
    if kind == "numbered":
        rows = drawn(spark.range(TOTAL))
        rows.mapInArrow(numbered(address, stream), rows.schema).write.format("noop").mode(
            "append"
        ).save()
    elif kind == "stream":
        source = Path(folder) / "source"
        if not source.exists():
            for number in range(FILES):
                share = TOTAL // FILES
                spark.range(number * share, number * share + share, 1, 1).write.parquet(
                    str(source / str(number))
                )
        query = (
            drawn(
                spark.readStream.schema("id long")
                .option("maxFilesPerTrigger", 1)
                .parquet(f"{source}/*")
            )
            .writeStream.format("s4")
            .options(**options)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    else:
        rows = drawn(spark.range(TOTAL))
        fault = {"failing": failing_once, "killing": killing(f"{folder}/killed")}.get(kind)
        if fault is not None:
            rows = rows.mapInArrow(fault, rows.schema)
        rows.write.format("s4").mode("append").options(**options).save()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    assert str(ROOT) in sys.path or ROOT.samefile(".")
    main(*sys.argv[1:])
