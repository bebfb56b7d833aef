"""The ranges of a lane's refused or shed numbers. Pure.

Rules
- A node may report a range, or a part of one, twice; every number counts once.
- Numbers below ``upto`` are settled and forgotten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter

_first_of, _end_of = itemgetter(0), itemgetter(1)


class NumberRanges:
    """The reported numbers, as sorted ranges ``[first, end)`` that do not touch each other."""

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> list[tuple[int, int]]:
        """Add ``first <= n < end``; return the new numbers as sorted ranges."""
        if first >= end:
            return []
        if not self.ranges or first > self.ranges[-1][1]:
            self.ranges.append((first, end))
            return [(first, end)]
        new: list[tuple[int, int]] = []
        begin = bisect_left(self.ranges, first, key=_end_of)
        behind = bisect_right(self.ranges, end, begin, key=_first_of)
        touching = self.ranges[begin:behind]
        at = first
        for start, stop in touching:
            if at < start:
                new.append((at, min(start, end)))
            at = max(at, stop)
        if at < end:
            new.append((at, end))
        merged = (
            min([first, *(start for start, _ in touching)]),
            max([end, *(stop for _, stop in touching)]),
        )
        self.ranges[begin:behind] = [merged]
        return new

    def remove_below(self, upto: int) -> None:
        ranges = self.ranges
        if ranges and ranges[0][0] < upto:
            del ranges[: bisect_right(ranges, upto, key=_end_of)]
            if ranges and ranges[0][0] < upto:
                ranges[0] = upto, ranges[0][1]

    def __len__(self) -> int:
        return sum(end - first for first, end in self.ranges)

    def __contains__(self, number: int) -> bool:
        return any(first <= number < end for first, end in self.ranges)

    def validate(self) -> None:
        ends = [number for one in self.ranges for number in one]
        assert ends == sorted(set(ends))
