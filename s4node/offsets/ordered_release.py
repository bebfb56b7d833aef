"""Ordered release: completed events of a partition, in the order in which they began. Pure.

Rules
- Events complete in any order, each once. An event is released once all that began before it are.
- An event that asks for a commit stops the release until that commit has been taken, so the commit
  covers exactly this event. Then the events that completed after it are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)


class OrderedRelease(Generic[E]):
    __slots__ = ("_ended", "_order", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self._order: deque[E] = deque()
        self._ended: dict[E, bool] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, event: E) -> None:
        self._order.append(event)

    def complete(self, event: E, stops: bool = False) -> list[E]:
        """Complete an event; returns what that releases. With ``stops`` it stops the release."""
        assert event not in self._ended
        self._ended[event] = stops
        return self._released()

    def commit_taken(self) -> list[E]:
        self.stopped = False
        return self._released()

    def _released(self) -> list[E]:
        order, ended = self._order, self._ended
        released: list[E] = []
        while order and not self.stopped and order[0] in ended:
            event = order.popleft()
            self.stopped = ended.pop(event)
            released.append(event)
        return released

    def validate(self) -> None:
        assert set(self._ended) <= set(self._order)
        assert self.stopped or not self._order or self._order[0] not in self._ended
