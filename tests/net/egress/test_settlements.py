"""The promises of forwarding: it tells the owner of events which producers have sent them."""

from __future__ import annotations

from lanes import TICK, Tick, answer, headers_of, route_of, ticks

from s4node.events.event import EventBatch
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.settlements import Receipts
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import Effects
from s4node.net.wire import frame as wire
from s4node.offsets.receipts import BatchReceipt
from s4node.stages.stage import Stage


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
