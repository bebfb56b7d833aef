"""Where a reader of a log begins: the header ``start`` of its hello, typed. Pure.

Code that handles starts matches their classes, and ends with ``assert_never``: a kind that it
leaves out is an error of types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, assert_never

from s4node.errors import StartpointError
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Oldest, Specific, Startpoint, Timestamp, Upcoming


class Positions(NamedTuple):
    """The numbers of the hello's positions."""


Start: TypeAlias = Oldest | Upcoming | Timestamp | Positions


def start_of(wanted: Startpoint | Mapping[int, int]) -> Start:
    match wanted:
        case Oldest() | Upcoming() | Timestamp():
            return wanted
        case Specific() | Mapping():
            return Positions()
    assert_never(wanted)


def write_start(start: Start) -> str | int:
    match start:
        case Oldest():
            return wire.OLDEST
        case Upcoming():
            return wire.UPCOMING
        case Timestamp(millis):
            return millis
        case Positions():
            return wire.POSITIONS
    assert_never(start)


def read_start(headers: Mapping[str, Any]) -> Start:
    """The start in the headers of a hello; raises StartpointError if it is not one."""
    value = headers.get(wire.START, wire.UPCOMING)
    if type(value) is int:
        return Timestamp(value)
    for start in (Oldest(), Upcoming(), Positions()):
        if value == write_start(start):
            return start
    raise StartpointError(
        f"{value!r} is not a start; give {wire.OLDEST!r}, {wire.UPCOMING!r}, {wire.POSITIONS!r}, "
        f"or milliseconds since 1970"
    )
