"""nng's framing: messages come out whole however the bytes are cut, and cost what has come."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.errors import RemoteFrameError
from s4node.net.transport.sp_messages import HANDSHAKE, SpMessages, framed

MOST = 1000


@given(
    st.lists(st.binary(max_size=60) | st.integers(0, MOST).map(bytes), max_size=20),
    st.lists(st.integers(1, 90), min_size=1),
)
def test_messages_come_out_whole_and_in_order_however_they_are_cut(
    messages: list[bytes], cuts: list[int]
) -> None:
    stream = HANDSHAKE + b"".join(map(framed, messages))
    splitting, found, at, turn = SpMessages(MOST), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        piece = bytearray(stream[at : at + size])
        found += splitting.split(memoryview(piece))
        piece[:] = bytes(len(piece))  # the buffer is used again
        at, turn = at + size, turn + 1
    assert found == messages
    assert splitting.greeted
    assert splitting.unfinished == 0


def test_many_short_messages_come_some_at_a_time() -> None:
    stream = bytearray(HANDSHAKE + framed(b"") * 1999 + framed(b"last"))
    splitting = SpMessages(MOST)
    calls = [splitting.split(memoryview(stream))]
    stream[:] = bytes(len(stream))
    while splitting.rest:
        calls.append(splitting.split(splitting.rest))
    assert max(map(len, calls)) == 512
    assert [message for call in calls for message in call] == [b""] * 1999 + [b"last"]


def test_an_unfinished_message_costs_the_bytes_that_have_come_and_not_those_announced() -> None:
    splitting = SpMessages(1 << 40)
    splitting.split(memoryview(HANDSHAKE + struct.pack(">Q", 1 << 40) + b"abc"))
    assert splitting.unfinished == 3


@pytest.mark.parametrize("size", [MOST + 1, 1 << 63, (1 << 64) - 1])
def test_a_message_over_the_limit_is_refused_when_its_length_has_come(size: int) -> None:
    splitting = SpMessages(MOST)
    [error] = splitting.split(memoryview(HANDSHAKE + struct.pack(">Q", size)))
    assert f"a message of {size} bytes is over the limit of {MOST}" in str(error)
    assert splitting.split(memoryview(bytes(MOST))) == []
    assert splitting.unfinished == 0


def test_what_comes_after_a_message_that_is_too_long_is_read() -> None:
    splitting = SpMessages(MOST)
    splitting.split(memoryview(HANDSHAKE + struct.pack(">Q", MOST + 5) + bytes(MOST)))
    assert splitting.split(memoryview(bytes(5) + framed(b"next"))) == [b"next"]


@pytest.mark.parametrize(
    "handshake", [b"GET / HT", bytes(8), bytes.fromhex("00 53 50 00 00 11 00 00")]
)
def test_another_handshake_is_refused(handshake: bytes) -> None:
    with pytest.raises(RemoteFrameError, match=re.escape(f"not {handshake!r}")):
        SpMessages(MOST).split(memoryview(handshake))
