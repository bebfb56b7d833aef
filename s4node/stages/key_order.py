"""The order of a parallel stream: several events run at a time, each key in order. Pure.

Rules
- At most ``limit`` events are in flight, never two of one key.
- Events of a key begin in the order in which they were added. An event that waits for its key stops
  no event of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, KeysView
from typing import Generic, TypeVar

E = TypeVar("E")


class KeyOrder(Generic[E]):
    """The events ``E`` that have been added and have not ended."""

    __slots__ = ("_behind", "_freed", "_fresh", "limit", "outstanding", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.outstanding = 0
        self.waiting = 0
        self._fresh: deque[tuple[Hashable, E]] = deque()
        self._behind: dict[Hashable, deque[E]] = {}  # waiting events of each key in flight
        self._freed: deque[Hashable] = deque()

    @property
    def keys(self) -> KeysView[Hashable]:
        """The keys with an event in flight, now or a moment ago."""
        return self._behind.keys()

    def add(self, key: Hashable, event: E) -> None:
        self._fresh.append((key, event))
        self.waiting += 1

    @property
    def ready(self) -> bool:
        if self.outstanding >= self.limit:
            return False
        while not self._freed and self._fresh and (key := self._fresh[0][0]) in self._behind:
            self._behind[key].append(self._fresh.popleft()[1])
        return bool(self._freed or self._fresh)

    def begin_event(self) -> tuple[Hashable, E] | None:
        if self.outstanding >= self.limit:
            return None
        if self._freed:
            key = self._freed.popleft()
            return key, self._begun(self._behind[key].popleft())
        while self._fresh:
            key, event = self._fresh.popleft()
            behind = self._behind.get(key)
            if behind is None:
                self._behind[key] = deque()
                return key, self._begun(event)
            behind.append(event)
        return None

    def _begun(self, event: E) -> E:
        self.outstanding += 1
        self.waiting -= 1
        return event

    def end_event(self, key: Hashable) -> None:
        self.outstanding -= 1
        if self._behind[key]:
            self._freed.append(key)
        else:
            del self._behind[key]

    def validate(self) -> None:
        assert 0 <= self.outstanding <= self.limit
        assert self.outstanding == len(self._behind) - len(self._freed)
        assert self.waiting == len(self._fresh) + sum(map(len, self._behind.values()))
