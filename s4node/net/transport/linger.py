"""When to send: at once while it is quiet, in full frames while it is busy. Pure.

Rules
- Quiet: whatever waits goes as soon as the socket takes it.
- Busy (the last flush was more than a few events): wait until enough events have gathered, but no
  longer than ``linger``. A stream leaves the busy mode by itself, with the first small flush.
"""

from __future__ import annotations

_BUSY_EVENTS = 64
_FRAME_EVENTS = 2048
_LANE_EVENTS = 256
_REST = 150e-6


class Coalescer:
    """Decides when the events that wait leave. Times in seconds."""

    __slots__ = ("_last_events", "_last_time", "linger", "target")

    def __init__(self, target: int = _FRAME_EVENTS, linger: float = 0.002) -> None:
        self.target = target
        self.linger = linger
        self._last_events = 0
        self._last_time = float("-inf")

    def for_lanes(self, lanes: int, queue_size: int) -> None:
        """Gather enough for a fair frame in each of so many lanes, within half of the queue."""
        self.target = max(1, min(max(_FRAME_EVENTS, lanes * _LANE_EVENTS), queue_size // 2))
        self.linger = 0.002 + 0.0001 * lanes

    def due(self, pending: int, now: float) -> float:
        """When to flush ``pending`` events (> 0); at or before ``now`` means at once."""
        if pending >= self.target or self._last_events < _BUSY_EVENTS:
            return now
        return self._last_time + self.linger

    def rested(self, now: float) -> bool:
        """Whether the last flush is so long ago that one more costs nobody anything."""
        return now - self._last_time >= _REST and self._last_events < _BUSY_EVENTS

    def flushed(self, events: int, now: float) -> None:
        """So many events have left."""
        self._last_events, self._last_time = events, now
