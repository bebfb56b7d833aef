"""A producer's lane in its node: how far its numbers are done, and what is acknowledged. Pure.

Theory of operation

A producer numbers the events that it sends to one partition, and keeps each of them until its node
says that it need not. The node has a *lane* for it, which is four numbers:

    upto <= settled <= safe <= expected

``expected`` is the next number that enters. A frame below it is a duplicate. A frame after it shows
that one between was lost or left out, so it is dropped, and the producer has to go back. Everything
below ``safe`` is done: processed, shed or refused. Everything below ``settled`` need not be sent
again: on a durable stream that is what commits have (:mod:`s4node.net.ingress.settlement`),
otherwise it is ``safe``. A *verdict* says ``upto``: the producer drops the events below it.

Frames, verdicts and connections are lost at any moment. So a verdict is cumulative: a later one
covers those before it. But it cannot repeat all refusals so far. So ``upto`` stops before the first
one that no verdict has reported yet. An example with refusals, of which a verdict has at most 256:

    0 to 999 come, every third is refused     expected is 1000
    all are done                              safe and settled are 1000
    a verdict reports 256 refusals            upto is 768, which is the next one
    the connection breaks                     the producer keeps 768 and later events
    it says hello from 768 on                 a verdict reports the other 78, and upto is 1000

If the first verdict had said 1000, the producer would have dropped 768 and 77 other refused events,
and would never have known that nobody processed them.

What was reported may not have arrived, so it is kept. A producer shows that it has a verdict when
it uses credit that no earlier one gave, or says hello with a later number:

    a verdict reports that 12 is refused, with limit 200 after 100     12 is kept
    the connection breaks before that arrives, a hello says 10         12 is reported again
    number 100 comes                                                   12 has arrived

On a durable stream a refusal is reported once a commit has settled it. Until then it may be rolled
back: the event comes again, perhaps with another number after a repartition, and may be processed.

Rules
- ``safe`` never passes a hole. Credit reaches ahead of ``safe``, or of ``expected`` if the stage
  drops.
- No ``upto`` passes a refusal that was not reported. Those that may not have arrived are repeated
  after a reconnect. None is reported that a rollback may undo.
- A verdict that could not be sent takes its credit back; the next one repeats all of it.
- A producer is asked to go back once, until it has (:mod:`s4node.net.ingress.flow`).
- What a producer reports of event time holds once all events before it are processed.
- After a rollback a lane expects uncommitted numbers again, and receipts from before it are void.
- The producer may be a node of the cluster that forwards events. A lane knows then who has sent
  them, until they are settled.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from s4node.events.event import LIVE, EventBatch
from s4node.net.ingress.flow import ARRIVALS, NEXT, Flow, Move, On, Presence
from s4node.net.ingress.producer_life import Life
from s4node.net.ingress.report import Report, Unprocessed, shortened
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import SavedProducer
from s4node.offsets.receipts import BatchReceipt, LowWatermark
from s4node.stages.stage import Credit

MAX_MARKS = 64
"""Reports of event time that wait for events of a lane; further ones replace the last."""


def origin_of(stream: str, partition: int, producer: str) -> str:
    """The unit that the numbers of a lane count, as text."""
    return f"{stream}[{partition}]@{producer}"


class Mark(NamedTuple):
    """A producer is at ``time`` once all its events before this ``number`` are done.

    ``idle``: it is a task that waits for nothing.
    """

    number: int
    time: float
    idle: bool = False


Greeted: TypeAlias = tuple[Hashable, str, str]
"""Whose hello it is: the connection, the stream and the producer."""


class WaitingHello(NamedTuple):
    """A hello whose answer waits for commits. There is none yet if it must be handled again."""

    hello: wire.Hello
    answer: wire.Hello | None


class Effects:
    """The effects of frames, steps and commits, until it is carried out between two turns.

    Batches are delivered at once, and times before a commit. A second effect of another kind joins
    the first one. What is stale by then is dropped: an answer to a lane without a connection, a
    time after events that were rolled back, a commit of a task that has gone, a hello of a
    connection that has ended.
    """

    __slots__ = ("answers", "batches", "commits", "committed", "hellos", "times")

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []  # for their tasks
        self.answers: dict[ProducerLane, None] = {}  # whose producers are to get a verdict
        self.times: list[tuple[ProducerLane, Mark]] = []  # what producers have reported, that holds
        self.commits: dict[int, float] = {}  # by partition: for how many seconds others can wait
        self.hellos: dict[Greeted, WaitingHello] = {}  # that wait for commits
        self.committed = False  # hellos that wait for a commit may be answered

    def __bool__(self) -> bool:
        return bool(self.answers or self.times or self.commits or self.committed)

    def commit_within(self, partition: int, patience: float) -> None:
        """Have the task of a partition commit within ``patience`` seconds."""
        if patience < self.commits.get(partition, math.inf):
            self.commits[partition] = patience


class Settlement:
    """When the numbers of a lane are settled: by this one, once they are safe."""

    __slots__ = ("lane",)

    def __init__(self, lane: ProducerLane) -> None:
        self.lane = lane

    @property
    def is_noted(self) -> bool:
        """True if the next commit takes the lane."""
        return False

    @property
    def cut(self) -> int:
        """The last cut of the task that commits; 0 if none does."""
        return 0

    def moved(self) -> None:
        """Note that more of the lane is safe, though not settled by that."""

    def asked(self) -> None:
        """Note that the producer asks for its verdicts."""

    def bound(self, limit: int, share: int) -> int:  # noqa: ARG002
        """The new limit of the lane, which has this ``share`` and whose credit reaches there."""
        return limit


class LaneOwner(Protocol):
    """The admission of a stream, as far as its lanes know it."""

    stream: str
    effects: Effects
    admitted: int
    left: int
    refused: int
    shed: int

    def new_limit(self, lane: ProducerLane, share: int) -> int:
        """The first number that the lane may not send yet, if it may have ``share`` in flight."""
        ...


@dataclass(eq=False, repr=False, slots=True)
class ProducerLane:
    """One producer's numbers in one partition of a stream."""

    admission: LaneOwner
    producer: str
    partition: int
    expected: int
    credit: Credit[ProducerLane]  # which all lanes of its stage share
    safe: int = field(init=False)  # everything below is done
    settled: int = field(init=False)  # the producer need not keep events below
    settlement: Settlement = field(init=False)
    by_event: bool = False  # else whole frames are acknowledged
    returns: int = 0  # rollbacks of its task
    effects: Effects = field(init=False)
    origin: str = field(init=False)  # of its numbers, as text
    life: Life = field(default_factory=Life)  # the latest life that said hello
    own_id: bool = False  # later lives of its producer use the same id
    untimed: bool = False  # a task that reports no time
    of_app: bool = False  # an app puts the events, maybe of this one
    left: bool = False  # its program leaves, and may return
    limit: int = field(init=False)
    connection: Hashable | None = None
    presence: Presence = Presence.AWAY
    report: Report = field(init=False)
    weight: float = 0.0  # bytes an event, lately
    period: int = -1
    gap_first: int = -1  # the first number of the last frame after the gap
    flow: Flow = Flow.OPEN
    seen: float = 0.0
    marks: list[Mark] = field(default_factory=list)
    passed: Mark | None = None  # the last one that was passed on
    _low: LowWatermark = field(init=False)
    _senders: deque[tuple[str, int]] | None = None  # in runs, each with its end

    def __post_init__(self) -> None:
        admission, start = self.admission, self.expected
        self.effects = admission.effects
        self.origin = origin_of(admission.stream, self.partition, self.producer)
        self.limit = self.safe = self.settled = start
        self.settlement = Settlement(self)
        self.report = Report(start, start, start)
        self._low = LowWatermark(start)

    @property
    def ssp(self) -> tuple[str, str, int]:
        return LIVE, self.admission.stream, self.partition

    def take_hello(self, headers: wire.Headers) -> None:
        self.untimed = headers.get(wire.UNTIMED) is True
        apps = {wire.APP, wire.CLUSTER}
        self.of_app = self.producer.startswith(wire.TASK) or not apps.isdisjoint(headers)
        self.left = False

    def on(self, event: On) -> None:
        """Take what has happened; the producer is asked to go back if it has to."""
        flow = NEXT.get((self.flow, event))
        if flow is not None:
            self.flow = flow
            if flow is Flow.GAP:
                self.report.urgent = True
                self.effects.answers[self] = None

    def moves(self, how: Move) -> None:
        self.presence = ARRIVALS.get((self.presence, how), self.presence)

    def complete(self, first: int, end: int) -> None:
        """Note that the numbers ``first <= n < end`` are done."""
        if self._low.complete(first, end):
            self.safe = self._low.safe
            if self.marks:
                self.pass_marks()
            if self.by_event:
                self.settlement.moved()
            else:
                self.settled = self.safe
                self.effects.answers[self] = None

    def mark(self, mark: Mark) -> None:
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
            self.effects.times.append((self, self.passed))

    def refuse(self, number: int, count: int, reason: str) -> None:
        self.report.add(Unprocessed(number, count, shortened(reason)))
        self.admission.refused += count
        if number < self.final:
            self.report.urgent = True
            self.effects.answers[self] = None

    def shed(self, number: int, count: int, reason: str) -> None:
        """Report dropped events to the producer."""
        self.report.add(Unprocessed(number, count, shortened(reason), True))
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
        """Everything below this number is settled, and its refusals were reported."""
        pending = self.report.pending
        return self.settled if pending is None else min(self.settled, pending.first)

    @property
    def final(self) -> int:
        """Refusals below this number hold, whatever happens, and may be reported."""
        return self.settled if self.by_event else sys.maxsize

    def note_sent(self, share: int) -> None:
        """Note that a verdict has the current ``upto`` and ``limit``."""
        report = self.report
        report.sent_upto, report.sent_limit = self.upto, self.limit
        report.press_at = self.limit - share * 3 // 4

    @property
    def share(self) -> int:
        """The number of events that this lane may have in flight."""
        return self.credit.share_of(self.weight)

    @property
    def done(self) -> int:
        """The number ahead of which credit reaches."""
        return self.safe if self.credit.withholds else self.expected

    def ruling(self) -> wire.Ruling:
        """Make the ruling to send now; it counts as sent."""
        report = self.report
        report.before = self.limit, report.sent_upto, report.sent_limit, report.press_at
        report.urgent = False
        ruled = () if report.pending is None else report.next_exceptions(self.final)
        report.ruled = ruled
        outcome = wire.ADMITTED
        if report.asked <= self.settled:
            report.asked = -1
        if ruled:
            outcome = wire.SHED if all(one.shed for one in ruled) else wire.REFUSED
            report.urgent |= self.flow is Flow.GAP
        elif self.flow is Flow.GAP:
            outcome = wire.EXPECTED
            self.on(On.ANSWERED)
        share = self.share
        if report.pending is None or not (report.has_below(self.final) or report.is_full):
            self.limit = self.admission.new_limit(self, share)
        self.note_sent(share)
        return wire.Ruling(
            self.partition,
            outcome,
            report.sent_upto,
            self.limit,
            self.expected,
            tuple(one.exception for one in ruled if not one.shed),
            "",
            tuple(one.exception for one in ruled if one.shed),
        )

    def not_sent(self) -> None:
        """Take back the last ruling, which could not be sent; the next one repeats all of it."""
        self.limit = self.report.take_back()
        self.on(On.LOST)

    def left_to_producer(self, number: int) -> None:
        """Leave the events from this number on, none of which has begun, to the producer."""
        self.admission.admitted -= self.expected - number
        self.admission.left += self.expected - number
        self.expected = number

    def skip(self, start: int) -> None:
        """Skip to ``start``: the earlier owner of the partition has done everything below."""
        self._low = LowWatermark(start)
        self.marks.clear()
        self.expected = self.limit = self.safe = self.settled = start
        self.report.skip(start)

    def reopened(self, upto: int) -> None:
        self.on(On.REOPENED)
        self.report.reopened(upto)
        self.report.urgent = self.report.has_below(self.final)

    def restore(self, row: SavedProducer) -> None:
        self.life = Life(row.life, row.incarnation)
        self.own_id = row.own_id
        self.report.restore(row.unreported)

    def go_back(self, number: int) -> None:
        """Expect the events from this number on again, because they were rolled back."""
        self.returns += 1
        self.marks.clear()
        self._low = LowWatermark(number)
        self.expected = self.safe = number
        self.report.asked = -1
        self.report.forget_from(number)
        self.gap_first = -1
        self.on(On.ROLLED_BACK)

    @property
    def pressing(self) -> bool:
        """True if the producer should get a verdict now: it waits, or there is more credit."""
        report = self.report
        if report.urgent or 0 <= report.asked <= self.settled:
            return True
        if self.done < report.press_at:
            return False
        return not self.by_event or self.admission.new_limit(self, self.share) > self.limit


FrameReceipt: TypeAlias = BatchReceipt[ProducerLane]


def cuts_of(lanes: Iterable[ProducerLane]) -> wire.Headers:
    tasks = [lane for lane in lanes if lane.producer.startswith(wire.TASK)]
    cuts = [(lane.partition, lane.settlement.cut) for lane in tasks if lane.settlement.cut]
    return {wire.SAVEPOINT: cuts} if cuts else {}
