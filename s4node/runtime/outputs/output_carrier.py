"""The carrier of an output stream: what the app puts on it goes to every app that consumes it.

Rules
- Each consuming cluster has its own stage. By default it blocks: while it is full for one cluster,
  tasks that emit pause, sources wait, and nothing is dropped.
- Consumers come and go. Events put while no app consumes the stream are dropped and counted;
  sources wait for the first consumer if one may come. Events that a consumer has not acknowledged
  when it goes count as shed.
- Events that a stage drops are reported to their sender and to the refusals. ``dropped`` counts
  events that at least one consumer does not get; ``sent`` leaves out those that none gets.
- The loop learns of events that wait for an allowance, also of a source's, to send them then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import trio
from msgspec.structs import replace

from s4node import clocks
from s4node.errors import WouldBlock
from s4node.metrics.statistics import StageStatistics
from s4node.metrics.table import add
from s4node.net.egress.lane import checked_watermark
from s4node.net.egress.release import ByExecutor
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.channels import Channel
from s4node.runtime.outputs.refusals import Refusals
from s4node.stages.executors import REMOTE_SENDER

_GONE = "its consumer has gone"


class OutputCarrier:
    """The channels of one output stream to its consumers; ``awaited``: consumers may come later."""

    def __init__(self, stream: str, loop: RunLoop, refusals: Refusals, *, awaited: bool) -> None:
        self.stream = stream
        self.channels: dict[str, Channel[ByExecutor]] = {}  # by consumer
        self.sent = 0
        self.dropped = 0
        self.unconfirmed = 0
        self._gone: dict[str, StageStatistics] = {}  # counts of consumers that have gone
        self._loop = loop
        self._refusals = refusals
        self._awaited = awaited
        self._time = -math.inf  # that sources have reported
        self._lot = trio.lowlevel.ParkingLot()
        self.was_full = False  # and tasks or sources may wait

    def connect(self, channel: Channel[ByExecutor]) -> None:
        """Send every further event to the consumer of ``channel``."""
        self.channels[channel.consumer] = channel
        channel.open()
        if self._time > -math.inf:
            channel.release.report_time(self._time)
        self._lot.unpark_all()

    def disconnect(self, consumer: str) -> int:
        """Remove ``consumer``; return how many events it had not acknowledged."""
        counted = self.statistics()[consumer]
        channel = self.channels.pop(consumer)
        channel.close()
        left = channel.release.unsettled
        shed = Counter(counted.shed)
        if left:
            shed[_GONE] += left
        self._gone[consumer] = replace(
            counted,
            depth=0,
            bytes=0,
            capacity=0,
            max_bytes=0,
            in_flight=0,
            waited_last=0.0,
            shed=dict(shed),
        )
        self.make_room()
        return left

    def passed_by(self, count: int) -> None:
        """Count events of tasks whose own channels lead to the same consumers."""
        self.sent += count
        if not self.channels:
            self.unconfirmed += count

    def extend(self, events: Sequence[Any]) -> int:
        """Take events from a task or a source, which pauses while ``holds`` is True.

        Return how many of the newest were dropped.
        """
        count, most = len(events), 0
        least = count if self.channels else 0
        if not self.channels:
            self.unconfirmed += count
        now = trio.current_time()
        for channel in self.channels.values():
            release = channel.release
            dropped = release.put(events, -1, now)
            if dropped:
                reason = release.stage.executor.reason
                self._refusals.dropped(REMOTE_SENDER, self.stream, dropped, reason)
            least, most = min(least, dropped), max(most, dropped)
            channel.emitter.wake()
            if release.has_staged:
                self._loop.nudge()
        self.sent += count - least
        self.dropped += most
        if self.holds:
            self.was_full = True
        return most

    @property
    def holds(self) -> bool:
        """True if tasks and sources have to wait."""
        return any(channel.release.holds for channel in self.channels.values())

    @property
    def full_for(self) -> list[str]:
        """The consumers whose stages are full."""
        return [name for name, channel in self.channels.items() if channel.release.holds]

    @property
    def pressure(self) -> float:
        """How full the stage of the slowest cluster is; ``send`` waits from 1 on."""
        return max((one.release.pressure for one in self.channels.values()), default=0.0)

    def statistics(self) -> dict[str, StageStatistics]:
        """The stage of each consumer, including those that have gone."""
        found = dict(self._gone)
        for name, channel in self.channels.items():
            counts, before = channel.release.statistics(), self._gone.get(name)
            if before is not None:
                add(counts, before)
            found[name] = counts
        return found

    async def send(self, events: Sequence[Any]) -> int:
        """Take events from a source once there is room; return how many were dropped."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.holds or (self._awaited and not self.channels):
            self.was_full = True
            await self._lot.park()
        dropped = self.extend(events)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return dropped

    def send_nowait(self, events: Sequence[Any]) -> int:
        """Take events from a source; return how many were dropped, or raise WouldBlock."""
        if self.holds:
            depth = max(channel.release.depth for channel in self.channels.values())
            raise WouldBlock(f"stream {self.stream!r}: {depth} events wait already")
        if self._awaited and not self.channels:
            raise WouldBlock(f"stream {self.stream!r} has no consumer yet")
        return self.extend(events)

    def watermark(self, time: float) -> None:
        """Report to consumers, also later ones, that no later event is older than ``time``."""
        self._time = max(self._time, checked_watermark(time, clocks.wall()))
        for channel in self.channels.values():
            channel.release.report_time(self._time)
            channel.emitter.wake()

    def make_room(self) -> None:
        """Let tasks and sources go on if there is room again."""
        if self.was_full and not self.holds:
            self.was_full = False
            self._lot.unpark_all()
            self._loop.nudge()
