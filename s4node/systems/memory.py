"""A system in the memory of this process, for tests.

Rules
- Events are stored as on disk: encoded, with the declaration of their type. So they can be read as
  any version of their type, and may be undecodable.
- What a test does to the system (trim, end, go away) looks to readers as if a server did it.
- The system is a place, not a connection: events stay when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, assert_never

import trio

from s4node import clocks
from s4node.errors import InputLost, StartpointError, UnknownStream
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType, TypeDecl, TypeReader, reader_of
from s4node.offsets.startpoint import Oldest, Specific, Startpoint, Timestamp, Upcoming
from s4node.offsets.system import (
    END_OF_STREAM,
    Bounds,
    EndOfStream,
    InputBatch,
    SystemStreamPartition,
)

BATCH_EVENTS = 100


class _StoredEvent(NamedTuple):
    """An event: the declaration of its type, its time, and a msgpack array with only this event."""

    declaration: TypeDecl
    created_ms: int
    body: bytes


class _Partition:
    """The events of one partition from ``oldest`` on."""

    def __init__(self) -> None:
        self.oldest = 0
        self.events: list[_StoredEvent | None] = []
        """None for an offset without an event."""
        self.end: int | None = None
        self.routing = ""

    @property
    def upcoming(self) -> int:
        return self.oldest + len(self.events)


class MemorySystem:
    """Streams in memory. ``reads`` counts the events that readers got, by partition."""

    def __init__(self, name: str = "memory", address: str = "") -> None:
        self.name = name
        self.address = address
        self.reads: dict[SystemStreamPartition, int] = {}
        self._streams: dict[str, list[_Partition]] = {}
        self._names: set[tuple[str, int, str]] = set()  # of append_once
        self._away = False
        self._changed = trio.lowlevel.ParkingLot()
        self._types: dict[type, EventType] = {}

    # -- for tests -----------------------------------------------------------------------------

    def create(self, stream: str, partitions: int) -> None:
        """Create a stream, or change the number of partitions of an existing one."""
        known = self._streams.setdefault(stream, [])
        del known[partitions:]
        known += [_Partition() for _ in range(partitions - len(known))]
        self._changed.unpark_all()

    def put(self, stream: str, partition: int, *events: Any, created_ms: int | None = None) -> int:
        """Append without waiting; returns the offset of the first event."""
        home = self._streams[stream][partition]
        if home.end is not None:
            raise StartpointError(f"{self.name}.{stream}[{partition}] has ended at {home.end}")
        now = int(clocks.wall() * 1000) if created_ms is None else created_ms
        first = home.upcoming
        for event in events:
            kind = self._kind(type(event))
            home.events.append(_StoredEvent(kind.declaration, now, kind.encode([event])))
        self._changed.unpark_all()
        return first

    def put_raw(self, stream: str, partition: int, raw: bytes, like: type = GenericEvent) -> int:
        """Append bytes as an event of type ``like``, whether they decode or not."""
        home = self._streams[stream][partition]
        home.events.append(
            _StoredEvent(self._kind(like).declaration, int(clocks.wall() * 1000), raw)
        )
        self._changed.unpark_all()
        return home.upcoming - 1

    def trim(self, stream: str, partition: int, below: int) -> None:
        """Remove the events below an offset, as retention does."""
        home = self._streams[stream][partition]
        gone = min(max(0, below - home.oldest), len(home.events))
        del home.events[:gone]
        home.oldest += gone
        self._changed.unpark_all()

    def remove(self, stream: str, partition: int, *offsets: int) -> None:
        """Leave these offsets without an event, as compaction does."""
        home = self._streams[stream][partition]
        for offset in offsets:
            home.events[offset - home.oldest] = None

    def end_partition(self, stream: str, partition: int) -> None:
        """End a partition for good."""
        home = self._streams[stream][partition]
        home.end = home.upcoming
        self._changed.unpark_all()

    def routed(self, stream: str, routing: str) -> None:
        """Declare that this rule has put a stream's events into the partitions of their keys."""
        for home in self._streams[stream]:
            home.routing = routing

    def go_away(self) -> None:
        """Become unreachable until :meth:`come_back`."""
        self._away = True
        self._changed.unpark_all()

    def come_back(self) -> None:
        self._away = False
        self._changed.unpark_all()

    # -- the contract --------------------------------------------------------------------------

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def wait_reachable(self, wanted: bool = True) -> None:
        await trio.lowlevel.checkpoint()
        while self._away == wanted:
            await self._changed.park()

    async def partitions(self, stream: str) -> int:
        await self.wait_reachable()
        return len(self._stream(stream))

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        await self.wait_reachable()
        home = self.partition_of(ssp)
        return Bounds(home.oldest, home.upcoming, home.end)

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        await self.wait_reachable()
        home = self.partition_of(ssp)
        match startpoint:
            case Oldest():
                return home.oldest
            case Timestamp(millis):
                for offset, kept in enumerate(home.events, home.oldest):
                    if kept is not None and kept.created_ms >= millis:
                        return offset
                return home.upcoming
            case Specific(offset):
                if home.oldest <= offset <= home.upcoming:
                    return offset
                raise StartpointError(
                    f"{ssp} has no offset {offset}: it has {home.oldest} to {home.upcoming - 1}; "
                    f"choose one of these, or {home.upcoming} for the next event"
                )
            case Upcoming():
                return home.upcoming
        assert_never(startpoint)

    async def open(self, ssp: SystemStreamPartition, offset: int, types: Sequence[type]) -> _Reader:
        await self.wait_reachable()
        home = self.partition_of(ssp)
        if offset > home.upcoming:
            raise StartpointError(
                f"{ssp} ends at {home.upcoming}, before offset {offset}; start at the end or "
                f"before it"
            )
        return _Reader(self, ssp, offset, types)

    async def append(
        self, stream: str, partition: int, events: Sequence[object], created_ms: int | None = None
    ) -> int:
        await self.wait_reachable()
        self.partition_of(SystemStreamPartition(self.name, stream, partition))
        return self.put(stream, partition, *events, created_ms=created_ms)

    async def append_once(self, stream: str, partition: int, event: object, name: str) -> bool:
        await self.wait_reachable()
        if (stream, partition, name) in self._names:
            return False
        self._names.add((stream, partition, name))
        await self.append(stream, partition, [event])
        return True

    # -- inside --------------------------------------------------------------------------------

    def partition_of(self, ssp: SystemStreamPartition) -> _Partition:
        """The partition; raises UnknownStream."""
        known = self._stream(ssp.stream)
        if ssp.partition >= len(known):
            raise UnknownStream(
                f"{ssp}: stream {ssp.stream!r} of system {self.name!r} has {len(known)} partitions"
            )
        return known[ssp.partition]

    async def wait_news(self) -> None:
        await self._changed.park()

    def wake_all(self) -> None:
        """Wake everything that waits for a change."""
        self._changed.unpark_all()

    @property
    def away(self) -> bool:
        return self._away

    def _stream(self, stream: str) -> list[_Partition]:
        if stream not in self._streams:
            known = ", ".join(self._streams) or "none"
            raise UnknownStream(f"system {self.name!r} has no stream {stream!r}; it has: {known}")
        return self._streams[stream]

    def _kind(self, cls: type) -> EventType:
        if cls not in self._types:
            self._types[cls] = EventType(cls)
        return self._types[cls]


class _Batch(InputBatch):
    """Stored events, not yet decoded."""

    __slots__ = ("_decoders", "_kept")

    def __init__(
        self,
        ssp: SystemStreamPartition,
        first: int,
        kept: list[_StoredEvent | None],
        decoders: _Decoders,
    ) -> None:
        events = [one for one in kept if one is not None]
        super().__init__(
            ssp,
            first,
            len(events),
            sum(len(one.body) for one in events),
            events[0].created_ms if events else 0,
            end=first + len(kept),
        )
        self._kept = kept
        self._decoders = decoders

    def load(self) -> None:
        undecoded = []
        numbers = []
        for number, kept in enumerate(self._kept, self.first):
            if kept is None:
                continue
            declaration, _, body = kept
            try:
                self.events += self._decoders.decoder_of(declaration)(body)
                numbers.append(number)
            except Exception as error:  # event classes that check themselves may raise anything
                undecoded.append((number, f"{declaration.name} does not decode: {error}", body))
        if len(numbers) < len(self._kept):
            self.numbers = numbers
        self.undecoded = undecoded
        self._kept = []


class _Decoders:
    """The decoders of a reader, by type."""

    def __init__(self, types: Sequence[type]) -> None:
        self._kinds = {kind.name: kind for kind in map(EventType, types)}
        self._generic = tuple(types) == (GenericEvent,)
        self._known: dict[int, TypeReader] = {}

    def decoder_of(self, declaration: TypeDecl) -> Callable[[bytes], list[Any]]:
        """The decoder for a type as it was written; it raises if no type of the reader fits."""
        found = self._known.get(declaration.fingerprint)
        if found is None:
            found = reader_of(declaration, self._kinds, others=self._generic)
            self._known[declaration.fingerprint] = found
        return found.decode


class _Reader:
    """Reads one partition."""

    def __init__(
        self, system: MemorySystem, ssp: SystemStreamPartition, offset: int, types: Sequence[type]
    ) -> None:
        self.ssp = ssp
        self.position = offset
        self._system = system
        self._decoders = _Decoders(types)
        self._paused = False

    @property
    def lag(self) -> int | None:
        return max(0, self._system.partition_of(self.ssp).upcoming - self.position)

    async def read(self) -> InputBatch | EndOfStream:
        await trio.lowlevel.checkpoint()
        while True:
            if self._system.away:
                await self._system.wait_reachable()
            home = self._system.partition_of(self.ssp)
            if self.position < home.oldest:
                raise InputLost(
                    f"{self.ssp}: offset {self.position} was deleted, the oldest is "
                    f"{home.oldest}: retention was faster than the reader"
                )
            if self.position < home.upcoming and not self._paused:
                break
            if home.end is not None and self.position >= home.end:
                return END_OF_STREAM
            await self._system.wait_news()
        at = self.position - home.oldest
        kept = home.events[at : at + BATCH_EVENTS]
        batch = _Batch(self.ssp, self.position, kept, self._decoders)
        batch.routing = home.routing
        self.position += len(kept)
        reads = self._system.reads
        reads[self.ssp] = reads.get(self.ssp, 0) + sum(one is not None for one in kept)
        return batch

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._system.wake_all()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
