"""Forwarding: the settlement of events that came to the wrong node of a cluster. Pure.

Rules
- A producer's frame is done once the owner has acknowledged all of its events, so nothing is
  acknowledged that another process may still lose.
- Each frame asks the owner for a verdict, because the producer's credit is used up until then.
- Events that the owner refuses are refused to the producer, with the owner's reason.
- The owner is told which producers have sent the events.
- The owner counts the events, as those of any producer. ``passed_on`` says how many they are, so
  that this node does not count them, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from s4node.events.event import EventBatch
from s4node.net.egress.lane import Lane, OutgoingFrame
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.refusal import Refusal


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


class Receipts:
    """Completes the batches of producers that ``box`` sends to the other nodes of a cluster."""

    _events = _refused_there = _shed_there = 0

    def __init__(self, box: Outbox) -> None:
        self.box = box
        box.settlement = self
        self._carried: defaultdict[int, deque[_Carried]] = defaultdict(deque)

    def forward(self, batch: EventBatch) -> None:
        """Forward a batch for a partition of another node."""
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
