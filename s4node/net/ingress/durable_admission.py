"""The node's side of the producers of a durable stream: what is settled has been committed. Pure.

Rules
- A lane's numbers are part of the commits of its task: ``committed`` is what the last one has of
  them, and the ``upto`` of verdicts. So whatever is settled survives the node, and a producer that
  keeps the rest can have every event counted once.
- Events count one by one, not frame by frame: a commit covers exactly what its task has processed.
- A producer that asks for its verdicts waits for a commit; one that does not can wait for a second.
- Credit reaches ahead of what is processed, and not further than a window beyond what is committed,
  for producers keep all of that. When half of it is used a commit is asked for.
- A lane begins where its row says; without one, where its producer says, which is told so. A
  producer that has heard that more is settled than the row says meets an older state: that is
  refused as a loss.
- A producer that goes on after a death, and knows no number, waits until everything that its
  earlier life has sent is committed: then the answer is where to go on, whatever happens next.
- Rows are forgotten with the end of stream. A program without an id of its own is also forgotten
  when it was away for so long, counted while the partition is here; others never are, nor tasks.
- What was refused and perhaps not heard is in the row as well.
- A frame of a task that has made a later cut than ours is left to it until ours has begun; see
  :mod:`s4node.offsets.cuts`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from s4node.net.ingress.admission import MAX_KEPT, StreamAdmission
from s4node.net.ingress.producer_lane import FrameReceipt, ProducerLane, Unprocessed
from s4node.net.ingress.producer_life import Life
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import Cuts
from s4node.offsets.low_watermark import LowWatermark
from s4node.offsets.producer_offsets import KeptProducer

WINDOW_EVENTS = 1 << 20
"""Events of a lane beyond what is committed: a second's worth at a rate that few lanes reach."""

UNKNOWN_BYTES = 64 << 10
"""Bytes that an event is taken to weigh in a window as long as its lane has seen none. It is much,
for credit is not taken back; that costs one more verdict before the first large frame."""

PATIENCE = 1.0
"""Seconds after which what is processed is committed for a producer that does not ask for verdicts.
It only has to keep the events until then."""

_LOOKS = 16
"""How often in the time after which producers are forgotten their rows are looked at."""


class DurableLane(ProducerLane):
    """One producer's numbers in one partition of a durable stream."""

    __slots__ = ("awaited", "committed", "has_row", "returns", "wanted")

    admission: DurableAdmission
    by_event = True

    def __init__(
        self, admission: DurableAdmission, producer: str, partition: int, start: int
    ) -> None:
        super().__init__(admission, producer, partition, start)
        self.committed = start
        self.returns = 0  # how often it has gone back
        self.wanted = False  # a commit has been asked for
        self.awaited = False  # its producer waits for all of it to be committed
        self.has_row = False

    @property
    def settled(self) -> int:
        """The producer need not keep anything below."""
        return self.committed

    @property
    def window(self) -> int:
        """How many events may be beyond what is committed."""
        most = self.admission.window_bytes
        by_bytes = int(most / (self.weight or UNKNOWN_BYTES))
        return max(1, min(self.admission.window_events, by_bytes))

    def complete(self, first: int, end: int) -> None:
        """The numbers ``first <= n < end`` are done."""
        if self._low.complete(first, end):
            self.admission.moved(self)
            if (
                (self.safe - self.committed) * 2 >= self.window
                or (self.awaited and self.safe == self.expected)
                or (self.admission.on_demand and 0 <= self.asked <= self.safe)
            ):
                self.want()
            else:
                self.admission.wait(self)
            self.admission.touched(self)

    @property
    def patience(self) -> float:
        """For how many seconds its producer can wait for the next commit; infinity where that has
        nothing for it."""
        if self.committed >= self.safe:
            return math.inf
        return 0.0 if self.committed < self.asked <= self.safe else PATIENCE

    def want(self) -> None:
        """Ask for a commit, once, if there is anything to commit."""
        if self.committed < self.safe and not self.wanted:
            self.wanted = True
            self.admission.on_full(self.partition)

    def commit(self, number: int) -> None:
        """Everything below is committed."""
        self.wanted = False
        if number > self.committed:
            self.committed = number
            self.admission.touched(self)

    def skip(self, start: int) -> None:
        """Everything below was dealt with elsewhere, and nothing is known of it here."""
        super().skip(start)
        self.committed = start

    def go_back(self) -> None:
        """What is not committed was undone, and is to be sent again."""
        self.returns += 1
        self._low = LowWatermark(self.committed)
        self.expected = self.committed
        self.asked = -1
        self.wanted = self.held = False
        self.untold.forget_from(self.committed)
        self.gap_first = -1

    @property
    def pressing(self) -> bool:
        """Whether the producer should hear now: it waits, or there is more credit for it."""
        if self.urgent or 0 <= self.asked <= self.committed:
            return True
        return self.done >= self.press_at and self.admission.new_limit(self) > self.limit

    def kept(self) -> KeptProducer:
        """As of now, for a commit."""
        told = [one for _, exceptions in self.unheard or () for one in exceptions]
        return KeptProducer(self.safe, *self.life, self.own_id, (*told, *self.untold))

    def resume(self, kept: KeptProducer) -> None:
        """Go on from what was kept."""
        self.life = Life(kept.life, kept.incarnation)
        self.own_id = kept.own_id
        self.has_row = True
        if kept.untold:
            self.unheard = deque([(self.limit, [Unprocessed(*one) for one in kept.untold])])


class Known(NamedTuple):
    """A producer that has a row and no lane."""

    kept: KeptProducer
    seen: float


class TakenLanes(NamedTuple):
    """What a commit takes of a task's producers: lanes as of that moment, and who is forgotten."""

    lanes: dict[DurableLane, KeptProducer]
    forgotten: frozenset[str]


@dataclass
class DurableAdmission(StreamAdmission):
    """All producers of a durable stream on this node.

    ``partitions`` are those of the stream, on all nodes. ``on_full(partition)`` asks for a commit
    at once, ``on_wait(partition, patience)`` for one within so many seconds: producers wait for it.
    Commits are ``on_demand`` where nothing else makes them: when a producer wants its verdict.
    Programs get no more credit while a partition is ``held``: much waits of what they have sent to
    it and others are to process. Tasks do, for they may wait for each other.
    """

    partitions: int = 1
    on_full: Callable[[int], None] = lambda _: None
    on_wait: Callable[[int, float], None] = lambda _, __: None
    on_demand: bool = False
    held: Callable[[int], bool] = lambda _: False
    cuts: Cuts = field(default_factory=Cuts)
    window_events: int = WINDOW_EVENTS
    most: int = MAX_KEPT
    _known: dict[tuple[str, int], Known] = field(default_factory=dict)
    _moved: dict[int, dict[DurableLane, None]] = field(default_factory=dict)
    _forgotten: dict[int, dict[str, Known]] = field(default_factory=dict)
    _stopped: dict[DurableLane, None] = field(default_factory=dict)
    _next_look: float = 0.0

    @property
    def window_bytes(self) -> int:
        """A lane's share of what a producer may have to keep, by what its events have weighed."""
        return max(1 << 20, wire.WINDOW_BYTES // self.partitions)

    # -- commits -----------------------------------------------------------------------------

    def moved(self, lane: DurableLane) -> None:
        """The next commit has something of this lane."""
        self._moved.setdefault(lane.partition, {})[lane] = None

    def restore(self, partition: int, rows: Mapping[str, KeptProducer], now: float) -> None:
        """The rows of a partition that is ours now, by producer; before it is opened. Nobody was
        away while there was nobody to hear."""
        for producer, kept in rows.items():
            self._known[producer, partition] = Known(kept, now)
            self.learn(producer)

    def leave(self, partition: int) -> None:
        """The partition is another node's from here on, and so are its rows."""
        super().leave(partition)
        self._moved.pop(partition, None)
        self._forgotten.pop(partition, None)
        for lane in [lane for lane in self._stopped if lane.partition == partition]:
            del self._stopped[lane]
        for known in [known for known in self._known if known[1] == partition]:
            del self._known[known]

    def has_moved(self, partition: int) -> bool:
        """Whether a commit would write anything of these producers."""
        return bool(self._moved.get(partition) or self._forgotten.get(partition))

    def patience(self, partition: int) -> float:
        """For how many seconds producers can wait for a commit; on demand they say when."""
        lanes = () if self.on_demand else self._moved.get(partition, ())
        return min((lane.patience for lane in lanes), default=math.inf)

    def wait(self, lane: DurableLane) -> None:
        """A producer waits for a commit, if that has something for it."""
        if not self.on_demand and lane.patience < math.inf:
            self.on_wait(lane.partition, lane.patience)

    def take(self, partition: int) -> TakenLanes:
        """What a commit that is taken at this moment says."""
        lanes = {lane: lane.kept() for lane in self._moved.get(partition, ())}
        return TakenLanes(lanes, frozenset(self._forgotten.get(partition, ())))

    def committed(self, partition: int, taken: TakenLanes) -> None:
        """The commit is written."""
        moved = self._moved.get(partition, {})
        for lane, kept in taken.lanes.items():
            if not lane.has_row:
                lane.has_row = True
                self.learn(lane.producer)
            if (lane.safe, *lane.life) == (kept.number, kept.life, kept.incarnation):
                moved.pop(lane, None)
            lane.commit(kept.number)
            if lane.awaited and lane.committed < lane.expected == lane.safe:
                lane.want()
        for producer in taken.forgotten:
            self._forgotten.get(partition, {}).pop(producer, None)

    def go_back(self, partition: int) -> None:
        """The task of a partition has gone back to its last commit: so do its producers."""
        for lane in self.lanes.values():
            assert isinstance(lane, DurableLane)
            if lane.partition == partition and lane.committed < lane.expected:
                lane.go_back()
                self._held.pop(lane, None)
                if lane.connection is not None:
                    self._tell_expected(lane)

    # -- producers ---------------------------------------------------------------------------

    def refusal(self, hello: wire.Hello) -> str:
        """Why a producer may not open the stream; empty if it may."""
        error = super().refusal(hello)
        if error:
            return error
        if self._full(hello.peer):
            return (
                f"stream {self.stream!r}: its tasks know {self.most} producers each, which is the "
                f"most; end the stream of those that never come back (ClientStream.end)"
            )
        for position in hello.positions:
            number = self._number(hello.peer, position.partition)
            if number is not None and position.number > number:
                is_task = hello.peer.startswith(wire.TASK)
                anew = "without any of its app" if is_task else "with another producer id"
                return (
                    f"stream {self.stream!r}: {hello.peer!r} has heard that everything below "
                    f"{position.number} is committed in partition {position.partition}, and its "
                    f"state there is of {number}: it was set back, and the events between are "
                    f"lost to it. Put the newer state back, or begin anew {anew}"
                )
        return ""

    def _full(self, producer: str) -> bool:
        """Return True if there is no room for another producer, and this is one. A node without a
        partition of the stream keeps nothing of it."""
        if not self.stages or len(self._known) + len(self.lanes) < self.most * len(self.stages):
            return False
        return all(self._number(producer, partition) is None for partition in self.stages)

    def _number(self, producer: str, partition: int) -> int | None:
        """The number to go on with; None where nothing is known of the producer."""
        lane = self.lanes.get((producer, partition))
        if lane is not None:
            return lane.expected if lane.expected or lane.has_row else None  # type: ignore[attr-defined]
        known = self._found(producer, partition)
        return None if known is None else known.kept.number

    def _found(self, producer: str, partition: int) -> Known | None:
        """What a producer without a lane has left here."""
        known = self._known.get((producer, partition))
        return known or self._forgotten.get(partition, {}).get(producer)

    def unknown(self, hello: wire.Hello) -> list[int]:
        """The partitions of which the producer knows settled numbers, and the node nothing."""
        return [
            position.partition
            for position in hello.positions
            if position.number > 0
            and position.partition in self.stages
            and self._number(hello.peer, position.partition) is None
        ]

    def unsettled(self, hello: wire.Hello, now: float) -> bool:
        """Whether a producer that does not know its numbers must wait for commits of its past.

        If so its lanes belong to nobody until it says hello again.
        """
        claimed = {position.partition for position in hello.positions}
        waits = False
        for partition in self.stages:
            lane = self.lanes.get((hello.peer, partition))
            if lane is None or partition in claimed:
                continue
            assert isinstance(lane, DurableLane)
            if lane.committed < lane.expected:
                waits = lane.awaited = True
        if waits:
            for connection in {lane.connection for lane in self._all(hello.peer)} - {None}:
                self.detach(hello.peer, connection, now)
            for lane in self._all(hello.peer):
                if lane.awaited and lane.safe == lane.expected:
                    lane.want()
        return waits

    def _all(self, producer: str) -> Iterator[DurableLane]:
        for partition in self.stages:
            lane = self.lanes.get((producer, partition))
            if isinstance(lane, DurableLane):
                yield lane

    def ask(self, producer: str, connection: Hashable) -> None:
        """The producer wants its verdicts now."""
        super().ask(producer, connection)
        for lane in self._all(producer):
            if lane.safe != lane.asked:
                continue
            if self.on_demand:
                lane.want()
            else:
                self.wait(lane)

    def new_limit(self, lane: ProducerLane) -> int:
        """How far the lane may send now."""
        assert isinstance(lane, DurableLane)
        if self.held(lane.partition) and not lane.producer.startswith(wire.TASK):
            self._stopped[lane] = None
            return lane.limit
        limit = super().new_limit(lane)
        window = lane.window
        most = lane.committed + window
        if limit <= most:
            return limit
        grows = (most - lane.limit) * 4 >= min(window, self.share(lane))
        return most if grows else lane.limit

    def released(self) -> None:
        """Room has been made: serve whom lack of it held back."""
        super().released()
        for lane in [each for each in self._stopped if not self.held(each.partition)]:
            del self._stopped[lane]
            lane.urgent = True
            self.touched(lane)

    def _made(self, producer: str, partition: int, start: int) -> ProducerLane:
        known = self._found(producer, partition)
        if known is None:
            return DurableLane(self, producer, partition, start)
        lane = DurableLane(self, producer, partition, known.kept.number)
        lane.resume(known.kept)
        if self._known.pop((producer, partition), None) is None:
            del self._forgotten[partition][producer]
            self.moved(lane)  # a commit that forgets it may be under way
        return lane

    def _greeted(self, lane: ProducerLane, hello: wire.Hello, told: int) -> None:
        assert isinstance(lane, DurableLane)
        lane.awaited = False
        before = lane.life, lane.own_id
        super()._greeted(lane, hello, told)
        if lane.has_row and before != (lane.life, lane.own_id):
            self.moved(lane)

    def _row(self, producer: str, partition: int) -> KeptProducer | None:
        known = self._found(producer, partition)
        return None if known is None else known.kept

    # -- cuts --------------------------------------------------------------------------------

    def admit(
        self, data: wire.Data, connection: Hashable, now: float, size: int = 0
    ) -> FrameReceipt | None:
        """Decide on a data frame of ``size`` bytes by its header; None if nothing is admitted."""
        number = data.headers.get(wire.SAVEPOINT) if data.headers else None
        if isinstance(number, int) and self.cuts.request(data.partition, number):
            lane = self.lanes.get((data.producer, data.partition))
            if lane is not None and lane.connection == connection:
                lane.seen = now
                self._hold(lane, data.count)
            return None
        return super().admit(data, connection, now, size)

    def cuts_of(self, partitions: Iterable[int]) -> list[tuple[int, int]]:
        """The cuts that the tasks of these partitions have made, in pairs with the numbers."""
        made = [(partition, self.cuts.made(partition)) for partition in partitions]
        return [(partition, number) for partition, number in made if number]

    def _has_room(self, lane: ProducerLane) -> bool:
        return not self.cuts.is_due(lane.partition) and super()._has_room(lane)

    # -- forgetting --------------------------------------------------------------------------

    def tick(self, now: float, expiry: float) -> None:
        """Once a while: forget who has been away for ``expiry`` seconds, see who is active."""
        super().tick(now, expiry)
        if now < self._next_look:
            return
        self._next_look = now + max(0.1, expiry / _LOOKS)
        for (producer, partition), known in list(self._known.items()):
            if known.seen < now - expiry and not known.kept.own_id:
                self._forget(producer, partition)

    def _is_over(self, lane: ProducerLane) -> bool:
        return lane.settled == lane.expected and lane not in self._moved.get(lane.partition, ())

    def _forget(self, producer: str, partition: int) -> None:
        """Have the next commit forget a row."""
        known = self._known.pop((producer, partition), None)
        if known is not None:
            self._forgotten.setdefault(partition, {})[producer] = known

    def _forget_rows(self, producer: str) -> None:
        for partition in self.stages:
            self._forget(producer, partition)

    def _drop(self, lane: ProducerLane) -> None:
        self._evict(lane)
        assert isinstance(lane, DurableLane)
        self._forget(lane.producer, lane.partition)
        if not lane.has_row:
            self._forgotten.get(lane.partition, {}).pop(lane.producer, None)

    def _evict(self, lane: ProducerLane) -> None:
        if self._is_over(lane):
            super()._drop(lane)
            assert isinstance(lane, DurableLane)
            if lane.has_row or lane.own_id:
                self._known[lane.producer, lane.partition] = Known(lane.kept(), lane.seen)
