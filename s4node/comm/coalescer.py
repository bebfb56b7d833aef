"""When to send: at once while it is quiet, in full frames while it is busy. Pure.

Rules
- Quiet: whatever waits goes as soon as the socket takes it.
- Busy (the last flush was more than a few events): wait until enough events have gathered, but no
  longer than ``linger``. A stream leaves the busy mode by itself, with the first small flush.
"""

from __future__ import annotations

_BUSY_EVENTS = 64


class Coalescer:
    """Decides when the events that wait leave. Times in seconds."""

    __slots__ = ("_last_events", "_last_time", "linger", "target")

    def __init__(self, target: int, linger: float = 0.004) -> None:
        self.target = target
        self.linger = linger
        self._last_events = 0
        self._last_time = float("-inf")

    def due(self, pending: int, now: float) -> float:
        """When to flush ``pending`` events (> 0); at or before ``now`` means at once."""
        if pending >= self.target or self._last_events < _BUSY_EVENTS:
            return now
        return self._last_time + self.linger

    def flushed(self, events: int, now: float) -> None:
        """So many events have left."""
        self._last_events, self._last_time = events, now
