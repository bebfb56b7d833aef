"""The cuts of a container's tasks: which savepoint each was asked for, and has made. Pure.

Theory of operation

A savepoint is a state of the whole job that could have been: for each event that one task has sent
to another, either both count it, or the sender still has it to send. Tasks do not stop for that.
Each makes its *cut*, one commit, at a time of its own, and the cuts must fit.

An example: A sends an event e to B. If they cut at any times, two things may go wrong:

    A cuts, A sends e, B takes in e, B cuts     B counts an event that A has not sent: twice
    A sends e, B cuts, B commits e,
    e is acknowledged, A drops e, A cuts        neither has e: lost

Chandy and Lamport send a marker behind the last event before the cut, which needs connections that
keep their order. Here a task moves between containers, and a frame may be sent again over another
connection. So the number of the sender's cut is on each message, in place of markers between them:
on frames, on verdicts, and on answers to hellos. A task that gets a message with a higher number
than its own makes its own cut first, and takes in the message after that.

    savepoint 7 is requested; A makes cut 7
    A sends e with number 7
    B has cut 6, and gets e: it makes cut 7 without e, then takes e in    the first line above
    B commits e, and acknowledges it with number 7
    A still had cut 6: it makes cut 7 with e, then drops e               the second line above

After that no cut counts an event that its sender's cut has not sent. No cut has dropped an event
that its receiver's cut does not count. Events between two cuts are in the cut of their sender,
which sends them again under the same numbers; the receiver trims what it has.

Rules
- The number of a savepoint is higher than all before. A task makes one cut for a number, also if it
  is asked by several messages and the request.
- If a task moves while a savepoint is taken, its new owner knows from the state that the cut was
  made (``restore``). It makes no second one under that number, because it has since taken in events
  that others sent after their cuts. It reports the cut as inherited, and the savepoint is taken
  again under another number.
- Events of fast inputs are in no commit. So these inputs are held and drained before the cuts.
"""

from __future__ import annotations

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


AT_ONCE = -1.0
"""The patience of those who wait for a commit that no budget may delay."""


class Cuts:
    """The numbers by partition. ``commits`` are those that are requested, as in the inbox of a
    container's effects."""

    def __init__(self, commits: dict[int, float] | None = None) -> None:
        self._commits = {} if commits is None else commits
        self._made: dict[int, int] = {}
        self.due: dict[int, int] = {}
        self._inherited: dict[int, int] = {}  # made by earlier owners

    def restore(self, partition: int, number: int) -> None:
        """The last cut of a task that is ours now has this number."""
        self._made[partition] = self._inherited[partition] = number
        self.due.pop(partition, None)

    def take_inherited(self, number: int) -> list[int]:
        """The tasks whose cut of this number was an earlier owner's, each once."""
        found = [partition for partition, made in self._inherited.items() if made == number]
        for partition in found:
            del self._inherited[partition]
        return found

    def remove(self, partition: int) -> None:
        """The task is another container's, and nothing more is asked of ours."""
        for numbers in (self._made, self.due, self._inherited):
            numbers.pop(partition, None)

    def request_all(self, number: int) -> None:
        """Ask all tasks for the cut of this number; 0 is none."""
        for partition in list(self._made):
            self.request(partition, number)

    @property
    def partitions(self) -> list[int]:
        return sorted(self._made)

    def all_made(self, number: int) -> bool:
        return all(made >= number for made in self._made.values())

    def made(self, partition: int) -> int:
        """The number of the task's last cut; 0 before the first."""
        return self._made.get(partition, 0)

    def is_due(self, partition: int) -> bool:
        """Return True if the next commit of the task is a cut."""
        return partition in self.due

    def request(self, partition: int, number: int) -> bool:
        """Ask for the cut of this number; False if the task has made it."""
        if number <= self.made(partition):
            return False
        if number > self.due.get(partition, 0):
            self.due[partition] = number
            self._commits[partition] = AT_ONCE
        return True

    def begin(self, partition: int) -> int:
        """A commit begins. Returns the number of the cut that it is, 0 if it is none."""
        number = self.due.pop(partition, 0)
        if number:
            self._made[partition] = number
        return number


class _NoCuts(Cuts):
    """The cuts of another job's tasks, whose numbers are none of ours."""

    def request(self, partition: int, number: int) -> bool:  # noqa: ARG002
        return False


NO_CUTS = _NoCuts()
