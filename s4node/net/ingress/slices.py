"""How long a connection's frames are handled at a time, and which connections stand in line. Pure.

Rules
- A connection is busy from its first slice on, and after each long slice or while it sends a long
  message, until its slices have been short for a while.
- If there are several busy ones, they stand in one line, and one of them has a slice while all
  others have theirs. So a peer that sends little waits for one slice, however many send much.
"""

from __future__ import annotations

from collections.abc import Hashable

MOST_SECONDS = 0.002
"""A slice of the only connection."""

_MOST_IN_LINE = 0.001
_LONG_SECONDS = 0.0005
_LONG_BYTES = 65_536
_CALM_SECONDS = 0.05


class Slices:
    """The slices of the connections of a listener; times are in seconds."""

    def __init__(self) -> None:
        self._busy: dict[Hashable, float] = {}  # when their last long slice has ended

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
        if unfinished > _LONG_BYTES or now - began > _LONG_SECONDS:
            self._busy[connection] = now
        elif now - self._busy.get(connection, now) > _CALM_SECONDS:
            del self._busy[connection]
