"""The outbox: a producer's events of one stream, waiting, in flight, and acknowledged. Pure.

Rules
- Events are numbered per (producer, stream, partition), from 0 or from where the node says that
  this producer stopped. Numbers have no holes. Each partition has a lane.
- A producer with a stable id resumes where its earlier life stopped. If it sends everything again,
  numbers begin at 0 as they did then, and events that the earlier life settled are not sent.
- Routes know the owners of partitions, and bring their answers: positions of lanes, rulings, types
  and partitions of the stream.
- Texts of JSON are not read, unless they are to go by their keys.
- Without a key, events go round robin over the partitions; this is decided once, before the first
  send. If the node's key is attributes, events are routed by those, whatever our own key is. If the
  stream has a key that we cannot find, all events go to one lane: its node sends each event on to
  its partition, in the order of each key. That is slower, and ``warning`` says so at the first
  event.
- When a durable stream gets another number of partitions, a new layout begins: events that do not
  count yet are routed again (:mod:`s4node.net.egress.closed_layouts`).
- An event that cannot be sent (no key, too large, not encodable, of a type that the node does not
  accept) is refused here, with the node's own reason.
- Frames without a verdict take at most ``WINDOW_BYTES``; further events wait unencoded. Callers
  check ``pending_bytes``, an estimate from one in some hundred events.
- Frames may leave when they are made, or are ``committed``: then they are made for commits, and
  leave with them. What releases events puts them here (:mod:`s4node.net.egress.release`). The
  settlement of an outbox says what is done with events that have their verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from s4node.errors import ConfigError, GraphError
from s4node.events.event import footprint
from s4node.events.keys import KeySpec, Partitioner, crc32m, hasher_named
from s4node.events.routing import KeyRule, Router, key_text
from s4node.events.schema import JsonText
from s4node.events.type_declaration import TypeDecl
from s4node.net.egress import closed_layouts as layouts
from s4node.net.egress.lane import (
    Forget,
    FrameBuilder,
    Lane,
    LatestTime,
    NotBuilt,
    OutgoingFrame,
    Settlement,
)
from s4node.net.egress.refusal import Refusal, Refusals
from s4node.net.egress.stream_types import StreamTypes
from s4node.net.transport.linger import Sendable
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import Closing

_WEIGH_AFTER = 64
"""The number of events that come in before some are weighed: weighing single ones costs time."""

_WEIGH_EACH = 512
"""One of so many events is weighed, and at least the last one."""


class OneLane(NamedTuple):
    """The reason why all events of a stream go to one lane: our key, and the node's ``routing``."""

    key: str
    routing: str


class Outbox:
    """All lanes of one stream to one cluster.

    Later lives of a producer that ``returns`` may send everything again. ``checked``: an event with
    a value that is not of its field's type cannot be sent, as if the stream were one of a log.
    ``committed``: events leave as part of a commit.
    ``put`` and ``extend`` only append; ``frames`` encodes events that may leave now. Counts are
    events: ``pending`` were never sent, ``unsettled`` have no verdict yet (pending included). An
    ``error`` says why nothing leaves any more; the first caller takes a ``warning``.
    """

    def __init__(
        self,
        stream: str,
        producer: str,
        *,
        key: KeySpec | None = None,
        types: Sequence[type] = (),
        max_frame_events: int = 2048,
        max_frame_bytes: int = 262_144,
        returns: bool = False,
        checked: bool = False,
        committed: bool = False,
    ) -> None:
        self.stream = stream
        self.producer = producer
        self.committed = committed
        self.settlement: Settlement = Forget()
        self.types = StreamTypes(stream, types, checked=checked)
        self.refusals = Refusals(stream)
        self.builder = FrameBuilder(stream, producer, self.types, max_frame_events, max_frame_bytes)
        self.weight = 0.0  # approximate bytes of a waiting event
        self.frame_bytes = 0  # of the frames in all lanes
        self.taken_out = 0  # events that left ``pending``, into a frame or as refusals
        self.error = self.routing = self._hasher = ""
        self.repartitioned = False  # the reason of the error
        self.warning: OneLane | None = None
        self.answer: wire.Hello | None = None
        self.latest = LatestTime(stream, by_commits=committed)
        self.layout: int | None = None  # the number of the stream's layout, if it is durable
        self.closed: list[layouts.ClosedLayout] = []  # where an earlier life's events are counted
        self.counted_before = 0  # events of earlier lives in layouts that have ended
        self._returns = returns
        self._order: layouts.PutOrder | None = None
        self._settled_before = 0  # events that nodes have processed in earlier layouts
        self._key = key
        self._router: Router | None = None
        self._rule: KeyRule | None = None
        self._only: Lane | None = None
        self._why_only: OneLane | None = None  # until the warning was given
        self._incoming: list[Any] = []
        self._weighed = 0  # of the incoming ones; negative: so many went to lanes unweighed
        self._ready_events = self._turn = 0
        self.lanes: list[Lane] = []

    # -- for the producer --------------------------------------------------------------------

    def declare_json(self, declaration: TypeDecl, *, by_key: bool = False) -> None:
        """Send JsonText from now on, which the node reads as its type ``declaration``; ``by_key``
        to the partitions of their keys."""
        self.types.declare_json(declaration, by_key=by_key)
        if self.answer is not None:
            self._set_routing(self.answer)
            for closed in self.closed:
                closed.route_by(self._placing)

    def put(self, event: Any) -> None:
        """Take one event; its class must be declared."""
        self._incoming.append(event)

    def extend(self, events: Iterable[Any]) -> None:
        self._incoming.extend(events)

    @property
    def unrouted(self) -> list[Any]:
        """Events that wait until the lanes are known."""
        return list(self._incoming)

    @property
    def pending(self) -> int:
        """The number of events that were never sent."""
        return len(self._incoming) + self._ready_events

    @property
    def pending_bytes(self) -> int:
        """The approximate bytes in memory of the pending events."""
        if self._incoming:
            self._weigh(self._incoming)
        return int((len(self._incoming) + self._ready_events) * self.weight)

    @property
    def unsettled_bytes(self) -> int:
        """The approximate bytes of memory of events without a verdict."""
        return self.frame_bytes + self.pending_bytes

    @property
    def feeds(self) -> bool:
        """True if waiting events may be made into frames now."""
        return not self.committed and self.frame_bytes < wire.WINDOW_BYTES

    @property
    def in_flight(self) -> int:
        """The number of events that were sent and have no verdict."""
        events = 0
        for lane in self.lanes:
            events += lane.next_number - lane.upto
        return events

    @property
    def admitted(self) -> int:
        """The number of events that the node has processed."""
        settled = sum(lane.upto - lane.start + len(lane.excepted) for lane in self.lanes)
        unprocessed = self.refusals.counts["shed"] + self.refusals.counts["refused"]
        return self._settled_before + settled - unprocessed

    @property
    def unsettled(self) -> int:
        """The number of events without a verdict, sent or not."""
        return self.pending + self.in_flight

    # -- lanes -------------------------------------------------------------------------------

    def open_lanes(self, partitions: int, routing: str) -> None:
        """Open lanes before a node has answered; the caller routes with ``extend_lane``."""
        released = 0 if self.committed else wire.MAX_NUMBER
        self.lanes = [Lane(partition, released=released) for partition in range(partitions)]
        self.routing = routing

    def extend_lane(self, partition: int, events: Sequence[Any], sender: str = "") -> None:
        if sender or self.lanes[partition].senders:
            self.lanes[partition].note_sender(sender, len(events))
        self.lanes[partition].pending += events
        self._ready_events += len(events)
        self._weighed -= len(events)
        self._weigh(events)

    def behind(self, partition: int) -> bool:
        """Return True if events for a partition are still on their way."""
        lane = self.lanes[partition]
        return bool(lane.pending or lane.frames)

    def route(self) -> None:
        """Sort incoming events into the lanes."""
        if self._incoming and self.lanes:
            self._weigh(self._incoming)
            events, self._incoming = self._incoming, []
            self._weighed -= len(events)
            self._route_from(events)

    def drop_pending(self) -> None:
        for lane in self.lanes:
            lane.wait_only()
        self._incoming.clear()
        self._ready_events = self._weighed = 0

    # -- sending -----------------------------------------------------------------------------

    def sendable(self, lanes: Sequence[Lane]) -> Sendable:
        """The events of these lanes that may leave now, including resends."""
        if self._incoming:
            self.route()
        events, with_events, credit, feeds = 0, 0, 0, self.feeds
        for lane in lanes:
            if not lane.open:
                continue
            if lane.cursor < len(lane.frames):
                frame = lane.frames[lane.cursor]
                room = min(lane.next_number, lane.released) - frame.first
                waiting = room if frame.first < lane.send_limit else 0
            elif feeds:
                room, waiting = lane.limit - lane.next_number, len(lane.pending)
            else:
                continue
            if waiting and room > 0:
                events += min(waiting, room)
                with_events += 1
                credit += room
        return Sendable(events, with_events, credit)

    def frames(
        self, lane: Lane, budget: int, now_ms: int, flags: int, most_bytes: int
    ) -> list[bytes]:
        """The frames of a lane that may leave now, resends first, up to about ``budget`` bytes.

        ``most_bytes`` is the longest frame that the lane's owner accepts, 0 if unknown.
        """
        out: list[bytes] = []
        if lane.cursor < len(lane.frames):
            out = lane.resend(budget, self.settlement)
            budget -= sum(map(len, out))
            if lane.cursor < len(lane.frames):
                return out
        if not lane.pending or not self.feeds:
            return out
        while lane.pending and budget > 0:
            room = lane.limit - lane.next_number
            if room <= 0:
                break
            if lane.next_number < lane.known:  # a frame is settled as a whole or not
                room = min(room, lane.known - lane.next_number)
            count = min(room, self.builder.max_events)
            data = self.encode(lane, count, now_ms, flags, most_bytes)
            if data is not None:
                out.append(data)
                budget -= len(data)
        return out

    # -- answers of owners -------------------------------------------------------------------

    def take_answer(self, answer: wire.Hello, *, again: bool = False) -> str:
        """Learn partitions and types from a node's answer; return what is wrong with it, or "".

        ``again``: the producer sends all events of its earlier lives again.
        """
        if not 1 <= answer.partitions <= 4096:
            return f"the node claims {answer.partitions} partitions"
        layout = layouts.layout_in(answer.headers)
        changed = bool(self.lanes) and layout is not None and layout != self.layout
        if changed and (problem := self._change_layout(answer, layout or 0, again=again)):
            return problem
        if self.lanes and len(self.lanes) != answer.partitions:
            self.repartitioned = True
            return (
                f"stream {self.stream!r} had {len(self.lanes)} partitions and now has "
                f"{answer.partitions}; numbered events cannot move to other partitions: start a "
                f"new producer (in a program, open a new Client or SyncClient)"
            )
        self.answer = answer
        self.latest.take_field(answer.headers)
        self.types.take_answer(answer, takes_any=self.committed)
        if not self.lanes:
            if self.types.taken is not None:  # classes may have been declared since the hello
                self.types.reject_unfit(answer.types)
            self._open_layout(answer, layout)
            closings = layouts.closings_in(answer.headers)
            self.counted_before = sum(sum(each.numbers) for each in closings)
            self.closed = layouts.closed_layouts(closings, self._placing) if again else []
        return ""

    # -- layouts -----------------------------------------------------------------------------

    def _open_layout(self, answer: wire.Hello, layout: int | None) -> None:
        self.layout = layout
        orders = self._returns and layout is not None
        self._order = layouts.PutOrder(answer.partitions) if orders else None
        self.open_lanes(answer.partitions, "")
        self._set_routing(answer)

    def _change_layout(self, answer: wire.Hello, layout: int, *, again: bool) -> str:
        """Take another layout from a node, or begin it with the events that do not count yet;
        return what prevents it."""
        if self.layout is None or (layout < self.layout and answer.partitions == len(self.lanes)):
            self.layout = layout
            return ""
        if problem := self.settlement.prevents_layout(answer):
            return problem
        self.route()
        ended, *between = layouts.closings_in(answer.headers) or (Closing(()),)
        before, self.lanes = self.lanes, []
        left = [each for lane in before for each in self._uncounted(lane, ended, again=again)]
        order = self._order if self._router is not None and len(before) > 1 else None
        place = self._placing(len(before), self._turn)
        earlier = [*self.closed, layouts.ClosedLayout(before, place)]
        self._turn = self._ready_events = self._weighed = 0
        self._open_layout(answer, layout)
        self.closed = layouts.closed_layouts(between, self._placing) if again else []
        self._route_from(layouts.in_order(left, order))
        self.closed = [*earlier, *self.closed] if again else []
        return ""

    def _uncounted(self, lane: Lane, ended: Closing, *, again: bool) -> list[layouts.Put]:
        """The events of a lane of a layout that has ended that do not count, with their places."""
        ruling = layouts.last_ruling(ended, lane.partition)
        self.take_ruling(lane, ruling)
        if again:
            lane.known = max(lane.known, ruling.upto)
            self._count_off(lane)
        found = layouts.unsettled_events(lane, self.types, self._refuse)
        self._settled_before += lane.upto - lane.start + len(lane.excepted)
        self.frame_bytes -= sum(frame.size for frame in lane.frames)
        lane.frames.clear()
        lane.wait_only()
        return found

    def _count_off(self, lane: Lane) -> None:
        """Number waiting events of a lane of a layout that has ended that have been counted."""
        before = lane.next_number
        while lane.pending and lane.next_number < lane.known:
            self.encode(lane, min(lane.known - lane.next_number, self.builder.max_events), 0, 0, 0)
        self._settled_before += lane.next_number - before

    def _placing(self, partitions: int, turn: int = 0) -> layouts.Place:
        """How events are routed over so many partitions."""
        only = None if self._only is None else self.producer
        return layouts.placing(partitions, self._rule, self._hasher, only, turn)

    def reject(self, classes: Collection[type], reason: str) -> None:
        """Refuse waiting and further events of classes that the node does not accept."""
        self.types.reject(classes, reason)
        rejected = self.types.rejected
        self.route()
        for lane in self.lanes:
            kept = [event for event in lane.pending if event.__class__ not in rejected]
            for event in [e for e in lane.pending if e.__class__ in rejected]:
                self._refuse(lane, rejected[event.__class__])
            self._ready_events -= len(lane.pending) - len(kept)
            lane.wait_only(kept)

    def reopen(self, lane: Lane, position: wire.Position, *, again: bool) -> bool:
        """Resume a lane at its owner's position; return False if the outbox has failed."""
        self.error = self.error or self.settlement.contradicts(lane, position)
        if not self.error:
            self.settle(lane, lane.upto, lane.reopen(position, again=again))
        return not self.error

    def take_ruling(self, lane: Lane, ruling: wire.Ruling) -> None:
        if ruling.exceptions or ruling.shed:
            self._take_exceptions(lane, ruling)
        upto = min(ruling.upto, lane.next_number, lane.released)
        self.settle(lane, lane.upto, lane.acknowledge(upto))
        lane.limit = max(lane.limit, ruling.limit)
        if ruling.outcome == wire.EXPECTED:
            lane.rewind(ruling.expected)

    def settle(self, lane: Lane, before: int, frames: Sequence[OutgoingFrame]) -> None:
        """Drop settled frames; the owner has acknowledged events from ``before`` to ``upto``."""
        for frame in frames:
            self.frame_bytes -= frame.size
        self.settlement.settled(lane, before, frames)

    def _refused(self, refusal: Refusal) -> None:
        note = self.refusals.count if self.settlement.takes(refusal) else self.refusals.add
        note(refusal)

    def _take_exceptions(self, lane: Lane, ruling: wire.Ruling) -> None:
        """Count refused and shed events once; a node repeats them after a reconnect."""
        stream, at = self.stream, lane.partition
        for shed, found in ((False, ruling.exceptions), (True, ruling.shed)):
            for first, count, reason in found:
                new = lane.excepted.add(max(first, lane.upto), min(first + count, lane.next_number))
                for number, end in new:
                    self._refused(Refusal(stream, at, number, reason, shed, end - number))

    def validate(self) -> None:
        for lane in self.lanes:
            lane.validate()
        assert self._ready_events == sum(len(lane.pending) for lane in self.lanes)
        assert self.frame_bytes == sum(one.size for lane in self.lanes for one in lane.frames)

    # -- inside ------------------------------------------------------------------------------

    def _set_routing(self, answer: wire.Hello) -> None:
        """Route as the node does if possible; otherwise by our own key, or round robin.

        If the stream has a key that we cannot find, the node sends each event on to its partition.
        Then only a single lane keeps the order of each key, because the order between lanes, maybe
        to different nodes, is unknown.
        """
        self._router, self.routing, self._only, self._why_only = None, "", None, None
        self._rule = None
        hasher, _, named = answer.routing.rpartition(":")
        texts = JsonText in self.types.kinds
        try:
            rule = self.types.key_rule(self._key, answer.types, named)
            if rule is not None:
                self._rule, self._hasher = rule, hasher or "crc32m"
                partitioner = Partitioner(len(self.lanes), hasher_named(self._hasher))
                checks = self.types.of_log or rule.bindings  # else one partition's node checks
                self._router = Router(rule, partitioner) if checks or len(self.lanes) > 1 else None
                self.routing = f"{hasher}:{rule.name}" if rule.name else ""
                return
        except GraphError as error:
            self.error = str(error)
            return
        except ConfigError:  # the node's hasher is not installed here
            self._rule = None
        if named:
            self._only = self.lanes[crc32m(self.producer) % len(self.lanes)]
            if not texts and len(self.lanes) > 1:
                self._why_only = OneLane(key_text(self._key), answer.routing)

    def _route_from(self, events: list[Any]) -> None:
        """Sort events that do not count yet into the lanes."""
        lanes = self.lanes
        if rejected := self.types.rejected:
            for event in [e for e in events if e.__class__ in rejected]:
                self._refuse(None, rejected[event.__class__])
            events = [e for e in events if e.__class__ not in rejected]
        if self.closed:
            for closed in self.closed:
                events = closed.uncounted(events, self._count_off)
            self.closed = [closed for closed in self.closed if not closed.is_over]
            self._ready_events = sum(len(lane.pending) for lane in lanes)
        if self._only is not None:
            if self._why_only is not None:
                self.warning, self._why_only = self._why_only, None
            self._only.pending.extend(events)
            self._ready_events += len(events)
        elif self._router is None:
            turn = self._turn
            for step in range(min(len(lanes), len(events))):
                lanes[(turn + step) % len(lanes)].pending.extend(events[step :: len(lanes)])
            self._turn = (turn + len(events)) % len(lanes)
            self._ready_events += len(events)
        else:
            note = None if self._order is None else self._order.note
            routed, failures = self._router.shares(events, note=note)
            for lane, share in zip(lanes, routed, strict=True):
                lane.pending += share
            self._ready_events += len(events) - len(failures)
            for _, reason in failures:
                self._refuse(None, reason)
            if self._order is not None:
                self._order.put(lanes)

    def _weigh(self, events: Sequence[Any]) -> None:
        """Estimate the memory of a waiting event from a few of ``events``, the latest ones.

        The contents of lists and dicts are known only from frames.
        """
        new = len(self._incoming) - self._weighed
        if not events or (new < _WEIGH_AFTER and self.weight):
            return
        self._weighed = len(self._incoming)
        weight = float(footprint(events[-1:]))
        if new > _WEIGH_EACH:
            sample = events[-1 : -new - 1 : -_WEIGH_EACH]
            weight = sum(footprint((event,)) for event in sample) / len(sample)
        part = min(1.0, new / self.pending)  # some may have left already
        self.weight += (max(weight, self.builder.event_bytes) - self.weight) * part

    def _refuse(self, lane: Lane | None, reason: str) -> None:
        self.taken_out += 1
        partition = -1 if lane is None else lane.partition
        self._refused(Refusal(self.stream, partition, -1, reason, unsent=True))

    def encode(self, lane: Lane, count: int, now_ms: int, flags: int, most: int) -> bytes | None:
        """Make a frame of the lane's next ``count`` events, of at most ``most`` bytes; None if
        refused or already settled."""
        build, routing, latest = self.builder.build, self.routing, self.latest
        if now_ms < latest.made_ms:
            now_ms = latest.made_before(now_ms)
        built = build(lane, count, routing, now_ms, flags, most)
        while isinstance(built, NotBuilt):
            if built.fewer == 0:
                self._drop_first(lane, built.reason)
                return None
            built = build(lane, built.fewer, routing, now_ms, flags, most)
        latest.note(self.types.kinds, lane.pending, built.events, now_ms)
        first, end = lane.next_number, lane.next_number + built.events
        del lane.pending[: built.events]
        if lane.senders:
            lane.forget_senders(built.events)
        self._ready_events -= built.events
        self.taken_out += built.events
        lane.next_number = end
        if end <= lane.known:
            self.settle(lane, end, lane.acknowledge(end))
            return None
        lane.frames.append(OutgoingFrame(first, end, built.data))
        self.frame_bytes += len(built.data)
        lane.cursor += 1
        return built.data

    def _drop_first(self, lane: Lane, reason: str) -> None:
        if self._order is not None and lane in self.lanes:
            self._order.leave_out(lane.partition, lane.next_number)
        lane.drop_first()
        self._ready_events -= 1
        self._refuse(lane, reason)
