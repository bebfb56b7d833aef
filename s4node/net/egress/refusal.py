"""Refusals: events of a producer that were not processed, and why. Pure.

Rules
- Refusals wait until the caller takes them. Their number is bounded; further ones are only counted.
- Consecutive shed events are one refusal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

MAX_REFUSALS = 10_000
"""Refusals that wait to be taken; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """``count`` events from ``number`` on that were not processed, and why.

    ``number`` is -1 if they could not be sent (``unsent``), or are only counted.
    """

    stream: str
    partition: int
    number: int
    reason: str
    shed: bool = False
    count: int = 1
    unsent: bool = False


class Refusals:
    """The refusals of one outbox; ``counts`` are events, ``waiting`` are not taken yet."""

    def __init__(self, stream: str) -> None:
        self.counts = {"shed": 0, "refused": 0, "unsent": 0}
        self._stream = stream
        self.waiting: list[Refusal] = []
        self._further: Counter[tuple[bool, bool]] = Counter()  # beyond the list: shed, unsent

    def count(self, refusal: Refusal) -> None:
        """Count the events of a refusal."""
        what = "unsent" if refusal.unsent else "shed" if refusal.shed else "refused"
        self.counts[what] += refusal.count

    def add(self, refusal: Refusal) -> None:
        """Count the events of a refusal, and keep it until it is taken."""
        self.count(refusal)
        last = self.waiting[-1] if self.waiting else None
        if last is not None and refusal.shed and _follows(last, refusal):
            self.waiting[-1] = replace(last, count=last.count + refusal.count)
        elif len(self.waiting) < MAX_REFUSALS:
            self.waiting.append(refusal)
        else:
            self._further[refusal.shed, refusal.unsent] += refusal.count

    def drain(self) -> list[Refusal]:
        """Take the refusals since the last call.

        Beyond ``MAX_REFUSALS``, further events are summed up in one refusal for each kind: refused,
        shed, unsent.
        """
        taken, self.waiting = self.waiting, []
        for (shed, unsent), count in self._further.items():
            more = f"{count} further events, which are only counted"
            taken.append(Refusal(self._stream, -1, -1, more, shed, count, unsent))
        self._further.clear()
        return taken


def _follows(last: Refusal, refusal: Refusal) -> bool:
    """Return True if ``refusal`` continues ``last``, for the same reason."""
    end = replace(last, number=last.number + last.count, count=refusal.count)
    return end == refusal
