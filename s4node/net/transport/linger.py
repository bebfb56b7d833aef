"""When to send: at once while it is quiet, in full frames while it is busy. Pure.

Rules
- Quiet: whatever waits goes as soon as the socket takes it.
- Busy (the last flush was more than a few events): wait until enough events have gathered, but no
  longer than a while. A stream leaves the busy mode by itself, with the first small flush.
- Enough is a fair frame in each lane that has something to send, as far as credit reaches: where
  it is used up waiting adds nothing. A lane without events needs no frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_BUSY_EVENTS = 64
_FRAME_EVENTS = 2048
_LANE_EVENTS = 256
_LINGER = 0.002
_LANE_LINGER = 0.0001
_REST = 150e-6


class Sendable(NamedTuple):
    """What may leave now: ``events`` in so many ``lanes``, whose credit reaches for ``room``."""

    events: int
    lanes: int
    room: int


def together(each: Iterable[Sendable]) -> Sendable:
    """What may leave of several streams."""
    events = lanes = room = 0
    for one in each:
        events, lanes, room = events + one.events, lanes + one.lanes, room + one.room
    return Sendable(events, lanes, room)


class Linger:
    """Decides when the events that wait leave; it gathers ``most`` events at most. Times in
    seconds."""

    __slots__ = ("_last_events", "_last_time", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._last_events = 0
        self._last_time = float("-inf")

    def due(self, sendable: Sendable, now: float) -> float:
        """When to flush what may leave (some events); at or before ``now`` means at once."""
        events, lanes, room = sendable
        enough = min(max(_FRAME_EVENTS, lanes * _LANE_EVENTS), room, self._most)
        if events >= enough or self._last_events < _BUSY_EVENTS:
            return now
        return self._last_time + _LINGER + lanes * _LANE_LINGER

    def rested(self, now: float) -> bool:
        """Whether the last flush is so long ago that one more costs nobody anything."""
        return now - self._last_time >= _REST and self._last_events < _BUSY_EVENTS

    def flushed(self, events: int, now: float) -> None:
        """So many events have left."""
        self._last_events, self._last_time = events, now
