"""The partition of another member that a member says it is ready to take over. Pure.

Rules
- A member is ready for one partition at a time, so that each pauses only for its own move. It stays
  ready for this one until the partition is its own, or is not to come any more.
- A move may never end, because the owner cannot stop the task. A partition that has not come for
  some seconds waits, and the member is ready for the next one, in turn.
- A member that is given other partitions is ready for none until these take events.
"""

from __future__ import annotations

import math
from collections.abc import Collection

PATIENCE_SECONDS = 10.0


class Announcement:
    """The ``partition`` that a member is ready for, or None. Another may be due at ``until``."""

    def __init__(self) -> None:
        self.partition: int | None = None
        self.until = math.inf
        self._last = -1

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partition, or nothing, as the member's entry has it."""
        return () if self.partition is None else (self.partition,)

    def choose(self, coming: Collection[int], now: float) -> None:
        """Be ready for one of the partitions that may come now."""
        if self.partition in coming and now < self.until:
            return
        if self.partition is not None:
            self._last = self.partition
        in_turn = sorted(coming, key=lambda each: (each <= self._last, each))
        self.partition = in_turn[0] if in_turn else None
        self.until = now + PATIENCE_SECONDS if in_turn else math.inf

    def gain(self, partitions: Collection[int]) -> None:
        """Be ready for none if the member is given other partitions than this one."""
        if set(partitions) - {self.partition}:
            self.partition, self.until = None, math.inf
