"""Message choosers: which of a task's inputs goes next. Pure.

Rules
- An input has at most one batch with the chooser; it offers the next when that one is used up.
- A chooser gives every batch it was offered exactly once, and those of inputs that may not go now
  later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from s4node.event import EventBatch

I = TypeVar("I")  # noqa: E741 - an input


class MessageChooser(Protocol[I]):
    """Decides the order among the inputs ``I`` of one task."""

    def update(self, source: I, batch: EventBatch) -> None:
        """``source``, which has no batch here, offers one."""
        ...

    def choose(self, may: Callable[[I], bool] | None = None) -> tuple[I, EventBatch] | None:
        """The batch to process next, of an input that ``may`` go; None if there is none."""
        ...

    def __len__(self) -> int:
        """How many batches are here."""
        ...


class RoundRobin(Generic[I]):
    """Inputs take turns: first offered, first chosen."""

    __slots__ = ("_offered",)

    def __init__(self) -> None:
        self._offered: deque[tuple[I, EventBatch]] = deque()

    def update(self, source: I, batch: EventBatch) -> None:
        """``source`` offers a batch."""
        self._offered.append((source, batch))

    def choose(self, may: Callable[[I], bool] | None = None) -> tuple[I, EventBatch] | None:
        """The batch that was offered first, among those that may go."""
        offered = self._offered
        if not offered:
            return None
        if may is None or may(offered[0][0]):
            return offered.popleft()
        for index, (source, batch) in enumerate(offered):
            if index and may(source):
                del offered[index]
                return source, batch
        return None

    def __len__(self) -> int:
        """How many batches are here."""
        return len(self._offered)
