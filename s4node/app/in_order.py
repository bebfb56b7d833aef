"""``order="time"``: a PE that holds a key's events back and hands them on in time order. Pure.

Rules
- A stream with ``order="time"`` leads to this PE only, which puts the events on an inner stream to
  the author's PEs. What it holds back is the state of windows, one for each key and short span. So
  held-back events are rows of each commit; positions and producers' numbers pass them; they take no
  credit and no place in a stage.
- Streams with ``order="time"`` that have a PE in common have one order. Each PE gets the types of
  the streams that lead to it.
- What it holds back for a singleton is in one order for all keys.
- A span is handed on once the watermark has passed it: sorted by time, events of one time by their
  bytes. So the order of a key's events does not depend on the order in which they have come.
- An event that comes after its span was handed on is late. It is handed on at once, out of order,
  and counted.
- A task holds back at most ``most`` events. Beyond that the app stops, whatever ``onError`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype
from s4node.app.stream import Stream, StreamTime, Target
from s4node.errors import GraphError, HeldBackBeyond
from s4node.events.event_time import TimeRule
from s4node.events.routing import KeyRule, is_generic
from s4node.events.schema import EventType

BY_TIME = "-by-time"
"""Ends the name of the inner stream."""

IN_ORDER = "-in-order"
"""Ends the name of the PE."""

_LONGEST, _SHORTEST = 0.25, 2.0**-6
_OF_LATENESS = 8


def span_of(lateness: float) -> float:
    """The seconds of a span: a power of two, about an eighth of the lateness."""
    span = _LONGEST
    while span > _SHORTEST and span * _OF_LATENESS > lateness:
        span /= 2
    return span


class InOrder(ProcessingElement):
    """Holds the events of a key and span back. ``out`` is the inner stream."""

    out: Stream
    time_of: ClassVar[Any]
    kinds: ClassVar[dict[type, EventType]] = {}
    names: ClassVar[dict[str, EventType]] = {}
    most: ClassVar[int] = 1_000_000
    held: list[tuple[float, str, bytes]] = []  # noqa: RUF012 - each instance has its own

    def on_event(self, event: Any) -> None:
        windows: Any = self._home.owner  # type: ignore[attr-defined]
        if held_back(windows) >= self.most:
            self._refuse(windows)
        windows.held += 1
        kind = self.kinds[event.__class__]
        self.held.append((self.time_of(event), kind.name, kind.encode([event])))

    def _refuse(self, windows: Any) -> NoReturn:
        stream = self.out.in_order_of[0]
        raise HeldBackBeyond(
            f"stream {stream!r} with order='time' holds back {self.most} events in this task, "
            f"which is its limit, as the watermark is {windows.watermark:.15g}; see what holds it "
            f"back in s4 status, give the stream a shorter lateness or idle, or raise "
            f"s4.stream.{stream}.heldBack"
        )

    def on_window(self) -> None:
        windows: Any = self._home.owner  # type: ignore[attr-defined]
        if windows.held > 0:
            windows.held -= len(self.held)
        self.held.sort()
        put, names = self.out.put, self.names
        for _, name, raw in self.held:
            put(names[name].decode(raw)[0])


def held_back(windows: Any) -> int:
    """The number of events that an InOrder holds back in its windows; counted once."""
    if windows.held < 0:
        windows.held = sum(len(each.held) for each in windows.all())
    return int(windows.held)


def complete(prototype: Prototype, inner: Stream) -> None:
    """Give the prototype of an InOrder what it needs to know of its inner stream."""
    assert inner.time is not None
    prototype.singleton |= any(target.singleton for target in inner.targets)
    cls: Any = prototype.cls
    cls.kinds = {kind.cls: kind for kind in inner.types}
    cls.names = {kind.name: kind for kind in inner.types}
    cls.time_of = staticmethod(TimeRule(inner.name, inner.time.field, inner.types).find)


def join(inner: Stream, other: Stream, targets: Sequence[Target]) -> None:
    """Have an inner stream carry the events of ``other`` to ``targets``, too, in one order.

    Raises GraphError if they have no common order.
    """
    assert inner.time is not None
    assert other.time is not None
    names = other.in_order_of or (other.name,)
    both = (
        f"streams {inner.in_order_of[0]!r} and {names[0]!r} lead to the same PEs with order='time'"
    )
    if inner.time.field != other.time.field:
        raise GraphError(
            f"{both}, so their time has to be in a field of the same name, not "
            f"{inner.time.field!r} and {other.time.field!r}"
        )
    if (inner.key is None) is not (other.key is None):
        raise GraphError(f"{both}, so both need a key, or neither")
    mine, others = _keys(inner), _keys(other)
    shared = sorted(cls.__name__ for cls in mine.keys() & others.keys())
    if any(mine[cls] != others[cls] for cls in mine.keys() & others.keys()):
        raise GraphError(
            f"{both} and carry {', '.join(shared)} under different keys; give each its types="
        )
    if shared and set(inner.targets) != set(targets):
        raise GraphError(
            f"{both} and carry {', '.join(shared)}, but not to all of the same PEs; have both lead "
            f"to the same PEs, or give each its types="
        )
    takes = {each.name: inner.taken_by(each) for each in inner.targets}
    for each in targets:
        takes[each.name] = takes.get(each.name, frozenset()) | other.taken_by(each)
    if other.key is not None:
        inner.key = KeyByType({**mine, **others})
    inner.targets = tuple(dict.fromkeys((*inner.targets, *targets)))
    inner.take_types_of(other)
    inner.takes = takes
    inner.in_order_of += names


def _keys(stream: Stream) -> dict[type, Any]:
    key = stream.key
    return key.keys if isinstance(key, KeyByType) else {kind.cls: key for kind in stream.types}


class KeyByType:
    def __init__(self, keys: dict[type, Any]) -> None:
        self.keys = keys
        self._finders: dict[type, Callable[[Any], Any]] = {}

    def __call__(self, event: Any) -> Any:
        cls = event.__class__
        found = self._finders.get(cls)
        if found is None:
            rule = KeyRule(self.keys[cls], generic=is_generic([cls]))
            found = self._finders[cls] = rule.finder()
        return found(event)

    def __getstate__(self) -> dict[str, Any]:
        return {"keys": self.keys, "_finders": {}}


def end_with(inner: Stream, stream: Stream) -> None:
    """Have a stream hand its last events on, too, once its sources are idle, if it may end then."""
    assert inner.time is not None
    if stream.time is not None and stream.time.beyond is not None:
        stream.time = stream.time._replace(beyond=inner.time.lateness)


def time_in_order(time: StreamTime) -> StreamTime:
    """The time of the inner stream; its events come from this task alone."""
    return StreamTime(time.field, span_of(time.lateness), float("inf"))
