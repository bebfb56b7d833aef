"""Rows as events: each goes to the partition of its key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)
from shared_apps import Click

from s4node import Event
from s4node.errors import ConfigError, SinkError
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType
from s4node.spark.event_rows import EventRows

pytestmark = pytest.mark.long


class Basket(Event):
    prices: list[int]


class Loose(Event):
    value: Any


SCHEMA = StructType([StructField("user", StringType()), StructField("n", LongType())])


@pytest.mark.parametrize("routing", ["crc32m:user", "crc32m:user+n"])
def test_rows_go_to_the_partition_of_their_key_whether_keys_are_few_or_many(routing: str) -> None:
    rows = EventRows(Click, SCHEMA, {})
    upload: Any = SimpleNamespace(
        hello=SimpleNamespace(routing=routing), partitions=4, max_body=1 << 20
    )
    partition_of = Partitioner(4).partition_of
    for users in (5, 2000, 3):  # few keys, many, and few again
        sent = [(f"u{n % users}", n) for n in range(2000)]
        batch = pa.record_batch({"user": [u for u, _ in sent], "n": [n for _, n in sent]})
        found = []
        for partition, count, body, routed in rows.frames(batch, upload):
            events = EventType(Click).decode(body)
            assert routed
            assert len(events) == count
            for event in events:
                key = event.user if routing.endswith("user") else (event.user, event.n)
                assert partition_of(key) == partition
            found += [(event.user, event.n) for event in events]
        assert sorted(found) == sorted(sent)


def test_a_variant_is_refused_wherever_it_is_for_its_value_is_bytes_to_python() -> None:
    for kind in (
        VariantType(),
        ArrayType(VariantType()),
        MapType(StringType(), VariantType()),
        StructType([StructField("v", VariantType())]),
        CalendarIntervalType(),
    ):
        with pytest.raises(ConfigError, match=r"column 'value' is .*, not any"):
            EventRows(Loose, StructType([StructField("value", kind)]), {})
    for good in (LongType(), ArrayType(StructType([StructField("n", LongType())])), NullType()):
        EventRows(Loose, StructType([StructField("value", good)]), {})


def test_an_array_may_have_nulls_by_its_type_and_not_in_a_row() -> None:
    rows = EventRows(Basket, StructType([StructField("prices", ArrayType(LongType()))]), {})
    upload: Any = SimpleNamespace(
        hello=SimpleNamespace(routing="crc32m:"), partitions=1, max_body=1 << 20, own_lane=0
    )
    (frame,) = rows.frames(pa.record_batch({"prices": pa.array([[5, 7], []])}), upload)
    assert EventType(Basket).decode(frame[2]) == [Basket([5, 7]), Basket([])]
    with pytest.raises(
        SinkError, match=r"a row is not a valid Basket .*: \(\[5, None\],\); filter or"
    ):
        list(rows.frames(pa.record_batch({"prices": pa.array([[5, None]])}), upload))
