"""A system in the memory of this process, for tests.

Rules
- Events are stored as on disk: encoded, with the declaration of their type. So they can be read as
  any version of their type, and may be undecodable.
- What a test does to the system (trim, end, go away) looks to readers as if a server did it.
- The system is a place, not a connection: events stay when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import trio

from s4node import clocks, tokens
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import InputLost, StartpointError, UnknownStream
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType, TypeReader, reader_of
from s4node.events.type_declaration import TypeDecl
from s4node.offsets.startpoint import Startpoint, Timestamp
from s4node.offsets.system import (
    END_OF_STREAM,
    Bounds,
    EndOfStream,
    InputBatch,
    Receiver,
    SystemStreamPartition,
)
from s4node.systems.memory_receiver import MemoryReceiver, Published
from s4node.systems.records import Headers, RecordBatch, RecordFormat, RecordReader, Records

BATCH_EVENTS = 100


class _StoredEvent(NamedTuple):
    """An event: the declaration of its type, its time, and a msgpack array with only this event."""

    declaration: TypeDecl
    created_ms: int
    body: bytes


class _StoredRecord(NamedTuple):
    """A record of another program, without a type."""

    created_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class _Partition:
    """The events of one partition from ``oldest`` on; or its ``records``. It has ``epochs`` if it
    may lose its end."""

    def __init__(self, *, records: bool, epochs: bool) -> None:
        self.records = records
        self.oldest = 0
        self.events: list[Any] = []
        """A _StoredEvent, or a _StoredRecord, by offset; None for an offset without any."""
        self.end: int | None = None
        self.epochs = [(1, 0)] if epochs else []
        self.routing = ""

    @property
    def upcoming(self) -> int:
        return self.oldest + len(self.events)


class MemorySystem:
    """Streams in memory. ``reads`` counts the events that readers got, by partition."""

    def __init__(self, name: str = "memory", config: Config | None = None) -> None:
        self.name = name
        self.config = config or Config()
        self.address = self.config.matching(settings.SYSTEM_ADDRESS).get(name, "")
        self.reads: dict[SystemStreamPartition, int] = {}
        self._streams: dict[str, list[_Partition]] = {}
        self._ids: dict[str, str] = {}
        self._names: set[tuple[str, int, str]] = set()  # of append_once
        self._away = False
        self._changed = trio.lowlevel.ParkingLot()
        self._types: dict[type, EventType] = {}
        self.published = Published()
        """The records of tasks."""
        self.most_bytes = 1_000_000

    # -- for tests -----------------------------------------------------------------------------

    def create(
        self, stream: str, partitions: int, *, records: bool = False, epochs: bool = False
    ) -> None:
        """Create a stream, of events or of ``records``, or change the number of partitions of an
        existing one. With ``epochs`` it may lose its end."""
        if stream not in self._streams:
            self._ids[stream] = tokens.fresh(8)
        known = self._streams.setdefault(stream, [])
        del known[partitions:]
        known += [
            _Partition(records=records, epochs=epochs) for _ in range(partitions - len(known))
        ]
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

    def put_record(
        self,
        stream: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        created_ms: int = 0,
        headers: Headers = (),
    ) -> int:
        """Append a record to a stream of records; returns its offset."""
        home = self._streams[stream][partition]
        home.events.append(_StoredRecord(created_ms, key, value, headers))
        self._changed.unpark_all()
        return home.upcoming - 1

    def trim(self, stream: str, partition: int, below: int) -> None:
        """Remove the events below an offset, as retention does."""
        home = self._streams[stream][partition]
        gone = min(max(0, below - home.oldest), len(home.events))
        del home.events[:gone]
        home.oldest += gone
        self._changed.unpark_all()

    def lose_end(self, stream: str, partition: int, first: int) -> None:
        """Lose the events from an offset on, as a power cut does; later ones get their offsets."""
        home = self._streams[stream][partition]
        assert home.epochs, "create it with epochs"
        del home.events[first - home.oldest :]
        home.epochs.append((len(home.epochs) + 1, first))

    def remove(self, stream: str, partition: int, *offsets: int) -> None:
        """Leave these offsets without an event, as compaction does."""
        home = self._streams[stream][partition]
        for offset in offsets:
            home.events[offset - home.oldest] = None

    def remove_stream(self, stream: str) -> None:
        """Remove a stream; readers of it may not be open."""
        del self._streams[stream]

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

    async def identity(self, stream: str) -> str:
        await self.wait_reachable()
        self._stream(stream)
        return self._ids[stream]

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        await self.wait_reachable()
        home = self.partition_of(ssp)
        return Bounds(home.oldest, home.upcoming, home.end, tuple(home.epochs))

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        await self.wait_reachable()
        if not isinstance(startpoint, Timestamp):
            return (await self.bounds(ssp)).offset_of(ssp, startpoint)
        home = self.partition_of(ssp)
        for offset, kept in enumerate(home.events, home.oldest):
            if kept is not None and kept.created_ms >= startpoint.millis:
                return offset
        return home.upcoming

    async def open(
        self, ssp: SystemStreamPartition, offset: int, types: Sequence[type], epoch: int = 0
    ) -> _Reader:
        await self.wait_reachable()
        home = self.partition_of(ssp)
        if offset > home.upcoming:
            raise StartpointError(
                f"{ssp} ends at {home.upcoming}, before offset {offset}; start at the end or "
                f"before it"
            )
        if epoch and offset > (end := (await self.bounds(ssp)).end_of(epoch)):
            raise StartpointError(f"{ssp}: the events from offset {end} to {offset} are lost")
        return _Reader(self, ssp, offset, self._batches(ssp, types))

    def _batches(self, ssp: SystemStreamPartition, types: Sequence[type]) -> _Batches:
        """The function that makes a batch of stored events from an offset on."""
        if not self.partition_of(ssp).records:
            decoders = _Decoders(types)
            return lambda first, kept: _Batch(ssp, first, kept, decoders)
        form = RecordFormat.configured(self.config, ssp.stream)
        reader = RecordReader(ssp.stream, form, types)
        return lambda first, kept: _record_batch(ssp, first, kept, reader)

    async def append(
        self, stream: str, partition: int, events: Sequence[object], created_ms: int | None = None
    ) -> int:
        await self.wait_reachable()
        self.partition_of(SystemStreamPartition(self.name, stream, partition))
        return self.put(stream, partition, *events, created_ms=created_ms)

    def receiver(self, cluster: str, app: str, task: str) -> Receiver:
        return MemoryReceiver(f"{cluster}/{app}/{task}", self.published, self.wait_reachable)

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


_Batches = Callable[[int, list[Any]], InputBatch]


def _record_batch(
    ssp: SystemStreamPartition,
    first: int,
    kept: list[_StoredRecord | None],
    reader: RecordReader,
) -> RecordBatch:
    found = [(offset, one) for offset, one in enumerate(kept, first) if one is not None]
    records = Records(
        [offset for offset, _ in found],
        [one.value for _, one in found],
        [one.key for _, one in found],
        [one.created_ms for _, one in found],
        [one.headers for _, one in found],
    )
    weight = sum(len(one.value or b"") for _, one in found)
    created = found[0][1].created_ms if found else 0
    return RecordBatch(ssp, first, first + len(kept), records, weight, created, reader)


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
    def __init__(
        self, system: MemorySystem, ssp: SystemStreamPartition, offset: int, batches: _Batches
    ) -> None:
        self.ssp = ssp
        self.position = offset
        self._system = system
        self._batches = batches
        self._paused = False

    @property
    def epoch(self) -> int:
        """The epoch of the partition that it reads; 0 if it has none."""
        epochs = self._system.partition_of(self.ssp).epochs
        return epochs[-1][0] if epochs else 0

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
        batch = self._batches(self.position, kept)
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
