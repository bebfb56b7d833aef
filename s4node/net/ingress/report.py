"""The answers that the producer of a lane has had, and those to come. Pure.

Rules
- All that was refused or shed is reported: none is passed by the ``upto`` of a verdict that does
  not report it, and what was reported is repeated after a reconnect, until the producer shows that
  it has it.
- A verdict has refusals below a number that its lane gives: those that no rollback undoes.
- A verdict that could not be sent takes its credit back; the next one repeats all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from s4node.errors import presentable

MAX_EXCEPTIONS = 256
"""Ranges in a verdict, refused and shed together; the rest follow in the next."""

_REASON = 500
"""Characters of a reason."""


def shortened(reason: str) -> str:
    """A reason of bearable length: it may quote an event, and many travel in one verdict."""
    reason = presentable(reason)
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 40]} [...] {reason[-32:]}"


class Unprocessed(NamedTuple):
    """Numbers that were not processed: ``count`` of them from ``number`` on."""

    number: int
    count: int  # type: ignore[assignment]  # nobody counts the fields
    reason: str
    shed: bool = False

    @property
    def end(self) -> int:
        return self.number + self.count

    @property
    def exception(self) -> tuple[int, int, str]:
        return self.number, self.count, self.reason


class Pending:
    """The unprocessed numbers that were not reported to a producer yet, the lowest first.

    Consecutive numbers with the same reason are one range. Most come in order, and extend the last
    range; the others are in a heap, so the cost of a verdict does not depend on what else waits.
    """

    __slots__ = ("_heap", "_last")

    def __init__(self) -> None:
        self._heap: list[Unprocessed] = []
        self._last: Unprocessed | None = None

    def add(self, new: Unprocessed) -> None:
        last = self._last
        if last is None:
            self._last = new
        elif _goes_on(last, new):
            self._last = last._replace(count=last.count + new.count)
        else:
            heappush(self._heap, last)
            self._last = new

    def pop_lowest(self, most: int, below: int) -> list[Unprocessed]:
        """Take the lowest ranges of numbers ``below`` one, in order, to report them now."""
        heap, taken = self._heap, list[Unprocessed]()
        if self._last is not None:
            heappush(heap, self._last)
            self._last = None
        while heap and heap[0].number < below:
            if taken and _goes_on(taken[-1], heap[0]):
                last = taken.pop()
                taken.append(last._replace(count=last.count + heappop(heap).count))
            elif len(taken) < most:
                taken.append(heappop(heap))
            else:
                break
        if taken and taken[-1].end > below:
            last = taken.pop()
            taken.append(last._replace(count=below - last.number))
            heappush(heap, last._replace(number=below, count=last.end - below))
        return taken

    def forget_from(self, number: int) -> None:
        """Forget this number and later ones, which were rolled back and will be resent."""
        self._heap = [
            one._replace(count=min(one.end, number) - one.number)
            for one in self
            if one.number < number
        ]
        heapify(self._heap)
        self._last = None

    @property
    def first(self) -> int:
        return min(one.number for one in (*self._heap[:1], self._last) if one is not None)

    def __iter__(self) -> Iterator[Unprocessed]:
        yield from self._heap
        if self._last is not None:
            yield self._last

    def __len__(self) -> int:
        return len(self._heap) + (self._last is not None)


def _goes_on(last: Unprocessed, new: Unprocessed) -> bool:
    return last.end == new.number and last.reason == new.reason and last.shed == new.shed


@dataclass(eq=False, repr=False, slots=True)
class Report:
    """The answers to a producer, from the number ``sent_upto`` on.

    ``sent_upto`` and ``sent_limit`` are of the last verdict, ``unconfirmed`` are refusals that were
    reported with the credit of that time. A verdict is sent at once if it is ``urgent``, if its
    credit is used up to ``press_at``, or if numbers up to ``asked`` are settled.
    """

    sent_upto: int
    sent_limit: int
    press_at: int
    pending: Pending | None = None  # if there is any
    unconfirmed: deque[tuple[int, Sequence[Unprocessed]]] | None = None
    urgent: bool = False
    asked: int = -1
    ruled: Sequence[Unprocessed] = ()  # by the last verdict
    before: tuple[int, int, int, int] = (0, 0, 0, 0)  # that one

    def add(self, *unprocessed: Unprocessed) -> None:
        for one in unprocessed:
            self.pending = self.pending or Pending()
            self.pending.add(one)

    def skip(self, start: int) -> None:
        self.sent_upto = self.sent_limit = self.press_at = start

    def has_below(self, number: int) -> bool:
        return self.pending is not None and self.pending.first < number

    @property
    def is_full(self) -> bool:
        return self.pending is not None and len(self.pending) > MAX_EXCEPTIONS

    def next_exceptions(self, below: int) -> Sequence[Unprocessed]:
        if self.pending is None or self.pending.first >= below:
            return ()
        taken = self.pending.pop_lowest(MAX_EXCEPTIONS, below)
        self.unconfirmed = self.unconfirmed or deque()
        self.unconfirmed.append((self.sent_limit, taken))
        self.pending = self.pending or None
        self.urgent = self.has_below(below)
        return taken

    def take_back(self) -> int:
        """Take back the last verdict, which could not be sent; return the limit before it."""
        limit, self.sent_upto, self.sent_limit, self.press_at = self.before
        self.urgent = True
        if self.ruled and self.unconfirmed:
            self.unconfirmed.pop()
            self.add(*self.ruled)
        return limit

    def forget_from(self, number: int) -> None:
        if self.pending is not None:
            self.pending.forget_from(number)
            self.pending = self.pending or None

    def confirm(self, end: int) -> None:
        """Note that the producer used credit up to ``end``, so it got the verdicts before that."""
        while self.unconfirmed and end > self.unconfirmed[0][0]:
            self.unconfirmed.popleft()

    def reopened(self, upto: int) -> None:
        """Repeat to a reconnected producer everything from ``upto`` on."""
        again = [
            one._replace(number=max(one.number, upto), count=one.end - max(one.number, upto))
            for one in self._reported
            if one.end > upto
        ]
        self.unconfirmed = None
        self.add(*again)

    def restore(self, saved: Sequence[tuple[int, int, str, bool]]) -> None:
        """Go on with refusals that an earlier owner of the partition has reported, or not."""
        if saved:
            self.unconfirmed = deque([(self.sent_limit, [Unprocessed(*one) for one in saved])])

    def saved(self, below: int) -> tuple[Unprocessed, ...]:
        """All refusals of numbers ``below`` one that the producer may not know."""
        return tuple(
            one._replace(count=min(one.end, below) - one.number)
            for one in (*self._reported, *(self.pending or ()))
            if one.number < below
        )

    @property
    def _reported(self) -> Iterator[Unprocessed]:
        return (one for _, exceptions in self.unconfirmed or () for one in exceptions)
