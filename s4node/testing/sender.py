"""The senders of a test: to live inputs, to systems, and right to internal streams.

Rules
- Events are encoded as on the wire, so an event that cannot be encoded fails as with a real node.
- The events of a stream go to the partition that the test names, or to the partition of their key,
  or to each partition in turn.
- Events for a stage that a test has made overflow wait here, as with a producer without credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import trio

from s4node.app.app import App
from s4node.app.stream import InputStream, Stream
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.container.container import Container
from s4node.runtime.container.durable_parts import DurableParts
from s4node.runtime.task.task import Task
from s4node.testing.world import Memory, World


class Refused(NamedTuple):
    """An event that the app did not process, and why."""

    stream: str
    event: Any
    reason: str


class Running(Protocol):
    app: App
    container: Container
    world: World
    overflowing: set[str]
    ended: bool

    @property
    def tasks(self) -> list[Task]: ...

    async def client(self) -> Client: ...


class Sender:
    """Sends events of a test to one stream of the app."""

    def __init__(self, runtime: Running, name: str) -> None:
        self.name = name
        self._runtime = runtime
        self._refused: list[Refused] = []
        self._held: list[tuple[int, Any]] = []
        self._turn = 0

    @property
    def stream(self) -> Stream:
        return self._runtime.app.streams[self.name]

    @property
    def partitions(self) -> int:
        return len(self._runtime.tasks)

    @property
    def waiting(self) -> list[Any]:
        """Events for which the app has no room yet."""
        return [event for _, event in self._held]

    @property
    def busy(self) -> bool:
        """True if events that were sent are not processed."""
        return bool(self._held)

    @property
    def connected(self) -> bool:
        return True

    @property
    def refused(self) -> list[Refused]:
        return self._refused

    def hurry(self) -> None:
        """Ask for verdicts."""

    def send(self, events: Sequence[Any], partition: int | None = None) -> None:
        """Send events in order; raises EventError for a type that the stream does not carry."""
        stream = self.stream
        checked = stream._checked(events)
        for kind in stream.types:
            kind.encode([event for event in checked if type(event) is kind.cls])
        self._held += self._placed(checked, partition)
        self.go_on()

    def go_on(self) -> None:
        """Send waiting events, if there is room."""
        if self._held and self.name not in self._runtime.overflowing:
            held, self._held = self._held, []
            self._runtime.world.run(lambda: self._hand_over(held))

    def _placed(self, events: Sequence[Any], partition: int | None) -> list[tuple[int, Any]]:
        stream, count = self.stream, self.partitions
        if partition is not None:
            return [(partition, event) for event in events]
        placed: list[tuple[int, Any]] = []
        for event in events:
            home = self._turn % count
            if stream.key is None:
                self._turn += 1
                every = stream.broadcast and isinstance(self, OwnSender)
                placed += [(one, event) for one in (range(count) if every else [home])]
                continue
            dispatch = self._runtime.container.parts.partitions.dispatch
            shares, failures = dispatch.routed(stream, [event], home)
            placed += [(where, one) for where, share in shares for one in share]
            for _, reason in failures:
                self._refused.append(Refused(self.name, event, f"{reason} (event {event!r})"))
        return placed

    async def _hand_over(self, placed: list[tuple[int, Any]]) -> None:
        raise NotImplementedError


class LiveSender(Sender):
    """A program that sends to an input over the network."""

    def __init__(self, runtime: Running, name: str) -> None:
        super().__init__(runtime, name)
        self._opened: ClientStream | None = None
        self._sent: dict[int, list[Any]] = {}
        self._first: dict[int, int] = {}

    def report_time(self, time: float) -> None:
        """Report to the app that later events are not older."""

        async def report() -> None:
            (await self._client_stream()).watermark(time)

        self._runtime.world.run(report)

    async def _client_stream(self) -> ClientStream:
        if self._opened is None:
            client = await self._runtime.client()
            self._opened = await client.stream(self.name)
        return self._opened

    async def _hand_over(self, placed: list[tuple[int, Any]]) -> None:
        await self._client_stream()
        assert self._opened is not None
        outbox = self._opened._outbox
        events = self._opened._admit([event for _, event in placed])
        for (partition, _), event in zip(placed, events, strict=True):
            self._sent.setdefault(partition, []).append(event)
            outbox.extend_lane(partition, [event])
        self._opened._emitter.hurry()

    @property
    def waiting(self) -> list[Any]:
        lanes = self._opened._outbox.lanes if self._opened is not None else ()
        return [*(event for lane in lanes for event in lane.pending), *super().waiting]

    @property
    def connected(self) -> bool:
        return self._opened is None or all(lane.open for lane in self._opened._outbox.lanes)

    @property
    def busy(self) -> bool:
        """True if events that were sent are not processed, or not committed."""
        return bool(self._held or (self._opened is not None and self._opened._outbox.unsettled))

    @property
    def refused(self) -> list[Refused]:
        if self._opened is None:
            return self._refused
        if not self._runtime.ended and self._opened._outbox.unsettled:
            self.hurry()
            self._runtime.world.wait_idle()
        for refusal in self._opened._outbox.refusals.drain():
            for number in range(refusal.number, refusal.number + refusal.count):
                event = self._event(refusal.partition, number) if number >= 0 else None
                self._refused.append(Refused(self.name, event, refusal.reason))
        return self._refused

    def _event(self, partition: int, number: int) -> Any:
        """The event of a number; the first is not always 0."""
        assert self._opened is not None
        lane, sent = self._opened._outbox.lanes[partition], self._sent[partition]
        first = self._first.setdefault(partition, lane.next_number + len(lane.pending) - len(sent))
        return sent[number - first]

    def hurry(self) -> None:
        """Ask for verdicts: the end of the test waits for them."""
        if self._opened is not None:
            self._runtime.world.call(self._opened._emitter.hurry)


class InputSender(Sender):
    @property
    def _system(self) -> Memory:
        assert isinstance(self.stream, InputStream)
        return self._runtime.world.inputs.system(self.stream.system)

    @property
    def partitions(self) -> int:
        return self._system.count(self.name)

    async def _hand_over(self, placed: list[tuple[int, Any]]) -> None:
        await trio.lowlevel.checkpoint()
        for partition, event in placed:
            self._system.put(self.name, partition, event)

    def end_partition(self, partition: int) -> None:
        self._runtime.world.call(self._system.end_partition, self.name, partition)

    def progress(self, partition: int) -> InputProgress:
        replay = self._runtime.container.replay
        assert isinstance(replay, DurableParts)
        ssp = SystemStreamPartition(self._system.name, self.name, partition)
        return next(each[ssp] for each in replay.consumers.progress.values() if ssp in each)


class OwnSender(Sender):
    """Puts events on an internal stream."""

    async def _hand_over(self, placed: list[tuple[int, Any]]) -> None:
        await trio.lowlevel.checkpoint()
        for partition, event in placed:
            self._runtime.container.parts.partitions.put(self.name, partition, [event])
