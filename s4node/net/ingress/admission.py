"""The node's side of its producers: what is admitted, and what each producer is told. Pure.

Rules
- Of each (producer, stream, partition) only the next expected number is admitted. What comes
  twice is trimmed; a gap is answered with "expected n" and dropped: the producer kept it. It is
  answered once, until the producer has gone back.
- A frame that begins below the credit limit has its place. One that does not is dropped the same
  way, so a producer that ignores its credit costs no memory.
- The executors of the deserializer and of the stream's stage have the last word. What one that
  withholds cannot take is left to its producer: nothing is lost, and "expected n" is told only when
  there is room again. What one that drops cannot take is shed: done with at once, and told.
- Credit reaches ahead of what is processed, and where events are dropped, of what has arrived.
- Lives of a producer follow each other under one id, as owners of a task do: the hello of an older
  one is refused (:mod:`s4node.net.ingress.producer_life`). Once a task has begun anew under another
  id, what is known of the former one is forgotten.
- A producer's id belongs to its latest connection. A lane outlives the connection until it
  expires or its producer says end of stream; so many are kept and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from s4node.net.ingress.producer_lane import FrameReceipt, ProducerLane
from s4node.net.ingress.producer_life import Life, fence_of, has_own_id, life_of, task_of
from s4node.net.wire import frame as wire
from s4node.offsets.producer_offsets import KeptProducer
from s4node.offsets.receipts import BatchReceipt
from s4node.stages.credit import Credit
from s4node.stages.executors import DESERIALIZER, UNLIMITED, StageSettings
from s4node.stages.stage import Gauge, Stage

MAX_PRODUCERS = 1024
"""Producers of one stream that one connection may open."""

MAX_AWAY = 16_384
"""Lanes of a stream that are remembered while their producers are away."""

_NOWHERE = wire.Position(-1, 0)

_NO_DESERIALIZER = StageSettings(DESERIALIZER, capacity=UNLIMITED)

MAX_KEPT = 100_000
"""Producers that a log's stream, or a task's partition of a durable stream, keeps numbers of."""

PERIOD = 1.0
"""Seconds after which a producer that sends nothing may lose its share."""


def _lives_told(hello: wire.Hello) -> dict[int, int]:
    """Which life of it a producer was told to be, by partition."""
    return {position.partition: position.life for position in hello.positions}


@dataclass
class StreamAdmission:
    """All producers of one input stream on this node.

    ``stages`` are the stream's stages of the partitions that this node owns; there may come more.
    ``deserializer`` is what their undecoded frames take up together. ``notify`` is told of each
    lane whose producer should hear something.
    """

    stream: str
    stages: Mapping[int, Stage]
    notify: Callable[[ProducerLane], None]
    deserializer: Gauge = field(default_factory=lambda: Gauge(_NO_DESERIALIZER))
    lanes: dict[tuple[str, int], ProducerLane] = field(default_factory=dict)
    frames: int = 0
    admitted: int = 0
    duplicates: int = 0
    gaps: int = 0
    over_credit: int = 0
    refused: int = 0
    shed: int = 0
    left: int = 0
    period: int = 0
    _next_period: float = 0.0
    _held: dict[ProducerLane, None] = field(default_factory=dict)
    _away: dict[ProducerLane, None] = field(default_factory=dict)
    _opened: dict[Hashable, set[str]] = field(default_factory=dict)
    _words: dict[str, str] = field(default_factory=dict)  # by task, that of its latest id
    _ended: dict[str, None] = field(default_factory=dict)  # who is to be forgotten
    _credits: dict[int, Credit[ProducerLane]] = field(default_factory=dict)
    _holding: dict[Credit[ProducerLane], None] = field(default_factory=dict)

    def new_limit(self, lane: ProducerLane) -> int:
        """How far the lane may send now."""
        credit = self._credit(lane.partition)
        limit = credit.limit(lane, lane.done, lane.limit, lane.weight)
        if credit.holding:
            self._holding[credit] = None
        return limit

    def share(self, lane: ProducerLane) -> int:
        """Events that this lane may have under way."""
        return self._credit(lane.partition).share_of(lane.weight)

    def withholds(self, lane: ProducerLane) -> bool:
        """Whether the lane's producer waits for what is processed."""
        return self._credit(lane.partition).withholds

    def _credit(self, partition: int) -> Credit[ProducerLane]:
        credit = self._credits.get(partition)
        if credit is None:
            credit = self._credits[partition] = Credit(self.stages[partition], self.deserializer)
        return credit

    def touched(self, lane: ProducerLane) -> None:
        """There is something to tell this lane's producer."""
        if lane.connection is not None:
            self.notify(lane)

    def refusal(self, hello: wire.Hello) -> str:
        """Why a producer may not open the stream; empty if it may."""
        long = wire.too_long(hello.peer)
        if long:
            return f"stream {self.stream!r}: {long}"
        task, word = task_of(hello.peer)
        if task and not isinstance(hello.headers.get(wire.FENCE), int):
            return (
                f"stream {self.stream!r}: ids that begin with {wire.TASK} are those of tasks, and "
                f"{hello.peer!r} tells no fence; give the producer another id"
            )
        latest = self._words.get(task, "")
        if word < latest:
            return (
                f"stream {self.stream!r}: the task of {hello.peer!r} has begun anew since, as "
                f"{task}#{latest}, so what its former state sends is not taken; remove that state, "
                f"or give the app another name"
            )
        told = {position.partition: position for position in hello.positions}
        for partition in self.stages:
            known = self._life(hello.peer, partition)
            position = told.get(partition, _NOWHERE)
            if life_of(hello, position.life, known) is None or (
                hello.headers.get(wire.NEW)
                and 0 < known.number < position.life
                and known.incarnation != hello.incarnation
                and position.number < self._next_number(hello.peer, partition)
            ):  # in the latter case an older life went on where nobody knew of this one
                return self._older(hello, known)
        return ""

    def _next_number(self, producer: str, partition: int) -> int:
        """The number that a producer goes on with, as far as is known."""
        lane, row = self.lanes.get((producer, partition)), self._row(producer, partition)
        return max(0 if lane is None else lane.expected, 0 if row is None else row.number)

    def _older(self, hello: wire.Hello, known: Life) -> str:
        """Why an older life of a producer may not open the stream."""
        if hello.peer.startswith(wire.TASK):
            return (
                f"stream {self.stream!r}: {hello.peer!r} is sent by a later owner of that task "
                f"(fence {known.number}) by now, and this one has fence {fence_of(hello)}: it has "
                f"been taken over"
            )
        return (
            f"stream {self.stream!r}: a program that was started later has used the producer id "
            f"{hello.peer!r}, so nothing more of this one is taken; what it was not told of may "
            f"be missing. Start it again, and give each program a producer id of its own"
        )

    def _row(self, producer: str, partition: int) -> KeptProducer | None:  # noqa: ARG002
        """What is kept of a producer that has no lane."""
        return None

    def _life(self, producer: str, partition: int) -> Life:
        """The latest life of a producer that is known in a partition."""
        lane = self.lanes.get((producer, partition))
        if lane is not None:
            return lane.life
        row = self._row(producer, partition)
        return Life() if row is None else Life(row.life, row.incarnation)

    def is_later(self, hello: wire.Hello) -> bool:
        """Whether a task says hello by an owner that came after all that were heard."""
        return fence_of(hello) > self._highest(hello.peer)

    def _highest(self, producer: str) -> int:
        return max((self._life(producer, partition).number for partition in self.stages), default=0)

    def hello(
        self, hello: wire.Hello, connection: Hashable, now: float
    ) -> tuple[wire.Position, ...]:
        """Open or reopen the producer's lanes: where each goes on, and its credit."""
        starts = {position.partition: position.number for position in hello.positions}
        told = _lives_told(hello)
        self._opened.setdefault(connection, set()).add(hello.peer)
        positions = []
        for partition in self.stages:
            lane = self.lanes.get((hello.peer, partition))
            if lane is None:
                lane = self._made(hello.peer, partition, max(0, starts.get(partition, 0)))
                self.lanes[hello.peer, partition] = lane
            lane.connection, lane.seen, lane.ended = connection, now, False
            self._greeted(lane, hello, told.get(partition, 0))
            start = starts.get(partition, lane.expected)
            if start > lane.expected == lane.safe:
                lane.skip(start)
            lane.reopened(start)
            self._held.pop(lane, None)
            self._away.pop(lane, None)
            self._credit(partition).join(lane)
        for partition in self.stages:  # after all joined, so that shares are right
            lane = self.lanes[hello.peer, partition]
            lane.limit = self.new_limit(lane)
            lane.told()
            numbers = lane.expected, lane.limit, lane.upto, lane.life.number
            positions.append(wire.Position(partition, *numbers))
            if lane.urgent:
                self.touched(lane)
        return tuple(positions)

    def _made(self, producer: str, partition: int, start: int) -> ProducerLane:
        """A lane of a producer that says that it begins at ``start``."""
        return ProducerLane(self, producer, partition, start)

    def _greeted(self, lane: ProducerLane, hello: wire.Hello, told: int) -> None:
        """The lane's producer has said hello; it was ``told`` this life of it before."""
        lane.life = life_of(hello, told, lane.life) or lane.life
        lane.own_id = has_own_id(hello)

    def learn(self, producer: str) -> None:
        """What a producer has sent is kept: if it is a task that has begun anew, its former id is
        over. Its hello does not say so, for a crash may take the new state."""
        task, word = task_of(producer)
        latest = self._words.get(task)
        if task and (latest is None or latest < word):
            self._words[task] = word
        if task and latest is not None and latest != word:
            self._ended[f"{task}#{min(latest, word)}"] = None

    def takes(self, producer: str, connection: Hashable) -> bool:
        """Whether the connection may open the stream for this producer, too."""
        opened = self._opened.get(connection, ())
        return producer in opened or len(opened) < MAX_PRODUCERS

    def admit(
        self, data: wire.Data, connection: Hashable, now: float, size: int = 0
    ) -> FrameReceipt | None:
        """Decide on a data frame of ``size`` bytes by its header; None if nothing is admitted."""
        lane = self.lanes.get((data.producer, data.partition))
        if lane is None or lane.connection != connection:
            return None  # no hello yet on this connection: what was sent before it comes again
        lane.seen = now
        end = data.first + data.count
        if data.flags & wire.ANSWER_NOW:
            lane.asked = max(lane.expected, end)
            self.touched(lane)
        if data.first > lane.expected:
            self._on_gap(lane, data.first)
            return None
        first = lane.expected
        skip = first - data.first  # so many have come before
        if end > first >= lane.limit:
            self.over_credit += 1
            self._tell_expected(lane)
            return None
        self.duplicates += min(skip, data.count)
        if end <= first:
            lane.urgent = True
            self.touched(lane)
            return None
        count = end - first
        room, gauge = self._room(lane, count, size, now)
        if room == 0 and gauge.executor.withholds:
            self._hold(lane, count)
            return None
        self._move_on(lane, end, size / data.count)
        if room < count:
            self._shed(lane, first + room, end, gauge)
        elif end >= lane.press_at and not self.withholds(lane):
            self.touched(lane)  # credit reaches ahead of what has arrived
        if room == 0:
            return None
        self.frames += 1
        self.admitted += room
        return BatchReceipt(lane, first, first + room)

    def _on_gap(self, lane: ProducerLane, first: int) -> None:
        """A frame begins behind what is expected: its producer is told, once until it goes back."""
        self.gaps += 1
        went_back = first <= lane.gap_first  # and its first frame is missing again
        lane.gap_first = first
        if not lane.gap_told or (went_back and not lane.held):
            self._tell_expected(lane)

    def _move_on(self, lane: ProducerLane, end: int, weight: float) -> None:
        """What was expected is here: events of ``weight`` bytes each, up to ``end``."""
        lane.gap_told = lane.held = False
        lane.gap_first = -1
        lane.expected = end
        if lane.unheard:
            lane.heard(end)
        if lane.period != self.period:
            lane.period = self.period
            self._credit(lane.partition).active(lane)
        lane.weight = weight if weight > lane.weight else lane.weight * 0.75 + weight * 0.25

    def _shed(self, lane: ProducerLane, first: int, end: int, gauge: Gauge) -> None:
        """Drop what a stage has no room for: it is done with, and its producer is told."""
        reason = gauge.executor.reason
        gauge.dropped(end - first, reason)
        lane.shed(first, end - first, reason)
        lane.complete(first, end)

    def _room(self, lane: ProducerLane, count: int, size: int, now: float) -> tuple[int, Gauge]:
        """How many of the events are taken, and which stage takes no more of them.

        Frames that wait take up both stages. Where the stream's stage drops, a deserializer that
        would make producers wait never does: what it has no room for, the stage has none for.
        """
        first, stage = self.deserializer, self.stages[lane.partition]
        room = first.executor.room(first, count, size, now)
        fits = max(0, min(count, stage.executor.room(stage, count, size, now)))
        gauge = first
        if fits < room or (room < count and not stage.executor.withholds):
            room, gauge = min(room, fits), stage
        return (0 if gauge.executor.withholds and room < count else max(0, room)), gauge

    def _hold(self, lane: ProducerLane, count: int) -> None:
        """Leave a frame to its producer, which is asked for it when there is room."""
        self.left += count
        lane.held = lane.gap_told = True
        lane.gap_untold = False
        self._held[lane] = None

    def connection_of(self, producer: str) -> Hashable | None:
        """The connection that the producer's id belongs to, if it is connected."""
        lane = self.lanes.get((producer, next(iter(self.stages), 0)))
        return None if lane is None else lane.connection

    def _tell_expected(self, lane: ProducerLane) -> None:
        lane.gap_told = lane.gap_untold = lane.urgent = True
        self.touched(lane)

    def released(self) -> None:
        """Room has been made in the stages: serve whom lack of it held back."""
        if not (self._held or self._holding):
            return
        if self._held and self.deserializer.roomy:
            for lane in [each for each in self._held if self._has_room(each)]:
                del self._held[lane]
                lane.held = False
                lane.gap_first = UNLIMITED  # any gap from here on is a new one
                if lane.connection is not None:
                    self._tell_expected(lane)
        for credit in [credit for credit in self._holding if not credit.holding]:
            self._holding.pop(credit)
        for credit in list(self._holding):
            for lane in credit.release():
                lane.urgent = True
                self.touched(lane)

    def cuts_of(self, partitions: Iterable[int]) -> list[tuple[int, int]]:  # noqa: ARG002
        """The cuts that the tasks of these partitions have made, in pairs with the numbers."""
        return []

    def _has_room(self, lane: ProducerLane) -> bool:
        return self.stages[lane.partition].roomy

    def ask(self, producer: str, connection: Hashable) -> None:
        """The producer wants its verdicts now."""
        for lane in self._of(producer, connection):
            lane.asked = lane.expected  # the answer waits until what has come is processed
            lane.gap_untold = (
                lane.gap_told and not lane.held
            )  # a producer that asks may have missed it
            lane.urgent = lane.urgent or lane.gap_untold
            self.touched(lane)

    def gone(self, connection: Hashable, now: float) -> None:
        """The connection is gone; its producers' lanes wait for their return."""
        for producer in self._opened.pop(connection, ()):
            self.detach(producer, connection, now)
        if len(self._away) > MAX_AWAY:  # the first are those that left first
            for lane in list(self._away)[: len(self._away) - MAX_AWAY]:
                self._evict(lane)

    def detach(self, producer: str, connection: Hashable, now: float) -> None:
        """The producer's lanes are not the connection's any more."""
        for lane in self._of(producer, connection):
            lane.connection, lane.seen = None, now
            self._away[lane] = None
            self._held.pop(lane, None)
            self._credit(lane.partition).leave(lane)

    def forget(self, producer: str, connection: Hashable) -> None:
        """The producer is done for good; with work in progress, when that is over. Of a task,
        this owner is."""
        if producer.startswith(wire.TASK):
            return
        for lane in list(self._of(producer, connection)):
            self._held.pop(lane, None)
            self._ended[producer] = None
            lane.ended = True
            if self._is_over(lane):
                self._credit(lane.partition).leave(lane)
                self._drop(lane)
        self._forget_ended()
        if (producer, next(iter(self.stages), 0)) not in self.lanes:
            self._opened.get(connection, set()).discard(producer)

    def _forget_ended(self) -> None:
        """Forget the producers of which nothing more comes, once nothing of them is under way."""
        for producer in list(self._ended):
            lanes = [
                self.lanes[producer, each] for each in self.stages if (producer, each) in self.lanes
            ]
            if all(self._is_over(one) and (one.ended or one.connection is None) for one in lanes):
                for lane in lanes:
                    self._credit(lane.partition).leave(lane)
                    self._drop(lane)
                del self._ended[producer]
                self._forget_rows(producer)

    def _forget_rows(self, producer: str) -> None:
        """Nothing more is to be kept of a producer without lanes."""

    def tick(self, now: float, expiry: float) -> None:
        """Once a while: forget who has been away for ``expiry`` seconds, see who is active."""
        if now < self._next_period:
            return
        self._next_period = now + PERIOD
        self.period += 1
        for credit in self._credits.values():
            credit.tick()
        self.expire(now - expiry)
        if self._ended:
            self._forget_ended()

    def leave(self, partition: int) -> None:
        """The partition is another node's from here on, with all of its producers' lanes."""
        for lane in [lane for lane in self.lanes.values() if lane.partition == partition]:
            self._credit(partition).leave(lane)
            self._held.pop(lane, None)
            self._away.pop(lane, None)
            lane.connection = None  # which has nothing more to tell of it
            del self.lanes[lane.producer, partition]

    def enter(self, partition: int) -> None:
        """The partition is ours from here on."""
        self._credits.pop(partition, None)  # of when it was ours before

    def expire(self, before: float) -> int:
        """Drop the lanes of producers that have been away since ``before``; returns how many."""
        stale = []
        for lane in self._away:
            if lane.seen >= before:
                break
            if self._is_over(lane):
                stale.append(lane)
        for lane in stale:
            if lane.own_id:
                self._evict(lane)
            else:
                self._drop(lane)
        return len(stale)

    def _is_over(self, lane: ProducerLane) -> bool:
        """Whether nothing of the lane is under way."""
        return lane.safe == lane.expected

    def _drop(self, lane: ProducerLane) -> None:
        """The lane is forgotten."""
        self._away.pop(lane, None)
        self.lanes.pop((lane.producer, lane.partition), None)

    def _evict(self, lane: ProducerLane) -> None:
        """The lane makes room for others; what is kept of its producer stays."""
        self._drop(lane)

    def _of(self, producer: str, connection: Hashable) -> Iterator[ProducerLane]:
        for partition in self.stages:
            lane = self.lanes.get((producer, partition))
            if lane is not None and lane.connection == connection:
                yield lane

    def validate(self) -> None:
        """Assert the rules; for tests."""
        for lane in self.lanes.values():
            assert lane.told_upto <= lane.settled <= lane.safe <= lane.expected
            assert lane.told_limit <= lane.limit
            assert lane.connection is not None or lane in self._away
            lane._low.validate()
