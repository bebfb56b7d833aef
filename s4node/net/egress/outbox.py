"""The producer's side of a stream: what waits, what is under way, and what became of it. Pure.

Rules
- Events are numbered per (producer, stream, partition), from 0 or from where the node says that
  this producer stopped. Numbers have no holes. Each partition has a lane.
- A producer with a stable id goes on where its earlier life stopped. If it sends everything again,
  numbers begin at 0 as they did then, and what that life has settled is left out.
- A lane leaves by one leg: the connection to the node that owns its partition. Who that is comes
  with the answers to hellos, and may change; a newer word (a higher epoch) wins.
- Without a key, events go round robin over the partitions; the choice is made once, before the
  first send. A stream with a key that we cannot route by gets everything in one lane, so that the
  node, which sends each event on to its own partition, sees each key's events in order.
- An event that cannot be sent at all (no key, too large, not encodable, of a type that the node
  does not take) is refused here, with the same word that the node would use.
- Frames without a verdict take ``WINDOW_BYTES`` and no more: what goes beyond waits as events. Who
  brings those looks at ``pending_bytes``, an estimate by one in some hundred of them.
- Where frames leave only when they are committed, they are cut, kept and numbered by the caller's
  word, and may be those of an earlier life. A node that has seen other numbers is an error: nothing
  is sent under a number that meant another event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from s4node.errors import ConfigError, EventError, GraphError
from s4node.events.event import footprint
from s4node.events.keys import KeySpec, Partitioner, crc32, hasher_named
from s4node.events.routing import KeyRule, Router, route, router
from s4node.events.schema import GENERIC, EventType, JsonText, JsonType, TypeDecl, misfit
from s4node.net.egress.lane import Kept, Lane
from s4node.net.egress.leg import Leg
from s4node.net.wire import frame as wire
from s4node.net.wire.encoder import encoded

MAX_REFUSALS = 10_000
"""Refusals kept for whoever takes them; further ones are only counted."""

_WEIGH_AFTER = 64
"""Events that come in before some of them are weighed, so that lone ones cost nothing."""

_WEIGH_EACH = 512
"""One in so many is weighed, and at least the last."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Events that were not processed, and why: ``count`` of them from ``number`` on.

    ``number`` is -1 if they could not be sent at all (``unsent``), or are not told one by one.
    """

    stream: str
    partition: int
    number: int
    reason: str
    shed: bool = False
    count: int = 1
    unsent: bool = False


class _Framed(NamedTuple):
    """The next ``events`` of a lane, so many, as a frame."""

    events: int
    body_bytes: int
    data: bytes


class _NoFrame(NamedTuple):
    """Why a lane's next events make no frame; ``fewer`` of them may, 0 if there was but one."""

    reason: str
    fewer: int


class Outbox:
    """All lanes of one stream to one cluster, without any socket.

    ``put`` and ``extend`` only append; a leg's ``frames`` encodes what may leave by it now. Counts
    are events: ``pending`` waits here, ``unsettled`` has no verdict yet (pending included).
    ``nodes`` are the addresses where the stream's owners can be asked for. A producer whose id is
    ``stable`` may have had earlier lives; ``again`` tells that it sends what they have sent, too.
    Where only what is ``committed`` leaves, the caller cuts the frames, and releases them by their
    lane's number.
    """

    def __init__(
        self,
        stream: str,
        producer: str,
        incarnation: str = "",
        *,
        key: KeySpec | None = None,
        types: Sequence[type] = (),
        headers: wire.Headers | None = None,
        stable: bool = False,
        again: bool = False,
        max_frame_events: int = 2048,
        max_frame_bytes: int = 262_144,
        committed: bool = False,
    ) -> None:
        self.stream = stream
        self.producer = producer
        self.incarnation = incarnation
        self.headers = headers or {}
        if stable and not again:
            self.headers = {**self.headers, wire.NEW: True}
        self.stable = stable
        self.again = again
        self.durable = False  # what the nodes settle survives them
        self.unknown: list[int] = []  # partitions whose owners have forgotten us
        self.committed = committed
        self.versions: dict[int, TypeDecl] = {}  # of earlier lives, by fingerprint
        self.max_frame_events = max_frame_events
        self.max_frame_bytes = max_frame_bytes
        self.legs: dict[str, Leg] = {}
        self.nodes: tuple[str, ...] = ()
        self.regrouped = False  # legs have come or gone
        self._fits = max_frame_events
        self.weight = 0.0  # bytes of memory that an event takes which waits, about
        self.kept_bytes = 0  # of the frames in all lanes
        self._encoded = 0.0  # bytes of an event in frames, lately
        self.error = ""
        self.answer: wire.Hello | None = None
        self.refusals: list[Refusal] = []
        self._further: Counter[tuple[bool, bool]] = Counter()  # beyond the list: shed, unsent
        self.counts = {"shed": 0, "refused": 0, "unsent": 0}
        self.on_settled: Callable[[Lane, int], None] | None = None
        self.on_refusal: Callable[[Refusal], None] | None = None
        self.routing = ""
        self._key = key
        self._router: Router | None = None
        self._only: Lane | None = None
        self._incoming: list[Any] = []
        self._weighed = 0  # so many of these were; negative: others were not, before they had lanes
        self._ready_events = 0
        self._turn = 0
        self._types: dict[type, EventType | JsonType] = {}
        self.rejected: dict[type, str] = {}
        self.lanes: list[Lane] = []
        for cls in types:
            self.declare(cls)

    # -- what the producer calls -------------------------------------------------------------

    @property
    def known(self) -> Collection[type]:
        """The event classes that this outbox can encode."""
        return self._types.keys()

    def declare(self, cls: type) -> None:
        """Make ``cls`` known; nodes hear of it before its first event.

        Its events are refused where a node has said that the stream takes others.
        """
        if cls in self._types or cls in self.rejected:
            return
        kind = EventType(cls)
        answer, reason = self.answer, ""
        if answer is not None and not answer.headers.get(wire.LOG) and not self.committed:
            reason = self._misfit(kind, answer.types)
        if reason:
            self.rejected[cls] = reason
        else:
            self._types[cls] = kind

    def unfit(self, classes: Collection[type], taken: Sequence[TypeDecl]) -> list[type]:
        """Those of ``classes`` that a node which takes these types cannot read."""
        return [cls for cls in classes if self._misfit(self._types[cls], taken)]

    def _misfit(self, kind: EventType | JsonType, taken: Sequence[TypeDecl]) -> str:
        by_name = {declared.name: declared for declared in taken}
        return misfit(self.stream, by_name, kind.declaration)

    def reject(self, classes: Collection[type], reason: str) -> None:
        """The node does not take events of these classes: refuse those that wait, and any more."""
        self.rejected |= dict.fromkeys(classes, reason)
        for cls in classes:
            self._types.pop(cls, None)
        self.route()
        for lane in self.lanes:
            kept = [event for event in lane.pending if event.__class__ not in self.rejected]
            for event in lane.pending:
                if event.__class__ in self.rejected:
                    self._refuse(lane, self.rejected[event.__class__])
            self._ready_events -= len(lane.pending) - len(kept)
            lane.pending = kept

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
    def unrouted(self) -> list[Any]:
        """Events that wait for the lanes to be known."""
        return list(self._incoming)

    @property
    def pending(self) -> int:
        """Events that have not been sent for the first time."""
        return len(self._incoming) + self._ready_events

    @property
    def pending_bytes(self) -> int:
        """Bytes of memory that those take, about."""
        if self._incoming:
            self._weigh(self._incoming)
        return int((len(self._incoming) + self._ready_events) * self.weight)

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of memory that events without a verdict take, about."""
        return self.kept_bytes + self.pending_bytes

    @property
    def feeds(self) -> bool:
        """Whether frames may be made of events that wait."""
        return not self.committed and self.kept_bytes < wire.WINDOW_BYTES

    @property
    def ends(self) -> bool:
        """Whether nodes may forget us when we are gone; else a later life goes on."""
        return not (self.stable and self.durable)

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
        """What was refused or shed since the last call; what was shed in a row is one refusal.

        Of more than ``MAX_REFUSALS`` the last ones only count the others: one for those that were
        refused, shed, and could not be sent.
        """
        taken, self.refusals = self.refusals, []
        for (shed, unsent), count in self._further.items():
            more = f"{count} further events, which were not kept one by one"
            taken.append(Refusal(self.stream, -1, -1, more, shed, count, unsent))
        self._further.clear()
        return taken

    # -- who owns what -----------------------------------------------------------------------

    def leg(self, address: str) -> Leg:
        """The leg to the node at ``address``, made if there is none yet."""
        for leg in self.legs.values():
            if address in (leg.address, leg.alias):
                return leg
        leg = self.legs[address] = Leg(self, address)
        self.regrouped = True
        return leg

    @property
    def opened(self) -> bool:
        """Whether some node has answered for the stream."""
        return any(leg.opened for leg in self.legs.values())

    @property
    def stuck(self) -> bool:
        """Whether events wait for a partition that cannot be reached now."""
        if not self.lanes:
            return bool(self._incoming)
        self.route()
        return bool(self.closed)

    @property
    def closed(self) -> list[int]:
        """The partitions that cannot be reached now, of those for which events wait."""
        return [
            lane.partition for lane in self.lanes if not lane.open and (lane.pending or lane.kept)
        ]

    def open_lanes(self, partitions: int, routing: str) -> None:
        """Have lanes before any node has answered: the caller routes, with ``extend_lane``."""
        self.lanes = [Lane(partition) for partition in range(partitions)]
        self.routing = routing
        if self.committed:
            for lane in self.lanes:
                lane.released = 0

    def cut(self, lane: Lane, count: int, now_ms: int) -> Kept | None:
        """The lane's next events, up to ``count`` of them, as a kept frame that has not been sent;
        None if there is none, or the only one was refused."""
        if self.encode(lane, count, now_ms, 0, 0) is None:
            return None
        lane.cursor -= 1
        return lane.kept[-1]

    def frame(self, partition: int, events: Sequence[Any]) -> bytes:
        """Events as a frame without a number; raises EventError for what msgpack cannot hold."""
        encoding, sections, order, body = encoded(self._types, events)
        header = wire.Data(
            self.stream,
            partition,
            self.producer,
            0,
            len(events),
            sections,
            encoding=encoding,
            order=order,
        )
        return wire.encode_frame(header, body)

    def cut_back(self) -> None:
        """Forget what no commit holds: it never leaves."""
        for lane in self.lanes:
            self._ready_events -= len(lane.pending)
            lane.pending.clear()
            while lane.kept and lane.kept[-1].end > lane.released:
                self.kept_bytes -= len(lane.kept.pop().data)
            lane.next_number = lane.released
            lane.cursor = min(lane.cursor, len(lane.kept))
        self._incoming.clear()
        self._weighed = 0

    def restore(self, partition: int, kept: Sequence[Kept], next_number: int) -> None:
        """A lane goes on where an earlier life has stopped, with the frames that it committed."""
        self.lanes[partition].restore(kept, next_number)
        self.kept_bytes += sum(len(one.data) for one in kept)

    def extend_lane(self, partition: int, events: Sequence[Any]) -> None:
        """Take events that belong to ``partition``."""
        self.lanes[partition].pending += events
        self._ready_events += len(events)
        self._weighed -= len(events)
        self._weigh(events)

    def assign(self, owners: Sequence[str], epoch: int) -> None:
        """Take the word of ``epoch`` on who owns each partition; ``""`` is nobody."""
        for lane, address in zip(self.lanes, owners, strict=False):
            if epoch >= lane.epoch:
                self.give(lane, self.leg(address) if address else None, epoch)

    def give(self, lane: Lane, leg: Leg | None, epoch: int) -> bool:
        """``leg`` leads to the lane's owner; False if that begins only when the one before ends."""
        before = lane.leg
        if before is None or before is leg or not (before.draining and lane.open):
            self.move(lane, leg, epoch)
            return True
        lane.epoch, lane.heir = epoch, leg
        return False

    def move(self, lane: Lane, leg: Leg | None, epoch: int) -> None:
        """``leg`` leads to the lane's owner."""
        lane.epoch, lane.heir = epoch, None
        if lane.leg is not leg:
            if lane.leg is not None:
                lane.leg.lanes.remove(lane)
            lane.close()
            lane.leg = leg
            self.regrouped = True
            if leg is not None:
                leg.lanes.append(lane)
        if leg is not None and not lane.open:
            leg.ask_for_lanes()

    def drop(self, leg: Leg) -> None:
        """The leg leads nowhere any more; its lanes wait for another owner."""
        for lane in list(leg.lanes):
            self.move(lane, None, lane.epoch)
        for lane in self.lanes:
            if lane.heir is leg:
                lane.heir = None
        self.legs.pop(leg.address, None)
        self.regrouped = True

    def take_answer(self, answer: wire.Hello) -> str:
        """Learn partitions and types from a node's answer; returns what is wrong with it."""
        if not 1 <= answer.partitions <= 4096:
            return f"the node claims {answer.partitions} partitions"
        if self.lanes and len(self.lanes) != answer.partitions:
            return (
                f"stream {self.stream!r} had {len(self.lanes)} partitions and now has "
                f"{answer.partitions}; events already numbered cannot move: start a new producer; "
                f"a program opens a new Client or SyncClient"
            )
        if not self.lanes:
            self.open_lanes(answer.partitions, "")
            self._set_routing(answer)
        self.answer = answer
        if JsonText in self._types:  # the node may have come back with another version
            for declared in answer.types:
                if declared.name == self._types[JsonText].name:
                    self._types[JsonText] = JsonType(declared)
        return ""

    def contradicts(self, lane: Lane, position: wire.Position) -> str:
        """Why a lane of committed frames cannot go on where its owner says; empty if it can."""
        if not self.committed or lane.upto <= position.number <= lane.released:
            return ""
        where = f"stream {self.stream!r}, partition {lane.partition}: its owner goes on with event"
        if position.number > lane.released:
            return (
                f"{where} {position.number} of producer {self.producer!r}, which has sent "
                f"{lane.released} so far: the state here is older than what was sent from it; put "
                f"the newer state back, or begin anew without any"
            )
        return (
            f"{where} {position.number} of producer {self.producer!r}, which it had up to "
            f"{lane.upto} before: the state there is older than what was taken into it; put the "
            f"newer state back, or begin anew without any"
        )

    def take_ruling(self, lane: Lane, ruling: wire.Ruling) -> None:
        """Take what the lane's owner says."""
        self._take_exceptions(lane, ruling)
        before = lane.upto
        self.kept_bytes -= lane.settle(min(ruling.upto, lane.next_number, lane.released))
        self.tell_settled(lane, before)
        lane.limit = max(lane.limit, ruling.limit)
        if ruling.outcome == wire.EXPECTED:
            lane.go_back(ruling.expected)

    def tell_settled(self, lane: Lane, before: int) -> None:
        """The lane's ``upto`` was ``before``: tell whoever follows single events."""
        if self.on_settled is not None and lane.upto > before:
            self.on_settled(lane, lane.upto - before)

    def _take_exceptions(self, lane: Lane, ruling: wire.Ruling) -> None:
        """Count what was refused or shed; a node says it again after a reconnect."""
        for shed, told in ((False, ruling.exceptions), (True, ruling.shed)):
            for first, count, reason in told:
                new = lane.excepted.add(max(first, lane.upto), min(first + count, lane.next_number))
                for number, end in new:
                    self.counts["shed" if shed else "refused"] += end - number
                    refusal = Refusal(
                        self.stream, lane.partition, number, reason, shed, end - number
                    )
                    self._tell(refusal)

    def route(self) -> None:
        """Sort what has come in into the lanes."""
        if self._incoming and self.lanes:
            self._weigh(self._incoming)
            self._route()

    def validate(self) -> None:
        """Assert the rules; for tests."""
        for lane in self.lanes:
            lane.validate()
        assert self._ready_events == sum(len(lane.pending) for lane in self.lanes)
        assert self.kept_bytes == sum(len(one.data) for lane in self.lanes for one in lane.kept)

    # -- inside ------------------------------------------------------------------------------

    @property
    def declarations(self) -> tuple[TypeDecl, ...]:
        """What a node must know to read our events."""
        ours = {
            kind.fingerprint: kind.declaration
            for kind in self._types.values()
            if kind.encoding == wire.MSGPACK
        }
        return tuple((self.versions | ours).values()) if self.versions else tuple(ours.values())

    def _set_routing(self, answer: wire.Hello) -> None:
        """Route as the node does where we can; otherwise by our own key, or round robin.

        Where the stream has a key and we route by another or none, the node sends each event on to
        its own partition, and only a single lane keeps the order of each key.
        """
        self._router, self.routing, self._only = None, "", None
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
                    self._router, self.routing = router(rule, partitioner), routing
                    return
        if named:
            self._only = self.lanes[crc32(self.producer) % len(self.lanes)]

    def _route(self) -> None:
        events, self._incoming = self._incoming, []
        self._weighed -= len(events)
        lanes = self.lanes
        if self.rejected:
            for event in [e for e in events if e.__class__ in self.rejected]:
                self._refuse(None, self.rejected[event.__class__])
            events = [e for e in events if e.__class__ not in self.rejected]
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
                self._refuse(None, reason)

    def _weigh(self, events: Sequence[Any]) -> None:
        """Learn from a few of ``events``, the last to come in, how much those take that wait.

        What events hold in lists and dicts is known only from frames.
        """
        new = len(self._incoming) - self._weighed
        if not events or (new < _WEIGH_AFTER and self.weight):
            return
        self._weighed = len(self._incoming)
        weight = float(footprint(events[-1:]))
        if new > _WEIGH_EACH:
            sample = events[-1 : -new - 1 : -_WEIGH_EACH]
            weight = sum(footprint((event,)) for event in sample) / len(sample)
        part = min(1.0, new / self.pending)  # some of them may have left already
        self.weight += (max(weight, self._encoded) - self.weight) * part

    def _refuse(self, lane: Lane | None, reason: str) -> None:
        self.counts["unsent"] += 1
        partition = -1 if lane is None else lane.partition
        self._tell(Refusal(self.stream, partition, -1, reason, unsent=True))

    def _tell(self, refusal: Refusal) -> None:
        if self.on_refusal is not None:
            self.on_refusal(refusal)
            return
        last = self.refusals[-1] if self.refusals else None
        if last is not None and refusal.shed and _follows(last, refusal):
            self.refusals[-1] = replace(last, count=last.count + refusal.count)
        elif len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(refusal)
        else:
            self._further[refusal.shed, refusal.unsent] += refusal.count

    def encode(
        self, lane: Lane, count: int, now_ms: int, flags: int, most_bytes: int
    ) -> bytes | None:
        """The lane's next ``count`` events as one kept frame; None if its only one was refused, or
        an earlier life has settled them.

        ``most_bytes`` is the longest frame that the lane's owner takes; 0 if it did not say.
        """
        framed = self._framed(lane, count, now_ms, flags, most_bytes)
        while isinstance(framed, _NoFrame):
            if framed.fewer == 0:
                self._drop_first(lane, framed.reason)
                return None
            framed = self._framed(lane, framed.fewer, now_ms, flags, most_bytes)
        first, end = lane.next_number, lane.next_number + framed.events
        del lane.pending[: framed.events]
        self._ready_events -= framed.events
        lane.next_number = end
        if end <= lane.known:
            self.kept_bytes -= lane.settle(end)
            return None
        self._encoded = self._encoded * 0.75 + framed.body_bytes / framed.events * 0.25
        if self._fits < self.max_frame_events:  # large events lately: grow back step by step
            self._fits = min(self.max_frame_events, self._fits + self._fits // 4 + 1)
        lane.kept.append(Kept(first, end, framed.data))
        self.kept_bytes += len(framed.data)
        lane.cursor += 1
        return framed.data

    def _framed(
        self, lane: Lane, count: int, now_ms: int, flags: int, most_bytes: int
    ) -> _Framed | _NoFrame:
        """A frame of the lane's next ``count`` events, or of as many as fitted lately."""
        events = lane.pending[: min(count, self._fits)]
        count = len(events)
        try:
            encoding, sections, order, body = encoded(self._types, events)
        except EventError as error:
            return _NoFrame(str(error), count // 2)
        if len(body) > self.max_frame_bytes:
            fits = count * self.max_frame_bytes * 9 // (len(body) * 10)  # a little less to be sure
            fewer = min(max(1, fits), count - 1)
            if fewer:
                self._fits = fewer
            return _NoFrame(
                f"a {self._name(events[0])} takes {len(body)} bytes, over the frame limit of "
                f"{self.max_frame_bytes} (s4.sender.maxFrameBytes)",
                fewer,
            )
        header = wire.Data(
            self.stream,
            lane.partition,
            self.producer,
            lane.next_number,
            count,
            sections,
            self.routing,
            encoding,
            flags,
            order,
            now_ms,
        )
        data = wire.encode_frame(header, body)
        if 0 < most_bytes < len(data):
            return _NoFrame(
                f"the frame of a {self._name(events[0])} takes {len(data)} bytes, over the node's "
                f"limit of {most_bytes} (s4.listener.maxFrameBytes)",
                count // 2,
            )
        return _Framed(count, len(body), data)

    def _name(self, event: Any) -> str:
        return self._types[type(event)].name

    def _drop_first(self, lane: Lane, reason: str) -> None:
        del lane.pending[:1]
        self._ready_events -= 1
        self._refuse(lane, reason)


def _follows(last: Refusal, refusal: Refusal) -> bool:
    """Whether ``refusal`` goes on where ``last`` ends, for the same reason."""
    end = replace(last, number=last.number + last.count, count=refusal.count)
    return end == refusal
