"""The promises of taking a frame apart: every event goes once, whole, in order, to its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_apps import Click

from s4node.events.event import Event, GenericEvent
from s4node.events.keys import Partitioner
from s4node.events.routing import KeyRule, Router
from s4node.events.schema import EventType, OpenType, TypeReader
from s4node.log.split import Part, Splitting, array_of
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder


class Tap(Event):
    user: str
    where: tuple[int, int]


users = st.sampled_from(["ann", "joe", "zoe", "Zoë"])
events_of_any_type = st.lists(
    st.one_of(
        st.builds(Click, user=users, n=st.integers(0, 1 << 40)),
        st.builds(Tap, user=users, where=st.tuples(st.integers(0, 9), st.integers(0, 9))),
        users.map(lambda user: GenericEvent.from_attributes({"user": user, "at": [1, None]})),
    ),
    min_size=1,
    max_size=40,
)


@given(events=events_of_any_type, first=st.integers(0, 1000), skip=st.integers(0, 45))
def test_each_event_after_the_skipped_ones_goes_once_to_its_partition_in_order(
    events: list[Any], first: int, skip: int
) -> None:
    data, body = frame_of(events, first)
    parts, refusals = take_apart(data, body, READERS, placing(lambda e: len(e.user) % 3), skip)
    assert refusals == []
    assert len({part.partition for part in parts}) == len(parts)
    found = {
        number: (part.partition, event)
        for part in parts
        for number, event in zip(part.numbers, read_back(part), strict=True)
    }
    assert found == {
        first + index: (len(event.user) % 3, event)
        for index, event in enumerate(events)
        if index >= skip
    }
    assert all(part.numbers == sorted(part.numbers) for part in parts)


def test_events_without_a_key_or_that_do_not_decode_are_refused_alone() -> None:
    body = msgspec.msgpack.encode([["ann", 1], 5, ["joe", 2], []])
    data = wire.Data("clicks", 0, "p", 10, 4, (wire.Section(CLICK.fingerprint, 4, len(body)),))
    parts, refusals = take_apart(data, memoryview(body), READERS, placing(lambda e: len(e.user)))
    assert [(part.partition, part.numbers) for part in parts] == [(3, [10, 12])]
    assert read_back(parts[0]) == [Click("ann", 1), Click("joe", 2)]
    assert [index for index, _ in refusals] == [1, 3]
    assert "Expected `array`, got `int`" in refusals[0][1]
    assert "no attribute 'user'" in refusals[1][1]


def test_events_of_an_undeclared_type_are_refused_alone() -> None:
    data, body = frame_of([Click("ann"), Tap("joe", (1, 2)), Click("zoe")])
    known = {CLICK.fingerprint: READERS[CLICK.fingerprint]}
    parts, refusals = take_apart(data, body, known, None)
    assert [part.numbers for part in parts] == [[0, 2]]
    assert parts[0].order == b""
    assert read_back(parts[0]) == [Click("ann"), Click("zoe")]
    assert refusals == [
        (1, f"no event type of fingerprint {TAP.fingerprint} was declared in a hello")
    ]


def test_a_frame_is_split_piece_by_piece() -> None:
    body = msgspec.msgpack.encode([["ann", 1], *[5] * 300, ["joe", 2]])
    data = wire.Data("clicks", 0, "p", 10, 302, (wire.Section(CLICK.fingerprint, 302, len(body)),))
    splitting = Splitting(data, memoryview(body), READERS, placing(lambda e: len(e.user)))
    assert [splitting.next_piece() for _ in range(3)] == [False, False, True]
    assert [part.numbers for part in splitting.parts()] == [[10, 311]]
    assert [index for index, _ in splitting.refusals] == list(range(1, 301))


def test_json_stays_json_and_is_checked_against_the_type() -> None:
    body = b'[{"user":"ann","n":1},{"user":"joe","m":2},{"n":3},{"user":"zoe"}]'
    data = wire.Data(
        "clicks", 0, "p", 0, 4, (wire.Section(CLICK.fingerprint, 4, len(body)),), encoding=wire.JSON
    )
    parts, refusals = take_apart(data, memoryview(body), READERS, placing(lambda e: len(e.user)))
    assert [(part.numbers, part.body) for part in parts] == [
        ([0, 3], b'[{"user":"ann","n":1},{"user":"zoe"}]')
    ]
    assert [(index, reason.split(": ", 1)[-1]) for index, reason in refusals] == [
        (1, """it has no field 'm', its fields are user, n, text, in {"user":"joe","m":2}"""),
        (2, """field 'user' is missing, in {"n":3}"""),
    ]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_raw_events_make_an_array_of_any_length(count: int) -> None:
    assert msgspec.msgpack.decode(array_of([b"\x05"] * count)) == [5] * count
    assert msgspec.json.decode(array_of([b"5"] * count, json=True)) == [5] * count


# -- set-up ---------------------------------------------------------------------------------------


CLICK, TAP, GENERIC = EventType(Click), EventType(Tap), EventType(GenericEvent)

READERS: dict[int, TypeReader] = {
    CLICK.fingerprint: OpenType(CLICK.declaration),
    TAP.fingerprint: OpenType(TAP.declaration),
    GENERIC.fingerprint: GENERIC,
}

OWN: dict[int, TypeReader] = {kind.fingerprint: kind for kind in (CLICK, TAP, GENERIC)}


def frame_of(events: list[Any], first: int = 0) -> tuple[wire.Data, memoryview]:
    classes = list(dict.fromkeys(map(type, events)))
    kinds = {Click: CLICK, Tap: TAP, GenericEvent: GENERIC}
    bodies = [kinds[cls].encode([e for e in events if type(e) is cls]) for cls in classes]
    sections = tuple(
        wire.Section(kinds[cls].fingerprint, sum(type(e) is cls for e in events), len(body))
        for cls, body in zip(classes, bodies, strict=True)
    )
    order = bytes(classes.index(type(e)) for e in events) if len(classes) > 1 else b""
    data = wire.Data("clicks", 0, "p", first, len(events), sections, order=order)
    return data, memoryview(b"".join(bodies))


def read_back(part: Part) -> list[Any]:
    header = wire.Data(
        "clicks", part.partition, "p", 0, len(part.numbers), part.sections, order=part.order
    )
    assert wire.check_sections(header, memoryview(part.body)) == ""
    events, refusals = FrameDecoder(OWN).decode(header, memoryview(part.body))
    assert refusals == []
    return events


class Numbers(Partitioner):
    """The partition of a number is the number."""

    def partition_of(self, key: Any) -> int:
        return int(key)


def placing(find: Callable[[Any], int]) -> Router:
    return Router(KeyRule(find), Numbers(9))


def take_apart(
    data: wire.Data,
    body: memoryview,
    readers: dict[int, TypeReader],
    router: Router | None,
    skip: int = 0,
) -> tuple[list[Part], list[tuple[int, str]]]:
    splitting = Splitting(data, body, readers, router, skip)
    while not splitting.next_piece():
        pass
    return splitting.parts(), splitting.refusals
