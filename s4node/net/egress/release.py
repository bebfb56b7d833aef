"""When the events of an outbox may leave: at once, or as an executor allows. Pure.

Rules
- A task's events leave with its commits: :mod:`s4node.net.egress.with_commit`.
- By an executor, events go straight into the lanes while it allows that and no earlier events wait.
  Events in the stage leave in order, when there are tokens.
- The depth counts events in the stage and events in lanes that were never sent; the bytes of the
  latter are estimated from a sample.
- A watermark that a source reports is sent after the events that the source has put before it.
- If the stage has an overflow, nothing is dropped: events that do not fit wait on disk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from s4node.events.event import EventBatch, footprint
from s4node.metrics.statistics import StageStatistics
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.refusal import Refusal
from s4node.stages.stage import Stage


class AtOnce:
    """The release of the events of ``box``, which may leave as soon as there is credit."""

    def __init__(self, box: Outbox) -> None:
        self.box = box

    @property
    def unsettled(self) -> int:
        return self.box.unsettled

    @property
    def has_staged(self) -> bool:
        """True if events wait for an allowance, or for room in the outbox."""
        return False

    def behind(self, partition: int) -> bool:
        return self.box.behind(partition)

    def put(self, events: Sequence[Any], partition: int = -1, now: float = 0.0) -> int:  # noqa: ARG002
        """Put events for a partition, or by routing if -1; return how many were dropped."""
        if partition >= 0:
            self.box.extend_lane(partition, events)
            return 0
        for cls in set(map(type, events)):
            self.box.types.declare(cls)
        self.box.extend(events)
        return 0

    def take_refusals(self) -> list[Refusal]:
        """The events since the last call that receivers refused, or that could not be sent."""
        return self.box.refusals.drain() if self.box.refusals.waiting else []


class ByExecutor(AtOnce):
    """The release of events that the executor of ``stage`` allows to leave."""

    def __init__(self, box: Outbox, stage: Stage) -> None:
        super().__init__(box)
        self.stage = stage
        self._executor = stage.executor
        self._staged: Counter[int] = Counter()
        self._times: deque[tuple[int, float]] = deque()  # each with the events taken before it

    @property
    def capacity(self) -> int:
        """The number of events that may wait."""
        return self.stage.capacity

    @property
    def max_bytes(self) -> int:
        return self.stage.max_bytes

    @property
    def depth(self) -> int:
        """The number of events that were never sent."""
        return self.stage.depth + self.box.pending

    @property
    def bytes(self) -> int:
        """The approximate bytes in memory of the events that have not left."""
        return self.stage.bytes + self.box.pending_bytes

    @property
    def holds(self) -> bool:
        """True if tasks and sources of this process have to wait before they put more."""
        part = self._executor.waits_from
        return self.depth >= self.capacity * part or self.bytes >= self.max_bytes * part

    @property
    def pressure(self) -> float:
        """How full the outbox is; sources wait from 1 on, if the executor makes them wait."""
        part = min(1.0, self._executor.waits_from)
        return max(self.depth / (self.capacity * part), self.bytes / (self.max_bytes * part))

    @property
    def unsettled(self) -> int:
        return self.stage.depth + self.box.unsettled

    @property
    def has_staged(self) -> bool:
        return bool(self.stage.depth)

    def mark(self) -> Mark:
        return Mark(self)

    def behind(self, partition: int) -> bool:
        return bool(super().behind(partition) or self._staged[partition])

    @property
    def withheld(self) -> bool:
        """True if as many events or bytes wait as may: then the app waits, which puts them."""
        return self.depth >= self.capacity or self.bytes >= self.max_bytes

    def put(self, events: Sequence[Any], partition: int = -1, now: float = 0.0) -> int:
        stage, count = self.stage, len(events)
        room = count
        if stage.overflow is None and not self._executor.withholds:
            size = footprint(events)
            room = min(count, self._executor.admits_put(self, count, size, now))
            if room < count:
                stage.dropped(count - room, self._executor.reason)
                events = events[:room]
        must_wait = stage.depth or (stage.overflow is not None and self.holds)
        if not room:
            pass
        elif not must_wait and self._executor.allowance(now) >= room:
            self._executor.left(room)
            stage.admitted += room
            super().put(events, partition)
        else:
            share = list(events)
            self._staged[partition] += room
            stage.offer(EventBatch("", partition, share, weight=footprint(share)), now)
        stage.highest = max(stage.highest, self.depth)
        return count - room

    def report_time(self, time: float) -> None:
        """Report to receivers that what is taken from now on is not older than ``time``."""
        if self._times and self._times[-1][0] == self.stage.admitted:
            self._times.pop()
        self._times.append((self.stage.admitted, time))
        self._pass_times()

    def pump(self, now: float) -> bool:
        """Move events to the lanes as allowed; return True if any moved."""
        moved = False
        stage = self.stage
        while stage.depth and self.box.pending < self.capacity:
            allowed = self._executor.allowance(now)
            if allowed <= 0:
                break
            batch = stage.head or stage.poll(now)
            assert batch is not None
            part = batch.events[batch.at : batch.at + allowed]
            batch.at += len(part)
            ended = batch.at >= len(batch.events)
            self._executor.left(len(part))
            self._staged[batch.partition] -= len(part)
            stage.release(len(part), batch.bytes if ended else 0)
            if ended:
                stage.head = None
            super().put(part, batch.partition)
            moved = True
        self._pass_times()
        return moved

    def due(self, now: float) -> float | None:
        """When to pump again; None if nothing waits, or the outbox must send first."""
        if not self.stage.depth or self.box.pending >= self.capacity:
            return None
        return self._executor.next_at(now)

    def statistics(self) -> StageStatistics:
        """Counts since the start; events in flight have no verdict yet."""
        return replace(
            self.stage.statistics(),
            depth=self.depth,
            bytes=self.bytes,
            in_flight=self.box.in_flight,
        )

    def _pass_times(self) -> None:
        passed = self.stage.admitted - self.stage.depth
        while self._times and self._times[0][0] <= passed:
            self.box.latest.reach_at_once(self._times.popleft()[1])


class Mark:
    """A mark after all events that had been taken when it was made."""

    __slots__ = ("_admitted", "_ends", "_layout", "_release")

    def __init__(self, release: ByExecutor) -> None:
        self._release = release
        self._admitted = release.stage.admitted
        self._ends: list[int] | None = None
        self._layout = release.box.layout

    @property
    def reached(self) -> bool:
        release, box = self._release, self._release.box
        if not release.unsettled or box.error:
            return True
        if self._ends is None or self._layout != box.layout:
            passed = release.stage.admitted - release.stage.depth
            if passed < self._admitted or not box.lanes:
                return False  # some events have no lane yet
            box.route()
            self._layout = box.layout
            self._ends = [lane.next_number + len(lane.pending) for lane in box.lanes]
        return all(
            lane.upto >= end or (lane.upto == lane.next_number and not lane.pending)
            for lane, end in zip(box.lanes, self._ends, strict=True)
        )
