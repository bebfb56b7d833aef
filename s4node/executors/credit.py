"""Credit: how far each producer may send ahead of what has been processed. Pure.

Rules
- A limit is a number of the producer's own sequence: it may send events below it. A limit never
  goes back, so a verdict that comes late does no harm.
- The producers of a stage share its capacity evenly; each may always have one event under way.
- A limit grows by a quarter of the share or not at all: small grants would make small frames.
- While the stage is over capacity a producer with events under way gets no more, and one without
  gets its share: whoever was held back is remembered and served when there is room again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from s4node.executors.stage import Stage

P = TypeVar("P")


class Credit(Generic[P]):
    """The credit of one stage among the producers ``P`` (hashable)."""

    __slots__ = ("_held", "_members", "_stage")

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._members: set[P] = set()
        self._held: set[P] = set()

    def join(self, producer: P) -> None:
        """A producer begins to feed the stage."""
        self._members.add(producer)

    def leave(self, producer: P) -> None:
        """A producer is gone; the others share what it had."""
        self._members.discard(producer)
        self._held.discard(producer)

    @property
    def share(self) -> int:
        """Events that each producer may have between sending and processed."""
        return max(1, self._stage.capacity // max(1, len(self._members)))

    def limit(self, producer: P, safe: int, limit: int) -> int:
        """The producer's new limit, given the number up to which it is processed."""
        if self._stage.full and limit > safe:
            self._held.add(producer)
            return limit
        share = self.share
        grown = safe + share
        return grown if (grown - limit) * 4 >= share else limit

    @property
    def holding(self) -> bool:
        """Whether somebody was held back."""
        return bool(self._held)

    def release(self) -> set[P]:
        """The producers that were held back, once there is room; empty before that."""
        if not self._held or self._stage.full:
            return set()
        released, self._held = self._held, set()
        return released
