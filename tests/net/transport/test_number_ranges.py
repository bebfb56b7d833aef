"""Ranges of numbers that are not processed: each number counts once, in whatever pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.net.transport.number_ranges import NumberRanges


@pytest.mark.parametrize(
    ("before", "added", "new", "after"),
    [
        ([], (3, 5), [(3, 5)], [(3, 5)]),
        ([(3, 5)], (3, 5), [], [(3, 5)]),
        ([(3, 5)], (5, 7), [(5, 7)], [(3, 7)]),
        ([(3, 5)], (1, 3), [(1, 3)], [(1, 5)]),
        ([(3, 5)], (1, 9), [(1, 3), (5, 9)], [(1, 9)]),
        ([(3, 5), (7, 9)], (4, 8), [(5, 7)], [(3, 9)]),
        ([(3, 5), (7, 9)], (0, 1), [(0, 1)], [(0, 1), (3, 5), (7, 9)]),
        ([(3, 5)], (4, 4), [], [(3, 5)]),
        ([(3, 5)], (5, 2), [], [(3, 5)]),
    ],
)
def test_only_numbers_that_no_range_had_are_returned(
    before: list[tuple[int, int]],
    added: tuple[int, int],
    new: list[tuple[int, int]],
    after: list[tuple[int, int]],
) -> None:
    found = of(*before)
    assert found.add(*added) == new
    assert found.ranges == after
    found.validate()


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
