"""The promises of the outbox, the producer's side of a stream."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lanes import TICK, Tick, Tock, answer, headers_of, opened, ruled, spans, ticks, way

from s4node.errors import EventError
from s4node.events.event import Event, GenericEvent
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType, JsonText
from s4node.net.egress.leg import Leg
from s4node.net.egress.outbox import MAX_REFUSALS, Outbox, Refusal
from s4node.net.wire import frame as wire
from s4node.net.wire.frame import WINDOW_BYTES, Frame, check_sections, envelope, read_envelope


def test_nothing_leaves_before_the_hello_has_been_answered() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    outbox.extend(ticks(3))
    assert not way(outbox).sendable
    assert way(outbox).frames(1000) == []
    assert (outbox.pending, outbox.unsettled, outbox.in_flight) == (3, 3, 0)
    way(outbox).hello()
    way(outbox).on_hello(answer(wire.Position(0, 0, 10)))
    assert way(outbox).sendable
    assert spans(way(outbox).frames(1000)) == [(0, 0, 3)]


def test_the_hello_names_producer_types_and_where_each_lane_stands() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    assert headers_of([way(outbox).hello()]) == [
        wire.Hello("p", "i1", "ticks", (TICK.declaration,), "", 0, ())
    ]
    way(outbox).on_hello(answer(wire.Position(0, 0, 10), wire.Position(1, 0, 10)))
    outbox.extend(ticks(4))
    way(outbox).frames(1000)
    ruled(outbox, 1, 1, 10)
    assert headers_of([way(outbox).hello()]) == [
        wire.Hello(
            "p", "i1", "ticks", (TICK.declaration,), "", 2,
            (wire.Position(0, 0), wire.Position(1, 1)),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (answer(error="no stream 'ticks'"), "no stream 'ticks'"),
        (answer(), "the node claims 0 partitions"),
        (wire.Hello("node", "n1", "ticks", partitions=4097), "the node claims 4097 partitions"),
        (answer(*[wire.Position(p, 0, 10) for p in range(3)]),
         "stream 'ticks' had 2 partitions and now has 3; events already numbered cannot move"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_is_the_outbox_s_error_and_stops_it(
    hello: wire.Hello, error: str
) -> None:
    outbox = opened(10, 10)
    outbox.put(Tick("joe"))
    way(outbox).on_hello(hello)
    assert outbox.error.startswith(error)
    assert not way(outbox).sendable
    assert way(outbox).frames(1000) == []
    assert outbox.unsettled == 1


def test_a_node_that_turns_down_the_older_of_two_ways_to_it_is_heard_out_on_the_newer() -> None:
    outbox = opened(10)
    outbox.put(Tick("joe"))
    older, newer = way(outbox), outbox.leg("tcp://door:1")
    newer.hello()
    older.hello()
    older.on_hello(answer(error="there is a newer connection"))
    assert not outbox.error
    newer.on_hello(answer(wire.Position(0, 0, 10), headers={wire.ADDRESS: older.address}))
    assert spans(newer.frames(1000)) == [(0, 0, 1)]


def test_a_producer_that_is_turned_down_on_all_ways_is_told() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    ways = [outbox.leg("tcp://node:1"), outbox.leg("tcp://node:2")]
    for leg in ways:
        leg.hello()
    ways[0].on_hello(answer(error="no stream 'ticks'"))
    assert not outbox.error
    ways[1].on_hello(answer(error="no stream 'ticks'"))
    assert outbox.error == "no stream 'ticks'"


def test_positions_for_partitions_that_do_not_exist_are_ignored() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    way(outbox).on_hello(
        wire.Hello(
            "node", "n1", "ticks", partitions=1,
            positions=(wire.Position(0, 0, 3), wire.Position(1, 5, 9), wire.Position(-1, 7, 9)),
        )
    )  # fmt: skip
    assert outbox.opened
    assert [(lane.next_number, lane.limit) for lane in outbox.lanes] == [(0, 3)]


def test_a_new_event_class_is_declared_before_its_first_event() -> None:
    outbox = opened(10, takes=[Tick, Tock])
    outbox.declare(Tock)
    outbox.put(Tock("joe"))
    hello, data = headers_of(way(outbox).frames(1000))
    assert [kind.name for kind in hello.types] == ["Tick", "Tock"]
    assert data.sections[0].fingerprint == EventType(Tock).fingerprint
    outbox.put(Tock("ann"))
    assert spans(way(outbox).frames(1000)) == [(0, 1, 2)]


def test_events_of_a_class_that_the_node_does_not_take_are_refused_here_by_its_name() -> None:
    outbox = opened(10)
    outbox.declare(Tock)
    outbox.extend([Tick("joe"), Tock("joe"), Tick("ann")])
    assert spans(way(outbox).frames(1000)) == [(0, 0, 2)]
    (refused,) = outbox.take_refusals()
    assert (refused.number, refused.count) == (-1, 1)
    assert refused.reason.startswith("stream 'ticks' takes Tick, not 'Tock'; send one of those")


def test_a_log_takes_types_that_it_has_not_had() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    way(outbox).hello()
    way(outbox).on_hello(answer(wire.Position(0, 0, 10), headers={wire.LOG: True}))
    outbox.declare(Tock)
    outbox.put(Tock("joe"))
    hello, data = headers_of(way(outbox).frames(1000))
    assert [kind.name for kind in hello.types] == ["Tick", "Tock"]
    assert data.count == 1


# --- the outbox: routing -------------------------------------------------------------------------


def lanes_of(outbox: Outbox, frames: list[bytes]) -> dict[int, list[int]]:
    """The serials in each partition's frames."""
    found: dict[int, list[int]] = {}
    for frame in read_envelope(envelope(frames), 1 << 20):
        assert isinstance(frame, Frame)
        assert isinstance(frame.header, wire.Data)
        serials = [tick.serial for tick in TICK.decode(frame.body)]
        found.setdefault(frame.header.partition, []).extend(serials)
    return found


def test_without_a_key_events_take_turns_over_the_partitions() -> None:
    outbox = opened(100, 100, 100)
    outbox.extend(ticks(4))
    assert lanes_of(outbox, way(outbox).frames(1000)) == {0: [0, 3], 1: [1], 2: [2]}
    outbox.extend(ticks(3, 4))
    assert lanes_of(outbox, way(outbox).frames(1000)) == {1: [4], 2: [5], 0: [6]}


def test_events_take_turns_even_if_each_uses_the_budget_up() -> None:
    outbox = opened(100, 100, 100)
    turns = []
    for tick in ticks(7):
        outbox.put(tick)
        turns += [partition for partition, _, _ in spans(way(outbox).frames(1))]
    assert turns == [0, 1, 2, 0, 1, 2, 0]


def test_no_lane_waits_for_ever_behind_one_that_uses_the_budget_up() -> None:
    outbox = opened(100, 100, 100, max_frame_events=1)
    outbox.extend(ticks(30))
    turns = [spans(way(outbox).frames(1))[0][0] for _ in range(9)]
    assert Counter(turns) == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize("routing", ["crc32:user", "s4:user"])
def test_with_the_node_s_key_events_go_to_the_partition_of_their_key(routing: str) -> None:
    from s4node.events.keys import crc32, s4

    outbox = opened(*[1000] * 4, routing=routing)
    outbox.extend(ticks(100))
    frames = way(outbox).frames(1 << 20)
    partitioner = Partitioner(4, crc32 if routing == "crc32:user" else s4)
    expected: dict[int, list[int]] = {}
    for n in range(100):
        expected.setdefault(partitioner.partition_of(f"user-{n}"), []).append(n)
    assert lanes_of(outbox, frames) == expected
    assert {header.routing for header in headers_of(frames)} == {routing}
    assert headers_of([way(outbox).hello()])[0].routing == routing


def test_a_stream_without_a_key_is_routed_by_a_key_of_one_s_own() -> None:
    outbox = opened(*[1000] * 4, routing="crc32:", key="serial")
    outbox.extend(ticks(100))
    frames = way(outbox).frames(1 << 20)
    partitioner = Partitioner(4)
    found = lanes_of(outbox, frames)
    assert len(found) == 4
    for partition, serials in found.items():
        assert {partitioner.partition_of(serial) for serial in serials} == {partition}
    assert {header.routing for header in headers_of(frames)} == {"crc32:serial"}


@pytest.mark.parametrize(
    ("routing", "key"),
    [
        ("crc32:user", "serial"),
        ("crc32:user", lambda tick: tick.user),
        ("crc32:@finder", None),
        ("crc32:?", None),
        ("no.such.module:hash:user", None),
    ],
)
def test_a_key_that_is_not_the_node_s_sends_everything_through_one_lane(
    routing: str, key: Any
) -> None:
    """The node sends each event on, so only one lane keeps the order of each of its keys."""
    outbox = opened(*[1000] * 4, routing=routing, key=key)
    outbox.extend(ticks(100))
    frames = way(outbox).frames(1 << 20)
    (serials,) = lanes_of(outbox, frames).values()
    assert serials == list(range(100))
    assert {header.routing for header in headers_of(frames)} == {""}


def test_the_one_lane_is_the_same_in_each_life_of_a_producer() -> None:
    lanes = set()
    for _ in range(3):
        outbox = opened(*[1000] * 64, routing="crc32:?")
        outbox.extend(ticks(3))
        lanes |= set(lanes_of(outbox, way(outbox).frames(1 << 20)))
    assert len(lanes) == 1


def test_an_event_whose_key_is_not_found_is_refused_here_and_the_others_go() -> None:
    outbox = Outbox("ticks", "p", types=[GenericEvent])
    way(outbox).hello()
    types = (EventType(GenericEvent).declaration,)
    positions = (wire.Position(0, 0, 9), wire.Position(1, 0, 9))
    way(outbox).on_hello(wire.Hello("node", "n1", "ticks", types, "crc32:user", 2, positions))
    outbox.extend([GenericEvent(user="a"), GenericEvent(name="b"), GenericEvent(user=1.5),
                   GenericEvent(user="c")])  # fmt: skip
    assert sum(end - first for _, first, end in spans(way(outbox).frames(1000))) == 2
    refusals = outbox.take_refusals()
    assert [(r.stream, r.partition, r.number, r.shed) for r in refusals] == [
        ("ticks", -1, -1, False)
    ] * 2
    assert refusals[0].reason == "the KeyFinder raised KeyError: 'user'"
    assert refusals[1].reason.startswith("the KeyFinder returned 1.5 (float)")
    assert outbox.counts["unsent"] == 2
    assert outbox.unsettled == 2
    outbox.validate()


# --- the outbox: frames --------------------------------------------------------------------------


def test_a_lane_sends_below_its_limit_only() -> None:
    outbox = opened(5)
    outbox.extend(ticks(8))
    assert spans(way(outbox).frames(1000)) == [(0, 0, 5)]
    assert not way(outbox).sendable
    assert way(outbox).frames(1000) == []
    assert (outbox.pending, outbox.in_flight) == (3, 5)
    ruled(outbox, 0, 2, 7)
    assert way(outbox).sendable
    assert spans(way(outbox).frames(1000)) == [(0, 5, 7)]
    assert (outbox.pending, outbox.in_flight) == (1, 5)


def test_frames_hold_no_more_events_and_bytes_than_they_may() -> None:
    outbox = opened(100, max_frame_events=4)
    outbox.extend(ticks(10))
    assert spans(way(outbox).frames(1 << 20)) == [(0, 0, 4), (0, 4, 8), (0, 8, 10)]
    outbox = opened(100, max_frame_bytes=64)
    outbox.extend(ticks(20))
    frames = way(outbox).frames(1 << 20)
    assert [end for _, _, end in spans(frames)][-1] == 20
    for frame in read_envelope(envelope(frames), 1 << 20):
        assert isinstance(frame, Frame)
        assert len(frame.body) <= 64


def test_the_budget_ends_with_the_frame_that_uses_it_up() -> None:
    outbox = opened(100, max_frame_events=1)
    outbox.extend(ticks(5))
    size = len(way(outbox).frames(1)[0])
    assert spans(way(outbox).frames(size + 1)) == [(0, 1, 2), (0, 2, 3)]
    assert way(outbox).frames(0) == []
    assert spans(way(outbox).frames(1 << 20)) == [(0, 3, 4), (0, 4, 5)]


def test_time_and_flags_are_in_the_header() -> None:
    outbox = opened(10)
    outbox.put(Tick("joe"))
    (header,) = headers_of(way(outbox).frames(1000, now_ms=1700000000123, flags=wire.ANSWER_NOW))
    assert (header.created_ms, header.flags) == (1700000000123, wire.ANSWER_NOW)


def test_an_event_that_cannot_be_sent_is_refused_here_and_the_others_keep_their_order() -> None:
    outbox = Outbox("ticks", "p", types=[GenericEvent], max_frame_bytes=100)
    way(outbox).hello()
    way(outbox).on_hello(answer(wire.Position(0, 0, 50)))
    events = [GenericEvent(n=n) for n in range(7)]
    events[1].put("n", object())
    events[4].put("n", "x" * 200)
    outbox.extend(events)
    bodies = [frame.body for frame in read_envelope(envelope(way(outbox).frames(1 << 20)), 1 << 20)]  # type: ignore[union-attr]
    sent = [event for body in bodies for event in EventType(GenericEvent).decode(body)]
    assert [event.n for event in sent] == [0, 2, 3, 5, 6]
    refusals = outbox.take_refusals()
    assert [(r.partition, r.number, r.unsent) for r in refusals] == [(0, -1, True)] * 2
    assert refusals[0].reason == (
        "a GenericEvent cannot be encoded: Encoding objects of type object is unsupported"
    )
    assert "over the frame limit of 100 (s4.sender.maxFrameBytes)" in refusals[1].reason
    assert outbox.counts == {"shed": 0, "refused": 0, "unsent": 2}
    assert (outbox.pending, outbox.in_flight) == (0, 5)
    assert outbox.take_refusals() == []
    outbox.validate()


def test_events_of_several_classes_share_a_frame_in_sections() -> None:
    outbox = opened(10, takes=[Tick, Tock])
    outbox.declare(Tock)
    way(outbox).hello()
    outbox.extend([Tick("a", 1), Tock("b"), Tock("c"), Tick("d", 2)])
    (frame,) = read_envelope(envelope(way(outbox).frames(1000)), 1 << 20)
    assert isinstance(frame, Frame)
    assert isinstance(frame.header, wire.Data)
    assert check_sections(frame.header, frame.body) == ""
    kinds = {EventType(cls).fingerprint: EventType(cls) for cls in (Tick, Tock)}
    at, shares = 0, []
    for section in frame.header.sections:
        shares.append(kinds[section.fingerprint].decode(frame.body[at : at + section.size]))
        at += section.size
    assert [shares[which].pop(0) for which in frame.header.order] == [
        Tick("a", 1), Tock("b"), Tock("c"), Tick("d", 2),
    ]  # fmt: skip


def test_any_number_of_event_classes_may_be_mixed() -> None:
    classes: list[Any] = [
        type(f"E{n}", (Event,), {"__annotations__": {"a": int}}) for n in range(300)
    ]
    outbox = opened(1000, takes=classes)
    for cls in classes:
        outbox.declare(cls)
    way(outbox).hello()
    outbox.extend([cls(n) for n, cls in enumerate(classes)])
    seen = 0
    for frame in read_envelope(envelope(way(outbox).frames(1 << 20)), 1 << 20):
        assert isinstance(frame, Frame)
        assert isinstance(frame.header, wire.Data)
        assert check_sections(frame.header, frame.body) == ""
        seen += frame.header.count
    assert seen == 300
    assert outbox.take_refusals() == []


def test_json_texts_travel_under_the_node_s_type() -> None:
    outbox = Outbox("ticks", "p")
    way(outbox).on_hello(answer(wire.Position(0, 0, 9), wire.Position(1, 0, 9)))
    outbox.declare_json(TICK.declaration)
    way(outbox).hello()
    outbox.extend([JsonText(b'{"user":"a"}'), JsonText(b'{"user":"b"}'), JsonText(b'{"user":"c"}')])
    frames = list(read_envelope(envelope(way(outbox).frames(1000)), 1 << 20))
    assert [(f.header.partition, f.header.count) for f in frames] == [(0, 2), (1, 1)]  # type: ignore[union-attr]
    assert {f.header.encoding for f in frames} == {wire.JSON}  # type: ignore[union-attr]
    assert bytes(frames[0].body) == b'[{"user":"a"},{"user":"c"}]'  # type: ignore[union-attr]


# --- the outbox: verdicts and resends ------------------------------------------------------------


def test_a_frame_is_kept_until_all_of_its_events_have_a_verdict() -> None:
    outbox = opened(100, max_frame_events=4)
    outbox.extend(ticks(8))
    way(outbox).frames(1000)
    for upto, kept in [(0, 2), (3, 2), (4, 1), (7, 1), (8, 0)]:
        ruled(outbox, 0, upto, 100)
        assert len(outbox.lanes[0].kept) == kept
        assert (outbox.admitted, outbox.unsettled) == (upto, 8 - upto)


def test_an_older_verdict_takes_nothing_back() -> None:
    outbox = opened(100)
    outbox.extend(ticks(8))
    way(outbox).frames(1000)
    ruled(outbox, 0, 8, 108)
    ruled(outbox, 0, 3, 108)
    assert (outbox.admitted, outbox.unsettled) == (8, 0)


def test_a_verdict_over_more_than_was_sent_settles_what_was_sent() -> None:
    outbox = opened(100)
    outbox.extend(ticks(3))
    way(outbox).frames(1000)
    ruled(outbox, 0, 99, 200)
    assert (outbox.admitted, outbox.unsettled) == (3, 0)


def test_rulings_over_partitions_that_do_not_exist_are_ignored() -> None:
    outbox = opened(100)
    ruled(outbox, 1, 3, 200)
    ruled(outbox, -1, 3, 200)
    assert [(lane.upto, lane.limit) for lane in outbox.lanes] == [(0, 100)]


def test_expected_n_sends_again_byte_for_byte_from_the_frame_that_holds_n() -> None:
    outbox = opened(100, max_frame_events=4)
    outbox.extend(ticks(12))
    first = way(outbox).frames(1 << 20)
    outbox.put(Tick("new", 12))
    ruled(outbox, 0, 0, 100, wire.EXPECTED, expected=6)
    again = way(outbox).frames(1 << 20)
    assert again[:2] == first[1:]
    assert spans(again) == [(0, 4, 8), (0, 8, 12), (0, 12, 13)]
    assert way(outbox).frames(1 << 20) == []


def test_after_a_reconnect_what_had_no_verdict_is_sent_again_byte_for_byte() -> None:
    outbox = opened(100, max_frame_events=4)
    outbox.extend(ticks(12))
    first = way(outbox).frames(1 << 20)
    ruled(outbox, 0, 5, 100)
    way(outbox).disconnected()
    assert not way(outbox).sendable
    assert way(outbox).frames(1 << 20) == []
    assert outbox.unsettled == 7
    assert headers_of([way(outbox).hello()])[0].positions == (wire.Position(0, 5),)
    way(outbox).on_hello(answer(wire.Position(0, 8, 100, 6)))
    assert outbox.unsettled == 6
    assert way(outbox).frames(1 << 20) == first[2:]


def test_resends_stay_below_the_limit_too() -> None:
    outbox = opened(100, max_frame_events=4)
    outbox.extend(ticks(12))
    first = way(outbox).frames(1 << 20)
    way(outbox).disconnected()
    way(outbox).on_hello(answer(wire.Position(0, 0, 6)))
    assert way(outbox).frames(1 << 20) == first[:2]  # the second frame begins below 6
    assert not way(outbox).sendable
    ruled(outbox, 0, 8, 14)
    assert way(outbox).frames(1 << 20) == first[2:]


def test_a_producer_goes_on_where_its_earlier_life_stopped() -> None:
    outbox = Outbox("ticks", "p", "i2", types=[Tick])
    way(outbox).hello()
    outbox.extend(ticks(3))
    way(outbox).on_hello(answer(wire.Position(0, 40, 140, 38)))
    assert (outbox.admitted, outbox.unsettled) == (0, 3)
    assert spans(way(outbox).frames(1000)) == [(0, 40, 43)]
    ruled(outbox, 0, 42, 142)
    assert (outbox.admitted, outbox.unsettled) == (2, 1)
    outbox.validate()


def test_refused_and_shed_events_are_told_and_not_counted_as_admitted() -> None:
    outbox = opened(100)
    outbox.extend(ticks(10))
    way(outbox).frames(1000)
    ruled(outbox, 0, 4, 100, wire.REFUSED, 10, ((1, 1, "no key"),))
    ruled(outbox, 0, 9, 100, wire.SHED, 10, shed=((5, 3, "too many"),))
    assert outbox.take_refusals() == [
        Refusal("ticks", 0, 1, "no key"),
        Refusal("ticks", 0, 5, "too many", shed=True, count=3),
    ]
    assert outbox.counts == {"shed": 3, "refused": 1, "unsent": 0}
    assert (outbox.admitted, outbox.unsettled) == (5, 1)


def test_refusals_beyond_those_that_are_kept_are_counted_by_what_became_of_the_events() -> None:
    outbox = Outbox("ticks", "p", types=[Tick, Tock])
    way(outbox).hello()
    way(outbox).on_hello(answer(wire.Position(0, 0, 100)))
    outbox.reject([Tock], "not taken")
    outbox.extend([Tock(n) for n in range(MAX_REFUSALS + 1)])
    outbox.extend(ticks(9))
    way(outbox).frames(1000)
    ruled(outbox, 0, 9, 9, wire.REFUSED, 9, ((0, 2, "no key"),), shed=((4, 3, "full"),))
    taken = outbox.take_refusals()
    assert len(taken) == MAX_REFUSALS + 3
    assert [(each.count, each.shed, each.unsent) for each in taken[-3:]] == [
        (1, False, True),
        (2, False, False),
        (3, True, False),
    ]
    assert outbox.take_refusals() == []


def test_a_refusal_told_before_its_turn_is_not_yet_taken_from_the_admitted() -> None:
    outbox = opened(100)
    outbox.extend(ticks(10))
    way(outbox).frames(1000)
    ruled(outbox, 0, 0, 100, wire.REFUSED, 10, ((5, 1, "no key"),))
    assert (outbox.admitted, outbox.unsettled) == (0, 10)
    ruled(outbox, 0, 10, 110)
    assert (outbox.admitted, outbox.unsettled) == (9, 0)


def test_a_refusal_that_is_told_again_counts_once() -> None:
    outbox = opened(100)
    outbox.extend(ticks(10))
    way(outbox).frames(1000)
    ruled(outbox, 0, 0, 100, wire.REFUSED, 10, ((5, 1, "no key"),))
    ruled(outbox, 0, 7, 100, wire.REFUSED, 10, ((5, 1, "no key"), (6, 1, "no key")))
    ruled(outbox, 0, 9, 100, wire.REFUSED, 10, ((6, 1, "no key"), (8, 1, "no key")))
    assert [refusal.number for refusal in outbox.take_refusals()] == [5, 6, 8]
    assert outbox.counts["refused"] == 3
    assert (outbox.admitted, outbox.unsettled) == (6, 1)


def test_a_lane_whose_partition_is_run_elsewhere_goes_there_with_all_that_has_no_verdict() -> None:
    outbox = opened(100, 100)
    outbox.extend(ticks(6))
    assert spans(way(outbox).frames(1000)) == [(0, 0, 3), (1, 0, 3)]
    ruled(outbox, 0, 2, 100)
    ruled(outbox, 0, 0, 0, wire.NOT_OWNER, owner="tcp://node:2")
    assert not way(outbox).sendable
    other = outbox.leg("tcp://node:2")
    assert [position.number for position in headers_of([other.hello()])[0].positions] == [2, 0]
    other.on_hello(
        wire.Hello("b", "n2", "ticks", partitions=2, positions=(wire.Position(0, 2, 9),))
    )
    assert spans(other.frames(1000)) == [(0, 0, 3)]
    assert not outbox.stuck
    ruled(outbox, 1, 3, 100)
    assert outbox.unsettled == 1


def test_a_lane_without_an_owner_waits_until_somebody_owns_its_partition() -> None:
    outbox = opened(100)
    ruled(outbox, 0, 0, 0, wire.NOT_OWNER)
    outbox.extend(ticks(2))
    assert not way(outbox).sendable
    assert outbox.stuck
    outbox.assign(["tcp://node:1"], 7)
    assert way(outbox).asks  # a new hello, for the partition that has come to the node
    (hello,) = headers_of(way(outbox).frames(1000))
    assert isinstance(hello, wire.Hello)
    way(outbox).on_hello(answer(wire.Position(0, 0, 9), headers={wire.EPOCH: 7}))
    assert spans(way(outbox).frames(1000)) == [(0, 0, 2)]


def word(
    epoch: int, *owners: int, nodes: Any = ("tcp://node:1", "tcp://node:2"), **more: Any
) -> wire.Hello:
    """A node's hello that tells the owners of the partitions, by their index in ``nodes``."""
    headers = {wire.NODES: list(nodes), wire.OWNERS: list(owners), wire.EPOCH: epoch}
    headers |= more.pop("more", {})
    return wire.Hello("n", "n1", "ticks", (TICK.declaration,), "crc32:", len(owners),
                      headers=headers, **more)  # fmt: skip


@pytest.mark.parametrize("end", ["gives up", "is gone"])
def test_the_lanes_of_a_node_that_drains_move_when_it_gives_them_up_or_is_gone(end: str) -> None:
    outbox = opened(100, 100)
    first = way(outbox)
    outbox.extend(ticks(6))
    assert spans(first.frames(1000)) == [(0, 0, 3), (1, 0, 3)]
    first.draining = True
    second = outbox.leg("tcp://node:2")
    second.hello()
    second.on_hello(word(7, 1, 1, positions=(wire.Position(0, 0, 9), wire.Position(1, 0, 9))))
    assert second.frames(1000) == []
    ruled(outbox, 0, 2, 100)  # what it has processed is not sent to the other
    if end == "gives up":
        ruled(outbox, 0, 3, 0, wire.NOT_OWNER)
        ruled(outbox, 1, 0, 0, wire.NOT_OWNER)
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
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    outbox.extend(ticks(4))
    way(outbox).hello()
    way(outbox).on_hello(word(1, 0, 1, positions=(wire.Position(0, 0, 9),)))
    assert set(outbox.legs) == {"tcp://node:1", "tcp://node:2"}
    assert spans(way(outbox).frames(1000)) == [(0, 0, 2)]
    other = outbox.leg("tcp://node:2")
    other.hello()
    other.on_hello(word(1, 0, 1, positions=(wire.Position(1, 0, 9),)))
    assert spans(other.frames(1000)) == [(1, 0, 2)]


def test_of_two_words_on_owners_the_one_of_the_higher_epoch_is_true() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    way(outbox).hello()
    way(outbox).on_hello(word(5, 1))
    late = outbox.leg("tcp://node:3")
    late.hello()
    late.on_hello(word(4, 0, nodes=["tcp://node:3"], positions=(wire.Position(0, 0, 9),)))
    (lane,) = outbox.lanes
    assert lane.leg is outbox.leg("tcp://node:2")
    way(outbox).on_hello(word(6, 0))
    assert lane.leg is way(outbox)


def test_a_lane_that_changes_its_owner_sends_again_what_had_no_verdict() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    way(outbox).hello()
    way(outbox).on_hello(word(1, 0, positions=(wire.Position(0, 0, 9),)))
    outbox.extend(ticks(4))
    way(outbox).frames(1000)
    ruled(outbox, 0, 1, 9)
    way(outbox).disconnected()
    other = outbox.leg("tcp://node:2")
    other.hello()
    other.on_hello(word(1, 0))
    assert not other.sendable
    other.on_hello(word(2, 1))  # unasked: the partition has been taken over
    (hello,) = headers_of(other.frames(1000))
    assert hello.positions == (wire.Position(0, 1),)
    other.on_hello(word(2, 1, positions=(wire.Position(0, 1, 9),)))
    assert spans(other.frames(1000)) == [(0, 0, 4)]
    outbox.validate()


def test_a_node_that_was_dialled_by_two_names_keeps_one_leg() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    headers = {wire.ADDRESS: "tcp://node:1", wire.NODES: ["tcp://node:1"], wire.OWNERS: [0]}
    way(outbox).hello()
    way(outbox).on_hello(answer(wire.Position(0, 0, 9), headers=headers))
    again = Leg(outbox, "tcp://localhost:1")
    outbox.legs[again.address] = again
    again.hello()
    again.on_hello(answer(wire.Position(0, 0, 9), headers=headers))
    assert list(outbox.legs) == ["tcp://localhost:1"]
    assert outbox.leg("tcp://node:1") is again
    assert outbox.lanes[0].leg is again


def test_an_error_in_a_verdict_stops_the_outbox_and_keeps_its_events() -> None:
    outbox = opened(100)
    outbox.extend(ticks(2))
    way(outbox).on_verdict(wire.Verdict("ticks", "p", error="sections do not add up"))
    assert outbox.error == "sections do not add up"
    assert not way(outbox).sendable
    assert way(outbox).frames(1000) == []
    assert outbox.unsettled == 2


def test_asking_and_ending_are_frames_of_this_stream_and_producer() -> None:
    outbox = opened(100)
    assert headers_of([way(outbox).ask(), way(outbox).end_of_stream()]) == [
        wire.Idle("ticks", "p", wire.ANSWER_NOW),
        wire.EndOfStream("ticks", "p"),
    ]


def test_a_class_that_is_no_event_cannot_be_declared() -> None:
    with pytest.raises(EventError, match="is not an event type"):
        opened(100).declare(int)


# -- memory ---------------------------------------------------------------------------------------

LARGE = "x" * 100_000
LIMITLESS = 1 << 40


def drained(outbox: Outbox) -> list[bytes]:
    """All frames that may leave, one envelope after the other."""
    out: list[bytes] = []
    while made := way(outbox).frames(1 << 17):
        out += made
    return out


def test_frames_without_a_verdict_take_a_window_and_no_more() -> None:
    outbox = opened(LIMITLESS)
    outbox.extend([Tick(LARGE, n) for n in range(2000)])
    drained(outbox)
    assert WINDOW_BYTES <= outbox.kept_bytes < WINDOW_BYTES + (1 << 19)
    assert not way(outbox).sendable
    gone = outbox.in_flight
    assert outbox.pending == 2000 - gone
    ruled(outbox, 0, gone // 2, LIMITLESS)
    assert way(outbox).sendable
    drained(outbox)
    assert outbox.kept_bytes < WINDOW_BYTES + (1 << 19)
    while outbox.unsettled:
        ruled(outbox, 0, outbox.lanes[0].next_number, LIMITLESS)
        drained(outbox)
    assert (outbox.admitted, outbox.unsettled, outbox.kept_bytes) == (2000, 0, 0)


def test_a_verdict_is_asked_for_with_every_quarter_of_a_window() -> None:
    outbox = opened(LIMITLESS)
    outbox.extend([Tick(LARGE, n) for n in range(1000)])
    asked = [h for h in headers_of(drained(outbox)) if isinstance(h, wire.Idle)]
    assert asked == [wire.Idle("ticks", "p", wire.ANSWER_NOW)] * 4
    way(outbox).disconnected()
    outbox.assign([way(outbox).address], 0)
    way(outbox).hello()
    way(outbox).on_hello(answer(wire.Position(0, 0, LIMITLESS)))
    asked = [h for h in headers_of(drained(outbox)) if isinstance(h, wire.Idle)]
    assert len(asked) == 4  # what is sent again has to be ruled on as well


def test_what_waits_is_weighed_before_it_has_ever_been_sent() -> None:
    outbox = Outbox("ticks", "p", "i1", types=[Tick])
    outbox.extend(ticks(1000))
    assert 50_000 < outbox.pending_bytes < 500_000
    for n in range(1000):
        outbox.put(Tick(LARGE, n))
    assert 90_000_000 < outbox.pending_bytes < 110_000_000
    way(outbox).hello()
    way(outbox).on_hello(answer(wire.Position(0, 0, 0), wire.Position(1, 0, 0)))
    outbox.route()
    assert 90_000_000 < outbox.unsettled_bytes < 110_000_000
    outbox.extend_lane(0, [Tick(LARGE, n) for n in range(1000)])
    assert 190_000_000 < outbox.pending_bytes < 210_000_000
    outbox.extend_lane(1, ticks(10_000))
    assert 190_000_000 < outbox.pending_bytes < 220_000_000


def test_what_events_hold_in_lists_counts_once_some_were_sent() -> None:
    outbox = opened(10, takes=[Tick, GenericEvent])
    outbox.extend([GenericEvent.of({"all": [LARGE] * 2}) for _ in range(100)])
    outbox.declare(GenericEvent)
    assert outbox.pending_bytes < 1_000_000
    drained(outbox)
    outbox.extend([GenericEvent.of({"all": [LARGE] * 2}) for _ in range(900)])
    assert outbox.pending == 990
    assert outbox.pending_bytes > 100_000_000
