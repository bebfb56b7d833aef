"""A stage: a bounded queue of batches in front of something that works on them.

Rules
- Sizes count events, not batches.
- A stage never refuses what was granted credit; whoever feeds it asks ``room`` first. Being over
  capacity is possible for a moment (batches are not cut to fit) and stops further credit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from s4node.event import EventBatch


@dataclass(frozen=True)
class StageStatistics:
    """What went through a stage. Counts are events; ``depth`` is what waits now."""

    depth: int
    capacity: int
    admitted: int
    highest: int


class Stage:
    """The queue of one stream in one partition, in order of arrival."""

    __slots__ = ("_batches", "_highest", "admitted", "capacity", "depth")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.depth = 0
        self.admitted = 0
        self._highest = 0
        self._batches: deque[EventBatch] = deque()

    def offer(self, batch: EventBatch) -> None:
        """Put a batch behind the others."""
        size = batch.size
        self._batches.append(batch)
        self.admitted += size
        self.depth += size
        if self.depth > self._highest:
            self._highest = self.depth

    def take(self) -> EventBatch | None:
        """The oldest batch, or None. Its events count as waiting until ``passed``."""
        return self._batches.popleft() if self._batches else None

    def passed(self, events: int) -> None:
        """``events`` of a taken batch have been worked on."""
        self.depth -= events

    @property
    def full(self) -> bool:
        """Whether as many events wait as the stage is meant to hold."""
        return self.depth >= self.capacity

    def statistics(self) -> StageStatistics:
        """Counts since the start."""
        return StageStatistics(self.depth, self.capacity, self.admitted, self._highest)
