"""The routes of an outbox: which node owns which partition, and how its frames get there. Pure.

Rules
- There is a route to each node that may own partitions of the stream. A lane leaves by one: that to
  the node which owns its partition. Who that is comes with the answers to hellos, and may change; a
  newer word (a higher epoch) wins. Where an app was removed and deployed again its epochs begin
  anew, in a line of another origin: of two lines that which was heard of later is newer.
- ``hello`` first: a lane sends nothing before its owner has said where it goes on.
- The answer to a hello opens the lanes that the node owns, and says who owns the others. A node
  also says so unasked when owners change; then a new hello opens what has come to it.
- A node's redirector does not take events: it answers with those who do, and 0 partitions.
- A verdict is asked for with every quarter of what a producer may have to keep: a node that commits
  only when it is asked would never hear that nothing more can leave before it does.
- A node that was dialled by one name may call itself by another: ``alias`` is its own, for as long
  as it is connected. Then it is looked for by both.
- What comes by a route concerns its own lanes only: a node that has lost a partition cannot rule
  on it any more.
- The lanes of a node that drains stay with it until it gives them up, or the connection ends: its
  last verdicts may still be on their way when others already say who is next.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox import Outbox
from s4node.net.transport.linger import Sendable
from s4node.net.wire import frame as wire

_ENVELOPE_BYTES = 131_072
_NOTHING = Sendable(0, 0, 0)

_UNKNOWN = (
    "the node knows this producer no longer: what had no verdict is sent, and counts twice if it "
    "was committed"
)
_LOST = (
    "the log has not all that it has acknowledged: a power cut took it, an older copy of a file "
    "was put back, or this producer was forgotten there"
)


class _Ownership:
    """Who owns a partition, as far as is known."""

    __slots__ = ("following", "route", "word")

    def __init__(self) -> None:
        self.route: NodeRoute | None = None  # None: nobody is known to own it
        self.word = (0, -1)  # how new the word is on who owns it
        self.following: NodeRoute | None = (
            None  # to who is next, once ``route`` has given the lane up
        )


class Routes:
    """The routes of ``outbox`` to the nodes of one cluster.

    ``nodes`` are the addresses where the stream's owners can be asked for. A producer that has its
    ``own_id`` may have had earlier lives; ``again`` tells that it sends what they have sent, too.
    ``flags`` are those of its data frames.
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
        self.durable = False  # what the nodes settle survives them
        self.warnings: deque[tuple[str, dict[str, Any]]] = deque()  # what users should know
        self.by_address: dict[str, NodeRoute] = {}
        self.nodes: tuple[str, ...] = ()
        self.regrouped = False  # routes have come or gone
        self.over = False  # not even a later life sends anything
        self._own_id = own_id
        self._lines = {"": 0}  # by origin, in the order in which they were heard of
        self._owners: defaultdict[int, _Ownership] = defaultdict(_Ownership)

    def to(self, address: str) -> NodeRoute:
        """The route to the node at ``address``, made if there is none yet."""
        for route in self.by_address.values():
            if address in (route.address, route.alias):
                return route
        route = self.by_address[address] = NodeRoute(self, address)
        self.regrouped = True
        return route

    def of(self, lane: Lane) -> NodeRoute | None:
        """The route by which a lane leaves; None if nobody is known to own its partition."""
        return self._owners[lane.partition].route

    @property
    def opened(self) -> bool:
        """Whether some node has answered for the stream."""
        return any(route.opened for route in self.by_address.values())

    @property
    def stuck(self) -> bool:
        """Whether events wait for a partition that cannot be reached now."""
        if not self.outbox.lanes:
            return bool(self.outbox.pending)
        self.outbox.route()
        return bool(self.closed)

    @property
    def closed(self) -> list[int]:
        """The partitions that cannot be reached now, of those for which events wait."""
        return [
            lane.partition
            for lane in self.outbox.lanes
            if not lane.open and (lane.pending or lane.kept)
        ]

    @property
    def all_is_new(self) -> bool:
        """Return True if it sends all of it again, and no node knows of an earlier life."""
        lanes = self.outbox.lanes
        return self.again and bool(lanes) and all(one.open and not one.known for one in lanes)

    @property
    def ends(self) -> bool:
        """Return True if nodes may forget us when we are gone; else a later life goes on."""
        return self.over or not (self._own_id and self.durable)

    # -- who owns what -----------------------------------------------------------------------

    def assign(self, owners: Sequence[str], epoch: int, origin: str = "") -> None:
        """Take the word of ``epoch`` on who owns each partition; ``""`` is nobody."""
        word = self._word(epoch, origin)
        for lane, address in zip(self.outbox.lanes, owners, strict=False):
            if word >= self._owners[lane.partition].word:
                self._give(lane, self.to(address) if address else None, word)

    def owned(self, lane: Lane, route: NodeRoute, epoch: int, origin: str) -> bool:
        """The node of ``route`` says, by ``epoch``, that it owns a lane; False if that stays
        elsewhere."""
        owner = self._owners[lane.partition]
        if owner.route is route:
            return True
        word = self._word(epoch, origin)
        if word < owner.word:
            return False  # whom others call the owner has been told so later
        return self._give(lane, route, word)

    def given_up(self, lane: Lane, owner: str = "") -> None:
        """The node rules on a lane no longer; it goes on with the next owner that is known."""
        lane.close()
        now = self._owners[lane.partition]
        if now.following is not None:
            self._move(lane, now.following, now.word)
        elif owner:
            self._move(lane, self.to(owner), now.word)

    def merge(self, route: NodeRoute, alias: str) -> None:
        """The node of ``route`` calls itself ``alias``: what leads to it by other names ends."""
        for other in [each for each in self.by_address.values() if each is not route]:
            if alias in (other.address, other.alias):
                for lane in list(other.lanes):
                    self._move(lane, route, self._owners[lane.partition].word)
                self.drop(other)

    def drop(self, route: NodeRoute) -> None:
        """The route leads nowhere any more; its lanes wait for another owner."""
        for lane in list(route.lanes):
            self._move(lane, None, self._owners[lane.partition].word)
        for owner in self._owners.values():
            if owner.following is route:
                owner.following = None
        self.by_address.pop(route.address, None)
        self.regrouped = True

    def _word(self, epoch: int, origin: str) -> tuple[int, int]:
        """How new a word on owners is: of two the higher one is true."""
        return self._lines.setdefault(origin, len(self._lines)), epoch

    def _give(self, lane: Lane, route: NodeRoute | None, word: tuple[int, int]) -> bool:
        """``route`` leads to the lane's owner; False if that begins only when the one before
        ends."""
        owner = self._owners[lane.partition]
        before = owner.route
        if before is None or before is route or not (before.draining and lane.open):
            self._move(lane, route, word)
            return True
        owner.word, owner.following = word, route
        return False

    def _move(self, lane: Lane, route: NodeRoute | None, word: tuple[int, int]) -> None:
        """``route`` leads to the lane's owner."""
        owner = self._owners[lane.partition]
        owner.word, owner.following = word, None
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


class NodeRoute:
    """The one of ``routes`` that leads to the node at ``address``, with the lanes that it owns."""

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
        "routes",
    )

    def __init__(self, routes: Routes, address: str) -> None:
        self.routes = routes
        self.outbox = routes.outbox
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
        self._declared = tuple(box.types.known)
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
                headers=self.routes.headers,
            )
        )

    def ask_for_lanes(self) -> None:
        """Lanes have come to this route: say hello for them, if the connection has one already."""
        self._wants_hello = self._wants_hello or self.opened
        self.routes.regrouped = True

    @property
    def asks(self) -> bool:
        """Whether a hello is to be sent now."""
        box = self.outbox
        return not box.error and (
            self._wants_hello or (self.opened and len(self._declared) != len(box.types.kinds))
        )

    def frames(self, budget: int, now_ms: int = 0) -> list[bytes]:
        """Frames that may leave now, resends first, up to about ``budget`` bytes."""
        box = self.outbox
        if box.error:
            return []
        box.route()
        hello = [self.hello()] if self.asks else []
        if not self.opened:
            return hello
        data = self._data_frames(min(budget, self.budget), now_ms)
        self._unasked += sum(map(len, data))
        quarter_out = self._unasked * 4 * len(self.routes.by_address) >= wire.WINDOW_BYTES
        if not quarter_out or box.committed:
            return hello + data
        self._unasked = 0
        return [*hello, *data, self.ask()]

    def _data_frames(self, budget: int, now_ms: int) -> list[bytes]:
        """Frames of the lanes in turn; where ``budget`` ends, the next lane begins next time."""
        box, lanes, flags, most = self.outbox, self.lanes, self.routes.flags, self._frame_bytes
        out: list[bytes] = []
        for offset in range(len(lanes)):
            lane = lanes[(self._first_lane + offset) % len(lanes)]
            if not lane.open or not (lane.pending or lane.cursor < len(lane.kept)):
                continue
            frames = box.frames(lane, budget, now_ms, flags, most)
            out += frames
            budget -= sum(map(len, frames))
            if budget <= 0:
                self._first_lane = (self._first_lane + offset + 1) % len(lanes)  # others' turn
                break
        return out

    @property
    def sendable(self) -> Sendable:
        """What may leave now, with what is to be sent again."""
        box = self.outbox
        if not self.opened or box.error:
            return _NOTHING
        return box.sendable(self.lanes)

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
            self.routes.given_up(lane)

    def on_hello(self, answer: wire.Hello) -> None:
        """The node's answer, or its word that owners have changed."""
        box, routes = self.outbox, self.routes
        asked = bool(self._asked) and not answer.headers.get(wire.UNASKED)
        declared = self._asked.popleft() if asked else self._accepted
        if answer.error:
            self._take_error(answer, declared)
            return
        self._learn(answer)
        is_redirector = not answer.partitions and bool(routes.nodes)
        if is_redirector:
            for node in routes.nodes:
                routes.to(node)
            return
        problem = box.take_answer(answer)
        if problem:
            box.error = problem
            return
        routes.durable = bool(answer.headers.get(wire.DURABLE) or answer.headers.get(wire.LOG))
        box.take_cuts(wire.pairs(answer.headers, wire.SAVEPOINT))
        epoch, origin = _whole(answer.headers.get(wire.EPOCH)), _origin(answer)
        for position in answer.positions:
            if not 0 <= position.partition < len(box.lanes):
                continue
            lane = box.lanes[position.partition]
            if not routes.owned(lane, self, epoch, origin):
                continue
            if lane.open and not asked:
                continue  # it sends already, and nobody asked where it goes on
            if not box.reopen(lane, position, again=routes.again):
                return
        self.opened = True
        self._accepted = declared
        self._wants_hello = False
        owners = _owners(answer)
        if owners:
            routes.assign(owners, epoch, origin)

    def _take_error(self, answer: wire.Hello, declared: tuple[type, ...]) -> None:
        """The node has turned a hello down that ``declared`` these classes."""
        box = self.outbox
        if self._goes_on_without(answer, declared):
            self._declared = ()
            self._wants_hello = True  # again, with what is left
        elif not any(
            route._hopes for route in self.routes.by_address.values() if route is not self
        ):
            box.error = answer.error

    def _goes_on_without(self, answer: wire.Hello, declared: tuple[type, ...]) -> bool:
        """Reject the classes for which the node has turned a hello down; False if it was not for
        classes, or for those that were given before there was any event."""
        box = self.outbox
        types = box.types
        if box.committed:
            return False
        new = [cls for cls in declared if cls not in self._accepted]
        if not self.opened:
            new = [cls for cls in new if cls not in types.given]
        known = [cls for cls in new if cls in types.known]
        told = bool(answer.types) and not answer.headers.get(wire.LOG)
        unfit = types.unfit(known, answer.types) if told else []
        if unfit or (self.opened and known):
            box.reject(unfit or known, answer.error)
        return any(cls in types.rejected for cls in new)

    @property
    def _hopes(self) -> bool:
        """Whether it takes events, or may yet: of two ways to one node it turns the older down, and
        may say so before it answers on the newer."""
        return self.opened or self._wants_hello or bool(self._asked)

    def on_verdict(self, verdict: wire.Verdict) -> None:
        """Take the node's rulings."""
        box = self.outbox
        if verdict.error:
            box.error = verdict.error
        if verdict.headers:
            box.take_cuts(wire.pairs(verdict.headers, wire.SAVEPOINT))
        for ruling in verdict.rulings:
            if not 0 <= ruling.partition < len(box.lanes):
                continue
            lane = box.lanes[ruling.partition]
            if self.routes.of(lane) is not self:
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
        if most:  # an envelope may be over its budget by a frame
            self.budget = most // 2
            self._frame_bytes = min(self._frame_bytes or most, most // 2)
        alias = answer.headers.get(wire.ADDRESS)
        if isinstance(alias, str) and alias:
            routes.merge(self, alias)
            self.alias = alias
        nodes = answer.headers.get(wire.NODES)
        if isinstance(nodes, (list, tuple)):
            routes.nodes = tuple(node for node in nodes if isinstance(node, str))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _origin(answer: wire.Hello) -> str:
    origin = answer.headers.get(wire.ORIGIN)
    return origin if isinstance(origin, str) else ""


def _owners(answer: wire.Hello) -> list[str]:
    """The address of each partition's owner, as an answer tells them; empty if it does not."""
    nodes, owners = answer.headers.get(wire.NODES), answer.headers.get(wire.OWNERS)
    if not isinstance(nodes, (list, tuple)) or not isinstance(owners, (list, tuple)):
        return []
    return [str(nodes[at]) if isinstance(at, int) and 0 <= at < len(nodes) else "" for at in owners]
