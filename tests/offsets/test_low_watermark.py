"""The promises of the low watermark: never back, never past a hole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.offsets.receipts import LowWatermark


def test_completing_a_number_twice_raises() -> None:
    low = LowWatermark()
    low.complete(0, 5)
    with pytest.raises(AssertionError, match=r"3\.\.5 completed twice; safe is 5"):
        low.complete(3, 5)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(0, 2**62), st.randoms())
def test_safe_is_the_first_number_not_done_whatever_the_order(
    sizes: list[int], start: int, random: st.randoms
) -> None:
    ranges, at = [], start
    for size in sizes:
        ranges.append((at, at + size))
        at += size
    random.shuffle(ranges)
    low, done = LowWatermark(start), set()
    for first, end in ranges:
        before = low.safe
        moved = low.complete(first, end)
        done.update(range(first, end))
        expected = start
        while expected in done:
            expected += 1
        assert low.safe == expected
        assert moved == (expected > before)
        low.validate()
    assert low.safe == at
