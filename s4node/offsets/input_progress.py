"""How far a task has processed one partition of an input. Pure.

Rules
- ``safe`` is the offset at which a restart resumes: everything below is fully processed, dropped on
  purpose, or saved elsewhere; it never passes anything else.
- A batch is completed piece by piece: an event counts as soon as its task says so, whatever happens
  to the rest of its batch.
- The events of a batch may be processed by several tasks; the batch still counts here, once each of
  its parts does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from s4node.events.event import EventBatch, Receipt
from s4node.offsets.low_watermark import LowWatermark

if TYPE_CHECKING:
    from s4node.offsets.system import SystemStreamPartition

Refused = Callable[["InputReceipt", int, str], None]
"""Called with a batch's receipt, an offset and a reason, for an event that cannot be processed."""


class InputProgress:
    """The progress of one task in ``ssp``, read from ``start`` on.

    ``committed`` is the offset at which a restart would resume, None while there is none.
    ``on_refused`` is called with events that a task, whichever it was, could not process,
    ``on_safe`` with the new ``safe`` after each batch or piece of one, if set. ``startpoints`` are
    the ids of those that its ``start`` comes from, until that is committed.
    """

    __slots__ = (
        "_low",
        "committed",
        "epoch",
        "on_refused",
        "on_safe",
        "origin",
        "ssp",
        "start",
        "startpoints",
    )

    def __init__(self, ssp: SystemStreamPartition, start: int, on_refused: Refused) -> None:
        self.ssp = ssp
        self.origin = str(ssp)
        self.start = start
        self.committed: int | None = None
        self.epoch = 0
        """The epoch of the partition as of which ``safe`` is known; 0 where there are none."""
        self.on_refused = on_refused
        self.on_safe: Callable[[int], None] | None = None
        self.startpoints: frozenset[str] = frozenset()
        self._low = LowWatermark(start)

    @property
    def safe(self) -> int:
        return self._low.safe

    def complete(self, first: int, end: int) -> None:
        """The offsets ``first <= n < end`` are done."""
        self._low.complete(first, end)
        if self.on_safe is not None:
            self.on_safe(self._low.safe)


def taken(
    progress: Mapping[SystemStreamPartition, InputProgress],
) -> tuple[dict[SystemStreamPartition, int], frozenset[str]]:
    """What a commit takes of a task at this moment: offsets, and consumed startpoints."""
    consumed: set[str] = set()
    for each in progress.values():
        if each.startpoints:
            consumed |= each.startpoints
    return {ssp: each.safe for ssp, each in progress.items()}, frozenset(consumed)


class Pieces:
    """Counts the numbers ``first <= n < end`` as done, piece by piece.

    They are all done when each of ``parts`` is. There is one part until the batch is cut. A
    subclass says where they are counted.
    """

    __slots__ = ("_early", "_held", "end", "first", "parts")

    by_event = True

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end
        self.parts = 1
        self._early: list[tuple[int, int]] = []
        self._held: set[int] = set()

    def count(self, first: int, end: int) -> None:
        """These numbers are done, each once."""
        raise NotImplementedError

    def done(self) -> None:
        """One part is fully processed; the last one completes all numbers that are left."""
        self.parts -= 1
        if self.parts:
            return
        at = self.first
        for first, end in sorted(self._early):
            if first > at:
                self.count(at, first)
            at = end
        if at < self.end:
            self.count(at, self.end)

    def passed(self, first: int, end: int) -> None:
        """These numbers are done already, except those that are held."""
        for number in sorted(n for n in self._held if first <= n < end) if self._held else ():
            self._completed(first, number)
            first = number + 1
        self._completed(first, end)

    def _completed(self, first: int, end: int) -> None:
        if first < end:
            self.count(first, end)
            if self._early and self._early[-1][1] == first:
                self._early[-1] = self._early[-1][0], end
            else:
                self._early.append((first, end))

    def hold(self, number: int) -> None:
        """Do not count this number before ``release``, whatever the task says."""
        self.parts += 1
        self._held.add(number)

    def release(self, number: int) -> None:
        """A held number is done; its task may yet say so, too."""
        self._completed(number, number + 1)
        self.done()


class InputReceipt(Pieces):
    """Counts the offsets ``first <= n < end`` of an input in its progress.

    ``batch`` holds their events.
    """

    __slots__ = ("batch", "progress")

    def __init__(self, progress: InputProgress, first: int, end: int, batch: EventBatch) -> None:
        super().__init__(first, end)
        self.progress = progress
        self.batch = batch

    def count(self, first: int, end: int) -> None:
        self.progress.complete(first, end)

    def part(self, numbers: Sequence[int]) -> InputPart:
        """The receipt of the part that holds these offsets, in order."""
        return InputPart(self, numbers)

    def refuse(self, number: int, reason: str) -> None:
        self.progress.on_refused(self, number, reason)

    def shed(self, number: int, count: int, reason: str) -> None:
        """Events were dropped for overload, by another container of the app."""
        for each in range(number, number + count):
            self.refuse(each, reason)

    def without(self, reasons: Mapping[int, str], numbers: list[int], /) -> InputPart:
        """Skip events; returns the receipt of those of these ``numbers``."""
        for number in sorted(reasons):
            self.passed(number, number + 1)
        return InputPart(self, numbers)

    @property
    def home(self) -> tuple[str, str, int]:
        return self.progress.ssp

    @property
    def origin(self) -> str:
        return self.progress.origin

    def describe(self, number: int) -> str:
        return f"{number}"


class PartReceipt:
    """Reports a part of a batch, these ``numbers`` and no others, to the receipt of the
    ``whole``."""

    __slots__ = ("_numbers", "_whole")

    by_event = True

    def __init__(self, whole: Receipt, numbers: Sequence[int]) -> None:
        self._whole = whole
        self._numbers = numbers

    def done(self) -> None:
        self._whole.done()

    def passed(self, first: int, end: int) -> None:
        """Those of the part's numbers that are in this range are done already."""
        for start, stop in runs(self._numbers, first, end):
            self._whole.passed(start, stop)

    def refuse(self, number: int, reason: str) -> None:
        self._whole.refuse(number, reason)

    def shed(self, number: int, count: int, reason: str) -> None:
        self._whole.shed(number, count, reason)

    def without(self, reasons: Mapping[int, str], numbers: list[int], /) -> Receipt:
        return self._whole.without(reasons, numbers)

    @property
    def home(self) -> tuple[str, str, int]:
        return self._whole.home

    @property
    def origin(self) -> str:
        return self._whole.origin

    def describe(self, number: int) -> str:
        return self._whole.describe(number)


class InputPart(PartReceipt):
    """A part of a batch of an input."""

    __slots__ = ()

    def describe(self, number: int) -> str:
        """Partition and offset, for messages: its task may be that of another partition."""
        return f"{self.origin}:{super().describe(number)}"


def runs(numbers: Sequence[int], first: int, end: int) -> Iterator[tuple[int, int]]:
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
