"""The node's side of its producers: what is admitted, and what each producer is told. Pure.

Rules
- Of each (producer, stream, partition) only the next expected number is admitted. What comes
  twice is trimmed; a gap is answered once with "expected n" and dropped: the producer kept it.
- A frame that begins below the credit limit owns its place. One that does not is dropped the same
  way, so a producer that ignores its credit costs no memory.
- A lane's ``safe`` moves when its events are fully processed, shed or refused, never past a hole.
- Verdicts are cumulative: a later one covers an earlier one that could not be sent, and gives no
  credit that it did not tell.
- A producer hears of every refusal: none is passed by the ``upto`` of a verdict that does not tell
  it, and what was told is kept until the producer shows that it heard, for after a reconnect.
- A producer's id belongs to its latest connection. A lane outlives the connection until it
  expires or its producer says end of stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from s4node.comm import frame as wire
from s4node.executors.credit import Credit
from s4node.executors.stage import Stage
from s4node.progress.low_watermark import LowWatermark

MAX_EXCEPTIONS = 256
"""Refusals told one by one in a verdict; the rest follow in the next."""

_REASON = 500
"""Characters of a reason."""


def shortened(reason: str) -> str:
    """A reason of bearable length: it may quote an event, and many travel in one verdict."""
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 40]} [...] {reason[-32:]}"


class ProducerLane:
    """One producer's numbers in one partition of a stream."""

    __slots__ = (
        "_before",
        "_low",
        "_ruled",
        "admission",
        "asked",
        "connection",
        "expected",
        "gap_told",
        "gap_untold",
        "limit",
        "partition",
        "press_at",
        "producer",
        "seen",
        "told_limit",
        "told_upto",
        "unheard",
        "unprocessed",
        "urgent",
    )

    def __init__(self, admission: StreamAdmission, producer: str, partition: int, start: int):
        self.admission = admission
        self.producer = producer
        self.partition = partition
        self.expected = start
        self.limit = start
        self._low = LowWatermark(start)
        self.connection: Hashable | None = None
        self.unprocessed: list[tuple[int, int, str]] = []
        self.unheard: deque[tuple[int, list[tuple[int, int, str]]]] = deque()
        self._ruled: list[tuple[int, int, str]] = []
        self._before = (start, start, start, start)
        self.gap_told = False
        self.gap_untold = False
        self.urgent = False
        self.asked = -1
        self.told_upto = start
        self.told_limit = start
        self.press_at = start
        self.seen = 0.0

    @property
    def safe(self) -> int:
        """Everything below has been dealt with."""
        return self._low.safe

    def complete(self, first: int, end: int) -> None:
        """The numbers ``first <= n < end`` are done."""
        if self._low.complete(first, end):
            self.admission.touched(self)

    def refuse(self, number: int, count: int, reason: str) -> None:
        """The producer will be told that these were not processed."""
        self.unprocessed.append((number, count, shortened(reason)))
        self.admission.refused += count
        self.urgent = True
        self.admission.touched(self)

    @property
    def upto(self) -> int:
        """Everything below has been dealt with, and its refusals have been told."""
        if self.unprocessed:
            return min(self.safe, min(self.unprocessed)[0])
        return self.safe

    def told(self) -> None:
        """The producer knows ``upto`` and ``limit`` as they are now."""
        self.told_upto, self.told_limit = self.upto, self.limit
        self.press_at = self.limit - self.admission.share(self) * 3 // 4

    def ruling(self) -> wire.Ruling:
        """What the producer is to know now; counts as told."""
        self._before = self.limit, self.told_upto, self.told_limit, self.press_at
        self.urgent = False
        self._ruled = []
        if self.asked <= self.safe:
            self.asked = -1
        outcome = wire.ADMITTED
        if self.unprocessed:
            outcome = wire.REFUSED
            exceptions = sorted(self.unprocessed)
            self._ruled, self.unprocessed = exceptions[:MAX_EXCEPTIONS], exceptions[MAX_EXCEPTIONS:]
            self.unheard.append((self.told_limit, self._ruled))
            self.urgent = bool(self.unprocessed) or self.gap_untold
        elif self.gap_untold:
            outcome, self.gap_untold = wire.EXPECTED, False
        if not self.unprocessed:  # more credit only when all refusals so far have been told
            self.limit = self.admission.new_limit(self)
        self.told()
        return wire.Ruling(
            self.partition,
            outcome,
            self.told_upto,
            self.limit,
            self.expected,
            tuple(self._ruled),
        )

    def untold(self) -> None:
        """The last ruling could not be sent: the next one says all of it again."""
        self.limit, self.told_upto, self.told_limit, self.press_at = self._before
        self.urgent = True
        if self._ruled:
            self.unheard.pop()
            self.unprocessed = [*self._ruled, *self.unprocessed]
        self.gap_untold = self.gap_told

    def heard(self, end: int) -> None:
        """The producer has used credit up to ``end``: it heard what had been told before that."""
        while self.unheard and end > self.unheard[0][0]:
            self.unheard.popleft()

    def reopened(self, upto: int) -> None:
        """The producer is back and has heard everything below ``upto``: tell it the rest again."""
        told = [e for _, exceptions in self.unheard for e in exceptions if e[0] >= upto]
        self.unheard.clear()
        self.unprocessed = [*told, *self.unprocessed]
        self.gap_told = self.gap_untold = False
        self.urgent = bool(self.unprocessed)

    @property
    def pressing(self) -> bool:
        """Whether the producer should hear now: it waits, or its window is a quarter used up."""
        return self.urgent or self.safe >= self.press_at or 0 <= self.asked <= self.safe


class FrameReceipt:
    """An admitted frame: its events from ``skip`` on, and the parts still being processed."""

    __slots__ = ("end", "first", "lane", "parts", "skip")

    def __init__(self, lane: ProducerLane, first: int, end: int, skip: int) -> None:
        self.lane, self.first, self.end, self.skip = lane, first, end, skip
        self.parts = 1

    def done(self) -> None:
        """One part is fully processed; with the last the frame is."""
        self.parts -= 1
        if self.parts <= 0:
            self.lane.complete(self.first, self.end)

    def refuse(self, number: int, reason: str) -> None:
        """One event was not processed."""
        self.lane.refuse(number, 1, reason)

    def describe(self, number: int) -> str:
        """Producer and number, for messages."""
        return f"{self.lane.producer}:{number}"


@dataclass
class StreamAdmission:
    """All producers of one input stream on this node.

    ``stages`` are the stream's stages of the partitions that this node owns; there may come more.
    ``notify`` is told of each lane whose producer
    should hear something.
    """

    stream: str
    stages: Mapping[int, Stage]
    notify: Callable[[ProducerLane], None]
    lanes: dict[tuple[str, int], ProducerLane] = field(default_factory=dict)
    frames: int = 0
    admitted: int = 0
    duplicates: int = 0
    gaps: int = 0
    over_credit: int = 0
    refused: int = 0
    _credits: dict[int, Credit[ProducerLane]] = field(default_factory=dict)
    _holding: set[Credit[ProducerLane]] = field(default_factory=set)

    def new_limit(self, lane: ProducerLane) -> int:
        """How far the lane may send now."""
        credit = self._credit(lane.partition)
        limit = credit.limit(lane, lane.safe, lane.limit)
        if credit.holding:
            self._holding.add(credit)
        return limit

    def share(self, lane: ProducerLane) -> int:
        """Events that this lane may have under way."""
        return self._credit(lane.partition).share

    def _credit(self, partition: int) -> Credit[ProducerLane]:
        credit = self._credits.get(partition)
        if credit is None:
            credit = self._credits[partition] = Credit(self.stages[partition])
        return credit

    def touched(self, lane: ProducerLane) -> None:
        """There is something to tell this lane's producer."""
        if lane.connection is not None:
            self.notify(lane)

    def hello(
        self, hello: wire.Hello, connection: Hashable, now: float
    ) -> tuple[wire.Position, ...]:
        """Open or reopen the producer's lanes: where each goes on, and its credit."""
        starts = {position.partition: position.number for position in hello.positions}
        positions = []
        for partition in self.stages:
            lane = self.lanes.get((hello.peer, partition))
            if lane is None:
                start = max(0, starts.get(partition, 0))
                lane = ProducerLane(self, hello.peer, partition, start)
                self.lanes[hello.peer, partition] = lane
            lane.connection, lane.seen = connection, now
            lane.reopened(starts.get(partition, lane.expected))
            self._credit(partition).join(lane)
        for partition in self.stages:  # after all joined, so that shares are right
            lane = self.lanes[hello.peer, partition]
            lane.limit = self.new_limit(lane)
            lane.told()
            positions.append(wire.Position(partition, lane.expected, lane.limit, lane.upto))
            if lane.urgent:
                self.touched(lane)
        return tuple(positions)

    def admit(self, data: wire.Data, connection: Hashable, now: float) -> FrameReceipt | None:
        """Decide on a data frame by its header; None if nothing of it is admitted."""
        lane = self.lanes.get((data.producer, data.partition))
        if lane is None or lane.connection != connection:
            return None  # no hello yet on this connection: what was sent before it comes again
        lane.seen = now
        if data.flags & wire.ANSWER_NOW:
            lane.asked = max(lane.expected, data.first + data.count)
            self.touched(lane)
        end = data.first + data.count
        if data.first > lane.expected:
            self.gaps += 1
            if not lane.gap_told:
                self._tell_expected(lane)
            return None
        if end > lane.expected >= lane.limit:
            self.over_credit += 1
            self._tell_expected(lane)
            return None
        skip = lane.expected - data.first
        self.duplicates += min(skip, data.count)
        if end <= lane.expected:
            lane.urgent = True
            self.touched(lane)
            return None
        lane.gap_told = False
        lane.expected = end
        if lane.unheard:
            lane.heard(end)
        self.frames += 1
        self.admitted += data.count - skip
        return FrameReceipt(lane, data.first + skip, end, skip)

    def connection_of(self, producer: str) -> Hashable | None:
        """The connection that the producer's id belongs to, if it is connected."""
        lane = self.lanes.get((producer, next(iter(self.stages), 0)))
        return None if lane is None else lane.connection

    def _tell_expected(self, lane: ProducerLane) -> None:
        lane.gap_told = lane.gap_untold = lane.urgent = True
        self.touched(lane)

    def released(self) -> None:
        """Room has been made in the stages: serve whom lack of it held back."""
        for credit in [credit for credit in self._holding if not credit.holding]:
            self._holding.discard(credit)
        for credit in list(self._holding):
            for lane in credit.release():
                lane.urgent = True
                self.touched(lane)

    def ask(self, producer: str, connection: Hashable) -> None:
        """The producer wants its verdicts now."""
        for lane in self._of(producer, connection):
            lane.asked = lane.expected  # the answer waits until what has come is processed
            lane.gap_untold = lane.gap_told  # told again: whoever asks may have missed it
            lane.urgent = lane.urgent or lane.gap_untold
            self.touched(lane)

    def gone(self, connection: Hashable, now: float) -> None:
        """The connection is gone; its producers' lanes wait for their return."""
        for lane in self.lanes.values():
            if lane.connection == connection:
                lane.connection, lane.seen = None, now
                self._credit(lane.partition).leave(lane)

    def forget(self, producer: str, connection: Hashable) -> None:
        """The producer is done for good; lanes with work in progress go when they expire."""
        for lane in list(self._of(producer, connection)):
            if lane.safe == lane.expected:
                self._credit(lane.partition).leave(lane)
                del self.lanes[producer, lane.partition]

    def expire(self, before: float) -> int:
        """Forget the producers that have been away since ``before``; returns how many lanes."""
        stale = [
            key
            for key, lane in self.lanes.items()
            if lane.connection is None and lane.seen < before and lane.safe == lane.expected
        ]
        for key in stale:
            del self.lanes[key]
        return len(stale)

    def _of(self, producer: str, connection: Hashable) -> Iterator[ProducerLane]:
        for partition in self.stages:
            lane = self.lanes.get((producer, partition))
            if lane is not None and lane.connection == connection:
                yield lane

    def validate(self) -> None:
        """Assert the rules; for tests."""
        for lane in self.lanes.values():
            assert lane.told_upto <= lane.safe <= lane.expected
            assert lane.told_limit <= lane.limit
            lane._low.validate()
