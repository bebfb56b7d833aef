"""Producers, a network and a node in memory: each step is one thing that may happen next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

from lanes import TICK, Tick, answer, headers_of, route_of

from s4node.events.event import EventBatch
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.refusal import Refusal
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import Effects, ProducerLane
from s4node.net.wire import frame as wire
from s4node.net.wire.frame import Frame, check_sections, envelope, read_envelope
from s4node.offsets.receipts import BatchReceipt
from s4node.stages.executors import StageSettings
from s4node.stages.stage import Gauge, Stage


class Wire:
    """A connection: what is under way in each direction, and what the node owes the peer."""

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.answers: list[bytes] = []
        self.dirty: dict[ProducerLane, None] = {}


class Undecoded(EventBatch):
    """A frame that counts in the deserializer until it is loaded."""

    __slots__ = ()

    is_frame = True


def stages_of(partitions: int, settings: StageSettings, frames: StageSettings) -> dict[int, Stage]:
    """A stage for each partition, all with one deserializer."""
    gauge = Gauge(frames)
    return {number: Stage(settings, number, deserializer=gauge) for number in range(partitions)}


class World:
    """Producers, a network and a node; each method is one thing that may happen next."""

    def __init__(
        self,
        producers: int = 2,
        partitions: int = 2,
        capacity: int = 4,
        frame_events: int = 3,
        routing: str = "crc32m:",
        executor: str = "block",
        max_bytes: int = 1 << 20,
    ) -> None:
        self.routing = routing
        self.sheds = executor != "block"
        self.time = 0.0
        settings = StageSettings("stream", "ticks", executor, capacity, max_bytes)
        frames = StageSettings("deserializer", "ticks", "block", 2 * capacity, 3 * max_bytes)
        self.effects = Effects()
        self.admission = StreamAdmission(
            "ticks",
            stages_of(partitions, settings, frames),
            self.effects,
        )
        self.outboxes = {
            f"p{n}": Outbox(
                "ticks", f"p{n}", types=[Tick], max_frame_events=frame_events, max_frame_bytes=200
            )
            for n in range(producers)
        }
        self.routes = {name: route_of(outbox) for name, outbox in self.outboxes.items()}
        self.names = list(self.outboxes)
        self.wires: dict[str, Wire | None] = dict.fromkeys(self.names)
        self.old_wires: list[Wire] = []  # dead, which the node has yet to notice
        self.working: list[EventBatch] = []
        self.serial = 0
        self.put_count = Counter[str]()
        self.unsendable: set[int] = set()
        self.spoiled: set[tuple[str, int, int]] = set()
        self.processed: dict[tuple[str, int], list[int]] = {}
        self.refused: dict[str, set[int]] = {name: set() for name in self.names}
        self.told: dict[str, list[Refusal]] = {name: [] for name in self.names}

    # -- the producers -----------------------------------------------------------------------

    def put(self, name: str, count: int, what: str) -> None:
        for _ in range(count):
            user = "x" * 300 if what == "unsendable" else f"{what}-{self.serial}"
            if what == "unsendable":
                self.unsendable.add(self.serial)
            self.outboxes[name].put(Tick(user, self.serial))
            self.put_count[name] += 1
            self.serial += 1

    def send(self, name: str, budget: int) -> None:
        wire_, outbox = self.wires[name], self.outboxes[name]
        resent = [len(lane.frames) for lane in outbox.lanes]
        sendable = self.routes[name].sendable.events
        frames = self.routes[name].frames(budget)
        data = [each for each in headers_of(frames) if isinstance(each, wire.Data)]
        assert sendable or not data
        for header in data:
            lane = outbox.lanes[header.partition]
            assert header.first < lane.limit
            if header.first >= (
                lane.frames[resent[lane.partition] - 1].end if resent[lane.partition] else lane.upto
            ):
                assert header.first + header.count <= lane.limit
        if frames:
            assert wire_ is not None
            wire_.up.append(envelope(frames))

    def ask(self, name: str) -> None:
        wire_, route = self.wires[name], self.routes[name]
        if wire_ is not None and route.routes.opened:
            wire_.up.append(envelope([route.ask()]))

    def greet_again(self, name: str) -> None:
        wire_, route = self.wires[name], self.routes[name]
        if wire_ is not None:
            wire_.up.append(envelope([route.hello_frame()]))

    def hear(self, name: str) -> None:
        wire_, outbox = self.wires[name], self.outboxes[name]
        if wire_ is not None and wire_.down:
            for header in headers_of_envelope(wire_.down.popleft()):
                if isinstance(header, wire.Hello):
                    self.routes[name].on_hello(header)
                else:
                    self.routes[name].on_verdict(header)
            assert not outbox.error
            for refusal in outbox.refusals.drain():
                if refusal.number >= 0:
                    self.told[name].append(refusal)

    # -- the network -------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        if self.wires[name] is None:
            self.wires[name] = Wire(name)
            self.routes[name].disconnected()
            self.greet_again(name)

    def disconnect(self, name: str, arriving: int) -> None:
        """The producer's end is gone; some of what it had sent may arrive all the same."""
        wire_ = self.wires[name]
        if wire_ is not None:
            self.wires[name] = None
            self.routes[name].disconnected()
            wire_.down.clear()
            while len(wire_.up) > arriving:
                wire_.up.pop()
            self.old_wires.append(wire_)

    def spoil(self, name: str) -> None:
        """A frame is lost, once, although a later one of its lane arrives."""
        wire_ = self.wires[name]
        if wire_ is not None:
            envelopes = [list(frames_of(sent)) for sent in wire_.up]
            last = {lane: first for frames in envelopes for lane, first, _ in frames}
            for frames in envelopes:
                for index, (lane, first, _) in enumerate(frames):
                    if first < last[lane] and (name, lane, first) not in self.spoiled:
                        self.spoiled.add((name, lane, first))
                        del frames[index]
                        wire_.up = deque(envelope([f for *_, f in each]) for each in envelopes)
                        return

    # -- the node ----------------------------------------------------------------------------

    def node_reads(self, wire_: Wire) -> None:
        if wire_.up:
            for frame in read_envelope(wire_.up.popleft(), 1 << 20):
                assert isinstance(frame, Frame)
                self.node_takes(frame, wire_)

    def node_takes(self, frame: Frame, wire_: Wire) -> None:
        header = frame.header
        if isinstance(header, wire.Hello):
            if wire_ is self.wires[header.peer]:  # a hello that comes after a later one is lost
                positions = self.admission.hello(header, wire_, 0.0)
                reply = answer(*positions, routing=self.routing)
                wire_.answers.append(wire.encode_frame(reply))
        elif isinstance(header, wire.Idle):
            self.admission.ask(header.producer, wire_)
        elif isinstance(header, wire.Data):
            assert check_sections(header, frame.body) == ""
            size = len(frame.body)
            receipt = self.admission.admit(header, wire_, 0.0, size)
            if receipt is not None:
                count = receipt.end - receipt.first
                skip = receipt.first - header.first
                events = TICK.decode(frame.body)[skip : skip + count]
                assert len(events) == count
                assert count == header.count - skip or self.sheds
                stage = self.admission.stages[header.partition]
                assert stage.bytes + size <= stage.max_bytes or not stage.depth
                batch = Undecoded(
                    "ticks", header.partition, events, receipt, receipt.first, weight=size
                )
                stage.offer(batch)

    def owes(self, wire_: Wire) -> bool:
        """Whether the node has anything to tell the peer."""
        for lane in self.effects.answers:
            if isinstance(lane.connection, Wire):
                lane.connection.dirty[lane] = None
        self.effects.answers.clear()
        return bool(wire_.dirty or wire_.answers)

    def node_tells(self, wire_: Wire, busy: bool) -> None:
        """One envelope of answers and verdicts, if the socket takes it."""
        self.owes(wire_)
        lanes = [lane for lane in wire_.dirty if lane.connection is wire_]
        verdict = wire.Verdict("ticks", wire_.producer, tuple(lane.ruling() for lane in lanes))
        if busy:
            for lane in lanes:
                lane.not_sent()
            return
        frames = [*wire_.answers, *([wire.encode_frame(verdict)] if lanes else [])]
        wire_.answers.clear()
        wire_.dirty = {lane: None for lane in lanes if lane.report.urgent}
        if frames:
            wire_.down.append(envelope(frames))

    def node_notices(self, wire_: Wire) -> None:
        """The connection is gone."""
        self.old_wires.remove(wire_)
        self.admission.gone(wire_, 0.0)

    def process(self, partition: int, parts: int) -> None:
        stage = self.admission.stages[partition]
        batch = stage.poll()
        if batch is None:
            return
        stage.load()
        receipt = batch.receipt
        assert isinstance(receipt, BatchReceipt)
        name = receipt.progress.producer
        done = self.processed.setdefault((name, partition), [])
        for index, tick in enumerate(batch.events):
            done.append(tick.serial)
            if tick.user.startswith("bad"):
                receipt.refuse(batch.number(index), "bad")
                self.refused[name].add(tick.serial)
        receipt.parts = parts
        self.working += [batch] * parts

    def finish(self, index: int) -> None:
        if self.working:
            batch = self.working.pop(index % len(self.working))
            receipt = batch.receipt
            assert isinstance(receipt, BatchReceipt)
            if receipt.parts == 1:
                self.admission.stages[batch.partition].release(batch.size, batch.bytes)
            receipt.done()
            self.time += 1
            self.admission.tick(self.time, 1 << 30)
            self.admission.released()

    # -- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        self.admission.validate()
        for name, outbox in self.outboxes.items():
            outbox.validate()
            counts = outbox.refusals.counts
            assert self.sheds or not counts["shed"]
            assert outbox.admitted >= 0
            excepted = sum(len(lane.excepted) for lane in outbox.lanes)
            told = counts["refused"] + counts["shed"]
            assert self.put_count[name] == (
                outbox.admitted + told - excepted + counts["unsent"] + outbox.unsettled
            )
            assert told == sum(refusal.count for refusal in self.told[name])
            assert counts["refused"] <= len(self.refused[name])
        for stage in self.admission.stages.values():
            stage.validate()
        for serials in self.processed.values():  # once, and in order
            assert all(one < other for one, other in pairwise(serials))

    def settle(self) -> None:
        """Let the network be good and quiet, until nothing moves any more."""
        for name in self.names:
            self.connect(name)
        for wire_ in list(self.old_wires):
            self.node_notices(wire_)
        for _ in range(20 + 4 * self.serial):
            for name, wire_ in self.wires.items():
                assert wire_ is not None
                self.send(name, 1 << 20)
                if self.admission.left and self.outboxes[name].unsettled:
                    self.ask(name)  # as a flush does; a frame was lost twice, here and by the node
                while wire_.up:
                    self.node_reads(wire_)
                while self.owes(wire_):
                    self.node_tells(wire_, busy=False)
                while wire_.down:
                    self.hear(name)
            for partition in self.admission.stages:
                self.process(partition, 1)
            while self.working:
                self.finish(0)
            self.check()
            if not any(outbox.unsettled for outbox in self.outboxes.values()):
                break
        self.check_the_end()

    def check_the_end(self) -> None:
        assert {name: box.unsettled for name, box in self.outboxes.items()} == dict.fromkeys(
            self.names, 0
        )
        for stage in self.admission.stages.values():
            for gauge in (stage, stage.deserializer):
                assert (gauge.depth, gauge.bytes) == (0, 0)
        handled = sorted(serial for serials in self.processed.values() for serial in serials)
        sendable = [n for n in range(self.serial) if n not in self.unsendable]
        shed = sum(outbox.refusals.counts["shed"] for outbox in self.outboxes.values())
        assert handled == sendable or self.sheds
        assert len(handled) + shed == len(sendable)
        assert shed == sum(sum(s.shed.values()) for s in self.admission.stages.values())
        for name, outbox in self.outboxes.items():
            counts = outbox.refusals.counts
            assert counts["refused"] == len(self.refused[name])
            assert self.put_count[name] == (
                outbox.admitted + counts["refused"] + counts["shed"] + counts["unsent"]
            )


def frames_of(sent: bytes) -> Iterator[tuple[int, int, bytes]]:
    for frame in read_envelope(sent, 1 << 20):
        assert isinstance(frame, Frame)
        header = frame.header
        place = (header.partition, header.first) if isinstance(header, wire.Data) else (-1, -1)
        yield *place, wire.encode_frame(header, bytes(frame.body))


def headers_of_envelope(sent: bytes) -> list[Any]:
    return [frame.header for frame in read_envelope(sent, 1 << 20)]  # type: ignore[union-attr]


WHAT = ["good"] * 4 + ["bad"] * 3 + ["unsendable"]


def happen(world: World, random: Random, disconnects: bool) -> None:
    name = random.choice(world.names)
    live = [wire_ for wire_ in world.wires.values() if wire_ is not None]
    wires = live + world.old_wires
    step = random.randrange(100)
    if step < 6:
        world.put(name, random.randint(1, 9), random.choice(WHAT))
    elif step < 22:
        world.send(name, random.choice([1, 60, 1000]))
    elif step < 34 and wires:
        world.node_reads(random.choice(wires))
    elif step < 46 and wires:
        world.node_tells(random.choice(wires), busy=random.random() < 0.25)
    elif step < 58:
        world.hear(name)
    elif step < 68:
        world.process(random.randrange(len(world.admission.stages)), random.randint(1, 3))
    elif step < 80:
        world.finish(random.randrange(1 + len(world.working)))
    elif step < 81:
        world.ask(name)
    elif step < 82:
        world.greet_again(name)
    elif step < 89:
        world.spoil(name)
    elif step < 94:
        world.connect(name)
    elif step < 97 and disconnects:
        world.disconnect(name, random.randint(0, 4))
    elif world.old_wires:
        world.node_notices(random.choice(world.old_wires))
