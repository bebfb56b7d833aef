"""A task of Spark that runs PEs over rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StructField, StructType, TimestampType

from s4node import App, Event, ProcessingElement
from s4node.errors import EventError
from s4node.spark.history.replay import REFUSED, STATE, AppSource, Encoding, Replay
from s4node.spark.history.stages import stages


class Visit(Event):
    user: str | None


class Visitor(ProcessingElement):
    visits: int = 0

    def on_event(self, _: Visit) -> None:
        self.visits += 1


class Visits(App):
    def on_init(self) -> None:
        pe = self.create_pe(Visitor)
        self.create_input_stream("visits", pe, key=lambda visit: visit.user.upper(), types=Visit)


def test_events_without_a_key_are_counted_also_if_the_key_is_a_function() -> None:
    order = StructType([StructField("at", LongType())])
    source = AppSource(Visits, {}, 1)
    history = pa.record_batch({"user": ["ann", None, "Ann"], "at": [1, 2, 3]})
    rows = Encoding(source, "visits", order)(iter([history]))
    (stage,) = stages(source.made())
    made = [
        row
        for batch in Replay(source, stage, order, frozenset())(rows)
        for row in batch.to_pylist()
    ]
    assert [row["kind"] for row in made] == [REFUSED, STATE]
    assert made[0]["value"].startswith(b"\x92\x01")  # one event, and why


@pytest.mark.parametrize("streams", [1, 2])
def test_a_log_whose_clock_was_set_back_is_refused_also_between_batches(streams: int) -> None:
    at = datetime(2026, 1, 31, 8, tzinfo=UTC)
    order = StructType(
        [
            StructField("_time", TimestampType()),
            StructField("_partition", IntegerType()),
            StructField("_offset", LongType()),
        ]
    )

    def part(offset: int) -> pa.RecordBatch:
        return pa.record_batch(
            {
                "user": ["ann"],
                "_time": pa.array([at], pa.timestamp("us", "UTC")),
                "_partition": pa.array([0], pa.int32()),
                "_offset": [offset],
            }
        )

    source = AppSource(Visits, {}, 1)
    (stage,) = stages(source.made())
    replay = Replay(source, stage, order, frozenset(), "visits" if streams == 1 else "")

    def run(*offsets: int) -> int:
        parts = iter([part(offset) for offset in offsets])
        return len(
            list(replay(parts if streams == 1 else Encoding(source, "visits", order)(parts)))
        )

    assert run(6, 7) == 1
    with pytest.raises(EventError, match="the log's clock was set back"):
        run(7, 6)
