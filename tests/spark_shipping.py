"""A Spark program for tests, whose executors get the package only by ``--py-files``.

``python -m tests.spark_shipping MASTER ZIP ADDRESS STREAM`` in the folder of the package, with a
Python and a PYTHONPATH that have the libraries and not the package. The driver finds the package in
its folder, where executors do not run. Prints what Spark says while they lack it, then ships ZIP,
and writes the numbers below 1,000. ``connect:`` before MASTER does this through Spark Connect.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from s4node.spark import register
from s4node.spark.java import java_home


def main(master: str, archive: str, address: str, stream: str) -> None:
    os.environ |= {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    spark = (
        (builder.remote(master[8:]) if master.startswith("connect:") else builder.master(master))
        .config("spark.ui.enabled", "false")
        .config("spark.task.maxFailures", "1")
        .getOrCreate()
    )
    rows = spark.range(1000).selectExpr("concat('u', id) as user", "id as n")
    write = (
        rows.write.format("s4")
        .options(address=address, stream=stream, type="tests.spark_rows:Row")
        .mode("append")
    )
    try:
        write.save()
    except Exception as error:
        print(error, flush=True)
    spark.addArtifacts(archive, pyfile=True)
    register(spark)
    write.save()
    read = spark.read.format("s4").options(address=address, stream=stream).load()
    print("shipped", read.count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
