"""A leg of an outbox: its lanes' way over one connection, to the node that owns them. Pure.

Rules
- ``hello`` first: a lane sends nothing before its owner has said where it goes on.
- The answer to a hello opens the lanes that the node owns, and says who owns the others. A node
  also says so unasked when owners change; then a new hello opens what has come to it.
- A node's door does not take events: it answers with those who do, and 0 partitions.
- A verdict is asked for with every quarter of what a producer may have to keep: a node that commits
  only when it is asked would never hear that nothing more can leave before it does.
- A node that was dialled by one name may call itself by another: ``alias`` is its own, for as long
  as it is connected. Then it is looked for by both.
- What comes from a leg concerns its own lanes only: a node that has lost a partition cannot
  rule on it any more.
- The lanes of a node that drains stay with it until it gives them up, or the connection ends: its
  last verdicts may still be on their way when others already say who is next.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from s4node.net.wire import frame as wire

if TYPE_CHECKING:
    from s4node.net.egress.lane import Lane
    from s4node.net.egress.outbox import Outbox

_ENVELOPE_BYTES = 131_072


class Leg:
    """The part of ``outbox`` that goes to the node at ``address``."""

    __slots__ = (
        "_accepted",
        "_asked",
        "_declared",
        "_first_lane",
        "_frame_bytes",
        "_unasked",
        "_wants_hello",
        "address",
        "alias",
        "budget",
        "draining",
        "lanes",
        "opened",
        "outbox",
    )

    def __init__(self, outbox: Outbox, address: str) -> None:
        self.outbox = outbox
        self.address = address
        self.alias = address
        self.lanes: list[Lane] = []
        self.opened = False
        self.draining = False  # the node has said that it stops
        self._asked: deque[tuple[type, ...]] = deque()  # what each hello without answer declared
        self._accepted: tuple[type, ...] = ()
        self._declared: tuple[type, ...] = ()
        self._wants_hello = False
        self._frame_bytes = 0
        self._unasked = 0  # bytes of frames since a verdict was asked for
        self.budget = _ENVELOPE_BYTES
        self._first_lane = 0

    # -- out ---------------------------------------------------------------------------------

    def hello(self) -> bytes:
        """The frame that opens the stream on a new connection, or anew on an open one."""
        box = self.outbox
        self._declared = tuple(box.known)
        self._wants_hello = False
        self._asked.append(self._declared)
        return wire.encode_frame(
            wire.Hello(
                box.producer,
                box.incarnation,
                box.stream,
                box.declarations,
                box.routing,
                len(box.lanes),
                tuple(wire.Position(lane.partition, lane.upto) for lane in box.lanes),
                headers=box.headers,
            )
        )

    def ask_for_lanes(self) -> None:
        """Lanes have come to this leg: say hello for them, if the connection has one already."""
        self._wants_hello = self.opened
        self.outbox.regrouped = True

    @property
    def asks(self) -> bool:
        """Whether a hello is to be sent now."""
        return self.opened and (self._wants_hello or len(self._declared) != len(self.outbox.known))

    def frames(self, budget: int, now_ms: int = 0, flags: int = 0) -> list[bytes]:
        """Frames that may leave now, resends first, up to about ``budget`` bytes."""
        box = self.outbox
        if not self.opened or box.error:
            return []
        box.route()
        hello = [self.hello()] if self.asks else []
        data = self._data_frames(min(budget, self.budget), now_ms, flags)
        self._unasked += sum(map(len, data))
        quarter_out = self._unasked * 4 * len(box.legs) >= wire.WINDOW_BYTES
        if not quarter_out or box.committed:
            return hello + data
        self._unasked = 0
        return [*hello, *data, self.ask()]

    def _data_frames(self, budget: int, now_ms: int, flags: int) -> list[bytes]:
        """Frames of the lanes in turn; where ``budget`` ends, the next lane begins next time."""
        lanes, feeds = self.lanes, self.outbox.feeds
        out: list[bytes] = []
        for offset in range(len(lanes)):
            lane = lanes[(self._first_lane + offset) % len(lanes)]
            if not lane.open:
                continue
            if lane.cursor < len(lane.kept):
                resent = lane.resend(budget)
                out += resent
                budget -= sum(map(len, resent))
            if feeds and lane.pending and lane.cursor == len(lane.kept):
                new = self._new_frames(lane, budget, now_ms, flags)
                out += new
                budget -= sum(map(len, new))
            if budget <= 0:
                self._first_lane = (self._first_lane + offset + 1) % len(lanes)  # others' turn
                break
        return out

    def _new_frames(self, lane: Lane, budget: int, now_ms: int, flags: int) -> list[bytes]:
        """Frames of events that wait in the lane, up to about ``budget`` bytes and its limit."""
        box = self.outbox
        out: list[bytes] = []
        while lane.pending and budget > 0:
            room = lane.limit - lane.next_number
            if room <= 0:
                break
            if lane.next_number < lane.known:  # no frame has both what is settled and what is not
                room = min(room, lane.known - lane.next_number)
            count = min(room, box.max_frame_events)
            data = box.encode(lane, count, now_ms, flags, self._frame_bytes)
            if data is not None:
                out.append(data)
                budget -= len(data)
        return out

    @property
    def sendable(self) -> int:
        """How many events may leave now, those that are to be sent again included."""
        box = self.outbox
        if not self.opened or box.error:
            return 0
        box.route()
        total, feeds = 0, box.feeds
        for lane in self.lanes:
            if not lane.open:
                continue
            if lane.cursor < len(lane.kept):
                kept = lane.kept[lane.cursor]
                if kept.first < lane.end:
                    total += min(lane.next_number, lane.released) - kept.first
            elif lane.pending and feeds:
                total += max(0, min(len(lane.pending), lane.limit - lane.next_number))
        return total

    def ask(self) -> bytes:
        """A frame that asks for a verdict without delay."""
        box = self.outbox
        return wire.encode_frame(wire.Idle(box.stream, box.producer, wire.ANSWER_NOW))

    def end_of_stream(self) -> bytes:
        """A frame that says that this producer is done."""
        return wire.encode_frame(wire.EndOfStream(self.outbox.stream, self.outbox.producer))

    # -- in ----------------------------------------------------------------------------------

    def disconnected(self) -> None:
        """The connection is gone: everything without a verdict will be sent again."""
        self.opened = self._wants_hello = self.draining = False
        self.alias = self.address  # who is dialled may be another next time, or nobody
        self._accepted = ()
        self._asked.clear()
        for lane in list(self.lanes):
            self._give_up(lane)

    def on_hello(self, answer: wire.Hello) -> None:
        """The node's answer, or its word that owners have changed."""
        box = self.outbox
        asked = bool(self._asked) and not answer.headers.get(wire.UNASKED)
        declared = self._asked.popleft() if asked else self._accepted
        if answer.error:
            self._take_error(answer, declared)
            return
        self._learn(answer)
        is_door = not answer.partitions and bool(box.nodes)
        if is_door:
            for node in box.nodes:
                box.leg(node)
            return
        problem = box.take_answer(answer)
        if problem:
            box.error = problem
            return
        box.durable = bool(answer.headers.get(wire.DURABLE))
        epoch = _whole(answer.headers.get(wire.EPOCH))
        for position in answer.positions:
            if not 0 <= position.partition < len(box.lanes):
                continue
            lane = box.lanes[position.partition]
            if not self._take(lane, epoch):
                continue
            if lane.open and not asked:
                continue  # it sends already, and nobody asked where it goes on
            if not self._reopen(lane, position):
                return
        self.opened = True
        self._accepted = declared
        self._wants_hello = False
        owners = _owners(answer)
        if owners:
            box.assign(owners, epoch)

    def _take_error(self, answer: wire.Hello, declared: tuple[type, ...]) -> None:
        """The node has turned a hello down that ``declared`` these classes."""
        box = self.outbox
        new = [cls for cls in declared if cls not in self._accepted and cls in box.known]
        if self.opened and new and not box.committed:  # it goes on without those that do not fit
            box.reject(box.unfit(new, answer.types) or new, answer.error)
            self._declared = ()  # say hello again, with what is left
        elif not any(leg._hopes for leg in box.legs.values() if leg is not self):
            box.error = answer.error

    def _take(self, lane: Lane, epoch: int) -> bool:
        """The node says, by ``epoch``, that it owns the lane; False if it stays elsewhere."""
        if lane.leg is self:
            return True
        if epoch < lane.epoch:
            return False  # whom others call the owner has been told so later
        return self.outbox.give(lane, self, epoch)

    def _reopen(self, lane: Lane, position: wire.Position) -> bool:
        """Have the lane go on where its owner says; False if the outbox has failed."""
        box = self.outbox
        box.error = box.error or box.contradicts(lane, position)
        if box.error:
            return False
        before = lane.upto
        box.kept_bytes -= lane.reopen(position, again=box.again)
        box.tell_settled(lane, before)
        return True

    @property
    def _hopes(self) -> bool:
        """Whether it takes events, or may yet: of two ways to one node it turns the older down, and
        may say so before it answers on the newer."""
        return self.opened or bool(self._asked)

    def on_verdict(self, verdict: wire.Verdict) -> None:
        """Take the node's rulings."""
        box = self.outbox
        if verdict.error:
            box.error = verdict.error
        for ruling in verdict.rulings:
            if not 0 <= ruling.partition < len(box.lanes):
                continue
            lane = box.lanes[ruling.partition]
            if lane.leg is not self:
                continue
            if ruling.outcome == wire.NOT_OWNER:
                box.take_ruling(lane, ruling)
                self._give_up(lane, ruling.owner)
                continue
            box.take_ruling(lane, ruling)

    def _give_up(self, lane: Lane, owner: str = "") -> None:
        """The node rules on the lane no longer; it goes on with whoever is known to be next."""
        lane.close()
        box = self.outbox
        if lane.heir is not None:
            box.move(lane, lane.heir, lane.epoch)
        elif owner:
            box.move(lane, box.leg(owner), lane.epoch)

    def _learn(self, answer: wire.Hello) -> None:
        box = self.outbox
        unknown = answer.headers.get(wire.UNKNOWN)
        if isinstance(unknown, (list, tuple)):
            box.unknown += [number for number in unknown if isinstance(number, int)]
        self._frame_bytes = _whole(answer.headers.get(wire.MAX_FRAME_BYTES))
        most = _whole(answer.headers.get(wire.MAX_ENVELOPE_BYTES))
        if most:  # an envelope may be over its budget by a frame
            self.budget = most // 2
            self._frame_bytes = min(self._frame_bytes or most, most // 2)
        alias = answer.headers.get(wire.ADDRESS)
        if isinstance(alias, str) and alias:
            for other in [leg for leg in box.legs.values() if leg is not self]:
                if alias in (other.address, other.alias):  # the same node by another name
                    for lane in list(other.lanes):
                        box.move(lane, self, lane.epoch)
                    box.drop(other)
            self.alias = alias
        nodes = answer.headers.get(wire.NODES)
        if isinstance(nodes, (list, tuple)):
            box.nodes = tuple(node for node in nodes if isinstance(node, str))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _owners(answer: wire.Hello) -> list[str]:
    """The address of each partition's owner, as an answer tells them; empty if it does not."""
    nodes, owners = answer.headers.get(wire.NODES), answer.headers.get(wire.OWNERS)
    if not isinstance(nodes, (list, tuple)) or not isinstance(owners, (list, tuple)):
        return []
    return [str(nodes[at]) if isinstance(at, int) and 0 <= at < len(nodes) else "" for at in owners]
