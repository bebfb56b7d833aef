"""The time of an event: how it is found, and which values are refused. Pure.

Rules
- The field of the event that its stream names has it: seconds since 1970 as a float, milliseconds
  as an int, or a datetime with a time zone. Inside, times are seconds.
- An event whose value is not a time, or is too far in the future, is refused. So is a whole number
  so small that it must be seconds.
- An event of a stream that names no field has the time at which its frame was made. That is one
  time for all events of a batch.
- Fields whose declared type says what they hold are read by one expression; others are checked one
  by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from s4node.errors import EventTimeError
from s4node.events.event import EventBatch, created_ms
from s4node.events.routing import compiled, is_generic
from s4node.events.schema import EventType

MOST_AHEAD = 3600.0
"""Seconds that an event may be ahead of the clock."""

SECONDS_AT_MOST = 100_000_000_000
"""The least whole number that is taken for milliseconds: in 1973."""

_SECONDS = "are these milliseconds in a field of seconds, or "
_UNITS = {
    "": _SECONDS,
    "float": _SECONDS,
    "int": "are these microseconds in a field of milliseconds, or ",
}
"""Possible mistakes in a time that is too far ahead, by the type of the field."""


def far_ahead(time: float, now: float) -> str:
    """The reason why ``time`` is too far ahead of ``now``, in Unix time; empty if it is not."""
    if time <= now + MOST_AHEAD:
        return ""
    return f"it is {time - now:.0f} s ahead of the clock here, and at most {MOST_AHEAD:g} s may be"


class TimeRule:
    """The rule for the time of a stream's events: the field ``name`` of all their types.

    ``by_batch``: all events of a batch have the same time.
    """

    by_batch = False
    _unit = ""

    def __init__(self, stream: str, name: str, types: Sequence[EventType]) -> None:
        self.name = name
        self._stream = stream
        kinds = {kind.kind_of(name) for kind in types}
        self.generic = is_generic([kind.cls for kind in types])
        kind = kinds.pop() if len(kinds) == 1 else ""
        read = f"{{e}}._attributes.get({name!r})" if self.generic else f"{{e}}.{name}"
        self._unit = _UNITS.get(kind, "")
        self.bindings: dict[str, Any] = {"_seconds": self.seconds}
        if kind == "float":
            self._expression = read
        else:
            self._expression = f"_seconds({read})"
        if kind == "float":
            self.find: Callable[[Any], float] = attrgetter(name)
        else:
            lines = ["def time_of(e):", f"    return {self.expression('e')}"]
            self.find = compiled("time_of", lines, self.bindings)

    def expression(self, var: str) -> str:
        """Source text of the time of the event in the variable ``var``."""
        return self._expression.replace("{e}", var)

    def seconds(self, value: Any) -> float:
        """A value of the field as seconds; raises EventTimeError."""
        kind = value.__class__
        if kind is float:
            return value  # type: ignore[no-any-return]
        if kind is int:
            if value < SECONDS_AT_MOST:
                raise self.refusal(value, "a whole number is milliseconds, and this one is before "
                                   "1973; give seconds as a float")  # fmt: skip
            return value / 1000  # type: ignore[no-any-return]
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise self.refusal(value, "a datetime needs a time zone")
            return value.timestamp()
        raise self.refusal(value, "give seconds as a float, ms as an int, or a datetime")

    def check(self, time: Any, now: float) -> float:
        """A time that was found, if it is one; raises EventTimeError. ``now`` is Unix time."""
        try:
            good = 0 < time <= now + MOST_AHEAD
        except TypeError:
            return self.check(self.seconds(time), now)
        if good:
            return time  # type: ignore[no-any-return]
        if time > now:
            raise self.refusal(
                time,
                f"it is more than {MOST_AHEAD:g} s ahead of the clock here; {self._unit}does the "
                f"sender's clock go wrong?",
            )
        raise self.refusal(time, "a time is above 0")

    def refusal(self, value: Any, why: str) -> EventTimeError:
        return EventTimeError(
            f"stream {self._stream!r}: {self.name}={value!r} is not a valid time: {why}"
        )

    def latest_of(self, _batch: EventBatch, events: Sequence[Any], now: float) -> float | None:
        return self.latest(events, now)

    def latest(self, events: Iterable[Any], now: float) -> float | None:
        """The latest time of these events, without those that are refused; None if there is none.

        One call in C for a batch of good times.
        """
        events = list(events) if not isinstance(events, list) else events
        try:
            found = max(map(self.find, events), default=None)
            if found is None or 0 < found <= now + MOST_AHEAD:
                return found
        except (EventTimeError, TypeError):
            pass
        latest = -math.inf
        for event in events:
            try:
                latest = max(latest, self.check(self.find(event), now))
            except EventTimeError:
                continue
        return latest if latest > 0 else None


class SendingRule(TimeRule):
    """How the events of a stream have a time that names no field: when they were sent."""

    by_batch = True

    def __init__(self, stream: str) -> None:
        self.name = "created_ms()"
        self._stream = stream
        self.bindings = {"_created_ms": created_ms}
        self._expression = "_created_ms() / 1000"

    def latest_of(self, batch: EventBatch, events: Sequence[Any], now: float) -> float | None:
        """The time of these events; None if it is refused."""
        time = batch.created_ms / 1000
        return time if events and 0 < time <= now + MOST_AHEAD else None
