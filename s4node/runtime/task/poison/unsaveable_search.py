"""The examination of a task: looks for the event that leaves what cannot be saved. Pure.

Rules
- That is found when the event which it is due to has long been processed. So the task goes back,
  does all again since its last commit, and looks behind each event whether what the event was for
  can be saved.
- An event is to blame if that could be saved before it. What could not is due to something else: a
  timer, a window, the start. Then nothing is left out, and the app stops.
- What is found again, of events of which not all were looked at, is looked for again, and for twice
  as long: the events may come in another order, and what is due to a time comes later. If all were
  looked at, none is to blame.
"""

from __future__ import annotations


class UnsaveableSearch:
    """Which of a task's events are looked at. ``looks`` is whether the next one is."""

    __slots__ = ("_done", "_left", "_length", "_taken", "_tries", "_unseen", "looks")

    def __init__(self) -> None:
        self.looks = False
        self._tries = 0  # searches since an event was found
        self._length = 0  # events that are looked at behind a going back,
        self._left = 0  # and how many of them are left
        self._done = 0  # events since the last commit,
        self._unseen = 0  # and those of them that were not looked at
        self._taken = 0, 0  # the same of the last commit itself

    def did(self, count: int) -> None:
        """So many events were processed, and looked at as long as it looks."""
        seen = min(count, self._left)
        self._left -= seen
        self.looks = self._left > 0
        if seen and not self._left:
            self._length = 0
        self._done += count
        self._unseen += count - seen

    def taken(self) -> None:
        """A commit is taken, of all that was done."""
        self._taken = self._done, self._unseen
        self._done = self._unseen = 0

    def begins(self, *, of_commit: bool) -> bool:
        """What the last commit has, or what was done since, cannot be saved: whether to go back and
        look."""
        done, unseen = self._taken
        if not (unseen if of_commit else unseen + self._unseen):
            return False
        self._tries += 1
        self._length = (done + self._done) << self._tries
        return True

    def found(self) -> None:
        """An event is to blame."""
        self._tries = 0

    def succeeds(self, before: UnsaveableSearch) -> None:
        """This is of the task that takes the place of one that goes back."""
        self._tries = before._tries
        self._length = self._left = before._length
        self.looks = self._left > 0
