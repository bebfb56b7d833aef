"""The numbers of the events in the parts of a frame. Pure.

Rules
- A frame with events for several partitions is divided into parts without numbers, because they are
  rarely needed. They are found by event object on the first request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from s4node.events.event import EventBatch


class FrameNumbers:
    """The numbers of the batch ``whole``, by event."""

    __slots__ = ("_by_event", "_whole")

    def __init__(self, whole: EventBatch) -> None:
        self._whole = whole
        self._by_event: dict[int, int] = {}  # by the id of the object

    def numbers_of(self, events: Sequence[Any]) -> list[int]:
        if not self._by_event:
            number = self._whole.number
            self._by_event = {id(e): number(at) for at, e in enumerate(self._whole.events)}
        return [self._by_event[id(event)] for event in events]


class PartNumbers(Sequence[int]):
    """The numbers of ``events``, a part of a frame."""

    __slots__ = ("_events", "_found", "_frame")

    def __init__(self, frame: FrameNumbers, events: list[Any]) -> None:
        self._frame = frame
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
            self._found = self._frame.numbers_of(self._events)
        return self._found[at]
