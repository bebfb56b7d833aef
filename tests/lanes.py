"""Shared by the tests of outboxes and of the admission: events, hellos, and how to read frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from s4node.events.event import Event
from s4node.events.schema import EventType
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.routes import NodeRoute, Routes
from s4node.net.wire import frame as wire
from s4node.net.wire.frame import Frame, envelope, read_envelope


class Tick(Event):
    user: str
    serial: int = 0


class Tock(Event):
    user: str


TICK = EventType(Tick)
NODE = object()
LARGE = "x" * 100_000
LIMITLESS = 1 << 40


def route_of(outbox: Outbox, incarnation: str = "i1", **more: Any) -> NodeRoute:
    """The only one of an outbox's routes."""
    return Routes(outbox, incarnation, **more).to("tcp://node:1")


def headers_of(frames: list[bytes]) -> list[Any]:
    """The headers of encoded frames, all of them good."""
    read = list(read_envelope(envelope(frames), 1 << 20))
    assert all(isinstance(frame, Frame) for frame in read)
    return [frame.header for frame in read]  # type: ignore[union-attr]


def spans(frames: list[bytes]) -> list[tuple[int, int, int]]:
    """Partition, first and end of each data frame."""
    found = [each for each in headers_of(frames) if isinstance(each, wire.Data)]
    return [(h.partition, h.first, h.first + h.count) for h in found]


def answer(
    *positions: wire.Position,
    routing: str = "crc32m:",
    takes: Sequence[type] = (Tick,),
    **more: Any,
) -> wire.Hello:
    """A node's hello, for as many partitions as there are positions."""
    types = tuple(EventType(cls).declaration for cls in takes)
    return wire.Hello("node", "n1", "ticks", types, routing, len(positions), positions, **more)


def opened(
    *limits: int, routing: str = "crc32m:", takes: Sequence[type] = (Tick,), **more: Any
) -> tuple[Outbox, NodeRoute]:
    """An outbox for as many partitions as there are limits, and its route, its hello answered."""
    outbox = Outbox("ticks", "p", types=[Tick], **more)
    route = route_of(outbox)
    route.hello_frame()
    positions = [wire.Position(p, 0, limit) for p, limit in enumerate(limits)]
    route.on_hello(answer(*positions, routing=routing, takes=takes))
    return outbox, route


def ticks(count: int, start: int = 0) -> list[Tick]:
    return [Tick(f"user-{n}", n) for n in range(start, start + count)]


def ruled(
    route: NodeRoute,
    partition: int,
    upto: int,
    limit: int,
    outcome: int = wire.ADMITTED,
    expected: int = 0,
    exceptions: Any = (),
    **more: Any,
) -> None:
    """The outbox hears one ruling."""
    ruling = wire.Ruling(partition, outcome, upto, limit, expected, exceptions, **more)
    route.on_verdict(wire.Verdict("ticks", "p", (ruling,)))
    route.outbox.validate()


def drained(route: NodeRoute) -> list[bytes]:
    """All frames that may leave, one envelope after the other."""
    out: list[bytes] = []
    while made := route.frames(1 << 17):
        out += made
    return out


class Changes(list[bool]):
    """The owner of an end of a connection, which lists when its peer has come and gone."""

    def set_connected(self, connected: bool) -> None:
        self.append(connected)
