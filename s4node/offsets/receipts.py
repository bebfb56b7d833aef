"""Receipts of batches: they report to the source of events which numbers are done. Pure.

Theory of operation

Events come in batches of contiguous numbers. A producer numbers the events of its lane; the events
of an input have offsets. The source needs one answer, ``safe``: all numbers below it are done, so
it may drop these events, and begins at ``safe`` after a crash. ``LowWatermark`` derives it.

Events of a batch do not end in order. Handlers are async or run in threads, a batch is split
between tasks, and a poison event waits for its dead letter. So ``safe`` must not pass a number that
is not done, however many after it are. An example, with ``safe`` at 10:

    complete(10, 12)        safe is 12
    complete(15, 20)        safe is 12, because 12 to 14 still run
    the process is killed   the producer sends 12 to 19 again
    complete(12, 15)        without the crash: safe is 20

If ``safe`` were the highest number that is done, it would be 20 after the second line. The producer
would have dropped 12 to 14, and the crash would have lost them. Events 15 to 19 are processed twice
after the crash, unless the task's state goes back with ``safe``: a commit has both.

A *receipt* counts the parts of one batch, and reports to its *progress* once. A batch that is
split between three tasks has three parts, and is done when the last one is.

Rules
- A progress counts the numbers that are done: a producer's lane, or a task's progress in an input.
  It counts each event as soon as its task reports it (``by_event``), or whole batches only. Whole
  batches are cheaper; only a commit needs single events, because it may begin within a batch.
- ``safe`` never decreases. Each number is completed once: a second time is an error of the caller,
  because it could close a gap that is still open.
- ``hold`` keeps one number open while a dead letter for its event is written. Otherwise a crash
  between the next commit and that write would lose the event: it would be neither in the state nor
  among the dead letters.
- Receipts of batches from before a rollback do not count (``returns``). The events are replayed,
  and a late receipt would complete a number whose replay has not run.
- If a batch has events of other tasks (*strays*), the task sends these on as it passes them, in the
  order of its own events. So the commit that has the position after a stray has the stray, too. If
  they were sent as the batch arrives, a commit in the middle of it would have all strays, but only
  the position of the middle, and a restart would send the later ones a second time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from s4node.events.event import Receipt


class LowWatermark:
    """The low watermark of one producer's or one partition's numbers.

    ``safe`` is the first number that is not done yet.
    """

    __slots__ = ("_waiting", "safe")

    def __init__(self, start: int = 0) -> None:
        self.safe = start
        self._waiting: dict[int, int] = {}

    def complete(self, first: int, end: int) -> bool:
        """Complete the numbers ``first <= n < end``; returns True if ``safe`` moved."""
        if first != self.safe:
            assert first > self.safe, f"{first}..{end} completed twice; safe is {self.safe}"
            self._waiting[first] = end
            return False
        waiting = self._waiting
        while waiting and end in waiting:
            end = waiting.pop(end)
        self.safe = end
        return True

    def validate(self) -> None:
        ends = sorted(self._waiting.items())
        assert all(first > self.safe for first, _ in ends)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))


class Progress(Protocol):
    """Counts which of its numbers are done."""

    @property
    def by_event(self) -> bool:
        """True if events count before their whole batch is done."""
        ...

    @property
    def returns(self) -> int:
        """How often the progress was rolled back."""
        ...

    @property
    def ssp(self) -> tuple[str, str, int]:
        """System, stream and partition of the events."""
        ...

    @property
    def origin(self) -> str:
        """The name of what the numbers count, for messages."""
        ...

    def complete(self, first: int, end: int) -> None: ...

    def refused(
        self, receipt: BatchReceipt[Any], number: int, reason: str, event: Any, *, shed: bool
    ) -> None:
        """Report an event of a batch that was not processed, or was shed."""
        ...

    def describe(self, number: int) -> str: ...

    def senders(self, first: int, end: int) -> list[tuple[str, int]]:
        """The producers that have sent these numbers, in runs: each with the end of its run."""
        ...


P = TypeVar("P", bound=Progress)


class _Counted(Generic[P]):
    __slots__ = ("progress",)

    progress: P

    @property
    def ssp(self) -> tuple[str, str, int]:
        return self.progress.ssp

    @property
    def origin(self) -> str:
        return self.progress.origin

    def describe(self, number: int) -> str:
        return self.progress.describe(number)

    def senders(self, first: int, end: int) -> list[tuple[str, int]]:
        return self.progress.senders(first, end)


class BatchReceipt(_Counted[P]):
    """The receipt of a batch of the numbers ``first <= n < end``, counted by ``progress``.

    The batch has one of ``parts`` unless it is cut.
    """

    __slots__ = ("_early", "_held", "_returns", "by_event", "end", "first", "parts")

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
        """Split off the receipt of the events from ``number`` on."""
        rest = BatchReceipt(self.progress, number, self.end)
        rest._returns = self._returns
        self.end = number
        return rest

    def done(self) -> None:
        """End one part; the last one completes all numbers that were not completed before."""
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

    def complete(self, first: int, end: int) -> None:
        """Complete these numbers early, except those that are held."""
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
        """Keep this number from being done before ``release``, whatever the task says."""
        self.parts += 1
        self._held = self._held or set()
        self._held.add(number)

    def release(self, number: int) -> None:
        """Complete a number that was held; its task may still complete it, too."""
        self._completed(number, number + 1)
        self.done()

    def refuse(self, number: int, reason: str, event: Any = None, *, shed: bool = False) -> None:
        if self._returns == self.progress.returns:
            self.progress.refused(self, number, reason, event, shed=shed)

    def without(self, gone: Collection[int], numbers: Sequence[int]) -> Receipt:
        """Complete the skipped events; returns the receipt of those with these ``numbers``."""
        if not self.by_event:
            return self
        for number in sorted(gone):
            self.complete(number, number + 1)
        return PartReceipt(self, numbers)


class Onward(Protocol):
    """The way of events from one task to others."""

    def put(
        self, home: int, stream: str, partition: int, events: Sequence[Any], sender: str = ""
    ) -> None: ...


@dataclass(eq=False, repr=False, slots=True)
class Strays:
    """The events of other tasks among ``events`` of a batch of ``stream``; ``places`` are their
    partitions, and -1 for an event that is left out. Those from number
    ``at`` on are still to be put ``onward`` by the task of ``home``, for their ``sender``.
    """

    numbers: Sequence[int]
    places: Sequence[int]
    events: Sequence[Any]
    at: int
    onward: Onward
    home: int
    stream: str
    sender: str
    _next: int = 0

    def send_below(self, end: int) -> int:
        """Send the events below ``end``; returns the number below which they were sent before."""
        at, self.at = self.at, end
        first, self._next = self._next, bisect_left(self.numbers, end, self._next)
        shares: defaultdict[int, list[Any]] = defaultdict(list)
        places = self.places[first : self._next]
        for place, event in zip(places, self.events[first : self._next], strict=True):
            shares[place].append(event)
        for partition, events in shares.items():
            if partition not in (self.home, -1):
                self.onward.put(self.home, self.stream, partition, events, self.sender)
        if self._next == len(self.numbers):  # a receipt may live until the next commit
            self.numbers, self.places, self.events, self._next = (), (), (), 0
        return at


class PartReceipt(_Counted[Any]):
    """The receipt of a part of the batch of ``whole``: these ``numbers`` and no others.

    If the batch has ``strays``, the part of the batch's own task also sends those, and completes
    every number that it passes.
    """

    __slots__ = ("_numbers", "_strays", "_whole")

    by_event = True

    def __init__(
        self, whole: BatchReceipt[Any], numbers: Sequence[int], strays: Strays | None = None
    ) -> None:
        self.progress = whole.progress
        self._whole = whole
        self._numbers = numbers
        self._strays = strays

    @property
    def past(self) -> int | None:
        """Every number below this one is done, skipped ones as well; None without strays."""
        return None if self._strays is None else self._strays.at

    def done(self) -> None:
        if self._strays is not None:
            self.complete(self._strays.at, self._whole.end)
        self._whole.done()

    def complete(self, first: int, end: int) -> None:
        """Complete the part's numbers in this range early; with strays, all numbers below
        ``end``."""
        if self._strays is not None:
            first = self._strays.send_below(end)
        for start, stop in runs(self._numbers, first, end):
            self._whole.complete(start, stop)

    def refuse(self, number: int, reason: str, event: Any = None, *, shed: bool = False) -> None:
        self._whole.refuse(number, reason, event, shed=shed)

    def without(self, gone: Collection[int], numbers: Sequence[int]) -> Receipt:
        """Complete the skipped events, or leave that to the task as it passes them."""
        return self._whole.without(gone, numbers) if self._strays is None else self


def runs(numbers: Sequence[int], first: int, end: int) -> Iterator[tuple[int, int]]:
    """The numbers from ``first`` to before ``end``, as contiguous ranges."""
    at, upto = bisect_left(numbers, first), bisect_left(numbers, end)
    while at < upto:
        start = numbers[at]
        if numbers[upto - 1] - start == upto - 1 - at:  # the usual case
            yield start, numbers[upto - 1] + 1
            return
        stop = start + 1
        at += 1
        while at < upto and numbers[at] == stop:
            stop += 1
            at += 1
        yield start, stop
