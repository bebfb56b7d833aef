"""When a task looks at its event time again: for news, by the steady clock, or by the wall. Pure.

Rules
- News that may make a window or timer due is looked at at once, other news soon.
- Every half second the time is counted for sources without news. A longer time was a pause of this
  process.
- What is due in so many seconds stays where it is if the wall clock is set.
"""

from __future__ import annotations

import math

_TICK = 0.5
"""Seconds between two looks at who has had no news."""

_SOON = 0.1
"""Seconds until a step for news by which no window or timer is due."""

_LONGEST_TICK = 1.0
"""Seconds without news that count at once. What is longer was a pause of this process."""

_STEP = 1.0
"""Seconds by which the clock has to differ from the steady one to have been set."""


class Deadlines:
    """When the next step is due; ``news`` says that it is now.

    ``now`` is the steady clock, ``wall`` that of the machine.
    """

    def __init__(self, now: float, wall: float) -> None:
        self.news = False
        self._step_at = math.inf  # a step for news that can wait
        self._next: float | None = None  # when something is due, if that is known
        self._by_clock = False  # that is so by the wall clock, which may be set
        self._ticked_at = now
        self._wall_began = wall - now

    @property
    def known(self) -> bool:
        return self._next is not None

    @property
    def is_stale(self) -> bool:
        """True if it has to be found again when something is due."""
        return self._next is None or self._by_clock

    @property
    def has_waiting(self) -> bool:
        return self._step_at < math.inf

    def look_again(self) -> None:
        """Note that something may be due at another time than before."""
        self._next = None

    def step_soon(self, now: float) -> None:
        if self._step_at == math.inf:
            self._step_at = now + _SOON

    def begin_step(self) -> None:
        self.news, self._step_at = False, math.inf

    def note_due(self, first: float, now: float, wall: float, *, is_due: bool, ticks: bool) -> None:
        """Note when something is due: ``first`` is by the wall clock.

        ``ticks``: the time is to be counted for sources without news.
        """
        self._by_clock = first < math.inf
        found = math.inf
        if self._by_clock:
            found = now + max(0.0, first - wall)
        if ticks:
            found = min(found, self._ticked_at + _TICK)
        self._next = -math.inf if is_due else found

    @property
    def step_due(self) -> float | None:
        """When the next step is due, by the steady clock; None if none is."""
        assert self._next is not None
        due = min(self._next, self._step_at)
        return None if due == math.inf else due

    def clock_set(self, now: float, wall: float) -> float:
        """The seconds by which the wall clock was set since the last look; 0 if it was not."""
        began = wall - now
        by = began - self._wall_began
        if abs(by) <= _STEP:
            return 0.0
        self._wall_began = began
        return by

    def ticks(self, now: float) -> bool:
        """Return True if it is time to count the time without news."""
        return now >= self._ticked_at + _TICK

    def tick(self, now: float) -> float:
        """Return the seconds to count for sources without news until ``now``."""
        passed, self._ticked_at = min(now - self._ticked_at, _LONGEST_TICK), now
        return passed
