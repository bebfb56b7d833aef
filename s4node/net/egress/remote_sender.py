"""The remote sender: carries one output stream to the clusters that consume it.

Rules
- Each consuming cluster has a stage of its own. By default it blocks: while it is full for one
  cluster, tasks that emit pause and sources wait, and nothing is dropped.
- Consumers come and go. What is put while nobody consumes the stream goes nowhere and is counted;
  sources wait for the first consumer where one may come. What one has not ruled on when it goes is
  counted as shed, and what it was sent stays counted.
- Each consuming cluster has its own emitter, so a slow one holds back only itself and its sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import trio

from s4node.errors import EventError, WouldBlock
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox, Refusal
from s4node.net.egress.sender_stage import Mark, Outgoing
from s4node.stages.stage import Stage, StageStatistics

_GONE = "its consumer has gone"


class RemoteSender:
    """One output stream, to every app that consumes it.

    ``on_room`` is called whenever room may have been made. ``awaited`` tells that consumers may
    come later.
    """

    def __init__(
        self,
        stream: str,
        *,
        make_stage: Callable[[], Stage],
        on_room: Callable[[], None],
        on_refused: Callable[[Refusal], None],
        awaited: bool,
    ) -> None:
        self.stream = stream
        self.sent = 0
        self.unheard = 0
        self._routes: dict[str, tuple[Emitter, Outgoing]] = {}
        self._gone: dict[str, StageStatistics] = {}  # what is counted of consumers that have gone
        self._make_stage = make_stage
        self._on_room = on_room
        self._on_refused = on_refused
        self._awaited = awaited
        self._lot = trio.lowlevel.ParkingLot()
        self._was_full = False

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of those who consume the stream."""
        return tuple(self._routes)

    def connect(self, consumer: str, emitter: Emitter, outbox: Outbox) -> None:
        """From now on ``consumer`` gets every event."""
        self._routes[consumer] = emitter, Outgoing(self._make_stage(), outbox)
        emitter.add(outbox)
        self._lot.unpark_all()

    def disconnect(self, consumer: str) -> int:
        """``consumer`` gets nothing more; returns how many events it had not ruled on."""
        counted = self.statistics()[consumer]
        emitter, outgoing = self._routes.pop(consumer)
        emitter.remove(outgoing.outbox)
        left = outgoing.unsettled
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
        """What leads to each consumer."""
        return {name: emitter for name, (emitter, _) in self._routes.items()}

    def passed_by(self, count: int) -> None:
        """So many events of tasks go another way to the same consumers."""
        self.sent += count
        if not self._routes:
            self.unheard += count

    def extend(self, events: Sequence[Any], *, waits: bool = True) -> None:
        """Take events from a task; ``full`` tells it to pause."""
        self.sent += len(events)
        if not self._routes:
            self.unheard += len(events)
        now = trio.current_time()
        for emitter, outgoing in self._routes.values():
            outgoing.offer(events, now, waits=waits)
            emitter.wake()
        if self.full:
            self._was_full = True

    def pump(self, now: float) -> float | None:
        """Let leave what waits for a token; returns when to come back, or None."""
        dues = []
        for emitter, outgoing in self._routes.values():
            if outgoing.stage.depth:
                if outgoing.pump(now):
                    emitter.wake()
                dues.append(outgoing.due(now))
        if dues:
            self._make_room()
        return min((due for due in dues if due is not None), default=None)

    @property
    def depth(self) -> int:
        """Events that wait for the slowest cluster."""
        return max((outgoing.depth for _, outgoing in self._routes.values()), default=0)

    @property
    def full(self) -> bool:
        """Whether tasks and sources are to wait."""
        return any(outgoing.holds for _, outgoing in self._routes.values())

    holds = full

    @property
    def pressure(self) -> float:
        """How full the stage of the slowest cluster is; from 1 on, ``send`` waits."""
        return max((outgoing.pressure for _, outgoing in self._routes.values()), default=0.0)

    def statistics(self) -> dict[str, StageStatistics]:
        """The stage of each consumer, also of those that have gone."""
        found = dict(self._gone)
        for name, (_, outgoing) in self._routes.items():
            told, before = outgoing.statistics(), self._gone.get(name)
            if before is not None:
                shed = dict(Counter(told.shed) + Counter(before.shed))
                told = replace(told, admitted=told.admitted + before.admitted, shed=shed)
            found[name] = told
        return found

    @property
    def unsettled(self) -> dict[str, int]:
        """Events without a verdict, by consumer; of those that have some, and take the stream."""
        return {
            name: outgoing.unsettled
            for name, (_, outgoing) in self._routes.items()
            if outgoing.unsettled and not outgoing.outbox.error
        }

    def marks(self) -> list[tuple[str, Mark]]:
        """A mark behind all that has been put so far, on the way to each consumer."""
        return [
            (name, outgoing.mark()) for name, (_, outgoing) in self._routes.items()
            if outgoing.unsettled
        ]  # fmt: skip

    async def send(self, events: Sequence[Any]) -> None:
        """Take events from a source once there is room."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.full or (self._awaited and not self._routes):
            self._was_full = True
            await self._lot.park()
        self.extend(events)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def send_nowait(self, events: Sequence[Any]) -> None:
        """Take events from a source if there is room."""
        if self.full:
            raise WouldBlock(f"stream {self.stream!r}: {self.depth} events wait already")
        if self._awaited and not self._routes:
            raise WouldBlock(f"stream {self.stream!r}: nobody consumes it yet")
        self.extend(events)

    def news(self) -> None:
        """A link has heard from its node: report refusals, let waiters go on."""
        for _, outgoing in self._routes.values():
            for refusal in outgoing.outbox.take_refusals():
                self._on_refused(refusal)
            if outgoing.outbox.error:
                raise EventError(f"stream {self.stream!r}: {outgoing.outbox.error}")
        self._make_room()

    def _make_room(self) -> None:
        if self._was_full and not self.full:
            self._was_full = False
            self._lot.unpark_all()
            self._on_room()
