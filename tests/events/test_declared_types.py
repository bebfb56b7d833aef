"""JSON objects are checked by a declaration as their class would, as far as a declaration says."""

from __future__ import annotations

import enum
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from s4node import Event
from s4node.events.declared_types import checks_of, key_of_texts
from s4node.events.keys import Partitioner
from s4node.events.routing import KeyRule, Router
from s4node.events.schema import EventType


class Color(enum.Enum):
    RED = "red"
    NONE = "none"


class Place(Event):
    x: int
    y: int = 2


class Node(Event):
    value: int
    next: Node | None = None


class Everything(Event):
    user: str
    number: int = 0
    rate: float = 0.0
    flag: bool = False
    data: bytes = b""
    many: list[int] | None = None
    rates: dict[str, float] | None = None
    numbers: dict[int, str] | None = None
    pair: tuple[int, str] = (1, "a")
    marks: set[str] | None = None
    color: Color = Color.RED
    choice: Literal["a", 3] = "a"
    at: datetime | None = None
    day: date | None = None
    span: timedelta | None = None
    price: Decimal | None = None
    key: UUID | None = None
    place: Place | None = None
    node: Node | None = None
    anything: Any = None


DECLARED = EventType(Everything).declaration
TEXT = st.text(st.characters(codec="utf-8"))
INT = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.builds(
        Everything,
        user=TEXT,
        number=INT,
        rate=st.floats(allow_nan=False, allow_infinity=False),
        flag=st.booleans(),
        data=st.binary(),
        many=st.lists(INT),
        rates=st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False)),
        numbers=st.dictionaries(INT, TEXT),
        pair=st.tuples(INT, TEXT),
        marks=st.sets(TEXT),
        color=st.sampled_from(Color),
        choice=st.sampled_from(["a", 3]),
        at=st.none() | st.datetimes(),
        day=st.none() | st.dates(),
        span=st.none() | st.timedeltas(),
        price=st.none() | st.decimals(allow_nan=False, allow_infinity=False),
        key=st.none() | st.uuids(),
        anything=st.none() | INT | TEXT | st.lists(INT),
    )
)
def test_what_the_class_takes_passes(event: Everything) -> None:
    text = json.encode({name: getattr(event, name) for name in event.__struct_fields__})
    EventType(Everything).decode_json(b"[" + text + b"]")
    assert checks_of(DECLARED).refusals([text]) == []


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b'"joe"',
        b'{"user": 1}',
        b'{"user": null}',
        b'{"user": "a", "other": 1}',
        b'{"user": "a", "number": 1.5}',
        b'{"user": "a", "number": 9223372036854775808}',
        b'{"user": "a", "many": [1, "2"]}',
        b'{"user": "a", "rates": {"b": "c"}}',
        b'{"user": "a", "pair": [1]}',
        b'{"user": "a", "color": "blue"}',
        b'{"user": "a", "choice": 4}',
        b'{"user": "a", "at": "soon"}',
        b'{"user": "a", "place": {"x": "1"}}',
    ],
)
def test_what_the_declaration_excludes_is_refused_with_its_place(text: bytes) -> None:
    good = b'{"user": "joe"}'
    (refusal,) = checks_of(DECLARED).refusals([good, text, good])
    assert refusal[0] == 1
    assert refusal[1]


@given(st.lists(st.tuples(TEXT, INT)))
def test_a_text_goes_to_the_partition_of_its_event(keys: list[tuple[str, int]]) -> None:
    class Trip(Event):
        user: str
        number: int

    events = [Trip(*key) for key in keys]
    texts = [json.encode({"x": 1, "user": user, "number": number}) for user, number in keys]
    rule = key_of_texts(EventType(Trip).declaration, "user+number")
    assert rule is not None
    partitioner = Partitioner(7)
    expected = Router(KeyRule(["user", "number"]), partitioner).places(events)
    assert Router(rule, partitioner).places(texts) == expected


@pytest.mark.parametrize("named", ["", "@finder", "?", "number", "user+number", "nothing", "rate"])
def test_a_key_that_a_text_may_lack_or_that_is_none_is_not_looked_for(named: str) -> None:
    assert key_of_texts(DECLARED, named) is None
