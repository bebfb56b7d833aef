"""Events that were being processed when their process died, and may be the cause. Pure.

Rules
- What was being processed is known as ranges of numbers. With each death the ranges of that moment
  are suspects; a range in one that was known before has one death more than that.
- Suspects are processed one by one, and nothing of the other suspects beside them: so with the
  second death the very event is known, and with the third it is convicted.
- A SIGKILL of which nobody knows who sent it is no death that an event can be blamed for. It is
  counted by itself: an event at which the process is killed again and again stops the job.
- A suspect is none when a commit is written that covers it: all up to a number, of what is read in
  order. Of a task's own events, which have no order, it is the very one that was processed; or any
  that can no longer be known, for a commit finds nothing waiting of what the task has put. The
  commit of where inputs begin, before any event, says nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

DEATHS = 3
"""After so many with it under way an event is convicted."""

MOST_KILLS = 8
"""SIGKILLs of unknown senders with one event under way at which the job stops, as Samza does after
so many restarts of a container."""

ALL = (1 << 64) - 1
"""The last number of a range of which nobody knows the numbers."""

MAX_SUSPECTS = 256

OWN = " (put by the task itself)"
"""How the origins of a task's own events end."""


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """The numbers from ``first`` to ``last`` of an origin; the process has died at them so many
    times (``deaths``), and was killed by who knows whom (``kills``)."""

    origin: str
    first: int
    last: int
    deaths: int = 1
    kills: int = 0

    @property
    def own(self) -> bool:
        """Whether the task itself has put it."""
        return self.origin.endswith(OWN)

    @property
    def convicted(self) -> bool:
        """Whether it is the event that has killed the process."""
        return self.first == self.last and self.deaths >= DEATHS

    @property
    def only_killed(self) -> bool:
        """Whether it is an event at which the process was killed too often to go on."""
        return self.first == self.last and self.kills >= MOST_KILLS and not self.convicted

    def has(self, origin: str, number: int) -> bool:
        """Whether an event is meant."""
        return origin == self.origin and self.first <= number <= self.last


def after_death(
    known: Iterable[Suspect],
    under_way: Iterable[Suspect],
    positions: Mapping[str, int],
    *,
    at_fault: bool = True,
) -> list[Suspect]:
    """The suspects when a process has died with these events ``under_way``.

    ``known`` are those of before, ``positions`` are what is committed by origin. ``at_fault`` is
    whether the death can be due to an event.
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
    """Those of a task, while it runs. ``left`` are those that no written commit covers."""

    def __init__(self, suspects: Iterable[Suspect]) -> None:
        self.left = list(suspects)
        self._passed: set[Suspect] = set()
        self._any_passed = False
        self._committing: set[Suspect] = set()

    def alone(self, origin: str, numbers: Iterable[int]) -> int:
        """How many of these numbers, from the first on, may be processed together."""
        count = 0
        for number in numbers:
            if any(one.has(origin, number) for one in self.left):
                return count or 1
            count += 1
        return count

    def passed(self, origin: str, number: int) -> None:
        """All numbers of an origin up to this one are done; of the task's own events this one."""
        self._any_passed = True
        for one in self.left:
            if one.origin == origin and (one.last == number if one.own else one.last <= number):
                self._passed.add(one)

    def taken(self, *, waits: bool) -> None:
        """A commit has what is done; ``waits`` is whether any of the task's own events do."""
        self._committing |= self._passed
        if self._any_passed:
            self._committing.update(
                one for one in self.left if one.own and (one.last == ALL or not waits)
            )
        self._passed.clear()

    def written(self) -> list[Suspect]:
        """It is written; returns those that are none any more."""
        gone = [one for one in self.left if one in self._committing]
        self.left = [one for one in self.left if one not in self._committing]
        self._committing.clear()
        return gone
