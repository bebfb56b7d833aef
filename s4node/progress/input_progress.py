"""How far a task has processed one partition of an input. Pure.

Rules
- ``safe`` is the offset to go on at after a crash: everything below is fully processed, dropped on
  purpose, or kept elsewhere; it never passes anything else.
- A batch is completed piece by piece: an event counts as soon as its task says so, whatever happens
  to the rest of its batch.
- The events of a batch may be processed by several tasks; the batch still counts here, once each of
  its parts does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from s4node.progress.low_watermark import LowWatermark

Refused = Callable[[object, int, str], None]
"""Called with the input, an offset and a reason, for an event that its task cannot process."""


class InputProgress:
    """The progress of one task in ``source``, read from ``start`` on.

    ``on_refused`` is told of events that a task, whichever it was, could not process.
    """

    __slots__ = ("_low", "committed", "on_refused", "source", "start")

    def __init__(self, source: object, start: int, on_refused: Refused) -> None:
        self.source = source
        self.start = start
        self.committed: int | None = None
        self.on_refused = on_refused
        self._low = LowWatermark(start)

    @property
    def safe(self) -> int:
        """Everything below is done."""
        return self._low.safe

    def complete(self, first: int, end: int) -> None:
        """The offsets ``first <= n < end`` are done."""
        self._low.complete(first, end)

    def receipt(self, first: int, end: int, parts: int = 1) -> InputReceipt:
        """For a batch of these offsets, which comes in so many parts."""
        return InputReceipt(self, first, end, parts)


class InputReceipt:
    """What a batch of an input owes to the progress: done when each of its ``parts`` is."""

    __slots__ = ("_early", "_end", "_first", "_progress", "parts")

    def __init__(self, progress: InputProgress, first: int, end: int, parts: int = 1) -> None:
        self._progress = progress
        self._first = first
        self._end = end
        self._early: list[tuple[int, int]] = []
        self.parts = parts

    def done(self) -> None:
        """One part is fully processed; with the last, all that was not said before is."""
        self.parts -= 1
        if self.parts:
            return
        at = self._first
        for first, end in sorted(self._early):
            if first > at:
                self._progress.complete(at, first)
            at = end
        if at < self._end:
            self._progress.complete(at, self._end)

    def passed(self, first: int, end: int) -> None:
        """These offsets of the batch are done already."""
        if first < end:
            self._progress.complete(first, end)
            if self._early and self._early[-1][1] == first:
                self._early[-1] = self._early[-1][0], end
            else:
                self._early.append((first, end))

    def part(self, numbers: Sequence[int]) -> PartReceipt:
        """For the part that holds these offsets, in order."""
        return PartReceipt(self, numbers)

    def refuse(self, number: int, reason: str) -> None:
        """An event cannot be processed."""
        self._progress.on_refused(self._progress.source, number, reason)

    def shed(self, number: int, count: int, reason: str) -> None:
        """Events were dropped for overload, by another member of the app."""
        for each in range(number, number + count):
            self.refuse(each, reason)

    def describe(self, number: int) -> str:
        """The offset, for messages."""
        return f"{number}"


class PartReceipt:
    """What a part of a batch owes: the offsets ``numbers`` and no others."""

    __slots__ = ("_numbers", "_whole")

    def __init__(self, whole: InputReceipt, numbers: Sequence[int]) -> None:
        self._whole = whole
        self._numbers = numbers

    def done(self) -> None:
        """The part is fully processed."""
        self._whole.done()

    def passed(self, first: int, end: int) -> None:
        """Those of the part's offsets that are in this range are done already."""
        for start, stop in _runs(self._numbers, first, end):
            self._whole.passed(start, stop)

    def refuse(self, number: int, reason: str) -> None:
        """An event cannot be processed."""
        self._whole.refuse(number, reason)

    def shed(self, number: int, count: int, reason: str) -> None:
        """Events were dropped for overload."""
        self._whole.shed(number, count, reason)

    def describe(self, number: int) -> str:
        """The offset, for messages."""
        return self._whole.describe(number)


def _runs(numbers: Sequence[int], first: int, end: int) -> Iterator[tuple[int, int]]:
    """The numbers in a range, as ranges without holes."""
    at = bisect_left(numbers, first)
    start = stop = -1
    while at < len(numbers) and numbers[at] < end:
        number = numbers[at]
        if number != stop:
            if stop >= 0:
                yield start, stop
            start = number
        stop = number + 1
        at += 1
    if stop >= 0:
        yield start, stop
