"""A lane of an outbox: what goes to one partition of a stream, until it has a verdict. Pure.

Rules
- A lane sends below its credit limit only. It keeps every frame until the node has ruled on all
  of its events, and sends it again, byte for byte, when the node says "expected n" and after a
  reconnect.
- Of an earlier life of its producer it has the frames that were committed, and their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from s4node.net.transport.number_ranges import NumberRanges
from s4node.net.wire import frame as wire


class Kept(NamedTuple):
    """A frame that was sent and is kept until its verdict."""

    first: int
    end: int
    data: bytes


class Lane:
    """One partition's share of an outbox."""

    __slots__ = (
        "cursor",
        "excepted",
        "kept",
        "known",
        "life",
        "limit",
        "next_number",
        "open",
        "partition",
        "pending",
        "released",
        "start",
        "upto",
    )

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.open = False  # its owner has said where it goes on
        self.pending: list[Any] = []
        self.kept: deque[Kept] = deque()
        self.excepted = NumberRanges()
        self.cursor = 0
        self.start = 0
        self.next_number = 0
        self.upto = 0
        self.known = 0  # an earlier life of this producer has settled what is below
        self.life = 0  # which life of its producer the owner has called this one
        self.limit = 0
        self.released = wire.MAX_NUMBER  # no frame from here on may leave

    def restore(self, kept: Sequence[Kept], next_number: int) -> None:
        """Go on where an earlier life has stopped, with the frames that it has committed."""
        self.kept = deque(kept)
        self.next_number = self.released = next_number
        self.start = self.upto = kept[0].first if kept else next_number

    def cut_back(self) -> list[Kept]:
        """Go on from what is released: the rest was never sent, and never will be. Returns the
        frames of that."""
        forgotten: list[Kept] = []
        while self.kept and self.kept[-1].end > self.released:
            forgotten.append(self.kept.pop())
        self.next_number = self.released
        self.cursor = min(self.cursor, len(self.kept))
        return forgotten

    @property
    def end(self) -> int:
        """Numbers from here on may not be sent now."""
        return min(self.limit, self.released)

    def go_back(self, number: int) -> None:
        """Send again from the frame that holds ``number``."""
        self.cursor = sum(1 for kept in self.kept if kept.end <= number)

    def resend(self, budget: int) -> list[bytes]:
        """The kept frames from the cursor on that may be sent now, up to about ``budget`` bytes."""
        frames: list[bytes] = []
        end = self.end
        while self.cursor < len(self.kept) and budget > 0:
            kept = self.kept[self.cursor]
            if kept.first >= end:
                break
            self.cursor += 1
            frames.append(kept.data)
            budget -= len(kept.data)
        return frames

    def settle(self, upto: int) -> list[Kept]:
        """The node has ruled on everything below ``upto``; returns the frames that are kept no
        longer."""
        kept, settled = self.kept, []
        self.upto = max(self.upto, upto)
        if self.excepted.ranges:
            self.excepted.settle(self.upto)
        while kept and kept[0].end <= upto:
            settled.append(kept.popleft())
            self.cursor = max(0, self.cursor - 1)
        return settled

    def reopen(self, position: wire.Position, *, again: bool = False) -> list[Kept]:
        """The owner has said where the lane goes on.

        Where that is behind what this life of the producer has sent, it goes on there; or it sends
        all of it ``again``, and what is settled does not leave. Returns the frames that are kept no
        longer.
        """
        settled: list[Kept] = []
        if position.number > self.next_number:
            self.known = position.safe if again else position.number
            if not again:
                settled += self.kept
                self.kept.clear()
                self.start = self.next_number = self.upto = position.number
        settled += self.settle(min(position.safe, self.next_number, self.released))
        self.go_back(position.number)
        self.limit, self.life = position.limit, position.life
        self.open = True
        return settled

    def close(self) -> None:
        """The way to the owner is gone: all that has no verdict will be sent again."""
        self.open = False
        self.cursor = 0

    def validate(self) -> None:
        """Assert the rules; for tests."""
        assert 0 <= self.cursor <= len(self.kept)
        numbers = [n for kept in self.kept for n in (kept.first, kept.end)]
        assert numbers == sorted(numbers)
        assert all(a.end == b.first for a, b in zip(self.kept, list(self.kept)[1:], strict=False))
        assert not self.kept or self.kept[-1].end == self.next_number
        assert self.start <= self.upto <= self.next_number
        self.excepted.validate()
