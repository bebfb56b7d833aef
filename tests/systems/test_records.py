"""Records as events: formats, keys, and what does not fit."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node import Event, GenericEvent
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.systems.record_writer import RecordWriter
from s4node.systems.records import RecordFormat, RecordReader, Records


class Order(Event):
    user: str
    amount: int = 0
    when: datetime | None = None


class Keyed(Event):
    key: Any
    amount: int = 0


class Blob(Event):
    value: bytes
    user: str = ""


class Upper:
    """A format of one's own: the name of a user in capital letters."""

    def decode(self, value: bytes) -> dict[str, Any]:
        return {"user": value.decode().upper()}


class Wrong:
    """A format whose field is not of the class's type."""

    def decode(self, value: bytes) -> dict[str, Any]:
        return {"user": len(value)}


class Made:
    """A format that makes the events itself."""

    def decode(self, value: bytes) -> Order:
        if value == b"bad":
            raise LookupError("no such user")
        return Order(value.decode(), 7)


@pytest.mark.parametrize("serde", ["json", "msgpack"])
def test_a_batch_of_values_becomes_events_and_fields_that_nobody_reads_are_left_out(
    serde: str,
) -> None:
    values = [
        {"user": "ann", "amount": 1, "city": "Riga"},
        {"user": "bob", "when": "2026-01-02T03:04:05Z", "items": [{"id": 1}]},
    ]
    encode = msgspec.json.encode if serde == "json" else msgspec.msgpack.encode
    events, offsets, refusals = read(Order, [encode(value) for value in values], serde=serde)
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert events == [Order("ann", 1), Order("bob", when=when)]
    assert (offsets, refusals) == ([0, 1], [])


@given(st.lists(st.sampled_from([b'{"user":"a"}', b"{}", b"", b'{"user":"a"},{"user":"b"}'])))
def test_a_bad_value_harms_no_other_one(values: list[bytes]) -> None:
    events, offsets, refusals = read(Order, values)
    good = [offset for offset, value in enumerate(values) if value == b'{"user":"a"}']
    assert events == [Order("a")] * len(good)
    assert offsets == good
    assert {offset for offset, _, _ in refusals} == set(range(len(values))) - set(good)
    assert all(raw == values[offset] for offset, _, raw in refusals)


def test_a_value_that_cannot_be_saved_is_refused() -> None:
    values = [b'{"user": "a", "amount": 9223372036854775808}', b'{"user": "b"}']
    events, _, ((offset, reason, _),) = read(Order, values)
    assert events == [Order("b")]
    assert offset == 0
    assert "Order does not decode: ValidationError: Expected `int` <=" in reason
    events, _, ((_, reason, _),) = read(GenericEvent, [b'{"n": 18446744073709551616}', b"{}"])
    assert events == [GenericEvent()]
    assert "cannot be saved" in reason


@pytest.mark.parametrize(
    ("kind", "key", "found"),
    [
        (str, b"ann", "ann"),
        (int, b"12", 12),
        (bytes, b"\xff", b"\xff"),
        (int, b"x", None),
        (str, b"\xff", None),
        (str, None, None),
    ],
)
def test_the_key_of_a_record_is_of_its_field_s_type(
    kind: type, key: bytes | None, found: Any
) -> None:
    cls = msgspec.defstruct("Keyed", [("key", kind), ("amount", int, 0)], bases=(Event,))
    reader = RecordReader("orders", RecordFormat(key="key"), [cls])
    events, _, refusals = reader.read(Records([5], [b'{"amount": 2, "key": "other"}'], [key]))
    if found is None:
        assert events == []
        assert refusals[0][0] == 5
    else:
        assert [(event.key, event.amount) for event in events] == [(found, 2)]


def test_a_tombstone_is_left_out_or_becomes_an_event_with_its_key() -> None:
    records = Records([0, 1, 2], [b'{"amount": 3}', None, b'{"amount": 4}'], [b"a", b"b", b"c"])
    left_out = RecordReader("orders", RecordFormat(key="user"), [Order])
    assert left_out.read(records) == ([Order("a", 3), Order("c", 4)], [0, 2], [])
    events = RecordReader("orders", RecordFormat(key="user", tombstones="event"), [Order])
    assert events.read(records) == ([Order("a", 3), Order("b"), Order("c", 4)], [0, 1, 2], [])


def test_generic_events_have_the_fields_of_the_value_and_those_of_the_record() -> None:
    form = RecordFormat(key="user", time="at", headers="notes")
    records = Records([0], [b'{"n": 1}'], [b"ann"], [1_500], [[("by", b"x")]])
    (event,), _, _ = RecordReader("orders", form, [GenericEvent]).read(records)
    assert event.attributes == {"n": 1, "user": "ann", "at": 1.5, "notes": {"by": b"x"}}


def test_bytes_are_the_field_value() -> None:
    records = Records([0], [b"\x00raw"], [b"ann"])
    form = RecordFormat(serde="bytes", key="user")
    assert RecordReader("blobs", form, [Blob]).read(records)[0] == [Blob(b"\x00raw", "ann")]
    (event,) = RecordReader("blobs", form, [GenericEvent]).read(records)[0]
    assert event.attributes == {"value": b"\x00raw", "user": "ann"}


def test_a_format_of_one_s_own_gives_fields_or_events() -> None:
    assert read(Order, [b"ann"], serde="test_records:Upper")[0] == [Order("ANN")]
    events, _, ((offset, reason, raw),) = read(Order, [b"ann", b"bad"], serde="test_records:Made")
    assert events == [Order("ann", 7)]
    assert (offset, raw) == (1, b"bad")
    assert "no such user" in reason
    _, _, ((_, reason, _),) = read(Order, [b"ann"], serde="test_records:Wrong")
    assert "Expected `str`, got `int` - at `$.user`" in reason
    form = RecordFormat(serde="test_records:Made", key="user")
    (event,) = RecordReader("o", form, [Order]).read(Records([0], [b"ann"], [b"bob"]))[0]
    assert event == Order("bob", 7)


class Renamed(Event, rename="camel"):
    user_id: str
    at: int = 0


def test_renamed_fields_have_their_names_of_values_in_and_out() -> None:
    form, value = RecordFormat(time="at"), b'{"userId":"joe"}'
    reader = RecordReader("orders", form, [Renamed])
    events, _, _ = reader.read(Records([0], [value], times=[1000]))
    assert events == [Renamed("joe", 1000)]
    writer = RecordWriter("orders", form._replace(time=""), "user_id", 1000)
    (record,) = writer.write(events, 5)
    assert (record.key, msgspec.json.decode(record.value or b"")) == (
        b"joe",
        {"userId": "joe", "at": 1000},
    )


@pytest.mark.parametrize("serde", ["json", "msgpack", "bytes", "test_records:Upper"])
@pytest.mark.parametrize(
    ("kind", "time"),
    [
        (float, 1_767_225_600.123),
        (float | None, 1_767_225_600.123),
        (Any, 1_767_225_600.123),
        (int, 1_767_225_600_123),
        (int | None, 1_767_225_600_123),
        (datetime, datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)),
        (datetime | None, datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)),
    ],
)
def test_the_time_of_a_record_is_of_its_field_s_class_and_comes_out_as_it_went_in(
    kind: Any, time: Any, serde: str
) -> None:
    fields = [("at", kind), ("user", str, ""), ("value", bytes, b"")]
    cls = msgspec.defstruct("Timed", fields, bases=(Event,))  # type: ignore[arg-type]
    form = RecordFormat(serde=serde, time="at")
    records = Records([0, 1], [b"{}" if serde == "json" else b"\x80"] * 2, times=[MILLIS] * 2)
    if serde == "test_records:Upper":
        records = records._replace(values=[b"ann"] * 2)
    events, _, refusals = RecordReader("orders", form, [cls]).read(records)
    assert ([event.at for event in events], refusals) == ([time] * 2, [])
    writer = RecordWriter("orders", RecordFormat(time="at"), None, 1000)
    assert [each.time_ms for each in writer.write(events, 0)] == [MILLIS] * 2


MILLIS = 1_767_225_600_123


def test_a_value_with_the_id_of_a_schema_says_what_it_takes() -> None:
    _, _, ((_, reason, _),) = read(Order, [b"\x00\x00\x00\x00\x07\x02a"])
    assert "begins with the id of a schema" in reason


@pytest.mark.parametrize(
    ("types", "settings", "said"),
    [
        ([Order, Blob], {}, "the types Order, Blob, and its records do not say"),
        ([Order], {"streams.o.record.key": "name"}, "key = name: Order has no such field.* user"),
        ([Order], {"streams.o.record.time": "at"}, "record.time = at: Order has no such field"),
        (
            [Order],
            {"streams.o.record.time": "user"},
            "time = user: the field of Order is str, which holds no time; declare it as float .sec",
        ),
        ([Order], {"streams.o.samza.msg.serde": "bytes"}, "field value, which Order does not have"),
        ([Order], {"streams.o.tombstones": "event"}, "needs streams.o.record.key"),
        ([Order], {"streams.o.samza.msg.serde": "no.where:Format"}, "cannot be imported"),
        ([Order], {"streams.o.samza.msg.serde": "test_records:Order"}, "cannot be created"),
        ([Order], {"streams.o.samza.msg.serde": "test_records:Config"}, "has no decode"),
    ],
)
def test_settings_that_do_not_fit_the_types_are_named(
    types: list[type], settings: dict[str, str], said: str
) -> None:
    form = RecordFormat.configured(Config.from_values(settings), "o")
    with pytest.raises(ConfigError) as caught:
        RecordReader("o", form, types)
    assert re.search(said, str(caught.value))


# -- set-up ---------------------------------------------------------------------------------------


def read(cls: type, values: list[bytes], serde: str = "json") -> Any:
    reader = RecordReader("orders", RecordFormat(serde), [cls])
    events, offsets, refusals = reader.read(Records(range(len(values)), values))
    return events, list(offsets), refusals
