"""The times that follow from the watermarks of a task, derived when one of these changes. Pure.

Rules
- The watermark of a PE with windows, or with timers, is the lowest of the streams that lead to it,
  without silent ones. So is the time of what is put on a stream, by those from which it is put.
- So each of them depends on the values of some streams, and on whether these are silent. A
  watermark that may have changed is marked. Only those are derived, and what depends on one that
  has changed indeed. A step for an event by which no watermark rises derives nothing.
- It makes no difference when a mark is looked at, as long as that is before the result is used:
  watermarks never decrease.
- What windows and timers wait for changes with the events of their streams, and with calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from s4node.offsets.watermarks import Watermarks
from s4node.runtime.event_time.put_times import PutTimes, lowest
from s4node.runtime.event_time.timed_stream import TimedStream


class DerivedTimes:
    """The ``watermark`` of each of ``waiting``, windows or timers with the names of their streams.

    In ``puts`` it notes the streams whose times may rise. Of ``streams`` it says when something is
    due; ``hops`` has by how many hops their events come.
    """

    def __init__(
        self,
        streams: Mapping[str, TimedStream],
        waiting: Sequence[tuple[Any, Sequence[str]]],
        puts: PutTimes,
        hops: Mapping[str, int],
    ) -> None:
        self.waiting = waiting
        self._behind = {*range(len(waiting))}  # these may wait for another time than before
        self._places: dict[str, list[int]] = {}  # of those to which a stream leads
        for at, (_, names) in enumerate(waiting):
            for name in names:
                self._places.setdefault(name, []).append(at)
        self._awaited = [math.inf for _ in waiting]
        self._streams = streams
        self._watermarks = {name: each.watermarks for name, each in streams.items()}
        self._fed = [
            (streams[feeder], streams[name])
            for name in sorted(puts.feeders, key=hops.__getitem__, reverse=True)
            for feeder in puts.feeders[name]
            if name in streams
        ]
        for feeder, fed in self._fed:
            feeder.fed.append(fed)
        self._puts = puts
        self._marked: set[Watermarks] = set()
        self._seen: dict[Watermarks, tuple[float, bool]] = {}
        self._waiting: dict[Watermarks, list[tuple[Any, Sequence[str]]]] = {}
        self._put: dict[Watermarks, list[str]] = {}
        for name, each in self._watermarks.items():
            self._waiting[each] = [one for one in waiting if name in one[1]]
            self._put[each] = [to for to, names in puts.feeders.items() if name in names]
            each.marked = self._marked
        self.derive_all()

    def derive_all(self) -> None:
        self._seen.clear()
        self._marked.update(self._watermarks.values())

    def derive(self) -> None:
        if not self._marked:
            return
        marked = [*self._marked]
        self._marked.clear()
        raised: dict[int, tuple[Any, Sequence[str]]] = {}
        for each in marked:
            each.advance()
            now = each.value, each.is_silent
            if self._seen.get(each) != now:
                self._seen[each] = now
                self._puts.behind.update(self._put[each])
                raised.update((id(one), one) for one in self._waiting[each])
        for one, names in raised.values():
            one.watermark = max(one.watermark, lowest(self._watermarks, names))

    def processed(self, stream: str) -> None:
        self._behind.update(self._places.get(stream, ()))

    def called(self) -> None:
        """Note that handlers may have changed any of them."""
        self._behind.update(range(len(self.waiting)))

    def look_ahead(self) -> None:
        """Find out at which watermark of each stream something is due, if that has changed."""
        before = [*self._awaited] if self._behind else self._awaited
        for at in self._behind:
            self._awaited[at] = self.waiting[at][0].next_end
        self._behind.clear()
        if before == self._awaited:
            return
        for timed in self._streams.values():
            timed.due = math.inf
        for due, (_, names) in zip(self._awaited, self.waiting, strict=True):
            for timed in (self._streams[name] for name in names if name in self._streams):
                timed.due = min(timed.due, due)
        for feeder, fed in self._fed:
            feeder.due = min(feeder.due, fed.due + fed.watermarks.lateness)

    @property
    def is_due(self) -> bool:
        """True if what windows or timers wait for has come."""
        for at, (one, _) in zip(self._awaited, self.waiting, strict=True):
            if at <= one.watermark:
                return True
        return False
