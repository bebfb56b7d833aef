"""The examination of a task: looks for the event that leaves what cannot be saved. Pure.

Rules
- A commit finds what cannot be saved when the event that it is due to has long been processed. So
  the task goes back, does all again since its last commit, and looks behind each event whether what
  the event was for can be saved.
- An event is to blame if that could be saved before it. What could not is due to something else: a
  window, a timer, the start. Then nothing is left out, and the app stops.
- The events may come in another order than before, so twice as many are looked at. Where a commit
  fails of which not all were, it is done again. If all were, none is to blame.
"""

from __future__ import annotations


class Examination:
    """Which of a task's events are looked at.

    ``looks`` is whether the next one that is done is.
    """

    __slots__ = ("_committed", "_committed_unseen", "_done", "_left", "_length", "_unseen")

    def __init__(self) -> None:
        self._length = 0  # events that are looked at behind a going back,
        self._left = 0  # and how many of them are left
        self._done = 0  # events since the last commit,
        self._unseen = 0  # and those of them that were not looked at
        self._committed = 0  # the same of the last commit itself
        self._committed_unseen = 0

    @property
    def looks(self) -> bool:
        """Whether the next event is looked at."""
        return self._left > 0

    def did(self, count: int) -> None:
        """So many events were processed, and looked at as long as it looks."""
        seen = min(count, self._left)
        self._left -= seen
        if seen and not self._left:
            self._length = 0
        self._done += count
        self._unseen += count - seen

    def taken(self) -> None:
        """A commit is taken, of all that was done."""
        self._committed, self._done = self._done, 0
        self._committed_unseen, self._unseen = self._unseen, 0

    def begins(self) -> bool:
        """What was last taken cannot be saved: whether to go back and look."""
        if not self._committed_unseen:
            return False
        self._length = 2 * (self._committed + self._done)
        return True

    def succeeds(self, before: Examination) -> None:
        """This is of the task that takes the place of one that goes back."""
        self._length = self._left = before._length
