"""The promises of the low watermark: never back, never past a hole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.offsets.receipts import LowWatermark


def test_the_mark_begins_at_its_start_and_moves_with_the_next_numbers() -> None:
    assert LowWatermark().safe == 0
    low = LowWatermark(40)
    assert low.safe == 40
    assert low.complete(40, 43) is True
    assert low.safe == 43


def test_a_range_after_a_hole_waits_until_the_hole_closes() -> None:
    low = LowWatermark()
    assert low.complete(3, 5) is False
    assert low.complete(7, 9) is False
    assert low.complete(5, 7) is False
    assert low.safe == 0
    assert low.complete(0, 3) is True
    assert low.safe == 9


def test_a_second_hole_holds_the_ranges_after_it() -> None:
    low = LowWatermark()
    low.complete(6, 8)
    low.complete(2, 4)
    assert low.complete(0, 2) is True
    assert low.safe == 4
    assert low.complete(4, 6) is True
    assert low.safe == 8


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
