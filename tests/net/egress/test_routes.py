"""The promises of the routes: which node gets which lane, and what comes back from it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lanes import (
    LARGE,
    LIMITLESS,
    TICK,
    Tick,
    Tock,
    answer,
    drained,
    headers_of,
    opened,
    route_of,
    ruled,
    spans,
    ticks,
)

from s4node.events.schema import EventType, JsonText
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.routes import NodeRoute
from s4node.net.transport.linger import Linger
from s4node.net.wire import frame as wire


def test_nothing_leaves_before_the_hello_has_been_answered() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    outbox.extend(ticks(3))
    assert not route.sendable.events
    assert route.frames(1000) == []
    assert (outbox.pending, outbox.unsettled, outbox.in_flight) == (3, 3, 0)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 10)))
    assert route.sendable.events
    assert spans(route.frames(1000)) == [(0, 0, 3)]


def test_the_hello_names_producer_types_and_where_each_lane_stands() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    assert headers_of([route.hello_frame()]) == [
        wire.Hello("p", "i1", "ticks", (TICK.declaration,), "", 0, ())
    ]
    route.on_hello(answer(wire.Position(0, 0, 10), wire.Position(1, 0, 10)))
    outbox.extend(ticks(4))
    route.frames(1000)
    ruled(route, 1, 1, 10)
    assert headers_of([route.hello_frame()]) == [
        wire.Hello(
            "p",
            "i1",
            "ticks",
            (TICK.declaration,),
            "",
            2,
            (wire.Position(0, 0), wire.Position(1, 1)),
        )
    ]


def test_a_time_is_told_although_the_clock_was_set_back_since_the_last_one() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 10)))
    outbox.latest.take_field({wire.TIME: "at"})
    noon, two_hours = 43_200_000, 7_200_000
    outbox.latest.reach(10.0, noon / 1000)
    assert len(route.time_frames(noon)) == 1
    outbox.latest.reach(20.0, noon / 1000)

    assert route.time_frames(noon) == []  # it is told in a moment
    assert len(route.time_frames(noon - two_hours)) == 1


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (answer(error="no stream 'ticks'"), "no stream 'ticks'"),
        (answer(), "the node claims 0 partitions"),
        (wire.Hello("node", "n1", "ticks", partitions=4097), "the node claims 4097 partitions"),
        (
            answer(*[wire.Position(p, 0, 10) for p in range(3)]),
            "stream 'ticks' had 2 partitions and now has 3; numbered events cannot move",
        ),
    ],
)
def test_an_answer_that_does_not_fit_is_the_outbox_s_error_and_stops_it(
    hello: wire.Hello, error: str
) -> None:
    outbox, route = opened(10, 10)
    outbox.put(Tick("joe"))
    route.on_hello(hello)
    assert outbox.error.startswith(error)
    assert not route.sendable.events
    assert route.frames(1000) == []
    assert outbox.unsettled == 1


def test_a_refusal_on_the_older_of_two_routes_to_a_node_leaves_the_newer_one() -> None:
    outbox, route = opened(10)
    outbox.put(Tick("joe"))
    older, newer = route, route.routes.to("tcp://redirector:1")
    newer.hello_frame()
    older.hello_frame()
    older.on_hello(answer(error="there is a newer connection"))
    assert not outbox.error
    newer.on_hello(answer(wire.Position(0, 0, 10), headers={wire.ADDRESS: older.address}))
    assert spans(newer.frames(1000)) == [(0, 0, 1)]


def test_a_producer_that_is_refused_on_every_route_is_told() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    ways = [route.routes.to("tcp://node:1"), route.routes.to("tcp://node:2")]
    for each in ways:
        each.hello_frame()
    ways[0].on_hello(answer(error="no stream 'ticks'"))
    assert not outbox.error
    ways[1].on_hello(answer(error="no stream 'ticks'"))
    assert outbox.error == "no stream 'ticks'"


def test_positions_for_partitions_that_do_not_exist_are_ignored() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    route.on_hello(
        wire.Hello(
            "node",
            "n1",
            "ticks",
            partitions=1,
            positions=(wire.Position(0, 0, 3), wire.Position(1, 5, 9), wire.Position(-1, 7, 9)),
        )
    )
    assert route.routes.opened
    assert [(lane.next_number, lane.limit) for lane in outbox.lanes] == [(0, 3)]


def test_a_new_event_class_is_declared_before_its_first_event() -> None:
    outbox, route = opened(10, takes=[Tick, Tock])
    outbox.types.declare(Tock)
    outbox.put(Tock("joe"))
    hello, data = headers_of(route.frames(1000))
    assert [kind.name for kind in hello.types] == ["Tick", "Tock"]
    assert data.sections[0].fingerprint == EventType(Tock).fingerprint
    outbox.put(Tock("ann"))
    assert spans(route.frames(1000)) == [(0, 1, 2)]


def test_events_take_turns_even_if_each_uses_the_budget_up() -> None:
    outbox, route = opened(100, 100, 100)
    turns = []
    for tick in ticks(7):
        outbox.put(tick)
        turns += [partition for partition, _, _ in spans(route.frames(1))]
    assert turns == [0, 1, 2, 0, 1, 2, 0]


def test_a_lane_that_uses_the_budget_up_does_not_starve_the_others() -> None:
    outbox, route = opened(100, 100, 100, max_frame_events=1)
    outbox.extend(ticks(30))
    turns = [spans(route.frames(1))[0][0] for _ in range(9)]
    assert Counter(turns) == {0: 3, 1: 3, 2: 3}


def test_the_budget_ends_with_the_frame_that_uses_it_up() -> None:
    outbox, route = opened(100, max_frame_events=1)
    outbox.extend(ticks(5))
    size = len(route.frames(1)[0])
    assert spans(route.frames(size + 1)) == [(0, 1, 2), (0, 2, 3)]
    assert route.frames(0) == []
    assert spans(route.frames(1 << 20)) == [(0, 3, 4), (0, 4, 5)]


def test_rulings_over_partitions_that_do_not_exist_are_ignored() -> None:
    outbox, route = opened(100)
    ruled(route, 1, 3, 200)
    ruled(route, -1, 3, 200)
    assert [(lane.upto, lane.limit) for lane in outbox.lanes] == [(0, 100)]


def test_after_a_reconnect_what_had_no_verdict_is_sent_again_byte_for_byte() -> None:
    outbox, route = opened(100, max_frame_events=4)
    outbox.extend(ticks(12))
    first = route.frames(1 << 20)
    ruled(route, 0, 5, 100)
    route.disconnected()
    assert not route.sendable.events
    assert route.frames(1 << 20) == []
    assert outbox.unsettled == 7
    assert headers_of([route.hello_frame()])[0].positions == (wire.Position(0, 5),)
    route.on_hello(answer(wire.Position(0, 8, 100, 6)))
    assert outbox.unsettled == 6
    assert route.frames(1 << 20) == [*first[2:], route.ask()]


def test_resends_stay_below_the_limit_too() -> None:
    outbox, route = opened(100, max_frame_events=4)
    outbox.extend(ticks(12))
    first = route.frames(1 << 20)
    route.disconnected()
    route.on_hello(answer(wire.Position(0, 0, 6)))
    resent = [*first[:2], route.ask()]  # the second frame begins below 6
    assert route.frames(1 << 20) == resent
    assert not route.sendable.events
    ruled(route, 0, 8, 14)
    assert route.frames(1 << 20) == first[2:]


@pytest.mark.parametrize("lines", [True, False])
def test_a_frame_in_the_one_lane_that_has_events_waits_for_none_in_the_others(lines: bool) -> None:
    outbox = Outbox("ticks", "p", types=() if lines else [Tick])
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(answer(*(wire.Position(p, 0, 10_000) for p in range(64)), routing="crc32m:user"))
    if lines:  # the node knows their keys
        outbox.declare_json(TICK.declaration)
        outbox.extend([JsonText(b'{"user":"a"}')] * 2048)
    else:
        outbox.extend([Tick("a", n) for n in range(2048)])
    coalescer = Linger(16_384)
    coalescer.flushed(2048, now=5.0)
    assert route.sendable == (2048, 1, 10_000)
    assert coalescer.due(route.sendable, now=5.0001) <= 5.0001


def test_lanes_that_have_used_up_their_credit_wait_for_no_more_events() -> None:
    outbox, route = opened(500, 400, 0)
    outbox.extend(ticks(3000))
    coalescer = Linger(16_384)
    coalescer.flushed(2048, now=5.0)
    assert route.sendable == (900, 2, 900)
    assert coalescer.due(route.sendable, now=5.0001) <= 5.0001


def test_events_that_are_to_be_sent_again_wait_for_no_more_of_their_lane() -> None:
    outbox, route = opened(LIMITLESS, LIMITLESS)
    outbox.extend(ticks(400))
    drained(route)
    ruled(route, 0, 0, LIMITLESS, wire.EXPECTED, expected=0)
    assert route.sendable == (200, 1, 200)


def test_a_lane_whose_partition_is_run_elsewhere_goes_there_with_all_that_has_no_verdict() -> None:
    outbox, route = opened(100, 100)
    outbox.extend(ticks(6))
    assert spans(route.frames(1000)) == [(0, 0, 3), (1, 0, 3)]
    ruled(route, 0, 2, 100)
    ruled(route, 0, 0, 0, wire.NOT_OWNER, owner="tcp://node:2")
    assert not route.sendable.events
    other = route.routes.to("tcp://node:2")
    assert [position.number for position in headers_of([other.hello_frame()])[0].positions] == [
        2,
        0,
    ]
    other.on_hello(
        wire.Hello("b", "n2", "ticks", partitions=2, positions=(wire.Position(0, 2, 9),))
    )
    assert spans(other.frames(1000)) == [(0, 0, 3)]
    assert not route.routes.stuck
    ruled(route, 1, 3, 100)
    assert outbox.unsettled == 1


def test_a_lane_without_an_owner_waits_until_somebody_owns_its_partition() -> None:
    outbox, route = opened(100)
    ruled(route, 0, 0, 0, wire.NOT_OWNER)
    outbox.extend(ticks(2))
    assert not route.sendable.events
    assert route.routes.stuck
    route.routes.assign(["tcp://node:1"], 7)
    assert route.asks  # a new hello, for the partition that has come to the node
    (hello,) = headers_of(route.frames(1000))
    assert isinstance(hello, wire.Hello)
    route.on_hello(answer(wire.Position(0, 0, 9), headers={wire.EPOCH: 7}))
    assert spans(route.frames(1000)) == [(0, 0, 2)]


def word(
    epoch: int, *owners: int, nodes: Any = ("tcp://node:1", "tcp://node:2"), **more: Any
) -> wire.Hello:
    """A node's hello that tells the owners of the partitions, by their index in ``nodes``."""
    headers = {wire.NODES: list(nodes), wire.OWNERS: list(owners), wire.EPOCH: epoch}
    headers |= more.pop("more", {})
    return wire.Hello(
        "n", "n1", "ticks", (TICK.declaration,), "crc32m:", len(owners), headers=headers, **more
    )


def test_the_later_of_two_deployments_is_believed_although_its_epochs_begin_anew() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    first = route_of(outbox)
    first.hello_frame()
    at = wire.Position(0, 0, 9)
    first.on_hello(word(7, 0, positions=(at,), more={wire.ORIGIN: "before"}))
    first.disconnected()
    second = first.routes.to("tcp://node:2")
    second.hello_frame()
    second.on_hello(word(1, 1, positions=(at,), more={wire.ORIGIN: "after"}))
    outbox.extend(ticks(3))
    assert spans(second.frames(1000)) == [(0, 0, 3)]
    first.hello_frame()  # one that was paused, and has yet to hear that it is over
    first.on_hello(word(8, 0, positions=(at,), more={wire.ORIGIN: "before"}))
    outbox.extend(ticks(2))
    assert spans(second.frames(1000)) == [(0, 3, 5)]


def test_a_node_without_partitions_of_a_new_layout_leads_to_those_that_know_it() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    first = route_of(outbox)
    first.hello_frame()
    durable = {wire.DURABLE: True}
    at = wire.Position(0, 0, 9)
    first.on_hello(word(1, 0, positions=(at,), more={**durable, wire.LAYOUT: 0}))
    outbox.extend(ticks(3))
    drained(first)
    first.disconnected()
    first.hello_frame()
    first.on_hello(word(2, 1, 1, more=durable))
    assert not outbox.error
    second = first.routes.by_address["tcp://node:2"]
    second.hello_frame()
    anew = tuple(wire.Position(partition, 0, 9) for partition in range(2))
    ended = {wire.LAYOUT: 1, wire.CLOSED: [((2,), (), False)]}
    second.on_hello(word(2, 1, 1, positions=anew, more={**durable, **ended}))
    assert not outbox.error
    assert sum(last - first for _, first, last in spans(second.frames(1000))) == 1


def test_each_node_that_turns_down_a_class_of_events_hears_hello_without_it() -> None:
    outbox = Outbox("ticks", "p")
    routes = route_of(outbox).routes
    outbox.types.declare(Tock)
    outbox.extend([Tock("joe")])
    both = [routes.to("tcp://node:1"), routes.to("tcp://node:2")]
    for each in both:
        each.hello_frame()
    for each in both:
        each.on_hello(answer(error="stream 'ticks' takes Tick, not 'Tock'"))
    for number, each in enumerate(both):
        assert each.asks
        (hello,) = headers_of(each.frames(1000))
        assert hello.types == ()
        at = wire.Position(number, 0, 10)
        each.on_hello(wire.Hello("node", "n1", "ticks", (TICK.declaration,), "", 2, (at,)))
        assert each.opened
    assert outbox.error == ""
    both[0].frames(1000)
    assert outbox.refusals.counts["unsent"] == 1


@pytest.mark.parametrize("given", [[Tock], []])
def test_a_hello_that_is_turned_down_for_anything_else_is_an_error(given: list[type]) -> None:
    outbox = Outbox("ticks", "p", types=given)
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(answer(error="no"))
    assert (outbox.error, route.asks) == ("no", False)


@pytest.mark.parametrize("end", ["gives up", "is gone"])
def test_the_lanes_of_a_node_that_drains_move_when_it_gives_them_up_or_is_gone(end: str) -> None:
    outbox, route = opened(100, 100)
    first = route
    outbox.extend(ticks(6))
    assert spans(first.frames(1000)) == [(0, 0, 3), (1, 0, 3)]
    first.draining = True
    second = route.routes.to("tcp://node:2")
    second.hello_frame()
    second.on_hello(word(7, 1, 1, positions=(wire.Position(0, 0, 9), wire.Position(1, 0, 9))))
    assert second.frames(1000) == []
    ruled(route, 0, 2, 100)  # what it has processed is not sent to the other
    if end == "gives up":
        ruled(route, 0, 3, 0, wire.NOT_OWNER)
        ruled(route, 1, 0, 0, wire.NOT_OWNER)
    else:
        first.disconnected()
    (hello,) = headers_of(second.frames(1000))
    assert isinstance(hello, wire.Hello)
    heard = 3 if end == "gives up" else 2
    assert [position.number for position in hello.positions] == [heard, 0]
    second.on_hello(word(7, 1, 1, positions=(wire.Position(0, heard, 9), wire.Position(1, 0, 9))))
    assert [span[0] for span in spans(second.frames(1000))] == ([1] if heard == 3 else [0, 1])
    outbox.validate()


def test_the_answer_to_a_hello_leads_each_lane_to_its_owner() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    outbox.extend(ticks(4))
    route.hello_frame()
    route.on_hello(word(1, 0, 1, positions=(wire.Position(0, 0, 9),)))
    assert set(route.routes.by_address) == {"tcp://node:1", "tcp://node:2"}
    assert spans(route.frames(1000)) == [(0, 0, 2)]
    other = route.routes.to("tcp://node:2")
    other.hello_frame()
    other.on_hello(word(1, 0, 1, positions=(wire.Position(1, 0, 9),)))
    assert spans(other.frames(1000)) == [(1, 0, 2)]


def test_the_owners_of_the_higher_epoch_are_believed() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(word(5, 1))
    late = route.routes.to("tcp://node:3")
    late.hello_frame()
    late.on_hello(word(4, 0, nodes=["tcp://node:3"], positions=(wire.Position(0, 0, 9),)))
    (lane,) = outbox.lanes
    assert route.routes.route_of(lane) is route.routes.to("tcp://node:2")
    route.on_hello(word(6, 0))
    assert route.routes.route_of(lane) is route


def test_a_lane_that_changes_its_owner_sends_again_what_had_no_verdict() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(word(1, 0, positions=(wire.Position(0, 0, 9),)))
    outbox.extend(ticks(4))
    route.frames(1000)
    ruled(route, 0, 1, 9)
    route.disconnected()
    other = route.routes.to("tcp://node:2")
    other.hello_frame()
    other.on_hello(word(1, 0))
    assert not other.sendable.events
    other.on_hello(word(2, 1))  # unasked: the partition has been taken over
    (hello,) = headers_of(other.frames(1000))
    assert hello.positions == (wire.Position(0, 1),)
    other.on_hello(word(2, 1, positions=(wire.Position(0, 1, 9),)))
    assert spans(other.frames(1000)) == [(0, 0, 4)]
    outbox.validate()


def test_a_node_that_was_dialled_by_two_names_keeps_one_route() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    headers = {wire.ADDRESS: "tcp://node:1", wire.NODES: ["tcp://node:1"], wire.OWNERS: [0]}
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 9), headers=headers))
    again = NodeRoute(route.routes, "tcp://localhost:1")
    route.routes.by_address[again.address] = again
    again.hello_frame()
    again.on_hello(answer(wire.Position(0, 0, 9), headers=headers))
    assert list(route.routes.by_address) == ["tcp://localhost:1"]
    assert route.routes.to("tcp://node:1") is again
    assert route.routes.route_of(outbox.lanes[0]) is again


def test_an_error_in_a_verdict_stops_the_outbox_and_keeps_its_events() -> None:
    outbox, route = opened(100)
    outbox.extend(ticks(2))
    route.on_verdict(wire.Verdict("ticks", "p", error="sections do not add up"))
    assert outbox.error == "sections do not add up"
    assert not route.sendable.events
    assert route.frames(1000) == []
    assert outbox.unsettled == 2


def test_asking_and_ending_are_frames_of_this_stream_and_producer() -> None:
    _, route = opened(100)
    assert headers_of([route.ask(), route.end_of_stream()]) == [
        wire.Idle("ticks", "p", wire.ANSWER_NOW),
        wire.EndOfStream("ticks", "p"),
    ]


def test_a_verdict_is_asked_for_with_every_quarter_of_a_window() -> None:
    outbox, route = opened(LIMITLESS)
    outbox.extend([Tick(LARGE, n) for n in range(1000)])
    asked = [h for h in headers_of(drained(route)) if isinstance(h, wire.Idle)]
    assert asked == [wire.Idle("ticks", "p", wire.ANSWER_NOW)] * 4
    route.disconnected()
    route.routes.assign([route.address], 0)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, LIMITLESS)))
    asked = [h for h in headers_of(drained(route)) if isinstance(h, wire.Idle)]
    assert len(asked) == 4  # what is sent again has to be ruled on as well


@pytest.mark.parametrize(("settled", "waiting"), [(0, 0), (2, 3)])
def test_a_verdict_is_asked_for_once_what_waited_for_an_owner_has_left(
    settled: int, waiting: int
) -> None:
    outbox, route = opened(100)
    outbox.extend(ticks(2))
    drained(route)
    ruled(route, 0, settled, 100)
    route.disconnected()
    outbox.extend(ticks(waiting))
    route.routes.assign([route.address], 0)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, settled, 100)))
    *_, last = headers_of(drained(route))
    assert last == wire.Idle("ticks", "p", wire.ANSWER_NOW)
    outbox.extend(ticks(1))
    assert not [h for h in headers_of(drained(route)) if isinstance(h, wire.Idle)]
