"""A producer's lane in its node: how far its numbers are done, and what it is told. Pure.

Rules
- A lane's ``safe`` moves when its events are fully processed, shed or refused, never past a hole.
- Verdicts are cumulative: a later one covers an earlier one that could not be sent, and gives no
  credit that it did not tell.
- A producer hears of all that was refused or shed: none is passed by the ``upto`` of a verdict that
  does not tell it, and what was told is kept until the producer shows that it heard, for after a
  reconnect.
- What a producer reports of event time holds once all events before it are processed.
- The producer may be a node of the cluster that forwards events. A lane knows then who has sent
  them, until they are settled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol, TypeAlias

from s4node.errors import presentable
from s4node.events.event import LIVE, EventBatch
from s4node.net.ingress.flow import ARRIVALS, NEXT, Flow, Move, On, Presence
from s4node.net.ingress.producer_life import Life
from s4node.net.wire import frame as wire
from s4node.offsets.receipts import BatchReceipt, LowWatermark
from s4node.stages.credit import Credit

MAX_EXCEPTIONS = 256
"""Ranges told in a verdict, refused and shed together; the rest follow in the next."""

MAX_MARKS = 64
"""Reports of event time that wait for events of a lane; further ones replace the last."""

_REASON = 500
"""Characters of a reason."""


def shortened(reason: str) -> str:
    """A reason of bearable length: it may quote an event, and many travel in one verdict."""
    reason = presentable(reason)
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 40]} [...] {reason[-32:]}"


def origin_of(stream: str, partition: int, producer: str) -> str:
    """The unit that the numbers of a lane count, in words."""
    return f"{stream}[{partition}]@{producer}"


class Unprocessed(NamedTuple):
    """Numbers that were not processed: ``count`` of them from ``number`` on."""

    number: int
    count: int  # type: ignore[assignment]  # nobody counts the fields
    reason: str
    shed: bool = False

    @property
    def end(self) -> int:
        """The first number after them."""
        return self.number + self.count

    @property
    def told(self) -> tuple[int, int, str]:
        return self.number, self.count, self.reason


class Untold:
    """The unprocessed numbers that a producer was not told yet, the lowest first.

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

    def pop_lowest(self, most: int) -> list[Unprocessed]:
        """Take the lowest ranges, in order, to tell them now."""
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
        for one in ranges:
            heappush(self._heap, one)

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
    def first(self) -> int | None:
        """The lowest number; None if there is none."""
        heap, last = self._heap, self._last
        if last is None:
            return heap[0].number if heap else None
        return min(heap[0].number, last.number) if heap else last.number

    def __iter__(self) -> Iterator[Unprocessed]:
        yield from self._heap
        if self._last is not None:
            yield self._last

    def __len__(self) -> int:
        return len(self._heap) + (self._last is not None)


def _goes_on(last: Unprocessed, new: Unprocessed) -> bool:
    return last.end == new.number and last.reason == new.reason and last.shed == new.shed


class Mark(NamedTuple):
    """A producer is at ``time`` once all its events before this ``number`` are done.

    ``idle``: it is a task that waits for nothing.
    """

    number: int
    time: float
    idle: bool = False


AT_ONCE = -1.0
"""The patience of those who wait for a commit that no budget may delay."""


class Effects:
    """What frames, steps and commits bring about, until it is carried out between two turns.

    Batches are delivered at once. A second effect of another kind joins the first one. What is
    stale by then is dropped: an answer to a lane without a connection, a commit of a task that has
    gone.
    """

    __slots__ = ("answers", "batches", "commits", "committed")

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []  # for their tasks
        self.answers: dict[ProducerLane, None] = {}  # whose producers are to be told something
        self.commits: dict[int, float] = {}  # by partition: for how many seconds others can wait
        self.committed = False  # hellos that wait for a commit may be answered

    def __bool__(self) -> bool:
        return bool(self.answers or self.commits or self.committed)

    def commit_within(self, partition: int, patience: float) -> None:
        """Have the task of a partition commit within ``patience`` seconds."""
        if patience < self.commits.get(partition, math.inf):
            self.commits[partition] = patience


class LaneOwner(Protocol):
    """The admission of a stream, as far as its lanes know it."""

    stream: str
    effects: Effects
    admitted: int
    left: int
    refused: int
    shed: int

    @property
    def on_time(self) -> Callable[[ProducerLane, Mark], None]:
        """Takes what a lane's producer has reported of its time."""
        ...

    def credit(self, partition: int) -> Credit[ProducerLane]:
        """The credit of a partition's stage, which its lanes share."""
        ...

    def new_limit(self, lane: ProducerLane, share: int) -> int:
        """The first number that the lane may not send yet, if it may have ``share`` in flight."""
        ...

    def cuts_of(self, partitions: Iterable[int]) -> list[tuple[int, int]]:
        """The last cuts of the tasks of these partitions, as pairs of partition and number."""
        ...


@dataclass(eq=False, repr=False, slots=True)
class ProducerLane:
    """One producer's numbers in one partition of a stream."""

    by_event = False  # whole frames are acknowledged
    returns = 0

    admission: LaneOwner
    producer: str
    partition: int
    expected: int
    effects: Effects = field(init=False)
    credit: Credit[ProducerLane] = field(init=False)
    origin: str = field(init=False)  # of its numbers, in words
    life: Life = field(default_factory=Life)  # the latest life that said hello
    own_id: bool = False  # later lives of its producer use the same id
    untimed: bool = False  # a task that reports no time
    left: bool = False  # its program leaves, and may return
    limit: int = field(init=False)
    connection: Hashable | None = None
    presence: Presence = Presence.AWAY
    untold: Untold = field(default_factory=Untold)
    unheard: deque[tuple[int, Sequence[Unprocessed]]] | None = None
    weight: float = 0.0  # bytes an event, lately
    period: int = -1
    gap_first: int = -1  # the first number of the last frame after the gap
    flow: Flow = Flow.OPEN
    urgent: bool = False
    asked: int = -1
    told_upto: int = field(init=False)
    told_limit: int = field(init=False)
    press_at: int = field(init=False)
    seen: float = 0.0
    marks: list[Mark] = field(default_factory=list)
    passed: Mark | None = None  # the last one that was passed on
    _low: LowWatermark = field(init=False)
    _ruled: Sequence[Unprocessed] = ()
    _senders: deque[tuple[str, int]] | None = None  # in runs, each with its end
    _before: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        admission, partition, start = self.admission, self.partition, self.expected
        self.effects = admission.effects
        self.credit = admission.credit(partition)
        self.origin = origin_of(admission.stream, partition, self.producer)
        self._low = LowWatermark(start)
        self.limit = self.told_upto = self.told_limit = self.press_at = start

    @property
    def ssp(self) -> tuple[str, str, int]:
        return LIVE, self.admission.stream, self.partition

    @property
    def safe(self) -> int:
        """Everything below this number is done."""
        return self._low.safe

    @property
    def settled(self) -> int:
        """The producer need not keep events below this number."""
        return self._low.safe

    def on(self, event: On) -> None:
        """Take what has happened; the producer is told if it has to go back."""
        flow = NEXT.get((self.flow, event))
        if flow is not None:
            self.flow = flow
            if flow is Flow.GAP:
                self.urgent = True
                self.effects.answers[self] = None

    def moves(self, how: Move) -> None:
        """Note that its producer comes or goes."""
        self.presence = ARRIVALS.get((self.presence, how), self.presence)

    def complete(self, first: int, end: int) -> None:
        """Note that the numbers ``first <= n < end`` are done."""
        if self._low.complete(first, end):
            self.effects.answers[self] = None
            if self.marks:
                self.pass_marks()

    def mark(self, mark: Mark) -> None:
        """Take what the producer has reported of its time."""
        if len(self.marks) >= MAX_MARKS:
            mark = mark._replace(number=max(mark.number, self.marks.pop().number))
        self.marks.append(mark)
        self.pass_marks()

    @property
    def reported(self) -> float:
        """The time that the producer has reported last; -inf if none."""
        last = self.marks[-1] if self.marks else self.passed
        return -math.inf if last is None else last.time

    def pass_marks(self) -> None:
        """Pass on the times before which all events are done."""
        while self.marks and self.marks[0].number <= self.safe:
            self.passed = self.marks.pop(0)
            self.admission.on_time(self, self.passed)

    def refuse(self, number: int, count: int, reason: str) -> None:
        self.untold.add(Unprocessed(number, count, shortened(reason)))
        self.admission.refused += count
        self.urgent = True
        self.effects.answers[self] = None

    def shed(self, number: int, count: int, reason: str) -> None:
        """Report dropped events to the producer."""
        self.untold.add(Unprocessed(number, count, shortened(reason), True))
        self.admission.shed += count
        self.effects.answers[self] = None

    def refused(
        self,
        _receipt: FrameReceipt,
        number: int,
        reason: str,
        _event: Any,
        *,
        shed: bool,
    ) -> None:
        if shed:
            self.shed(number, 1, reason)
        else:
            self.refuse(number, 1, reason)

    def describe(self, number: int) -> str:
        [(sender, _)] = self.senders(number, number + 1)
        place = f"{self.producer}:{number}"
        return place if sender == self.producer else f"{place} from {sender}"

    def note_senders(self, first: int, runs: Iterable[tuple[str, int]]) -> None:
        """Note who has sent the events from number ``first`` on, as the node that forwards them
        says: in runs, each with its number of events."""
        known = self._senders = self._senders or deque()
        while known and known[0][1] <= self.settled:
            known.popleft()
        noted = known[-1][1] if known else self.settled
        if first > noted:
            known.append((self.producer, first))
        for sender, count in runs:
            first += count
            if first > noted:  # else the frame has come again
                known.append((sender or self.producer, first))

    def senders(self, first: int, end: int) -> list[tuple[str, int]]:
        found = []
        for sender, upto in self._senders or ():
            if first < upto and first < end:
                first = min(upto, end)
                found.append((sender, first))
        return found if first >= end else [*found, (self.producer, end)]

    @property
    def upto(self) -> int:
        """Everything below this number is settled, and its refusals were told."""
        first = self.untold.first
        return self.settled if first is None else min(self.settled, first)

    def told(self, share: int) -> None:
        """Note that the producer is told the current ``upto`` and ``limit``."""
        self.told_upto, self.told_limit = self.upto, self.limit
        self.press_at = self.limit - share * 3 // 4

    @property
    def share(self) -> int:
        """The number of events that this lane may have in flight."""
        return self.credit.share_of(self.weight)

    @property
    def done(self) -> int:
        """The number ahead of which credit reaches."""
        return self._low.safe if self.credit.withholds else self.expected

    def ruling(self) -> wire.Ruling:
        """Make the ruling to send now; it counts as told."""
        self._before = self.limit, self.told_upto, self.told_limit, self.press_at
        self.urgent = False
        self._ruled = ()
        if self.asked <= self.settled:
            self.asked = -1
        outcome = wire.ADMITTED
        if self.untold:
            self._ruled = self.untold.pop_lowest(MAX_EXCEPTIONS)
            outcome = wire.SHED if all(one.shed for one in self._ruled) else wire.REFUSED
            if self.unheard is None:
                self.unheard = deque()
            self.unheard.append((self.told_limit, self._ruled))
            self.urgent = bool(self.untold) or self.flow is Flow.GAP
        elif self.flow is Flow.GAP:
            outcome = wire.EXPECTED
            self.on(On.ANSWERED)
        share = self.share
        if not self.untold:  # more credit only when all refusals so far have been told
            self.limit = self.admission.new_limit(self, share)
        self.told(share)
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
        """Take back the last ruling, which could not be sent; the next one repeats all of it."""
        self.limit, self.told_upto, self.told_limit, self.press_at = self._before
        self.urgent = True
        if self._ruled and self.unheard:
            self.unheard.pop()
            self.untold.put_back(self._ruled)
        self.on(On.LOST)

    def heard(self, end: int) -> None:
        """Note that the producer used credit up to ``end``, so it got the rulings before that."""
        while self.unheard and end > self.unheard[0][0]:
            self.unheard.popleft()

    def left_to_producer(self, number: int) -> None:
        """Leave the events from this number on, none of which has begun, to the producer."""
        self.admission.admitted -= self.expected - number
        self.admission.left += self.expected - number
        self.expected = number

    def skip(self, start: int) -> None:
        """Skip to ``start``: the earlier owner of the partition has done everything below."""
        self._low = LowWatermark(start)
        self.marks.clear()
        self.expected = self.limit = self.press_at = start
        self.told_upto = self.told_limit = start

    def reopened(self, upto: int) -> None:
        """Repeat to a reconnected producer everything from ``upto`` on."""
        told = [
            one._replace(number=max(one.number, upto), count=one.end - max(one.number, upto))
            for _, exceptions in self.unheard or ()
            for one in exceptions
            if one.end > upto
        ]
        self.unheard = None
        self.untold.put_back(told)
        self.on(On.REOPENED)
        self.urgent = bool(self.untold)

    @property
    def pressing(self) -> bool:
        """True if the producer should be told now: it waits, or much of its credit is used."""
        return self.urgent or self.done >= self.press_at or 0 <= self.asked <= self.settled


FrameReceipt: TypeAlias = BatchReceipt[ProducerLane]
