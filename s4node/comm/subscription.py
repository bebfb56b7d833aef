"""Reads a stream of a running app, from now on.

Rules
- Every container that runs the app is asked; what each puts on the stream comes in its own order,
  and nothing is promised between them.
- Whoever reads too slowly misses events, rather than hold the app up; ``missed`` counts them.
- A connection that is lost is made again. What came meanwhile is not sent again: ``interruptions``
  counts that.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import structlog
import trio

from s4node.comm import frame as wire
from s4node.comm.socket import PairSocket, host_and_port
from s4node.errors import ConnectionRefused, RemoteFrameError, StageBroken, StageClosed
from s4node.schema import EventType, open_reader

log = structlog.get_logger("s4node.subscription")

_MAX_BYTES = 16_777_216

Reader = Callable[[memoryview], list[Any]]


class Subscription:
    """A stream to read with ``async for``; get it from ``Client.subscribe``.

    Events of a class in ``types`` come as objects of it, others as GenericEvents with the fields'
    names. ``queue_size`` is how many events each container may send ahead of the reader.
    """

    def __init__(
        self,
        address: str,
        stream: str,
        types: Sequence[type] = (),
        *,
        timeout: float = 10.0,
        queue_size: int = 10_000,
    ) -> None:
        self.stream = stream
        self.interruptions = 0
        self._address = address
        self._types = {kind.name: kind for kind in map(EventType, types)}
        self._timeout = timeout
        self._window = queue_size
        self._me = f"subscriber-{secrets.token_hex(5)}"
        self._events: deque[tuple[_Source, list[Any], int]] = deque()
        self._batch: Iterator[Any] = iter(())
        self._current: tuple[_Source, int] | None = None
        self._sources: dict[str, _Source] = {}
        self._news = trio.lowlevel.ParkingLot()
        self._manager: Any = None
        self._nursery: trio.Nursery | None = None

    @property
    def missed(self) -> int:
        """Events that were not sent to us because we read too slowly."""
        return sum(source.missed for source in self._sources.values())

    async def __aenter__(self) -> Subscription:
        host_and_port(self._address)
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        try:
            self._ask(self._address)
            with trio.move_on_after(self._timeout):
                while not self._answered and not self._error:
                    await self._news.park()
            if not self._answered:
                reason = self._error or f"no answer within {self._timeout:g} s"
                raise ConnectionRefused(f"stream {self.stream!r} at {self._address}: {reason}")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)
        self._news.unpark_all()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        for event in self._batch:
            return event
        if self._current is not None:
            source, end = self._current
            source.read(end)
            self._current = None
        while not self._events:
            if self._nursery is None:
                raise StageClosed(f"the subscription to {self.stream!r} is closed")
            await self._news.park()
        source, events, end = self._events.popleft()
        self._current, self._batch = (source, end), iter(events)
        return next(self._batch)  # a frame has an event at least

    @property
    def _answered(self) -> bool:
        return any(source.runs for source in self._sources.values())

    @property
    def _error(self) -> str:
        waiting = [source for source in self._sources.values() if not source.error]
        errors = [source.error for source in self._sources.values() if source.error]
        return errors[0] if errors and not waiting else ""

    def _ask(self, address: str) -> None:
        known = [a for source in self._sources.values() for a in (source.address, source.alias)]
        if address not in known and self._nursery is not None:
            source = self._sources[address] = _Source(self, address)
            self._nursery.start_soon(source.run)


class _Source:
    """One container's share of the stream."""

    def __init__(self, subscription: Subscription, address: str) -> None:
        self.address = self.alias = address
        self.error = ""
        self.runs = False
        self.missed = 0
        self._of = subscription
        self._readers: dict[int, Reader] = {}
        self._read = self._limit = 0
        self._unsent: list[bytes] = []
        self._missed_before = 0
        self._producer = ""
        self._socket: PairSocket
        self._writes = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Read until cancelled."""
        self._socket = PairSocket.dialing(self.address, _MAX_BYTES, self._changed)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                while True:
                    await self._socket.wait_readable()
                    while (data := self._socket.receive_nowait()) is not None:
                        self._take(data)
                    self._of._news.unpark_all()
        finally:
            await self._socket.close()

    def read(self, end: int) -> None:
        """Everything below ``end`` has been read: give the credit back, a quarter at a time."""
        self._read = max(self._read, end)
        if self._limit - self._read < self._of._window * 3 // 4:
            self._limit = self._read + self._of._window
            ruling = wire.Ruling(0, wire.ADMITTED, self._read, self._limit, self._read)
            verdict = wire.Verdict(self._of.stream, self._producer, (ruling,))
            self._say(wire.encode_frame(verdict))

    def _changed(self, connected: bool) -> None:
        self._unsent.clear()
        if not connected:
            if self.runs:
                self._of.interruptions += 1
            self.runs = False
            return
        self._missed_before = self.missed
        self._read, self._limit = 0, self._of._window
        hello = wire.Hello(
            self._of._me,
            "",
            self._of.stream,
            positions=(wire.Position(0, 0, self._limit),),
            headers={wire.SUBSCRIBE: True},
        )
        self._say(wire.encode_frame(hello))

    def _say(self, frame: bytes) -> None:
        self._unsent.append(frame)
        self._writes.unpark_all()

    async def _write(self) -> None:
        while True:
            while not self._unsent:
                await self._writes.park()
            frames = list(self._unsent)
            with suppress(StageBroken):
                if not self._socket.send_nowait(wire.envelope(frames)):
                    await self._socket.wait_writable()
                    continue
            del self._unsent[: len(frames)]

    def _take(self, data: bytes) -> None:
        try:
            for frame in wire.read_envelope(data, _MAX_BYTES):
                if isinstance(frame, wire.BadFrame):
                    log.warning("bad frame", address=self.address, reason=frame.reason)
                elif isinstance(frame.header, wire.Hello):
                    self._on_hello(frame.header)
                elif isinstance(frame.header, wire.Data):
                    self._on_data(frame.header, frame.body)
                elif isinstance(frame.header, wire.Idle):
                    missed = frame.header.headers.get(wire.MISSED, 0)
                    self.missed = self._missed_before + int(missed)
                elif isinstance(frame.header, wire.Drain):
                    self._say(wire.encode_frame(wire.Drain("stopped reading")))
        except RemoteFrameError as error:
            log.warning("bad envelope", address=self.address, reason=str(error))

    def _on_hello(self, answer: wire.Hello) -> None:
        self.error = answer.error
        if answer.error:
            return
        self._producer = answer.peer
        alias = answer.headers.get(wire.ADDRESS)
        if isinstance(alias, str) and alias:
            self.alias = alias
        for declared in answer.types:
            known = self._of._types.get(declared.name)
            reason = known.refusal_of(declared) if known is not None else None
            if reason:
                self.error = reason
                return
            reader = known.decode if known is not None else open_reader(declared)
            self._readers[declared.fingerprint] = reader
        self.runs = self.runs or bool(answer.partitions)
        for node in answer.headers.get(wire.NODES) or ():
            self._of._ask(node)

    def _on_data(self, data: wire.Data, body: memoryview) -> None:
        problem = wire.check_sections(data, body)
        if problem:
            log.warning("bad frame", address=self.address, reason=problem)
            return
        shares: list[list[Any]] = []
        at = 0
        for section in data.sections:
            read = self._readers.get(section.fingerprint)
            if read is None:
                log.warning("an event type nobody has declared", address=self.address)
                return
            shares.append(read(body[at : at + section.size]))
            at += section.size
        if len(shares) == 1:
            events = shares[0]
        else:
            cursors = [iter(share) for share in shares]
            events = [next(cursors[which]) for which in data.order]
        self._of._events.append((self, events, data.first + data.count))
