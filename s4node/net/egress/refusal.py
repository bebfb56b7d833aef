"""What was not processed of what a producer has put, and why. Pure.

Rules
- Refusals wait until the caller takes them. There is a most that wait; further ones are only
  counted.
- What was shed in a row is one refusal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

MAX_REFUSALS = 10_000
"""Refusals that wait to be taken; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Events that were not processed, and why: ``count`` of them from ``number`` on.

    ``number`` is -1 if they could not be sent at all (``unsent``), or are not told one by one.
    """

    stream: str
    partition: int
    number: int
    reason: str
    shed: bool = False
    count: int = 1
    unsent: bool = False


class Refusals:
    """Those of one outbox. ``counts`` are events, since the start; ``waiting`` is what ``take``
    would return."""

    def __init__(self, stream: str) -> None:
        self.counts = {"shed": 0, "refused": 0, "unsent": 0}
        self._stream = stream
        self.waiting: list[Refusal] = []
        self._further: Counter[tuple[bool, bool]] = Counter()  # beyond the list: shed, unsent

    def count(self, refusal: Refusal) -> None:
        """Count events that were not processed."""
        what = "unsent" if refusal.unsent else "shed" if refusal.shed else "refused"
        self.counts[what] += refusal.count

    def add(self, refusal: Refusal) -> None:
        """Count events that were not processed, and keep why until that is taken."""
        self.count(refusal)
        last = self.waiting[-1] if self.waiting else None
        if last is not None and refusal.shed and _follows(last, refusal):
            self.waiting[-1] = replace(last, count=last.count + refusal.count)
        elif len(self.waiting) < MAX_REFUSALS:
            self.waiting.append(refusal)
        else:
            self._further[refusal.shed, refusal.unsent] += refusal.count

    def take(self) -> list[Refusal]:
        """What was refused or shed since the last call; what was shed in a row is one refusal.

        Of more than ``MAX_REFUSALS`` the last ones only count the others: one for those that were
        refused, shed, and could not be sent.
        """
        taken, self.waiting = self.waiting, []
        for (shed, unsent), count in self._further.items():
            more = f"{count} further events, which were not kept one by one"
            taken.append(Refusal(self._stream, -1, -1, more, shed, count, unsent))
        self._further.clear()
        return taken


def _follows(last: Refusal, refusal: Refusal) -> bool:
    """Whether ``refusal`` goes on where ``last`` ends, for the same reason."""
    end = replace(last, number=last.number + last.count, count=refusal.count)
    return end == refusal
