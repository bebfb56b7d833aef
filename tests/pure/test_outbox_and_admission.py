"""The promises of both ends of a stream: once, in order, accounted for, and never stuck."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from s4node.comm import frame as wire
from s4node.comm.admission import MAX_EXCEPTIONS, FrameReceipt, ProducerLane, StreamAdmission
from s4node.comm.frame import Frame, check_sections, envelope, read_envelope
from s4node.comm.leg import Leg
from s4node.comm.outbox import Outbox, Refusal
from s4node.errors import EventError
from s4node.event import Event, EventBatch, GenericEvent
from s4node.executors.policy import StageSettings
from s4node.executors.stage import Gauge, Stage
from s4node.keys import Partitioner
from s4node.schema import EventType, JsonText


class Tick(Event):
    user: str
    serial: int = 0


class Tock(Event):
    user: str


TICK = EventType(Tick)
NODE = object()


def way(outbox: Outbox) -> Leg:
    """The outbox's leg to the only node."""
    return outbox.leg("tcp://node:1")


def headers_of(frames: list[bytes]) -> list[Any]:
    """The headers of encoded frames, all of them good."""
    read = list(read_envelope(envelope(frames), 1 << 20))
    assert all(isinstance(frame, Frame) for frame in read)
    return [frame.header for frame in read]  # type: ignore[union-attr]


def spans(frames: list[bytes]) -> list[tuple[int, int, int]]:
    """Partition, first and end of each data frame."""
    return [(h.partition, h.first, h.first + h.count) for h in headers_of(frames)]


def answer(*positions: wire.Position, routing: str = "crc32:", **more: Any) -> wire.Hello:
    """A node's hello, for as many partitions as there are positions."""
    return wire.Hello(
        "node", "n1", "ticks", (TICK.declaration,), routing, len(positions), positions, **more
    )


def opened(*limits: int, routing: str = "crc32:", **more: Any) -> Outbox:
    """An outbox for as many partitions as there are limits, its hello answered."""
    outbox = Outbox("ticks", "p", "i1", types=[Tick], **more)
    way(outbox).hello()
    positions = [wire.Position(p, 0, limit) for p, limit in enumerate(limits)]
    way(outbox).on_hello(answer(*positions, routing=routing))
    return outbox


def ticks(count: int, start: int = 0) -> list[Tick]:
    return [Tick(f"user-{n}", n) for n in range(start, start + count)]


def ruled(
    outbox: Outbox, partition: int, upto: int, limit: int, outcome: int = wire.ADMITTED,
    expected: int = 0, exceptions: Any = (), **more: Any,
) -> None:  # fmt: skip
    """The outbox hears one ruling."""
    ruling = wire.Ruling(partition, outcome, upto, limit, expected, exceptions, **more)
    way(outbox).on_verdict(wire.Verdict("ticks", "p", (ruling,)))
    outbox.validate()


# --- the outbox: opening -------------------------------------------------------------------------


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
    outbox = opened(10)
    outbox.declare(Tock)
    outbox.put(Tock("joe"))
    hello, data = headers_of(way(outbox).frames(1000))
    assert [kind.name for kind in hello.types] == ["Tick", "Tock"]
    assert data.sections[0].fingerprint == EventType(Tock).fingerprint
    outbox.put(Tock("ann"))
    assert spans(way(outbox).frames(1000)) == [(0, 1, 2)]


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
    from s4node.keys import crc32, s4

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
    assert [(r.partition, r.number) for r in refusals] == [(0, -1), (0, -1)]
    assert refusals[0].reason == (
        "a GenericEvent cannot be encoded: Encoding objects of type object is unsupported"
    )
    assert "over the frame limit of 100 (s4.sender.maxFrameBytes)" in refusals[1].reason
    assert outbox.counts == {"shed": 0, "refused": 0, "unsent": 2}
    assert (outbox.pending, outbox.in_flight) == (0, 5)
    assert outbox.take_refusals() == []
    outbox.validate()


def test_events_of_several_classes_share_a_frame_in_sections() -> None:
    outbox = opened(10)
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
    outbox = opened(1000)
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


# --- the admission -------------------------------------------------------------------------------


class Ears:
    """Remembers which lanes' producers should hear something."""

    def __init__(self) -> None:
        self.lanes: list[ProducerLane] = []

    def __call__(self, lane: ProducerLane) -> None:
        self.lanes.append(lane)

    def taken(self) -> list[tuple[str, int]]:
        lanes, self.lanes = self.lanes, []
        return [(lane.producer, lane.partition) for lane in lanes]


def admission_of(*capacities: int) -> tuple[StreamAdmission, Ears]:
    ears = Ears()
    return StreamAdmission("ticks", dict(enumerate(map(Stage, capacities))), ears), ears


def greet(
    admission: StreamAdmission, peer: str = "p", connection: object = NODE, now: float = 0.0,
    positions: tuple[wire.Position, ...] = (),
) -> tuple[wire.Position, ...]:  # fmt: skip
    return admission.hello(wire.Hello(peer, "i1", "ticks", positions=positions), connection, now)


def data(first: int, count: int, partition: int = 0, flags: int = 0, peer: str = "p") -> wire.Data:
    return wire.Data(
        "ticks", partition, peer, first, count, (wire.Section(1, count, count),), flags=flags
    )


def admitted(
    admission: StreamAdmission, first: int, count: int, connection: object = NODE, **more: Any
) -> tuple[int, int, int] | None:
    """First, end and skip of what was admitted of a frame, or None."""
    receipt = admission.admit(data(first, count, **more), connection, 0.0)
    admission.validate()
    return receipt and (receipt.first, receipt.end, receipt.skip)


def test_a_new_producer_starts_where_it_says_and_gets_its_share() -> None:
    admission, _ = admission_of(100, 60)
    assert greet(admission) == (wire.Position(0, 0, 100, 0), wire.Position(1, 0, 60, 0))
    assert greet(admission, "q", positions=(wire.Position(1, 7),)) == (
        wire.Position(0, 0, 50, 0),
        wire.Position(1, 7, 37, 7),
    )


def test_positions_of_partitions_that_do_not_exist_do_no_harm() -> None:
    admission, _ = admission_of(100, 100)
    positions = (wire.Position(77, 5), wire.Position(-1, 5), wire.Position(1, 3))
    assert greet(admission, positions=positions) == (
        wire.Position(0, 0, 100, 0),
        wire.Position(1, 3, 103, 3),
    )
    admission.validate()


def test_only_the_next_expected_number_is_admitted() -> None:
    admission, _ = admission_of(100)
    greet(admission)
    assert admitted(admission, 0, 5) == (0, 5, 0)
    assert admitted(admission, 6, 2) is None  # a gap
    assert admitted(admission, 5, 3) == (5, 8, 0)
    assert admitted(admission, 2, 3) is None  # twice
    assert admitted(admission, 0, 8) is None  # twice, all of it
    assert admitted(admission, 6, 5) == (8, 11, 2)  # an overlap is trimmed
    assert (admission.admitted, admission.frames) == (11, 3)
    assert (admission.duplicates, admission.gaps) == (13, 1)


def test_what_comes_before_the_hello_or_on_another_connection_is_dropped_silently() -> None:
    admission, ears = admission_of(100)
    assert admitted(admission, 0, 5) is None
    greet(admission)
    ears.taken()
    assert admitted(admission, 0, 5, connection=object()) is None
    assert admitted(admission, 0, 5, peer="q") is None
    assert admitted(admission, 0, 5, partition=1) is None
    assert ears.taken() == []
    assert admission.admitted == 0


def test_a_gap_is_answered_once_with_the_number_to_go_back_to() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    admitted(admission, 0, 5)
    for first in (6, 8, 10):
        assert admitted(admission, first, 2) is None
    lane = admission.lanes["p", 0]
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    assert lane.ruling() == wire.Ruling(0, wire.EXPECTED, 0, 100, 5)
    assert lane.ruling().outcome == wire.ADMITTED
    assert admitted(admission, 5, 2) == (5, 7, 0)
    assert admitted(admission, 9, 2) is None  # another gap is told again
    assert lane.ruling().outcome == wire.EXPECTED


def test_a_frame_that_begins_below_the_limit_owns_its_place_whole() -> None:
    admission, _ = admission_of(10)
    greet(admission)
    assert admitted(admission, 0, 25) == (0, 25, 0)
    assert admission.over_credit == 0


def test_a_frame_that_does_not_is_dropped_and_asked_for_again() -> None:
    admission, ears = admission_of(10)
    greet(admission)
    admitted(admission, 0, 10)
    ears.taken()
    assert admitted(admission, 10, 2) is None
    assert admission.over_credit == 1
    assert ears.taken() == [("p", 0)]
    lane = admission.lanes["p", 0]
    assert lane.ruling() == wire.Ruling(0, wire.EXPECTED, 0, 10, 10)
    lane.complete(0, 10)
    assert lane.ruling() == wire.Ruling(0, wire.ADMITTED, 10, 20, 10)
    assert admitted(admission, 10, 2) == (10, 12, 0)


def test_safe_moves_with_completion_and_never_past_a_hole() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipts = [admission.admit(data(first, 5), NODE, 0.0) for first in (0, 5, 10)]
    lane = admission.lanes["p", 0]
    assert all(isinstance(receipt, FrameReceipt) for receipt in receipts)
    receipts[1].done()  # type: ignore[union-attr]
    receipts[2].done()  # type: ignore[union-attr]
    assert lane.safe == 0
    assert ears.taken() == []
    receipts[0].done()  # type: ignore[union-attr]
    assert lane.safe == 15
    assert ears.taken() == [("p", 0)]
    admission.validate()


def test_a_frame_is_done_when_all_of_its_parts_are() -> None:
    admission, _ = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    receipt.parts = 3
    receipt.done()
    receipt.done()
    assert receipt.lane.safe == 0
    receipt.done()
    assert receipt.lane.safe == 5
    assert receipt.describe(4) == "p:4"


def test_refusals_are_told_at_once_and_once() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    receipt.refuse(3, "no key")
    lane = receipt.lane
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    assert lane.ruling() == wire.Ruling(0, wire.REFUSED, 0, 100, 5, ((3, 1, "no key"),))
    receipt.done()
    assert lane.ruling() == wire.Ruling(0, wire.ADMITTED, 5, 100, 5)
    assert admission.refused == 1


def test_many_refusals_are_told_in_several_verdicts_and_none_is_passed_over() -> None:
    """``upto`` stops below what is yet to be told: a producer that is settled knows it all."""
    assert MAX_EXCEPTIONS == 256
    admission, _ = admission_of(2000)
    greet(admission)
    receipt = admission.admit(data(0, 700), NODE, 0.0)
    assert receipt is not None
    for number in range(600):
        receipt.refuse(number, "no")
    receipt.done()
    lane = receipt.lane
    rulings = []
    while lane.pressing:
        rulings.append(lane.ruling())
    assert [(r.outcome, r.upto, len(r.exceptions)) for r in rulings] == [
        (wire.REFUSED, 256, 256), (wire.REFUSED, 512, 256), (wire.REFUSED, 700, 88),
    ]  # fmt: skip
    assert [n for r in rulings for n, _, _ in r.exceptions] == list(range(600))


def test_refusals_do_not_hide_a_gap() -> None:
    admission, _ = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    admitted(admission, 7, 2)
    assert receipt is not None
    receipt.refuse(1, "no")
    lane = receipt.lane
    assert lane.ruling().outcome == wire.REFUSED
    assert lane.pressing
    assert lane.ruling() == wire.Ruling(0, wire.EXPECTED, 0, 100, 5)


def test_a_ruling_that_could_not_be_sent_is_said_again_whole() -> None:
    admission, _ = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    admitted(admission, 7, 2)
    assert receipt is not None
    receipt.refuse(1, "no")
    lane = receipt.lane
    lane.ruling()
    lane.untold()
    assert lane.pressing
    receipt.refuse(2, "no")
    assert lane.ruling().exceptions == ((1, 1, "no"), (2, 1, "no"))
    lane.untold()
    assert lane.ruling().exceptions == ((1, 1, "no"), (2, 1, "no"))
    assert lane.ruling().outcome == wire.EXPECTED
    lane.untold()
    assert lane.ruling().outcome == wire.EXPECTED


def test_a_producer_that_waits_is_answered_once_what_it_sent_is_processed() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    lane = admission.lanes["p", 0]
    assert not lane.pressing
    receipt = admission.admit(data(0, 1, flags=wire.ANSWER_NOW), NODE, 0.0)
    assert ears.taken() == [("p", 0)]
    assert not lane.pressing
    assert receipt is not None
    receipt.done()
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    lane.ruling()
    assert not lane.pressing
    admission.ask("p", NODE)
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    lane.ruling()
    admission.ask("p", object())
    admission.ask("q", NODE)
    assert ears.taken() == []


def test_a_producer_hears_when_a_quarter_of_its_window_is_used_up() -> None:
    admission, _ = admission_of(100)
    greet(admission)
    receipts = [admission.admit(data(first, 1), NODE, 0.0) for first in range(100)]
    lane = admission.lanes["p", 0]
    for done, receipt in enumerate(receipts):
        assert lane.pressing == (done >= 25)
        receipt.done()  # type: ignore[union-attr]
    assert lane.ruling() == wire.Ruling(0, wire.ADMITTED, 100, 200, 100)


def test_what_comes_twice_is_answered_since_the_producer_may_not_know() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    admitted(admission, 0, 5)
    ears.taken()
    assert admitted(admission, 0, 5) is None
    assert ears.taken() == [("p", 0)]
    assert admission.lanes["p", 0].pressing


def test_a_producer_s_id_belongs_to_its_latest_connection() -> None:
    admission, _ = admission_of(100)
    one, other = object(), object()
    greet(admission, connection=one)
    assert admitted(admission, 0, 5, connection=one) == (0, 5, 0)
    assert greet(admission, connection=other) == (wire.Position(0, 5, 100, 0),)
    assert admitted(admission, 5, 5, connection=one) is None
    admission.gone(one, 1.0)
    assert admitted(admission, 5, 5, connection=other) == (5, 10, 0)


def test_a_lane_outlives_its_connection() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    admission.gone(NODE, 1.0)
    receipt.done()
    assert ears.taken() == []  # there is nobody to tell
    assert greet(admission, connection=object()) == (wire.Position(0, 5, 100, 5),)


def test_refusals_made_while_the_producer_was_away_are_told_when_it_is_back() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    admission.gone(NODE, 1.0)
    receipt.refuse(3, "no key")
    receipt.done()
    assert ears.taken() == []
    (position,) = greet(admission, connection=object())
    assert (position.number, position.safe) == (5, 3)
    assert ears.taken() == [("p", 0)]
    assert receipt.lane.ruling() == wire.Ruling(
        0, wire.REFUSED, 5, position.limit, 5, ((3, 1, "no key"),)
    )


def test_refusals_lost_with_a_connection_are_told_again_on_the_next() -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 9), NODE, 0.0)
    assert receipt is not None
    lane = receipt.lane
    receipt.refuse(3, "heard")
    lane.ruling()
    receipt.refuse(5, "lost")
    receipt.done()
    assert lane.ruling().upto == 9
    admission.gone(NODE, 1.0)
    ears.taken()
    # the producer knows everything below 5
    (position,) = greet(admission, connection=object(), positions=(wire.Position(0, 5),))
    assert position.safe == 5
    assert ears.taken() == [("p", 0)]
    assert lane.ruling().exceptions == ((5, 1, "lost"),)


def test_what_was_refused_long_ago_is_remembered_no_longer_than_it_may_be_unheard() -> None:
    admission, _ = admission_of(10)
    greet(admission)
    lane = admission.lanes["p", 0]
    for number in range(1000):
        receipt = admission.admit(data(number, 1), NODE, 0.0)
        assert receipt is not None
        receipt.refuse(number, "no")
        receipt.done()
        lane.ruling()
    (position,) = greet(admission, positions=(wire.Position(0, 0),))
    assert len(lane.ruling().exceptions) <= 20
    assert position.number == 1000


def test_the_end_of_a_stream_forgets_what_is_done_and_nothing_else() -> None:
    admission, _ = admission_of(100, 100)
    greet(admission)
    admitted(admission, 0, 5, partition=1)
    admission.forget("p", object())
    assert set(admission.lanes) == {("p", 0), ("p", 1)}
    admission.forget("p", NODE)
    assert set(admission.lanes) == {("p", 1)}
    admission.lanes["p", 1].complete(0, 5)
    admission.forget("p", NODE)
    assert admission.lanes == {}
    assert admission.share(greeted_lane(admission)) == 100


def greeted_lane(admission: StreamAdmission) -> ProducerLane:
    greet(admission, "q")
    return admission.lanes["q", 0]


def test_a_lane_goes_on_where_the_node_stopped_that_had_the_partition_before() -> None:
    admission, _ = admission_of(100)
    (position,) = greet(admission)
    assert (position.number, position.safe) == (0, 0)
    (position,) = greet(admission, positions=(wire.Position(0, 5),))
    assert (position.number, position.safe) == (5, 5)
    assert admission.admit(data(5, 3), NODE, 0.0, 3) is not None
    (position,) = greet(admission, positions=(wire.Position(0, 20),))
    assert (position.number, position.safe) == (8, 5)  # what is in progress here is ours
    admission.validate()


def test_producers_that_stay_away_expire_unless_their_work_is_in_progress() -> None:
    admission, _ = admission_of(100)
    for peer in ("done", "busy", "here"):
        greet(admission, peer, connection=peer)
    admitted(admission, 0, 5, connection="busy", peer="busy")
    admission.gone("done", 10.0)
    admission.gone("busy", 10.0)
    assert admission.expire(before=10.0) == 0
    assert admission.expire(before=11.0) == 1
    assert {peer for peer, _ in admission.lanes} == {"busy", "here"}
    admission.lanes["busy", 0].complete(0, 5)
    assert admission.expire(before=11.0) == 1


def test_producers_held_back_by_a_full_stage_are_served_when_it_has_room() -> None:
    admission, ears = admission_of(4)
    stage = admission.stages[0]
    greet(admission)
    receipts = []
    for first in range(4):
        receipts.append(admission.admit(data(first, 1), NODE, 0.0))
        stage.offer(EventBatch("ticks", 0, ["tick"], receipts[-1], first))
    lane = admission.lanes["p", 0]
    receipts[0].done()  # type: ignore[union-attr]  # done, but still counted in the stage
    assert lane.ruling().limit == 4
    ears.taken()
    admission.released()
    assert ears.taken() == []
    stage.passed(1)
    admission.released()
    assert ears.taken() == [("p", 0)]
    assert lane.ruling().limit == 5
    admission.released()
    assert ears.taken() == []


# --- both ends together, over a network that loses everything it can -----------------------------


class Wire:
    """A connection: what is under way in each direction, and what the node owes the peer."""

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.answers: list[bytes] = []
        self.dirty: dict[ProducerLane, None] = {}


class World:
    """Producers, a network and a node; each method is one thing that may happen next."""

    def __init__(
        self,
        producers: int = 2,
        partitions: int = 2,
        capacity: int = 4,
        frame_events: int = 3,
        routing: str = "crc32:",
        executor: str = "block",
        max_bytes: int = 1 << 20,
    ) -> None:
        self.routing = routing
        self.sheds = executor != "block"
        self.time = 0.0
        settings = StageSettings("stream", "ticks", executor, capacity, max_bytes)
        frames = StageSettings("deserializer", "ticks", "block", 2 * capacity, 3 * max_bytes)
        self.admission = StreamAdmission(
            "ticks",
            {partition: Stage(settings, partition) for partition in range(partitions)},
            lambda lane: lane.connection.dirty.update({lane: None}),  # type: ignore[union-attr]
            Gauge(frames),
        )
        self.outboxes = {
            f"p{n}": Outbox(
                "ticks", f"p{n}", types=[Tick], max_frame_events=frame_events, max_frame_bytes=200
            )
            for n in range(producers)
        }
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
        resent = [len(lane.kept) for lane in outbox.lanes]
        sendable = way(outbox).sendable
        frames = way(outbox).frames(budget)
        assert sendable or not frames
        for header in headers_of(frames):
            lane = outbox.lanes[header.partition]
            assert header.first < lane.limit
            if header.first >= (lane.kept[resent[lane.partition] - 1].end
                                if resent[lane.partition] else lane.upto):  # fmt: skip
                assert header.first + header.count <= lane.limit
        if frames:
            assert wire_ is not None
            wire_.up.append(envelope(frames))

    def ask(self, name: str) -> None:
        wire_, outbox = self.wires[name], self.outboxes[name]
        if wire_ is not None and outbox.opened:
            wire_.up.append(envelope([way(outbox).ask()]))

    def greet_again(self, name: str) -> None:
        wire_, outbox = self.wires[name], self.outboxes[name]
        if wire_ is not None:
            wire_.up.append(envelope([way(outbox).hello()]))

    def hear(self, name: str) -> None:
        wire_, outbox = self.wires[name], self.outboxes[name]
        if wire_ is not None and wire_.down:
            for header in headers_of_envelope(wire_.down.popleft()):
                if isinstance(header, wire.Hello):
                    way(outbox).on_hello(header)
                else:
                    way(outbox).on_verdict(header)
            assert not outbox.error
            for refusal in outbox.take_refusals():
                if refusal.number >= 0:
                    self.told[name].append(refusal)

    # -- the network -------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        if self.wires[name] is None:
            self.wires[name] = Wire(name)
            way(self.outboxes[name]).disconnected()
            self.greet_again(name)

    def disconnect(self, name: str, arriving: int) -> None:
        """The producer's end is gone; some of what it had sent may arrive all the same."""
        wire_ = self.wires[name]
        if wire_ is not None:
            self.wires[name] = None
            way(self.outboxes[name]).disconnected()
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
                events = TICK.decode(frame.body)[receipt.skip : receipt.skip + count]
                assert len(events) == count
                assert count == header.count - receipt.skip or self.sheds
                stage = self.admission.stages[header.partition]
                assert stage.bytes + size <= stage.max_bytes or not stage.depth
                batch = EventBatch(
                    "ticks", header.partition, events, receipt, receipt.first, weight=size
                )
                stage.offer(batch)
                self.admission.deserializer.came(batch.size, batch.bytes)

    def node_tells(self, wire_: Wire, busy: bool) -> None:
        """One envelope of answers and verdicts, if the socket takes it."""
        lanes = [lane for lane in wire_.dirty if lane.connection is wire_]
        verdict = wire.Verdict("ticks", wire_.producer, tuple(lane.ruling() for lane in lanes))
        if busy:
            for lane in lanes:
                lane.untold()
            return
        frames = [*wire_.answers, *([wire.encode_frame(verdict)] if lanes else [])]
        wire_.answers.clear()
        wire_.dirty = {lane: None for lane in lanes if lane.urgent}
        if frames:
            wire_.down.append(envelope(frames))

    def node_notices(self, wire_: Wire) -> None:
        """The connection is gone."""
        self.old_wires.remove(wire_)
        self.admission.gone(wire_, 0.0)

    def process(self, partition: int, parts: int) -> None:
        batch = self.admission.stages[partition].take()
        if batch is None:
            return
        self.admission.deserializer.went(batch.size, batch.bytes)
        receipt = batch.receipt
        assert isinstance(receipt, FrameReceipt)
        name = receipt.lane.producer
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
            assert isinstance(receipt, FrameReceipt)
            if receipt.parts == 1:
                self.admission.stages[batch.partition].passed(batch.size, batch.bytes)
            receipt.done()
            self.time += 1
            self.admission.tick(self.time, 1 << 30)
            self.admission.released()

    # -- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        self.admission.validate()
        for name, outbox in self.outboxes.items():
            outbox.validate()
            counts = outbox.counts
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
                while wire_.dirty or wire_.answers:
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
        for gauge in (self.admission.deserializer, *self.admission.stages.values()):
            assert (gauge.depth, gauge.bytes) == (0, 0)
        handled = sorted(serial for serials in self.processed.values() for serial in serials)
        sendable = [n for n in range(self.serial) if n not in self.unsendable]
        shed = sum(outbox.counts["shed"] for outbox in self.outboxes.values())
        assert handled == sendable or self.sheds
        assert len(handled) + shed == len(sendable)
        assert shed == sum(sum(s.shed.values()) for s in self.admission.stages.values())
        for name, outbox in self.outboxes.items():
            counts = outbox.counts
            assert counts["refused"] == len(self.refused[name])
            assert self.put_count[name] == (
                outbox.admitted + counts["refused"] + counts["shed"] + counts["unsent"]
            )


def frames_of(sent: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Partition, first number (-1 where there are no events) and bytes of an envelope's frames."""
    for frame in read_envelope(sent, 1 << 20):
        assert isinstance(frame, Frame)
        header = frame.header
        place = (header.partition, header.first) if isinstance(header, wire.Data) else (-1, -1)
        yield *place, wire.encode_frame(header, bytes(frame.body))


def headers_of_envelope(sent: bytes) -> list[Any]:
    return [frame.header for frame in read_envelope(sent, 1 << 20)]  # type: ignore[union-attr]


WHAT = ["good"] * 4 + ["bad"] * 3 + ["unsendable"]


def happen(world: World, random: Random, disconnects: bool) -> None:
    """One step of what may happen, chosen at random."""
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


@pytest.mark.parametrize("disconnects", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_every_event_is_handled_once_in_order_and_accounted_for_whatever_happens(
    seed: int, disconnects: bool
) -> None:
    random = Random(seed)
    world = World(
        producers=random.randint(1, 4),
        partitions=random.randint(1, 4),
        capacity=random.choice([1, 2, 3, 8, 30]),
        frame_events=random.randint(1, 6),
        routing=random.choice(["crc32:", "crc32:user", "crc32:?"]),
        executor=random.choice(["block", "block", "shed"]),
        max_bytes=random.choice([40, 150, 1 << 20]),
    )
    for name in world.names:
        world.connect(name)
    for _ in range(600):
        happen(world, random, disconnects)
        world.check()
    world.settle()
    if disconnects:  # and once more: a settled stream goes on
        world.put(world.names[0], 5, "good")
        world.settle()


class Streams(RuleBasedStateMachine):
    """The same, with what happens chosen, and made as short as can be, by hypothesis."""

    @initialize(
        producers=st.integers(1, 3),
        partitions=st.integers(1, 3),
        capacity=st.integers(1, 6),
        frame_events=st.integers(1, 4),
        executor=st.sampled_from(["block", "shed"]),
        max_bytes=st.sampled_from([40, 150, 1 << 20]),
    )
    def begin(
        self,
        producers: int,
        partitions: int,
        capacity: int,
        frame_events: int,
        executor: str,
        max_bytes: int,
    ) -> None:
        self.world = World(
            producers,
            partitions,
            capacity,
            frame_events,
            executor=executor,
            max_bytes=max_bytes,
        )

    def name(self, number: int) -> str:
        return self.world.names[number % len(self.world.names)]

    def wire(self, number: int) -> Wire | None:
        wires = [w for w in self.world.wires.values() if w is not None] + self.world.old_wires
        return wires[number % len(wires)] if wires else None

    @rule(number=st.integers(0, 2), count=st.integers(1, 5), what=st.sampled_from(WHAT))
    def put(self, number: int, count: int, what: str) -> None:
        self.world.put(self.name(number), count, what)

    @rule(number=st.integers(0, 2), budget=st.sampled_from([1, 100, 1000]))
    def send(self, number: int, budget: int) -> None:
        self.world.send(self.name(number), budget)

    @rule(number=st.integers(0, 2))
    def connect(self, number: int) -> None:
        self.world.connect(self.name(number))

    @rule(number=st.integers(0, 2), arriving=st.integers(0, 3))
    def disconnect(self, number: int, arriving: int) -> None:
        self.world.disconnect(self.name(number), arriving)

    @rule(number=st.integers(0, 2))
    def spoil(self, number: int) -> None:
        self.world.spoil(self.name(number))

    @rule(number=st.integers(0, 2), again=st.booleans())
    def ask(self, number: int, again: bool) -> None:
        if again:
            self.world.greet_again(self.name(number))
        else:
            self.world.ask(self.name(number))

    @rule(number=st.integers(0, 5))
    def node_reads(self, number: int) -> None:
        wire_ = self.wire(number)
        if wire_ is not None:
            self.world.node_reads(wire_)

    @rule(number=st.integers(0, 5), busy=st.booleans())
    def node_tells(self, number: int, busy: bool) -> None:
        wire_ = self.wire(number)
        if wire_ is not None:
            self.world.node_tells(wire_, busy)

    @rule(number=st.integers(0, 2))
    def hear(self, number: int) -> None:
        self.world.hear(self.name(number))

    @rule(number=st.integers(0, 3))
    def node_notices(self, number: int) -> None:
        if self.world.old_wires:
            self.world.node_notices(self.world.old_wires[number % len(self.world.old_wires)])

    @rule(partition=st.integers(0, 2), parts=st.integers(1, 2))
    def process(self, partition: int, parts: int) -> None:
        self.world.process(partition % len(self.world.admission.stages), parts)

    @rule(index=st.integers(0, 5))
    def finish(self, index: int) -> None:
        self.world.finish(index)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestStreams = Streams.TestCase
TestStreams.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
