"""The producers that the commits of tasks remember: the roster of a durable stream. Pure.

Rules
- A lane's numbers are part of its task's commits, so a producer that keeps what is not settled can
  have every event counted once.
- A lane begins at its saved row; without a row, where its producer says, which the hello reports.
  If a producer knows of a higher settled number than the row has, the state is older than it
  was: the hello is refused as a loss.
- A producer that resumes after a death and knows no numbers waits until all events of its earlier
  life are committed; the answer then holds, whatever happens next.
- If events have a time, a new producer with an id of its own is answered once a commit has it: the
  next owner waits for it, although it may have sent nothing.
- An end of stream removes a producer's rows. A program without an id of its own is also forgotten
  after an absence, counted while the partition is here, and a batch after a day; other programs and
  tasks never are.
- Refusals that the producer may not know are in the row as well.
- A commit takes the numbers in the moment in which it takes the state, and only what is written is
  acknowledged.
- Numbers belong to a layout (:mod:`s4node.offsets.checkpoint`). A producer of an earlier one,
  or of none, gets its final numbers, and begins at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from msgspec.structs import replace

from s4node.errors import LimitReached
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import ProducerLane
from s4node.net.ingress.roster import MAX_KEPT, Roster
from s4node.net.ingress.settlement import Commits, Saved
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import Closings, Producer, SavedProducer, SavedProducers
from s4node.offsets.cuts import AT_ONCE

_NONE_CLOSED: Mapping[str, Closings] = {}


class Known(NamedTuple):
    saved: SavedProducer
    seen: float
    closings: Closings = ()


class TakenLanes(NamedTuple):
    """The producers in a commit: the changed lanes at that moment, and those to forget, with the
    events that those have ``ended`` with."""

    lanes: dict[Saved, SavedProducer]
    forgotten: frozenset[str]
    ended: int


@dataclass(eq=False)
class CommitRows(Roster):
    """The producers of a durable stream on this node, of which at most ``most`` are known.

    ``layout`` is the number of the layout that the partitions of ``commits`` are. ``timed``: the
    stream's watermark waits for its producers.
    """

    commits: Commits
    timed: bool = False
    most: int = MAX_KEPT
    layout: int = 0
    _known: dict[tuple[str, int], Known] = field(default_factory=dict)
    _batches: dict[tuple[str, int], Known] = field(default_factory=dict)  # the oldest first
    _forgotten: dict[int, dict[str, Known]] = field(default_factory=dict)
    _unsaved: dict[str, set[int]] = field(default_factory=dict)  # partitions, by who waits
    _admission: StreamAdmission = field(init=False)

    def begin(self, admission: StreamAdmission) -> None:
        self._admission = admission
        self.stream = admission.stream

    # -- commits -----------------------------------------------------------------------------

    def restore(
        self,
        partition: int,
        rows: Mapping[str, SavedProducer],
        now: float,
        closings: Mapping[str, Closings] = _NONE_CLOSED,
    ) -> None:
        """Restore the rows, by producer, of a partition that is about to open.

        Absences count from now: before, no owner could see the producers.
        """
        for producer, kept in rows.items():
            known = Known(kept, now, closings.get(producer, ()))
            self._known_of(producer)[producer, partition] = known
            self._admission.learn(producer)

    def revoked(self, partition: int) -> None:
        self.commits.revoked(partition)
        self._forgotten.pop(partition, None)
        for every in (self._known, self._batches):
            for known in [known for known in every if known[1] == partition]:
                del every[known]

    def has_moved(self, partition: int) -> bool:
        """Return True if a commit would write any producers of a partition."""
        return bool(self.commits.changed.get(partition) or self._forgotten.get(partition))

    def patience(self, partition: int) -> float:
        """For how many seconds producers can wait for a commit; infinity if on demand."""
        lanes = () if self.commits.on_demand else self.commits.changed.get(partition, ())
        return min((lane.patience for lane in lanes), default=math.inf)

    def snapshot(self, partition: int) -> TakenLanes:
        """Take the changed lanes of a partition, for a commit."""
        lanes = {lane: lane.row() for lane in self.commits.changed.get(partition, ())}
        forgotten = self._forgotten.get(partition, {})
        ended = sum(known.saved.number for known in forgotten.values())
        return TakenLanes(lanes, frozenset(forgotten), ended)

    def commit_written(self, partition: int, taken: TakenLanes) -> None:
        self._admission.effects.committed = True
        changed = self.commits.changed.get(partition, {})
        for saved, row in taken.lanes.items():
            lane = saved.lane
            if not saved.has_row:
                saved.has_row = True
                self._admission.learn(lane.producer)
                saved.saving = False
                left = self._unsaved.get(lane.producer, {partition})
                left.discard(partition)
                if not left:
                    self._unsaved.pop(lane.producer, None)
            if (lane.safe, *lane.life) == (row.number, row.life, row.incarnation):
                changed.pop(saved, None)
            saved.commit(row.number)
            if saved.awaited and lane.settled < lane.expected == lane.safe:
                saved.want()
        for producer in taken.forgotten:
            self._forgotten.get(partition, {}).pop(producer, None)

    def roll_back(self, partition: int) -> None:
        """Have producers go back to the last commit, as the task of a partition was rolled back."""
        for lane in self._admission.lanes.values():
            if lane.partition != partition:
                continue
            if lane.settled < lane.expected:
                _saved(lane).roll_back()
                self._admission.held.pop(lane, None)
            if lane.passed:  # a later one is repeated by the producer, with its events
                lane.effects.times.append((lane, lane.passed))

    # -- layouts -----------------------------------------------------------------------------

    def in_layout(self, said: wire.Hello) -> tuple[wire.Hello, Closings, str]:
        layout = said.headers.get(wire.LAYOUT)
        closings = self._closings(said.peer)
        if not isinstance(layout, int) or layout < 0:
            return said, closings, ""
        same = said.partitions == self.commits.partitions
        if layout == self.layout or (layout > self.layout and same):
            return said, (), ""  # of a later layout: the state has begun anew
        life = max((position.life for position in said.positions), default=0)
        anew = tuple(wire.Position(each, 0, life=life) for each in self._admission.stages)
        closings = closings[layout:]
        return replace(said, positions=anew), closings, self._lost_before(said, closings)

    def _closings(self, producer: str) -> Closings:
        for partition in self._admission.stages:
            lane = self._lane(producer, partition)
            known = self._found(producer, partition) if lane is None else lane
            if known is not None and known.closings:
                return known.closings
        return ()

    def _lost_before(self, said: wire.Hello, closings: Closings) -> str:
        """The reason to refuse a producer of a layout that has ended, or empty."""
        if not closings or closings[0].lossy:
            return ""
        finals = dict(enumerate(closings[0].numbers))
        for position in said.positions:
            number = finals.get(position.partition, 0)
            if position.number > number:
                return self._loss(said.peer, position, number)
        return ""

    # -- producers ---------------------------------------------------------------------------

    def problem(self, hello: wire.Hello) -> str:
        most = wire.MAX_BATCHES if hello.peer.startswith(wire.BATCH) else self.most
        if self._full(hello.peer, most):
            raise LimitReached(
                f"stream {self.stream!r}: each of its tasks knows {most} producers, the most "
                f"that are allowed; end the stream of those that never return (ClientStream.end)"
            )
        for position in hello.positions:
            number = self._number(hello.peer, position.partition)
            row = self.row(hello.peer, position.partition)
            if row is not None and number is not None:
                number = max(number, row.skips)
            if number is not None and position.number > number:
                return self._loss(hello.peer, position, number)
        return ""

    def _loss(self, producer: str, position: wire.Position, number: int) -> str:
        """The reason to refuse a producer at a position after the last committed number."""
        is_task = producer.startswith(wire.TASK)
        anew = "without any of its app" if is_task else "with another producer id"
        return (
            f"stream {self.stream!r}: {producer!r} was told that everything below "
            f"{position.number} is committed in partition {position.partition}, but the "
            f"state there ends at {number}: an older state was restored, and the events "
            f"between are lost. Restore the newer state, or begin anew {anew}"
        )

    def _known_of(self, producer: str) -> dict[tuple[str, int], Known]:
        """The producers without a lane that are known for as long as this one."""
        return self._batches if producer.startswith(wire.BATCH) else self._known

    def _full(self, producer: str, most: int) -> bool:
        """Return True if the producer is new and there is no room for another one.

        A node without a partition of the stream saves no producers.
        """
        stages = self._admission.stages
        known = len(self._known_of(producer)) + len(self._admission.lanes)
        if not stages or known < most * len(stages):
            return False
        return all(self._number(producer, partition) is None for partition in stages)

    def _number(self, producer: str, partition: int) -> int | None:
        saved = self._lane(producer, partition)
        if saved is not None:
            expected = saved.lane.expected
            return expected if expected or saved.has_row else None
        known = self._found(producer, partition)
        return None if known is None else known.saved.number

    def _lane(self, producer: str, partition: int) -> Saved | None:
        lane = self._admission.lanes.get((producer, partition))
        return None if lane is None else _saved(lane)

    def _found(self, producer: str, partition: int) -> Known | None:
        """The saved row of a producer without a lane."""
        known = self._known_of(producer).get((producer, partition))
        return known or self._forgotten.get(partition, {}).get(producer)

    def row(self, producer: str, partition: int) -> SavedProducer | None:
        known = self._found(producer, partition)
        return None if known is None else known.saved

    def unknown(self, hello: wire.Hello) -> list[int]:
        """The partitions in which the producer has settled numbers but is unknown here."""
        return [
            position.partition
            for position in hello.positions
            if position.number > 0
            and position.partition in self._admission.stages
            and self._number(hello.peer, position.partition) is None
        ]

    def headers(
        self, said: wire.Hello, hello: wire.Hello, closings: Closings, now: float
    ) -> wire.Headers | None:
        if self.unsettled(hello, now):
            return None
        stages, unknown = self._admission.stages, self.unknown(hello)
        if hello is not said and stages and not closings:
            unknown = [each.partition for each in said.positions if each.number > 0]
        closed = {wire.UNKNOWN: unknown, wire.CLOSED: closings}
        headers: wire.Headers = {name: value for name, value in closed.items() if value}
        return headers | ({wire.LAYOUT: self.layout} if stages else {})

    def unsettled(self, hello: wire.Hello, now: float) -> bool:
        """Return True if a producer without numbers must wait for commits of its earlier life.

        Its lanes then have no connection until it says hello again.
        """
        claimed = {position.partition for position in hello.positions}
        waits = False
        for saved in self._all(hello.peer):
            if saved.lane.partition not in claimed and saved.lane.settled < saved.lane.expected:
                waits = saved.awaited = True
        if waits:
            lanes = self._admission.lanes_of(hello.peer)
            for connection in {lane.connection for lane in lanes} - {None}:
                self._admission.detach(hello.peer, connection, now)
            for saved in self._all(hello.peer):
                if saved.awaited and saved.lane.safe == saved.lane.expected:
                    saved.want()
        return waits

    def must_save(self, producer: str) -> bool:
        new = [each for each in self._all(producer) if each.lane.own_id and not each.has_row]
        self._unsaved.pop(producer, None)
        for saved in new if self.timed else ():
            self._unsaved.setdefault(producer, set()).add(saved.lane.partition)
            saved.saving = True
            saved.note()
            if self.commits.on_demand:
                self._admission.effects.commits[saved.lane.partition] = AT_ONCE
            saved.wait()
        return producer in self._unsaved

    def saves(self, producer: str) -> bool:
        return producer in self._unsaved

    def _all(self, producer: str) -> Iterator[Saved]:
        return map(_saved, self._admission.lanes_of(producer))

    def greeted(self, lane: ProducerLane, *, changed: bool) -> None:
        saved = _saved(lane)
        saved.awaited = False
        known = self._found(lane.producer, lane.partition)
        if known is not None:
            saved.has_row, saved.closings = True, known.closings
            known_of = self._known_of(lane.producer)
            if known_of.pop((lane.producer, lane.partition), None) is None:
                del self._forgotten[lane.partition][lane.producer]
                changed = True  # a running commit may forget it
        if saved.has_row and changed:
            saved.note()

    # -- forgetting --------------------------------------------------------------------------

    def forget_absent(self, now: float, expiry: float) -> None:
        for (producer, partition), known in list(self._known.items()):
            if known.seen < now - expiry and not known.saved.own_id:
                self._forget(producer, partition)
        old = now - max(expiry, wire.BATCH_SECONDS)
        for producer, partition in list(
            takewhile(lambda k: self._batches[k].seen < old, self._batches)
        ):
            self._forget(producer, partition)

    def _forget(self, producer: str, partition: int) -> None:
        known = self._known_of(producer).pop((producer, partition), None)
        if known is not None:
            self._forgotten.setdefault(partition, {})[producer] = known

    def forget_rows(self, producer: str) -> None:
        for partition in self._admission.stages:
            self._forget(producer, partition)

    def removed(self, lane: ProducerLane, *, forget: bool) -> None:
        saved = _saved(lane)
        known = Known(saved.row(), lane.seen, saved.closings)
        if forget and not lane.producer.startswith(wire.BATCH):
            self._unsaved.pop(lane.producer, None)
            if saved.has_row:
                self._forgotten.setdefault(lane.partition, {})[lane.producer] = known
        elif saved.has_row or lane.own_id:
            self._known_of(lane.producer)[lane.producer, lane.partition] = known


TakenProducers = Mapping[str, TakenLanes]
"""The lanes that a commit takes, by stream."""


class Producers:
    """The producers of all durable streams, of these ``rosters``, as the commits of tasks see them.

    ``clock`` is the clock of hellos.
    """

    def __init__(
        self,
        rosters: Iterable[CommitRows],
        clock: Callable[[], float],
    ) -> None:
        self._rosters = {each.stream: each for each in rosters}
        self._clock = clock

    def begin_layout(self, layout: int) -> None:
        """Count the producers' numbers in the layout of this number."""
        for roster in self._rosters.values():
            roster.layout = layout

    def restore(
        self,
        partition: int,
        kept: Mapping[Producer, SavedProducer],
        closings: Mapping[Producer, Closings],
    ) -> None:
        for stream, roster in self._rosters.items():
            rows = {name: row for (where, name), row in kept.items() if where == stream}
            ended = {name: each for (where, name), each in closings.items() if where == stream}
            roster.restore(partition, rows, self._clock(), ended)

    def moved(self, partition: int) -> bool:
        return any(each.has_moved(partition) for each in self._rosters.values())

    def patience(self, partition: int) -> float:
        """For how many seconds producers can wait for a commit; infinity if none waits."""
        waiting = [each.patience(partition) for each in self._rosters.values()]
        return min(waiting, default=math.inf)

    def snapshot(self, partition: int) -> TakenProducers:
        return {
            stream: roster.snapshot(partition)
            for stream, roster in self._rosters.items()
            if roster.has_moved(partition)
        }

    def commit_written(self, partition: int, taken: TakenProducers) -> None:
        for stream, each in taken.items():
            self._rosters[stream].commit_written(partition, each)


def rows_of(taken: TakenProducers) -> SavedProducers:
    found: dict[Producer, SavedProducer | None] = {}
    for stream, each in taken.items():
        found.update({(stream, name): None for name in each.forgotten})
        found.update({(stream, saved.lane.producer): row for saved, row in each.lanes.items()})
    return found


def _saved(lane: ProducerLane) -> Saved:
    assert isinstance(lane.settlement, Saved)
    return lane.settlement
