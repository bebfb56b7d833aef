"""The listener of a node: accepts peers, reads their envelopes, and sends their verdicts.

Rules
- Each connection has a trio task: await readiness once, read a bounded number of envelopes, repeat.
- The handler decides about frames. A bad frame is counted, answered and dropped here; the peer
  stays connected.
- A warning that peers can cause is written once a minute for each host.
- Verdicts are cumulative, so a verdict that a busy socket does not accept is made anew later: a
  peer that never reads costs only its socket.
- A connection that does not speak nng's protocol within the timeout is closed.
"""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Protocol

import trio

from s4node import clocks
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, RemoteFrameError, StageBroken
from s4node.logger import get_logger
from s4node.net.ingress.producer_lane import LaneOwner, ProducerLane
from s4node.net.transport import network
from s4node.net.transport.log_throttle import LogThrottle
from s4node.net.transport.network import Caller, Pipe, Place
from s4node.net.transport.pair_socket import host_and_port
from s4node.net.wire import frame as wire

log = get_logger("s4node.net")

_DRAIN_SECONDS = 0.002
_MAX_ANSWER_BYTES = 4 << 20
_VERDICT_BYTES = 1 << 20
_RETRY_SECONDS = 0.005
_WARNING_SECONDS = 60.0


class FrameHandler(Protocol):
    """Takes the frames of a listener."""

    def on_frame(self, frame: wire.Frame, connection: Connection) -> None:
        """Take a frame of a peer."""
        ...

    def on_drained(self) -> None:
        """Called after ``on_frame`` has got all frames that had arrived on a connection."""
        ...

    def on_gone(self, connection: Connection) -> None:
        """Called when a connection has ended."""
        ...


def no_log(query: wire.Query) -> bytes:
    """The answer of a node that has no log."""
    error = (
        "this node has no log; start it with the setting s4.log.folder, or ask the node that has "
        "the log"
    )
    return wire.encode_frame(wire.Answer(query.id, {}, error, {wire.FAULT: "UnknownStream"}))


class Connection:
    """A node's connection to one peer."""

    def __init__(self, listener: Listener, peer: str, serial: int) -> None:
        self.peer = peer
        self.serial = serial  # rises with each connection
        self.socket: Pipe | None = None
        self.incarnation = ""  # of the process at the other end
        self.dirty: dict[ProducerLane, None] = {}
        self.pressing: dict[ProducerLane, None] = {}
        self.due = 0.0
        self.answers: deque[bytes] = deque()
        self._answer_bytes = 0
        self.arrived = trio.Event()
        self.ended = trio.Event()
        self.silent = trio.Event()
        self._listener = listener

    def notify(self, lane: ProducerLane) -> None:
        """Have the lane's producer told something."""
        if lane.pressing:
            self.pressing[lane] = None
            self._listener.has_news(self)
        elif not self.dirty:
            self.due = trio.current_time() + self._listener.verdict_delay
            self._listener.has_news(self)
        self.dirty[lane] = None

    def answer(self, frame: bytes) -> None:
        """Send a frame soon, before any verdict."""
        if self._answer_bytes > _MAX_ANSWER_BYTES:
            return  # the peer asks without reading
        self._answer_bytes += len(frame)
        self.answers.append(frame)
        self._listener.has_news(self)

    def outdated(self, before: object, producer: str) -> str:
        """Why a producer may not open a stream here, after the connection ``before``; else empty.

        For tasks, the later owner counts, which may have the older connection: see admission.
        """
        if isinstance(before, Connection) and before.serial > self.serial:
            return f"producer {producer!r} has a newer connection; this one is out of date"
        return ""

    def takes_over(self, before: object, hello: wire.Hello) -> None:
        """Tell the connection ``before`` that its producer has opened the stream here."""
        self.incarnation = hello.incarnation
        if not isinstance(before, Connection) or before is self:
            return
        if hello.incarnation and before.incarnation == hello.incarnation:
            return  # the same process, through another of our addresses
        if hello.peer.startswith(wire.TASK):
            return  # its former owner cannot commit, and may be its next owner by now
        reason = (
            f"producer {hello.peer!r} has connected again from {self.peer}; give each client a "
            f"producer id of its own"
        )
        before.answer(wire.encode_frame(wire.Verdict(hello.stream, hello.peer, error=reason)))

    def bad_frame(self, reason: str, header: wire.Header | None = None) -> None:
        """Count, log and answer a bad frame.

        The answer names the stream and producer of a data frame whose header could be read.
        """
        self._listener.counts["bad frames"] += 1
        self._listener.warn("bad frame", self.peer, reason=reason)
        whose = (header.stream, header.producer) if isinstance(header, wire.Data) else ("", "")
        self.answer(wire.encode_frame(wire.Verdict(*whose, error=reason)))

    def send_due(self, now: float) -> float | None:
        """Send what is due; return when to call again, or None if nothing is left.

        Pressing lanes go at once, the others together after the delay.
        """
        delay_over = bool(self.dirty) and now >= self.due
        lanes = self._own(self.dirty if delay_over else self.pressing)
        if not lanes and not self.answers:
            return self.due if self.dirty else None
        verdicts, count = self._verdicts(lanes)
        told, later = lanes[:count], lanes[count:]
        self.pressing |= dict.fromkeys(later)  # they go with the next envelope
        if not self._send([*self.answers, *verdicts]):
            for lane in told:
                lane.not_told()
            return now + _RETRY_SECONDS
        self.answers.clear()
        self._answer_bytes = 0
        for lane in told:
            if not lane.urgent:
                self._let_go(lane)
        if self.pressing:
            return now
        return self.due if self.dirty else None

    def _own(self, lanes: Iterable[ProducerLane]) -> list[ProducerLane]:
        """The lanes whose producers have not reconnected; the others are forgotten here."""
        own = []
        for lane in list(lanes):
            if lane.connection is self:
                own.append(lane)
            else:
                self._let_go(lane)
        return own

    def _let_go(self, lane: ProducerLane) -> None:
        """Forget a lane that has nothing to report now."""
        self.dirty.pop(lane, None)
        self.pressing.pop(lane, None)

    def _verdicts(self, lanes: Sequence[ProducerLane]) -> tuple[list[bytes], int]:
        """Verdicts for one envelope, one frame for each producer, and how many lanes it covers."""
        owners: dict[str, LaneOwner] = {}
        by_producer: dict[tuple[str, str], list[wire.Ruling]] = {}
        count = size = 0
        for lane in lanes:
            ruling = lane.ruling()
            owners[lane.admission.stream] = lane.admission
            by_producer.setdefault((lane.admission.stream, lane.producer), []).append(ruling)
            count += 1
            size += 64 + sum(32 + len(reason) for _, _, reason in ruling.exceptions)
            if size > _VERDICT_BYTES:
                break
        frames = []
        for (stream, producer), rulings in by_producer.items():
            headers = {}
            if producer.startswith(wire.TASK):
                cuts = owners[stream].cuts_of(ruling.partition for ruling in rulings)
                headers = {wire.SAVEPOINT: cuts} if cuts else {}
            verdict = wire.Verdict(stream, producer, tuple(rulings), headers=headers)
            frames.append(wire.encode_frame(verdict))
        return frames, count

    def _send(self, frames: list[bytes]) -> bool:
        assert self.socket is not None
        try:
            return self.socket.send_nowait(wire.envelope(frames))
        except StageBroken:
            return False

    @property
    def live(self) -> bool:
        """True if the peer is connected now."""
        return self.arrived.is_set() and not self.ended.is_set()

    def set_connected(self, connected: bool) -> None:
        """Note that the peer has connected or gone."""
        (self.arrived if connected else self.ended).set()
        if not connected:
            self.silent.set()


def check_reachable(config: Config) -> None:
    """Raise ConfigError if others would be told an address that they cannot connect to."""
    address = config[settings.LISTENER_ADDRESS]
    host, _ = host_and_port(address)
    with suppress(ValueError):  # for a host name
        if ip_address(host).is_unspecified and not config[settings.LISTENER_ADVERTISE]:
            raise ConfigError(
                f"s4.listener.address = {address!r} means all interfaces of this machine, but "
                f"other nodes need a host to connect to; set s4.listener.advertise to its name"
            )


class Listener:
    """Listens on ``address``; port 0 takes any free one.

    Once it listens, ``address`` is the address for others: with the actual port, and the host
    ``advertise`` if given. Nothing is read while ``held`` returns True.
    """

    def __init__(
        self,
        address: str,
        handler: FrameHandler,
        *,
        advertise: str = "",
        max_envelope_bytes: int,
        max_frame_bytes: int,
        max_connections: int,
        handshake_seconds: float,
        verdict_delay: float,
        nudge: Callable[[], None],
        held: Callable[[], bool] | None = None,
    ) -> None:
        self.address = address
        self.counts: Counter[str] = Counter()
        self.connections: dict[Connection, None] = {}
        self._handler = handler
        self._advertise = advertise.strip("[]")
        self._max_envelope = max_envelope_bytes
        self._max_frame = max_frame_bytes
        self._max_connections = max_connections
        self._handshake = handshake_seconds
        self.verdict_delay = verdict_delay
        self._nudge = nudge
        self._held = held
        self._news: dict[Connection, None] = {}
        self._seldom = LogThrottle(_WARNING_SECONDS)
        self._accepting = trio.CancelScope()

    @classmethod
    def configured(
        cls,
        config: Config,
        handler: FrameHandler,
        nudge: Callable[[], None],
        held: Callable[[], bool] | None = None,
    ) -> Listener:
        """Make the configured listener."""
        return cls(
            config[settings.LISTENER_ADDRESS],
            handler,
            advertise=config[settings.LISTENER_ADVERTISE],
            max_envelope_bytes=config[settings.LISTENER_MAX_ENVELOPE_BYTES],
            max_frame_bytes=config[settings.LISTENER_MAX_FRAME_BYTES],
            max_connections=config[settings.LISTENER_MAX_CONNECTIONS],
            handshake_seconds=config[settings.COMM_TIMEOUT],
            verdict_delay=config[settings.COMM_VERDICT_DELAY],
            nudge=nudge,
            held=held,
        )

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and serve peers until cancelled; ready once the socket listens."""
        host, port = host_and_port(self.address)
        try:
            places = await network.current.listen(host, port)
        except OSError as error:
            hint = "is another node running there? " if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(
                f"cannot listen on {self.address}: {error.strerror or error}; {hint}choose another "
                f"s4.listener.address"
            ) from error
        actual = places[0].port
        host = self._advertise or host
        self.address = f"tcp://[{host}]:{actual}" if ":" in host else f"tcp://{host}:{actual}"
        async with trio.open_nursery() as nursery:
            try:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for place in places:
                            accepting.start_soon(self._accept, place, nursery)
                        task_status.started()
            finally:
                for place in places:
                    place.close()
            await trio.sleep_forever()  # peers stay until this is cancelled

    def stop_accepting(self) -> None:
        """Accept no further peers; connected ones stay."""
        self._accepting.cancel()

    def broadcast(self, frame: bytes) -> None:
        """Send a frame to all peers."""
        for connection in self.connections:
            connection.answer(frame)

    def warn(self, event: str, peer: str = "", **facts: object) -> None:
        """Log a warning caused by a peer (``host:port``), at most once a minute for its host."""
        left_out = self._seldom.left_out((event, peer.rpartition(":")[0]), clocks.steady())
        if left_out is None:
            return
        if peer:
            facts = {"peer": peer, **facts}
        if left_out:
            facts["left_out"] = left_out  # since the line before
        log.warning(event, **facts)

    def has_news(self, connection: Connection) -> None:
        """Have the next flush send the connection's news."""
        if connection not in self._news:
            self._news[connection] = None
        self._nudge()

    def send_due(self, now: float) -> float | None:
        """Send what is due to all peers; return when to call again, or None."""
        earliest: float | None = None
        for connection in list(self._news):
            due = connection.send_due(now)
            if due is None:
                self._news.pop(connection, None)
            elif earliest is None or due < earliest:
                earliest = due
        return earliest

    async def tell(self) -> None:
        """Give all remaining verdicts to the sockets."""
        async with trio.open_nursery() as nursery:
            for connection in self.connections:
                if connection.live:
                    nursery.start_soon(self._tell, connection)

    async def _tell(self, connection: Connection) -> None:
        assert connection.socket is not None
        with suppress(trio.ClosedResourceError):
            while connection.send_due(float("inf")) is not None:
                await connection.socket.wait_writable()

    async def shut_down(self) -> None:
        """Send all remaining verdicts, and wait until the peers have stopped sending.

        Closing a connection with unread bytes would reset it, and lose the verdicts.
        """
        async with trio.open_nursery() as nursery:
            for connection in self.connections:
                if connection.live:
                    nursery.start_soon(self._shut_down, connection)

    async def _shut_down(self, connection: Connection) -> None:
        assert connection.socket is not None
        await self._tell(connection)
        with suppress(trio.ClosedResourceError):
            await connection.silent.wait()
            await connection.socket.wait_writable()

    async def _accept(self, place: Place, nursery: trio.Nursery) -> None:
        while True:
            try:
                caller = await place.accept()
            except OSError as error:
                self.warn("accepting a connection failed", error=str(error))
                await trio.sleep(0.1)  # out of file descriptors: let others end
                continue
            if caller is None:
                continue
            if len(self.connections) >= self._max_connections:
                self.counts["connections refused"] += 1
                self.warn("too many connections; refused", caller.name, limit=self._max_connections)
                caller.close()
                continue
            nursery.start_soon(self._serve_peer, caller)

    async def _serve_peer(self, caller: Caller) -> None:
        peer = caller.name
        connection = Connection(self, peer, self.counts["connections"])
        try:
            connection.socket = caller.make_pipe(self._max_envelope, connection.set_connected)
        except StageBroken as error:
            self.counts["connections refused"] += 1
            self.warn("a connection cannot be taken; closed", peer, error=str(error))
            return
        self.connections[connection] = None
        self.counts["connections"] += 1
        try:
            with trio.move_on_after(self._handshake) as patience:
                await connection.arrived.wait()
            if patience.cancelled_caught:
                self.counts["strangers"] += 1
                self.warn("a peer does not speak the protocol; closed", peer)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, connection)
                await connection.ended.wait()
                if self._held is None or not self._held():
                    self._drain(connection)  # frames that arrived before the end
                    self._handler.on_drained()
                nursery.cancel_scope.cancel()
        except* trio.ClosedResourceError:
            pass
        finally:
            self.connections.pop(connection, None)
            self._news.pop(connection, None)
            self._handler.on_gone(connection)
            await connection.socket.close()

    async def _read(self, connection: Connection) -> None:
        assert connection.socket is not None
        while True:
            await connection.socket.wait_readable()
            while self._held is not None and self._held():  # noqa: ASYNC110 - it is rare, and short
                await trio.sleep(_RETRY_SECONDS)
            self._drain(connection)
            self._handler.on_drained()

    def _drain(self, connection: Connection) -> None:
        """Handle the envelopes that have arrived, up to a bound."""
        assert connection.socket is not None
        until = clocks.steady() + _DRAIN_SECONDS
        while clocks.steady() < until:
            data = connection.socket.receive_nowait()
            if data is None:
                return
            try:
                for frame in wire.read_envelope(data, self._max_frame):
                    if isinstance(frame, wire.BadFrame):
                        connection.bad_frame(frame.reason, frame.header)
                    else:
                        self._handler.on_frame(frame, connection)
            except RemoteFrameError as error:
                connection.bad_frame(str(error))
