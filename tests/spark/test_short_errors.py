"""The messages of a command when Spark fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from s4node.errors import S4Error
from s4node.spark.short_errors import reasons_of_spark

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "An exception was thrown:\ns4node.errors.EventError: no n; fill it\n SQLSTATE: 38000",
            "no n; fill it",
        ),
        (
            "An exception was thrown:\nImportError: No module named 's4node' for python3; ship\n",
            "No module named 's4node' for python3; ship",
        ),
        ("[PATH_NOT_FOUND] no such path\n\tat org.apache...", "[PATH_NOT_FOUND] no such path"),
    ],
)
def test_an_error_of_spark_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(S4Error) as caught, reasons_of_spark():
        raise PySparkException(text)
    assert str(caught.value) == told


@pytest.mark.spark
@pytest.mark.slow
def test_a_worker_that_dies_is_told_in_one_line(spark: Any) -> None:
    rows = spark.range(1).mapInArrow(dying, "id long")
    with pytest.raises(S4Error, match="Python worker exited") as caught, reasons_of_spark():
        rows.collect()
    assert "\n" not in str(caught.value)


def dying(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    os.kill(os.getpid(), signal.SIGKILL)
