"""The listener of a node: accepts peers, reads their envelopes, and sends their verdicts.

Rules
- Each connection has a trio task: await readiness once, take frames for a bounded time (a slice),
  repeat. What is left of an envelope is taken in the next slice of its connection.
- Connections that send much stand in one line for their slices (:mod:`s4node.net.ingress.slices`).
- The handler decides about frames. A bad frame is counted, answered and dropped here; the peer
  stays connected. An error of the handler ends the connection, and no other one.
- A warning that peers can cause is written once a minute for each host.
- A connection that does not speak nng's protocol within the timeout, or breaks it, is closed.
"""

from __future__ import annotations

import errno
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import trio

from s4node import clocks
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, RemoteFrameError, StageBroken
from s4node.logger import get_logger
from s4node.net.certificates.credentials import SCHEME
from s4node.net.ingress.connection import Connection, Peers, Waker, drain_envelope
from s4node.net.ingress.peer_rights import refusal
from s4node.net.ingress.producer_lane import Effects
from s4node.net.ingress.served_address import serving_credentials
from s4node.net.ingress.slices import MOST_SECONDS, Slices
from s4node.net.transport import network
from s4node.net.transport.network import Caller, Place
from s4node.net.transport.pair_socket import host_and_port
from s4node.net.wire import frame as wire

log = get_logger("s4node.net")

_RETRY_SECONDS = 0.005
_SILENT_SECONDS = 1.0
_LOOK_SECONDS = 1.0


class FrameHandler(Protocol):
    @property
    def held(self) -> bool:
        """True while nothing is to be read."""
        ...

    def on_frame(self, frame: wire.Frame, connection: Connection) -> None: ...

    def on_drained(self) -> None:
        """Called after ``on_frame`` has got all frames that had arrived on a connection."""
        ...

    def on_gone(self, connection: Connection) -> bool:
        """Called when a connection has ended, and again as long as this returns True."""
        ...


def no_log(query: wire.Query) -> bytes:
    error = (
        "this node has no log; start it with the setting s4.log.folder, or ask the node that has "
        "the log"
    )
    return wire.encode_frame(wire.Answer(query.id, {}, error, {wire.FAULT: "UnknownStream"}))


class Listener:
    """The configured listener; its frames go to ``handler``.

    Once it listens, ``address`` is the address for others: with the actual port, and the host
    that it advertises, which may have another port. ``effects`` are those of its peers' lanes.
    ``waker`` wakes its owner, who calls :meth:`send_due`.
    """

    def __init__(
        self,
        config: Config,
        handler: FrameHandler,
    ) -> None:
        self.address = config[settings.LISTENER_ADDRESS]
        self.connections: dict[Connection, None] = {}
        self.effects = Effects()
        self._handler = handler
        self._credentials = serving_credentials(config)
        self._cluster = config[settings.CLUSTER_NAME]
        self.waker = Waker()
        self._peers = Peers(config, self._credentials, self.waker)
        self.counts = self._peers.counts
        self._is_open = config[settings.ACCESS] == "open"
        self._advertise = config[settings.LISTENER_ADVERTISE]
        self._ports = config[settings.LISTENER_PORTS]
        self._max_envelope = config[settings.LISTENER_MAX_ENVELOPE_BYTES]
        self._max_frame = config[settings.LISTENER_MAX_FRAME_BYTES]
        self._max_events = self._peers.limits.frame_events
        self._max_connections = config[settings.LISTENER_MAX_CONNECTIONS]
        self._handshake = config[settings.COMM_TIMEOUT]
        self._hosts: Counter[str] = Counter()
        self._news = self._peers.news
        self._accepting = trio.CancelScope()
        self._slices = Slices()
        self._line = trio.CapacityLimiter(1)  # busy connections, in the order in which they come

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and serve peers until cancelled; ready once the socket listens."""
        places = await self._listen()
        self.address = self._address_for_others(places[0].port)
        async with trio.open_nursery() as nursery:
            try:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for place in places:
                            accepting.start_soon(self._accept, place, nursery)
                        nursery.start_soon(self._end_stalled)
                        task_status.started()
            finally:
                for place in places:
                    place.close()
            await trio.sleep_forever()  # peers stay until this is cancelled

    def _check_open(self) -> None:
        """Raise ConfigError unless other machines may connect without certificates."""
        if not self._is_open:
            raise ConfigError(
                f"other machines reach s4.listener.address = {self.address!r}, and nobody there "
                f"would need a certificate; use tls+tcp:// with s4.tls.certificate (see s4 certs), "
                f"or set s4.access = open: then any program that reaches the address may read, "
                f"send and delete everything under any name, and nothing is encrypted"
            )
        log.warning(
            "s4.access is open: any program that reaches this address may read, send and delete "
            "everything under any name, and nothing is encrypted",
            address=self.address,
        )

    async def _listen(self) -> Sequence[Place]:
        host, port = host_and_port(self.address)
        if self._credentials is None and not network.current.is_private(host):
            self._check_open()
        for each in self._ports if port == 0 and self._ports else (port,):
            try:
                return await network.current.listen(host, each, self._credentials)
            except OSError as error:
                failure = error
                if error.errno != errno.EADDRINUSE:
                    break
        taken = failure.errno == errno.EADDRINUSE
        if taken and port == 0 and self._ports:
            raise ConfigError(
                f"all ports of s4.listener.ports = {self._ports[0]}-{self._ports[-1]} are taken on "
                f"{host}; give it more"
            )
        hint = "is another node running there? " if taken else ""
        raise ConfigError(
            f"cannot listen on {self.address}: {failure.strerror or failure}; {hint}choose another "
            f"s4.listener.address"
        ) from failure

    def _address_for_others(self, actual: int) -> str:
        host, port = host_and_port(self.address)
        scheme = "tcp" if self._credentials is None else SCHEME
        if not self._advertise:
            return f"{scheme}://[{host}]:{actual}" if ":" in host else f"{scheme}://{host}:{actual}"
        _, colon, other = self._advertise.rpartition("]")[2].rpartition(":")
        name = self._advertise.removesuffix(f":{other}") if colon else self._advertise
        return f"{scheme}://{name}:{other if colon and port else actual}"

    def stop_accepting(self) -> None:
        """Accept no further peers; connected ones stay."""
        self._accepting.cancel()

    def broadcast(self, frame: bytes) -> None:
        for connection in self.connections:
            connection.answer(frame)

    def send_due(self, now: float) -> float | None:
        """Send what is due to all peers; return when to call again, or None."""
        if self.effects.answers:
            self._add_answers(now)
        earliest: float | None = None
        for connection in list(self._news):
            due = connection.send_due(now)
            if due is None:
                self._news.pop(connection, None)
            elif earliest is None or due < earliest:
                earliest = due
        return earliest

    def _add_answers(self, now: float) -> None:
        """Give the lanes that are to be answered to their connections."""
        answers = self.effects.answers
        for lane in answers:
            if isinstance(lane.connection, Connection):  # else the producer is away
                lane.connection.add(lane, now)
                self._news[lane.connection] = None
        answers.clear()

    async def send_answers(self) -> None:
        """Give all remaining verdicts to the sockets."""
        async with trio.open_nursery() as nursery:
            for connection in self.connections:
                if connection.live:
                    nursery.start_soon(self._send_answers, connection)

    async def _send_answers(self, connection: Connection) -> None:
        assert connection.socket is not None
        self._add_answers(trio.current_time())
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
        await self._send_answers(connection)
        with suppress(trio.ClosedResourceError):
            await connection.silent.wait()
            await connection.socket.wait_writable()

    async def _accept(self, place: Place, nursery: trio.Nursery) -> None:
        while True:
            try:
                caller = await place.accept()
            except OSError as error:
                self._peers.warn("accepting a connection failed", error=str(error))
                await trio.sleep(0.1)  # out of file descriptors: let others end
                continue
            if caller is None:
                continue
            if problem := self._full(caller.name.rpartition(":")[0]):
                self.counts["connections refused"] += 1
                self._peers.warn("too many connections; refused", caller.name, reason=problem)
                caller.turn_away(drain_envelope(problem))
                continue
            nursery.start_soon(self._serve_peer, caller)

    def _full(self, host: str) -> str:
        """The reason to take no further peer of a host; empty if there is room, or it was made."""
        half_open = self._peers.limits.half_open_per_host
        if self._peers.half_open[host] >= half_open:
            return f"{half_open} connections from {host} have not finished a handshake"
        per_host = int(
            self._peers.limits.connections_per_host * max(1, self._max_connections / 1024)
        )
        own = self._hosts[host] >= per_host
        if not own and len(self.connections) < self._max_connections:
            return ""
        silent = min(
            (each for each in self.connections if each.host == host or not own),
            key=lambda each: (each.spoke, each.last_received),
        )
        if not silent.spoke or silent.last_received < clocks.steady() - _SILENT_SECONDS:
            what = "is silent for longest" if silent.spoke else "has sent nothing"
            silent.end_because(f"it {what}, and others want to connect")
            return ""
        if own:
            return f"the node has {per_host} connections from {host}"
        return f"the node has {self._max_connections} connections (s4.listener.maxConnections)"

    async def _end_stalled(self) -> None:
        """End connections on which nothing goes on."""
        while True:
            await trio.sleep(min(_LOOK_SECONDS, self._peers.patience / 8))
            now = trio.current_time()
            if self._credentials is not None:
                self._credentials.refresh()
            for connection in list(self.connections):
                reason = connection.stalled(now)
                if not reason and connection.holder is not None:
                    reason = self._peers.unwelcome(connection.holder)
                if reason:
                    connection.end_because(reason)

    async def _serve_peer(self, caller: Caller) -> None:
        peer = caller.name
        connection = Connection(self._peers, peer, self.counts["connections"])
        try:
            connection.socket = caller.make_pipe(self._max_envelope, connection)
        except StageBroken as error:
            self.counts["connections refused"] += 1
            self._peers.warn("a connection cannot be taken; closed", peer, error=str(error))
            return
        self.connections[connection] = None
        connection.half_open = self._credentials is not None
        self._peers.half_open[connection.host] += connection.half_open
        self._slices.add(connection, clocks.steady())
        self.counts["connections"] += 1
        self._hosts[connection.host] += 1
        try:
            with connection.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connection.send_rest)
                    await self._read(connection)
                    nursery.cancel_scope.cancel()
        finally:
            self.connections.pop(connection, None)
            self._news.pop(connection, None)
            self._slices.remove(connection)
            self._peers.shaken(connection)
            self._hosts[connection.host] -= 1
            if not self._hosts[connection.host]:
                del self._hosts[connection.host], self._peers.half_open[connection.host]
            connection.scope.cancel()
            self._peers.count_use(connection)
            with trio.CancelScope(shield=True):
                while self._handler.on_gone(connection):  # a piece at a time
                    await trio.lowlevel.checkpoint()
            await connection.socket.close()

    async def _read(self, connection: Connection) -> None:
        """Take what a peer sends until its connection ends."""
        assert connection.socket is not None
        with trio.move_on_after(self._handshake) as patience:
            until = patience.deadline
            while not connection.ended.is_set():
                if connection.frames is None:
                    await connection.socket.wait_readable()
                    patience.deadline = math.inf  # it has said something, or has gone
                else:
                    await trio.lowlevel.checkpoint()
                while self._handler.held:  # noqa: ASYNC110 - rare, and short
                    await trio.sleep(_RETRY_SECONDS)
                if connection.congested:
                    await connection.wait_clear()
                if len(self.connections) > 1 and self._slices.in_line(connection):
                    async with self._line:
                        taken = self._drain(connection)
                        self._slices.line_ended(self._line.statistics().tasks_waiting)
                    self._line.total_tokens = self._slices.at_once
                else:
                    taken = self._drain(connection)
                waiting = connection.envelope_bytes
                waiting += connection.socket.unfinished + connection.socket.untaken
                if waiting != connection.waiting_bytes:
                    connection.waiting_bytes = waiting
                    self._peers.count_use(connection)
                if not connection.arrived.is_set():
                    patience.deadline = until
                if taken:
                    self._handler.on_drained()
        if patience.cancelled_caught or connection.socket.fault:
            self.counts["strangers"] += 1
            reason = connection.socket.fault or "it said nothing"
            self._peers.warn(
                "a peer does not speak the protocol; closed", connection.peer, reason=reason
            )

    def _drain(self, connection: Connection) -> bool:
        """Handle the frames that have arrived, up to a bound; return False if there are none."""
        assert connection.socket is not None
        began = clocks.steady()
        shared = len(self.connections) > 1
        until = began + (self._slices.most if shared else MOST_SECONDS)
        limit = self._max_events
        taken = connection.frames is not None
        try:
            while True:
                now, empty = 0.0, connection.frames is None
                try:
                    if connection.frames is None:
                        data = connection.socket.receive_nowait()
                        if data is None:
                            return taken
                        taken, connection.last_received = True, until
                        connection.envelope_bytes = len(data)
                        connection.frames = wire.read_envelope(data, self._max_frame)
                    for frame in connection.frames:
                        empty = False
                        header = frame.header
                        if isinstance(frame, wire.BadFrame):
                            connection.bad_frame(frame.reason, header, frame.size)
                        elif isinstance(header, wire.Data) and header.count > limit:
                            connection.bad_frame(
                                f"a frame of {header.count} events is over the limit of {limit}; "
                                f"send it in parts",
                                header,
                            )
                        else:
                            connection.spoke = True
                            if isinstance(header, wire.Hello):
                                connection.count_hello(frame.size)
                            elif isinstance(header, wire.Query):  # which may have events in it
                                connection.count_hello()
                            holder = connection.holder
                            if holder and (problem := refusal(holder, self._cluster, frame.header)):
                                connection.refuse(frame.header, problem)
                            else:
                                self._handler.on_frame(frame, connection)
                        now = clocks.steady()
                        if now >= until or connection.congested:
                            return True
                    if empty:
                        connection.bad_frame("an envelope has at least one frame")
                except RemoteFrameError as error:
                    connection.bad_frame(str(error))
                connection.frames, connection.envelope_bytes = None, 0
                # no frames take time, too
                if connection.congested or (now or clocks.steady()) >= until:
                    return True
        except Exception as error:
            connection.fail(error)
            return True
        finally:
            if shared:
                self._slices.ended(connection, began, clocks.steady(), connection.socket.unfinished)
