"""The admission of frames: what a node admits, and what it tells each producer. Pure.

Rules
- For each (producer, stream, partition), only the next expected number is admitted. Duplicates are
  trimmed. A frame after a gap is answered with "expected n" and dropped, because the producer kept
  it. That answer is given once, until the producer has gone back.
- A frame that begins below the credit limit has a place. Other frames are dropped in the same way,
  so a producer that ignores its credit costs no memory.
- The executors of the deserializer and of the stream's stage decide last. Frames that a withholding
  executor has no room for are left to their producer: nothing is lost, and "expected n" is sent
  once there is room again. Frames that a dropping executor has no room for are shed: they are done
  at once, and the producer is told.
- While a stream is kept to some connections, frames of others are left to their producers, too.
- Credit reaches ahead of what is processed; if events are dropped, ahead of what has arrived. While
  too many events wait for where the stream leads, programs get no more. Apps and their tasks still
  do, because they may wait for each other.
- Lives of a producer follow each other under one id, as the owners of a task do. The hello of an
  older life is refused (:mod:`s4node.net.ingress.producer_life`).
- A frame of a task that has made a later cut than ours is left to it until ours has begun; see
  :mod:`s4node.offsets.cuts`.
- A task that has begun anew has another id. Its latest ids are remembered, and earlier ones are
  refused.
- A lane begins at the row that the stream's roster has of its producer; without a row, where the
  producer says.
- A producer's id belongs to its latest connection. A lane outlives the connection until it expires
  or its producer sends an end of stream; the number of such lanes is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, takewhile

from s4node.net.ingress.flow import Flow, Move, On, Presence
from s4node.net.ingress.producer_lane import Effects, FrameReceipt, Mark, ProducerLane, cuts_of
from s4node.net.ingress.producer_life import (
    Life,
    TaskLives,
    fence_of,
    has_own_id,
    later_life,
    life_of,
)
from s4node.net.ingress.roster import Greeting, Roster
from s4node.net.wire import frame as wire
from s4node.offsets.receipts import BatchReceipt
from s4node.stages.executors import UNLIMITED
from s4node.stages.stage import Credit, Gauge, Room, Stage, Stopped

MAX_AWAY = 16_384
"""Lanes of a stream that are remembered while their producers are away."""

_SOME_LANES = 256
"""The lanes that are detached at a time: less than a millisecond."""

_NOWHERE = wire.Position(-1, 0)

MAX_WATCHED = 4096
"""Producers that are noted to have come or gone before someone looks at them."""

_LOOKS = 16
"""The number of checks of rows during the time after which producers are forgotten."""

PERIOD = 1.0
"""Seconds after which a producer that sends nothing may lose its share."""


@dataclass
class StreamAdmission:
    """All producers of one input stream on this node.

    ``stages`` are the stages of the partitions that this node owns; more may come. ``room`` is that
    where the stream leads. If set, ``taken_from`` are the connections whose frames are taken. In a
    partition that is ``watched``, up to ``MAX_WATCHED`` producers that come or go are noted.
    """

    stream: str
    stages: Mapping[int, Stage]
    effects: Effects
    room: Room = field(default_factory=Room)
    taken_from: Collection[Hashable] | None = None
    roster: Roster = field(default_factory=Roster)
    lanes: dict[tuple[str, int], ProducerLane] = field(default_factory=dict)
    watched: dict[int, set[str]] = field(default_factory=dict)
    admitted: int = 0
    duplicates: int = 0
    gaps: int = 0
    over_credit: int = 0
    refused: int = 0
    shed: int = 0
    left: int = 0
    period: int = 0
    _next_period: float = 0.0
    _next_look: float = 0.0  # for absent producers
    held: dict[ProducerLane, None] = field(default_factory=dict)
    _away: dict[ProducerLane, None] = field(default_factory=dict)
    _opened: dict[Hashable, set[str]] = field(default_factory=dict)
    _tasks: TaskLives = field(default_factory=TaskLives)
    _ended: dict[str, None] = field(default_factory=dict)  # producers to forget
    _credits: dict[int, Credit[ProducerLane]] = field(default_factory=dict)
    _holding: dict[Credit[ProducerLane], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commits = self.roster.commits
        self.roster.begin(self)
        self._stopped = Stopped[ProducerLane](self.room, self.stream)

    def new_limit(self, lane: ProducerLane, share: int) -> int:
        if self.room.full and not lane.of_app and self._stopped.stops(lane, lane.partition):
            return lane.limit
        credit = lane.credit
        limit = credit.limit(lane, lane.done, lane.limit, share)
        if credit.held:
            self._holding[credit] = None
        return lane.settlement.bound(limit, share) if lane.by_event else limit

    def credit(self, partition: int) -> Credit[ProducerLane]:
        credit = self._credits.get(partition)
        if credit is None:
            credit = self._credits[partition] = Credit(self.stages[partition])
        return credit

    def refusal(self, hello: wire.Hello) -> str:
        """The reason to refuse a producer the stream, or empty. Raises LimitReached."""
        if problem := self._tasks.problem(self.stream, hello):
            return problem
        told = {position.partition: position for position in hello.positions}
        for partition in self.stages:
            known = self._life(hello.peer, partition)
            position = told.get(partition, _NOWHERE)
            if life_of(hello, position.life, known) is None or (
                hello.headers.get(wire.NEW)
                and 0 < known.number < position.life
                and known.incarnation != hello.incarnation
                and position.number < self._next_number(hello.peer, partition)
            ):  # then an older life went on in partitions that did not know this one
                return later_life(self.stream, hello, known)
        return self.roster.problem(hello)

    def _next_number(self, producer: str, partition: int) -> int:
        """The known next number of a producer, 0 if none is known."""
        lane, row = self.lanes.get((producer, partition)), self.roster.row(producer, partition)
        return max(0 if lane is None else lane.expected, 0 if row is None else row.number)

    def _life(self, producer: str, partition: int) -> Life:
        lane = self.lanes.get((producer, partition))
        if lane is not None:
            return lane.life
        row = self.roster.row(producer, partition)
        return Life() if row is None else Life(row.life, row.incarnation)

    def is_later(self, hello: wire.Hello) -> bool:
        """Return True if a task's hello is from a later owner than all known ones."""
        known = (self._life(hello.peer, partition).number for partition in self.stages)
        return fence_of(hello) > max(known, default=0)

    def greet(self, said: wire.Hello, connection: Hashable, now: float) -> Greeting | None:
        """Open the stream for a producer that may have it; None if a commit must come first.

        Raises LimitReached.
        """
        roster = self.roster
        hello, closings, error = roster.in_layout(said)
        error = error or self.refusal(hello)
        if error:
            is_batch = hello.peer.startswith(wire.BATCH)
            return Greeting((), error, {wire.WHY: wire.OTHER_BATCH} if is_batch else {})
        headers = roster.headers(said, hello, closings, now)
        if headers is None:
            return None
        positions = self.hello(hello, connection, now)
        return Greeting(positions, "", headers | cuts_of(self._of(hello.peer, connection)))

    def hello(
        self, hello: wire.Hello, connection: Hashable, now: float
    ) -> tuple[wire.Position, ...]:
        """Open or reopen the producer's lanes; return their positions and credit."""
        starts = {position.partition: position.number for position in hello.positions}
        told = {position.partition: position.life for position in hello.positions}
        self._opened.setdefault(connection, set()).add(hello.peer)
        self._has_moved(hello.peer)
        positions = []
        for partition in self.stages:
            lane = self.lanes.get((hello.peer, partition))
            if lane is None:
                lane = self._made(hello.peer, partition, max(0, starts.get(partition, 0)))
                self.lanes[hello.peer, partition] = lane
            lane.connection, lane.seen = connection, now
            lane.moves(Move.HELLO)
            self._greeted(lane, hello, told.get(partition, 0))
            start = starts.get(partition, lane.expected)
            if start > lane.expected == lane.safe:
                lane.skip(start)
            lane.reopened(start)
            self.held.pop(lane, None)
            self._away.pop(lane, None)
            lane.credit.join(lane)
        for partition in self.stages:  # after all joined, so that shares are right
            lane = self.lanes[hello.peer, partition]
            share = lane.share
            lane.limit = self.new_limit(lane, share)
            lane.note_sent(share)
            numbers = lane.expected, lane.limit, lane.report.sent_upto, lane.life.number
            positions.append(wire.Position(partition, *numbers))
            if lane.report.urgent:
                self.effects.answers[lane] = None
        return tuple(positions)

    def _made(self, producer: str, partition: int, start: int) -> ProducerLane:
        row = self.roster.row(producer, partition)
        start = start if row is None else row.number
        lane = ProducerLane(self, producer, partition, start, self.credit(partition))
        if self.commits is not None:
            self.commits.settle(lane)
        if row is not None:
            lane.restore(row)
        return lane

    def _greeted(self, lane: ProducerLane, hello: wire.Hello, told: int) -> None:
        before = lane.life, lane.own_id
        lane.life = life_of(hello, told, lane.life) or lane.life
        lane.own_id = has_own_id(hello)
        lane.take_hello(hello.headers)
        self.roster.greeted(lane, changed=before != (lane.life, lane.own_id))

    def learn(self, producer: str) -> None:
        """Learn a life of a task from a saved event; its oldest lives are forgotten.

        A hello is not enough, because a crash may lose the new state.
        """
        self._ended |= dict.fromkeys(self._tasks.add(producer))

    def beside(self, producer: str, connection: Hashable) -> int:
        """The other producers for which the connection has opened the stream; 0 if it has opened
        it for this one, too."""
        opened = self._opened.get(connection, ())
        return 0 if producer in opened else len(opened)

    def admit(
        self, data: wire.Data, connection: Hashable, now: float, size: int = 0
    ) -> FrameReceipt | None:
        """Decide on a data frame of ``size`` bytes by its header; None if nothing is admitted."""
        lane = self.lanes.get((data.producer, data.partition))
        later = bool(data.headers) and self._is_of_later_cut(data)
        if lane is None or lane.connection != connection:
            return None  # no hello yet on this connection: the producer resends earlier frames
        lane.seen = now
        if later:
            self._hold(lane, data.count)
            return None
        end = data.first + data.count
        if data.flags & wire.ANSWER_NOW:
            lane.report.asked = max(lane.expected, end)
            self.effects.answers[lane] = None
        if data.first > lane.expected:
            self._on_gap(lane, data.first)
            return None
        first = lane.expected
        skip = first - data.first  # duplicates
        if end > first >= lane.limit:
            self.over_credit += 1
            lane.on(On.OVER)
            return None
        self.duplicates += min(skip, data.count)
        if end <= first:
            lane.report.urgent = True
            self.effects.answers[lane] = None
            return None
        count = end - first
        if self.taken_from is not None and connection not in self.taken_from:
            self._hold(lane, count)
            return None
        room, gauge = self._room(lane, count, size, now)
        if room == 0 and gauge.executor.withholds:
            self._hold(lane, count)
            return None
        self._move_on(lane, end, size / data.count)
        if room < count:
            self._shed(lane, first + room, end, gauge)
        elif end >= lane.report.press_at and not lane.credit.withholds:
            self.effects.answers[lane] = None  # credit reaches ahead of what has arrived
        if room == 0:
            return None
        self.admitted += room
        return BatchReceipt(lane, first, first + room)

    def _is_of_later_cut(self, data: wire.Data) -> bool:
        """Return True if the task of a frame has made a later cut than ours, and request ours."""
        number = data.headers.get(wire.SAVEPOINT)
        if self.commits is None or not isinstance(number, int):
            return False
        return self.commits.cuts.request(data.partition, number)

    def _on_gap(self, lane: ProducerLane, first: int) -> None:
        """Tell the producer of a frame after a gap, once until it goes back."""
        self.gaps += 1
        event = On.BACK if first <= lane.gap_first else On.BEYOND
        lane.gap_first = first
        lane.on(event)

    def _move_on(self, lane: ProducerLane, end: int, weight: float) -> None:
        if lane.flow is not Flow.OPEN:
            lane.on(On.TAKEN)
        lane.gap_first = -1
        lane.expected = end
        if lane.report.unconfirmed:
            lane.report.confirm(end)
        if lane.period != self.period:
            lane.period = self.period
            lane.credit.active(lane)
        lane.weight = weight if weight > lane.weight else lane.weight * 0.75 + weight * 0.25

    def _shed(self, lane: ProducerLane, first: int, end: int, gauge: Gauge) -> None:
        """Drop events that a stage has no room for; they are done, and their producer is told."""
        reason = gauge.executor.reason
        gauge.dropped(end - first, reason)
        lane.shed(first, end - first, reason)
        lane.complete(first, end)

    def _room(self, lane: ProducerLane, count: int, size: int, now: float) -> tuple[int, Gauge]:
        """The number of events to take, and the stage that refuses the rest.

        Waiting frames count in both stages. If the stream's stage drops, a full deserializer drops,
        too, in place of making producers wait, and the drop counts as the stage's.
        """
        stage = self.stages[lane.partition]
        gauge: Gauge = stage.deserializer
        room = gauge.executor.admits(gauge, count, size, now)
        fits = max(0, min(count, stage.executor.admits(stage, count, size, now)))
        if room == fits == count:
            return count, gauge
        if fits < room or (room < count and not stage.executor.withholds):
            room, gauge = min(room, fits), stage
        return (0 if gauge.executor.withholds and room < count else max(0, room)), gauge

    def _hold(self, lane: ProducerLane, count: int) -> None:
        """Leave a frame to its producer, which is asked for it once there is room."""
        self.left += count
        lane.on(On.NO_ROOM)
        self.held[lane] = None

    def connection_of(self, producer: str) -> Hashable | None:
        """The connection to which the producer's id belongs; None if it is not connected."""
        lane = self.lanes.get((producer, next(iter(self.stages), 0)))
        return None if lane is None else lane.connection

    def released(self) -> None:
        """Let lanes go on that were held for lack of room in the stages."""
        if not (self.held or self._holding or self._stopped.producers):
            return
        if self.held:
            for lane in [each for each in self.held if self._has_room(each)]:
                del self.held[lane]
                lane.gap_first = UNLIMITED  # any further gap is a new one
                lane.on(On.ROOM)
        for credit in [credit for credit in self._holding if not credit.held]:
            self._holding.pop(credit)
        released = [credit.release() for credit in self._holding]
        for lane in chain(self._stopped.release(), *released):
            lane.report.urgent = True
            self.effects.answers[lane] = None

    def _has_room(self, lane: ProducerLane) -> bool:
        if self.commits is not None and self.commits.cuts.is_due(lane.partition):
            return False
        stage = self.stages[lane.partition]
        if self.taken_from is not None and lane.connection not in self.taken_from:
            return False
        return stage.deserializer.roomy and stage.roomy

    def take_time(self, report: wire.Watermark, connection: Hashable) -> None:
        time, idle = report.millis / 1000, report.headers.get(wire.IDLE) is True
        lanes, producer = self.lanes, report.producer
        leaves = idle and not producer.startswith(wire.TASK)
        for partition, number in report.positions:
            lane = lanes.get((producer, partition))
            if lane is not None and lane.connection == connection:
                lane.left = leaves
                if not leaves or (time and time > lane.reported):  # 0: it has sent no event
                    lane.mark(Mark(number, time, idle and not leaves))

    def ask(self, producer: str, connection: Hashable) -> None:
        """Take a producer's request for its verdicts."""
        for lane in self._of(producer, connection):
            lane.report.asked = lane.expected  # it waits until all arrived events are processed
            lane.on(On.ASKED)  # it may have missed an answer
            if lane.pressing:  # else the answer follows once it is
                self.effects.answers[lane] = None
            lane.settlement.asked()

    def gone(self, connection: Hashable, now: float) -> bool:
        """Detach some lanes of a connection that has ended; they wait for their producers.

        Return True if it has more of them.
        """
        opened = self._opened.get(connection, set())
        for _ in range(min(len(opened), max(1, _SOME_LANES // max(1, len(self.stages))))):
            self.detach(opened.pop(), connection, now)
        if not opened:
            self._opened.pop(connection, None)
        if len(self._away) > MAX_AWAY:  # in the order in which they left
            for lane in list(self._away)[: len(self._away) - MAX_AWAY]:
                if not lane.by_event or self.is_over(lane):
                    self.remove(lane, forget=False)
        return bool(opened)

    def detach(self, producer: str, connection: Hashable, now: float) -> None:
        self._has_moved(producer)
        for lane in self._of(producer, connection):
            lane.connection, lane.seen = None, now
            lane.moves(Move.GONE)
            self._away[lane] = None
            self.held.pop(lane, None)
            lane.credit.remove(lane)

    def forget(self, producer: str, connection: Hashable) -> None:
        """Forget a producer that has ended, once none of its events are in flight.

        A task is not forgotten: only this owner of it has ended.
        """
        if producer.startswith(wire.TASK):
            return
        self._has_moved(producer)
        for lane in self._of(producer, connection):
            self.held.pop(lane, None)
            self._ended[producer] = None
            lane.moves(Move.END)
            if self.is_over(lane):
                lane.credit.remove(lane)
                self.remove(lane)
        self._forget_ended()
        if (producer, next(iter(self.stages), 0)) not in self.lanes:
            self._opened.get(connection, set()).discard(producer)

    def _forget_ended(self) -> None:
        """Forget ended producers without events in flight."""
        for producer in list(self._ended):
            lanes = self.lanes_of(producer)
            if all(self.is_over(one) and one.presence is not Presence.HERE for one in lanes):
                for lane in lanes:
                    lane.credit.remove(lane)
                    self.remove(lane)
                del self._ended[producer]
                self.roster.forget_rows(producer)

    def tick(self, now: float, expiry: float) -> None:
        """Forget producers that were away for ``expiry`` seconds, and see which are active."""
        if now >= self._next_look:
            self.roster.forget_absent(now, expiry)
            self._next_look = now + max(0.1, expiry / _LOOKS)
        if now < self._next_period:
            return
        self._next_period = now + PERIOD
        self.period += 1
        for credit in self._credits.values():
            credit.tick()
        self.expire(now - expiry)
        if self._ended:
            self._forget_ended()

    def revoke(self, partition: int) -> None:
        """Leave a partition, with the lanes of its producers, to another node."""
        for lane in [lane for lane in self.lanes.values() if lane.partition == partition]:
            lane.credit.remove(lane)
            self.held.pop(lane, None)
            self._away.pop(lane, None)
            self._stopped.producers.pop(lane, None)
            lane.connection = None  # which reports it no more
            lane.moves(Move.GONE)
            del self.lanes[lane.producer, partition]
        self.watched.pop(partition, None)
        self.roster.revoked(partition)

    def enter(self, partition: int) -> None:
        self._credits.pop(partition, None)  # from an earlier ownership

    def expire(self, before: float) -> int:
        """Drop the lanes of producers that have been away since ``before``; return how many."""
        absent = takewhile(lambda lane: lane.seen < before, self._away)
        stale = [lane for lane in absent if self.is_over(lane)]
        for lane in stale:
            self.remove(lane, forget=not lane.own_id)
        return len(stale)

    def is_over(self, lane: ProducerLane) -> bool:
        """Return True if nothing of a lane has still to be settled, or saved."""
        return lane.settled == lane.expected and not lane.settlement.is_noted

    def remove(self, lane: ProducerLane, *, forget: bool = True) -> None:
        self._has_moved(lane.producer)
        self._away.pop(lane, None)
        self.lanes.pop((lane.producer, lane.partition), None)
        self.roster.removed(lane, forget=forget)

    def _has_moved(self, producer: str) -> None:
        """Note that a producer has come or gone."""
        for watched in self.watched.values():
            if len(watched) < MAX_WATCHED:
                watched.add(producer)

    def _of(self, producer: str, connection: Hashable) -> Iterator[ProducerLane]:
        return (lane for lane in self.lanes_of(producer) if lane.connection == connection)

    def lanes_of(self, producer: str) -> list[ProducerLane]:
        lanes = self.lanes
        return [lanes[producer, n] for n in self.stages if (producer, n) in lanes]

    def validate(self) -> None:
        for lane in self.lanes.values():
            report = lane.report
            assert report.sent_upto <= lane.settled <= lane.safe <= lane.expected
            assert report.sent_limit <= lane.limit
            assert lane.connection is not None or lane in self._away
            assert lane.connection is None or lane.presence is not Presence.AWAY
            assert lane.connection is not None or lane.presence is not Presence.HERE
            assert report.urgent or lane.flow is not Flow.GAP
            lane._low.validate()
