"""The events from Spark, and the figures that both sides compute."""

from __future__ import annotations

from typing import NamedTuple

from s4node import Event

KINDS = ("carrier", "route", "aircraft")
"""The kinds of keys with figures: an airline's code, a route such as "JFK-LAX", a tail number."""

LATE_MINUTES = 15
"""A flight is late if it arrives more than this many minutes after its time."""


class Row(Event):
    """One flight. Delays are whole minutes, negative when early.

    A flight that was cancelled has neither delay; one that was diverted departed, and has a
    departure delay only. ``tailnum`` is "unknown" where the data has none; ``time`` is the
    departure by schedule in milliseconds since 1970, UTC.
    """

    carrier: str
    tailnum: str
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None
    time: int


class Flight(Event):
    """One flight as the adapter sends it on: a Row with its route, such as "JFK-LAX"."""

    carrier: str
    route: str
    tailnum: str
    dep_delay: int | None
    arr_delay: int | None
    time: int


class Report(Event):
    """The figures of one key so far; see Figures for the rest."""

    kind: str
    key: str
    flights: int
    cancelled: int
    delay_count: int
    delay_sum: int
    delay_max: int | None
    delay_min: int | None
    late: int


class Figures(NamedTuple):
    """The figures of one key; whole numbers only, so that two computations agree exactly.

    The delays are arrival delays in minutes. ``delay_max`` and ``delay_min`` are None while
    ``delay_count`` is 0.
    """

    flights: int = 0
    cancelled: int = 0
    delay_count: int = 0
    delay_sum: int = 0
    delay_max: int | None = None
    delay_min: int | None = None
    late: int = 0
