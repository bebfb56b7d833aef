"""The cuts of a container's tasks: for which savepoint each was asked, and has made its cut. Pure.

Rules
- A savepoint has a number, higher than all before. The cut of a task is a commit, made once for a
  number.
- What a task says to others of its job bears the number of its cut: frames, rulings, and answers to
  hellos. A task that meets a higher number makes its own cut before it takes in what bore it: a
  frame, or that events of its own are committed. This is Chandy and Lamport's cut, with the number
  on each message in place of markers between them, so it needs no order between connections.
- So no cut counts an event that its sender's cut has not sent, and no cut has given up an event
  that its receiver's cut does not count.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class CutReport(msgspec.Struct, frozen=True):
    """A container's report of the cut of one of its tasks: the owner's fence and the commit that
    the cut is, or the ``error`` for which there is none. Fast inputs were held for ``held_ms``."""

    task: str
    fence: int
    commit: int
    error: str = ""
    held_ms: int = 0


class DrainReport(msgspec.Struct, frozen=True):
    """A container's report of its ``tasks``' fast inputs: the events that wait, by stream."""

    tasks: list[str]
    waiting: dict[str, int]


class Cuts:
    """The numbers by partition; ``on_due(partition)`` asks a task for a commit at once."""

    def __init__(self, on_due: Callable[[int], None] = lambda _: None) -> None:
        self._on_due = on_due
        self._made: dict[int, int] = {}
        self._due: dict[int, int] = {}
        self._inherited: dict[int, int] = {}  # made by earlier owners

    def restore(self, partition: int, number: int) -> None:
        """The last cut of a task that is ours now has this number."""
        self._made[partition] = self._inherited[partition] = number
        self._due.pop(partition, None)

    def take_inherited(self, number: int) -> list[int]:
        """The tasks whose cut of this number was an earlier owner's, each once."""
        found = [partition for partition, made in self._inherited.items() if made == number]
        for partition in found:
            del self._inherited[partition]
        return found

    def remove(self, partition: int) -> None:
        """The task is another container's, and nothing more is asked of ours."""
        for numbers in (self._made, self._due, self._inherited):
            numbers.pop(partition, None)

    def request_all(self, number: int) -> None:
        """Ask all tasks for the cut of this number; 0 is none."""
        for partition in list(self._made):
            self.request(partition, number)

    @property
    def partitions(self) -> list[int]:
        """The partitions of the container's tasks."""
        return sorted(self._made)

    def all_made(self, number: int) -> bool:
        """Return True if all tasks have begun the cut of this number."""
        return all(made >= number for made in self._made.values())

    def made(self, partition: int) -> int:
        """The number of the task's last cut; 0 before the first."""
        return self._made.get(partition, 0)

    def is_due(self, partition: int) -> bool:
        """Return True if the next commit of the task is a cut."""
        return partition in self._due

    def request(self, partition: int, number: int) -> bool:
        """Ask for the cut of this number; False if the task has made it."""
        if number <= self.made(partition):
            return False
        if number > self._due.get(partition, 0):
            self._due[partition] = number
            self._on_due(partition)
        return True

    def begin(self, partition: int) -> int:
        """A commit begins. Returns the number of the cut that it is, 0 if it is none."""
        number = self._due.pop(partition, 0)
        if number:
            self._made[partition] = number
        return number
