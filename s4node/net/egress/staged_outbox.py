"""An outbox with a stage in front: events leave as the sender's executor lets them. Pure.

Rules
- Events go straight into the lanes as long as the executor lets them leave and nothing waits before
  them. What waits in the stage leaves in order, when there are tokens.
- The depth is what waits in the stage and what was not sent for the first time; bytes of the latter
  are estimated by what some of them weigh.
- Where the stage has an overflow nothing is dropped: what does not fit waits on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from s4node.events.event import EventBatch, footprint
from s4node.net.egress.outbox import Outbox
from s4node.stages.stage import Stage, StageStatistics


class StagedOutbox(Outbox):
    """An outbox behind ``stage``, made as any outbox."""

    def __init__(self, stage: Stage, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stage = stage
        self._executor = stage.executor
        self._staged: Counter[int] = Counter()

    @property
    def capacity(self) -> int:
        """The most events that are meant to wait."""
        return self.stage.capacity

    @property
    def max_bytes(self) -> int:
        """The most bytes that are meant to wait."""
        return self.stage.max_bytes

    @property
    def depth(self) -> int:
        """Events that have not been sent for the first time."""
        return self.stage.depth + self.pending

    @property
    def bytes(self) -> int:
        """Their bytes in memory, about."""
        return self.stage.bytes + self.pending_bytes

    @property
    def holds(self) -> bool:
        """Whether tasks and sources of this process are to wait before they put more."""
        part = self._executor.waits_from
        return self.depth >= self.capacity * part or self.bytes >= self.max_bytes * part

    @property
    def pressure(self) -> float:
        """How full it is; from 1 on, sources wait, where they are made to wait."""
        part = min(1.0, self._executor.waits_from)
        return max(self.depth / (self.capacity * part), self.bytes / (self.max_bytes * part))

    @property
    def unsettled(self) -> int:
        """Events without a verdict, sent or not."""
        return self.stage.depth + super().unsettled

    def mark(self) -> Mark:
        """A mark behind all that has been offered so far."""
        return Mark(self)

    def behind(self, partition: int) -> bool:
        """Whether events for a partition are still on their way."""
        lane = self.lanes[partition]
        return bool(lane.pending or lane.kept or self._staged[partition])

    @property
    def full(self) -> bool:
        """Whether as many events or bytes are here as are meant to wait."""
        return self.depth >= self.capacity or self.bytes >= self.max_bytes

    @property
    def withheld(self) -> bool:
        """Nobody has credit for it but the app itself, which waits while it is full."""
        return self.full

    def offer(self, events: Sequence[Any], now: float, partition: int = -1) -> int:
        """Take events for a lane, or without a partition by the routing; returns how many of them
        were dropped."""
        stage, count = self.stage, len(events)
        room = count
        if stage.overflow is None and not self._executor.withholds:
            size = footprint(events)
            room = min(count, self._executor.room_for_put(self, count, size, now))
            if room < count:
                stage.dropped(count - room, self._executor.reason)
                events = events[:room]
        must_wait = stage.depth or (stage.overflow is not None and self.holds)
        if not room:
            pass
        elif not must_wait and self._executor.allowance(now) >= room:
            self._executor.left(room)
            stage.admitted += room
            self._pass(events, partition)
        else:
            share = list(events)
            self._staged[partition] += room
            stage.offer(EventBatch("", partition, share, weight=footprint(share)), now)
        stage.highest = max(stage.highest, self.depth)
        return count - room

    def pump(self, now: float) -> bool:
        """Let leave what may; True if something did."""
        moved = False
        stage = self.stage
        while stage.depth and self.pending < self.capacity:
            allowed = self._executor.allowance(now)
            if allowed <= 0:
                break
            batch = stage.head or stage.take(now)
            assert batch is not None
            part = batch.events[batch.at : batch.at + allowed]
            batch.at += len(part)
            ended = batch.at >= len(batch.events)
            self._executor.left(len(part))
            self._staged[batch.partition] -= len(part)
            stage.passed(len(part), batch.bytes if ended else 0)
            if ended:
                stage.head = None
            self._pass(part, batch.partition)
            moved = True
        return moved

    def due(self, now: float) -> float | None:
        """When to pump again; None if the outbox must move first, or nothing waits."""
        if not self.stage.depth or self.pending >= self.capacity:
            return None
        return self._executor.next_at(now)

    def statistics(self) -> StageStatistics:
        """Counts since the start; in flight is what has no verdict yet."""
        return replace(
            self.stage.statistics(),
            depth=self.depth,
            bytes=self.bytes,
            in_flight=self.in_flight,
        )

    def _pass(self, events: Sequence[Any], partition: int) -> None:
        if partition >= 0:
            self.extend_lane(partition, events)
            return
        for cls in set(map(type, events)):
            self.types.declare(cls)
        self.extend(events)


class Mark:
    """A place in what leaves: behind all that had been offered when it was made."""

    __slots__ = ("_admitted", "_ends", "_outbox")

    def __init__(self, outbox: StagedOutbox) -> None:
        self._outbox = outbox
        self._admitted = outbox.stage.admitted
        self._ends: list[int] | None = None

    @property
    def passed(self) -> bool:
        """Whether everything before the mark has its verdict."""
        outbox = self._outbox
        if not outbox.unsettled or outbox.error:
            return True
        if self._ends is None:
            passed = outbox.stage.admitted - outbox.stage.depth
            if passed < self._admitted or not outbox.lanes:
                return False  # some of it has no lane yet
            outbox.route()
            self._ends = [lane.next_number + len(lane.pending) for lane in outbox.lanes]
        return all(
            lane.upto >= end or (lane.upto == lane.next_number and not lane.pending)
            for lane, end in zip(outbox.lanes, self._ends, strict=True)
        )
