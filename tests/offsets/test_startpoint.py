"""Where reading begins: what is no such place is told where it is given."""

from __future__ import annotations

from typing import Any

import pytest

from s4node import Client
from s4node.errors import StartpointError
from s4node.offsets.startpoint import Oldest, Specific, Timestamp, startpoint_of


@pytest.mark.parametrize("make", [Timestamp, Specific, startpoint_of])
@pytest.mark.parametrize("value", ["x", "5", 5.5, True, None])
def test_a_startpoint_needs_a_number(make: Any, value: Any) -> None:
    with pytest.raises(StartpointError, match=r"give an (int|offset)"):
        make(value)


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
