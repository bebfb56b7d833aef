"""Receipts: what a batch owes to where its events came from, by their numbers. Pure.

Rules
- A progress counts which numbers are done: a producer's lane, or a task's progress in an input. It
  counts piece by piece, an event as soon as its task says so; or whole batches only.
- A batch may be processed in several parts, and some of its numbers be held until something else
  is done. It is done when all parts are, and nothing is held.
- What a progress has given out before it went back counts no more: the events come again.
- Of a batch with events of other tasks, those are put on the way as the task comes past them, in
  their order among its own. So they are part of the same commit as the position behind them,
  wherever that commit is taken. They are done then: the way has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from s4node.events.event import Receipt


class Progress(Protocol):
    """Counts which of its numbers are done."""

    @property
    def by_event(self) -> bool:
        """Whether pieces of a batch count before all of it is done."""
        ...

    @property
    def returns(self) -> int:
        """How often it has gone back."""
        ...

    @property
    def home(self) -> tuple[str, str, int]:
        """System, stream and partition that the events came from."""
        ...

    @property
    def origin(self) -> str:
        """What the numbers count in, in words."""
        ...

    def complete(self, first: int, end: int) -> None:
        """The numbers ``first <= n < end`` are done, each once."""
        ...

    def refused(
        self, receipt: BatchReceipt[Any], number: int, reason: str, event: Any, *, shed: bool
    ) -> None:
        """An event of a batch was not processed; or it was dropped for overload."""
        ...

    def describe(self, number: int) -> str:
        """The position of a number in words, for messages."""
        ...


P = TypeVar("P", bound=Progress)


class BatchReceipt(Generic[P]):
    """What a batch of the numbers ``first <= n < end`` owes to the ``progress`` that counts them.

    There is one of ``parts`` until who cuts the batch says otherwise.
    """

    __slots__ = ("_early", "_held", "_returns", "by_event", "end", "first", "parts", "progress")

    def __init__(self, progress: P, first: int, end: int) -> None:
        self.progress = progress
        self.by_event = progress.by_event
        self.first = first
        self.end = end
        self.parts = 1
        self._returns = progress.returns
        self._early: list[tuple[int, int]] = []
        self._held: set[int] | None = None

    def cut(self, number: int) -> BatchReceipt[P]:
        """The receipt of the events from this number on; this one is for those below it."""
        rest = BatchReceipt(self.progress, number, self.end)
        rest._returns = self._returns
        self.end = number
        return rest

    def done(self) -> None:
        """One part is fully processed; with the last, all that was not said before is."""
        self.parts -= 1
        if self.parts > 0:
            return
        at = self.first
        if self._early:
            for first, end in sorted(self._early):
                if first > at:
                    self._count(at, first)
                at = end
        if at < self.end:
            self._count(at, self.end)

    def passed(self, first: int, end: int) -> None:
        """These numbers are done already, but for those that are held."""
        if not self.by_event:
            return
        for number in sorted(n for n in self._held if first <= n < end) if self._held else ():
            self._completed(first, number)
            first = number + 1
        self._completed(first, end)

    def _completed(self, first: int, end: int) -> None:
        if first < end:
            self._count(first, end)
            if self._early and self._early[-1][1] == first:
                self._early[-1] = self._early[-1][0], end
            else:
                self._early.append((first, end))

    def _count(self, first: int, end: int) -> None:
        if self._returns == self.progress.returns:
            self.progress.complete(first, end)

    def hold(self, number: int) -> None:
        """This number is not done before ``release``, whatever the task says."""
        self.parts += 1
        self._held = self._held or set()
        self._held.add(number)

    def release(self, number: int) -> None:
        """A number that was held is done; its task may yet say so, too."""
        self._completed(number, number + 1)
        self.done()

    def refuse(self, number: int, reason: str, event: Any = None, *, shed: bool = False) -> None:
        """The event of this number was not processed."""
        if self._returns == self.progress.returns:
            self.progress.refused(self, number, reason, event, shed=shed)

    def without(self, gone: Collection[int], numbers: Sequence[int]) -> Receipt:
        """Events are left out and done with; returns the receipt of those of these ``numbers``."""
        if not self.by_event:
            return self
        for number in sorted(gone):
            self.passed(number, number + 1)
        return PartReceipt(self, numbers)

    @property
    def home(self) -> tuple[str, str, int]:
        """Where the events came from."""
        return self.progress.home

    @property
    def origin(self) -> str:
        """What has the numbers."""
        return self.progress.origin

    def describe(self, number: int) -> str:
        """The event's position, for messages."""
        return self.progress.describe(number)


class Strays:
    """Events of other tasks in a batch, by ``number, partition, event``; those ``at`` a number and
    behind it have yet to be sent."""

    __slots__ = ("_next", "_send", "_strays", "at")

    def __init__(
        self,
        strays: Sequence[tuple[int, int, Any]],
        at: int,
        send: Callable[[int, list[Any]], None],
    ) -> None:
        self.at = at
        self._strays = strays
        self._next = 0
        self._send = send

    def send_below(self, end: int) -> int:
        """Send those below a number; returns the number below which that was done before."""
        at, self.at = self.at, end
        shares: dict[int, list[Any]] = {}
        strays = self._strays
        while self._next < len(strays) and strays[self._next][0] < end:
            _, partition, event = strays[self._next]
            shares.setdefault(partition, []).append(event)
            self._next += 1
        for partition, events in shares.items():
            self._send(partition, events)
        return at


class PartReceipt:
    """What a part of a batch owes to the receipt of the ``whole``: these ``numbers`` and no others.

    Where a batch has ``strays`` its task's own part also sends those on, and is done with all that
    it comes past.
    """

    __slots__ = ("_numbers", "_strays", "_whole")

    by_event = True

    def __init__(
        self, whole: BatchReceipt[Any], numbers: Sequence[int], strays: Strays | None = None
    ) -> None:
        self._whole = whole
        self._numbers = numbers
        self._strays = strays

    @property
    def past(self) -> int | None:
        """All below this number is done, whatever was left out of it; None without strays."""
        return None if self._strays is None else self._strays.at

    def done(self) -> None:
        """The part is fully processed."""
        if self._strays is not None:
            self.passed(self._strays.at, self._whole.end)
        self._whole.done()

    def passed(self, first: int, end: int) -> None:
        """Those of the part's numbers that are in this range are done already; with strays it is
        all below the ``end``."""
        if self._strays is not None:
            first = self._strays.send_below(end)
        for start, stop in runs(self._numbers, first, end):
            self._whole.passed(start, stop)

    def refuse(self, number: int, reason: str, event: Any = None, *, shed: bool = False) -> None:
        """The event of this number was not processed."""
        self._whole.refuse(number, reason, event, shed=shed)

    def without(self, gone: Collection[int], numbers: Sequence[int]) -> Receipt:
        """Events are left out and done with, or will be as the task comes past them."""
        return self._whole.without(gone, numbers) if self._strays is None else self

    @property
    def home(self) -> tuple[str, str, int]:
        """Where the events came from."""
        return self._whole.home

    @property
    def origin(self) -> str:
        """What has the numbers."""
        return self._whole.origin

    def describe(self, number: int) -> str:
        """The event's position, for messages."""
        return self._whole.describe(number)


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
