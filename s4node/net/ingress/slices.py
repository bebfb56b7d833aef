"""How long a connection's frames are handled at a time, and which connections stand in line. Pure.

Rules
- A connection is busy from its first slice on, and after each long slice or while it sends a long
  message, until its slices have been short for a while.
- If there are several busy ones, they stand in one line, and one of them has a slice while all
  others have theirs. So a peer that sends little waits for one slice, however many send much.
- If the rest of the process takes long between two slices of the line, more of the line have one at
  a time: the line gets a quarter of the time. Else a hundred producers, who are busy for the rest
  of the process, would stand in line for longer than it takes them to send.
"""

from __future__ import annotations

from collections.abc import Hashable

MOST_SECONDS = 0.002
"""A slice of the only connection."""

_MOST_IN_LINE = 0.001
_LONG_SECONDS = 0.0005
_LONG_BYTES = 65_536
_CALM_SECONDS = 0.05
_OF_THE_REST = 1 / 3
_MOST_BEHIND = 0.02
"""Seconds that the line may be behind its part of the time."""


class Slices:
    """The slices of the connections of a listener; times are in seconds.

    ``at_once`` is how many of the line have a slice at a time.
    """

    def __init__(self) -> None:
        self.at_once = 1
        self._busy: dict[Hashable, float] = {}  # when their last long slice has ended
        self._behind = 0.0  # the part of the time that the line has not had yet
        self._left_at: float | None = None  # when the line had a slice, if others waited
        self._last = (0.0, 0.0)  # when the last slice began and ended

    def add(self, connection: Hashable, now: float) -> None:
        self._busy[connection] = now

    def remove(self, connection: Hashable) -> None:
        self._busy.pop(connection, None)

    def in_line(self, connection: Hashable) -> bool:
        """Return True if the connection has to wait for other busy ones."""
        return len(self._busy) > 1 and connection in self._busy

    @property
    def most(self) -> float:
        """The seconds after which a slice ends."""
        return MOST_SECONDS if len(self._busy) < 2 else _MOST_IN_LINE

    def ended(self, connection: Hashable, began: float, now: float, unfinished: int) -> None:
        """Note the end of a slice; ``unfinished`` are the bytes of a message that has begun."""
        self._last = began, now
        if unfinished > _LONG_BYTES or now - began > _LONG_SECONDS:
            self._busy[connection] = now
        elif now - self._busy.get(connection, now) > _CALM_SECONDS:
            del self._busy[connection]

    def line_ended(self, waiting: int) -> None:
        began, now = self._last
        if self._left_at is not None:
            self._behind += (began - self._left_at) * _OF_THE_REST
        behind = min(max(0.0, self._behind - (now - began)), _MOST_BEHIND)
        self._behind = behind if waiting else 0.0
        self._left_at = now if waiting else None
        self.at_once = 1 + int(self._behind / _MOST_IN_LINE)
