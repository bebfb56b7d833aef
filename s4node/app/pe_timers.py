"""The timers of the instances of one prototype, in one task. Pure.

Rules
- A timer has a key and a name; set again, it is replaced. It fires once, by the time of events or
  by the clock, also on an instance that is not in memory.
- A timer in so many seconds does not move if the clock is set.
- Timers fire in the order of their times, also those that are set while others fire. One that is
  set for a time no later than that which fires now waits for the next round, so a handler that sets
  a timer in the past stops nobody.
- Before an event in the order of time, the earlier timers of its key fire; see ``take_before``.
- An instance that is removed has no timers.
- Entries of replaced and cancelled timers are dropped when there are more of them than of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol

from s4node.errors import S4Error

NEVER = -math.inf
_LATEST = 253_402_300_800.0  # the end of the year 9999

RELATIVE = 2
"""The ``by_wall`` of a timer that is due in so many seconds."""

_FEW = 64
"""Entries that are not worth dropping."""


class TimerKeeper(Protocol):
    def timers(self) -> Iterator[tuple[Any, str, float, int]]:
        """All saved timers: key, name, time, and which one that is."""
        ...

    def set_timer(
        self, key: Any, name: str, time: float, /, *, by_wall: int, known: bool = True
    ) -> None:
        """Save a timer; not ``known``: it is certain that none of that name is saved."""
        ...

    def forget_timer(self, key: Any, name: str, /) -> None: ...


class Timer(NamedTuple):
    """A timer that is set: its ``number`` says which of two of one time was set later.

    ``by_wall`` is 0 for the time of events, 1 for the clock, 2 for so many seconds by the clock.
    """

    time: float
    number: int
    key: Any
    name: str
    by_wall: int


class PeTimers:
    """The timers of the instances of ``pe``.

    ``watermark`` is the time up to which events have come; its owner moves it. ``now`` gives Unix
    time. ``by_key`` has the timers that are set, by key and name. Without ``event_time`` there are
    timers by the clock only.
    """

    def __init__(self, pe: str, now: Callable[[], float], *, event_time: bool) -> None:
        self.watermark = NEVER
        self.now = now
        self.keeper: TimerKeeper | None = None
        self.pe = pe
        self._event_time = event_time
        self.by_key: dict[Any, dict[str, Timer]] = {}
        self._heaps: tuple[list[Timer], list[Timer]] = ([], [])  # by events, by the clock
        self._number = 0
        self._set = 0

    def __len__(self) -> int:
        return self._set

    def set_timer(self, key: Any, name: str, time: Any, *, by_wall: int) -> None:
        """Set the timer of this name, in place of an earlier one."""
        if not isinstance(name, str):
            raise S4Error(f"a timer of {self.pe} {key!r}: the name {name!r} is not a text")
        if isinstance(time, datetime) and time.tzinfo is not None:
            time = time.timestamp()
        number = isinstance(time, (int, float)) and not isinstance(time, bool)
        if not number or not math.isfinite(time):
            raise S4Error(
                f"a timer of {self.pe} {key!r} at {time!r}: give seconds since 1970, or a "
                f"datetime with a time zone"
            )
        if time > _LATEST:
            raise S4Error(
                f"a timer of {self.pe} {key!r} at {time!r} is after the year 9999; give seconds, "
                f"not milliseconds"
            )
        if not by_wall and not self._event_time:
            raise S4Error(
                f"a timer of {self.pe} {key!r} by the time of events, but no stream that leads to "
                f"it has time=; give the stream a time, or use after() or clock='wall'"
            )
        known = name in self.by_key.get(key, ())
        self.restore(key, name, float(time), by_wall=by_wall)
        if self.keeper is not None:
            self.keeper.set_timer(key, name, float(time), by_wall=by_wall, known=known)

    def restore(self, key: Any, name: str, time: float, *, by_wall: int) -> None:
        self._number += 1
        timer = Timer(time, self._number, key, name, by_wall)
        self._put(timer)
        heap = self._heaps[by_wall > 0]
        heappush(heap, timer)
        if len(heap) > 2 * self._set + _FEW:
            heap[:] = filter(self._is_set, heap)
            heapify(heap)

    def restore_all(self) -> Iterator[None]:
        assert self.keeper is not None
        for key, name, time, by_wall in self.keeper.timers():
            self.restore(key, name, time, by_wall=by_wall)
            yield

    def save_all(self) -> None:
        """Save all timers, which were set before there was a keeper."""
        assert self.keeper is not None
        for key, names in self.by_key.items():
            for each in names.values():
                self.keeper.set_timer(key, each.name, each.time, by_wall=each.by_wall)

    def cancel(self, key: Any, name: str) -> None:
        names = self.by_key.get(key, {})
        if names.pop(name, None) is not None:
            self._set -= 1
            if not names:
                del self.by_key[key]
            if self.keeper is not None:
                self.keeper.forget_timer(key, name)

    def clock_set(self, by: float) -> None:
        """Move the timers that are due in so many seconds, as the clock was set by ``by``."""
        for key, names in list(self.by_key.items()):
            for each in [each for each in names.values() if each.by_wall == RELATIVE]:
                self.set_timer(key, each.name, each.time + by, by_wall=RELATIVE)

    def cancel_all(self, key: Any) -> None:
        for name in list(self.by_key.get(key, ())):
            self.cancel(key, name)

    def next_at(self, *, by_wall: bool) -> float:
        """The time of the next timer; infinity if there is none."""
        heap = self._heaps[by_wall]
        while heap and not self._is_set(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else math.inf

    @property
    def next_end(self) -> float:
        """The watermark at which a timer is due."""
        return self.next_at(by_wall=False)

    def keep(self, timer: Timer) -> None:
        """Keep a timer that was taken until the next start, unless it is set again."""
        self._put(timer)
        if self.keeper is not None:
            self.keeper.set_timer(timer.key, timer.name, timer.time, by_wall=timer.by_wall)

    def take_due(self) -> Iterator[Timer]:
        """Take the timers that are due now.

        At the end of the inputs these are the timers until the last one that is set now.
        """
        last = self._number
        for by_wall, now in ((False, self.watermark), (True, self.now())):
            heap, later, fired = self._heaps[by_wall], [], NEVER
            if now == math.inf:  # a timer that sets itself anew would have no end
                now = max((each.time for each in heap), default=NEVER)
            while self.next_at(by_wall=by_wall) <= now:
                timer = heappop(heap)
                if timer.number > last and timer.time <= fired:
                    later.append(timer)
                    continue
                fired = max(fired, timer.time)
                self.cancel(timer.key, timer.name)
                yield timer
            for timer in later:
                heappush(heap, timer)

    def is_before(self, key: Any, time: float) -> bool:
        """Return True if a timer of a key, by the time of events, is due before ``time``."""
        for each in self.by_key.get(key, {}).values():
            if each.time < time and not each.by_wall:
                return True
        return False

    def take_before(self, key: Any, time: float) -> Iterator[Timer]:
        """Take the timers of a key, by the time of events, that are due before ``time``.

        One that is set again for its own time waits for the next round.
        """
        taken = set[tuple[str, float]]()
        while self.is_before(key, time):
            due = [
                each
                for each in self.by_key[key].values()
                if each.time < time and not each.by_wall and (each.name, each.time) not in taken
            ]
            if not due:
                return
            timer = min(due)
            taken.add((timer.name, timer.time))
            self.cancel(key, timer.name)
            yield timer

    def _put(self, timer: Timer) -> None:
        names = self.by_key.get(timer.key)
        if names is None:
            names = self.by_key[timer.key] = {}
        self._set += timer.name not in names
        names[timer.name] = timer

    def _is_set(self, timer: Timer) -> bool:
        names = self.by_key.get(timer.key)
        return names is not None and names.get(timer.name) is timer
