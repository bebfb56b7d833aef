"""Where reading begins: what is no such place is told where it is given."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from s4node import Client
from s4node.errors import StartpointError
from s4node.net.wire import frame as wire
from s4node.net.wire.start import Positions, Start, read_start, write_start
from s4node.offsets.startpoint import (
    LARGEST,
    Oldest,
    Specific,
    Startpoint,
    Timestamp,
    Upcoming,
    describe,
    parse,
    startpoint_of,
)


@pytest.mark.parametrize("make", [Timestamp, Specific, startpoint_of])
@pytest.mark.parametrize("value", ["x", "5", 5.5, True, None])
def test_a_startpoint_needs_a_number(make: Any, value: Any) -> None:
    with pytest.raises(StartpointError, match=r"give an (int|offset)"):
        make(value)


def test_a_startpoint_of_every_kind_is_read_as_it_is_written() -> None:
    kinds = [Oldest(), Upcoming(), Timestamp(0), Timestamp(-5), Specific(0), Specific(LARGEST)]
    assert {type(each) for each in kinds} == set(get_args(Startpoint))
    assert [parse(describe(each)) for each in kinds] == kinds


def test_a_startpoint_may_be_written_in_short() -> None:
    assert parse(" 42 ") == parse(f"offset {'0' * 5000}42") == Specific(42)
    assert parse("ms:1000") == parse("timestamp 1970-01-01T00:00:01Z") == Timestamp(1000)


@pytest.mark.parametrize(
    "text",
    [
        *("", "yesterday", "oldest 5", "offset", "offset x", "offset -1", "-1", "\u0661", "4 2"),
        *("ms:", "ms:now", "timestamp", "timestamp 2026-01-31T08:00:00", "newest"),
    ],
)
def test_another_text_is_no_startpoint(text: str) -> None:
    with pytest.raises(StartpointError, match="is not a start; write oldest, upcoming, an offset"):
        parse(text)


def test_an_offset_that_is_too_large_is_refused() -> None:
    for text in ("9" * 5000, f"offset {LARGEST + 1}", f"ms:{LARGEST + 1}"):
        with pytest.raises(StartpointError, match=f"is too large; the largest is {LARGEST}"):
            parse(text)


def test_an_offset_is_a_startpoint_too() -> None:
    assert startpoint_of(5) == Specific(5)
    assert startpoint_of(Oldest()) == Oldest()


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ({}, "names no partition"),
        ({"0": 5}, "partition '0' is a str; give an int"),
        ({0: "x"}, "partition 0: offset 'x' is a str; give an int"),
        ({0: 5.5}, "partition 0: offset 5.5 is a float; give an int"),
        ({0: -1}, "partition 0: offset -1 is out of range: 0"),
        ({-1: 5}, "partition -1 is out of range: 0"),
        ("oldest", r"'oldest' \(str\) is not a place to begin at"),
        (Oldest, "Oldest'> is not a place to begin at"),
        (True, "offset True is a bool"),
    ],
)
def test_a_reader_that_begins_nowhere_is_refused_at_once(start: Any, told: str) -> None:
    client = Client("tcp://127.0.0.1:1")
    with pytest.raises(StartpointError, match=told):
        client.subscribe("clicks", start=start)


def test_every_start_is_read_as_it_was_written() -> None:
    starts = [Oldest(), Upcoming(), Timestamp(5), Positions()]
    assert {type(start) for start in starts} == set(get_args(Start))
    for start in starts:
        assert read_start({wire.START: write_start(start)}) == start


def test_a_reader_that_says_no_start_begins_with_the_upcoming_event() -> None:
    assert read_start({}) == Upcoming()


@pytest.mark.parametrize("value", [[1], True, None, "newest", 1 << 63])
def test_another_value_is_not_a_start(value: object) -> None:
    with pytest.raises(StartpointError):
        read_start({wire.START: value})
