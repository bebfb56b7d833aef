"""The throttle of log lines, so that nobody who causes them can fill a disk. Pure.

Rules
- Of each kind, some lines are written in a while; those beyond are counted, and the first line of
  the next while has the count.
- The number of kinds is bounded: the kind written longest ago is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

_MOST_KINDS = 1000


class LogThrottle:
    """Lets ``lines`` lines of a kind through in ``seconds`` seconds."""

    def __init__(self, seconds: float, lines: int = 1) -> None:
        self._seconds = seconds
        self._lines = lines
        self._kinds: dict[Hashable, tuple[float, int]] = {}  # since when, how many; oldest first

    def left_out(self, kind: Hashable, now: float) -> int | None:
        """The number skipped since the last one; None if this one must be skipped, too."""
        since, count = self._kinds.get(kind, (-math.inf, 0))
        if now < since + self._seconds:
            self._kinds[kind] = since, count + 1
            return 0 if count < self._lines else None
        self._kinds.pop(kind, None)
        self._kinds[kind] = now, 1
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return max(0, count - self._lines)
