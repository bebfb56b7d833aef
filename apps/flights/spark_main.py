"""The Spark program: clean the flights, send them to the adapter, print Spark's own figures.

Run as ``python -m apps.flights.spark_main ADDRESS [FILE]``; the property file names a certificate,
for an address with TLS. Writes JSON lines to standard output: what it
is doing, how many rows were sent, and at last the figures. What Java writes there goes to standard
error.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from apps.flights.data import flights_csv
from apps.flights.spark_job import batch_aggregates, read_flights, send
from s4node import Config, Credentials
from s4node.spark.java import spark_session


def main(address: str, config: str = "") -> None:
    """Do all of it; raises what goes wrong."""
    credentials = Credentials.configured(Config.load([Path(config)])) if config else None
    _say(stage="starting Spark")
    spark = spark_session("flights")
    try:
        with tempfile.TemporaryDirectory() as folder:
            _say(stage="reading and cleaning the flights")
            flights = read_flights(spark, flights_csv(Path(folder)))
            _say(rows=flights.count())
            _say(stage="sending")
            sent = send(flights, address, progress=_say_sent, credentials=credentials)
            _say(sent=sent)
            _say(stage="counting in one batch")
            _say(figures=batch_aggregates(flights))
    finally:
        spark.stop()


def _say_sent(rows: int) -> None:
    _say(progress=rows)


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def _keep_stdout() -> None:
    """Keep standard output to ourselves: child processes get standard error for it."""
    ours = os.dup(1)  # a duplicate is not inherited
    os.dup2(2, 1)
    sys.stdout = os.fdopen(ours, "w")


if __name__ == "__main__":
    _keep_stdout()
    main(*sys.argv[1:])
