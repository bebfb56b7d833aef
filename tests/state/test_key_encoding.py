"""Keys of stores as bytes: they come back, and sort as the keys do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s4node.errors import StateError
from s4node.events.keys import KEY_GROUPS, Hasher, Key, crc32m, s4
from s4node.state.key_encoding import decode, decode_tuple, encode
from s4node.state.rows import prefix, with_text_rows

parts = st.one_of(st.text(), st.binary(), st.integers(-(2**63), 2**63 - 1))
keys = st.one_of(parts, st.lists(parts, min_size=2, max_size=4).map(tuple))

GOLDEN = [
    ("joe", b"\x02joe\x00"),
    ("a\x00b", b"\x02a\x00\xffb\x00"),
    (b"\x00", b"\x01\x00\xff\x00"),
    (0, b"\x14"),
    (1, b"\x15\x01"),
    (256, b"\x16\x01\x00"),
    (-1, b"\x13\xfe"),
    (-256, b"\x12\xfe\xff"),
    (("joe", 7), b"\x02joe\x00\x15\x07"),
]


@pytest.mark.parametrize(("key", "data"), GOLDEN)
def test_the_bytes_on_disk_never_change(key: Any, data: bytes) -> None:
    assert encode(key) == data
    assert decode(data) == key


@given(keys)
def test_a_key_comes_back_as_it_was(key: Any) -> None:
    assert decode(encode(key)) == key


@given(st.lists(parts, min_size=1, max_size=3).map(tuple))
def test_a_tuple_comes_back_as_one_whatever_its_length(key: Any) -> None:
    assert decode_tuple(encode(key)) == key


@given(keys, keys)
def test_bytes_sort_as_keys(a: Any, b: Any) -> None:
    assert (encode(a) < encode(b)) == (ranks(a) < ranks(b))


def ranks(key: Any) -> list[tuple[int, Any]]:
    order = {bytes: 0, str: 1, int: 2}
    return [(order[type(part)], part) for part in (key if type(key) is tuple else (key,))]


@pytest.mark.parametrize(
    "key", [None, True, 1.5, (), ("a", None), ["a"], 2**64, -(2**64), "\ud800"]
)
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(StateError, match="cannot be a key of a store"):
        encode(key)


@pytest.mark.parametrize("data", [b"", b"\x02joe", b"\x16\x01", b"\x7f", b"\x15\x01\x00\x00"])
def test_bytes_that_are_no_key_raise(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a key|at least one byte|ends within|not found"):
        decode(data)


def rows_of(table: int, hasher: Hasher) -> Callable[[Key], bytes]:
    def any_row(key: Key) -> bytes:
        encoded = encode(key)
        return prefix(hasher(key) % KEY_GROUPS, table) + encoded

    return any_row


@given(st.text() | st.integers(0, 9), st.integers(0, 0xFFFF))
@example("", 0)
@example("a\x00b", 16)
def test_rows_of_text_are_those_of_any_key(key: str | int, table: int) -> None:
    for hasher in (crc32m, s4):
        any_row = rows_of(table, hasher)
        assert with_text_rows(any_row, table, hasher)(key) == any_row(key)


def test_text_that_is_not_unicode_has_no_row() -> None:
    for hasher in (crc32m, s4):
        with pytest.raises(StateError, match="cannot be a key of a store"):
            with_text_rows(rows_of(16, hasher), 16, hasher)("\ud800")
