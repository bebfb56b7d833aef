"""The low watermark: the number below which everything is done, whatever the order. Pure.

Rules
- Each number is completed once; ``safe`` never decreases and never passes a gap.
- A range that is completed after a gap waits until the gap closes.
"""

from __future__ import annotations

from itertools import pairwise


class LowWatermark:
    """The low watermark of one producer's or one partition's numbers.

    ``safe`` is the first number that is not done yet.
    """

    __slots__ = ("_waiting", "safe")

    def __init__(self, start: int = 0) -> None:
        self.safe = start
        self._waiting: dict[int, int] = {}

    def complete(self, first: int, end: int) -> bool:
        """Complete the numbers ``first <= n < end``; returns True if ``safe`` moved."""
        if first != self.safe:
            assert first > self.safe, f"{first}..{end} completed twice; safe is {self.safe}"
            self._waiting[first] = end
            return False
        waiting = self._waiting
        while waiting and end in waiting:
            end = waiting.pop(end)
        self.safe = end
        return True

    def validate(self) -> None:
        """Assert the rules; for tests."""
        ends = sorted(self._waiting.items())
        assert all(first > self.safe for first, _ in ends)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
