"""The partitions that a member takes over from others, or hands over to them, in turn. Pure.

Rules
- A member follows the state of a few partitions that are to come at a time. One that cannot be
  followed stays where it is, and counts for none, so that it does not hold up the others.
- A member is ready for one partition at a time, so that each pauses only for its own move. It stays
  ready for this one until the partition is its own, or is not to come any more.
- A move may never end, because the owner cannot stop the task. A partition that has not come for
  some seconds waits, and the member is ready for the next one, in turn.
- A member that is given other partitions is ready for none until these take events.
- A member hands over one partition at a time, once it has seen who has the last one. A hand-over
  that does not end, because the task cannot be stopped or its last commit not be written, holds up
  the next one for the same time.
"""

from __future__ import annotations

import math
from collections.abc import Collection

PATIENCE_SECONDS = 10.0
FOLLOWED_AT_ONCE = 4


def to_follow(
    given: Collection[int], followed: Collection[int], stuck: Collection[int]
) -> set[int]:
    """The partitions whose state to follow, of those that are ``given`` to the member next.

    ``followed`` are those that it follows now; some are ``stuck``.
    """
    begun = {each for each in given if each in followed}
    room = max(FOLLOWED_AT_ONCE - len(begun.difference(stuck)), 0)
    return begun.union(sorted(set(given) - begun)[:room])


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


class HandOvers:
    """The partitions that a member hands over now. Another may begin at ``until``."""

    def __init__(self) -> None:
        self.until = math.inf
        self._begun: dict[int, float] = {}

    def begin_one(
        self, to_hand_over: Collection[int], now: float, unseen: Collection[int] = ()
    ) -> int | None:
        """The next one of those that are ``to_hand_over``, which begins now; None if none may.

        ``unseen`` were handed over, and the newest view does not say who has them.
        """
        waiting = set() if unseen else set(to_hand_over) - self._begun.keys()
        last = max(self._begun.values(), default=-math.inf)
        self.until = last + PATIENCE_SECONDS if waiting else math.inf
        if not waiting or now < self.until:
            return None
        partition = min(waiting)
        self._begun[partition] = now
        self.until = now + PATIENCE_SECONDS if len(waiting) > 1 else math.inf
        return partition

    def end_one(self, partition: int) -> None:
        del self._begun[partition]
