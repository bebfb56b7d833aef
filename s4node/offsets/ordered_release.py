"""The release of completed events of one partition: in the order in which they began. Pure.

Rules
- Events complete in any order, each once; one is released when all that began before it are.
- The release stops after an event that asks for a commit, until the commit has been taken: so it
  covers exactly that event. Events that completed after it are then released at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)


class OrderedRelease(Generic[E]):
    """The events ``E`` that have begun and are not released."""

    __slots__ = ("_ended", "_order", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self._order: deque[E] = deque()
        self._ended: dict[E, bool] = {}

    def __len__(self) -> int:
        return len(self._order)

    def begin(self, event: E) -> None:
        """Append an event."""
        self._order.append(event)

    def complete(self, event: E, stops: bool = False) -> list[E]:
        """The event is done; returns what that releases. It ``stops`` what follows it."""
        assert event not in self._ended
        self._ended[event] = stops
        return self._released()

    def resume(self) -> list[E]:
        """The commit has been taken; returns what that releases."""
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
        """Assert the rules; for tests."""
        assert set(self._ended) <= set(self._order)
        assert self.stopped or not self._order or self._order[0] not in self._ended
