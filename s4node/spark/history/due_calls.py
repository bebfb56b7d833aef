"""The windows and timers of PEs that run over a history sorted by time: which are due when.

Rules
- When an event comes, all earlier ones have come. So a window or timer is due once an event comes
  that is later by more than the lateness, or just later in a stream with ``order="time"``; and no
  event is late.
- Between two events only calls are made that may meet the state of the key: ``on_timer``, and
  ``on_window`` of classes with ``OfKey``. Other windows end after a batch: a later event does not
  change them.
- Nothing is due after ``until``, the watermark of the PE's streams at the end of the history. What
  is due later is saved, and nodes go on with it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from s4node.app.app import App
from s4node.app.instances import Instances
from s4node.app.pe_timers import PeTimers
from s4node.app.plan import dispatch
from s4node.app.stream import Stream
from s4node.app.window_instances import WindowInstances
from s4node.spark.history.stages import goes_by_time

NEVER = -math.inf


class DueCall(NamedTuple):
    """A call that is due on ``instance``: ``hook()``, and then ``done()``.

    ``due`` is the time of the first event after which it would be made on a node.
    """

    what: str
    hook: Callable[[], Any]
    instance: Any
    due: float
    done: Callable[[], object]


class _Timed:
    def __init__(self, instances: Instances, lateness: float, until: float) -> None:
        self.instances = instances
        self.lateness = lateness
        timers = instances.timers
        self.watched: Any = instances if timers is None else timers  # has a watermark
        self.between_events = timers is not None or instances.prototype.own is not None
        self._until = until

    def reach(self, time: float) -> None:
        """Take the events before ``time`` to have come."""
        watermark = min(math.nextafter(time - self.lateness, NEVER), self._until)
        self.watched.watermark = max(self.watched.watermark, watermark)

    @property
    def next_due(self) -> float:
        if isinstance(self.watched, PeTimers):
            return self.watched.next_at(by_wall=False)
        return float(self.watched.next_end)

    def due_calls(self) -> Iterator[DueCall]:
        if isinstance(self.watched, PeTimers):
            return self._timers(self.watched)
        return self._windows(self.watched)

    def _windows(self, windows: WindowInstances) -> Iterator[DueCall]:
        on_window = windows.prototype.on_window
        assert on_window is not None
        for instances, done, _ in windows.calls(lambda: 1):
            for one in instances:
                hook, due = partial(on_window, one), one._span[1] + self.lateness
                after = _nothing if done is None else partial(done, [one])
                yield DueCall("on_window", hook, one, due, after)

    def _timers(self, timers: PeTimers) -> Iterator[DueCall]:
        on_timer = self.instances.prototype.on_timer
        assert on_timer is not None
        for timer in timers.take_due():
            one = dict.get(self.instances, timer.key)
            if one is not None:
                hook = partial(on_timer, one, timer.name)
                yield DueCall("on_timer", hook, one, timer.time + self.lateness, _nothing)


class DueCalls:
    """The windows and timers of some PEs, by name."""

    def __init__(self, timed: Mapping[str, _Timed]) -> None:
        self._timed = timed

    def between_events(self, stream: Stream) -> DueCalls:
        """Those of a stream's PEs whose calls are made between its events."""
        timed = {t.name: self._timed[t.name] for t in stream.targets if t.name in self._timed}
        return DueCalls({name: each for name, each in timed.items() if each.between_events})

    def __bool__(self) -> bool:
        return bool(self._timed)

    def reach(self, time: float) -> None:
        for each in self._timed.values():
            each.reach(time)

    def end_of_part(self, times: list[float], first: int) -> int:
        """The end of the events, from ``first`` on, between which no call is due."""
        least = min(
            min(each.next_due, times[first]) + each.lateness for each in self._timed.values()
        )
        return max(first + 1, bisect_right(times, least, first))

    def __iter__(self) -> Iterator[DueCall]:
        """The calls that are due; more may come while they are made."""
        for each in self._timed.values():
            while each.next_due <= each.watched.watermark:
                yield from each.due_calls()


def calls_of(app: App, instances: Mapping[str, Instances], until: Mapping[str, float]) -> DueCalls:
    """The windows and timers of these ``instances`` of an app, whose last watermarks are given."""
    timed = {}
    for name, each in instances.items():
        if goes_by_time(app, each.prototype):
            times = [s.time for s in app.streams.values() if each.prototype in s.targets]
            lateness = max((time.lateness for time in times if time is not None), default=0.0)
            if dispatch.goes_by_order(app, each):
                lateness = 0.0
            timed[name] = _Timed(each, lateness, until.get(name, NEVER))
    return DueCalls(timed)


def _nothing() -> None: ...
