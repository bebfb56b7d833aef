"""A producer's lane in its node: how far its numbers are done, and what it is told. Pure.

Rules
- A lane's ``safe`` moves when its events are fully processed, shed or refused, never past a hole.
- Verdicts are cumulative: a later one covers an earlier one that could not be sent, and gives no
  credit that it did not tell.
- What a producer reports of event time holds once all events before it are processed.
- The producer may be a node of the cluster that forwards events. A lane knows then who has sent
  them, until they are settled.
- Numbers are settled once they are safe. On a durable stream they are settled by commits, event by
  event: ``committed`` is the position in the last commit of the task, and the ``upto`` of verdicts.
  So settled events survive the node.
- A producer that asks for its verdicts waits for a commit; other producers can wait for a second.
- Credit reaches ahead of what is processed, but at most a window beyond what is committed, because
  producers keep all those events. When half of the window is used, a commit is requested.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from s4node.events.event import LIVE, EventBatch
from s4node.net.ingress.flow import ARRIVALS, NEXT, Flow, Move, On, Presence
from s4node.net.ingress.producer_life import Life
from s4node.net.ingress.report import Report, Unprocessed, shortened
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import Cuts
from s4node.offsets.producer_offsets import Closings, SavedProducer
from s4node.offsets.receipts import BatchReceipt, LowWatermark
from s4node.stages.credit import Credit

MAX_MARKS = 64
"""Reports of event time that wait for events of a lane; further ones replace the last."""

WINDOW_EVENTS = 1 << 20
"""Events of a lane beyond the last commit: a second's worth at a rate that few lanes reach."""

UNKNOWN_BYTES = 64 << 10
"""The assumed bytes of an event until its lane has seen one. The value is high, because credit is
not taken back; it costs one more verdict before the first large frame."""

PATIENCE = 1.0
"""Seconds until processed events are committed for a producer that does not ask for verdicts; it
only has to keep them longer."""


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


AT_ONCE = -1.0
"""The patience of those who wait for a commit that no budget may delay."""


class Effects:
    """What frames, steps and commits bring about, until it is carried out between two turns.

    Batches are delivered at once, and times before a commit. A second effect of another kind joins
    the first one. What is stale by then is dropped: an answer to a lane without a connection, a
    time after events that were rolled back, a commit of a task that has gone.
    """

    __slots__ = ("answers", "batches", "commits", "committed", "times")

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []  # for their tasks
        self.answers: dict[ProducerLane, None] = {}  # whose producers are to be told something
        self.times: list[tuple[ProducerLane, Mark]] = []  # what producers have reported, that holds
        self.commits: dict[int, float] = {}  # by partition: for how many seconds others can wait
        self.committed = False  # hellos that wait for a commit may be answered

    def __bool__(self) -> bool:
        return bool(self.answers or self.times or self.commits or self.committed)

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

    def new_limit(self, lane: ProducerLane, share: int) -> int:
        """The first number that the lane may not send yet, if it may have ``share`` in flight."""
        ...


@dataclass(eq=False, repr=False, slots=True)
class ProducerLane:
    """One producer's numbers in one partition of a stream; ``commits`` settle them, if any do."""

    admission: LaneOwner
    producer: str
    partition: int
    expected: int
    credit: Credit[ProducerLane]  # which all lanes of its stage share
    commits: Commits | None = None
    by_event: bool = field(init=False)  # else whole frames are acknowledged
    returns: int = 0  # rollbacks of its task
    effects: Effects = field(init=False)
    origin: str = field(init=False)  # of its numbers, as text
    life: Life = field(default_factory=Life)  # the latest life that said hello
    own_id: bool = False  # later lives of its producer use the same id
    untimed: bool = False  # a task that reports no time
    left: bool = False  # its program leaves, and may return
    limit: int = field(init=False)
    connection: Hashable | None = None
    presence: Presence = Presence.AWAY
    report: Report = field(init=False)
    saved: Saved | None = field(init=False)  # None unless commits settle it
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
        self.limit = start
        self.report = Report(start, start, start)
        self._low = LowWatermark(start)
        self.by_event = self.commits is not None
        self.saved = None if self.commits is None else Saved(self.commits, self, start)

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
        return self._low.safe if self.saved is None else self.saved.committed

    def on(self, event: On) -> None:
        """Take what has happened; the producer is told if it has to go back."""
        flow = NEXT.get((self.flow, event))
        if flow is not None:
            self.flow = flow
            if flow is Flow.GAP:
                self.report.urgent = True
                self.effects.answers[self] = None

    def moves(self, how: Move) -> None:
        """Note that its producer comes or goes."""
        self.presence = ARRIVALS.get((self.presence, how), self.presence)

    def complete(self, first: int, end: int) -> None:
        """Note that the numbers ``first <= n < end`` are done."""
        if self._low.complete(first, end):
            if self.marks:
                self.pass_marks()
            if self.saved is None:
                self.effects.answers[self] = None
            else:
                self.saved.moved()

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
            self.effects.times.append((self, self.passed))

    def refuse(self, number: int, count: int, reason: str) -> None:
        self.report.add(Unprocessed(number, count, shortened(reason)))
        self.admission.refused += count
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
        """Everything below this number is settled, and its refusals were told."""
        pending = self.report.pending
        return self.settled if pending is None else min(self.settled, pending.first)

    def told(self, share: int) -> None:
        """Note that the producer is told the current ``upto`` and ``limit``."""
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
        return self._low.safe if self.credit.withholds else self.expected

    def ruling(self) -> wire.Ruling:
        """Make the ruling to send now; it counts as told."""
        report = self.report
        report.before = self.limit, report.sent_upto, report.sent_limit, report.press_at
        report.urgent = False
        report.ruled = ruled = () if report.pending is None else report.next_exceptions()
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
        if report.pending is None:  # more credit only when all refusals so far have been told
            self.limit = self.admission.new_limit(self, share)
        self.told(share)
        return wire.Ruling(
            self.partition,
            outcome,
            report.sent_upto,
            self.limit,
            self.expected,
            tuple(one.told for one in ruled if not one.shed),
            "",
            tuple(one.told for one in ruled if one.shed),
        )

    def not_told(self) -> None:
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
        self.expected = self.limit = start
        self.report.skip(start)
        if self.saved is not None:
            self.saved.committed = start

    def reopened(self, upto: int) -> None:
        """Repeat to a reconnected producer everything from ``upto`` on."""
        self.on(On.REOPENED)
        self.report.reopened(upto)

    def restore(self, row: SavedProducer) -> None:
        """Go on as the row of the producer says."""
        self.life = Life(row.life, row.incarnation)
        self.own_id = row.own_id
        self.report.restore(row.untold)

    def go_back(self, number: int) -> None:
        """Expect the events from this number on again, because they were rolled back."""
        self.returns += 1
        self.marks.clear()
        self._low = LowWatermark(number)
        self.expected = number
        self.report.asked = -1
        self.report.forget_from(number)
        self.gap_first = -1
        self.on(On.ROLLED_BACK)

    @property
    def pressing(self) -> bool:
        """True if the producer should be told now: it waits, or there is more credit for it."""
        report = self.report
        if report.urgent or 0 <= report.asked <= self.settled:
            return True
        if self.done < report.press_at:
            return False
        return self.saved is None or self.admission.new_limit(self, self.share) > self.limit


FrameReceipt: TypeAlias = BatchReceipt[ProducerLane]


def cuts_of(lanes: Iterable[ProducerLane]) -> wire.Headers:
    """The header that tells tasks the last cuts of the tasks of their lanes."""
    made = [
        (lane.partition, lane.saved.commits.cuts.made(lane.partition))
        for lane in lanes
        if lane.saved is not None and lane.producer.startswith(wire.TASK)
    ]
    cuts = [(partition, number) for partition, number in made if number]
    return {wire.SAVEPOINT: cuts} if cuts else {}


@dataclass(eq=False, repr=False, slots=True)
class Saved:
    """The part of a lane that commits save. ``committed`` is where the last commit has it."""

    commits: Commits
    lane: ProducerLane
    committed: int
    wanted: bool = False  # a commit was requested
    awaited: bool = False  # its producer waits until all of it is committed
    has_row: bool = False
    saving: bool = False  # its producer waits until it has a row
    closings: Closings = ()

    @property
    def window(self) -> int:
        """The number of events that may be beyond the last commit."""
        by_bytes = int(self.commits.window_bytes / (self.lane.weight or UNKNOWN_BYTES))
        return max(1, min(self.commits.window_events, by_bytes))

    def note(self) -> None:
        """Include the lane in the next commit."""
        self.commits.changed.setdefault(self.lane.partition, {})[self] = None

    @property
    def is_noted(self) -> bool:
        return self in self.commits.changed.get(self.lane.partition, ())

    def moved(self) -> None:
        """Note that more of the lane is safe."""
        lane, report = self.lane, self.lane.report
        self.note()
        if (
            (lane.safe - self.committed) * 2 >= self.window
            or (self.awaited and lane.safe == lane.expected)
            or (self.commits.on_demand and 0 <= report.asked <= lane.safe)
        ):
            self.want()
        else:
            self.wait()
        if lane.done >= report.press_at:  # there may be more credit; the rest waits for a commit
            lane.effects.answers[lane] = None

    @property
    def patience(self) -> float:
        """For how many seconds its producer can wait for a commit; infinity if it needs none."""
        if self.saving:
            return 0.0
        if self.committed >= self.lane.safe:
            return math.inf
        return 0.0 if self.committed < self.lane.report.asked <= self.lane.safe else PATIENCE

    def want(self) -> None:
        """Request a commit, once, if there is anything to commit."""
        if self.committed < self.lane.safe and not self.wanted:
            self.wanted = True
            self.lane.effects.commits[self.lane.partition] = AT_ONCE

    def wait(self) -> None:
        """Request a commit for a producer that waits, if a commit helps it."""
        if not self.commits.on_demand and self.patience < math.inf:
            self.lane.effects.commit_within(self.lane.partition, self.patience)

    def asked(self) -> None:
        """Note that the producer asks for its verdicts."""
        if self.lane.safe != self.lane.report.asked:
            return
        if self.commits.on_demand:
            self.want()
        else:
            self.wait()

    def commit(self, number: int) -> None:
        """Note that everything below ``number`` is committed."""
        self.wanted = False
        if number > self.committed:
            self.committed = number
            self.lane.effects.answers[self.lane] = None

    def roll_back(self) -> None:
        """Expect uncommitted events again, because they were rolled back."""
        self.lane.go_back(self.committed)
        self.wanted = False

    def row(self) -> SavedProducer:
        """The current row, for a commit."""
        lane, report = self.lane, self.lane.report
        untold = report.saved if report.pending or report.unheard else ()
        return SavedProducer(lane.safe, *lane.life, lane.own_id, untold)

    def bound(self, limit: int, share: int) -> int:
        """The new limit of the lane, whose credit reaches to ``limit``."""
        window = self.window
        most = self.committed + window
        if limit <= most:
            return limit
        grows = (most - self.lane.limit) * 4 >= min(window, share)
        return most if grows else self.lane.limit


@dataclass(eq=False)
class Commits:
    """The commits that settle the numbers of a stream with so many ``partitions`` on all nodes.

    They are ``on_demand`` if only producers that want their verdict cause them. While ``full`` has
    a partition's channel to other tasks, many of its events wait for those, and programs get no
    more credit. Tasks still get credit, because they may wait for each other. ``cuts`` are of the
    tasks. ``changed`` are the lanes that the next commits take, by partition.
    """

    partitions: int = 1
    on_demand: bool = False
    full: Container[tuple[str, Hashable]] = ()
    cuts: Cuts = field(default_factory=Cuts)
    window_events: int = WINDOW_EVENTS
    changed: dict[int, dict[Saved, None]] = field(default_factory=dict)
    stopped: dict[ProducerLane, None] = field(default_factory=dict)

    @property
    def window_bytes(self) -> int:
        """A lane's share of the bytes that a producer may have to keep."""
        return max(1 << 20, wire.WINDOW_BYTES // self.partitions)

    def stops(self, lane: ProducerLane) -> bool:
        """Return True if a lane gets no more credit, and note it if so."""
        if not self._is_full(lane) or lane.producer.startswith(wire.TASK):
            return False
        self.stopped[lane] = None
        return True

    def released(self) -> None:
        """Let lanes go on whose partitions are not full any more."""
        for lane in [each for each in self.stopped if not self._is_full(each)]:
            del self.stopped[lane]
            lane.report.urgent = True
            lane.effects.answers[lane] = None

    def revoked(self, partition: int) -> None:
        self.changed.pop(partition, None)
        for lane in [lane for lane in self.stopped if lane.partition == partition]:
            del self.stopped[lane]

    def _is_full(self, lane: ProducerLane) -> bool:
        stream = lane.admission.stream
        return (stream, (lane.partition, stream)) in self.full
