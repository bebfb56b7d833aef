"""How many events a step may take, so that it ends in time. Pure.

Rules
- A step is bounded by events and by time. The time of an event is estimated from the steps before;
  the estimate rises at once and falls slowly, so a slow handler is met with small steps.
- Each kind of step, a stream or a timer, has an estimate of its own, for its handlers are others.
  The first step of a kind is small: nobody knows yet how long its handlers take, and how much they
  put on others.
"""

from __future__ import annotations

_FIRST = 8  # events


class Pace:
    """The step sizes of one task; ``seconds`` is what processing took in all."""

    __slots__ = ("_costs", "_unknown", "max_events", "max_seconds", "seconds")

    def __init__(self, max_events: int, max_seconds: float) -> None:
        self.max_events = max_events
        self.max_seconds = max_seconds
        self.seconds = 0.0
        self._costs: dict[str, float] = {}
        self._unknown = max_seconds / min(_FIRST, max_events)

    def events(self, kind: str) -> int:
        """The size of the next step of a kind: 1 to ``max_events``."""
        cost = self._costs.get(kind, self._unknown)
        return max(1, min(self.max_events, int(self.max_seconds / cost)))

    def took(self, stream: str, events: int, seconds: float) -> None:
        """A step of so many events of a stream took so long."""
        self.seconds += seconds
        self.learn(stream, events, seconds)

    def learn(self, kind: str, events: int, seconds: float) -> None:
        """A step of a kind with so many events, or instances, took so long."""
        if events:
            before = self._costs.get(kind, self._unknown)
            cost = max(seconds / events, 1e-9)
            self._costs[kind] = cost if cost > before else before * 0.5 + cost * 0.5
