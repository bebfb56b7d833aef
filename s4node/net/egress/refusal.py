"""Refusals: events of a producer that were not processed, and why. Pure.

Rules
- Refusals wait until the caller takes them. Their number is bounded; further ones are only counted.
- Those of consecutive events, and of events without a number, for one reason are one.
- An event of a task that cannot be sent is reported once a commit is written that would have held
  it. A task that is rolled back may put the event again, so it is not reported before.
- An event that the task has put for itself stays in memory, though no commit can save it. It is
  reported when it is lost: by a rollback, or because another container takes the task over.
- Unsendable events that are reported together have the reason of the first one.
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
        self._last: dict[tuple[object, ...], int] = {}  # of a partition and cause, in waiting
        self._further: Counter[tuple[bool, bool]] = Counter()  # beyond the list: shed, unsent

    def count(self, refusal: Refusal) -> None:
        what = "unsent" if refusal.unsent else "shed" if refusal.shed else "refused"
        self.counts[what] += refusal.count

    def add(self, refusal: Refusal) -> None:
        """Count the events of a refusal, and keep it until it is taken."""
        self.count(refusal)
        cause = refusal.partition, refusal.reason, refusal.shed, refusal.unsent
        at = self._last.get(cause, -1)
        if at >= 0 and _follows(last := self.waiting[at], refusal):
            self.waiting[at] = replace(last, count=last.count + refusal.count)
        elif len(self.waiting) < MAX_REFUSALS:
            self._last[cause] = len(self.waiting)
            self.waiting.append(refusal)
        else:
            self._further[refusal.shed, refusal.unsent] += refusal.count

    def drain(self) -> list[Refusal]:
        """Take the refusals since the last call.

        Beyond ``MAX_REFUSALS``, further events are summed up in one refusal for each kind: refused,
        shed, unsent.
        """
        taken, self.waiting = self.waiting, []
        self._last.clear()
        for (shed, unsent), count in self._further.items():
            more = f"{count} further events, which are only counted"
            taken.append(Refusal(self._stream, -1, -1, more, shed, count, unsent))
        self._further.clear()
        return taken


def _follows(last: Refusal, refusal: Refusal) -> bool:
    """Return True if the numbers of ``refusal`` go on after ``last``, or neither has any."""
    return refusal.number == (-1 if last.number == -1 else last.number + last.count)


class Unsent:
    """The unsendable events of one task on one channel."""

    __slots__ = ("_committing", "_due", "_own_committing", "_own_unsaved", "_since")

    def __init__(self) -> None:
        self._due: list[Refusal] = []  # to report now
        self._since: Refusal | None = None  # since the last commit
        self._committing: Refusal | None = None  # of the current commit
        self._own_committing: Refusal | None = None  # own events, not saved by that one
        self._own_unsaved: Refusal | None = None  # nor by the last one written

    def add(self, refusal: Refusal, *, of_commit: bool) -> None:
        """Note an unsendable event for others; ``of_commit`` if it is in the current commit."""
        if of_commit:
            self._committing = _together(self._committing, refusal)
        else:
            self._since = _together(self._since, refusal)

    def add_own(self, refusal: Refusal) -> None:
        """Note an own event of the task that the current commit cannot save."""
        self._own_committing = _together(self._own_committing, refusal)

    def begin_commit(self) -> None:
        self._committing, self._since = self._since, None
        self._own_committing = None

    def end_commit(self, *, written: bool) -> None:
        if written:
            self._own_unsaved = self._own_committing
            self._report(self._committing)
        else:
            self._since = _together(self._committing, self._since)
        self._committing = None

    def roll_back(self) -> None:
        self.report_lost()
        self._since = self._committing = None

    def report_lost(self) -> None:
        self._report(self._own_unsaved)
        self._own_unsaved = None

    def drain(self) -> list[Refusal]:
        due, self._due = self._due, []
        return due

    def _report(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._due.append(refusal)


def _together(first: Refusal | None, further: Refusal | None) -> Refusal | None:
    if first is None or further is None:
        return first or further
    return replace(first, count=first.count + further.count)
