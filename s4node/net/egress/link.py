"""A link: the dialling side of a connection; it sends frames to one node and reads verdicts.

Rules
- Hellos go first, after every connect; the routes decide what may leave.
- One envelope is sent at a time: while the socket is busy, events gather. The first event after a
  pause is sent by the trio task that brings it.
- A peer that does not answer with s4node frames is logged once, dialled less and less often, and
  named in errors.
- A lost connection is not an error: nng dials again, and the routes resend events without a
  verdict. What came before the loss is read first; read later, a hello would open lanes that lead
  nowhere.
- A draining node gets no further events on this connection, unless it ``ignores_drain``: nodes
  that stop together have to process what they still send to each other.
- What a socket has accepted is lost if it is closed before it has left. So a program that leaves
  asks a question after its last frames, and closes when the answer has come.
"""

from __future__ import annotations

import math
from typing import Protocol

import trio

from s4node import clocks
from s4node.errors import StageBroken
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.routes import NodeRoute
from s4node.net.transport.dialled_peer import DialledPeer
from s4node.net.transport.linger import Linger, together
from s4node.net.transport.network import DialledPipe
from s4node.net.wire import frame as wire

log = get_logger("s4node.net")

_ENVELOPE_BYTES = 131_072
_PATIENCE_SECONDS = 5.0
_SECOND_MS = 1000
_ARE_YOU_THERE = wire.encode_frame(wire.Query(1, "are you there"))


class Carrying(Protocol):
    """The owner of links, which carry its outboxes; it handles their news."""

    def take_news(self) -> None:
        """A verdict or hello has come, events have left the queues, or the peer has come."""

    def take_loss(self, link: Link) -> None:
        """The peer of a link has gone."""


class Link:
    """A connection to the node at ``address`` for the routes of any number of outboxes.

    ``emitter`` handles the link's news. ``last_drain`` is why the node took no more events, as it
    said last, until it has taken some.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: Credentials | None,
        queue_size: int,
        emitter: Carrying,
    ) -> None:
        self.address = address
        self.routes: list[NodeRoute] = []
        self.draining = ""
        self.ignores_drain = False
        self.last_drain = ""
        self._dialled = DialledPeer(address, log, credentials)
        self.answers = self._dialled.answers
        self._emitter = emitter
        self._socket: DialledPipe | None = None
        self._away_since = clocks.steady()
        self._control: list[bytes] = []
        self._unsent: bytes | None = None
        self._work = trio.lowlevel.ParkingLot()
        self._sent = trio.lowlevel.ParkingLot()
        self.awake = False
        self._hurry = self._asks = False
        self._coalescer = Linger(max(1, queue_size // 2))

    @property
    def connected(self) -> bool:
        return self._socket is not None and self._socket.connected

    @property
    def held(self) -> bool:
        """True if the node drains, so that nothing is sent to it."""
        return bool(self.draining) and not self.ignores_drain

    @property
    def away(self) -> float:
        """Seconds since the peer was last connected; 0 while it is."""
        return 0.0 if self.connected else clocks.steady() - self._away_since

    def add(self, route: NodeRoute) -> None:
        self.routes.append(route)
        route.draining = bool(self.draining)
        if self.connected:
            self._control.append(route.hello_frame())
            self.wake()

    def remove(self, route: NodeRoute) -> None:
        self.routes.remove(route)
        route.disconnected()

    @property
    def pending(self) -> int:
        """The number of events of all outboxes that were never sent."""
        events = 0
        for route in self.routes:
            events += route.outbox.pending
        return events

    def _taken_out(self) -> int:
        """The number of events that outboxes have taken from ``pending`` since the start."""
        events = 0
        for route in self.routes:
            events += route.outbox.taken_out
        return events

    def wake(self) -> None:
        if not self.awake:
            self.awake = True
            self._work.unpark()

    def send_soon(self) -> None:
        """Send a new event: at once if nothing else is being sent, otherwise as ``wake``.

        Sending here bypasses trio's scheduler for a single event.
        """
        quiet = self._unsent is None and not self._control and not self.held
        if quiet and self.connected and self._coalescer.rested(clocks.steady()):
            self._send()
            if self._unsent is None and not self.pending and self._time_due() is None:
                return
        self.wake()

    def hurry(self) -> None:
        self._hurry = True
        if not self.held:
            self._control += [route.ask() for route in self.routes if route.opened]
        self.wake()

    def finish(self) -> None:
        """Announce to the node that no more events will come, on any stream or in this life."""
        now_ms = int(clocks.wall() * 1000)
        for route in self.routes if not self.held else ():
            if route.ends:
                self._control.append(route.end_of_stream())
            else:
                route.outbox.latest.leave()
                self._control += route.time_frames(now_ms + _SECOND_MS)  # also right after another
        self._hurry = True
        self.wake()

    async def wait_quiet(self) -> None:
        """Wait until every frame that may leave has been given to the socket."""
        while self.connected and (
            self._unsent is not None
            or self._control
            or any(route.sendable.events for route in self.routes)
        ):
            await self._sent.park()

    async def wait_taken(self) -> None:
        """Wait until the node has taken every frame that has left."""
        self._asks = self.connected and not self.held
        if self._asks:
            self._control.append(_ARE_YOU_THERE)
            self.wake()
        while self._asks:
            await self._sent.park()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry until cancelled; events without a verdict stay in the outboxes."""
        self._socket = self._dialled.dial(self)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._socket.run)
                nursery.start_soon(self._warn)
                nursery.start_soon(self._read)
                nursery.start_soon(self._write)
        finally:
            await self._socket.close()
            self._socket = None

    def set_connected(self, connected: bool) -> None:
        if not connected and self._socket is not None:
            self._take(self._socket.receive_nowait())
        self._control.clear()
        self._unsent = None  # the routes resend it
        self._asks = False
        for route in self.routes:
            route.disconnected()
        if connected:
            self.draining = ""
            self._control += [
                route.hello_frame() for route in self.routes if not route.outbox.error
            ]
            self.wake()
            self._emitter.take_news()
        else:
            self._away_since = clocks.steady()
            if self.answers.disconnected():
                log.info("connection lost; dialling again", address=self.address)
            self._emitter.take_loss(self)
        self._sent.unpark_all()

    async def _warn(self) -> None:
        """Log once if the peer does not answer at the start."""
        await trio.sleep(_PATIENCE_SECONDS)
        if self.away >= _PATIENCE_SECONDS:
            log.warning("nothing answers at the address; dialling again", address=self.address)

    # -- in ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        assert self._socket is not None
        while True:
            await self._socket.wait_readable()
            data = self._socket.receive_nowait()
            if data is not None:
                self._take(data)
                self.wake()
                self._emitter.take_news()

    def _take(self, data: bytes | None) -> None:
        """Take an envelope, and all others that have arrived."""
        assert self._socket is not None
        while data is not None:
            for frame in self._dialled.frames(self._socket, data):
                self._take_frame(frame.header)
            data = self._socket.receive_nowait()

    def _take_frame(self, header: wire.Header) -> None:
        if isinstance(header, wire.Drain):
            self.draining = header.reason or "the node is stopping"
            for route in self.routes:
                route.draining = True
            self._control.append(wire.encode_frame(wire.Drain("stopped sending")))
            if self.last_drain != self.draining:  # not again at each connection
                self.last_drain = self.draining
                log.info(
                    "the node takes no more now; events that it has not taken wait for the next "
                    "connection",
                    address=self.address,
                    reason=self.draining,
                )
        elif isinstance(header, wire.Answer) and header.id == wire.NOTICE:
            log.warning("the node reads more slowly", address=self.address, reason=header.error)
        elif isinstance(header, wire.Answer):
            self._asks = False
            self._sent.unpark_all()
        elif isinstance(header, (wire.Hello, wire.Verdict)):
            if isinstance(header, wire.Verdict) and not header.stream:
                log.error("the node refused a frame", address=self.address, reason=header.error)
                for route in self.routes:
                    if route.outbox.answer is None:  # the hello was refused; no answer will come
                        route.outbox.error = route.outbox.error or header.error
            if isinstance(header, wire.Hello):
                answers = header.headers.get(wire.PRODUCER)
                for route in self._carried(header.stream, answers):
                    route.on_hello(header)
            else:
                for route in self._carried(header.stream, header.producer):
                    route.on_verdict(header)
                    self.last_drain = ""

    def _carried(self, stream: str, producer: object) -> list[NodeRoute]:
        return [
            route
            for route in self.routes
            if route.outbox.stream == stream and producer in (None, route.outbox.producer)
        ]

    # -- out ---------------------------------------------------------------------------------

    async def _write(self) -> None:
        assert self._socket is not None
        while True:
            if self._unsent is not None:
                await self._socket.wait_writable()
                if self._unsent is not None:  # the connection was not lost meanwhile
                    self._push()
                continue
            pause = self._pause()
            if pause == 0:
                self._send()
                await trio.lowlevel.checkpoint()
                continue
            self.awake = False
            with trio.move_on_after(math.inf if pause is None else pause):
                await self._work.park()
            self.awake = True

    def _pause(self) -> float | None:
        """Seconds until there is something to send; None if there is nothing."""
        if not self.connected:
            return None
        if self._control:
            return 0
        if self.held:
            return None
        for route in self.routes:
            if route.asks:
                return 0
        before = self._taken_out()
        sendable = together(route.sendable for route in self.routes)
        if self._taken_out() > before:
            self._emitter.take_news()  # events without a key were refused here, which made room
        time_due = self._time_due()
        if not sendable.events:
            self._hurry = False
            return time_due
        if self._hurry:
            return 0
        now = clocks.steady()
        pause = max(0.0, self._coalescer.due(sendable, now) - now)
        return pause if time_due is None else min(pause, time_due)

    def _time_due(self) -> float | None:
        """In how many seconds a time should be reported to the node; None if it need not."""
        due, now_ms = None, int(clocks.wall() * 1000)
        for route in self.routes:
            if route.outbox.latest.field is not None and not route.outbox.error:
                at = route.time_due(now_ms)
                due = at if due is None or (at is not None and at < due) else due
        return due

    def _send(self) -> None:
        """Make one envelope of the frames that may leave now, and send it if the socket is free."""
        before = self._taken_out()
        frames, self._control = self._control, []
        now_ms = int(clocks.wall() * 1000)
        room = _ENVELOPE_BYTES
        for route in self.routes:
            room = min(room, route.budget)
        for route in self.routes if not self.held else ():
            made = route.frames(room, now_ms) if room > 0 else []
            frames += made
            room -= sum(map(len, made))
            if route.outbox.latest.field is not None and not route.outbox.error:
                frames += route.time_frames(now_ms)
        for route in self.routes:
            if route.outbox.warning is not None:
                self._warn_of_one_lane(route.outbox)
        left = self._taken_out() - before
        if frames:
            self._coalescer.flushed(left, clocks.steady())
            self._unsent = wire.envelope(frames)
            self._push()
        if left:
            self._emitter.take_news()  # there is room for waiting senders

    def _warn_of_one_lane(self, outbox: Outbox) -> None:
        why, outbox.warning = outbox.warning, None
        assert why is not None
        log.warning(
            "all events of a stream go to one partition, whose node sends each of them on, "
            "because the input's key cannot be found here; this is slower",
            stream=outbox.stream,
            key=why.key,
            input_routing=why.routing,
            fix="make the input's key the name of an attribute, or give the KeyFinders of "
            "both sides the same name",
        )

    def _push(self) -> None:
        """Give the waiting envelope to the socket, if it accepts it."""
        assert self._socket is not None
        assert self._unsent is not None
        try:
            if not self._socket.send_nowait(self._unsent):
                return
        except StageBroken:
            log.warning("sending failed; events without a verdict are resent", address=self.address)
        self._unsent = None
        self._sent.unpark_all()
