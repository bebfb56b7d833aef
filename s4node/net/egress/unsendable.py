"""Unsendable events of a task, and when they are reported. Pure.

Rules
- An event is reported once a commit is written that would have held it. A task that is rolled back
  may put the event again, so it is not reported before.
- An event that the task has put for itself stays in memory, though no commit can save it. It is
  reported when it is lost: by a rollback, or because another container takes the task over.
- Events that are reported together have the reason of the first one.
"""

from __future__ import annotations

from dataclasses import replace

from s4node.net.egress.refusal import Refusal


class Unsent:
    """The unsendable events of one task on one channel."""

    __slots__ = ("_committing", "_own_committing", "_own_unsaved", "_since", "_told")

    def __init__(self) -> None:
        self._told: list[Refusal] = []  # to report now
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
        """End the commit; report its events if it was written."""
        if written:
            self._own_unsaved = self._own_committing
            self._tell(self._committing)
        else:
            self._since = _together(self._committing, self._since)
        self._committing = None

    def roll_back(self) -> None:
        """Roll back to the last commit."""
        self.tell_lost()
        self._since = self._committing = None

    def tell_lost(self) -> None:
        """Report the unsaved own events, which are lost now."""
        self._tell(self._own_unsaved)
        self._own_unsaved = None

    def drain(self) -> list[Refusal]:
        """Take the refusals to report."""
        told, self._told = self._told, []
        return told

    def _tell(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._told.append(refusal)


def _together(first: Refusal | None, further: Refusal | None) -> Refusal | None:
    if first is None or further is None:
        return first or further
    return replace(first, count=first.count + further.count)
