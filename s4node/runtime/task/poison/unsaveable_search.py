"""The search for the event that leaves unsaveable state in a task. Pure.

Rules
- Unsaveable state is found by a commit, long after the event that caused it. So the task rolls
  back, replays the events since its last commit, and checks after each one whether the state that
  the event belongs to can be saved.
- An event is to blame if that state could be saved before it. Otherwise the cause is a timer, a
  window or the start: no event is skipped, and the app stops.
- If the state is found again, and not all events were checked, the search is repeated over twice as
  many events: they may come in another order, and timers fire later. If all events were checked,
  none is to blame.
"""

from __future__ import annotations


class UnsaveableSearch:
    """Decides which events of a task are checked. ``looks`` is True if the next one is."""

    __slots__ = ("_done", "_left", "_length", "_taken", "_tries", "_unseen", "looks")

    def __init__(self) -> None:
        self.looks = False
        self._tries = 0  # searches since an event was found
        self._length = 0  # events to check after a rollback,
        self._left = 0  # and how many of them are left
        self._done = 0  # events since the last commit,
        self._unseen = 0  # and those of them that were not checked
        self._taken = 0, 0  # the same of the last commit itself

    def did(self, count: int) -> None:
        """Note that ``count`` events were processed, and checked if the search ran."""
        seen = min(count, self._left)
        self._left -= seen
        self.looks = self._left > 0
        if seen and not self._left:
            self._length = 0
        self._done += count
        self._unseen += count - seen

    def taken(self) -> None:
        """Note that a commit of all processed events was taken."""
        self._taken = self._done, self._unseen
        self._done = self._unseen = 0

    def begins(self, *, of_commit: bool) -> bool:
        """Begin a search for unsaveable state of the last commit, or of the time since.

        Return False if all events were checked already, so that a rollback would not help.
        """
        done, unseen = self._taken
        if not (unseen if of_commit else unseen + self._unseen):
            return False
        self._tries += 1
        self._length = (done + self._done) << self._tries
        return True

    def found(self) -> None:
        """Note that an event is to blame."""
        self._tries = 0

    def succeeds(self, before: UnsaveableSearch) -> None:
        """Go on with the search of the task that this one replaces."""
        self._tries = before._tries
        self._length = self._left = before._length
        self.looks = self._left > 0
