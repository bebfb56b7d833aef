"""Columns of event types: values come as Spark has them, not as JSON text."""

from __future__ import annotations

from datetime import time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import DecimalType, StringType, StructField, StructType

from s4node import Event
from s4node.errors import EventError
from s4node.events.schema import EventType
from s4node.net.wire import frame as wire
from s4node.spark.columns import Batches, schema_of


class Color(Enum):
    RED = "red"
    DARK_RED = "dark, red"


class Level(IntEnum):
    LOW = 1
    HIGH = -20


class Digit(Enum):
    ONE = "1"
    TWO = "2"


class Sale(Event):
    price: Decimal
    took: timedelta
    color: Color
    level: Level
    size: Literal["s", "m"]
    door: Literal[1, 2] | None
    id: UUID
    opens: time
    prices: list[Decimal]
    counts: dict[UUID, Level]
    digit: Digit
    mixed: Literal["a", 7] | None = None


SOME = UUID(int=7)
ONE = Sale(
    *(Decimal("12.50"), timedelta(hours=-1, microseconds=3), Color.DARK_RED, Level.HIGH),
    *("m", None, SOME, time(8, 30), [Decimal("0.1")], {SOME: Level.LOW}, Digit.TWO, "a"),
)


class Price(Event):
    price: Decimal
    took: timedelta


def read(event: Event, schema: StructType) -> dict[str, Any]:
    """The row of an event that a log has."""
    kind = EventType(type(event))
    body = kind.encode([event])
    sections = (wire.Section(kind.declaration.fingerprint, 1, len(body)),)
    batches = Batches(schema, kind.name, [kind.declaration])
    batches.add(0, wire.Data("sales", 0, "p", 0, 1, sections), memoryview(body))
    batch = batches.take(0, 1)
    assert batch is not None
    (row,) = batch.to_pylist(maps_as_pydicts="strict")
    return row


def test_values_of_each_type_that_spark_has_in_some_form_come_in_that_form() -> None:
    schema = schema_of([EventType(Sale).declaration])
    assert schema.simpleString() == (
        "struct<price:decimal(38,18),took:interval day to second,color:string,level:bigint,"
        "size:string,door:bigint,id:string,opens:string,prices:array<decimal(38,18)>,"
        "counts:map<string,bigint>,digit:bigint,mixed:string,_partition:int,_offset:bigint,_time:timestamp>"
    )
    row = read(ONE, schema)
    assert row == {
        "price": Decimal("12.5"),
        "took": timedelta(hours=-1, microseconds=3),
        "color": "dark, red",
        "level": -20,
        "size": "m",
        "door": None,
        "id": str(SOME),
        "opens": "08:30:00",
        "prices": [Decimal("0.1")],
        "counts": {str(SOME): 1},
        "digit": 2,
        "mixed": '"a"',  # of texts and numbers together: JSON
    } | {name: row[name] for name in ("_partition", "_offset", "_time")}


def test_a_decimal_that_does_not_fit_is_an_error_and_fits_the_schema_that_is_asked_for() -> None:
    large = Price(Decimal("1E+21"), timedelta(seconds=90))
    with pytest.raises(EventError, match=r"Price.price are not of .* read it with another schema"):
        read(large, schema_of([EventType(Price).declaration]))
    wide = StructType([StructField("price", DecimalType(38, 2))])
    assert read(large, wide) == {"price": Decimal("1E+21")}
    text = StructType([StructField(name, StringType()) for name in ("price", "took")])
    assert read(large, text) == {"price": "1E+21", "took": "PT90S"}
