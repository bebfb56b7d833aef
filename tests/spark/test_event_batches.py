"""Rows of a history as events of an app."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from s4node import Event
from s4node.events.schema import EventType
from s4node.spark.history.event_batches import events_of, misfits


class Fee(Event):
    cents: int


class Order(Event):
    user: str
    code: int | str
    fee: Fee | None = None


KIND = EventType(Order)


def columns(**kinds: StringType | IntegerType | LongType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def test_columns_that_are_missing_or_of_another_type_are_all_named() -> None:
    assert misfits(KIND, columns(user=IntegerType(), fee=LongType(), more=LongType())) == [
        "column 'user' is int, not str",
        "there is no column 'code' for field code: int|str",
        "column 'fee' is bigint, not (cents:int)|none",
    ]
    assert misfits(KIND, columns(code=StringType(), user=StringType())) == []


def test_values_of_types_that_spark_does_not_have_are_json_text_as_in_a_log() -> None:
    batch = pa.record_batch(
        {
            "fee": pa.array(["[5]", None]),
            "code": pa.array(['"a"', "7"]),
            "user": pa.array(["ann", "bob"]),
        }
    )
    assert events_of(KIND, batch) == [Order("ann", "a", Fee(5)), Order("bob", 7)]
