"""What comes every so often: windows and commits of a task. Pure.

Rules
- Ticks coalesce: however many were missed, it is due once, and next at a tick of the same beat.
"""

from __future__ import annotations

import math


class Tick:
    """Comes every ``interval`` seconds, at ``at`` next; never, where the interval is 0."""

    __slots__ = ("at", "interval")

    def __init__(self, interval: float, now: float) -> None:
        self.interval = interval
        self.at = now + interval if interval else math.inf

    def due(self, now: float) -> bool:
        """Whether it has come; if so it comes next after ``now``."""
        if self.at > now:
            return False
        self.at += ((now - self.at) // self.interval + 1) * self.interval
        return True

    def stop(self) -> None:
        """It does not come any more."""
        self.at = math.inf
