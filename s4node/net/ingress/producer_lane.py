"""A producer's lane as its node sees it: how far its numbers are done, and what it is told. Pure.

Rules
- A lane's ``safe`` moves when its events are fully processed, shed or refused, never past a hole.
- Verdicts are cumulative: a later one covers an earlier one that could not be sent, and gives no
  credit that it did not tell.
- A producer hears of all that was refused or shed: none is passed by the ``upto`` of a verdict that
  does not tell it, and what was told is kept until the producer shows that it heard, for after a
  reconnect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol, TypeAlias

from s4node.events.event import LIVE
from s4node.net.ingress.producer_life import Life
from s4node.net.wire import frame as wire
from s4node.offsets.low_watermark import LowWatermark
from s4node.offsets.receipts import BatchReceipt

MAX_EXCEPTIONS = 256
"""Ranges told in a verdict, refused and shed together; the rest follow in the next."""

_REASON = 500
"""Characters of a reason."""


def shortened(reason: str) -> str:
    """A reason of bearable length: it may quote an event, and many travel in one verdict."""
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 40]} [...] {reason[-32:]}"


def origin_of(stream: str, partition: int, producer: str) -> str:
    """What the numbers of a lane count in, in words."""
    return f"{stream}[{partition}]@{producer}"


class Unprocessed(NamedTuple):
    """Numbers that were not processed: ``count`` from ``number`` on."""

    number: int
    count: int  # type: ignore[assignment]  # nobody counts the fields
    reason: str
    shed: bool = False

    @property
    def end(self) -> int:
        """The first number behind them."""
        return self.number + self.count

    @property
    def told(self) -> tuple[int, int, str]:
        """As it stands in a ruling."""
        return self.number, self.count, self.reason


class Untold:
    """What a producer is yet to be told of, the lowest number first.

    Numbers in a row that have one reason are one range. Most come in order, and the last range
    grows in place; the others are a heap, so a verdict costs what it tells, whatever else waits.
    """

    __slots__ = ("_heap", "_last")

    def __init__(self, ranges: Iterable[Unprocessed] = ()) -> None:
        self._heap = list(ranges)
        heapify(self._heap)
        self._last: Unprocessed | None = None

    def add(self, new: Unprocessed) -> None:
        """Tell the producer of this range, too."""
        last = self._last
        if last is None:
            self._last = new
        elif _goes_on(last, new):
            self._last = last._replace(count=last.count + new.count)
        else:
            heappush(self._heap, last)
            self._last = new

    def take(self, most: int) -> list[Unprocessed]:
        """The lowest ranges, in order; they are told now."""
        heap, taken = self._heap, list[Unprocessed]()
        if self._last is not None:
            heappush(heap, self._last)
            self._last = None
        while heap:
            if taken and _goes_on(taken[-1], heap[0]):
                last = taken.pop()
                taken.append(last._replace(count=last.count + heappop(heap).count))
            elif len(taken) < most:
                taken.append(heappop(heap))
            else:
                break
        return taken

    def put_back(self, ranges: Iterable[Unprocessed]) -> None:
        """They were not told after all."""
        for one in ranges:
            heappush(self._heap, one)

    def forget_from(self, number: int) -> None:
        """This number and those behind it were undone, and will come again."""
        self._heap = [
            one._replace(count=min(one.end, number) - one.number)
            for one in self
            if one.number < number
        ]
        heapify(self._heap)
        self._last = None

    @property
    def first(self) -> int | None:
        """The lowest number; None where there is none."""
        heap, last = self._heap, self._last
        if last is None:
            return heap[0].number if heap else None
        return min(heap[0].number, last.number) if heap else last.number

    def __iter__(self) -> Iterator[Unprocessed]:
        yield from self._heap
        if self._last is not None:
            yield self._last

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._heap) + (self._last is not None)


def _goes_on(last: Unprocessed, new: Unprocessed) -> bool:
    return last.end == new.number and last.reason == new.reason and last.shed == new.shed


class LaneOwner(Protocol):
    """What admits a stream's events, as its lanes know it."""

    stream: str
    admitted: int
    left: int
    refused: int
    shed: int

    def touched(self, lane: ProducerLane) -> None:
        """There is something to tell this lane's producer."""
        ...

    def share(self, lane: ProducerLane) -> int:
        """Events that this lane may have under way."""
        ...

    def withholds(self, lane: ProducerLane) -> bool:
        """Whether the lane's producer waits for what is processed."""
        ...

    def new_limit(self, lane: ProducerLane) -> int:
        """How far the lane may send now."""
        ...

    def cuts_of(self, partitions: Iterable[int]) -> list[tuple[int, int]]:
        """The cuts that the tasks of these partitions have made, in pairs with the numbers."""
        ...


class ProducerLane:
    """One producer's numbers in one partition of a stream."""

    __slots__ = (
        "_before",
        "_low",
        "_ruled",
        "admission",
        "asked",
        "connection",
        "ended",
        "expected",
        "gap_first",
        "gap_told",
        "gap_untold",
        "held",
        "life",
        "limit",
        "own_id",
        "partition",
        "period",
        "press_at",
        "producer",
        "seen",
        "told_limit",
        "told_upto",
        "unheard",
        "untold",
        "urgent",
        "weight",
    )

    by_event = False  # its producer hears of whole frames
    returns = 0

    def __init__(self, admission: LaneOwner, producer: str, partition: int, start: int):
        self.admission = admission
        self.producer = producer
        self.partition = partition
        self.life = Life()  # the latest that has said hello
        self.own_id = False  # later lives go on under its id
        self.expected = start
        self.limit = start
        self._low = LowWatermark(start)
        self.connection: Hashable | None = None
        self.ended = False  # its producer has said that nothing more comes
        self.untold = Untold()
        self.unheard: deque[tuple[int, list[Unprocessed]]] | None = None
        self._ruled: list[Unprocessed] = []
        self._before = (start, start, start, start)
        self.held = False  # a frame was left to the producer for lack of room
        self.weight = 0.0  # bytes an event, lately
        self.period = -1
        self.gap_first = -1  # where the last frame behind the gap began
        self.gap_told = False
        self.gap_untold = False
        self.urgent = False
        self.asked = -1
        self.told_upto = start
        self.told_limit = start
        self.press_at = start
        self.seen = 0.0

    @property
    def home(self) -> tuple[str, str, int]:
        """The stream and the partition that its events were sent to."""
        return LIVE, self.admission.stream, self.partition

    @property
    def origin(self) -> str:
        """What has its numbers, in words."""
        return origin_of(self.admission.stream, self.partition, self.producer)

    @property
    def safe(self) -> int:
        """Everything below has been dealt with."""
        return self._low.safe

    @property
    def settled(self) -> int:
        """The producer need not keep anything below."""
        return self._low.safe

    def complete(self, first: int, end: int) -> None:
        """The numbers ``first <= n < end`` are done."""
        if self._low.complete(first, end):
            self.admission.touched(self)

    def refuse(self, number: int, count: int, reason: str) -> None:
        """The producer will be told that these were not processed."""
        self.untold.add(Unprocessed(number, count, shortened(reason)))
        self.admission.refused += count
        self.urgent = True
        self.admission.touched(self)

    def shed(self, number: int, count: int, reason: str) -> None:
        """The producer will be told that these were dropped."""
        self.untold.add(Unprocessed(number, count, shortened(reason), True))
        self.admission.shed += count
        self.admission.touched(self)

    def refused(
        self,
        _receipt: FrameReceipt,
        number: int,
        reason: str,
        _event: Any,
        *,
        shed: bool,
    ) -> None:
        """An event of a frame was not processed, or it was dropped."""
        if shed:
            self.shed(number, 1, reason)
        else:
            self.refuse(number, 1, reason)

    def describe(self, number: int) -> str:
        """Producer and number, for messages."""
        return f"{self.producer}:{number}"

    @property
    def upto(self) -> int:
        """Everything below is settled, and its refusals have been told."""
        first = self.untold.first
        return self.settled if first is None else min(self.settled, first)

    def told(self) -> None:
        """The producer knows ``upto`` and ``limit`` as they are now."""
        self.told_upto, self.told_limit = self.upto, self.limit
        self.press_at = self.limit - self.admission.share(self) * 3 // 4

    @property
    def done(self) -> int:
        """Credit reaches ahead of this number."""
        return self.safe if self.admission.withholds(self) else self.expected

    def ruling(self) -> wire.Ruling:
        """What the producer is to know now; counts as told."""
        self._before = self.limit, self.told_upto, self.told_limit, self.press_at
        self.urgent = False
        self._ruled = []
        if self.asked <= self.settled:
            self.asked = -1
        outcome = wire.ADMITTED
        if self.untold:
            self._ruled = self.untold.take(MAX_EXCEPTIONS)
            outcome = wire.SHED if all(one.shed for one in self._ruled) else wire.REFUSED
            if self.unheard is None:
                self.unheard = deque()
            self.unheard.append((self.told_limit, self._ruled))
            self.urgent = bool(self.untold) or self.gap_untold
        elif self.gap_untold:
            outcome, self.gap_untold = wire.EXPECTED, False
        if not self.untold:  # more credit only when all refusals so far have been told
            self.limit = self.admission.new_limit(self)
        self.told()
        return wire.Ruling(
            self.partition,
            outcome,
            self.told_upto,
            self.limit,
            self.expected,
            tuple(one.told for one in self._ruled if not one.shed),
            "",
            tuple(one.told for one in self._ruled if one.shed),
        )

    def not_told(self) -> None:
        """The last ruling could not be sent: the next one says all of it again."""
        self.limit, self.told_upto, self.told_limit, self.press_at = self._before
        self.urgent = True
        if self._ruled and self.unheard:
            self.unheard.pop()
            self.untold.put_back(self._ruled)
        self.gap_untold = self.gap_told and not self.held

    def heard(self, end: int) -> None:
        """The producer has used credit up to ``end``: it heard what had been told before that."""
        while self.unheard and end > self.unheard[0][0]:
            self.unheard.popleft()

    def left_to_producer(self, number: int) -> None:
        """What has come from this number on will not be processed here, and has not begun."""
        self.admission.admitted -= self.expected - number
        self.admission.left += self.expected - number
        self.expected = number

    def skip(self, start: int) -> None:
        """Another node, which had the partition before, has dealt with everything below."""
        self._low = LowWatermark(start)
        self.expected = self.limit = self.press_at = start
        self.told_upto = self.told_limit = start

    def reopened(self, upto: int) -> None:
        """The producer is back and has heard everything below ``upto``: tell it the rest again."""
        told = [
            one._replace(number=max(one.number, upto), count=one.end - max(one.number, upto))
            for _, exceptions in self.unheard or ()
            for one in exceptions
            if one.end > upto
        ]
        self.unheard = None
        self.untold.put_back(told)
        self.gap_told = self.gap_untold = self.held = False
        self.urgent = bool(self.untold)

    @property
    def pressing(self) -> bool:
        """Whether the producer should hear now: it waits, or its window is a quarter used up."""
        return self.urgent or self.done >= self.press_at or 0 <= self.asked <= self.settled


FrameReceipt: TypeAlias = BatchReceipt[ProducerLane]
