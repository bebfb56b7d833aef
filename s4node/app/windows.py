"""The kinds of windows, and which of them an instant belongs to. Pure.

Rules
- Times are seconds since 1970. A window holds the instants ``start <= t < end``.
- Windows of a length begin at multiples of it since 1970, shifted by an offset; windows of a day at
  midnight in a zone, so they have 23 to 25 hours.
- Windows that overlap are made of panes, the longest windows of which each is made whole.
- A session is one event's gap at first, and grows with each event; a count has no time at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from datetime import time as clock_time
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from s4node.errors import GraphError

LONGEST = 366 * 86_400.0
"""Seconds of the longest window, gap and grace: state without an end is a mistake."""

_MOMENT = 0.001
_PARTS = 64
_PANES = 10_000


class Window(NamedTuple):
    """The window of an instance: ``start <= time < end``; for a count its number, from 0.

    ``round`` counts the calls of ``on_window`` for it before this one.
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


class WindowKind(NamedTuple):
    """One kind of windows; ``text`` says it in words, to be saved beside the state.

    ``span(t)`` is the window, or the pane, of an instant. Overlapping windows are ``length`` long
    and end every ``every`` seconds. ``gap`` is of sessions, ``events`` of counts.
    """

    text: str
    span: Callable[[float], Span] | None = None
    length: float = 0.0
    every: float = 0.0
    offset: float = 0.0
    gap: float = 0.0
    events: int = 0

    @property
    def whole(self) -> float:
        """The length of windows, or panes, whose number is a time divided by it; else 0.

        So it is for those that begin at multiples of whole seconds, or of a 64th of one.
        """
        if not self.length or self.text.startswith("day") or self.offset:
            return 0.0
        pane = math.gcd(round(self.length * 1000), round(self.every * 1000)) / 1000
        size = pane if self.every else self.length
        exact = size * _PARTS == int(size * _PARTS)  # so that no number is rounded
        return size if exact else 0.0

    @property
    def is_hopping(self) -> bool:
        """True if windows overlap."""
        return self.every > 0

    def ends_of(self, pane: Span) -> list[float]:
        """The ends of the windows that hold a pane, the first one first."""
        if not self.every:
            return [pane[1]]
        first = math.ceil((pane[1] - self.offset) / self.every) * self.every + self.offset
        return [
            first + step * self.every
            for step in range(int(self.length // self.every) + 1)
            if first + step * self.every - self.length <= pane[0]
        ]


def tumbling(seconds: float, *, offset: float = 0) -> WindowKind:
    """Windows of ``seconds``, one after the other."""
    size = _length("tumbling", "seconds", seconds)
    shift = _shift("tumbling", offset)
    words = _words("tumbling", size, offset=shift)
    return WindowKind(words, _aligned(size, shift), size, offset=shift)


def hopping(seconds: float, *, every: float, offset: float = 0) -> WindowKind:
    """Windows of ``seconds`` that begin ``every`` so many seconds, and so overlap.

    Each event is counted once, in a pane; the PE's ``merge`` makes a window of its panes.
    """
    size, step = _length("hopping", "seconds", seconds), _length("hopping", "every", every)
    shift = _shift("hopping", offset)
    if step > size:
        raise GraphError(f"hopping({size:g}, every={step:g}) leaves gaps; give every <= seconds")
    pane = math.gcd(round(size * 1000), round(step * 1000)) / 1000
    if size / pane > _PANES:
        raise GraphError(
            f"hopping({size:g}, every={step:g}) has {size / pane:.0f} panes, more than {_PANES}; "
            f"let seconds be a multiple of every"
        )
    words = _words("hopping", size, every=step, offset=shift)
    return WindowKind(words, _aligned(pane, shift), size, step, shift)


def session(*, gap: float) -> WindowKind:
    """A window of the events of a key that are less than ``gap`` seconds apart."""
    return WindowKind(_words("session", gap=_length("session", "gap", gap)), gap=float(gap))


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
        midnights = (
            datetime.combine(each, clock_time(), known).timestamp()
            for each in (date, date + timedelta(days=1))
        )
        start, end = midnights
        return start, end

    return WindowKind(f"day({zone})", span, 86_400.0)


def _aligned(size: float, offset: float) -> Callable[[float], Span]:
    def span(t: float) -> Span:
        start = (t - offset) // size * size + offset
        if t >= start + size:  # by a rounding error
            start += size
        elif t < start:
            start -= size
        return start, start + size

    return span


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


def _words(kind: str, *sizes: float, **named: float) -> str:
    given = [f"{size:g}" for size in sizes]
    given += [f"{name}={value:g}" for name, value in named.items() if value]
    return f"{kind}({', '.join(given)})"
