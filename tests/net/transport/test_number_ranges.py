"""Ranges of numbers that are not processed: each number counts once, in whatever pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s4node.net.transport.number_ranges import NumberRanges


def test_settled_numbers_are_forgotten() -> None:
    found = of((3, 5), (7, 9))
    found.remove_below(4)
    assert (found.ranges, len(found)) == ([(4, 5), (7, 9)], 3)
    found.remove_below(5)
    assert found.ranges == [(7, 9)]
    found.remove_below(20)
    assert (found.ranges, len(found)) == ([], 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30))
def test_ranges_behave_as_a_set_of_numbers(pairs: list[tuple[int, int]]) -> None:
    found, numbers = NumberRanges(), set[int]()
    for first, end in pairs:
        new = {n for a, b in found.add(first, end) for n in range(a, b)}
        assert new == set(range(first, end)) - numbers
        numbers |= new
        found.validate()
        assert len(found) == len(numbers)
        assert all((n in found) == (n in numbers) for n in range(41))


# -- set-up ---------------------------------------------------------------------------------------


def of(*ranges: tuple[int, int]) -> NumberRanges:
    found = NumberRanges()
    for first, end in ranges:
        found.add(first, end)
    return found
