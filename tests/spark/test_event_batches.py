"""Rows of a history as events of an app."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from s4node import Event
from s4node.errors import EventError
from s4node.events.schema import EventType
from s4node.spark.history.event_batches import events_of, misfits


class Fee(Event):
    cents: int


class Order(Event):
    user: str
    code: int | str
    fee: Fee | None = None


class Basket(Event):
    counts: dict[str, int]
    prices: list[int]


KIND = EventType(Order)


def columns(**kinds: DataType) -> StructType:
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


def test_arrays_and_maps_are_lists_and_dicts_without_nulls() -> None:
    kind = EventType(Basket)
    kinds = {"counts": MapType(StringType(), LongType()), "prices": ArrayType(LongType())}
    assert misfits(kind, columns(**kinds)) == []
    counts = pa.array([[("pen", 2)], []], pa.map_(pa.string(), pa.int64()))
    good = pa.record_batch({"counts": counts, "prices": pa.array([[5, 7], []])})
    assert events_of(kind, good) == [Basket({"pen": 2}, [5, 7]), Basket({}, [])]
    bad = pa.record_batch({"counts": counts, "prices": pa.array([[5, None], []])})
    with pytest.raises(
        EventError, match="a row of the history is no Basket: prices: Expected `int"
    ):
        events_of(kind, bad)
