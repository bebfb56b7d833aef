"""Startpoints: where in an input's partition reading begins. Pure.

Rules
- An offset is a whole number, 0 or more; each event of a partition has its own, in order. A
  position is the offset of the event to be read next, which may not exist yet.
- The number or time has to fit into frames and databases. One that does not is an error where the
  startpoint is made or decoded, not later at a start of the job.
- A startpoint is written in one way, wherever it is text: ``parse`` reads what ``describe`` writes.
- A startpoint is a request; the input turns it into an offset, or says why it cannot. Code that
  handles startpoints matches their classes, and ends with ``assert_never``: a kind that it leaves
  out is an error of types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, assert_never

import msgspec

from s4node.errors import StartpointError

LARGEST = (1 << 62) - 1
"""The largest offset or time: that of the wire."""

_DIGITS = len(str(LARGEST))

Number = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


def _check(what: str, number: int, least: int) -> None:
    if type(number) is not int:
        raise StartpointError(f"{what} {number!r} is a {type(number).__name__}; give an int")
    if not least <= number <= LARGEST:
        raise StartpointError(f"{what} {number} is out of range: {least} to {LARGEST}")


class Oldest(msgspec.Struct, frozen=True, tag="oldest", tag_field="kind"):
    """The first event that still exists."""


class Upcoming(msgspec.Struct, frozen=True, tag="upcoming", tag_field="kind"):
    """The next event to be appended."""


class Timestamp(msgspec.Struct, frozen=True, tag="timestamp", tag_field="kind"):
    """The first event appended at or after ``millis`` (Unix time), or else the upcoming one."""

    millis: Number

    def __post_init__(self) -> None:
        _check("timestamp", self.millis, -LARGEST)


class Specific(msgspec.Struct, frozen=True, tag="specific", tag_field="kind"):
    """The event at this offset."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]

    def __post_init__(self) -> None:
        _check("offset", self.offset, 0)


Startpoint = Oldest | Upcoming | Timestamp | Specific


def startpoint_of(start: object) -> Startpoint:
    """The startpoint of an offset or a startpoint; raises StartpointError for anything else."""
    if isinstance(start, int):
        return Specific(start)
    if not isinstance(start, Startpoint):
        shown = repr(start) if isinstance(start, type) else f"{start!r} ({type(start).__name__})"
        raise StartpointError(
            f"{shown} is not a place to begin at; give an offset (an int), Oldest(), Upcoming(), "
            f"Timestamp(millis) or Specific(offset)"
        )
    return start


def check_places(start: Mapping[int, int]) -> None:
    """Raise StartpointError unless ``start`` is a dict of offsets by partition, not empty."""
    if not start:
        raise StartpointError("a dict of offsets by partition names no partition")
    for partition, offset in start.items():
        _check("partition", partition, 0)
        _check(f"partition {partition}: offset", offset, 0)


FORMS = "oldest, upcoming, an offset, timestamp 2026-01-31T08:00:00Z, or ms:MILLISECONDS since 1970"


def parse(text: str) -> Startpoint:
    """The startpoint of a text; raises StartpointError if it is none.

    A text is as ``describe`` writes it. An offset may stand alone, and ``ms:5`` is ``timestamp 5``.
    A time may be ISO 8601 with its zone.
    """
    kind, _, rest = re.sub("^ms:", "timestamp ", text.strip()).partition(" ")
    if not rest and kind != "timestamp":
        kind, rest = (kind, "") if kind in ("oldest", "upcoming") else ("offset", kind)
    match kind:
        case "oldest" if not rest:
            return Oldest()
        case "upcoming" if not rest:
            return Upcoming()
        case "timestamp":
            if (millis := _millis(rest.strip())) is not None:
                return Timestamp(millis)
        case "offset":
            if re.fullmatch("[0-9]+", rest := rest.strip()):
                return Specific(_number(rest))
    raise StartpointError(f"{text!r} is not a start; write {FORMS}")


def _millis(text: str) -> int | None:
    """A time as milliseconds since 1970, None if it is not one that is the same everywhere."""
    if re.fullmatch("-?[0-9]+", text):
        return _number(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else int(moment.timestamp() * 1000)


def _number(text: str) -> int:
    """The number of these digits; Python refuses thousands of them."""
    digits = text.removeprefix("-").lstrip("0") or "0"
    if len(digits) > _DIGITS or int(digits) > LARGEST:
        raise StartpointError(f"{digits} is too large; the largest is {LARGEST}")
    return -int(digits) if text.startswith("-") else int(digits)


def describe(startpoint: Startpoint) -> str:
    """The startpoint as text, such as ``offset 42``."""
    match startpoint:
        case Oldest():
            return "oldest"
        case Upcoming():
            return "upcoming"
        case Timestamp(millis):
            return f"timestamp {millis}"
        case Specific(offset):
            return f"offset {offset}"
    assert_never(startpoint)
