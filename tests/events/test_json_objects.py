"""JSON objects as events: a batch reads and refuses what its events do when they come alone."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s4node.events.event import Event, GenericEvent
from s4node.events.json_objects import are_objects
from s4node.events.schema import EventType, OpenType, raws_in


class Plain(Event):
    user: str
    n: int = 0
    least: int | None = None
    part: float = 0.0


class Inner(Event):
    n: int


class Deep(Event, kw_only=True):
    user: str
    many: tuple[int, ...] = ()
    any: Any = None
    inner: Inner | None = None
    at: datetime | None = None
    either: int | str = 0


class Strict(Event, rename="camel"):
    first_name: str
    n: int = 0

    def __post_init__(self) -> None:
        if self.n == 13:
            raise LookupError("unlucky")


BIG = 1 << 64
KINDS: list[EventType | OpenType] = [
    EventType(Plain),
    EventType(Deep),
    EventType(Strict),
    EventType(GenericEvent),
    OpenType(EventType(Plain).declaration),
]
NUMBERS = st.sampled_from(
    [0, 13, -1, (1 << 63) - 1, 1 << 63, BIG - 1, BIG, -(1 << 63), -(1 << 63) - 1, 0.5, 1e300]
)
VALUES = st.one_of(
    NUMBERS,
    st.none(),
    st.text(max_size=3),
    st.lists(NUMBERS, max_size=2),
    st.sampled_from(["0001-01-01T00:00:00+05:00", "2024-05-05T01:02:03Z", {"x": [BIG]}, {"n": 1}]),
)
NAMES = st.sampled_from(
    ["n", "least", "part", "many", "any", "inner", "at", "either", "firstName", "unknown"]
)
OBJECTS = st.builds(
    lambda values, user: {**values, **user},
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.sampled_from([{"user": "ann"}, {"firstName": "ann"}, {}]),
)


def together(kind: EventType | OpenType, body: bytes) -> list[Any] | None:
    try:
        return list(kind.decode_json(body))
    except Exception:  # an event class that checks itself may raise anything
        return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{type(kind).__name__}-{kind.name}")
@given(objects=st.lists(OBJECTS, min_size=1, max_size=3))
@example(objects=[{"user": "ann", "n": BIG}])
@example(objects=[{"user": "ann", "n": 7, "least": -(1 << 63) - 1}])
@example(objects=[{"user": "ann", "many": [1, BIG]}, {"user": "ann"}])
@example(objects=[{"user": "ann", "at": "0001-01-01T00:00:00+05:00"}])
@example(objects=[{"firstName": "ann", "n": 13}])
def test_a_batch_decodes_only_where_each_event_does_and_to_the_same(
    kind: EventType | OpenType, objects: list[dict[str, Any]]
) -> None:
    body = b"[" + b",".join(map(encoded, objects)) + b"]"
    alone, refused = kind.decode_each(raws_in(body, json=True), json=True)
    found = together(kind, body)
    if refused:
        assert found is None
    elif found is None:  # a number between 63 and 64 bits, which is worth no check of its own
        assert any(
            1 << 63 <= value < BIG
            for one in objects
            for value in one.values()
            if isinstance(value, int)
        )
    else:
        assert found == alone
        assert list(map(type, found)) == list(map(type, alone))


def encoded(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()  # msgspec writes no such integers


def test_a_batch_that_nests_to_the_limit_does_not_decode() -> None:
    body = b'[{"user":"ann"},{"user":"ann","any":' + b"[" * 5000 + b"]" * 5000 + b"}]"
    assert together(EventType(Deep), body) is None
    assert together(EventType(GenericEvent), body) is None


@pytest.mark.parametrize(
    "lines",
    [
        [b"{}"],
        [b'{"a":1}', b'{"b":{"c":[{}]}}'],
        [b'{"a":"}\\n{"}', '{"a":"é"}'.encode()],
    ],
)
def test_lines_that_are_objects_are_recognised_at_once(lines: list[bytes]) -> None:
    assert are_objects(b"\n".join(lines), len(lines))


@pytest.mark.parametrize(
    "lines",
    [
        [b""],
        [b"[1]"],
        [b'{"a":1}', b""],
        [b'{"a":1}', b" ", b'{"a":1}'],
        [b'{"a":1}{"b":2}', b'{"c":', b"1}"],  # three objects, and no line of the first two is one
        [b'{"a":1}{"b":2}', b'{"c":{}', b"}"],
        [b'{"a":[{}', b"{}]}", b'{"b":1}{"c":2}'],
        [b'{"a":{}', b'{}}{"b":1}', b"{}"],
        [b'{"a":1},{"b":2}'],
        [b'{"a":tru}'],
        [b'{"\xff":1}'],
        [b"\xef\xbb\xbf{}"],
    ],
)
def test_lines_of_which_one_is_no_object_are_looked_at_one_by_one(lines: list[bytes]) -> None:
    assert not are_objects(b"\n".join(lines), len(lines))


PIECES = st.sampled_from(
    [b"{", b"}", b"{}", b'{"a":', b'"a":1', b",", b"[", b"]", b"\n", b" ", b'"', b"1", b"\r", b"\\"]
)


@given(st.lists(PIECES, max_size=14).map(b"".join))
def test_no_text_passes_of_which_a_line_is_no_object(text: bytes) -> None:
    lines = text.split(b"\n")
    if are_objects(text, len(lines)):
        for line in lines:
            assert isinstance(msgspec.json.decode(line), dict)
