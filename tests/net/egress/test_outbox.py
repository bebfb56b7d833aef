"""The promises of the outbox, the producer's side of a stream."""

from __future__ import annotations

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

from s4node.errors import EventError
from s4node.events.event import Event, GenericEvent
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType, JsonText
from s4node.net.egress.outbox import OneLane, Outbox
from s4node.net.egress.refusal import MAX_REFUSALS, Refusal
from s4node.net.wire import frame as wire
from s4node.net.wire.frame import WINDOW_BYTES, Frame, check_sections, envelope, read_envelope


def test_events_of_a_class_that_the_node_does_not_take_are_refused_here_by_its_name() -> None:
    outbox, route = opened(10)
    outbox.types.declare(Tock)
    outbox.extend([Tick("joe"), Tock("joe"), Tick("ann")])
    assert spans(route.frames(1000)) == [(0, 0, 2)]
    (refused,) = outbox.refusals.drain()
    assert (refused.number, refused.count) == (-1, 1)
    assert refused.reason.startswith("stream 'ticks' takes Tick, not 'Tock'; send one of those")


def test_a_clock_that_is_set_back_makes_no_frame_older_than_the_one_before() -> None:
    outbox, route = opened(10)
    hour, sent = 3_600_000, list[int]()
    for now in (10 * hour, 9 * hour + 5, 10 * hour + 1, 8 * hour, 8 * hour - 1):
        outbox.put(Tick("joe"))
        sent += [data.created_ms for data in headers_of(route.frames(1000, now))]
    # nodes refuse what is more than an hour ahead of their clock
    assert sent == [10 * hour, 10 * hour, 10 * hour + 1, 8 * hour, 8 * hour]


def test_a_log_takes_types_that_it_has_not_had() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 10), headers={wire.LOG: True}))
    outbox.types.declare(Tock)
    outbox.put(Tock("joe"))
    hello, data = headers_of(route.frames(1000))
    assert [kind.name for kind in hello.types] == ["Tick", "Tock"]
    assert data.count == 1


# --- the outbox: routing -------------------------------------------------------------------------


class ByUser:
    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, tick: Tick) -> str:
        return tick.user


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
    outbox, route = opened(100, 100, 100)
    outbox.extend(ticks(4))
    assert lanes_of(outbox, route.frames(1000)) == {0: [0, 3], 1: [1], 2: [2]}
    outbox.extend(ticks(3, 4))
    assert lanes_of(outbox, route.frames(1000)) == {1: [4], 2: [5], 0: [6]}


@pytest.mark.parametrize("routing", ["crc32m:user", "s4:user"])
def test_with_the_node_s_key_events_go_to_the_partition_of_their_key(routing: str) -> None:
    from s4node.events.keys import crc32m, s4

    outbox, route = opened(*[1000] * 4, routing=routing)
    outbox.extend(ticks(100))
    frames = route.frames(1 << 20)
    partitioner = Partitioner(4, crc32m if routing == "crc32m:user" else s4)
    expected: dict[int, list[int]] = {}
    for n in range(100):
        expected.setdefault(partitioner.partition_of(f"user-{n}"), []).append(n)
    assert lanes_of(outbox, frames) == expected
    assert {header.routing for header in headers_of(frames)} == {routing}
    assert headers_of([route.hello_frame()])[0].routing == routing


def test_a_stream_without_a_key_is_routed_by_a_key_of_one_s_own() -> None:
    outbox, route = opened(*[1000] * 4, routing="crc32m:", key="serial")
    outbox.extend(ticks(100))
    frames = route.frames(1 << 20)
    partitioner = Partitioner(4)
    found = lanes_of(outbox, frames)
    assert len(found) == 4
    for partition, serials in found.items():
        assert {partitioner.partition_of(serial) for serial in serials} == {partition}
    assert {header.routing for header in headers_of(frames)} == {"crc32m:serial"}


@pytest.mark.parametrize(
    ("routing", "key"),
    [
        ("crc32m:@finder", None),
        ("crc32m:@finder", "user"),
        ("crc32m:@finder", ByUser("another")),
        ("crc32m:?", None),
        ("crc32m:?", lambda tick: tick.user),
        ("crc32m:name", None),
        ("crc32m:name", "user"),
        ("no.such.module:hash:user", None),
    ],
)
def test_a_key_that_is_not_the_node_s_sends_everything_through_one_lane(
    routing: str, key: Any
) -> None:
    """The node sends each event on, so only one lane keeps the order of each of its keys."""
    outbox, route = opened(*[1000] * 4, routing=routing, key=key)
    outbox.extend(ticks(100))
    frames = route.frames(1 << 20)
    (serials,) = lanes_of(outbox, frames).values()
    assert serials == list(range(100))
    assert {header.routing for header in headers_of(frames)} == {""}


@pytest.mark.parametrize("key", ["serial", ("user", "serial"), lambda tick: 7, ByUser("another")])
def test_a_node_s_key_of_attributes_is_used_whatever_one_s_own_is(key: Any) -> None:
    outbox, route = opened(*[1000] * 4, routing="crc32m:user", key=key)
    outbox.extend(ticks(100))
    frames = route.frames(1 << 20)
    partitioner = Partitioner(4)
    expected: dict[int, list[int]] = {}
    for n in range(100):
        expected.setdefault(partitioner.partition_of(f"user-{n}"), []).append(n)
    assert lanes_of(outbox, frames) == expected
    assert {header.routing for header in headers_of(frames)} == {"crc32m:user"}
    assert outbox.warning is None


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "none"),
        ("user", "user"),
        (ByUser("another"), "KeyFinder 'another'"),
        (ByUser(""), "ByUser, which has no name"),
        (len, "len, which has no name"),
    ],
)
def test_a_warning_with_both_keys_comes_once_when_all_events_take_one_lane(
    key: Any, words: str
) -> None:
    outbox, route = opened(*[1000] * 4, routing="crc32m:@finder", key=key)
    assert outbox.warning is None
    outbox.extend(ticks(3))
    route.frames(1000)
    assert outbox.warning == OneLane(words, "crc32m:@finder")
    outbox.warning = None
    outbox.extend(ticks(3))
    route.frames(1000)
    assert outbox.warning is None


def test_a_stream_of_one_partition_has_one_lane_anyway() -> None:
    outbox, route = opened(1000, routing="crc32m:@finder", key="user")
    outbox.extend(ticks(3))
    assert route.frames(1000)
    assert outbox.warning is None


def test_the_one_lane_is_the_same_in_each_life_of_a_producer() -> None:
    lanes = set()
    for _ in range(3):
        outbox, route = opened(*[1000] * 64, routing="crc32m:?")
        outbox.extend(ticks(3))
        lanes |= set(lanes_of(outbox, route.frames(1 << 20)))
    assert len(lanes) == 1


def test_an_event_whose_key_is_not_found_is_refused_here_and_the_others_go() -> None:
    outbox = Outbox("ticks", "p", types=[GenericEvent])
    route = route_of(outbox)
    route.hello_frame()
    types = (EventType(GenericEvent).declaration,)
    positions = (wire.Position(0, 0, 9), wire.Position(1, 0, 9))
    route.on_hello(wire.Hello("node", "n1", "ticks", types, "crc32m:user", 2, positions))
    outbox.extend(
        [
            GenericEvent(user="a"),
            GenericEvent(name="b"),
            GenericEvent(user=1.5),
            GenericEvent(user="c"),
        ]
    )
    assert sum(end - first for _, first, end in spans(route.frames(1000))) == 2
    refusals = outbox.refusals.drain()
    assert [(r.stream, r.partition, r.number, r.shed) for r in refusals] == [
        ("ticks", -1, -1, False)
    ] * 2
    assert refusals[0].reason == "the event has no attribute 'user', which is the key of the stream"
    assert refusals[1].reason.startswith("the KeyFinder returned 1.5 (float)")
    assert outbox.refusals.counts["unsent"] == 2
    assert outbox.unsettled == 2
    outbox.validate()


class EarlierTick(Event):
    """A Tick before there was a serial number; nodes read 0 there."""

    event_name = "Tick"
    user: str


class Name(Event):
    friend: str


@pytest.mark.parametrize("known", ["before the hello", "before the answer", "behind the answer"])
@pytest.mark.parametrize(
    ("takes", "routing", "events", "reasons"),
    [
        (
            GenericEvent,
            "crc32m:user",
            [Name("joe"), GenericEvent(friend="joe"), GenericEvent(user="joe")],
            [
                (
                    "stream 'ticks' takes GenericEvent, not 'Name'; send one of those, or declare "
                    "the type on the stream"
                ),
                "the event has no attribute 'user', which is the key of the stream",
            ],
        ),
        (
            Tick,
            "crc32m:serial",
            [EarlierTick("joe"), Tick("joe", 7)],
            ["the KeyFinder raised AttributeError: 'EarlierTick' object has no attribute 'serial'"],
        ),
    ],
)
def test_how_events_are_sent_does_not_depend_on_when_their_classes_become_known(
    known: str, takes: type, routing: str, events: list[Any], reasons: list[str]
) -> None:
    outbox = Outbox("ticks", "p")
    route = route_of(outbox)

    def put() -> None:
        for event in events:
            outbox.types.declare(type(event))
        outbox.extend(events)

    def answers(hello: wire.Hello) -> wire.Hello:
        fit = {"Tick", takes.__name__}
        if all(declared.name in fit for declared in hello.types):
            positions = [wire.Position(partition, 0, 10) for partition in range(4)]
            return answer(*positions, routing=routing, takes=[takes])
        return answer(takes=[takes], error=reasons[0])

    if known == "before the hello":
        put()
    (hello,) = headers_of([route.hello_frame()])
    if known == "before the answer":
        put()
    route.on_hello(answers(hello))
    if known == "behind the answer":
        put()
    found = headers_of(route.frames(1000))
    if not outbox.lanes:  # it was turned down, and says hello again
        (hello,) = found
        route.on_hello(answers(hello))
        found = headers_of(route.frames(1000))
    sent = [(h.count, h.routing) for h in found if isinstance(h, wire.Data)]
    assert sent == [(1, routing)]
    assert [refusal.reason for refusal in outbox.refusals.drain()] == reasons
    assert outbox.refusals.counts["unsent"] == len(reasons)


def test_a_class_that_was_given_without_the_key_s_attribute_goes_where_the_node_reads_it() -> None:
    outbox = Outbox("ticks", "p", types=[EarlierTick])
    route = route_of(outbox)
    route.hello_frame()
    positions = [wire.Position(partition, 0, 10) for partition in range(4)]
    route.on_hello(answer(*positions, routing="crc32m:serial"))
    outbox.extend([EarlierTick("joe"), EarlierTick("ann")])
    (header,) = headers_of(route.frames(1000))
    assert (header.count, header.routing) == (2, "")
    assert outbox.warning == OneLane("none", "crc32m:serial")


# --- the outbox: frames --------------------------------------------------------------------------


def test_a_lane_sends_below_its_limit_only() -> None:
    outbox, route = opened(5)
    outbox.extend(ticks(8))
    assert spans(route.frames(1000)) == [(0, 0, 5)]
    assert not route.sendable.events
    assert route.frames(1000) == []
    assert (outbox.pending, outbox.in_flight) == (3, 5)
    ruled(route, 0, 2, 7)
    assert route.sendable.events
    assert spans(route.frames(1000)) == [(0, 5, 7)]
    assert (outbox.pending, outbox.in_flight) == (1, 5)


def test_frames_hold_no_more_events_and_bytes_than_they_may() -> None:
    outbox, route = opened(100, max_frame_events=4)
    outbox.extend(ticks(10))
    assert spans(route.frames(1 << 20)) == [(0, 0, 4), (0, 4, 8), (0, 8, 10)]
    outbox, route = opened(100, max_frame_bytes=64)
    outbox.extend(ticks(20))
    frames = route.frames(1 << 20)
    assert [end for _, _, end in spans(frames)][-1] == 20
    for frame in read_envelope(envelope(frames), 1 << 20):
        assert isinstance(frame, Frame)
        assert len(frame.body) <= 64


def test_time_and_flags_are_in_the_header() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox, flags=wire.ANSWER_NOW)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 10)))
    outbox.put(Tick("joe"))
    (header,) = headers_of(route.frames(1000, now_ms=1700000000123))
    assert (header.created_ms, header.flags) == (1700000000123, wire.ANSWER_NOW)


def test_an_event_that_cannot_be_sent_is_refused_here_and_the_others_keep_their_order() -> None:
    outbox = Outbox("ticks", "p", types=[GenericEvent], max_frame_bytes=100)
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 50)))
    events = [GenericEvent(n=n) for n in range(7)]
    events[1].put("n", object())
    events[4].put("n", "x" * 200)
    outbox.extend(events)
    bodies = [frame.body for frame in read_envelope(envelope(route.frames(1 << 20)), 1 << 20)]  # type: ignore[union-attr]
    sent = [event for body in bodies for event in EventType(GenericEvent).decode(body)]
    assert [event.n for event in sent] == [0, 2, 3, 5, 6]
    refusals = outbox.refusals.drain()
    assert [(r.partition, r.number, r.unsent) for r in refusals] == [(0, -1, True)] * 2
    assert refusals[0].reason == (
        "a GenericEvent cannot be encoded: Encoding objects of type object is unsupported"
    )
    assert "over the frame limit of 100 (s4.sender.maxFrameBytes)" in refusals[1].reason
    assert outbox.refusals.counts == {"shed": 0, "refused": 0, "unsent": 2}
    assert (outbox.pending, outbox.in_flight) == (0, 5)
    assert outbox.refusals.drain() == []
    outbox.validate()


def test_events_of_several_classes_share_a_frame_in_sections() -> None:
    outbox, route = opened(10, takes=[Tick, Tock])
    outbox.types.declare(Tock)
    route.hello_frame()
    outbox.extend([Tick("a", 1), Tock("b"), Tock("c"), Tick("d", 2)])
    (frame,) = read_envelope(envelope(route.frames(1000)), 1 << 20)
    assert isinstance(frame, Frame)
    assert isinstance(frame.header, wire.Data)
    assert check_sections(frame.header, frame.body) == ""
    kinds = {EventType(cls).fingerprint: EventType(cls) for cls in (Tick, Tock)}
    at, shares = 0, []
    for section in frame.header.sections:
        shares.append(kinds[section.fingerprint].decode(frame.body[at : at + section.size]))
        at += section.size
    assert [shares[which].pop(0) for which in frame.header.order] == [
        Tick("a", 1),
        Tock("b"),
        Tock("c"),
        Tick("d", 2),
    ]


def test_any_number_of_event_classes_may_be_mixed() -> None:
    classes: list[Any] = [
        type(f"E{n}", (Event,), {"__annotations__": {"a": int}}) for n in range(300)
    ]
    outbox, route = opened(1000, takes=classes)
    for cls in classes:
        outbox.types.declare(cls)
    route.hello_frame()
    outbox.extend([cls(n) for n, cls in enumerate(classes)])
    seen = 0
    for frame in read_envelope(envelope(route.frames(1 << 20)), 1 << 20):
        assert isinstance(frame, Frame)
        assert isinstance(frame.header, wire.Data)
        assert check_sections(frame.header, frame.body) == ""
        seen += frame.header.count
    assert seen == 300
    assert outbox.refusals.drain() == []


def test_json_texts_travel_under_the_node_s_type() -> None:
    outbox = Outbox("ticks", "p")
    route = route_of(outbox)
    route.on_hello(answer(wire.Position(0, 0, 9), wire.Position(1, 0, 9)))
    outbox.declare_json(TICK.declaration)
    route.hello_frame()
    outbox.extend([JsonText(b'{"user":"a"}'), JsonText(b'{"user":"b"}'), JsonText(b'{"user":"c"}')])
    frames = list(read_envelope(envelope(route.frames(1000)), 1 << 20))
    assert [(f.header.partition, f.header.count) for f in frames] == [(0, 2), (1, 1)]  # type: ignore[union-attr]
    assert {f.header.encoding for f in frames} == {wire.JSON}  # type: ignore[union-attr]
    assert bytes(frames[0].body) == b'[{"user":"a"},{"user":"c"}]'  # type: ignore[union-attr]


# --- the outbox: verdicts and resends ------------------------------------------------------------


def test_a_frame_is_kept_until_all_of_its_events_have_a_verdict() -> None:
    outbox, route = opened(100, max_frame_events=4)
    outbox.extend(ticks(8))
    route.frames(1000)
    for upto, kept in [(0, 2), (3, 2), (4, 1), (7, 1), (8, 0)]:
        ruled(route, 0, upto, 100)
        assert len(outbox.lanes[0].frames) == kept
        assert (outbox.admitted, outbox.unsettled) == (upto, 8 - upto)


def test_an_older_verdict_takes_nothing_back() -> None:
    outbox, route = opened(100)
    outbox.extend(ticks(8))
    route.frames(1000)
    ruled(route, 0, 8, 108)
    ruled(route, 0, 3, 108)
    assert (outbox.admitted, outbox.unsettled) == (8, 0)


def test_a_verdict_over_more_than_was_sent_settles_what_was_sent() -> None:
    outbox, route = opened(100)
    outbox.extend(ticks(3))
    route.frames(1000)
    ruled(route, 0, 99, 200)
    assert (outbox.admitted, outbox.unsettled) == (3, 0)


def test_expected_n_sends_again_byte_for_byte_from_the_frame_that_holds_n() -> None:
    outbox, route = opened(100, max_frame_events=4)
    outbox.extend(ticks(12))
    first = route.frames(1 << 20)
    outbox.put(Tick("new", 12))
    ruled(route, 0, 0, 100, wire.EXPECTED, expected=6)
    again = route.frames(1 << 20)
    assert again[:2] == first[1:]
    assert spans(again) == [(0, 4, 8), (0, 8, 12), (0, 12, 13)]
    assert route.frames(1 << 20) == []


def test_a_producer_goes_on_where_its_earlier_life_stopped() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox, "i2")
    route.hello_frame()
    outbox.extend(ticks(3))
    route.on_hello(answer(wire.Position(0, 40, 140, 38)))
    assert (outbox.admitted, outbox.unsettled) == (0, 3)
    assert spans(route.frames(1000)) == [(0, 40, 43)]
    ruled(route, 0, 42, 142)
    assert (outbox.admitted, outbox.unsettled) == (2, 1)
    outbox.validate()


def test_refused_and_shed_events_are_reported_and_not_counted_as_admitted() -> None:
    outbox, route = opened(100)
    outbox.extend(ticks(10))
    route.frames(1000)
    ruled(route, 0, 4, 100, wire.REFUSED, 10, ((1, 1, "no key"),))
    ruled(route, 0, 9, 100, wire.SHED, 10, shed=((5, 3, "too many"),))
    assert outbox.refusals.drain() == [
        Refusal("ticks", 0, 1, "no key"),
        Refusal("ticks", 0, 5, "too many", shed=True, count=3),
    ]
    assert outbox.refusals.counts == {"shed": 3, "refused": 1, "unsent": 0}
    assert (outbox.admitted, outbox.unsettled) == (5, 1)


def test_refusals_beyond_those_that_are_kept_are_counted_by_what_became_of_the_events() -> None:
    outbox = Outbox("ticks", "p", types=[Tick, Tock])
    route = route_of(outbox)
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 3 * MAX_REFUSALS)))
    outbox.extend(ticks(2 * MAX_REFUSALS + 9))
    while route.frames(1000):
        pass
    every_other = [(n, 1, "no key") for n in range(0, 2 * MAX_REFUSALS, 2)]
    end = 2 * MAX_REFUSALS + 9
    refused = *every_other, (end - 9, 2, "no key")
    ruled(route, 0, end, end, wire.REFUSED, end, refused, shed=((end - 5, 3, "full"),))
    outbox.reject([Tock], "not taken")
    outbox.extend([Tock(0)])
    route.frames(1000)
    taken = outbox.refusals.drain()
    assert len(taken) == MAX_REFUSALS + 3
    assert [(each.count, each.shed, each.unsent) for each in taken[-3:]] == [
        (2, False, False),
        (3, True, False),
        (1, False, True),
    ]
    assert outbox.refusals.drain() == []


def test_a_refusal_reported_early_is_not_yet_subtracted_from_the_admitted() -> None:
    outbox, route = opened(100)
    outbox.extend(ticks(10))
    route.frames(1000)
    ruled(route, 0, 0, 100, wire.REFUSED, 10, ((5, 1, "no key"),))
    assert (outbox.admitted, outbox.unsettled) == (0, 10)
    ruled(route, 0, 10, 110)
    assert (outbox.admitted, outbox.unsettled) == (9, 0)


def test_a_refusal_that_is_reported_again_counts_once() -> None:
    outbox, route = opened(100)
    outbox.extend(ticks(10))
    route.frames(1000)
    ruled(route, 0, 0, 100, wire.REFUSED, 10, ((5, 1, "no key"),))
    ruled(route, 0, 7, 100, wire.REFUSED, 10, ((5, 1, "no key"), (6, 1, "no key")))
    ruled(route, 0, 9, 100, wire.REFUSED, 10, ((6, 1, "no key"), (8, 1, "no key")))
    assert outbox.refusals.drain() == [
        Refusal("ticks", 0, 5, "no key", count=2),
        Refusal("ticks", 0, 8, "no key"),
    ]
    assert outbox.refusals.counts["refused"] == 3
    assert (outbox.admitted, outbox.unsettled) == (6, 1)


def test_a_class_that_is_no_event_cannot_be_declared() -> None:
    with pytest.raises(EventError, match="is not an event type"):
        opened(100)[0].types.declare(int)


# -- memory ---------------------------------------------------------------------------------------


def test_frames_without_a_verdict_take_a_window_and_no_more() -> None:
    outbox, route = opened(LIMITLESS)
    outbox.extend([Tick(LARGE, n) for n in range(2000)])
    drained(route)
    assert WINDOW_BYTES <= outbox.frame_bytes < WINDOW_BYTES + (1 << 19)
    assert not route.sendable.events
    gone = outbox.in_flight
    assert outbox.pending == 2000 - gone
    ruled(route, 0, gone // 2, LIMITLESS)
    assert route.sendable.events
    drained(route)
    assert outbox.frame_bytes < WINDOW_BYTES + (1 << 19)
    while outbox.unsettled:
        ruled(route, 0, outbox.lanes[0].next_number, LIMITLESS)
        drained(route)
    assert (outbox.admitted, outbox.unsettled, outbox.frame_bytes) == (2000, 0, 0)


def test_waiting_events_are_weighed_before_any_was_sent() -> None:
    outbox = Outbox("ticks", "p", types=[Tick])
    route = route_of(outbox)
    outbox.extend(ticks(1000))
    assert 50_000 < outbox.pending_bytes < 500_000
    for n in range(1000):
        outbox.put(Tick(LARGE, n))
    assert 90_000_000 < outbox.pending_bytes < 110_000_000
    route.hello_frame()
    route.on_hello(answer(wire.Position(0, 0, 0), wire.Position(1, 0, 0)))
    outbox.route()
    assert 90_000_000 < outbox.unsettled_bytes < 110_000_000
    outbox.extend_lane(0, [Tick(LARGE, n) for n in range(1000)])
    assert 190_000_000 < outbox.pending_bytes < 210_000_000
    outbox.extend_lane(1, ticks(10_000))
    assert 190_000_000 < outbox.pending_bytes < 220_000_000


def test_what_events_hold_in_lists_counts_once_some_were_sent() -> None:
    outbox, route = opened(10, takes=[Tick, GenericEvent])
    outbox.extend([GenericEvent.from_attributes({"all": [LARGE] * 2}) for _ in range(100)])
    outbox.types.declare(GenericEvent)
    assert outbox.pending_bytes < 1_000_000
    drained(route)
    outbox.extend([GenericEvent.from_attributes({"all": [LARGE] * 2}) for _ in range(900)])
    assert outbox.pending == 990
    assert outbox.pending_bytes > 100_000_000
