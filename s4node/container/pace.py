"""How many events a step may take, so that it ends in time. Pure.

Rules
- A step is bounded by events and by time. The time of an event is estimated from the steps before;
  the estimate rises at once and falls slowly, so a slow handler is met with small steps.
"""

from __future__ import annotations


class Pace:
    """The step size of one task; ``seconds`` is what its steps took in all."""

    __slots__ = ("_cost", "max_events", "max_seconds", "seconds")

    def __init__(self, max_events: int, max_seconds: float) -> None:
        self.max_events = max_events
        self.max_seconds = max_seconds
        self.seconds = 0.0
        self._cost = max_seconds / min(64, max_events)

    @property
    def events(self) -> int:
        """The size of the next step: 1 to ``max_events``."""
        return max(1, min(self.max_events, int(self.max_seconds / self._cost)))

    def took(self, events: int, seconds: float) -> None:
        """A step of so many events took so long."""
        self.seconds += seconds
        if events:
            cost = max(seconds / events, 1e-9)
            self._cost = cost if cost > self._cost else self._cost * 0.5 + cost * 0.5
