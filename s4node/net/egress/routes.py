"""The routes of an outbox: the owners of partitions, and how frames get there. Pure.

Rules
- There is a route to each node that may own partitions. A lane uses the route to the owner of its
  partition. The answers to hellos name the owners, which may change; the list with the higher epoch
  wins. If an app was removed and deployed again, its epochs begin anew, with another origin: of two
  origins, the one that came later wins.
- ``hello`` goes first: a lane sends nothing before its owner has answered with a position.
- The answer to a hello opens the lanes that the node owns, and names the owners of the others. A
  node also names them unasked when owners change; a new hello then opens lanes that moved to it.
- A redirector does not take events: it answers with the nodes that do, and 0 partitions.
- A verdict is requested with every quarter of what a producer may have to keep. Otherwise a node
  that commits only on request would never learn that the producer waits for it. It is requested,
  too, once all has left that waited when lanes were opened again: only a former owner has got the
  former requests.
- A node that was dialled by one name may call itself by another: ``alias`` is its own name while it
  is connected, and both names find it.
- Answers concern only the lanes of their route: a node that has lost a partition cannot acknowledge
  its events any more.
- A node without a partition of a durable stream does not know its layout, so its answer only names
  other nodes.
- The lanes of a draining node stay with it until it gives them up, or the connection ends: its last
  verdicts may still arrive after others have named the next owner.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from s4node.net.egress.closed_layouts import layout_in
from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox import Outbox
from s4node.net.transport.linger import Sendable
from s4node.net.wire import frame as wire

_ENVELOPE_BYTES = 131_072
_NOTHING = Sendable(0, 0, 0)

_TIME_MS = 200
"""Milliseconds between two reports of the latest time."""

_UNKNOWN = (
    "the node no longer knows this producer: unacknowledged events are sent again, and count twice "
    "if they were committed"
)
_ALL_IS_NEW = "no earlier life of this producer is known: all its events are new"
_LOST = (
    "the log has lost acknowledged events: in a power cut, because an older copy of a file was "
    "restored, or because it has forgotten this producer"
)


class _Ownership:
    __slots__ = ("following", "route", "version")

    def __init__(self) -> None:
        self.route: NodeRoute | None = None  # None if the owner is unknown
        self.version = (0, -1)  # origin and epoch of the list that named it
        self.following: NodeRoute | None = None  # next, once ``route`` has given the lane up


class Routes:
    """The routes of ``outbox`` to the nodes of one cluster.

    ``nodes`` are addresses that can be asked for the owners. A producer with its ``own_id`` may
    have had earlier lives; with ``again`` it resends all their events. ``flags`` go with data
    frames.
    """

    def __init__(
        self,
        outbox: Outbox,
        incarnation: str = "",
        *,
        headers: wire.Headers | None = None,
        own_id: bool = False,
        again: bool = False,
        flags: int = 0,
    ) -> None:
        self.outbox = outbox
        self.incarnation = incarnation
        self.headers = headers or {}
        if own_id:
            self.headers = {**self.headers, wire.OWN_ID: True}
        if own_id and not again:
            self.headers[wire.NEW] = True
        self.again = again
        self.flags = flags
        self.durable = False  # settled events survive the nodes
        self.warnings: deque[tuple[str, dict[str, Any]]] = deque()  # for the user
        self.by_address: dict[str, NodeRoute] = {}
        self.nodes: tuple[str, ...] = ()
        self.regrouped = False  # routes were added or removed
        self.over = False  # no later life follows
        self.refused_as = ""  # why a node refuses the producer, if others cannot take it then
        self.leads: frozenset[str] = frozenset()  # inputs to which events may lead
        self._said_new = False
        self._own_id = own_id
        self._lines = {"": 0}  # by origin, in the order of arrival
        self._owners: defaultdict[int, _Ownership] = defaultdict(_Ownership)

    def to(self, address: str) -> NodeRoute:
        for route in self.by_address.values():
            if address in (route.address, route.alias):
                return route
        route = self.by_address[address] = NodeRoute(self, address)
        self.regrouped = True
        return route

    def route_of(self, lane: Lane) -> NodeRoute | None:
        return self._owners[lane.partition].route

    @property
    def opened(self) -> bool:
        return any(route.opened for route in self.by_address.values())

    @property
    def stuck(self) -> bool:
        """True if events wait for a partition that cannot be reached now."""
        if not self.outbox.lanes:
            return bool(self.outbox.pending)
        self.outbox.route()
        return bool(self.closed)

    @property
    def closed(self) -> list[int]:
        """The unreachable partitions for which events wait."""
        return [
            lane.partition
            for lane in self.outbox.lanes
            if not lane.open and (lane.pending or lane.frames)
        ]

    def check_news(self) -> None:
        """Warn once if everything is sent again, and no node knows an earlier life."""
        box = self.outbox
        if self._said_new or not self.again or box.closed or box.counted_before:
            return
        if box.producer.startswith(wire.BATCH):
            return
        if box.lanes and all(one.open and not one.known for one in box.lanes):
            self._said_new = True
            self.warnings.append((_ALL_IS_NEW, {}))

    def begin_layout(self) -> None:
        """Ask all nodes for the lanes of a new layout."""
        self._owners.clear()
        for route in self.by_address.values():
            route.lanes.clear()
            route.ask_for_lanes()

    # -- ownership ---------------------------------------------------------------------------

    def assign(self, owners: Sequence[str], epoch: int, origin: str = "") -> None:
        """Take the list of owners of ``epoch``; ``""`` means no owner."""
        version = self._version(epoch, origin)
        for lane, address in zip(self.outbox.lanes, owners, strict=False):
            if version >= self._owners[lane.partition].version:
                self._give(lane, self.to(address) if address else None, version)

    def owned(self, lane: Lane, route: NodeRoute, epoch: int, origin: str) -> bool:
        """Take a node's claim of ``epoch`` to a lane; return False if another route keeps it."""
        owner = self._owners[lane.partition]
        if owner.route is route:
            return True
        version = self._version(epoch, origin)
        if version < owner.version:
            return False  # a newer list names another owner
        return self._give(lane, route, version)

    def given_up(self, lane: Lane, owner: str = "") -> None:
        """Take a lane from a node that has given it up; it goes to the next known owner."""
        lane.close()
        now = self._owners[lane.partition]
        if now.following is not None:
            self._move(lane, now.following, now.version)
        elif owner:
            self._move(lane, self.to(owner), now.version)

    def merge(self, route: NodeRoute, alias: str) -> None:
        """Drop other routes to the node of ``route``, which calls itself ``alias``."""
        for other in [each for each in self.by_address.values() if each is not route]:
            if alias in (other.address, other.alias):
                for lane in list(other.lanes):
                    self._move(lane, route, self._owners[lane.partition].version)
                self.drop(other)

    def drop(self, route: NodeRoute) -> None:
        """Drop a route; its lanes wait for another owner."""
        for lane in list(route.lanes):
            self._move(lane, None, self._owners[lane.partition].version)
        for owner in self._owners.values():
            if owner.following is route:
                owner.following = None
        self.by_address.pop(route.address, None)
        self.regrouped = True

    def _version(self, epoch: int, origin: str) -> tuple[int, int]:
        """The rank of a list of owners; the highest wins."""
        return self._lines.setdefault(origin, len(self._lines)), epoch

    def _give(self, lane: Lane, route: NodeRoute | None, version: tuple[int, int]) -> bool:
        """Move a lane to its owner's route; return False if it waits for the draining one."""
        owner = self._owners[lane.partition]
        before = owner.route
        if before is None or before is route or not (before.draining and lane.open):
            self._move(lane, route, version)
            return True
        owner.version, owner.following = version, route
        return False

    def _move(self, lane: Lane, route: NodeRoute | None, version: tuple[int, int]) -> None:
        owner = self._owners[lane.partition]
        owner.version, owner.following = version, None
        if owner.route is not route:
            if owner.route is not None:
                owner.route.lanes.remove(lane)
            lane.close()
            owner.route = route
            self.regrouped = True
            if route is not None:
                route.lanes.append(lane)
        if route is not None and not lane.open:
            route.ask_for_lanes()


@dataclass(eq=False, repr=False, slots=True)
class NodeRoute:
    """The route to the node at ``address``, with the lanes that the node owns."""

    routes: Routes
    address: str
    outbox: Outbox = field(init=False)
    alias: str = field(init=False)
    lanes: list[Lane] = field(default_factory=list)
    opened: bool = False
    draining: bool = False  # the node is stopping
    budget: int = _ENVELOPE_BYTES
    _asked: deque[tuple[type, ...]] = field(default_factory=deque)
    """The classes in each unanswered hello."""
    _accepted: tuple[type, ...] = ()
    _declared: tuple[type, ...] = ()
    _wants_hello: bool = False
    _frame_bytes: int = 0
    _unasked: int = 0  # bytes of frames since the last request for a verdict
    _reopened: bool = False  # lanes with events were, and not all has left that may
    _reported_at_ms: int = 0  # when a time was last reported to it
    _first_lane: int = 0

    def __post_init__(self) -> None:
        self.outbox = self.routes.outbox
        self.alias = self.address

    # -- out ---------------------------------------------------------------------------------

    def hello_frame(self) -> bytes:
        """The frame that opens the stream on a connection, or reopens it."""
        box, headers = self.outbox, self.routes.headers
        if box.layout is not None:
            headers = {**headers, wire.LAYOUT: box.layout}
        self._declared = tuple(box.types.kinds)
        self._wants_hello = False
        self._asked.append(self._declared)
        return wire.encode_frame(
            wire.Hello(
                box.producer,
                self.routes.incarnation,
                box.stream,
                box.types.declarations,
                box.routing,
                len(box.lanes),
                tuple(
                    wire.Position(lane.partition, lane.upto, life=lane.life) for lane in box.lanes
                ),
                headers=headers,
            )
        )

    def ask_for_lanes(self) -> None:
        """Say hello again for new lanes of this route, if the connection had a hello."""
        self._wants_hello = self._wants_hello or self.opened
        self.routes.regrouped = True

    @property
    def asks(self) -> bool:
        box = self.outbox
        return not box.error and (
            self._wants_hello or (self.opened and len(self._declared) != len(box.types.kinds))
        )

    def frames(self, budget: int, now_ms: int = 0) -> list[bytes]:
        """Frames that may leave now, resends first, up to about ``budget`` bytes."""
        box = self.outbox
        if box.error:
            return []
        hello = [self.hello_frame()] if self.asks else []
        if not self.opened:
            return hello
        data, budget, most = list[bytes](), min(budget, self.budget), self._frame_bytes
        lanes, flags = self.lanes, self.routes.flags
        box.route()
        for offset in range(len(lanes)):  # in turn
            lane = lanes[(self._first_lane + offset) % len(lanes)]
            if not lane.open or not (lane.pending or lane.cursor < len(lane.frames)):
                continue
            frames = box.frames(lane, budget, now_ms, flags, most)
            data += frames
            budget -= sum(map(len, frames))
            if budget <= 0:
                self._first_lane = (self._first_lane + offset + 1) % len(lanes)  # others next
                break
        self._unasked += sum(map(len, data))
        quarter_out = self._unasked * 4 * len(self.routes.by_address) >= wire.WINDOW_BYTES
        if box.committed or not (quarter_out or (self._reopened and not self.sendable.events)):
            return hello + data
        self._unasked, self._reopened = 0, False
        return [*hello, *data, self.ask()]

    @property
    def sendable(self) -> Sendable:
        box = self.outbox
        if not self.opened or box.error:
            return _NOTHING
        return box.sendable(self.lanes)

    def time_due(self, now_ms: int) -> float | None:
        """The seconds until the latest time should be reported to the node; None if it knows it."""
        if not self.opened or not self.outbox.latest.to_report(self.lanes):
            return None
        # the absolute value: a clock that was set back does not hold the time up
        return max(0, _TIME_MS - abs(now_ms - self._reported_at_ms)) / 1000

    def time_frames(self, now_ms: int) -> list[bytes]:
        if self.time_due(now_ms) != 0:
            return []
        box, positions = self.outbox, []
        for lane in box.latest.to_report(self.lanes):
            lane.reported_time, lane.reported_idle = box.latest.reportable, box.latest.idle
            positions.append((lane.partition, min(lane.next_number, lane.released)))
        self._reported_at_ms = now_ms
        millis = math.floor(max(0.0, box.latest.reportable) * 1000)
        headers = {wire.IDLE: True} if box.latest.idle else {}
        report = wire.Watermark(box.stream, box.producer, millis, tuple(positions), headers)
        return [wire.encode_frame(report)]

    @property
    def ends(self) -> bool:
        """True if the node may forget this producer when it has gone; else a later life goes on.

        A node that has yet to answer may know an earlier life, so it gets only what was meant.
        """
        routes = self.routes
        may = routes.over or (self.opened and not (routes._own_id and routes.durable))
        return may and (self.opened or bool(self._asked))

    def ask(self) -> bytes:
        """A frame that asks for a verdict without delay."""
        box = self.outbox
        return wire.encode_frame(wire.Idle(box.stream, box.producer, wire.ANSWER_NOW))

    def end_of_stream(self) -> bytes:
        """A frame that says that this producer sends no more."""
        return wire.encode_frame(wire.EndOfStream(self.outbox.stream, self.outbox.producer))

    # -- in ----------------------------------------------------------------------------------

    def disconnected(self) -> None:
        """Close the lanes of a lost connection; events without a verdict will be resent."""
        self.opened = self._wants_hello = self._reopened = self.draining = False
        self.alias = self.address  # another node may answer there next time
        self._accepted = ()
        self._asked.clear()
        for lane in list(self.lanes):
            self.routes.given_up(lane)

    def on_hello(self, answer: wire.Hello) -> None:
        """Take the node's answer to a hello, or its report of new owners."""
        box, routes = self.outbox, self.routes
        asked = bool(self._asked) and not answer.headers.get(wire.UNASKED)
        declared = self._asked.popleft() if asked else self._accepted
        if answer.error:
            self._take_error(answer, declared)
            return
        self._learn(answer)
        durable, layout = wire.DURABLE in answer.headers, layout_in(answer.headers)
        has_none = durable and layout is None and len(box.lanes) != answer.partitions
        if has_none or (not answer.partitions and routes.nodes):
            self._wants_hello = not asked  # it may have partitions now
            for node in routes.nodes:
                routes.to(node)
            return
        before = box.lanes
        problem = box.take_answer(answer, again=routes.again)
        if problem:
            box.error = problem
            return
        if before and box.lanes is not before:
            routes.begin_layout()
        routes.durable = bool(answer.headers.get(wire.DURABLE) or answer.headers.get(wire.LOG))
        box.settlement.take_cuts(wire.pairs(answer.headers, wire.SAVEPOINT))
        epoch, origin = _whole(answer.headers.get(wire.EPOCH)), _origin(answer)
        for position in answer.positions:
            if not 0 <= position.partition < len(box.lanes):
                continue
            lane = box.lanes[position.partition]
            if not routes.owned(lane, self, epoch, origin):
                continue
            if lane.open and not asked:
                continue  # it sends already, and its position was not requested
            self._reopened |= not lane.open and lane.next_number > 0
            if not box.reopen(lane, position, again=routes.again):
                return
        self.opened = True
        self._accepted = declared
        self._wants_hello = False
        owners = _owners(answer)
        if owners:
            routes.assign(owners, epoch, origin)
        routes.check_news()

    def _take_error(self, answer: wire.Hello, declared: tuple[type, ...]) -> None:
        """Take a node's refusal of a hello that ``declared`` these classes."""
        box = self.outbox
        why = answer.headers.get(wire.WHY)
        if why is None and self._goes_on_without(answer, declared):
            self._declared = ()
            self._wants_hello = True  # with the remaining classes
            return
        others = [each for each in self.routes.by_address.values() if each is not self]
        if why in wire.FINAL or not any(route._hopes for route in others):
            self.routes.refused_as, box.error = str(why or ""), answer.error

    def _goes_on_without(self, answer: wire.Hello, declared: tuple[type, ...]) -> bool:
        """Reject the classes for which the node has refused a hello.

        Return False if the reason is not a class, or a class that was declared before any event.
        """
        box = self.outbox
        types = box.types
        if box.committed:
            return False
        new = [cls for cls in declared if cls not in self._accepted]
        if not self.opened:
            new = [cls for cls in new if cls not in types.given]
        known = [cls for cls in new if cls in types.kinds]
        described = bool(answer.types) and not answer.headers.get(wire.LOG)
        unfit = types.unfit(known, answer.types) if described else []
        if unfit or (self.opened and known):
            box.reject(unfit or known, answer.error)
        return any(cls in types.rejected for cls in new)

    @property
    def _hopes(self) -> bool:
        """True if the node takes events, or may still answer.

        A node refuses the older of two connections, maybe before it answers on the newer one.
        """
        return self.opened or self._wants_hello or bool(self._asked)

    def on_verdict(self, verdict: wire.Verdict) -> None:
        box = self.outbox
        if verdict.error:
            box.error = verdict.error
        if verdict.headers:
            box.settlement.take_cuts(wire.pairs(verdict.headers, wire.SAVEPOINT))
        for ruling in verdict.rulings:
            if not 0 <= ruling.partition < len(box.lanes):
                continue
            lane = box.lanes[ruling.partition]
            if self.routes.route_of(lane) is not self:
                continue
            box.take_ruling(lane, ruling)
            if ruling.outcome == wire.NOT_OWNER:
                self.routes.given_up(lane, ruling.owner)

    def _learn(self, answer: wire.Hello) -> None:
        routes = self.routes
        unknown = answer.headers.get(wire.UNKNOWN)
        if isinstance(unknown, (list, tuple)):
            partitions = [number for number in unknown if isinstance(number, int)]
            routes.warnings.append((_UNKNOWN, {"partitions": partitions}))
        upto = {lane.partition: lane.upto for lane in self.outbox.lanes}
        lost = wire.pairs(answer.headers, wire.LOST).items()
        if events := {each: upto[each] - number for each, number in lost if each in upto}:
            routes.warnings.append((_LOST, {"events": events}))
        self._frame_bytes = _whole(answer.headers.get(wire.MAX_FRAME_BYTES))
        most = _whole(answer.headers.get(wire.MAX_ENVELOPE_BYTES))
        if most:  # an envelope may exceed its budget by a frame
            self.budget = most // 2
            self._frame_bytes = min(self._frame_bytes or most, most // 2)
        alias = answer.headers.get(wire.ADDRESS)
        if isinstance(alias, str) and alias:
            routes.merge(self, alias)
            self.alias = alias
        if wire.NODES in answer.headers:
            routes.nodes = _texts(answer, wire.NODES)
        routes.leads = routes.leads.union(_texts(answer, wire.LEADS))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _texts(answer: wire.Hello, header: str) -> tuple[str, ...]:
    found = answer.headers.get(header)
    if not isinstance(found, (list, tuple)):
        return ()
    return tuple(each for each in found if isinstance(each, str))


def _origin(answer: wire.Hello) -> str:
    origin = answer.headers.get(wire.ORIGIN)
    return origin if isinstance(origin, str) else ""


def _owners(answer: wire.Hello) -> list[str]:
    """The address of each partition's owner in an answer; empty if it names none."""
    nodes, owners = answer.headers.get(wire.NODES), answer.headers.get(wire.OWNERS)
    if not isinstance(nodes, (list, tuple)) or not isinstance(owners, (list, tuple)):
        return []
    return [str(nodes[at]) if isinstance(at, int) and 0 <= at < len(nodes) else "" for at in owners]
