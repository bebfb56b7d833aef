"""The table of changed types in docs/state.md says what Spark reads of a log, cell by cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed_types import EVENTS, order, said, table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_nodes import running_node

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_events_of_an_earlier_version_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    cells, wrong = table("| an event's type |"), {}
    with running_node(tmp_path) as node:
        reader = spark.read.format("s4").option("address", node.address)
        for number, change in enumerate(EVENTS):
            node.create(f"stored{number}", 1, key="user")
            node.append(f"stored{number}", [order()], key="user")
            options = {"stream": f"stored{number}", "type": f"changed_types:Later{number}"}
            try:
                rows = reader.options(**options).load()
                found = "accepted"
                assert len(rows.collect()) == (0 if change.row == "another name" else 1)
            except PySparkException as error:
                found = str(error)
            cell = cells[change.row]["Spark"]
            if not said(found, cell):
                wrong[change.row] = cell, found
    assert wrong == {}
