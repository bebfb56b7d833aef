"""What a task has put for others that cannot be sent, and when that is told. Pure.

Rules
- It is told when a commit is written that would have held it: not that of a task which goes back,
  and which puts it again, or not.
- What a task has put for itself is in its memory though no commit can save it. It is told when it
  is lost: the task goes back, or another goes on for it.
- Of many that are told at once it is the first that says why.
"""

from __future__ import annotations

from dataclasses import replace

from s4node.net.egress.refusal import Refusal


class Unsent:
    """Of one task, on one way."""

    __slots__ = ("_committing", "_own_committing", "_own_unsaved", "_since", "_told")

    def __init__(self) -> None:
        self._told: list[Refusal] = []  # what is to be told now
        self._since: Refusal | None = None  # behind the last commit
        self._committing: Refusal | None = None  # of the one under way
        self._own_committing: Refusal | None = None  # of the task's own, not saved by that one,
        self._own_unsaved: Refusal | None = None  # nor by the last one that was written

    def add(self, refusal: Refusal, *, of_commit: bool) -> None:
        """An event for others could not be sent; ``of_commit`` if the commit under way would have
        held it."""
        if of_commit:
            self._committing = _together(self._committing, refusal)
        else:
            self._since = _together(self._since, refusal)

    def add_own(self, refusal: Refusal) -> None:
        """The commit under way cannot save an event that the task has put for itself."""
        self._own_committing = _together(self._own_committing, refusal)

    def begin(self) -> None:
        """A commit begins."""
        self._committing, self._since = self._since, None
        self._own_committing = None

    def end(self, *, written: bool) -> None:
        """It was written, or has failed."""
        if written:
            self._own_unsaved = self._own_committing
            self._tell(self._committing)
        else:
            self._since = _together(self._committing, self._since)
        self._committing = None

    def go_back(self) -> None:
        """The task goes on from its last commit."""
        self.leave()
        self._since = self._committing = None

    def leave(self) -> None:
        """What is in memory only is lost."""
        self._tell(self._own_unsaved)
        self._own_unsaved = None

    def taken(self) -> list[Refusal]:
        """What is to be told, once."""
        told, self._told = self._told, []
        return told

    def _tell(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._told.append(refusal)


def _together(first: Refusal | None, further: Refusal | None) -> Refusal | None:
    if first is None or further is None:
        return first or further
    return replace(first, count=first.count + further.count)
