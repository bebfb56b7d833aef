"""The numbers of a part of a frame's events. Pure.

Rules
- A frame whose events are for several partitions is sorted into parts without a look at the numbers:
  hardly anybody asks for them. They are found once somebody does, for a part has its events in the
  order of the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from s4node.events.event import EventBatch


class PartNumbers(Sequence[int]):
    """Those of ``events``, which are some of those of the batch ``whole``, in its order."""

    __slots__ = ("_events", "_found", "_whole")

    def __init__(self, whole: EventBatch, events: list[Any]) -> None:
        self._whole = whole
        self._events = events
        self._found: list[int] | None = None

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if self._found is None:
            self._found = self._find()
        return self._found[at]

    def _find(self) -> list[int]:
        found: list[int] = []
        wanted = iter(self._events)
        event = next(wanted, None)
        for index, one in enumerate(self._whole.events):
            if one is event:
                found.append(self._whole.number(index))
                event = next(wanted, None)
        return found
