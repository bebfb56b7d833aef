"""Rows of a history as events of an app."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
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
from s4node.spark.history.event_batches import Columns, events_of, misfits, packed

pytestmark = pytest.mark.long


class Fee(Event):
    cents: int


class Order(Event):
    user: str
    code: int | str
    fee: Fee | None = None


class Basket(Event):
    counts: dict[str, int]
    prices: list[int]


class Color(Enum):
    RED = "red"


class Digit(Enum):
    ONE = "1"
    TWO = "2"


class Numbered(Event):
    digit: Digit | None
    price: Decimal
    took: timedelta


class Painted(Event):
    color: Color
    id: UUID
    weight: float
    at: datetime
    level: Annotated[int, msgspec.Meta(ge=0)] = 0
    note: int | str | None = None

    def __post_init__(self) -> None:
        if self.weight > 100:
            raise ValueError("too heavy")


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


def test_values_are_those_that_a_node_decodes_and_others_are_refused() -> None:
    some, kind = UUID(int=7), EventType(Painted)
    at = datetime(2026, 1, 31, 8, tzinfo=UTC)

    def painted(**values: object) -> list[Painted]:
        row = {"color": "red", "id": str(some), "weight": 5, "at": at, "level": 1} | values
        columns: dict[str, object] = {name: [value] for name, value in row.items()}
        columns["at"] = pa.array([at], pa.timestamp("us", "Europe/Berlin"))
        return events_of(kind, pa.record_batch(columns))

    (event,) = painted()
    assert event == Painted(Color.RED, some, 5.0, at, 1)
    assert isinstance(event.weight, float)
    assert event.at.hour == 8  # in UTC, whatever the zone of Spark's session
    assert painted(note="7")[0].note == 7  # JSON text, as in a log
    for bad, why in (
        ({"level": -1}, "level: Expected `int` >= 0"),
        ({"color": "blue"}, "color: Invalid enum value 'blue'"),
        ({"note": "seven"}, "note: JSON is malformed"),
        ({"weight": 101}, "too heavy"),
    ):
        with pytest.raises(EventError, match=f"a row of the history is not a valid Painted: {why}"):
            painted(**bad)


def test_events_are_columns_again_with_json_text_as_in_a_log() -> None:
    events = [Order("ann", "a", Fee(5)), Order("bob", 7)]
    rows = pa.record_batch({"value": pa.array(packed([KIND], events), pa.binary())})
    (batch,) = Columns(Order)(iter([rows]))
    assert batch.to_pydict() == {
        "user": ["ann", "bob"],
        "code": ['"a"', "7"],
        "fee": ["[5]", None],
    }
    assert events_of(KIND, batch) == events


def test_decimals_times_and_enums_of_a_log_are_events_and_columns_again() -> None:
    events = [
        Numbered(Digit.TWO, Decimal("1.50"), timedelta(0, 90, 5)),
        Numbered(None, Decimal(2), timedelta(1)),
    ]
    kind = EventType(Numbered)
    rows = pa.record_batch({"value": pa.array(packed([kind], events), pa.binary())})
    (batch,) = Columns(Numbered)(iter([rows]))
    assert batch.column("digit").to_pylist() == [2, None]  # as the log's declaration has it
    assert (
        misfits(
            kind, columns(digit=LongType(), price=DecimalType(38, 18), took=DayTimeIntervalType())
        )
        == []
    )
    assert events_of(kind, batch) == events


def test_arrays_and_maps_are_lists_and_dicts_without_nulls() -> None:
    kind = EventType(Basket)
    kinds = {"counts": MapType(StringType(), LongType()), "prices": ArrayType(LongType())}
    assert misfits(kind, columns(**kinds)) == []
    counts = pa.array([[("pen", 2)], []], pa.map_(pa.string(), pa.int64()))
    good = pa.record_batch({"counts": counts, "prices": pa.array([[5, 7], []])})
    assert events_of(kind, good) == [Basket({"pen": 2}, [5, 7]), Basket({}, [])]
    bad = pa.record_batch({"counts": counts, "prices": pa.array([[5, None], []])})
    with pytest.raises(
        EventError, match="a row of the history is not a valid Basket: prices: Expected `int"
    ):
        events_of(kind, bad)
