"""The throttle of warnings that peers can cause, so that they cannot fill a disk. Pure.

Rules
- The first warning of a kind is written, the next one after a while; those in between are counted,
  and the next line has the count.
- The number of kinds is bounded: the kind written longest ago is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

_MOST_KINDS = 1000


class LogThrottle:
    """Lets one warning of a kind through every ``seconds`` seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kinds: dict[Hashable, tuple[float, int]] = {}  # in the order of their time

    def left_out(self, kind: Hashable, now: float) -> int | None:
        """The number skipped since the last one; None if this one must be skipped, too."""
        since, count = self._kinds.get(kind, (-math.inf, 0))
        if now < since + self._seconds:
            self._kinds[kind] = since, count + 1
            return None
        self._kinds.pop(kind, None)
        self._kinds[kind] = now, 0
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return count
