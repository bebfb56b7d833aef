"""Producers of a stream that gets other numbers of partitions, against a model of its node."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from lanes import TICK, Tick, headers_of
from seeds_of_the_day import every_fourth

from s4node.net.egress.outbox import Outbox
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.offsets.checkpoint import Closing

SIZES = (1, 2, 3, 4, 5, 8)


@pytest.mark.parametrize("key", ["user", None], ids=["keyed", "round robin"])
@pytest.mark.parametrize("block", every_fourth(4))
def test_each_event_counts_once_whatever_layouts_end_and_whichever_life_sends_again(
    block: int, key: str | None
) -> None:
    found = Counter(outcome(seed, key) for seed in range(block * 100, block * 100 + 100))
    assert found == {"exact": 100}


def test_a_life_that_sends_again_has_not_sent_as_much_yet_as_was_counted_before() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    take(outbox, 2, [5], layout=1, closed=[Closing((3,))])
    events = [Tick("joe", n) for n in range(5)]
    outbox.extend(events[:2])
    assert waiting(outbox) == []
    outbox.extend(events[2:])
    assert waiting(outbox) == events[3:]


def test_a_producer_that_goes_on_drops_what_counts_and_routes_the_rest_in_its_order() -> None:
    outbox = Outbox("ticks", "p", key="user", types=[Tick])
    take(outbox, 4, [0] * 4, layout=0, closed=[], routing="crc32m:user")
    events = [Tick(f"user-{n % 7}", n) for n in range(60)]
    outbox.extend(events)
    outbox.route()
    finals = tuple(len(lane.pending) // 2 for lane in outbox.lanes)
    counted = [e for lane, n in zip(outbox.lanes, finals, strict=True) for e in lane.pending[:n]]
    for lane in outbox.lanes[:2]:  # half of the partitions have been sent to
        outbox.frames(lane, 1 << 20, 0, 0, 0)
    take(outbox, 3, [0] * 3, layout=1, closed=[Closing((*finals[:2], 0, 0))],
         routing="crc32m:user", again=False)  # fmt: skip
    outbox.validate()
    counted = [e for e in counted if e in counted[: sum(finals[:2])]]
    left = [event for event in events if event not in counted]
    assert sorted(waiting(outbox), key=lambda e: e.serial) == left
    for lane in outbox.lanes:
        per_user: dict[str, list[int]] = {}
        for event in lane.pending:
            per_user.setdefault(event.user, []).append(event.serial)
        assert all(serials == sorted(serials) for serials in per_user.values())


def test_refusals_of_an_ended_layout_are_reported_when_the_producer_returns() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    take(outbox, 1, [0], layout=0, closed=[])
    outbox.extend([Tick("joe", n) for n in range(4)])
    outbox.route()
    outbox.frames(outbox.lanes[0], 1 << 20, 0, 0, 0)
    ended = Closing((4,), ((0, 2, 1, "it has no user", False),))
    take(outbox, 2, [0, 0], layout=1, closed=[ended], again=False)
    assert [(one.number, one.reason) for one in outbox.refusals.drain()] == [(2, "it has no user")]
    assert outbox.unsettled == 0
    assert outbox.admitted == 3


# -- set-up ---------------------------------------------------------------------------------------


def take(
    outbox: Outbox,
    partitions: int,
    limits: list[int],
    *,
    layout: int,
    closed: list[Closing],
    routing: str = "crc32m:",
    again: bool = True,
) -> None:
    """Have an outbox take a node's answer, as it comes off the wire."""
    headers = {wire.LAYOUT: layout, wire.CLOSED: closed}
    told = wire.Hello("node", "i", "ticks", (TICK.declaration,), routing, partitions,
                      tuple(wire.Position(p, 0, n) for p, n in enumerate(limits)),
                      headers=headers)  # fmt: skip
    (answer,) = headers_of([wire.encode_frame(told)])
    assert outbox.take_answer(answer, again=again) == ""
    for lane, limit in zip(outbox.lanes, limits, strict=False):
        if not lane.open:
            outbox.reopen(lane, wire.Position(lane.partition, 0, limit or 1 << 30), again=again)


def waiting(outbox: Outbox) -> list[Any]:
    outbox.route()
    return [event for lane in outbox.lanes for event in lane.pending]


class Node:
    """One producer in the committed state of a job, over its layouts."""

    def __init__(self, partitions: int, routing: str) -> None:
        self.layout = 0
        self.closed: list[Closing] = []
        self.next = [0] * partitions
        self.counted: list[Tick] = []
        self._routing = routing
        self._decoder = FrameDecoder({TICK.fingerprint: TICK})

    def end_layout(self, partitions: int) -> None:
        self.closed.append(Closing(tuple(self.next)))
        self.next = [0] * partitions
        self.layout += 1

    def hello(self, outbox: Outbox, *, again: bool) -> None:
        """Answer the hello of a producer, and open all its lanes."""
        at = outbox.layout or 0
        headers = {wire.LAYOUT: self.layout, wire.CLOSED: self.closed[at:]}
        told = wire.Hello("node", "i", "ticks", (TICK.declaration,), self._routing, len(self.next),
                          headers=headers)  # fmt: skip
        assert outbox.take_answer(told, again=again) == ""
        for lane, number in zip(outbox.lanes, self.next, strict=True):
            position = wire.Position(lane.partition, number, 1 << 40, number)
            outbox.reopen(lane, position, again=again)
        outbox.validate()

    def take(self, frames: list[bytes], upto: int) -> None:
        """Count the events of some frames, of at most so many events."""
        for found in wire.read_envelope(wire.envelope(frames), 1 << 20):
            assert isinstance(found, wire.Frame)
            data = found.header
            assert isinstance(data, wire.Data)
            events, _ = self._decoder.decode(data, found.body)
            for number, event in enumerate(events[:upto], data.first):
                if number == self.next[data.partition]:
                    self.counted.append(event)
                    self.next[data.partition] += 1
            upto -= len(events)


def outcome(seed: int, key: str | None) -> str:
    """The result of a random history of lives, deliveries and layouts that end."""
    chance = Random(seed)
    events = [Tick(f"k{chance.randrange(12)}", n) for n in range(chance.randrange(1, 80))]
    routing = "crc32m:user" if key else "crc32m:"
    node = Node(chance.choice(SIZES), routing)

    def life() -> Outbox:
        return Outbox("ticks", "p", key=key, types=[Tick], max_frame_events=7, returns=True)

    outbox, at = life(), 0

    def deliver(partition: int, most: int, *, told: bool) -> None:
        lane = outbox.lanes[partition]
        node.take(outbox.frames(lane, 1 << 20, 0, 0, 0), most)
        if told:
            number = node.next[partition]
            ruling = wire.Ruling(partition, wire.EXPECTED, number, 1 << 40, number)
            outbox.take_ruling(lane, ruling)

    for _ in range(250):
        draw = chance.random()
        if draw < 0.35 and at < len(events):
            outbox.put(events[at])
            at += 1
        elif draw < 0.75:
            node.hello(outbox, again=True)
            outbox.route()
            deliver(chance.randrange(len(node.next)), chance.randrange(20),
                    told=chance.random() < 0.6)  # fmt: skip
        elif draw < 0.79 and len(node.closed) < 4:
            node.end_layout(chance.choice(SIZES))
        elif draw < 0.83:
            outbox, at = life(), 0
    outbox.extend(events[at:])
    node.hello(outbox, again=True)
    outbox.route()
    for partition in range(len(node.next)):
        deliver(partition, 1 << 20, told=True)
    if sorted(event.serial for event in node.counted) != [event.serial for event in events]:
        return "wrong"
    if outbox.unsettled:
        return "unsettled"
    last: dict[str, int] = {}
    for event in node.counted if key else ():
        if last.get(event.user, -1) >= event.serial:
            return "out of order"
        last[event.user] = event.serial
    return "exact"
