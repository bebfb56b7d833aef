"""The embedded log as a system: reads and writes streams of a node's log over its sockets.

Rules
- All reads at an address share one connection. A lost connection is made again, and all reads
  resume: nothing is missed or repeated.
- A reader fetches a window of events ahead of its position; they are decoded right before they are
  processed.
- An append numbers its frames, so that a frame that is sent again is appended once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from s4node import tokens
from s4node.errors import (
    ConnectionRefused,
    EventError,
    S4Error,
    StageClosed,
    StartpointError,
    StoreCorrupt,
    UnknownStream,
)
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.reader_link import ReaderLink
from s4node.net.client.reading import Arrived, Lost, Reading
from s4node.net.transport.pair_socket import host_and_port
from s4node.net.wire.body import encoded, raws_of
from s4node.offsets.startpoint import Startpoint, Timestamp
from s4node.offsets.system import (
    Bounds,
    EndOfStream,
    InputBatch,
    PartitionReader,
    SystemStreamPartition,
)

WINDOW = 16_384
"""The most events that a reader has fetched ahead; fewer if they are large."""

WINDOW_BYTES = 4 << 20
"""The approximate bytes that a reader has fetched ahead, at most."""

_APPEND_EVENTS = 1024
_APPEND_BYTES = 262_144


class EmbeddedLog:
    """The log of the node at ``address``, as the system ``name``. See the contract, ``System``.

    Its methods wait for a node that cannot be reached; with ``timeout`` they raise
    ConnectionRefused after that many seconds.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        timeout: float = math.inf,
        credentials: Credentials | None = None,
    ) -> None:
        host_and_port(address)
        self.name = name
        self.address = address
        self._timeout = timeout
        self._link = ReaderLink(address, self._on_news, credentials)
        self._news = trio.lowlevel.ParkingLot()
        self._readers: set[_Reader] = set()
        self._me = f"{name}-{tokens.fresh(6)}"
        if credentials is not None:
            self._me = credentials.holder.own_id(self._me)
        self._last = 0
        self._numbers: dict[tuple[str, int], int] = {}
        self._turns: dict[tuple[str, int], trio.Lock] = {}
        self._kinds: dict[type, EventType] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; readers end with it."""
        try:
            await self._link.run(task_status)
        finally:
            for reader in list(self._readers):
                reader.stop()

    async def wait_reachable(self, wanted: bool = True) -> None:
        await trio.lowlevel.checkpoint()
        while self._link.connected != wanted:
            await self._news.park()

    # -- reading -----------------------------------------------------------------------------

    async def partitions(self, stream: str) -> int:
        return len((await self.describe(stream))["partitions"])

    async def identity(self, stream: str) -> str:
        return str((await self.describe(stream)).get("id", ""))  # of a node of earlier versions

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        """The current bounds of a partition; raises StoreCorrupt if the node cannot open its
        file."""
        partitions = (await self.describe(ssp.stream))["partitions"]
        if not 0 <= ssp.partition < len(partitions):
            raise UnknownStream(
                f"{ssp}: the stream has partitions 0 to {len(partitions) - 1}, not {ssp.partition}"
            )
        found = partitions[ssp.partition]
        if "damage" in found:
            raise StoreCorrupt(found["damage"])
        epochs = tuple((epoch, first) for epoch, first in found["epochs"])
        return Bounds(found["oldest"], found["upcoming"], epochs=epochs)

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        bounds = await self.bounds(ssp)
        if not isinstance(startpoint, Timestamp):
            return bounds.offset_of(ssp, startpoint)
        asked = {"stream": ssp.stream, "partition": ssp.partition, "millis": startpoint.millis}
        return int((await self.ask("offset", asked))["offset"])

    async def open(
        self, ssp: SystemStreamPartition, offset: int, types: Sequence[type], epoch: int = 0
    ) -> PartitionReader:
        bounds = await self.bounds(ssp)
        if offset > bounds.upcoming:
            raise StartpointError(
                f"{ssp} ends at {bounds.upcoming}, before offset {offset}; start at the end or "
                f"before it"
            )
        self._last += 1
        name = f"{self._me}-{self._last}"
        reader = _Reader(self, ssp, offset, types, name, epoch or bounds.epoch)
        self._readers.add(reader)
        self._link.add(reader.reading)
        return reader

    # -- writing -----------------------------------------------------------------------------

    async def append(
        self, stream: str, partition: int, events: Sequence[object], created_ms: int | None = None
    ) -> int:
        """Append events durably; returns the offset of the first.

        A cancelled call may have appended. Events that do not fit into one frame are appended in
        several, and events of others may come in between.
        """
        if not events:
            raise EventError(
                f"no events to append to {self.name}.{stream}[{partition}]; give at least one"
            )
        place = stream, partition
        offsets = []
        async with self._turns.setdefault(place, trio.Lock()):
            left = list(events)
            while left:
                count = min(len(left), _APPEND_EVENTS)
                body = self._encoded(left[:count])
                while len(body["body"]) > _APPEND_BYTES and count > 1:
                    count //= 2
                    body = self._encoded(left[:count])
                first = self._numbers.get(place, 0)
                self._numbers[place] = first + count  # even if the append fails
                asked = {
                    "stream": stream,
                    "partition": partition,
                    "producer": self._me,
                    "first": first,
                    "count": count,
                    "created_ms": created_ms or 0,
                    **body,
                }
                offsets.append(int((await self.ask("append", asked))["offset"]))
                del left[:count]
        return offsets[0]

    async def append_once(self, stream: str, partition: int, event: object, name: str) -> bool:
        """Append an event at most once under this name; returns True if it was appended."""
        return await self.append_encoded(stream, partition, self._encoded([event]), name)

    async def append_encoded(
        self,
        stream: str,
        partition: int,
        encoded: Mapping[str, Any],
        name: str,
        *,
        kept: bool = False,
    ) -> bool:
        """As ``append_once``, for an event in its wire form: types, sections and body.

        A name that is ``kept`` is known until it is forgotten; others expire.
        """
        asked = {
            "stream": stream,
            "partition": partition,
            "producer": name,
            "first": 0,
            "count": 1,
            "once": True,
            "own_id": kept,
            **encoded,
        }
        return int((await self.ask("append", asked))["offset"]) >= 0

    def _encoded(self, events: Sequence[Any]) -> dict[str, Any]:
        classes = set(map(type, events))
        for cls in classes - self._kinds.keys():
            self._kinds[cls] = EventType(cls)
        kinds = {cls: self._kinds[cls] for cls in classes}
        _, sections, order, body = encoded(kinds, events)
        declared = [kind.declaration for kind in kinds.values()]
        return {
            "types": [[one.name, one.fingerprint, list(one.fields)] for one in declared],
            "sections": [[one.fingerprint, one.count, one.size] for one in sections],
            "order": order,
            "body": body,
        }

    # -- the log itself ------------------------------------------------------------------------

    async def streams(self) -> dict[str, Any]:
        """All streams, each as from ``describe``, and ``trouble``: why appending waits, or
        empty."""
        return await self.ask("list", {})

    async def describe(self, stream: str) -> dict[str, Any]:
        """A stream: its key, retention, types, and the bounds and bytes of its partitions."""
        return await self.ask("describe", {"stream": stream})

    async def create(
        self,
        stream: str,
        partitions: int = 1,
        *,
        key: str = "",
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Create a stream, or find the one with these settings.

        If a retention is None, the node's setting applies. Raises StoreError for invalid settings.
        """
        asked = {
            "stream": stream,
            "partitions": partitions,
            "key": key,
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
        }
        return await self.ask("create", asked)

    async def trim(
        self,
        stream: str,
        *,
        partition: int | None = None,
        offset: int | None = None,
        before_ms: int | None = None,
    ) -> dict[int, int]:
        """Delete old events; returns the oldest offset left, by partition. They are those before an
        ``offset`` of one partition, or appended before a time (Unix time, ms)."""
        asked = {
            "stream": stream,
            "partition": partition,
            "offset": offset,
            "before_ms": before_ms,
        }
        found = await self.ask("trim", asked)
        return {int(number): oldest for number, oldest in found["oldest"].items()}

    async def forget(self, producer: str, stream: str = "") -> dict[str, list[int]]:
        """Forget the numbers of a disconnected producer, on one stream or all.

        What it sends again is then appended again. The id of a task may lack the ``#`` and what
        follows it. Returns the partitions that knew it, by stream. Raises StoreError if the
        producer is connected or unknown.
        """
        found = await self.ask("forget", {"producer": producer, "stream": stream})
        return {name: list(numbers) for name, numbers in found["forgotten"].items()}

    async def ask(self, question: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The node's answer to a query, which has to be harmless to repeat."""
        return await self._link.ask(question, arguments, self._timeout)

    # -- inside --------------------------------------------------------------------------------

    def _on_news(self) -> None:
        for reader in self._readers:
            reader.on_news()
        self._news.unpark_all()

    def _wake(self) -> None:
        self._link.wake()

    def _closed(self, reader: _Reader) -> None:
        self._readers.discard(reader)
        self._link.remove(reader.reading)


class _Batch(InputBatch):
    """Events in the frame that they came in, not yet decoded."""

    __slots__ = ("_arrived",)

    def __init__(self, ssp: SystemStreamPartition, arrived: Arrived) -> None:
        data = arrived.data
        super().__init__(
            ssp, arrived.first, arrived.end - arrived.first, len(arrived.body), data.created_ms
        )
        self.routing = data.routing
        self._arrived: Arrived | None = arrived

    def load(self) -> None:
        arrived, self._arrived = self._arrived, None
        assert arrived is not None, "a batch is loaded once"
        data = arrived.data
        events, refusals = arrived.reading.decoder.decode(data, arrived.body)
        skip = self.first - data.first
        if not refusals:
            self.events = events[skip:] if skip else events
            return
        raws = raws_of(data, arrived.body)
        bad = {index for index, _ in refusals}
        good = [index for index in range(skip, len(events)) if index not in bad]
        self.events = [events[index] for index in good]
        self.numbers = [data.first + index for index in good]
        self.undecoded = [
            (data.first + index, reason, raws[index]) for index, reason in refusals if index >= skip
        ]


class _Reader:
    def __init__(
        self,
        log: EmbeddedLog,
        ssp: SystemStreamPartition,
        offset: int,
        types: Sequence[type],
        name: str,
        epoch: int,
    ) -> None:
        self.ssp = ssp
        self.position = offset
        self._log = log
        self._ended = False
        self._arrived: deque[Arrived | Lost] = deque()
        self._news = trio.lowlevel.ParkingLot()
        self.reading = Reading(
            ssp.stream,
            name,
            types,
            {ssp.partition: offset},
            window=WINDOW,
            window_bytes=WINDOW_BYTES,
            others=tuple(types) == (GenericEvent,),
            deliver=self._arrived.append,
            epochs={ssp.partition: epoch},
            on_credit=log._wake,
        )

    @property
    def lag(self) -> int | None:
        place = self.reading.places.get(self.ssp.partition)
        if place is None or place.upcoming is None:
            return None
        return max(0, place.upcoming - self.position)

    @property
    def epoch(self) -> int:
        """The epoch of the partition that ``position`` belongs to; 0 while that is unknown."""
        place = self.reading.places.get(self.ssp.partition)
        return 0 if place is None else place.epoch

    async def read(self) -> InputBatch | EndOfStream:
        await trio.lowlevel.checkpoint()
        while not self._arrived:
            if self._ended:
                raise StageClosed(f"the reader of {self.ssp} is closed; open another one")
            if self.reading.error is not None:
                raise self._refused(self.reading.error)
            await self._news.park()
        arrived = self._arrived[0]
        if isinstance(arrived, Lost):
            raise arrived.error
        self._arrived.popleft()
        self.position = arrived.end
        self.reading.acknowledge(arrived.place, arrived.end)
        return _Batch(self.ssp, arrived)

    def _refused(self, error: S4Error) -> S4Error:
        """The error for a reader that the node refuses; an unknown stream has advice."""
        if not isinstance(error, ConnectionRefused):
            return error
        return UnknownStream(
            f"{self.ssp} can no longer be read at {self._log.address}, from offset "
            f"{self.position}: {error}. Start that node with the log's own folder, or create the "
            f"stream again and start without the progress in the former one"
        )

    def pause(self) -> None:
        self.reading.pause()

    def resume(self) -> None:
        self.reading.resume()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.stop()
        self._log._closed(self)

    def on_news(self) -> None:
        if self._arrived or self.reading.error is not None:
            self._news.unpark_all()

    def stop(self) -> None:
        self._ended = True
        self._arrived.clear()
        self._news.unpark_all()
