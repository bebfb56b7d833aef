"""Suspects: events that were in flight when their process died, and may be the cause. Pure.

Rules
- The events in flight are known as ranges of numbers. At each death the ranges of that moment
  become suspects; a range within an earlier one counts one death more than that one.
- Suspects are processed one by one, with no other suspect beside them. So the second death names
  the very event, and the third convicts it.
- A SIGKILL from an unknown sender is not blamed on an event. Such kills are counted separately: an
  event at which the process is killed again and again stops the job.
- A written commit that covers a suspect clears it: for input that is read in order, every suspect
  up to a number. A task's own events have no order: a commit clears the suspect that was processed,
  and all suspects that can no longer be found, because none of the task's own events wait. The
  first commit, of where inputs begin, covers no event and clears none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

DEATHS = 3
"""An event is convicted after so many deaths while it was in flight."""

MOST_KILLS = 8
"""The job stops after so many SIGKILLs from unknown senders at one event. Samza stops a job after
as many restarts of a container."""

ALL = (1 << 64) - 1
"""The last number of a range whose numbers are unknown."""

MAX_SUSPECTS = 256

OWN = " (put by the task itself)"
"""The suffix of origins of a task's own events."""


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """The events from ``first`` to ``last`` of an origin.

    The process has died ``deaths`` times while they were in flight, and was killed ``kills`` times
    by an unknown sender.
    """

    origin: str
    first: int
    last: int
    deaths: int = 1
    kills: int = 0

    @property
    def own(self) -> bool:
        """True if the task itself has put the event."""
        return self.origin.endswith(OWN)

    @property
    def convicted(self) -> bool:
        """True if this is the event that has killed the process."""
        return self.first == self.last and self.deaths >= DEATHS

    @property
    def only_killed(self) -> bool:
        """True if the process was killed at this event too often to go on."""
        return self.first == self.last and self.kills >= MOST_KILLS and not self.convicted

    def has(self, origin: str, number: int) -> bool:
        """Return True if an event is in the range."""
        return origin == self.origin and self.first <= number <= self.last


def after_death(
    known: Iterable[Suspect],
    under_way: Iterable[Suspect],
    positions: Mapping[str, int],
    *,
    at_fault: bool = True,
) -> list[Suspect]:
    """The suspects after a process has died with these events ``under_way``.

    ``known`` are the earlier suspects, ``positions`` the committed positions by origin.
    ``at_fault`` says that an event may have caused the death.
    """
    left = [one for one in known if one.last >= positions.get(one.origin, 0)]
    found = []
    for one in under_way:
        if one.last < positions.get(one.origin, 0):
            continue
        before = [e for e in left if e.has(one.origin, one.first)]
        deaths = max((e.deaths for e in before), default=0) + at_fault
        kills = max((e.kills for e in before), default=0) + (not at_fault)
        found.append(Suspect(one.origin, one.first, one.last, deaths, kills))
    singles = {(one.origin, one.first, one.last) for one in found}
    found += [one for one in left if (one.origin, one.first, one.last) not in singles]
    return found[:MAX_SUSPECTS]


class Suspects:
    """The suspects of a running task. ``left`` are those that no written commit covers."""

    def __init__(self, suspects: Iterable[Suspect]) -> None:
        self.left = list(suspects)
        self._passed: set[Suspect] = set()
        self._any_passed = False
        self._committing: set[Suspect] = set()

    def alone(self, origin: str, numbers: Iterable[int]) -> int:
        """The count of these numbers, from the first, that may be processed together."""
        count = 0
        for number in numbers:
            if any(one.has(origin, number) for one in self.left):
                return count or 1
            count += 1
        return count

    def processed(self, origin: str, number: int) -> None:
        """Note that an origin is done up to a number; of the task's own events, only that one."""
        self._any_passed = True
        for one in self.left:
            if one.origin == origin and (one.last == number if one.own else one.last <= number):
                self._passed.add(one)

    def taken(self, *, waits: bool) -> None:
        """Note that a commit was taken; ``waits`` says that some of the task's own events wait."""
        self._committing |= self._passed
        if self._any_passed:
            self._committing.update(
                one for one in self.left if one.own and (one.last == ALL or not waits)
            )
        self._passed.clear()

    def written(self) -> list[Suspect]:
        """Note that the commit was written; return the suspects that it clears."""
        gone = [one for one in self.left if one in self._committing]
        self.left = [one for one in self.left if one not in self._committing]
        self._committing.clear()
        return gone
