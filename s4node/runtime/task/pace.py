"""The number of events that a step may take, so that it ends in time. Pure.

Rules
- A step is bounded by events and by time. The cost of an event is estimated from earlier steps. The
  estimate rises at once and falls slowly, so a slow handler gets small steps.
- Each kind of step (a stream or a timer) has its own estimate. The first step of a kind is small,
  because the cost of its handlers, and what they put on streams, are unknown.
"""

from __future__ import annotations

_FIRST = 8  # events


class Pace:
    """The step sizes of one task; ``seconds`` is the total time spent processing.

    ``share`` is the loop's: the seconds of the task's steps, which decide who has the next step.
    """

    __slots__ = ("_costs", "_unknown", "max_events", "max_seconds", "seconds", "share")

    def __init__(self, max_events: int, max_seconds: float) -> None:
        self.max_events = max_events
        self.max_seconds = max_seconds
        self.seconds = 0.0
        self.share = 0.0
        self._costs: dict[str, float] = {}
        self._unknown = max_seconds / min(_FIRST, max_events)

    def events(self, kind: str) -> int:
        """The size of the next step of a kind: 1 to ``max_events``."""
        fit = int(self.max_seconds / self._costs.get(kind, self._unknown))
        return self.max_events if fit >= self.max_events else fit or 1

    def took(self, stream: str, events: int, seconds: float) -> None:
        """Count the time of a step that processed events, and learn from it."""
        self.seconds += seconds
        self.learn(stream, events, seconds)

    def learn(self, kind: str, events: int, seconds: float) -> None:
        """Update the estimate of a kind from a step of ``events`` events, or instances."""
        if events:
            before = self._costs.get(kind, self._unknown)
            cost = max(seconds / events, 1e-9)
            self._costs[kind] = cost if cost > before else before * 0.5 + cost * 0.5
