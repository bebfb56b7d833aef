"""A node's connection to one peer: what it sends, and what it takes up.

Rules
- Verdicts are cumulative, so a verdict that a busy socket does not accept is made anew later: a
  peer that never reads costs only its socket.
- From a peer that does not read its answers, or says hello too often, nothing more is read for a
  while.
- A connection that is ended gets the reason, in a drain: its peer keeps its events and may come
  again.
- Whatever goes wrong while a peer is answered ends its connection only.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from traceback import format_exception

import trio

from s4node import clocks
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConnectionRefused, StageBroken
from s4node.events.type_declaration import size_of
from s4node.log_throttle import LogThrottle
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials
from s4node.net.certificates.identity import Holder
from s4node.net.ingress import peer_limits
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.peer_limits import Budget, Rate
from s4node.net.ingress.peer_rights import unwelcome
from s4node.net.ingress.producer_lane import ProducerLane, cuts_of
from s4node.net.transport.network import AcceptedPipe
from s4node.net.wire import frame as wire

log = get_logger("s4node.net")

_WARNING_SECONDS = 60.0
_MAX_ANSWER_BYTES = 4 << 20
_VERDICT_BYTES = 1 << 20
_RETRY_SECONDS = 0.005
VERDICT_SECONDS = 0.2
"""How long a verdict may wait to be sent with others. One that a producer waits for, or that
returns a quarter of its credit, never waits."""
_COUNTED_BYTES = 1024
"""The bytes of a header for which it counts once more among the hellos of a second."""


class Waker:
    """Wakes the task that sends what is due; during its turn it only has to look again."""

    def __init__(self) -> None:
        self.nudged = False
        self.turning = False
        self.lot = trio.lowlevel.ParkingLot()

    def nudge(self) -> None:
        """Have what is due sent soon."""
        self.nudged = True
        if not self.turning:
            self.lot.unpark_all()

    async def sleep_until(self, due: float | None) -> None:
        with trio.move_on_at(math.inf if due is None else due):
            await self.lot.park()


class Peers:
    """The limits, counts and log that the connections of a listener share."""

    def __init__(
        self,
        config: Config,
        credentials: Credentials | None,
        waker: Waker,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.patience = config[settings.LISTENER_PATIENCE]
        self.verdict_delay = VERDICT_SECONDS
        self.limits = limits = peer_limits.LIMITS
        self.hellos = Rate(limits.all_hellos_per_second, 0.25)
        self.half_open: Counter[str] = Counter()  # by host
        self.news: dict[Connection, None] = {}  # with something to send
        self.waker = waker
        self._bytes: Budget[Connection] = Budget(limits.bytes)
        self._lanes: Budget[Connection] = Budget(limits.lanes)
        self._credentials = credentials
        self._cluster = config[settings.CLUSTER_NAME]
        self._throttle = LogThrottle(_WARNING_SECONDS)

    def count_use(self, connection: Connection) -> None:
        """Count what a connection takes up; end those that take most, beyond the budgets."""
        ended = connection.scope.cancel_called
        held = connection.unread_bytes + connection.waiting_bytes + connection.type_bytes
        self._bytes.set(connection, 0 if ended else held)
        self._lanes.set(connection, 0 if ended else connection.lanes)
        while (largest := self._bytes.largest()) is not None:
            largest.end_because(largest.main_use())
        while (largest := self._lanes.largest()) is not None:
            largest.end_because("it has more lanes than others, and the node has too many")

    def shaken(self, connection: Connection) -> None:
        """Note that a connection's handshake of TLS is over, or the connection is."""
        self.half_open[connection.host] -= connection.half_open
        connection.half_open = False

    def unwelcome(self, peer: Holder) -> str:
        """The reason why a peer is not served, or no longer; empty if it is."""
        assert self._credentials is not None
        return unwelcome(peer, self._cluster) or self._credentials.refusal(peer)

    def warn(self, event: str, peer: str = "", **facts: object) -> None:
        """Log a warning caused by a peer (``host:port``), at most once a minute for its host."""
        left_out = self._throttle.left_out((event, peer.rpartition(":")[0]), clocks.steady())
        if left_out is None:
            return
        if peer:
            facts = {"peer": peer, **facts}
        if left_out:
            facts["left_out"] = left_out  # since the line before
        log.warning(event, **facts)


class Connection:
    def __init__(self, peers: Peers, peer: str, serial: int) -> None:
        self.peer = peer
        self.serial = serial  # rises with each connection
        self.socket: AcceptedPipe | None = None
        self.frames: Iterator[wire.Frame | wire.BadFrame] | None = None
        """The rest of the last envelope, which has ``envelope_bytes``."""
        self.envelope_bytes = 0
        self.incarnation = ""  # of the process at the other end
        self.dirty: dict[ProducerLane, None] = {}
        self.pressing: dict[ProducerLane, None] = {}
        self.due = 0.0
        self.answers: deque[bytes] = deque()
        self._answer_bytes = 0
        self.arrived = trio.Event()
        self.ended = trio.Event()
        self.silent = trio.Event()
        self.scope = trio.CancelScope()
        self.half_open = False  # its handshake of TLS goes on
        self.spoke = False  # a good frame has come
        self.last_received = clocks.steady()  # when it has sent something last, about
        self.congested = False  # nothing more is read for now
        self._peers = peers
        self._hellos = Rate(peers.limits.hellos_per_second)
        self._lanes: dict[tuple[str, str], int] = {}  # by stream and producer
        self.lanes = 0  # of all
        self.unread_bytes = 0  # of answers
        self.waiting_bytes = 0  # of messages that are unfinished or not handled
        self.type_bytes = 0  # of declared types
        self._slowed_for: set[str] = set()  # why it is read more slowly
        self.holder: Holder | None = None
        """Who the peer is, by its certificate; None if peers need none."""
        self._progress: tuple[object, float] = (None, 0.0)

    def add(self, lane: ProducerLane, now: float) -> None:
        """Have the lane's producer answered, at once or with others."""
        if lane.pressing:
            self.pressing[lane] = None
        elif not self.dirty:
            self.due = now + self._peers.verdict_delay
        self.dirty[lane] = None

    def answer(self, frame: bytes) -> None:
        """Send a frame soon, before any verdict."""
        if self._answer_bytes > _MAX_ANSWER_BYTES:
            return  # the peer asks without reading
        self._answer_bytes += len(frame)
        self.answers.append(frame)
        self._count_unread()
        self._peers.news[self] = None
        self._peers.waker.nudge()

    def outdated(self, hello: wire.Hello, admission: StreamAdmission) -> str:
        """The reason to refuse a producer that has a newer connection; else empty.

        For tasks, the later owner counts, which may have the older connection: see admission.
        """
        before = admission.connection_of(hello.peer)
        newer = isinstance(before, Connection) and before.serial > self.serial
        if not newer or admission.is_later(hello):
            return ""
        return f"producer {hello.peer!r} has a newer connection; this one is out of date"

    def problem(self, hello: wire.Hello, admission: StreamAdmission) -> str:
        """The reason to refuse a producer here, whatever the stream says; else empty."""
        others = admission.beside(hello.peer, self)
        old = self.outdated(hello, admission)
        return old or self.refusal(hello, len(admission.stages), others)

    def takes_over(self, before: object, hello: wire.Hello) -> None:
        """Announce to the connection ``before`` that its producer has opened the stream here."""
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

    def warn(self, event: str, **facts: object) -> None:
        """Log a warning that the peer has caused, now and then."""
        self._peers.warn(event, self.peer, **facts)

    def refuse(self, header: wire.Header, reason: str) -> None:
        """Count, log and answer a frame that the peer may not send."""
        self._peers.counts["not permitted"] += 1
        self.count_hello()
        self.warn("a peer may not do what it asks for; refused", reason=reason)
        fault = {wire.FAULT: ConnectionRefused.__name__}
        if isinstance(header, wire.Hello):
            name = wire.READER if header.headers.get(wire.SUBSCRIBE) else wire.PRODUCER
            headers = {**fault, name: header.peer}
            answer: wire.Header = wire.Hello("", "", header.stream, error=reason, headers=headers)
        elif isinstance(header, wire.Query):
            answer = wire.Answer(header.id, {}, reason, fault)
        else:
            whose = (header.stream, header.producer) if isinstance(header, wire.Data) else ("", "")
            answer = wire.Verdict(*whose, error=reason)
        self.answer(wire.encode_frame(answer))

    def bad_frame(self, reason: str, header: wire.Header | None = None, size: int = 0) -> None:
        """Count, log and answer a bad frame, of which so many bytes were read.

        The answer names the stream and producer of a data frame whose header could be read.
        """
        self._peers.counts["bad frames"] += 1
        self.count_hello(size)
        self.warn("bad frame", reason=reason)
        whose = (header.stream, header.producer) if isinstance(header, wire.Data) else ("", "")
        self.answer(wire.encode_frame(wire.Verdict(*whose, error=reason)))

    def send_due(self, now: float) -> float | None:
        """Send what is due; return when to call again, or None if nothing is left.

        Pressing lanes go at once, the others together after the delay.
        """
        try:
            return self._send_due(now)
        except Exception as error:
            self.fail(error)
            return None

    async def send_rest(self) -> None:
        """Send what the system did not take at once, until the connection has ended."""
        assert self.socket is not None
        try:
            await self.socket.send_rest()
        except Exception as error:
            self.fail(error)

    def _send_due(self, now: float) -> float | None:
        delay_over = bool(self.dirty) and now >= self.due
        lanes = self._own(self.dirty if delay_over else self.pressing)
        if not lanes and not self.answers:
            return self.due if self.dirty else None
        assert self.socket is not None
        if self.socket.unsent:  # make nothing that cannot be sent
            return now + _RETRY_SECONDS
        verdicts, count = self._verdicts(lanes)
        sent, later = lanes[:count], lanes[count:]
        self.pressing |= dict.fromkeys(later)  # they go with the next envelope
        if not self._send([*self.answers, *verdicts]):
            for lane in sent:
                lane.not_sent()
            return now + _RETRY_SECONDS
        self.answers.clear()
        self._answer_bytes = 0
        if self.socket.unsent or self.unread_bytes:
            self._count_unread()
        for lane in sent:
            if not lane.report.urgent:
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
        by_producer: dict[tuple[str, str], dict[ProducerLane, wire.Ruling]] = {}
        count = size = 0
        for lane in lanes:
            ruling = lane.ruling()
            by_producer.setdefault((lane.admission.stream, lane.producer), {})[lane] = ruling
            count += 1
            size += 64 + sum(32 + len(reason) for _, _, reason in ruling.exceptions)
            if size > _VERDICT_BYTES:
                break
        frames = []
        for (stream, producer), rulings in by_producer.items():
            given = tuple(rulings.values())
            headers = cuts_of(rulings) if producer.startswith(wire.TASK) else {}
            verdict = wire.Verdict(stream, producer, given, headers=headers)
            frames.append(wire.encode_frame(verdict))
        return frames, count

    def _send(self, frames: list[bytes]) -> bool:
        assert self.socket is not None
        try:
            return self.socket.send_nowait(wire.envelope(frames))
        except StageBroken:
            return False

    # -- limits ------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The peer's address without its port."""
        return self.peer.rpartition(":")[0]

    def _count_unread(self) -> None:
        """Note the bytes that wait for the peer to read."""
        size = self._answer_bytes + (0 if self.socket is None else self.socket.unsent)
        most = self._peers.limits.unread_bytes
        if size > most:
            self._slow_down(f"nothing more is read while more than {most} bytes of answers wait")
        if size != self.unread_bytes:
            self.unread_bytes = size
            self._peers.count_use(self)

    def count_hello(self, size: int = 0) -> None:
        """Note a hello, a query or a bad frame, with a header of so many bytes."""
        now, times = trio.current_time(), 1 + size // _COUNTED_BYTES
        self._hellos.count(now, times)
        self._peers.hellos.count(now, times)
        if self._waits(now):
            rate, whose = self._hellos.per_second, ""
            if not self._hellos.seconds_until_next(now):
                rate, whose = self._peers.hellos.per_second, " of all connections"
            self._slow_down(f"hellos, queries and bad frames{whose} beyond {rate:g} a second wait")

    def _slow_down(self, reason: str) -> None:
        """Read nothing more for a while; the peer gets each reason once."""
        self.congested = True
        if reason not in self._slowed_for:
            self._slowed_for.add(reason)
            notice = wire.Answer(wire.NOTICE, error=self.limited(reason))
            self.answer(wire.encode_frame(notice))

    async def wait_clear(self) -> None:
        while self.congested:
            await trio.sleep(max(_RETRY_SECONDS, self._waits(trio.current_time())))
            self._count_unread()
            if self._answer_bytes <= self._peers.limits.unread_bytes:
                self.congested = bool(self._waits(trio.current_time()))

    def _waits(self, now: float) -> float:
        """The seconds until a hello may be read again."""
        own = self._hellos.seconds_until_next(now)
        if self._hellos.spent <= self._peers.limits.few_hellos:
            return own
        return max(own, self._peers.hellos.seconds_until_next(now))

    def refusal(self, hello: wire.Hello, partitions: int, producers: int = 0) -> str:
        """The reason to refuse a peer a stream of so many partitions, or empty. The connection has
        opened it for so many other ``producers``."""
        limits = self._peers.limits
        if long := wire.too_long(hello.peer):
            return f"stream {hello.stream!r}: {long}"
        if producers >= limits.producers:
            return self.limited(
                f"stream {hello.stream!r}: this connection has opened it for {limits.producers} "
                f"producers, the most that are allowed; use another connection"
            )
        types = sum(map(size_of, hello.types))
        if self.type_bytes + types > limits.type_bytes:
            return self.limited(
                f"stream {hello.stream!r}: this connection has declared event types of more than "
                f"{limits.type_bytes} bytes; use smaller types, or another connection"
            )
        opened = hello.stream, hello.peer
        lanes = self.lanes + partitions - self._lanes.get(opened, 0)
        if lanes > limits.own_lanes:
            return self.limited(
                f"stream {hello.stream!r}: with {hello.peer!r} this connection would have {lanes} "
                f"lanes, more than {limits.own_lanes}; use another connection"
            )
        self.type_bytes += types
        self._lanes[opened], self.lanes = partitions, lanes
        self._peers.count_use(self)
        return ""

    def left(self, stream: str, peer: str) -> None:
        """Note that a producer or reader has ended."""
        if lanes := self._lanes.pop((stream, peer), 0):
            self.lanes -= lanes
            self._peers.count_use(self)

    def limited(self, reason: str) -> str:
        """Count and log that a limit has taken effect; return the reason, for the peer."""
        self._peers.counts["limits reached"] += 1
        self.warn("a peer has reached a limit", reason=reason)
        return reason

    def stalled(self, now: float) -> str:
        """The reason to end a connection that has stood still for too long, or empty."""
        assert self.socket is not None
        waits = (
            not self.spoke,
            self.socket.taken if self.socket.unfinished else None,
            self.socket.sent if self.socket.unsent else None,
        )
        before, since = self._progress
        if waits != before:
            self._progress = waits, now
        elif waits != (False, None, None) and now - since >= self._peers.patience:
            if not self.spoke:
                return "it has sent nothing"
            return "it does not read" if self.socket.unsent else "it does not finish a message"
        return ""

    def end_because(self, reason: str) -> None:
        if self.scope.cancel_called:
            return
        self._peers.counts["connections ended"] += 1
        self.warn("a connection was ended", reason=reason)
        if self.socket is not None:
            with suppress(StageBroken):
                self.socket.send_nowait(drain_envelope(reason))
            self.socket.drop_input()  # at once: its task may have to wait for many others
        self.frames, self.envelope_bytes = None, 0
        self.congested = True
        self.scope.cancel()
        self._peers.count_use(self)

    def fail(self, error: Exception) -> None:
        """End the connection, because of an error of this node while it answers the peer."""
        self.warn("a connection has failed", traceback="".join(format_exception(error)))
        self.end_because(f"the node has failed to answer: {type(error).__name__}; see its log")

    def main_use(self) -> str:
        """The kind of most of the connection's bytes, as the reason to end it."""
        return max(
            (self.unread_bytes, "it does not read its answers"),
            (
                self.waiting_bytes,
                "it has sent most of what waits here, and the node has too much",
            ),
            (
                self.type_bytes,
                "it has declared more types than others, and the node has too many",
            ),
        )[1]

    @property
    def live(self) -> bool:
        return self.arrived.is_set() and not self.ended.is_set()

    def set_connected(self, connected: bool) -> None:
        (self.arrived if connected else self.ended).set()
        if not connected:
            self.silent.set()
        elif self.socket is not None and self.socket.holder is not None:
            self.holder = self.socket.holder
            self._peers.shaken(self)
            if problem := self._peers.unwelcome(self.holder):
                self.end_because(problem)


def drain_envelope(reason: str) -> bytes:
    return wire.envelope([wire.encode_frame(wire.Drain(reason))])
