"""``order="time"``: a PE that holds a key's events back and hands them on in time order. Pure.

Rules
- A stream with ``order="time"`` leads to this PE only, which puts the events on an inner stream to
  the author's PEs. What it holds back is saved as the state of windows, one for each key and short
  span. So held-back events are rows of each commit; positions and producers' numbers pass them;
  they take no credit and no place in a stage. In memory they are one heap for all keys.
- Streams with ``order="time"`` that have a PE in common have one order. Each PE gets the types of
  the streams that lead to it.
- What it holds back for a singleton is in one order for all keys.
- A span is handed on once the watermark has passed it: sorted by time, events of one time by their
  bytes. So the order of a key's events does not depend on the order in which they have come.
- A span with very many events, as of times in whole days, is handed on in parts; its rest stays in
  the heap and in the instances.
- An event that comes after its span, or a part of it, was handed on is late. It is handed on at
  once, out of order, and counted.
- An event is decoded when it comes and when it is restored, so that handing on a part with the
  events of many keys does not fail: a handler may have put one that its type does not allow.
- A task holds back at most ``most`` events. Beyond that the app stops, whatever ``onError`` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, ClassVar, NoReturn, TypeAlias

import msgspec

from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype
from s4node.app.stream import Stream, StreamTime, Target
from s4node.app.window_instances import NEVER, PE, Due, WindowInstances
from s4node.app.windows import Span
from s4node.errors import GraphError, HeldBackBeyond, NotRestorable
from s4node.events.event_time import TimeRule
from s4node.events.keys import identity
from s4node.events.routing import KeyRule, is_generic
from s4node.events.schema import EventType

BY_TIME = "-by-time"
"""Ends the name of the inner stream."""

IN_ORDER = "-in-order"
"""Ends the name of the PE."""

_LONGEST, _SHORTEST = 0.25, 2.0**-6
_OF_LATENESS = 8

_AT_ONCE = 2048
"""Events that are put into instances, or handed on to end a span, at a time; more are a pause."""

_AS_ONE_CALL = 8
"""Events that are handed on in about the time in which a window or timer is called."""


def span_of(lateness: float) -> float:
    """The seconds of a span: a power of two, about an eighth of the lateness."""
    span = _LONGEST
    while span > _SHORTEST and span * _OF_LATENESS > lateness:
        span /= 2
    return span


_Entry: TypeAlias = tuple[float, str, bytes, Any]
"""An event that is held back: its time, the name of its type, its bytes, and its key."""


class InOrder(ProcessingElement):
    """The events of a key and span that are held back. ``out`` is the inner stream."""

    out: Stream
    kinds: ClassVar[dict[type, EventType]] = {}
    names: ClassVar[dict[str, EventType]] = {}
    most: ClassVar[int] = 1_000_000
    held: list[tuple[float, str, bytes]] = []  # noqa: RUF012 - each instance has its own

    def on_window(self) -> None:
        put, names = self.out.put, self.names
        for _, name, raw in sorted(self.held):  # of a call that failed they are in no order
            put(names[name].decode(raw)[0])


class HeldBack(WindowInstances):
    """The events that an InOrder holds back in a task: one heap for all keys and spans.

    Instances are made only when a commit begins, to be saved, and for what is handed on.
    """

    __slots__ = ("_gone", "_heap", "_high", "_low", "_news", "_passed", "_seconds", "_spans")

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self._seconds = self._kind.whole  # of a span
        self._heap: list[_Entry] = []
        self._news: list[_Entry] = []  # those of the heap that are in no instance yet, and others
        self._spans: dict[tuple[float, Any], Any] = {}  # the instances, by start and key
        self._gone = NEVER  # all before this was handed on
        self._low = math.ulp(0.0)  # an event before this is late; times are above 0
        self._high = NEVER  # the latest time that is known to be good
        self._passed = NEVER  # the watermark up to which ``_low`` has followed it

    def hold(self, rule: TimeRule, key: Any, time: Any, event: Any) -> None:
        """Hold an event back, or hand it on at once if it is late."""
        if self.watermark > self._passed:
            self._follow()
        if not self._low <= time <= self._high:
            time = rule.check(time, self.wall())
            self._low = max(self._low, self._start_of(self.called_before))
            if time < self._low:
                self.come_late(event, key, time)
                return
            self._high = max(self._high, time)
        cls: Any = self.prototype.cls
        if key is not None:
            self.new_keys.check_new(key := identity(key), ())
        if len(self._heap) >= cls.most:
            _refuse(self, cls)
        kind = cls.kinds[event.__class__]
        raw = kind.encode([event])
        kind.decode(raw)
        entry = time, kind.name, raw, key
        heappush(self._heap, entry)
        if self.saver is not None:
            self._news.append(entry)
            if len(self._news) > _AT_ONCE:
                self.gather()

    def _follow(self) -> None:
        """Events before the watermark are late, also if none of them is held back."""
        until = self._start_of(self.watermark)
        if math.isfinite(until):  # it is infinite at the end of the inputs
            self._passed = self.watermark
            if not self._heap or self._heap[0][0] >= until:
                self._low = max(self._low, until)

    def _start_of(self, time: float) -> float:
        return time // self._seconds * self._seconds if math.isfinite(time) else time

    def calls(self, most: Callable[[], int]) -> Iterator[Due]:
        heap, before, until = self._heap, self._low, self._start_of(self.watermark)
        while heap and heap[0][0] < until:
            part, limit, end = list[_Entry](), most() * _AS_ONE_CALL, NEVER
            while heap and heap[0][0] < until and (len(part) < limit or heap[0][0] < end):
                part.append(heappop(heap))
                if len(part) == limit:
                    end = self._start_of(part[-1][0]) + self._seconds
                elif len(part) == limit + _AT_ONCE:
                    end = NEVER
            last = self._start_of(part[-1][0]) + self._seconds
            rest = last - self._seconds if heap and heap[0][0] < last else last
            self._gone = rest if heap else NEVER
            if not heap:
                self._news.clear()
            elif rest < last:  # what is left of a span has to be in the instances
                self.gather()
            if heap or until < math.inf:
                self._low = max(self._low, last)
            else:  # the end of the inputs, from which a further run goes on
                self._low = before
            yield Due([self._handed_on(part, rest, last)], None, len(part) // _AS_ONE_CALL or 1)
        if until < math.inf:
            self._low = max(self._low, until)

    def _handed_on(self, part: list[_Entry], rest: float, end: float) -> Any:
        """An instance with all of these entries, which are no longer saved. Others are left of the
        span that begins at ``rest``, if that is before the ``end``."""
        if self._spans:
            seconds, find = self._seconds, self._spans.get
            for time, _, _, key in part:
                one = find(place := (time // seconds * seconds, key))
                if one is not None and (time < rest or not self._keeps(one)):
                    del self._spans[place]
                    self._forget(one)
        handed_on = self._made(None, (self._start_of(part[0][0]), end))
        handed_on.held = [entry[:3] for entry in part]
        return handed_on

    def _keeps(self, one: PE) -> bool:
        """Take the first event from an instance; return True if others are left in it."""
        self.touch(one)
        if not one._round:  # they are as they have come
            one._round = 1
            one.held.sort(reverse=True)
        one.held.pop()
        return bool(one.held)

    def _made(self, key: Any, span: Span) -> PE:
        instance: PE = self.prototype.make(key, self)
        instance._span = span
        return instance

    def gather(self) -> None:
        """Put the entries that are in no instance into those of their spans and keys."""
        for time, name, raw, key in self._news:
            if time < self._gone:
                continue
            place = start, _ = self._start_of(time), key
            one = self._spans.get(place)
            if one is not None:
                self.touch(one)
            else:
                one = self._spans[place] = self._made(key, (start, start + self._seconds))
                if self.saver is not None:
                    self.saver.touch_new(one)
            one.held.append((time, name, raw))
        self._news.clear()

    @property
    def has_news(self) -> bool:
        """True if there is anything to gather."""
        return bool(self._news)

    def restore(self, instance: PE) -> None:
        self._spans[instance._span[0], instance.key] = instance
        instance._round = 0
        names = self.prototype.cls.names  # type: ignore[attr-defined]
        for time, name, raw in instance.held:
            try:
                names[name].decode(raw)
            except (KeyError, msgspec.MsgspecError, ValueError) as error:
                fact = f"an event that is held back is no {name} now: {error}"
                fix = "deploy the version that put it, until nothing is held back"
                raise NotRestorable(self.prototype.name, instance.key, fact, fix) from None
            heappush(self._heap, (time, name, raw, instance.key))

    def all(self) -> Iterator[PE]:
        if self.saver is None:  # then none are gathered meanwhile
            self._spans.clear()
            self._news = [*self._heap]
        self.gather()
        return iter([*self._spans.values()])

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def open_windows(self) -> int:
        return 0

    @property
    def called_until(self) -> float:
        return min(self.watermark, max(self._low, math.nextafter(self.next_end, NEVER)))

    @property
    def next_end(self) -> float:
        return self._start_of(self._heap[0][0]) + self._seconds if self._heap else math.inf


def _refuse(windows: HeldBack, cls: Any) -> NoReturn:
    stream = windows.prototype.cls.out.in_order_of[0]  # type: ignore[attr-defined]
    raise HeldBackBeyond(
        f"stream {stream!r} with order='time' holds back {cls.most} events in this task, which is "
        f"its limit, as the watermark is {windows.watermark:.15g}; see what holds it back in "
        f"s4 status, give the stream a shorter lateness or idle, or raise "
        f"s4.stream.{stream}.heldBack"
    )


def complete(prototype: Prototype, inner: Stream) -> None:
    """Give the prototype of an InOrder what it needs to know of its inner stream."""
    assert inner.time is not None
    prototype.singleton |= any(target.singleton for target in inner.targets)
    cls: Any = prototype.cls
    cls.kinds = {kind.cls: kind for kind in inner.types}
    cls.names = {kind.name: kind for kind in inner.types}


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
