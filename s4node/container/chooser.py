"""Message choosers: which of a task's inputs goes next. Pure.

Rules
- An input has at most one batch with the chooser; it offers the next when that one is used up.
- A chooser gives every batch it was offered exactly once.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from s4node.event import EventBatch

I = TypeVar("I")  # noqa: E741 - an input


class MessageChooser(Protocol[I]):
    """Decides the order among the inputs ``I`` of one task."""

    def update(self, source: I, batch: EventBatch) -> None:
        """``source``, which has no batch here, offers one."""
        ...

    def choose(self) -> tuple[I, EventBatch] | None:
        """The batch to process next, or None if there is none."""
        ...


class RoundRobin(Generic[I]):
    """Inputs take turns: first offered, first chosen."""

    __slots__ = ("_offered",)

    def __init__(self) -> None:
        self._offered: deque[tuple[I, EventBatch]] = deque()

    def update(self, source: I, batch: EventBatch) -> None:
        """``source`` offers a batch."""
        self._offered.append((source, batch))

    def choose(self) -> tuple[I, EventBatch] | None:
        """The batch that was offered first."""
        return self._offered.popleft() if self._offered else None
