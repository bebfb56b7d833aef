"""Maps with arrays as keys: a few are decoded, many are refused, and looking is linear."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from harness import colliding_pairs
from hypothesis import given
from hypothesis import strategies as st

from s4node.errors import EventError
from s4node.events.event import GenericEvent
from s4node.events.plain_values import array_keys, value_of
from s4node.events.schema import EventType

encode = msgspec.msgpack.encode
GENERIC = EventType(GenericEvent)

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
anything = st.recursive(
    scalars | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.tuples(st.integers(0, 9)), inner)
    ),
    max_leaves=30,
)


def most_array_keys(value: Any) -> int:
    if isinstance(value, list):
        return max(map(most_array_keys, value), default=0)
    if isinstance(value, dict):
        own = sum(isinstance(key, tuple) for key in value)
        return max(own, *map(most_array_keys, value.values()), 0)
    return 0


@given(anything)
def test_the_arrays_among_the_keys_of_every_map_are_counted(value: Any) -> None:
    assert array_keys(encode(value)) == most_array_keys(value)


@pytest.mark.parametrize("size", [300, 70_000])
def test_large_maps_texts_and_bytes_are_passed(size: int) -> None:
    value = [{"a": "x" * size, "b": bytes(size), (1, 2): list(range(size))}, dict.fromkeys("ab")]
    assert array_keys(encode(value)) == 1
    assert array_keys(encode({n: n for n in range(size)})) == 0


@given(st.binary(max_size=60))
def test_any_bytes_are_counted_or_end_early(data: bytes) -> None:
    with suppress(EventError):
        assert array_keys(data) >= 0


def test_an_event_with_many_arrays_as_keys_is_refused_and_others_are_decoded() -> None:
    keys = dict.fromkeys(colliding_pairs(2000), 0)
    events = [GenericEvent(user="ann"), GenericEvent.from_attributes({"keys": keys})]
    few = GenericEvent.from_attributes({"keys": {(1, 2): 3}, "text": "x" * 2000})
    raws = [encode(event._attributes) for event in (*events, few)]
    with pytest.raises(EventError, match="more than 64 arrays as keys"):
        GENERIC.decode(b"\x93" + b"".join(raws))
    found, refusals = GENERIC.decode_each(raws)
    assert found == [events[0], None, few]
    assert [index for index, _ in refusals] == [1]


def test_what_peers_send_beside_events_has_plain_keys() -> None:
    plain = {"a": [1, None, 2.5, {"b": {7: "c"}}]}
    assert value_of(msgspec.Raw(encode(plain))) == plain
    assert value_of(msgspec.Raw(encode(b"abc"))) == b"abc"
    with pytest.raises(msgspec.ValidationError, match="got `array`"):
        value_of(msgspec.Raw(encode({(1, 2): 3})))


def test_keys_are_counted_no_further_than_is_asked_for() -> None:
    cut = encode({(n, n): n for n in range(1000)})[:1000]

    assert array_keys(cut, 64) == 65
    with pytest.raises(EventError, match="ends early"):
        array_keys(cut)
