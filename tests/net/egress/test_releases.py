"""Every release lets each event arrive once and in order, whenever it lets events leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import LIMITLESS, TICK, Tick, answer, drained, headers_of, route_of, ruled, ticks

from s4node.events.event import EventBatch
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.release import AtOnce, ByExecutor
from s4node.net.egress.settlements import Receipts, ReceiversCommits
from s4node.net.egress.with_commit import WithCommit
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import Effects
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.offsets.receipts import BatchReceipt
from s4node.stages.executors import SENDER, StageSettings
from s4node.stages.stage import Stage
from s4node.state.rows import Changes

PARTITIONS = 2

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, PARTITIONS - 1), st.integers(1, 9)),
        st.sampled_from([("let go",), ("receive",), ("settle",), ("reconnect",)]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("release", ["at once", "by executor", "with commit"])
@given(MOVES)
def test_events_arrive_once_and_in_order_and_are_behind_until_settled(
    release: str, moves: list[Any]
) -> None:
    box = Outbox("ticks", "p", types=[Tick], max_frame_events=4, committed=release == "with commit")
    way, let_go = WAYS[release](box)
    receiver = Receiver(box)
    put: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for move, *arguments in [*moves, *[("let go",)] * 100, ("receive",), ("settle",)]:
        if move == "put":
            partition, size = arguments
            events = ticks(size, start=sum(map(len, put)))
            put[partition] += [event.serial for event in events]
            assert way.put(events, partition, receiver.now) == 0
        elif move == "let go":
            receiver.now += 0.1
            let_go(receiver.now)
        elif move == "receive":
            receiver.receive()
        elif move == "settle":
            receiver.settle()
        else:
            receiver.open()
        box.validate()
        assert way.unsettled == sum(map(len, put)) - sum(receiver.settled)
        for partition, events in enumerate(put):
            taken = receiver.taken[partition]
            assert taken == events[: len(taken)]
            assert way.behind(partition) == (len(events) > receiver.settled[partition])
    assert receiver.settled == [len(events) for events in put]


def test_an_executor_holds_the_app_back_while_events_wait_for_their_tokens() -> None:
    box = Outbox("ticks", "p", types=[Tick])
    way, let_go = throttled(box, capacity=10)
    way.put(ticks(9), 0, 0.0)
    assert (way.unsettled, box.pending) == (9, 0)
    assert way.has_staged
    assert way.holds  # from half of the capacity on
    let_go(1.0)
    assert (way.stage.depth, box.pending, way.holds) == (5, 4, True)
    assert way.due(1.0) == pytest.approx(1.025)


# -- set-up ---------------------------------------------------------------------------------------


Way = tuple[Any, Callable[[float], Any]]
"""A release, and the function that has events leave."""


def at_once(box: Outbox) -> Way:
    box.open_lanes(PARTITIONS, wire.ROUTED)
    return AtOnce(box), lambda _: None


def throttled(box: Outbox, capacity: int = 10_000) -> Way:
    """Four events may leave in 0.1 s."""
    box.open_lanes(PARTITIONS, wire.ROUTED)
    settings = StageSettings(SENDER, "ticks", "throttle", capacity, 1 << 30, 40)
    way = ByExecutor(box, Stage(settings))
    return way, way.pump


def with_commit(box: Outbox) -> Way:
    changes = Changes()
    way = WithCommit(ReceiversCommits(box, "ticks", changes, {}), partitions=PARTITIONS)

    def commit(_: float) -> None:
        way.begin_commit()
        changes.begin_commit()
        while way.encode():
            box.validate()
        changes.rows_to_write()
        changes.written()
        way.end_commit(written=True)

    return way, commit


WAYS = {"at once": at_once, "by executor": throttled, "with commit": with_commit}


class Receiver:
    def __init__(self, box: Outbox) -> None:
        self.now = 0.0
        self.taken: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.settled = [0] * PARTITIONS
        self._route = route_of(box)
        self._route.routes.assign([self._route.address] * PARTITIONS, 0)
        self._decoder = FrameDecoder({TICK.fingerprint: TICK})
        self.open()

    def open(self) -> None:
        self._route.disconnected()
        self._route.hello_frame()
        for taken, settled in zip(self.taken, self.settled, strict=True):
            del taken[settled:]
        positions = [wire.Position(p, n, LIMITLESS, n) for p, n in enumerate(self.settled)]
        self._route.on_hello(answer(*positions))

    def receive(self) -> None:
        for data in drained(self._route):
            (frame,) = wire.read_envelope(wire.envelope([data]), 1 << 20)
            assert isinstance(frame, wire.Frame)
            if isinstance(frame.header, wire.Data):
                taken = self.taken[frame.header.partition]
                assert frame.header.first == len(taken), "a hole, or sent twice"
                taken += [each.serial for each in self._decoder.decode(frame.header, frame.body)[0]]

    def settle(self) -> None:
        self.settled = [len(taken) for taken in self.taken]
        for partition, number in enumerate(self.settled):
            ruled(self._route, partition, number, LIMITLESS)


def test_a_frame_names_the_producers_of_its_events_in_order() -> None:
    outbox = Outbox("ticks", "node-1", types=[Tick], max_frame_events=4)
    forwarder = Receipts(outbox)
    outbox.open_lanes(1, wire.ROUTED)
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 100)))
    for producer, first, count in (("bank", 0, 3), ("till", 0, 2), ("till", 2, 2)):
        forwarder.forward(from_producer(producer, first, count))
    told = [header.headers[wire.SENDERS] for header in headers_of(route.frames(10_000))]
    assert told == [[["bank", 3], ["till", 1]], [["till", 3]]]
    outbox.validate()


def test_what_was_forwarded_before_keeps_the_names_of_its_senders() -> None:
    outbox = Outbox("ticks", "node-2", types=[Tick])
    outbox.open_lanes(1, wire.ROUTED)
    batch = from_producer("node-1", 0, 3)
    assert isinstance(batch.receipt, BatchReceipt)
    batch.receipt.progress.note_senders(0, [("bank", 2), ("till", 1)])
    Receipts(outbox).forward(batch)
    assert list(outbox.lanes[0].senders) == [("bank", 2), ("till", 1)]


# -- set-up ---------------------------------------------------------------------------------------


def from_producer(producer: str, first: int, count: int) -> EventBatch:
    admission = StreamAdmission("ticks", {0: Stage(1000)}, Effects())
    hello = wire.Hello(producer, "1", "ticks", (TICK.declaration,))
    admission.hello(hello, "peer", 0.0)
    lane = admission.lanes[producer, 0]
    receipt = BatchReceipt(lane, first, first + count)
    return EventBatch("ticks", 0, ticks(count), receipt, first)
