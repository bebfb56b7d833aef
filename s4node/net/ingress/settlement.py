"""Settlement by commits: when the producers of a durable stream need not keep events. Pure.

Rules
- The numbers of a durable stream are settled by the commits of its tasks, event by event, so
  settled events survive the node.
- A producer that asks for its verdicts waits for a commit; other producers can wait for a second.
- Credit reaches ahead of what is processed, but at most a window beyond what is settled, because
  producers keep all those events. When half of the window is used, a commit is requested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from s4node.net.ingress.producer_lane import ProducerLane, Settlement
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import Closings, SavedProducer
from s4node.offsets.cuts import AT_ONCE, Cuts

WINDOW_EVENTS = 1 << 20
"""Events of a lane beyond the last commit: a second's worth at a rate that few lanes reach."""

UNKNOWN_BYTES = 64 << 10
"""The assumed bytes of an event until its lane has seen one. The value is high, because credit is
not taken back; it costs one more verdict before the first large frame."""

PATIENCE = 1.0
"""Seconds until processed events are committed for a producer that does not ask for verdicts; it
only has to keep them longer."""


class Saved(Settlement):
    """The settlement of a lane by commits, which save its numbers."""

    __slots__ = ("awaited", "closings", "commits", "has_row", "saving", "wanted")

    def __init__(self, lane: ProducerLane, commits: Commits) -> None:
        super().__init__(lane)
        self.commits = commits
        self.wanted = False  # a commit was requested
        self.awaited = False  # its producer waits until all of it is committed
        self.has_row = False
        self.saving = False  # its producer waits until it has a row
        self.closings: Closings = ()

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

    @property
    def cut(self) -> int:
        return self.commits.cuts.made(self.lane.partition)

    def moved(self) -> None:
        lane, report = self.lane, self.lane.report
        self.note()
        if (
            (lane.safe - lane.settled) * 2 >= self.window
            or (self.awaited and lane.safe == lane.expected)
            or (self.commits.on_demand and 0 <= report.asked <= lane.safe)
            or (report.pending is not None and report.is_full)
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
        if self.lane.settled >= self.lane.safe:
            return math.inf
        return 0.0 if self.lane.settled < self.lane.report.asked <= self.lane.safe else PATIENCE

    def want(self) -> None:
        """Request a commit, once, if there is anything to commit."""
        if self.lane.settled < self.lane.safe and not self.wanted:
            self.wanted = True
            self.lane.effects.commits[self.lane.partition] = AT_ONCE

    def wait(self) -> None:
        """Request a commit for a producer that waits, if a commit helps it."""
        if not self.commits.on_demand and self.patience < math.inf:
            self.lane.effects.commit_within(self.lane.partition, self.patience)

    def asked(self) -> None:
        if self.lane.safe != self.lane.report.asked:
            return
        if self.commits.on_demand:
            self.want()
        else:
            self.wait()

    def commit(self, number: int) -> None:
        """Note that everything below ``number`` is committed."""
        self.wanted = False
        lane = self.lane
        if number > lane.settled:
            lane.settled = number
            if lane.report.pending is not None:
                lane.report.urgent |= lane.report.has_below(number)
            lane.effects.answers[lane] = None

    def roll_back(self) -> None:
        """Expect uncommitted events again, because they were rolled back."""
        self.lane.go_back(self.lane.settled)
        self.wanted = False

    def row(self) -> SavedProducer:
        lane, report = self.lane, self.lane.report
        unreported = report.saved(lane.safe) if report.pending or report.unconfirmed else ()
        return SavedProducer(lane.safe, *lane.life, lane.own_id, unreported)

    def bound(self, limit: int, share: int) -> int:
        window = self.window
        most = self.lane.settled + window
        if limit <= most:
            return limit
        grows = (most - self.lane.limit) * 4 >= min(window, share)
        return most if grows else self.lane.limit


@dataclass(eq=False)
class Commits:
    """The commits that settle the numbers of a stream with so many ``partitions`` on all nodes.

    They are ``on_demand`` if only producers that want their verdict cause them. ``cuts`` are of the
    tasks. ``changed`` are the lanes that the next commits take, by partition.
    """

    partitions: int = 1
    on_demand: bool = False
    cuts: Cuts = field(default_factory=Cuts)
    window_events: int = WINDOW_EVENTS
    changed: dict[int, dict[Saved, None]] = field(default_factory=dict)

    def settle(self, lane: ProducerLane) -> None:
        lane.settlement, lane.by_event = Saved(lane, self), True

    @property
    def window_bytes(self) -> int:
        """A lane's share of the bytes that a producer may have to keep."""
        return max(1 << 20, wire.WINDOW_BYTES // self.partitions)

    def revoked(self, partition: int) -> None:
        self.changed.pop(partition, None)
