"""How often a warning that a peer can bring about is written, so that it cannot fill a disk.

Rules
- The first of a kind is written, the next after a while; what comes meanwhile is counted, and told
  with the next.
- The number of kinds is bounded, too: the one that was written longest ago is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

_MOST_KINDS = 1000


class LogThrottle:
    """Lets one of a kind through in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kinds: dict[Hashable, tuple[float, int]] = {}  # in the order of their time

    def left_out(self, kind: Hashable, now: float) -> int | None:
        """How many were left out since the last one, if this one is to be written; else None."""
        since, count = self._kinds.get(kind, (-math.inf, 0))
        if now < since + self._seconds:
            self._kinds[kind] = since, count + 1
            return None
        self._kinds.pop(kind, None)
        self._kinds[kind] = now, 0
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return count
