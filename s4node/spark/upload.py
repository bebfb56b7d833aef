"""Appends the rows of a task to a stream: a producer for a thread that may block.

Rules
- The upload follows section 5 of docs/wire-protocol.md: it keeps frames until their verdict, sends
  no more than the credit allows, and resends after a lost connection.
- A partition has a lane, whose frames go to the node that owns the partition. If an owner changes,
  or a connection is lost, all lanes are opened again.
- An event that a node refuses or sheds is an error. So is a node that takes nothing for
  ``patience`` seconds.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from s4node import tokens
from s4node.errors import SinkError
from s4node.events.type_declaration import TypeDecl
from s4node.net.certificates.credentials import Credentials
from s4node.net.wire import frame as wire
from s4node.spark.connection import Connection, connect

WINDOW_BYTES = 16 << 20
"""The bytes without a verdict that are kept before the sender waits."""

_OVERHEAD_BYTES = 4096  # the room for a frame's header
_LOOK_EVERY = 8  # frames
_PAUSE_SECONDS = 0.1
_ASK_SECONDS = 1.0


@dataclass(slots=True, frozen=True)
class _Frame:
    first: int
    count: int
    data: bytes

    @property
    def behind(self) -> int:
        return self.first + self.count


class _Lane:
    def __init__(self) -> None:
        self.kept: deque[_Frame] = deque()
        self.sent = 0  # of the kept frames
        self.next = self.settled = self.limit = self.life = 0
        self.opened = False
        self.link: Connection | None = None


class Upload:
    """Appends to ``stream`` as ``producer``; ``declaration`` is the type of all events."""

    def __init__(
        self,
        addresses: Sequence[str],
        stream: str,
        producer: str,
        declaration: TypeDecl,
        patience: float,
        credentials: Credentials | None = None,
    ) -> None:
        self._addresses = list(addresses)
        self._stream = stream
        self._credentials = credentials
        self.producer = producer if credentials is None else credentials.holder.own_id(producer)
        self._incarnation = tokens.fresh(6)
        self._declaration = declaration
        self._patience = patience
        self._lanes: list[_Lane] = []
        self._links: dict[str, Connection] = {}
        self._draining: set[Connection] = set()
        self._reopen = False
        self._bytes = 0
        self._frames = 0
        self._answered_at = time.monotonic()
        self.hello = self._open_all()

    @property
    def partitions(self) -> int:
        return len(self._lanes)

    @property
    def max_body(self) -> int:
        """The most bytes of a frame's events."""
        return int(self.hello.headers.get(wire.MAX_FRAME_BYTES, 1 << 20)) - _OVERHEAD_BYTES

    @property
    def own_lane(self) -> int:
        """The lane of events that this side cannot route, another one for each producer."""
        return zlib.crc32(self.producer.encode()) % self.partitions

    def send(self, partition: int, count: int, body: bytes, *, routed: bool) -> None:
        lane = self._lanes[partition]
        sections = (wire.Section(self._declaration.fingerprint, count, len(body)),)
        header = wire.Data(
            self._stream,
            partition,
            self.producer,
            lane.next,
            count,
            sections,
            self.hello.routing if routed else "",
            created_ms=int(time.time() * 1000),
        )
        lane.kept.append(_Frame(lane.next, count, wire.encode_frame(header, body)))
        lane.next += count
        self._bytes += len(body)
        self._frames += 1
        try:
            self._pump(lane)
            if self._frames % _LOOK_EVERY == 0:
                self._receive(0.0)
        except OSError:
            self._open_all()
        self._wait(lambda: self._bytes <= WINDOW_BYTES)

    def finish(self) -> dict[int, int]:
        """Wait until everything is settled; returns the number of events by partition."""
        self._wait(lambda: not self._bytes)
        end = wire.encode_frame(wire.EndOfStream(self._stream, self.producer))
        for link in self._links.values():
            try:
                link.send(end)
            except OSError:
                continue  # the node forgets the producer by itself
        self.close()
        return {number: lane.next for number, lane in enumerate(self._lanes) if lane.next}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._draining.clear()

    # -- waiting -------------------------------------------------------------------------------

    def _wait(self, over: object) -> None:
        """Wait until ``over()``; everything that arrives meanwhile is handled."""
        assert callable(over)
        asked = 0.0
        while not over():
            try:
                if time.monotonic() > asked + _ASK_SECONDS:
                    asked = time.monotonic()
                    idle = wire.Idle(self._stream, self.producer, wire.ANSWER_NOW)
                    for link in self._links.values():
                        if link not in self._draining:
                            link.send(wire.encode_frame(idle))
                self._receive(_PAUSE_SECONDS)
                for lane in self._lanes:
                    self._pump(lane)
            except OSError:
                self._open_all()
                asked = 0.0
            if time.monotonic() > self._answered_at + self._patience:
                raise SinkError(self._why_silent())

    def _why_silent(self) -> str:
        why = "it gives no verdict"
        for address in self._addresses:
            try:
                with contextlib.closing(Connection(address, 2.0, self._credentials)) as asking:
                    why = asking.query("list", {})["trouble"] or why
                break
            except (OSError, SinkError, KeyError):
                continue
        return (
            f"stream {self._stream!r} at {', '.join(self._addresses)} has taken nothing for "
            f"{self._patience:g} s: {why}. Nothing of the batch is visible; write it again then, "
            f"or raise option patience"
        )

    def _receive(self, seconds: float) -> None:
        links = list(self._links.values())
        for link in links:
            for header in link.arrived(seconds / len(links)):
                if isinstance(header, wire.Verdict):
                    self._take(header)
                elif isinstance(header, wire.Hello) and header.headers.get(wire.UNASKED):
                    self._reopen = True
                elif isinstance(header, wire.Drain):
                    self._draining.add(link)
                    link.send(wire.encode_frame(wire.Drain("stopped sending")))
        if self._reopen:
            self._open_all()

    def _take(self, verdict: wire.Verdict) -> None:
        if verdict.error:
            raise SinkError(f"stream {self._stream!r}: {verdict.error}")
        for ruling in verdict.rulings:
            for number, count, reason in (*ruling.exceptions, *ruling.shed):
                raise SinkError(
                    f"stream {self._stream!r} has refused {count} rows from number {number} of "
                    f"partition {ruling.partition}: {reason}"
                )
            lane = self._lanes[ruling.partition]
            if ruling.upto > lane.settled:
                self._answered_at = time.monotonic()
                self._settle(lane, ruling.upto)
            lane.limit = ruling.limit
            if ruling.outcome == wire.EXPECTED:
                lane.sent = sum(1 for frame in lane.kept if frame.behind <= ruling.expected)
            elif ruling.outcome == wire.NOT_OWNER:
                self._reopen = True

    def _settle(self, lane: _Lane, upto: int) -> None:
        lane.settled = upto
        while lane.kept and lane.kept[0].behind <= upto:
            frame = lane.kept.popleft()
            self._bytes -= _size(frame)
            lane.sent = max(0, lane.sent - 1)

    def _pump(self, lane: _Lane) -> None:
        """Send the frames of a lane that its credit allows."""
        if lane.link is None or lane.link in self._draining:
            return
        while lane.sent < len(lane.kept) and lane.kept[lane.sent].first < lane.limit:
            lane.link.send(lane.kept[lane.sent].data)
            lane.sent += 1

    # -- opening -------------------------------------------------------------------------------

    def _open_all(self) -> wire.Hello:
        """Open the stream at the nodes that own its partitions; again while they change."""
        until = time.monotonic() + self._patience
        while True:
            self.close()
            self._reopen = False
            try:  # a failure leaves no connection open
                hello = self._open_once(max(0.1, until - time.monotonic()))
                if hello is not None:
                    self._answered_at = time.monotonic()
                    for lane in self._lanes:
                        self._pump(lane)
                    return hello
            except OSError as error:
                if time.monotonic() > until:
                    raise SinkError(
                        f"stream {self._stream!r} cannot be opened at "
                        f"{', '.join(self._addresses)} ({error}); look at the node's log, or raise "
                        f"option patience. Nothing of the batch is visible"
                    ) from error
            except BaseException:
                self.close()
                raise
            if time.monotonic() > until:
                raise SinkError(
                    f"stream {self._stream!r} has partitions that no node runs; start nodes, or "
                    f"raise option patience"
                )
            time.sleep(_PAUSE_SECONDS)

    def _open_once(self, patience: float) -> wire.Hello | None:
        """Open it once; returns None if a partition has no owner at the moment."""
        first = connect(self._addresses, patience, self._credentials)
        hello = self._say_hello(first, patience)
        if not self._lanes:
            self._lanes = [_Lane() for _ in range(hello.partitions)]
        if hello.partitions != len(self._lanes):
            raise SinkError(
                f"stream {self._stream!r} has {hello.partitions} partitions, and had "
                f"{len(self._lanes)} when the task began; write the batch again"
            )
        nodes = list(hello.headers.get(wire.NODES, ()))
        owners = list(hello.headers.get(wire.OWNERS, ()))
        if not owners:
            for number, lane in enumerate(self._lanes):
                self._resume(lane, first, hello, number)
            return hello
        self._addresses = list(dict.fromkeys((*nodes, *self._addresses)))
        hellos = {hello.headers.get(wire.ADDRESS, first.address): (first, hello)}
        for number, lane in enumerate(self._lanes):
            if not 0 <= owners[number] < len(nodes):
                return None
            owner = nodes[owners[number]]
            if owner not in hellos:
                link = Connection(owner, patience, self._credentials)
                self._links[owner] = link
                hellos[owner] = (link, self._say_hello(link, patience))
            if not self._resume(lane, *hellos[owner], number):
                return None
        return hello

    def _say_hello(self, link: Connection, patience: float) -> wire.Hello:
        self._links[link.address] = link
        positions = tuple(
            wire.Position(number, lane.settled, life=lane.life)
            for number, lane in enumerate(self._lanes)
            if lane.opened
        )
        hello = wire.Hello(
            self.producer,
            self._incarnation,
            self._stream,
            (self._declaration,),
            positions=positions,
        )
        link.send(wire.encode_frame(hello))
        until = time.monotonic() + patience
        while (left := until - time.monotonic()) > 0:
            for header in link.arrived(left):
                if isinstance(header, wire.Hello) and header.stream == self._stream:
                    if header.error:
                        raise SinkError(header.error)
                    if header.partitions:  # else a node without the app names those that run it
                        return header
                    nodes = header.headers.get(wire.NODES, ())
                    self._addresses = list(dict.fromkeys((*nodes, *self._addresses)))
                    raise ConnectionError("it runs no app")
                if isinstance(header, wire.Drain):
                    raise ConnectionError("it is stopping")
        raise TimeoutError("it does not answer")

    def _resume(self, lane: _Lane, link: Connection, hello: wire.Hello, number: int) -> bool:
        """Go on at a node's position; returns False if it does not run the partition."""
        at = {position.partition: position for position in hello.positions}.get(number)
        if at is None:
            return False
        if not lane.opened and at.number:
            raise SinkError(f"producer {self.producer!r} exists; write the batch again")
        lane.opened, lane.link = True, link
        lane.limit, lane.life = at.limit, at.life
        self._settle(lane, max(lane.settled, at.safe))
        lane.sent = sum(1 for frame in lane.kept if frame.behind <= at.number)
        return True


def _size(frame: _Frame) -> int:
    head = int.from_bytes(frame.data[:4], "big")
    return len(frame.data) - 8 - head
