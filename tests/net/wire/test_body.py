"""From the body of a frame to its events: in one call, and apart only where that fails."""

from __future__ import annotations

import pytest
from shared_apps import Click

from s4node.events.schema import EventType, JsonType
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder


def test_a_frame_of_json_is_decoded_in_one_call() -> None:
    frame = json_frame(b'{"user":"a"}', b' {"n":1, "user":"b"}\r')
    assert DECODER.at_once(*frame) == [Click("a"), Click("b", 1)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"user":"b","n":18446744073709551616}', "it holds a value that cannot be saved"),
        (b'{"user":"b","n":-9223372036854775809}', "it holds a value that cannot be saved"),
        (b'{"user":"b","m":1}', "unknown field `m`"),
        (b'{"n":1}', "missing required field `user`"),
        (b'["b",1]', "Expected `object`, got `array`"),
    ],
)
def test_a_bad_object_among_others_is_refused_alone_with_its_reason(
    bad: bytes, reason: str
) -> None:
    frame = json_frame(b'{"user":"a"}', bad, b'{"user":"c","n":18446744073709551615}')
    assert DECODER.at_once(*frame) is None
    events, refusals = DECODER.decode(*frame)
    assert events == [Click("a"), None, Click("c", (1 << 64) - 1)]
    [(index, why)] = refusals
    assert index == 1
    assert reason in why
    assert why.endswith(f", in {bad.decode()}")


def test_an_integer_of_64_bits_without_a_sign_is_read() -> None:
    frame = json_frame(b'{"user":"a","n":18446744073709551615}')
    assert DECODER.decode(*frame) == ([Click("a", (1 << 64) - 1)], [])


def test_another_count_than_was_announced_refuses_all() -> None:
    events, refusals = DECODER.decode(*json_frame(b'{"user":"a"}', count=2))
    assert events == [None, None]
    assert [why for _, why in refusals] == ["a section announces 2 events and holds 1"] * 2


# -- set-up ---------------------------------------------------------------------------------------


CLICK = EventType(Click)
DECODER = FrameDecoder({CLICK.fingerprint: CLICK})


def json_frame(*texts: bytes, count: int | None = None) -> tuple[wire.Data, memoryview]:
    body = JsonType(CLICK.declaration).encode(texts)
    count = len(texts) if count is None else count
    section = wire.Section(CLICK.fingerprint, count, len(body))
    return wire.Data("s", 0, "p", 0, count, (section,), encoding=wire.JSON), memoryview(body)
