"""Batches with events of several tasks, which are divided by key. Pure.

Rules
- On a fast stream the parts of a frame go to their tasks at once. They have no numbers, because
  these are rarely needed; they are found by event object on the first request.
- On a durable stream the receiving task sends on the events of other tasks.
- The events of other tasks are sent on as the task passes them, in their order among its own. So
  the same commit covers them and the position after them.
- They are done then: the task's outbox has them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

from s4node.events.event import EventBatch
from s4node.events.routing import Router
from s4node.offsets.receipts import BatchReceipt, Onward, PartReceipt, Strays


class SortedOut(NamedTuple):
    """A sorted batch: the task's own ``events`` with their ``numbers`` and ``receipt``.

    ``seen`` events were sorted; ``strays`` are those of other tasks.
    """

    events: list[Any]
    numbers: list[int]
    receipt: PartReceipt
    seen: int
    strays: list[Any]


def sorted_out(
    batch: EventBatch,
    whole: BatchReceipt[Any],
    router: Router,
    onward: Onward,
    sender: str = "",
    most_refused: int = sys.maxsize,
) -> SortedOut:
    """Sort the events of a loaded batch of ``sender`` by task, and refuse those without a key.

    Refusing is slow, so sorting stops after ``most_refused`` refusals.
    """
    events, numbers, home = batch.events, batch.numbers, batch.partition
    if numbers is None:
        numbers = range(batch.first, batch.first + len(events))
    places, failures = router.places(events, most_refused)
    seen = len(places)
    if seen < len(events):
        events, numbers = events[:seen], numbers[:seen]
    for index, reason in failures:
        number, event = numbers[index], events[index]
        whole.refuse(number, f"{reason} (event {event!r})", event)
        whole.complete(number, number + 1)
    strays = Strays(numbers, places, events, whole.first, onward, home, batch.stream, sender)
    routed = [n for n, at in zip(numbers, places, strict=True) if at >= 0] if failures else numbers
    return SortedOut(
        [event for event, at in zip(events, places, strict=True) if at == home],
        [number for number, at in zip(numbers, places, strict=True) if at == home],
        PartReceipt(whole, routed, strays),
        seen,
        [event for event, at in zip(events, places, strict=True) if -1 != at != home],
    )


class FrameNumbers:
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
