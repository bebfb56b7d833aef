"""The settlements of outboxes: what is done with events that have their verdict. Pure.

Rules
- Most outboxes forget such events (:class:`s4node.net.egress.lane.Forget`).
- Receipts, for events that came to the wrong node of a cluster: a producer's frame is done once the
  owner has acknowledged all of its events, so nothing is acknowledged that another process may
  still lose. Each frame asks the owner for a verdict, because the producer's credit is used up
  until then. Events that the owner refuses are refused to the producer, with the owner's reason.
- The owner learns which producers have sent the events, and counts them, as those of any producer.
  ``passed_on`` says how many they are, so that this node does not count them, too.
- Commits of receivers, for events of tasks: the row of a frame is deleted, with the sender's next
  commit, once the owner of the partition has committed its events.
- Events that an owner has committed after a later cut than the task's are settled once the task's
  own cut has begun: see :mod:`s4node.offsets.cuts`. Cuts are not sent to other apps, which have
  other savepoints.
- If an owner expects other numbers than were sent to it, that is an error: no number is used for
  two events.
- A consuming app with a new number of partitions reports the final numbers of the former ones, or
  has begun without state. Events that do not count are put again, in an outbox of another life.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from s4node.events.event import EventBatch
from s4node.net.egress.closed_layouts import closings_in, last_ruling
from s4node.net.egress.lane import Forget, Lane, OutgoingFrame
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import ChannelRows, Committed, decoder_of, read_events
from s4node.net.egress.refusal import Refusal
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import Closing
from s4node.offsets.cuts import NO_CUTS, Cuts
from s4node.state.rows import Changes


class _Carried:
    """The unacknowledged events of one batch, by their index in the producer's frame."""

    __slots__ = ("batch", "indices")

    def __init__(self, batch: EventBatch) -> None:
        self.batch = batch
        self.indices: Sequence[int] = range(len(batch.events))


class PassedOn(NamedTuple):
    """The counts of forwarded events: all of them, and those that their owners refused and shed."""

    events: int = 0
    refused: int = 0
    shed: int = 0


class Receipts(Forget):
    """Completes the batches of producers that ``box`` sends to the other nodes of a cluster."""

    _events = _refused_there = _shed_there = 0

    def __init__(self, box: Outbox) -> None:
        self.box = box
        box.settlement = self
        self._carried: defaultdict[int, deque[_Carried]] = defaultdict(deque)

    def forward(self, batch: EventBatch) -> None:
        self._events += len(batch.events)
        self._carried[batch.partition].append(_Carried(batch))
        if batch.receipt is None:
            self.box.extend_lane(batch.partition, batch.events)
            return
        indices = range(len(batch.events))
        at = 0
        for sender, end in batch.receipt.senders(batch.number(0), batch.number(indices[-1]) + 1):
            until = bisect_left(indices, end, key=batch.number)
            self.box.extend_lane(batch.partition, batch.events[at:until], sender)
            at = until

    @property
    def passed_on(self) -> PassedOn:
        """The counts of forwarded events since the start."""
        return PassedOn(self._events, self._refused_there, self._shed_there)

    def settled(self, lane: Lane, before: int, frames: Sequence[OutgoingFrame]) -> None:  # noqa: ARG002
        """Complete the batches of a lane's oldest events, which the owner has acknowledged."""
        count = lane.upto - before
        waiting = self._carried[lane.partition]
        while count and waiting:
            carried = waiting[0]
            taken = min(count, len(carried.indices))
            carried.indices = carried.indices[taken:]
            count -= taken
            if not carried.indices:
                waiting.popleft()
                if carried.batch.receipt is not None:
                    carried.batch.receipt.done()

    def takes(self, refusal: Refusal) -> bool:
        """Refuse events to the producer that the owner refused, or that could not be sent."""
        assert refusal.partition >= 0, "forwarded events have a lane from the beginning"
        lane = self.box.lanes[refusal.partition]
        if refusal.unsent:
            self._unsent(lane, refusal.reason)
            return True
        at, left = refusal.number - lane.upto, refusal.count
        for carried in self._carried[lane.partition]:
            size = len(carried.indices)
            for place in range(at, min(size, at + left)):
                batch, index = carried.batch, carried.indices[place]
                if batch.receipt is not None and refusal.shed:
                    self._shed_there += 1
                    batch.receipt.refuse(
                        batch.number(index), refusal.reason, batch.events[index], shed=True
                    )
                elif batch.receipt is not None:
                    self._refused_there += 1
                    batch.receipt.refuse(batch.number(index), refusal.reason, batch.events[index])
            left -= max(0, min(size, at + left) - at)
            at = max(0, at - size)
            if left <= 0:
                break
        return True

    def _unsent(self, lane: Lane, reason: str) -> None:
        """Refuse and complete the lane's next event, which could not be sent."""
        at = lane.next_number - lane.upto
        waiting = self._carried[lane.partition]
        for carried in waiting:
            if at < len(carried.indices):
                batch, index = carried.batch, carried.indices[at]
                if batch.receipt is not None:
                    batch.receipt.refuse(batch.number(index), reason, batch.events[index])
                self._events -= 1
                carried.indices = [*carried.indices[:at], *carried.indices[at + 1 :]]
                if not carried.indices:
                    waiting.remove(carried)
                    if batch.receipt is not None:
                        batch.receipt.done()
                return
            at -= len(carried.indices)


class ReceiversCommits(ChannelRows):
    """The settlement of ``box``, with its rows; the other arguments are those of the rows.

    ``cuts`` are those of the tasks, ours is that of partition ``home``.
    """

    def __init__(
        self,
        box: Outbox,
        channel: str,
        changes: Changes,
        database: Committed,
        life: str = "",
        *,
        home: int = 0,
        cuts: Cuts = NO_CUTS,
    ) -> None:
        super().__init__(channel, changes, database, box.types, life)
        self.box = box
        box.settlement = self
        self._ended = Closing(())  # of the layout of our lanes
        self._savepoint = 0
        self._cuts = cuts
        self._home = home

    # -- cuts --------------------------------------------------------------------------------

    def bear_cut(self) -> None:
        """Have new frames bear the number of the task's last cut, if there is one."""
        number = self._cuts.made(self._home)
        if number != self._savepoint:
            self._savepoint = number
            self.box.builder.headers = {wire.SAVEPOINT: number}

    def take_cuts(self, cuts: Mapping[int, int]) -> None:
        """Take the cuts of owners, by partition; if ours is older, request one."""
        for partition, number in cuts.items():
            if 0 <= partition < len(self.box.lanes) and self._cuts.request(self._home, number):
                self.box.lanes[partition].ahead = number

    def settle_after_cut(self) -> None:
        """Settle the events that waited for our cut, if it has begun."""
        for lane in self.box.lanes:
            if lane.ahead and not self._cuts.request(self._home, lane.ahead):
                upto, lane.ahead, lane.settles = max(lane.settles, lane.upto), 0, 0
                self.box.settle(lane, lane.upto, lane.acknowledge(upto))

    # -- layouts -----------------------------------------------------------------------------

    def contradicts(self, lane: Lane, position: wire.Position) -> str:
        """The reason why a lane cannot resume at its owner's position; empty if it can."""
        if lane.upto <= position.number <= lane.released:
            return ""
        box = self.box
        where = f"stream {box.stream!r}, partition {lane.partition}: its owner expects event"
        if position.number > lane.released:
            return (
                f"{where} {position.number} of producer {box.producer!r}, which has sent only "
                f"{lane.released}: the state here is older than the events sent from it; restore "
                f"the newer state, or begin anew without state"
            )
        return (
            f"{where} {position.number} of producer {box.producer!r}, but has acknowledged "
            f"{lane.upto}: the state there is older than the events taken into it; restore the "
            f"newer state, or begin anew without state"
        )

    def prevents_layout(self, answer: wire.Hello) -> str:
        """Leave a new layout to another outbox, which the next commit has in place of this."""
        closings = closings_in(answer.headers)
        if closings:
            self._ended = closings[0]
            for lane, final in zip(self.box.lanes, self._ended.numbers, strict=False):
                if problem := self.contradicts(lane, wire.Position(lane.partition, final)):
                    return problem
        self.box.repartitioned = True
        return f"{self.box.stream!r} has {answer.partitions} partitions now"

    def uncounted_events(self) -> list[Any]:
        """The events that do not count yet, in order for each lane; for an outbox in place of this.

        Raises StateError if events of an earlier life cannot be read.
        """
        for lane in self.box.lanes:
            self.box.take_ruling(lane, last_ruling(self._ended, lane.partition))
        return self.unsettled_events()

    def unsettled_events(self) -> list[Any]:
        """The events that receivers have not committed, in order for each lane.

        Raises StateError if events of an earlier life cannot be read.
        """
        decoder = decoder_of(self.types, self.versions)
        events: list[Any] = []
        for lane in self.box.lanes:
            for frame in lane.frames:
                found = read_events(self.box.stream, self.data_of(lane, frame), decoder)
                events += found[max(0, lane.upto - frame.first) :]
            events += lane.pending
        return events + self.box.unrouted
