"""The admission of a durable stream: settled events have been committed. Pure.

Rules
- A lane's numbers are part of its task's commits. ``committed`` is the position in the last commit,
  and the ``upto`` of verdicts. So settled events survive the node, and a producer that keeps the
  rest can have every event counted once.
- Events count one by one, not frame by frame: a commit covers exactly the processed events.
- A producer that asks for its verdicts waits for a commit; other producers can wait for a second.
- Credit reaches ahead of what is processed, but at most a window beyond what is committed, because
  producers keep all those events. When half of the window is used, a commit is requested.
- A lane begins at its saved row; without a row, where its producer says, which the hello reports.
  If a producer has heard of a higher settled number than the row has, the state is older than it
  was: the hello is refused as a loss.
- A producer that resumes after a death and knows no numbers waits until all events of its earlier
  life are committed; the answer then holds, whatever happens next.
- If events have a time, a new producer with an id of its own is answered once a commit has it: the
  next owner waits for it, although it may have sent nothing.
- An end of stream removes a producer's rows. A program without an id of its own is also forgotten
  after an absence, counted while the partition is here; other programs and tasks never are.
- Refusals that the producer may not have heard are in the row as well.
- Numbers belong to a layout (:mod:`s4node.offsets.producer_offsets`). A producer of an earlier one,
  or of none, is told its final numbers, and begins at 0.
- A frame of a task that has made a later cut than ours is left to it until ours has begun; see
  :mod:`s4node.offsets.cuts`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from s4node.errors import LimitReached
from s4node.net.ingress.admission import MAX_KEPT, StreamAdmission
from s4node.net.ingress.flow import On
from s4node.net.ingress.producer_lane import AT_ONCE, FrameReceipt, ProducerLane, Unprocessed
from s4node.net.ingress.producer_life import Life
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import Cuts
from s4node.offsets.producer_offsets import Closings, SavedProducer
from s4node.offsets.receipts import LowWatermark

WINDOW_EVENTS = 1 << 20
"""Events of a lane beyond the last commit: a second's worth at a rate that few lanes reach."""

UNKNOWN_BYTES = 64 << 10
"""The assumed bytes of an event until its lane has seen one. The value is high, because credit is
not taken back; it costs one more verdict before the first large frame."""

PATIENCE = 1.0
"""Seconds until processed events are committed for a producer that does not ask for verdicts; it
only has to keep them longer."""

_NONE_CLOSED: Mapping[str, Closings] = {}


class DurableLane(ProducerLane):
    """One producer's numbers in one partition of a durable stream."""

    __slots__ = ("awaited", "closings", "committed", "has_row", "returns", "saving", "wanted")

    admission: DurableAdmission
    by_event = True

    def __init__(
        self, admission: DurableAdmission, producer: str, partition: int, start: int
    ) -> None:
        super().__init__(admission, producer, partition, start)
        self.committed = start
        self.returns = 0  # rollbacks of its task
        self.wanted = False  # a commit was requested
        self.awaited = False  # its producer waits until all of it is committed
        self.has_row = False
        self.saving = False  # its producer waits until it has a row
        self.closings: Closings = ()

    @property
    def settled(self) -> int:
        return self.committed

    @property
    def window(self) -> int:
        """The number of events that may be beyond the last commit."""
        most = self.admission.window_bytes
        by_bytes = int(most / (self.weight or UNKNOWN_BYTES))
        return max(1, min(self.admission.window_events, by_bytes))

    def complete(self, first: int, end: int) -> None:
        if self._low.complete(first, end):
            if self.marks:
                self.pass_marks()
            self.admission.moved(self)
            if (
                (self.safe - self.committed) * 2 >= self.window
                or (self.awaited and self.safe == self.expected)
                or (self.admission.on_demand and 0 <= self.asked <= self.safe)
            ):
                self.want()
            else:
                self.admission.wait(self)
            if self.done >= self.press_at:  # there may be more credit; the rest waits for a commit
                self.effects.answers[self] = None

    @property
    def patience(self) -> float:
        """For how many seconds its producer can wait for a commit; infinity if it needs none."""
        if self.saving:
            return 0.0
        if self.committed >= self.safe:
            return math.inf
        return 0.0 if self.committed < self.asked <= self.safe else PATIENCE

    def want(self) -> None:
        """Request a commit, once, if there is anything to commit."""
        if self.committed < self.safe and not self.wanted:
            self.wanted = True
            self.effects.commits[self.partition] = AT_ONCE

    def commit(self, number: int) -> None:
        """Note that everything below ``number`` is committed."""
        self.wanted = False
        if number > self.committed:
            self.committed = number
            self.effects.answers[self] = None

    def skip(self, start: int) -> None:
        """Skip to ``start``: everything below was done elsewhere."""
        super().skip(start)
        self.committed = start

    def roll_back(self) -> None:
        """Expect uncommitted events again, because they were rolled back."""
        self.returns += 1
        self.marks.clear()
        self._low = LowWatermark(self.committed)
        self.expected = self.committed
        self.asked = -1
        self.wanted = False
        self.untold.forget_from(self.committed)
        self.gap_first = -1
        self.on(On.ROLLED_BACK)

    @property
    def pressing(self) -> bool:
        """True if the producer should be told now: it waits, or there is more credit for it."""
        if self.urgent or 0 <= self.asked <= self.committed:
            return True
        return (
            self.done >= self.press_at and self.admission.new_limit(self, self.share) > self.limit
        )

    def row(self) -> SavedProducer:
        """The current row, for a commit."""
        told = [one for _, exceptions in self.unheard or () for one in exceptions]
        return SavedProducer(self.safe, *self.life, self.own_id, (*told, *self.untold))

    def restore(self, saved: SavedProducer) -> None:
        self.life = Life(saved.life, saved.incarnation)
        self.own_id = saved.own_id
        self.has_row = True
        if saved.untold:
            self.unheard = deque([(self.limit, [Unprocessed(*one) for one in saved.untold])])


class Known(NamedTuple):
    """A producer that has a row and no lane."""

    saved: SavedProducer
    seen: float
    closings: Closings = ()


class TakenLanes(NamedTuple):
    """The producers in a commit: the changed lanes at that moment, and those to forget, with the
    events that those have ``ended`` with."""

    lanes: dict[DurableLane, SavedProducer]
    forgotten: frozenset[str]
    ended: int


@dataclass
class DurableAdmission(StreamAdmission):
    """All producers of a durable stream on this node.

    ``partitions`` is the stream's number of partitions on all nodes, and ``layout`` the number of
    the layout that has them. Commits are ``on_demand`` if only producers that want their verdict
    cause them. While ``full`` has a partition's channel to other tasks, many of its events wait for
    those, and programs get no more credit. Tasks still get credit, because they may wait for each
    other. ``timed``: the stream's watermark waits for its producers.
    """

    partitions: int = 1
    layout: int = 0
    on_demand: bool = False
    full: Container[tuple[str, Hashable]] = ()
    timed: bool = False
    cuts: Cuts = field(default_factory=Cuts)
    window_events: int = WINDOW_EVENTS
    most: int = MAX_KEPT
    _known: dict[tuple[str, int], Known] = field(default_factory=dict)
    _moved: dict[int, dict[DurableLane, None]] = field(default_factory=dict)
    _forgotten: dict[int, dict[str, Known]] = field(default_factory=dict)
    _stopped: dict[DurableLane, None] = field(default_factory=dict)
    _unsaved: dict[str, set[int]] = field(default_factory=dict)  # partitions, by who waits

    @property
    def window_bytes(self) -> int:
        """A lane's share of the bytes that a producer may have to keep."""
        return max(1 << 20, wire.WINDOW_BYTES // self.partitions)

    # -- commits -----------------------------------------------------------------------------

    def moved(self, lane: DurableLane) -> None:
        """Include a lane in the next commit."""
        self._moved.setdefault(lane.partition, {})[lane] = None

    def restore(
        self,
        partition: int,
        rows: Mapping[str, SavedProducer],
        now: float,
        closings: Mapping[str, Closings] = _NONE_CLOSED,
    ) -> None:
        """Restore the rows, by producer, of a partition that is about to open.

        Absences count from now: before, no owner could hear the producers.
        """
        for producer, kept in rows.items():
            self._known[producer, partition] = Known(kept, now, closings.get(producer, ()))
            self.learn(producer)

    def revoke(self, partition: int) -> None:
        super().revoke(partition)
        self._moved.pop(partition, None)
        self._forgotten.pop(partition, None)
        for lane in [lane for lane in self._stopped if lane.partition == partition]:
            del self._stopped[lane]
        for known in [known for known in self._known if known[1] == partition]:
            del self._known[known]

    def has_moved(self, partition: int) -> bool:
        """Return True if a commit would write any producers of a partition."""
        return bool(self._moved.get(partition) or self._forgotten.get(partition))

    def patience(self, partition: int) -> float:
        """For how many seconds producers can wait for a commit; infinity if on demand."""
        lanes = () if self.on_demand else self._moved.get(partition, ())
        return min((lane.patience for lane in lanes), default=math.inf)

    def wait(self, lane: DurableLane) -> None:
        """Request a commit for a producer that waits, if a commit helps it."""
        if not self.on_demand and lane.patience < math.inf:
            self.effects.commit_within(lane.partition, lane.patience)

    def snapshot(self, partition: int) -> TakenLanes:
        """Take the changed lanes of a partition, for a commit."""
        lanes = {lane: lane.row() for lane in self._moved.get(partition, ())}
        forgotten = self._forgotten.get(partition, {})
        ended = sum(known.saved.number for known in forgotten.values())
        return TakenLanes(lanes, frozenset(forgotten), ended)

    def commit_written(self, partition: int, taken: TakenLanes) -> None:
        self.effects.committed = True
        moved = self._moved.get(partition, {})
        for lane, saved in taken.lanes.items():
            if not lane.has_row:
                lane.has_row = True
                self.learn(lane.producer)
                lane.saving = False
                left = self._unsaved.get(lane.producer, {partition})
                left.discard(partition)
                if not left:
                    self._unsaved.pop(lane.producer, None)
            if (lane.safe, *lane.life) == (saved.number, saved.life, saved.incarnation):
                moved.pop(lane, None)
            lane.commit(saved.number)
            if lane.awaited and lane.committed < lane.expected == lane.safe:
                lane.want()
        for producer in taken.forgotten:
            self._forgotten.get(partition, {}).pop(producer, None)

    def roll_back(self, partition: int) -> None:
        """Have producers go back to the last commit, as the task of a partition was rolled back."""
        for lane in self.lanes.values():
            assert isinstance(lane, DurableLane)
            if lane.partition == partition and lane.committed < lane.expected:
                lane.roll_back()
                self._held.pop(lane, None)
            passed = lane.passed  # a later one is repeated by the producer, with its events
            if lane.partition == partition and passed and passed.number <= lane.committed:
                self.on_time(lane, passed)

    # -- layouts -----------------------------------------------------------------------------

    def in_layout(self, hello: wire.Hello) -> tuple[wire.Hello, Closings]:
        """The hello with numbers of the current layout, and what its producer has to know of the
        layouts that have ended."""
        said = hello.headers.get(wire.LAYOUT)
        closings = self._closings(hello.peer)
        if not isinstance(said, int) or said < 0:
            return hello, closings
        if said == self.layout or (said > self.layout and hello.partitions == self.partitions):
            return hello, ()  # of a later layout: the state has begun anew
        life = max((position.life for position in hello.positions), default=0)
        anew = tuple(wire.Position(partition, 0, life=life) for partition in self.stages)
        return replace(hello, positions=anew), closings[said:]

    def _closings(self, producer: str) -> Closings:
        for partition in self.stages:
            lane = self.lanes.get((producer, partition))
            known = lane if isinstance(lane, DurableLane) else self._found(producer, partition)
            if known is not None and known.closings:
                return known.closings
        return ()

    def lost_before(self, hello: wire.Hello, closings: Closings) -> str:
        """Why a producer of a layout that has ended may not go on; empty if it may."""
        if not closings or closings[0].lossy:
            return ""
        finals = dict(enumerate(closings[0].numbers))
        for position in hello.positions:
            number = finals.get(position.partition, 0)
            if position.number > number:
                return self._loss(hello.peer, position, number)
        return ""

    # -- producers ---------------------------------------------------------------------------

    def refusal(self, hello: wire.Hello) -> str:
        """Why a producer may not open the stream; empty if it may. Raises LimitReached."""
        error = super().refusal(hello)
        if error:
            return error
        if self._full(hello.peer):
            raise LimitReached(
                f"stream {self.stream!r}: each of its tasks knows {self.most} producers, the most "
                f"that are allowed; end the stream of those that never return (ClientStream.end)"
            )
        for position in hello.positions:
            number = self._number(hello.peer, position.partition)
            row = self._row(hello.peer, position.partition)
            if row is not None and number is not None:
                number = max(number, row.skips)
            if number is not None and position.number > number:
                return self._loss(hello.peer, position, number)
        return ""

    def _loss(self, producer: str, position: wire.Position, number: int) -> str:
        """Why a producer may not go on at a position after the last committed number."""
        is_task = producer.startswith(wire.TASK)
        anew = "without any of its app" if is_task else "with another producer id"
        return (
            f"stream {self.stream!r}: {producer!r} was told that everything below "
            f"{position.number} is committed in partition {position.partition}, but the "
            f"state there ends at {number}: an older state was restored, and the events "
            f"between are lost. Restore the newer state, or begin anew {anew}"
        )

    def _full(self, producer: str) -> bool:
        """Return True if the producer is new and there is no room for another one.

        A node without a partition of the stream saves no producers.
        """
        if not self.stages or len(self._known) + len(self.lanes) < self.most * len(self.stages):
            return False
        return all(self._number(producer, partition) is None for partition in self.stages)

    def _number(self, producer: str, partition: int) -> int | None:
        """The next number of a producer; None if the producer is unknown."""
        lane = self.lanes.get((producer, partition))
        if lane is not None:
            return lane.expected if lane.expected or lane.has_row else None  # type: ignore[attr-defined]
        known = self._found(producer, partition)
        return None if known is None else known.saved.number

    def _found(self, producer: str, partition: int) -> Known | None:
        """The saved row of a producer without a lane."""
        known = self._known.get((producer, partition))
        return known or self._forgotten.get(partition, {}).get(producer)

    def unknown(self, hello: wire.Hello) -> list[int]:
        """The partitions in which the producer has settled numbers but is unknown here."""
        return [
            position.partition
            for position in hello.positions
            if position.number > 0
            and position.partition in self.stages
            and self._number(hello.peer, position.partition) is None
        ]

    def unsettled(self, hello: wire.Hello, now: float) -> bool:
        """Return True if a producer without numbers must wait for commits of its earlier life.

        Its lanes then have no connection until it says hello again.
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

    def save(self, producer: str) -> bool:
        """Return True if a producer must wait for the commits that save it, and request them."""
        new = [lane for lane in self._all(producer) if lane.own_id and not lane.has_row]
        self._unsaved.pop(producer, None)
        for lane in new if self.timed else ():
            self._unsaved.setdefault(producer, set()).add(lane.partition)
            lane.saving = True
            self.moved(lane)
            if self.on_demand:
                self.effects.commits[lane.partition] = AT_ONCE
            self.wait(lane)
        return producer in self._unsaved

    def saves(self, producer: str) -> bool:
        return producer in self._unsaved

    def _all(self, producer: str) -> Iterator[DurableLane]:
        for partition in self.stages:
            lane = self.lanes.get((producer, partition))
            if isinstance(lane, DurableLane):
                yield lane

    def ask(self, producer: str, connection: Hashable) -> None:
        super().ask(producer, connection)
        for lane in self._all(producer):
            if lane.safe != lane.asked:
                continue
            if self.on_demand:
                lane.want()
            else:
                self.wait(lane)

    def new_limit(self, lane: ProducerLane, share: int) -> int:
        assert isinstance(lane, DurableLane)
        if self._is_full(lane.partition) and not lane.producer.startswith(wire.TASK):
            self._stopped[lane] = None
            return lane.limit
        limit = super().new_limit(lane, share)
        window = lane.window
        most = lane.committed + window
        if limit <= most:
            return limit
        grows = (most - lane.limit) * 4 >= min(window, share)
        return most if grows else lane.limit

    def released(self) -> None:
        super().released()
        if not self._stopped:
            return
        for lane in [each for each in self._stopped if not self._is_full(each.partition)]:
            del self._stopped[lane]
            lane.urgent = True
            self.effects.answers[lane] = None

    def _is_full(self, partition: int) -> bool:
        return (self.stream, (partition, self.stream)) in self.full

    def _made(self, producer: str, partition: int, start: int) -> ProducerLane:
        known = self._found(producer, partition)
        if known is None:
            return DurableLane(self, producer, partition, start)
        lane = DurableLane(self, producer, partition, known.saved.number)
        lane.restore(known.saved)
        lane.closings = known.closings
        if self._known.pop((producer, partition), None) is None:
            del self._forgotten[partition][producer]
            self.moved(lane)  # a running commit may forget it
        return lane

    def _greeted(self, lane: ProducerLane, hello: wire.Hello, told: int) -> None:
        assert isinstance(lane, DurableLane)
        lane.awaited = False
        before = lane.life, lane.own_id
        super()._greeted(lane, hello, told)
        if lane.has_row and before != (lane.life, lane.own_id):
            self.moved(lane)

    def _row(self, producer: str, partition: int) -> SavedProducer | None:
        known = self._found(producer, partition)
        return None if known is None else known.saved

    # -- cuts --------------------------------------------------------------------------------

    def admit(
        self, data: wire.Data, connection: Hashable, now: float, size: int = 0
    ) -> FrameReceipt | None:
        number = data.headers.get(wire.SAVEPOINT) if data.headers else None
        if isinstance(number, int) and self.cuts.request(data.partition, number):
            lane = self.lanes.get((data.producer, data.partition))
            if lane is not None and lane.connection == connection:
                lane.seen = now
                self._hold(lane, data.count)
            return None
        return super().admit(data, connection, now, size)

    def cuts_of(self, partitions: Iterable[int]) -> list[tuple[int, int]]:
        made = [(partition, self.cuts.made(partition)) for partition in partitions]
        return [(partition, number) for partition, number in made if number]

    def _has_room(self, lane: ProducerLane) -> bool:
        return not self.cuts.is_due(lane.partition) and super()._has_room(lane)

    # -- forgetting --------------------------------------------------------------------------

    def _forget_absent(self, now: float, expiry: float) -> None:
        for (producer, partition), known in list(self._known.items()):
            if known.seen < now - expiry and not known.saved.own_id:
                self._forget(producer, partition)

    def _is_over(self, lane: ProducerLane) -> bool:
        return lane.settled == lane.expected and lane not in self._moved.get(lane.partition, ())

    def _forget(self, producer: str, partition: int) -> None:
        """Remove a row with the next commit."""
        known = self._known.pop((producer, partition), None)
        if known is not None:
            self._forgotten.setdefault(partition, {})[producer] = known

    def _forget_rows(self, producer: str) -> None:
        for partition in self.stages:
            self._forget(producer, partition)

    def _drop(self, lane: ProducerLane) -> None:
        self._evict(lane)
        self._unsaved.pop(lane.producer, None)
        assert isinstance(lane, DurableLane)
        self._forget(lane.producer, lane.partition)
        if not lane.has_row:
            self._forgotten.get(lane.partition, {}).pop(lane.producer, None)

    def _evict(self, lane: ProducerLane) -> None:
        if self._is_over(lane):
            super()._drop(lane)
            assert isinstance(lane, DurableLane)
            if lane.has_row or lane.own_id:
                self._known[lane.producer, lane.partition] = Known(
                    lane.row(), lane.seen, lane.closings
                )
