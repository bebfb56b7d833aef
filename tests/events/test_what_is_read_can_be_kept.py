"""An event that a reader accepts can be stored: in a commit, a frame, the log, a dead letter."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s4node.app.pe_codec import ElementCodec
from s4node.app.processing_element import ProcessingElement
from s4node.errors import EventError
from s4node.events.event import Event, GenericEvent
from s4node.events.schema import EventType, OpenType, TypeReader, raws_in, reader_of
from s4node.runtime.task.poison.dead_letter import dead_letter


class Color(enum.IntEnum):
    RED = 1


class Inner(msgspec.Struct):
    n: int | None = None
    when: datetime.datetime | None = None


class Every(Event, kw_only=True):
    n: int = 0
    many: list[int] = []  # noqa: RUF012 - copied for each event
    by_number: dict[int, int] = {}  # noqa: RUF012
    either: int | float | str | None = None
    anything: Any = None
    when: datetime.datetime | None = None
    times: list[datetime.datetime] = []  # noqa: RUF012
    day: datetime.date | None = None
    time: datetime.time | None = None
    span: datetime.timedelta | None = None
    exact: decimal.Decimal | None = None
    id: uuid.UUID | None = None
    color: Color | None = None
    inner: Inner | None = None
    raw: bytes | None = None
    names: set[str] | None = None


class Tree(Event):
    name: str
    children: list[Tree] = []  # noqa: RUF012


@cache
def holding(kind: Any) -> ElementCodec:
    """The codec of a PE that holds values of a type."""
    body = {"__annotations__": {"value": list[dict[str, kind]]}, "value": []}
    return ElementCodec(type("Held", (ProcessingElement,), body))


EVERY, TREE, GENERIC = EventType(Every), EventType(Tree), EventType(GenericEvent)
AS_EVERY = reader_of(GENERIC.declaration, {"Every": EVERY}, others=False)
READERS: list[TypeReader] = [EVERY, TREE, GENERIC, OpenType(EVERY.declaration), AS_EVERY]

INTEGERS = (
    st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30]) | st.integers()
)
TIMES = st.builds(
    "{}T{}{}".format,
    st.sampled_from(["0001-01-01", "0001-01-02", "9999-12-31", "2020-02-29"]),
    st.sampled_from(["00:00:00", "23:59:59.999999"]),
    st.sampled_from(["", "Z", "+00:01", "-23:59", "+14:00"]),
)


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


TEXTS = TIMES | st.sampled_from(["2020-01-01", "12:00:00+14:00", "P999999999D", "NaN", "1e99999"])
LEAVES = st.none() | st.booleans() | st.floats() | TEXTS | st.text(max_size=3) | INTEGERS
DEPTHS = st.integers(1, 1000) | st.sampled_from([600, 800, 860, 880, 900, 930, 960, 990])
VALUES = (
    LEAVES
    | st.lists(LEAVES, max_size=3)
    | DEPTHS.map(nested)
    | st.dictionaries(INTEGERS.map(str) | st.text(max_size=3), LEAVES, max_size=3)
)
NAMES = st.sampled_from([*Every.__struct_fields__, "name", "children"])


def saves(event: Any) -> None:
    """Keep an event where events and their values are kept."""
    raw = EventType(type(event)).encode([event])
    dead_letter(("log", "clicks", 0), "p", 7, "why", event)
    generic = isinstance(event, GenericEvent)
    kinds = dict.fromkeys(event, Any) if generic else get_type_hints(type(event))
    for name in event if generic else type(event).__struct_fields__:
        held = SimpleNamespace(value=[{"of": getattr(event, name)}], key="")
        holding(kinds[name]).encode(held)  # type: ignore[arg-type]
    assert EventType(type(event)).decode_each(raws_in(raw))[1] == []


def json_of(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="surrogatepass")


@settings(max_examples=500)
@given(st.sampled_from(READERS), st.dictionaries(NAMES, VALUES, max_size=3))
def test_what_is_read_from_json_can_be_kept(reader: TypeReader, values: dict[str, Any]) -> None:
    try:
        raw = json_of(values)
    except ValueError:  # what JSON does not have
        return
    events, refusals = reader.decode_each([msgspec.Raw(raw)], json=True)
    for event in events:
        if event is not None:
            saves(event)
    assert len(refusals) == events.count(None)


@settings(max_examples=500)
@given(st.sampled_from(READERS), st.dictionaries(NAMES, VALUES, max_size=3), st.booleans())
def test_what_is_read_from_msgpack_can_be_kept(
    reader: TypeReader, values: dict[str, Any], at_once: bool
) -> None:
    shape: Any = values
    if reader in (EVERY, TREE) or isinstance(reader, OpenType):
        usual: Event = Tree("") if reader is TREE else Every()
        names = type(usual).__struct_fields__
        shape = [values.get(name, getattr(usual, name)) for name in names]
    try:
        body = msgspec.msgpack.encode([shape])
    except (OverflowError, RecursionError, UnicodeEncodeError):
        return
    events: Sequence[Any] = []
    if at_once:
        try:
            events = reader.decode(body)
        except (msgspec.MsgspecError, EventError, RecursionError):
            return
    else:
        events, _ = reader.decode_each(raws_in(body))
    for event in events:
        if event is not None:
            saves(event)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [2**64], {"a": {"b": 2**64}}])
@pytest.mark.parametrize("kind", [EVERY, GENERIC, OpenType(EVERY.declaration)])
def test_integers_beyond_64_bits_are_refused(kind: TypeReader, value: Any) -> None:
    raw = json_of({"anything": value})
    events, ((_, why),) = kind.decode_each([msgspec.Raw(raw)], json=True)
    assert events == [None]
    assert "it holds a value that cannot be saved: " in why
    assert raw.decode() in why


def test_a_time_beyond_the_first_year_is_refused_and_the_others_are_not() -> None:
    rows = [["0001-01-01T00:00:00+14:00"], ["0001-01-01T00:00:00Z"]]

    class At(Event):
        when: datetime.datetime

    kind = EventType(At)
    with pytest.raises(EventError, match="it holds a time that cannot be saved"):
        kind.decode(msgspec.msgpack.encode(rows))
    events, ((index, _),) = kind.decode_each(raws_in(msgspec.msgpack.encode(rows)))
    assert (events[0], index) == (None, 0)
    assert events[1] is not None


@pytest.mark.parametrize("decode", [GENERIC.decode, OpenType(EVERY.declaration).decode])
def test_what_is_nested_to_the_interpreter_s_limit_is_refused(
    decode: Callable[[bytes], list[Any]],
) -> None:
    def body(depth: int) -> bytes:
        deep = b"\x91" * depth + b"\xc0"
        row = b"\x81\xa1a" if decode == GENERIC.decode else b"\x91"
        return b"\x91" + row + deep

    assert len(decode(body(500))) == 1
    with pytest.raises(RecursionError):
        decode(body(930))
