"""A task of Spark that runs PEs over rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from s4node import App, Event, OfKey, OutputStream, ProcessingElement, Stream, count, tumbling
from s4node.errors import EventError, ProcessingError
from s4node.spark.history.event_batches import unpacked
from s4node.spark.history.event_times import AT
from s4node.spark.history.replay import AppSource, Encoding, Replay
from s4node.spark.history.stage_rows import EVENT, REFUSED, STATE
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


class Sample(Event):
    user: str
    at: float


class Told(Event):
    user: str
    what: str


class Alarm(ProcessingElement):
    told: OutputStream

    def on_event(self, sample: Sample) -> None:
        self.told.put(Told(sample.user, f"event {sample.at:g}"))
        self.at(sample.at + 10)

    def on_timer(self, _: str) -> None:
        self.told.put(Told(str(self.key), "timer"))


class Alarms(App):
    def on_init(self) -> None:
        alarm = self.create_pe(Alarm)
        alarm.told = self.create_output_stream("told", types=Told)
        self.create_input_stream("samples", alarm, key="user", types=Sample, time="at", lateness=2)


class Minute(ProcessingElement):
    sums: Stream
    told: OutputStream
    windows: OfKey[int] = 0
    samples: int = 0

    def on_event(self, sample: Sample) -> None:
        self.samples += 1
        self.told.put(Told(sample.user, f"{self.windows} windows before {sample.at:g}"))

    def on_window(self) -> None:
        self.windows += 1
        self.sums.put(Sample("all", self.window.start + self.samples))
        self.told.put(Told(str(self.key), f"{self.samples} samples"))
        if self.samples > 2:
            raise ValueError("too many")


class Minutes(App):
    def on_init(self) -> None:
        minute, second = self.create_pe(Minute), self.create_pe(Visitor)
        minute.set_window(tumbling(60))
        minute.told = self.create_output_stream("told", types=Told)
        minute.sums = self.create_stream("sums", second, key="user", types=Sample, time="at")
        self.create_input_stream("samples", minute, key="user", types=Sample, time="at", lateness=5)


class Threes(App):
    def on_init(self) -> None:
        minute = self.create_pe(Minute)
        minute.set_window(count(3))
        minute.told = self.create_output_stream("told", types=Told)
        minute.sums = self.create_output_stream("sums", types=Sample)
        self.create_input_stream("samples", minute, key="user", types=Sample)


class InOrder(App):
    def on_init(self) -> None:
        self.create_input_stream(
            "samples", self.create_pe(Visitor), key="user", types=Sample, time="at", order="time"
        )


def rows(app: type[App], *times: tuple[str, float], until: float) -> list[dict[str, Any]]:
    """The rows that the first stage of an app makes of these events, which are in order."""
    order = StructType([StructField(AT, DoubleType()), StructField("n", LongType())])
    source = AppSource(app, {}, 1)
    first = stages(source.made())[0]
    wanted = frozenset({"told", "sums"})
    ends = dict.fromkeys(first.pes, until)
    replay = Replay(source, first, order, wanted, "samples", until=ends, now=1e9)
    at = [time for _, time in times]
    batch = pa.record_batch(
        {
            "user": [user for user, _ in times],
            "at": at,
            AT: pa.array([time if time > 0 else None for time in at], pa.float64()),
            "n": list(range(len(times))),
        }
    )
    return [row for made in replay(iter([batch])) for row in made.to_pylist()]


def told(made: list[dict[str, Any]], user: str = "ann") -> list[str]:
    """The events on the output stream for a key, in the order in which the next stage has them."""
    mine = [row for row in made if row["kind"] == EVENT and row["name"] == "told"]
    mine.sort(key=lambda row: (row[AT], -1 if row["n"] is None else row["n"], row["path"]))
    events = unpacked(kind_of_told(), [row["value"] for row in mine])
    return [event.what for event in events if event.user == user]


def kind_of_told() -> Any:
    return AppSource(Alarms, {}, 1).made().streams["told"].types[0]


def test_a_timer_fires_before_a_later_event_and_one_after_the_end_of_the_history_is_saved() -> None:
    made = rows(Alarms, ("ann", 1.0), ("bob", 11.0), ("ann", 13.0), ("ann", 50.0), until=48.0)
    assert told(made) == ["event 1", "event 13", "timer", "event 50"]
    assert [row["name"] for row in made if row["kind"] == STATE] == ["pe Alarm"] * 2 + [
        "timers Alarm"
    ]


def test_a_task_of_spark_in_which_no_timer_is_left_saves_none() -> None:
    fired = rows(Alarms, ("ann", 1.0), ("bob", 2.0), until=48.0)
    assert [row["name"] for row in fired if row["kind"] == STATE] == ["pe Alarm"] * 2


def test_events_that_are_held_back_at_the_end_of_the_history_are_saved() -> None:
    made = rows(InOrder, *(("ann", at) for at in (1.0, 2.0, 3.0, 4.0)), until=2.5)
    held = [row for row in made if row["kind"] == STATE]
    assert {row["name"] for row in held} == {"pe samples-in-order"}
    assert sum(row["value"].count(b"Sample") for row in held) == 2


@pytest.mark.parametrize("app", [Alarms, Minutes, Threes])
def test_a_task_of_spark_without_events_makes_no_rows(app: type[App]) -> None:
    assert rows(app, until=48.0) == []


def test_a_task_of_spark_whose_windows_have_all_ended_saves_what_its_keys_share() -> None:
    ended = rows(Minutes, ("ann", 1.0), ("bob", 62.0), until=200.0)
    assert {row["name"] for row in ended if row["kind"] == STATE} == {"pe Minute (key)"}


def test_windows_of_a_key_share_its_state_and_end_before_its_later_events() -> None:
    made = rows(Minutes, ("ann", 1.0), ("ann", 62.0), ("ann", 63.0), ("ann", 66.0), until=61.0)
    assert told(made) == [
        "0 windows before 1",
        "0 windows before 62",
        "0 windows before 63",
        "1 samples",
        "1 windows before 66",
    ]
    sums = [row for row in made if row["name"] == "sums"]
    assert [row[AT] for row in sums] == [1.0]  # its own time, by which the next stage sorts
    states = [row["name"] for row in made if row["kind"] == STATE]
    assert states == ["pe Minute", "pe Minute (key)"]


def test_an_on_window_that_raises_over_a_history_stops_it_with_the_key() -> None:
    with pytest.raises(ProcessingError, match=r"Minute.*'ann'.*on_window in the history"):
        rows(Minutes, *(("ann", float(at)) for at in range(1, 5)), until=100.0)


def test_what_is_no_time_is_refused_and_counted() -> None:
    made = rows(Minutes, ("ann", -1.0), ("ann", 1.0), until=100.0)
    (refused,) = [row for row in made if row["kind"] == REFUSED]
    assert refused["value"].startswith(b"\x92\x01")
    assert b"is not a valid time" in refused["value"]


def test_windows_of_counts_need_no_time() -> None:
    order = StructType([StructField("n", LongType())])
    source = AppSource(Threes, {}, 1)
    (stage,) = stages(source.made())
    batch = pa.record_batch({"user": ["ann"] * 4, "at": [1.0] * 4, "n": [1, 2, 3, 4]})
    replay = Replay(source, stage, order, frozenset(), "samples")
    with pytest.raises(ProcessingError, match="too many"):
        list(replay(iter([batch])))
    made = [row for each in replay(iter([batch.slice(0, 2)])) for row in each.to_pylist()]
    assert [row["name"] for row in made] == ["pe Minute", "pe Minute (key)"]
