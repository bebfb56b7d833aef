"""The kinds of windows, and which of them an instant belongs to. Pure.

Rules
- Times are seconds since 1970. A window holds the instants ``start <= t < end``.
- Windows of a length begin at multiples of it since 1970, shifted by an offset; windows of a day at
  midnight in a zone, so they have 23 to 25 hours.
- The edges of windows are numbered. An edge is derived from its number alone, and rounded once, so
  the end of a window is the very start of the next one, also with lengths like 0.1 s.
- Windows that overlap are made of panes, the longest windows of which each is made whole.
- A session is one event's gap at first, and grows with each event; a count has no time at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date as calendar_date
from datetime import datetime, timedelta
from datetime import time as clock_time
from fractions import Fraction
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from s4node.errors import GraphError

LONGEST = 366 * 86_400.0
"""Seconds of the longest window, gap and grace: state without an end is a mistake."""

_MOMENT = 0.001
_PARTS = 64
_PANES = 10_000


class Window(NamedTuple):
    """The window of an instance: ``start <= time < end``.

    ``round`` counts the calls of ``on_window`` for it before this one. A count goes from 0 to its
    number of events, and ``round`` is the number of those that have come.
    """

    start: float
    end: float
    round: int = 0

    @property
    def final(self) -> bool:
        """True at the end of the window, and within its grace."""
        return True

    @property
    def last(self) -> float:
        """The last millisecond in it: the time for its result, which then falls into it."""
        return self.end - _MOMENT


class EarlyWindow(Window):
    """A window that has not ended."""

    __slots__ = ()

    @property
    def final(self) -> bool:
        """False: there are further results."""
        return False


Span = tuple[float, float]
"""The start and the end of a window."""


class Edges(NamedTuple):
    """Where windows, or panes, begin and end: edge ``n`` is at ``(n * size + offset) / parts``."""

    size: int
    offset: int
    parts: int

    def at(self, number: int) -> float:
        return (number * self.size + self.offset) / self.parts

    def nearest(self, time: float) -> int:
        return round((time * self.parts - self.offset) / self.size)

    def span(self, t: float) -> Span:
        number = self.nearest(t)
        if t < self.at(number):
            number -= 1
        return self.at(number), self.at(number + 1)


class WindowKind(NamedTuple):
    """One kind of windows; ``text`` describes it, to be saved beside the state.

    ``span(t)`` is the window, or the pane, of an instant, between two ``edges`` unless windows are
    days. Overlapping windows have so many ``panes``, and one ends every ``every`` panes. ``gap`` is
    of sessions, ``events`` of counts.
    """

    text: str
    span: Callable[[float], Span] | None = None
    edges: Edges | None = None
    panes: int = 1
    every: int = 0
    gap: float = 0.0
    events: int = 0

    @property
    def whole(self) -> float:
        """The length of windows, or panes, whose number is a time divided by it; else 0.

        So it is for those that begin at multiples of whole seconds, or of a 64th of one.
        """
        edges = self.edges
        if edges is None or edges.offset or _PARTS % edges.parts:  # so that no number is rounded
            return 0.0
        return edges.size / edges.parts

    @property
    def is_hopping(self) -> bool:
        """True if windows overlap."""
        return self.every > 0

    def start_of(self, end: float) -> float:
        """The start of the overlapping window that ends then."""
        assert self.edges is not None
        return self.edges.at(self.edges.nearest(end) - self.panes)

    def ends_of(self, pane: Span) -> list[float]:
        """The ends of the windows that hold a pane, the first one first."""
        if not self.every:
            return [pane[1]]
        assert self.edges is not None
        number = self.edges.nearest(pane[0])
        last = number + self.panes
        first = number + 1 + (self.panes - 1 - number) % self.every
        return [self.edges.at(end) for end in range(first, last + 1, self.every)]


def tumbling(seconds: float, *, offset: float = 0) -> WindowKind:
    """Windows of ``seconds``, one after the other."""
    size = _length("tumbling", "seconds", seconds)
    shift = _shift("tumbling", offset)
    edges = _edges(_exactly(size), shift)
    return WindowKind(_described("tumbling", size, offset=shift), edges.span, edges)


def hopping(seconds: float, *, every: float, offset: float = 0) -> WindowKind:
    """Windows of ``seconds`` that begin ``every`` so many seconds, and so overlap.

    Each event is counted once, in a pane; the PE's ``merge`` makes a window of its panes.
    """
    size, step = _length("hopping", "seconds", seconds), _length("hopping", "every", every)
    shift = _shift("hopping", offset)
    if step > size:
        raise GraphError(f"hopping({size:g}, every={step:g}) leaves gaps; give every <= seconds")
    whole, part = _exactly(size), _exactly(step)
    parts = math.lcm(whole.denominator, part.denominator)
    pane = Fraction(math.gcd(int(whole * parts), int(part * parts)), parts)
    panes = int(whole / pane)
    if panes > _PANES:
        raise GraphError(
            f"hopping({size:g}, every={step:g}) has {panes} panes, more than {_PANES}; "
            f"let seconds be a multiple of every"
        )
    edges = _edges(pane, shift)
    text = _described("hopping", size, every=step, offset=shift)
    return WindowKind(text, edges.span, edges, panes, int(part / pane))


def session(*, gap: float) -> WindowKind:
    """A window of the events of a key that are less than ``gap`` seconds apart."""
    return WindowKind(_described("session", gap=_length("session", "gap", gap)), gap=float(gap))


def count(events: int) -> WindowKind:
    """A window of each ``events`` events of a key, in the order in which they come."""
    if type(events) is not int or events < 1:
        raise GraphError(f"count({events!r}): give a whole number from 1 on")
    return WindowKind(f"count({events})", events=events)


def day(zone: str = "UTC") -> WindowKind:
    """A window of each day in a time zone, from midnight to midnight."""
    try:
        known = ZoneInfo(zone)
    except (ValueError, TypeError, OSError, LookupError) as error:
        raise GraphError(
            f"day({zone!r}) is not a time zone ({error}); give a name such as Europe/Berlin"
        ) from error

    def span(t: float) -> Span:
        date = datetime.fromtimestamp(t, known).date()
        start, end = midnight(date), midnight(date + timedelta(days=1))
        if t < end:
            return start, end
        # the clock has gone back over this midnight: the hour that comes again is of the next day
        return end, midnight(date + timedelta(days=2))

    def midnight(date: calendar_date) -> float:
        return datetime.combine(date, clock_time(), known).timestamp()

    return WindowKind(f"day({zone})", span)


def _exactly(seconds: float) -> Fraction:
    """The number that is meant: 0.1 is a tenth."""
    return Fraction(repr(seconds))


def _edges(size: Fraction, offset: float) -> Edges:
    shift = _exactly(offset)
    parts = math.lcm(size.denominator, shift.denominator)
    return Edges(int(size * parts), int(shift * parts), parts)


def _length(kind: str, name: str, seconds: Any) -> float:
    if not _is_number(seconds) or not _MOMENT <= seconds <= LONGEST:
        raise GraphError(
            f"{kind}({name}={seconds!r}): give seconds from {_MOMENT:g} to {LONGEST:.0f}, a year"
        )
    return float(seconds)


def _shift(kind: str, offset: Any) -> float:
    if not _is_number(offset) or not -LONGEST <= offset <= LONGEST:
        raise GraphError(f"{kind}(offset={offset!r}): give seconds, at most a year")
    return float(offset)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _described(kind: str, *sizes: float, **named: float) -> str:
    given = [f"{size:.15g}" for size in sizes]
    given += [f"{name}={value:.15g}" for name, value in named.items() if value]
    return f"{kind}({', '.join(given)})"
