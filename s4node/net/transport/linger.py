"""The linger of a stream: send at once while it is quiet, in full frames while it is busy. Pure.

Rules
- Quiet: waiting events are sent as soon as the socket accepts them.
- Busy (the last flush had more than a few events): wait until enough events have gathered, but only
  for a short time. The first small flush makes the stream quiet again.
- Enough is a good frame in each lane that has events, as far as credit reaches, because waiting for
  more would add nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_BUSY_EVENTS = 64
_FRAME_EVENTS = 2048
_LANE_EVENTS = 256
"""Half of a client's queue over 64 lanes: with more, the producer waits while its node works."""
_LINGER = 0.002
_LANE_LINGER = 0.0001
_REST = 150e-6


class Sendable(NamedTuple):
    """The ``events`` that may leave now, in ``lanes`` lanes with credit for ``room`` events."""

    events: int
    lanes: int
    room: int


def together(each: Iterable[Sendable]) -> Sendable:
    """The sum for several streams."""
    events = lanes = room = 0
    for one in each:
        events, lanes, room = events + one.events, lanes + one.lanes, room + one.room
    return Sendable(events, lanes, room)


class Linger:
    """Decides when waiting events leave; gathers at most ``most`` events. Times in seconds."""

    __slots__ = ("_last_events", "_last_time", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._last_events = 0
        self._last_time = float("-inf")

    def due(self, sendable: Sendable, now: float) -> float:
        """When to flush events that may leave; at or before ``now`` means at once."""
        events, lanes, room = sendable
        enough = min(max(_FRAME_EVENTS, lanes * _LANE_EVENTS), room, self._most)
        if events >= enough or self._last_events < _BUSY_EVENTS:
            return now
        return self._last_time + _LINGER + lanes * _LANE_LINGER

    def rested(self, now: float) -> bool:
        """Return True if the last flush was so long ago that another one costs nothing."""
        return now - self._last_time >= _REST and self._last_events < _BUSY_EVENTS

    def flushed(self, events: int, now: float) -> None:
        self._last_events, self._last_time = events, now
