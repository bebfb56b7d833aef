"""The producer's side of a stream: what waits, what is under way, and what became of it. Pure.

Rules
- Events are numbered per (producer, stream, partition), from 0 or from where the node says that
  this producer stopped. Numbers have no holes.
- A lane sends below its credit limit only. It keeps every frame until the node has ruled on all
  of its events, and sends it again, byte for byte, when the node says "expected n" and after a
  reconnect.
- ``hello`` first: nothing leaves before the node has answered it.
- Without a key, events go round robin over the partitions; the choice is made once, before the
  first send. A stream with a key that we cannot route by gets everything in one lane, so that the
  node, which sends each event on to its own partition, sees each key's events in order.
- An event that cannot be sent at all (no key, too large, not encodable) is refused here, with the
  same word that the node would use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from s4node.comm import frame as wire
from s4node.errors import ConfigError, EventError, GraphError
from s4node.keys import KeySpec, Partitioner, crc32, hasher_named
from s4node.routing import KeyRule, Router, route, router
from s4node.schema import GENERIC, EventType, JsonText, JsonType, TypeDecl


class Refusal(NamedTuple):
    """An event that was not processed, and why. ``number`` is -1 if it never left."""

    stream: str
    partition: int
    number: int
    reason: str
    shed: bool = False


class Kept(NamedTuple):
    """A frame that was sent and is kept until its verdict."""

    first: int
    end: int
    data: bytes


class Lane:
    """One partition's share of an outbox."""

    __slots__ = (
        "cursor",
        "excepted",
        "kept",
        "limit",
        "next_number",
        "partition",
        "pending",
        "start",
        "upto",
    )

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.pending: list[Any] = []
        self.kept: deque[Kept] = deque()
        self.excepted: set[int] = set()
        self.cursor = 0
        self.start = 0
        self.next_number = 0
        self.upto = 0
        self.limit = 0

    def go_back(self, number: int) -> None:
        """Send again from the frame that holds ``number``."""
        self.cursor = sum(1 for kept in self.kept if kept.end <= number)

    def settle(self, upto: int) -> None:
        """The node has ruled on everything below ``upto``."""
        kept = self.kept
        self.upto = max(self.upto, upto)
        if self.excepted:
            self.excepted = {number for number in self.excepted if number >= self.upto}
        while kept and kept[0].end <= upto:
            kept.popleft()
            self.cursor = max(0, self.cursor - 1)

    def validate(self) -> None:
        """Assert the rules; for tests."""
        assert 0 <= self.cursor <= len(self.kept)
        numbers = [n for kept in self.kept for n in (kept.first, kept.end)]
        assert numbers == sorted(numbers)
        assert all(a.end == b.first for a, b in zip(self.kept, list(self.kept)[1:], strict=False))
        assert not self.kept or self.kept[-1].end == self.next_number
        assert self.start <= self.upto <= self.next_number


class Outbox:
    """All lanes of one stream to one cluster, without any socket.

    ``put`` and ``extend`` only append; ``frames`` encodes what may leave now. Counts are events:
    ``pending`` waits here, ``unsettled`` has no verdict yet (pending included).
    """

    def __init__(
        self,
        stream: str,
        producer: str,
        incarnation: str = "",
        *,
        key: KeySpec | None = None,
        types: Sequence[type] = (),
        max_frame_events: int = 2048,
        max_frame_bytes: int = 262_144,
    ) -> None:
        self.stream = stream
        self.producer = producer
        self.incarnation = incarnation
        self.max_frame_events = max_frame_events
        self.max_frame_bytes = max_frame_bytes
        self.opened = False
        self._fits = max_frame_events
        self.error = ""
        self.answer: wire.Hello | None = None
        self.refusals: list[Refusal] = []
        self.counts = {"shed": 0, "refused": 0, "unsent": 0}
        self._key = key
        self._routing = ""
        self._router: Router | None = None
        self._only: Lane | None = None
        self._incoming: list[Any] = []
        self._ready_events = 0
        self._turn = 0
        self._first_lane = 0
        self._node_frame_bytes = 0
        self._types: dict[type, EventType | JsonType] = {}
        self._declared: set[type] = set()
        self.lanes: list[Lane] = []
        for cls in types:
            self.declare(cls)

    # -- what the producer calls -------------------------------------------------------------

    @property
    def known(self) -> Collection[type]:
        """The event classes that this outbox can encode."""
        return self._types.keys()

    def declare(self, cls: type) -> None:
        """Make ``cls`` known; the node hears of it before its first event."""
        if cls not in self._types:
            self._types[cls] = EventType(cls)

    def declare_json(self, declaration: TypeDecl) -> None:
        """Send JsonText from now on, to be read as the node's type ``declaration``."""
        if self._types.keys() - {JsonText}:
            raise EventError(f"stream {self.stream!r} already carries events that are no texts")
        self._types[JsonText] = JsonType(declaration)
        if self.answer is not None:
            self._set_routing(self.answer)

    def put(self, event: Any) -> None:
        """Take one event; its class must be declared."""
        self._incoming.append(event)

    def extend(self, events: Iterable[Any]) -> None:
        """Take many events, in order."""
        self._incoming.extend(events)

    @property
    def pending(self) -> int:
        """Events that have not been sent for the first time."""
        return len(self._incoming) + self._ready_events

    @property
    def in_flight(self) -> int:
        """Events that were sent and have no verdict."""
        return sum(lane.next_number - lane.upto for lane in self.lanes)

    @property
    def admitted(self) -> int:
        """Events that the node has processed."""
        settled = sum(lane.upto - lane.start + len(lane.excepted) for lane in self.lanes)
        return settled - self.counts["shed"] - self.counts["refused"]

    @property
    def unsettled(self) -> int:
        """Events without a verdict, sent or not."""
        return self.pending + self.in_flight

    def take_refusals(self) -> list[Refusal]:
        """What was refused or shed since the last call."""
        taken, self.refusals = self.refusals, []
        return taken

    # -- what the connection calls -----------------------------------------------------------

    def hello(self) -> bytes:
        """The frame that opens this stream on a new connection."""
        self._declared = set(self._types)
        return wire.encode_frame(
            wire.Hello(
                self.producer,
                self.incarnation,
                self.stream,
                self._declarations(),
                self._routing,
                len(self.lanes),
                tuple(wire.Position(lane.partition, lane.upto) for lane in self.lanes),
            )
        )

    def disconnected(self) -> None:
        """The connection is gone: everything without a verdict will be sent again."""
        self.opened = False
        for lane in self.lanes:
            lane.cursor = 0

    def on_hello(self, answer: wire.Hello) -> None:
        """The node's answer: partitions, types, and where each lane goes on."""
        if answer.error:
            self.error = answer.error
            return
        if not 1 <= answer.partitions <= 4096:
            self.error = f"the node claims {answer.partitions} partitions"
            return
        if self.lanes and len(self.lanes) != answer.partitions:
            self.error = (
                f"stream {self.stream!r} had {len(self.lanes)} partitions and now has "
                f"{answer.partitions}; events already numbered cannot move: start a new producer"
            )
            return
        if not self.lanes:
            self.lanes = [Lane(partition) for partition in range(answer.partitions)]
            self._set_routing(answer)
        self.answer = answer
        if JsonText in self._types:  # the node may have come back with another version
            for declared in answer.types:
                if declared.name == self._types[JsonText].name:
                    self._types[JsonText] = JsonType(declared)
        limit = answer.headers.get(wire.MAX_FRAME_BYTES)
        self._node_frame_bytes = limit if isinstance(limit, int) else 0
        for position in answer.positions:
            if not 0 <= position.partition < len(self.lanes):
                continue
            lane = self.lanes[position.partition]
            if position.number > lane.next_number:  # an earlier life of this producer
                lane.kept.clear()
                lane.start = lane.next_number = lane.upto = position.number
            lane.settle(min(position.safe, lane.next_number))
            lane.go_back(position.number)
            lane.limit = position.limit
        self.opened = True

    def on_verdict(self, verdict: wire.Verdict) -> None:
        """Take the node's rulings."""
        if verdict.error:
            self.error = verdict.error
        for ruling in verdict.rulings:
            if not 0 <= ruling.partition < len(self.lanes):
                continue
            lane = self.lanes[ruling.partition]
            self._take_exceptions(lane, ruling)
            lane.settle(min(ruling.upto, lane.next_number))
            lane.limit = ruling.limit
            if ruling.outcome == wire.EXPECTED:
                lane.go_back(ruling.expected)
            elif ruling.outcome == wire.NOT_OWNER:
                self.error = (
                    f"partition {lane.partition} of {self.stream!r} is run by "
                    f"{ruling.owner or 'another node'}"
                )

    def _take_exceptions(self, lane: Lane, ruling: wire.Ruling) -> None:
        """Count what was refused or shed; a node says it again after a reconnect."""
        shed = ruling.outcome == wire.SHED
        for first, count, reason in ruling.exceptions:
            for number in range(max(first, lane.upto), min(first + count, lane.next_number)):
                if number not in lane.excepted:
                    lane.excepted.add(number)
                    self.counts["shed" if shed else "refused"] += 1
                    self.refusals.append(Refusal(self.stream, lane.partition, number, reason, shed))

    def frames(self, budget: int, now_ms: int = 0, flags: int = 0) -> list[bytes]:
        """Frames that may leave now, resends first, up to about ``budget`` bytes."""
        if not self.opened or self.error:
            return []
        out: list[bytes] = []
        if self._incoming:
            self._route()
        if len(self._declared) != len(self._types):
            out.append(self.hello())
        lanes = self.lanes
        for offset in range(len(lanes)):
            lane = lanes[(self._first_lane + offset) % len(lanes)]
            while lane.cursor < len(lane.kept) and budget > 0:
                kept = lane.kept[lane.cursor]
                if kept.first >= lane.limit:
                    break
                lane.cursor += 1
                out.append(kept.data)
                budget -= len(kept.data)
            while lane.pending and lane.cursor == len(lane.kept) and budget > 0:
                room = lane.limit - lane.next_number
                if room <= 0:
                    break
                data = self._encode(lane, min(room, self.max_frame_events), now_ms, flags)
                if data is not None:
                    out.append(data)
                    budget -= len(data)
            if budget <= 0:
                self._first_lane = (lane.partition + 1) % len(lanes)  # the others' turn
                break
        return out

    def ask(self) -> bytes:
        """A frame that asks for a verdict without delay."""
        return wire.encode_frame(wire.Idle(self.stream, self.producer, wire.ANSWER_NOW))

    def end_of_stream(self) -> bytes:
        """A frame that says that this producer is done."""
        return wire.encode_frame(wire.EndOfStream(self.stream, self.producer))

    @property
    def sendable(self) -> int:
        """How many events may leave now, those that are to be sent again included."""
        if not self.opened or self.error:
            return 0
        if self._incoming:
            self._route()
        total = 0
        for lane in self.lanes:
            if lane.cursor < len(lane.kept):
                kept = lane.kept[lane.cursor]
                if kept.first < lane.limit:
                    total += lane.next_number - kept.first
            elif lane.pending:
                total += max(0, min(len(lane.pending), lane.limit - lane.next_number))
        return total

    def validate(self) -> None:
        """Assert the rules; for tests."""
        for lane in self.lanes:
            lane.validate()
        assert self._ready_events == sum(len(lane.pending) for lane in self.lanes)

    # -- inside ------------------------------------------------------------------------------

    def _declarations(self) -> tuple[TypeDecl, ...]:
        return tuple(
            kind.declaration for kind in self._types.values() if kind.encoding == wire.MSGPACK
        )

    def _set_routing(self, answer: wire.Hello) -> None:
        """Route as the node does where we can; otherwise by our own key, or round robin.

        Where the stream has a key and we route by another or none, the node sends each event on to
        its own partition, and only a single lane keeps the order of each key.
        """
        self._router, self._routing, self._only = None, "", None
        hasher, _, named = answer.routing.rpartition(":")
        key = self._key
        if key is None and named and named[0] not in "@?":
            key = tuple(named.split("+"))
        if key is not None and JsonText not in self._types:
            generic = [kind.name for kind in answer.types] == [GENERIC]
            try:
                rule = KeyRule(key, generic=generic)
                partitioner = Partitioner(len(self.lanes), hasher_named(hasher or "crc32"))
            except GraphError as error:
                self.error = str(error)
                return
            except ConfigError:  # the node's own hasher, which is not installed here
                pass
            else:
                routing = f"{hasher}:{rule.name}" if rule.name else ""
                if not named or routing == answer.routing:
                    self._router, self._routing = router(rule, partitioner), routing
                    return
        if named:
            self._only = self.lanes[crc32(self.producer) % len(self.lanes)]

    def _route(self) -> None:
        events, self._incoming = self._incoming, []
        lanes = self.lanes
        if self._only is not None:
            self._only.pending.extend(events)
            self._ready_events += len(events)
        elif self._router is None or len(lanes) == 1:
            turn = self._turn
            for step in range(min(len(lanes), len(events))):
                lanes[(turn + step) % len(lanes)].pending.extend(events[step :: len(lanes)])
            self._turn = (turn + len(events)) % len(lanes)
            self._ready_events += len(events)
        else:
            routed, failures = route(self._router, events, len(lanes))
            for lane, share in zip(lanes, routed, strict=True):
                lane.pending += share
            self._ready_events += len(events) - len(failures)
            for _, reason in failures:
                self._refuse(-1, reason)

    def _refuse(self, partition: int, reason: str) -> None:
        self.counts["unsent"] += 1
        self.refusals.append(Refusal(self.stream, partition, -1, reason))

    def _encode(self, lane: Lane, count: int, now_ms: int, flags: int) -> bytes | None:
        """The lane's next ``count`` events as one kept frame; None if its only one was refused."""
        events = lane.pending[: min(count, self._fits)]
        count = len(events)
        try:
            encoding, sections, order, body = self._sections(events)
        except EventError as error:
            if count > 1:
                return self._encode(lane, count // 2, now_ms, flags)
            self._drop_first(lane, str(error))
            return None
        if len(body) > self.max_frame_bytes:
            if count > 1:  # try what would have fitted, a little less to be sure
                fits = count * self.max_frame_bytes * 9 // (len(body) * 10)
                self._fits = max(1, min(fits, count - 1))
                return self._encode(lane, self._fits, now_ms, flags)
            self._drop_first(
                lane,
                f"the event takes {len(body)} bytes, over the frame limit of "
                f"{self.max_frame_bytes} (s4.sender.maxFrameBytes)",
            )
            return None
        first = lane.next_number
        data = wire.encode_frame(
            wire.Data(
                self.stream,
                lane.partition,
                self.producer,
                first,
                count,
                sections,
                self._routing,
                encoding,
                flags,
                order,
                now_ms,
            ),
            body,
        )
        if 0 < self._node_frame_bytes < len(data):
            if count > 1:
                return self._encode(lane, count // 2, now_ms, flags)
            self._drop_first(
                lane,
                f"the event's frame takes {len(data)} bytes, over the node's limit of "
                f"{self._node_frame_bytes} (s4.listener.maxFrameBytes)",
            )
            return None
        del lane.pending[:count]
        self._ready_events -= count
        lane.next_number = first + count
        if self._fits < self.max_frame_events:  # large events lately: grow back step by step
            self._fits = min(self.max_frame_events, self._fits + self._fits // 4 + 1)
        lane.kept.append(Kept(first, first + count, data))
        lane.cursor += 1
        return data

    def _drop_first(self, lane: Lane, reason: str) -> None:
        del lane.pending[:1]
        self._ready_events -= 1
        self._refuse(lane.partition, reason)

    def _sections(self, events: list[Any]) -> tuple[int, tuple[wire.Section, ...], bytes, bytes]:
        """Encoding, sections, order and body of a frame."""
        classes = list(self._types) if len(self._types) == 1 else list(set(map(type, events)))
        if len(classes) == 1:
            kind = self._types[classes[0]]
            body = kind.encode(events)
            sections: tuple[wire.Section, ...] = (
                wire.Section(kind.fingerprint, len(events), len(body)),
            )
            return kind.encoding, sections, b"", body
        if len(classes) > wire.MAX_SECTIONS:
            raise EventError(f"{len(classes)} event types do not fit into one frame")
        index = {cls: i for i, cls in enumerate(classes)}
        order = bytes([index[type(event)] for event in events])
        shares: list[list[Any]] = [[] for _ in classes]
        for event, at in zip(events, order, strict=True):
            shares[at].append(event)
        kinds = [self._types[cls] for cls in classes]
        bodies = [kind.encode(share) for kind, share in zip(kinds, shares, strict=True)]
        sections = tuple(
            wire.Section(kind.fingerprint, len(share), len(body))
            for kind, share, body in zip(kinds, shares, bodies, strict=True)
        )
        return wire.MSGPACK, sections, order, b"".join(bodies)
