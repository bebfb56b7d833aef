"""The remote sender: carries one output stream to the clusters that consume it.

Rules
- Each consuming cluster has its own stage. By default it blocks: while it is full for one cluster,
  tasks that emit pause, sources wait, and nothing is dropped.
- Consumers come and go. Events put while no app consumes the stream are dropped and counted;
  sources wait for the first consumer if one may come. Events that a consumer has not acknowledged
  when it goes count as shed.
- Events that a stage drops are reported to their sender and to the refusals. ``dropped`` counts
  events that at least one consumer does not get; ``sent`` leaves out those that none gets.
- Each consuming cluster has its own emitter, so a slow one holds back only its own sources.
- The loop learns of events that wait for an allowance, also of a source's: ``pump`` says when they
  may leave.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import trio
from msgspec.structs import replace

from s4node import clocks
from s4node.errors import EventError, WouldBlock
from s4node.metrics.statistics import StageStatistics
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.lane import checked_watermark
from s4node.net.egress.release import ByExecutor, Mark
from s4node.net.egress.routes import Routes
from s4node.runtime.outputs.refusals import Refusals
from s4node.stages.executors import REMOTE_SENDER

_GONE = "its consumer has gone"


class _Consumer(NamedTuple):
    """A consumer of the stream, and the parts that lead to it."""

    emitter: Emitter
    routes: Routes
    release: ByExecutor


class RemoteSender:
    """One output stream, to every app that consumes it.

    ``nudge`` gives the loop a turn, when there may be room again, or when events wait for an
    allowance. ``awaited`` says that consumers may come later.
    """

    def __init__(
        self,
        stream: str,
        *,
        nudge: Callable[[], None],
        refusals: Refusals,
        awaited: bool,
    ) -> None:
        self.stream = stream
        self.sent = 0
        self.dropped = 0
        self.unheard = 0
        self._consumers: dict[str, _Consumer] = {}
        self._gone: dict[str, StageStatistics] = {}  # counts of consumers that have gone
        self._nudge = nudge
        self._refusals = refusals
        self._awaited = awaited
        self._time = -math.inf  # that sources have told
        self._lot = trio.lowlevel.ParkingLot()
        self.was_full = False  # and tasks or sources may wait

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(self._consumers)

    def connect(self, consumer: str, emitter: Emitter, release: ByExecutor, routes: Routes) -> None:
        """Send every further event to ``consumer``, through ``release`` and ``routes``."""
        self._consumers[consumer] = _Consumer(emitter, routes, release)
        emitter.add(routes)
        if self._time > -math.inf:
            release.tell_time(self._time)
        self._lot.unpark_all()

    def disconnect(self, consumer: str) -> int:
        """Remove ``consumer``; return how many events it had not acknowledged."""
        counted = self.statistics()[consumer]
        emitter, routes, release = self._consumers.pop(consumer)
        emitter.remove(routes)
        left = release.unsettled
        shed = Counter(counted.shed)
        if left:
            shed[_GONE] += left
        self._gone[consumer] = replace(
            counted, depth=0, bytes=0, capacity=0, max_bytes=0, in_flight=0, shed=dict(shed)
        )
        self._make_room()
        return left

    @property
    def emitters(self) -> dict[str, Emitter]:
        return {name: emitter for name, (emitter, _, _) in self._consumers.items()}

    @property
    def begun_anew(self) -> list[str]:
        """The consumers with a new number of partitions and nothing unacknowledged from here."""
        return [
            name
            for name, (_, _, release) in self._consumers.items()
            if release.box.repartitioned and not release.unsettled
        ]

    def passed_by(self, count: int) -> None:
        """Count events of durable tasks, which ``exchange`` sends to the same consumers."""
        self.sent += count
        if not self._consumers:
            self.unheard += count

    def extend(self, events: Sequence[Any]) -> int:
        """Take events from a task or a source, which pauses while ``full`` is True.

        Return how many of the newest were dropped.
        """
        count, most = len(events), 0
        least = count if self._consumers else 0
        if not self._consumers:
            self.unheard += count
        now = trio.current_time()
        for emitter, _, release in self._consumers.values():
            dropped = release.put(events, -1, now)
            if dropped:
                reason = release.stage.executor.reason
                self._refusals.dropped(REMOTE_SENDER, self.stream, dropped, reason)
            least, most = min(least, dropped), max(most, dropped)
            emitter.wake()
            if release.stage.depth:
                self._nudge()
        self.sent += count - least
        self.dropped += most
        if self.full:
            self.was_full = True
        return most

    def pump(self, now: float) -> float | None:
        """Send events that have waited for a token; return when to call again, or None."""
        dues = []
        for emitter, _, release in self._consumers.values():
            if release.stage.depth:
                if release.pump(now):
                    emitter.wake()
                dues.append(release.due(now))
        if dues:
            self._make_room()
        return min((due for due in dues if due is not None), default=None)

    @property
    def depth(self) -> int:
        """The number of events that wait for the slowest cluster."""
        return max((release.depth for _, _, release in self._consumers.values()), default=0)

    @property
    def full(self) -> bool:
        """True if tasks and sources have to wait."""
        return any(release.holds for _, _, release in self._consumers.values())

    holds = full

    @property
    def full_for(self) -> list[str]:
        """The consumers whose stages are full."""
        return [name for name, (_, _, release) in self._consumers.items() if release.holds]

    @property
    def pressure(self) -> float:
        """How full the stage of the slowest cluster is; ``send`` waits from 1 on."""
        return max((release.pressure for _, _, release in self._consumers.values()), default=0.0)

    def statistics(self) -> dict[str, StageStatistics]:
        """The stage of each consumer, including those that have gone."""
        found = dict(self._gone)
        for name, (_, _, release) in self._consumers.items():
            told, before = release.statistics(), self._gone.get(name)
            if before is not None:
                shed = dict(Counter(told.shed) + Counter(before.shed))
                told = replace(told, admitted=told.admitted + before.admitted, shed=shed)
            found[name] = told
        return found

    @property
    def unsettled(self) -> dict[str, int]:
        """The unacknowledged events of each consumer that has any and accepts the stream."""
        return {
            name: release.unsettled
            for name, (_, _, release) in self._consumers.items()
            if release.unsettled and not release.box.error
        }

    def marks(self) -> list[tuple[str, Mark]]:
        """A mark for each consumer after the events put so far."""
        return [
            (name, release.mark())
            for name, (_, _, release) in self._consumers.items()
            if release.unsettled
        ]

    async def send(self, events: Sequence[Any]) -> int:
        """Take events from a source once there is room; return how many were dropped."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.full or (self._awaited and not self._consumers):
            self.was_full = True
            await self._lot.park()
        dropped = self.extend(events)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return dropped

    def send_nowait(self, events: Sequence[Any]) -> int:
        """Take events from a source; return how many were dropped, or raise WouldBlock."""
        if self.full:
            raise WouldBlock(f"stream {self.stream!r}: {self.depth} events wait already")
        if self._awaited and not self._consumers:
            raise WouldBlock(f"stream {self.stream!r} has no consumer yet")
        return self.extend(events)

    def watermark(self, time: float) -> None:
        """Tell consumers, also later ones, that events from now on are not older than ``time``."""
        self._time = max(self._time, checked_watermark(time, clocks.wall()))
        for emitter, _, release in self._consumers.values():
            release.tell_time(self._time)
            emitter.wake()

    def news(self) -> None:
        """Handle news of consumers: report refusals, and let waiting sources go on."""
        for _, _, release in self._consumers.values():
            if release.stage.depth:
                self._nudge()  # there may be room for them now
            for refusal in release.box.refusals.drain():
                self._refusals.report(REMOTE_SENDER, refusal)
            if release.box.error:
                raise EventError(f"stream {self.stream!r}: {release.box.error}")
        self._make_room()

    def _make_room(self) -> None:
        if self.was_full and not self.full:
            self.was_full = False
            self._lot.unpark_all()
            self._nudge()
