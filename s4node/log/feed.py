"""The feed of one connection: sends its readers the frames of the log, within their credit.

Rules
- Each connection has one trio task. Frames are read only when there is room to send them, so a slow
  reader delays only its own connection and needs no memory.
- The readers of a connection take turns; a turn is bounded in bytes. Only those are looked at that
  may have something to get, and others have their turn between two of them.
- A reader learns of new event types, and of lost events, at their place in the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

import trio

from s4node.errors import InputLost, S4Error, StageBroken, StartpointError
from s4node.log.hosted import HostedStream
from s4node.log.partition.partition_rows import StoredFrame
from s4node.log.streams import LogPartition
from s4node.logger import get_logger
from s4node.net.ingress.connection import Connection
from s4node.net.wire import frame as wire
from s4node.net.wire.start import Positions, read_start
from s4node.offsets.startpoint import Oldest, Timestamp, Upcoming

log = get_logger("s4node.log")

_TURN_BYTES = 262_144
_ENVELOPE_BYTES = 131_072


@dataclass(eq=False, repr=False, slots=True)
class _Cursor:
    """A reader's position in one partition; events from ``at`` up to ``limit`` may be sent."""

    partition: LogPartition
    at: int
    limit: int
    lost: bool = False

    @property
    def ready(self) -> bool:
        """Return True if there are events to send, or a loss to report."""
        bounds = self.partition.bounds
        return (
            not self.lost
            and self.at < bounds.upcoming
            and (self.at < self.limit or self.at < bounds.oldest)
        )


class _Reading:
    def __init__(self, hosted: HostedStream, reader: str) -> None:
        self.hosted = hosted
        self.reader = reader
        self.cursors: dict[int, _Cursor] = {}
        self.sent_types: set[int] = set()  # fingerprints


def lost_end(place: str, number: int, end: int) -> str:
    """The message for a position beyond the end of its epoch."""
    return (
        f"the events of {place} from offset {end} to {number} are lost, in a power cut or because "
        f"an older copy of its file was put back; the log continues at {end} with other events. "
        f"Restart the job to resume there, with what it has counted; have a program start at {end}"
    )


class Feed:
    """The readers of ``connection``; every hello carries ``node`` and ``headers``."""

    def __init__(self, connection: Connection, node: str, incarnation: str, headers: wire.Headers):
        self._connection = connection
        self._node = node
        self._incarnation = incarnation
        self._headers = headers
        self._readings: dict[str, dict[str, _Reading]] = {}  # by stream and reader
        self._due: dict[_Reading, None] = {}  # to look at
        self._hellos: dict[tuple[str, str], tuple[HostedStream, wire.Hello]] = {}
        self._work = trio.lowlevel.ParkingLot()

    def hello(self, hosted: HostedStream, hello: wire.Hello) -> None:
        """Start a reader, or start it again."""
        self._hellos[hello.stream, hello.peer] = hosted, hello
        self._work.unpark_all()

    def on_verdict(self, verdict: wire.Verdict) -> bool:
        """Raise a reader's credit; returns False if the reader is unknown."""
        reading = self._readings.get(verdict.stream, {}).get(verdict.producer)
        if reading is None:
            return (verdict.stream, verdict.producer) in self._hellos
        for ruling in verdict.rulings:
            cursor = reading.cursors.get(ruling.partition)
            if cursor is not None and ruling.limit > cursor.limit:
                cursor.limit = ruling.limit
        self._due[reading] = None
        self._work.unpark_all()
        return True

    def unsubscribe(self, stream: str, reader: str) -> None:
        """Stop a reader, even if it has not been started yet."""
        reading = self._readings.get(stream, {}).pop(reader, None)
        if reading is not None:
            self._due.pop(reading, None)
        self._hellos.pop((stream, reader), None)

    def grown(self, stream: str) -> None:
        """Look for frames of a stream to send."""
        if readings := self._readings.get(stream):
            self._due |= dict.fromkeys(readings.values())
            self._work.unpark_all()

    async def run(self) -> None:
        """Send frames until cancelled or until the connection ends."""
        with suppress(trio.ClosedResourceError, StageBroken):
            while True:
                if self._hellos:
                    key, begun = next(iter(self._hellos.items()))
                    await self._send([await self._begin(*begun)])
                    if self._hellos.get(key) is begun:
                        del self._hellos[key]
                elif self._due:
                    reading = next(iter(self._due))
                    del self._due[reading]
                    for cursor in list(reading.cursors.values()):
                        if cursor.ready:
                            await self._turn(reading, cursor)
                            if cursor.ready and self._has(reading):
                                self._due[reading] = None
                else:
                    await self._work.park()
                    continue
                await trio.lowlevel.checkpoint()

    def _has(self, reading: _Reading) -> bool:
        return self._readings.get(reading.hosted.name, {}).get(reading.reader) is reading

    # -- beginning -----------------------------------------------------------------------------

    async def _begin(self, hosted: HostedStream, hello: wire.Hello) -> bytes:
        reading = _Reading(hosted, hello.peer)
        try:
            cursors = await self._cursors(hosted, hello)
        except S4Error as error:
            return self._hello_frame(reading, error=error)
        reading.cursors = {cursor.partition.number: cursor for cursor in cursors}
        if (hosted.name, hello.peer) in self._hellos:  # not ended while its cursors were looked up
            self._readings.setdefault(hosted.name, {})[hello.peer] = reading
            self._due[reading] = None
        return self._hello_frame(reading, cursors)

    async def _cursors(self, hosted: HostedStream, hello: wire.Hello) -> list[_Cursor]:
        start = read_start(hello.headers)
        found = []
        if isinstance(start, Positions):
            epochs = wire.pairs(hello.headers, wire.EPOCHS)
            for position in hello.positions:
                if not 0 <= position.partition < len(hosted.partitions):
                    raise StartpointError(
                        f"stream {hosted.name!r} has no partition {position.partition}, its "
                        f"partitions are 0 to {len(hosted.partitions) - 1}"
                    )
                partition = hosted.partitions[position.partition]
                bounds = partition.bounds
                epoch = epochs.get(position.partition)
                if epoch and position.number > (end := bounds.end_of(epoch)):
                    raise StartpointError(lost_end(str(partition), position.number, end))
                if not 0 <= position.number <= bounds.upcoming:
                    raise StartpointError(
                        f"{hosted.name}[{position.partition}] has no offset {position.number}: it "
                        f"has {bounds.oldest} to {bounds.upcoming}; start at one of these"
                    )
                found.append(_Cursor(partition, position.number, position.limit))
            return found
        for partition in hosted.partitions:
            match start:
                case Oldest():
                    at = partition.bounds.oldest
                case Upcoming():
                    at = partition.bounds.upcoming
                case Timestamp(millis):
                    at = await partition.offset_at(millis)
                case _:
                    assert_never(start)
            found.append(_Cursor(partition, at, at))
        return found

    def _hello_frame(
        self,
        reading: _Reading,
        cursors: Sequence[_Cursor] = (),
        error: S4Error | None = None,
    ) -> bytes:
        """A hello to the reader: the event types so far, and its positions or the error."""
        headers = {**self._headers, wire.READER: reading.reader, wire.LOG: True}
        if error is not None:
            headers[wire.FAULT] = type(error).__name__
        if cursors:
            headers[wire.EPOCHS] = [(c.partition.number, c.partition.bounds.epoch) for c in cursors]
        types = reading.hosted.types
        reading.sent_types |= types.keys()
        return wire.encode_frame(
            wire.Hello(
                self._node,
                self._incarnation,
                reading.hosted.name,
                tuple(types.values()),
                reading.hosted.routing,
                len(reading.hosted.partitions),
                tuple(
                    wire.Position(
                        cursor.partition.number,
                        cursor.at,
                        cursor.limit,
                        cursor.partition.bounds.upcoming,
                    )
                    for cursor in cursors
                ),
                str(error) if error is not None else "",
                headers,
            )
        )

    # -- sending --------------------------------------------------------------------------------

    async def _turn(self, reading: _Reading, cursor: _Cursor) -> None:
        """Send one reader the next frames of one partition."""
        number = cursor.partition.number
        try:
            rows = await cursor.partition.read(cursor.at, _TURN_BYTES)
        except InputLost:
            cursor.lost = True
            oldest = cursor.partition.bounds.oldest
            headers = {wire.LOST: [number, cursor.at, oldest]}
            idle = wire.Idle(reading.hosted.name, reading.reader, headers=headers)
            await self._send([wire.encode_frame(idle)])
            return
        except S4Error as error:
            cursor.lost = True
            log.error(
                "the log cannot be read",
                stream=reading.hosted.name,
                partition=number,
                reason=str(error),
            )
            await self._send([self._hello_frame(reading, error=error)])
            return
        frames: list[bytes] = []
        size = 0
        for row in rows:
            if cursor.at >= cursor.limit:
                break
            if any(section.fingerprint not in reading.sent_types for section in row.sections):
                frames.append(self._hello_frame(reading))
            frames.append(self._frame(reading, cursor, row))
            cursor.at = row.end
            size += len(frames[-1])
            if size >= _ENVELOPE_BYTES:
                await self._send(frames)
                frames, size = [], 0
        if frames:
            await self._send(frames)

    def _frame(self, reading: _Reading, cursor: _Cursor, row: StoredFrame) -> bytes:
        return wire.encode_frame(
            wire.Data(
                reading.hosted.name,
                cursor.partition.number,
                reading.reader,
                row.first,
                row.count,
                row.sections,
                row.routing,
                row.encoding,
                0,
                row.order,
                row.appended_ms,
                {**row.headers, wire.UPCOMING: cursor.partition.bounds.upcoming},
            ),
            row.body,
        )

    async def _send(self, frames: list[bytes]) -> None:
        socket = self._connection.socket
        assert socket is not None
        data = wire.envelope(frames)
        while not socket.send_nowait(data):
            await socket.wait_writable()
