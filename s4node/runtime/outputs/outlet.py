"""An outlet: decides when the commits of a task are published to another system, once. Pure.

Theory of operation

A task's commit is durable first, with the records that the task has put since the commit before.
Then they are published, in one transaction of the receiver. The transaction also has a *marker*,
the number of the last commit in it. The next commit deletes the rows. An example:

    commit 6 is durable, with records      the marker is 5
    begin, records of 6, marker 6
    kill -9                                the receiver aborts, now or when the next owner opens it
    the next owner opens, reads 5          and publishes 6

    commit 6, transaction, marker 6
    kill -9                                the rows of 6 are still in the state
    the next owner opens, reads 6          and deletes them

Opening a receiver decides whether the open transaction was committed, and fences former owners, so
after it the marker is final. There is one way after a start and after any error: open again, check
the claim, read the marker, drop what it has, publish the rest. The outcome of a transaction that
failed is never guessed.

The claim is checked *after* opening. A former owner that has opened before the next one is fenced
by it. One that opens later fences the next owner, but finds its own claim gone; the next owner
finds its claim valid, and opens again. An example:

    A is paused within a transaction       B claims, opens: A's transaction is aborted
    B publishes 6; A wakes up              its transaction is refused; it opens again, and finds
                                           that its claim is gone
    B begins 7                             it is refused; B opens again, and publishes 7

Numbers belong to a *life*. A task that goes back to a savepoint begins another life at the number
of the savepoint. What it had published since does not count in that life, and comes again. A task
that has lost its state begins a life without a former one.

Rules
- A commit's records are published in one transaction, with those of commits that waited with it.
- After an error, opening is tried again, with pauses that grow. Nothing is lost meanwhile: rows
  wait in the state. The streams that lead here are held from a bound of bytes on.
- A marker that is gone, or behind commits whose rows are deleted, is an error: the receiver was
  restored from a backup. So is one ahead of the state. Going back to a savepoint ends both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import msgspec

from s4node.errors import MarkerError, S4Error, TaskFenced
from s4node.offsets.system import Marker

PACE = 0.1
"""The seconds from the begin of a transaction to that of the next one, at least."""

AT_ONCE_BYTES = 16 << 20
"""The bytes of commits that are published in one transaction, approximately."""

FIRST_PAUSE, LAST_PAUSE = 0.2, 2.0
"""The seconds before a receiver that failed is opened again."""


class State(Enum):
    CLOSED = "not opened, or failed since"
    OPENING = "being opened"
    OPEN = "ours, with a known marker"
    PUBLISHING = "in a transaction"


class Saved(msgspec.Struct, array_like=True):
    """The part of a task's state that is for an outlet, beside its records: its lives, as in a
    Marker, the number of the last commit with records, that of the last published one, and how many
    ``records`` all commits had."""

    lives: tuple[tuple[str, int], ...]
    number: int = 0
    settled: int = 0
    records: int = 0

    def begin_life(self, name: str) -> None:
        """Begin another life, for a task that goes back to this. A marker may be missing in it."""
        self.lives = (*self.lives, (name, self.number))
        self.settled = 0


class Batch(NamedTuple):
    """A part of a commit's records, encoded as in its row."""

    number: int
    data: bytes
    events: int


class Open(NamedTuple):
    """Open the receiver, and check the claim."""


class Publish(NamedTuple):
    """Publish the batches, with the marker."""

    batches: tuple[Batch, ...]
    marker: Marker


class Wait(NamedTuple):
    """Nothing is to do before this time, or before there is another batch."""

    until: float = math.inf


Step = Open | Publish | Wait


class Outlet:
    """The outlet of task ``task`` to ``system``, for an owner with this ``fence``.

    ``saved`` is as of its last commit, ``batches`` are those in its rows. Times are in seconds.
    """

    def __init__(
        self, task: str, system: str, fence: int, saved: Saved, batches: Iterable[Batch] = ()
    ) -> None:
        self.task = task
        self.system = system
        self.state = State.CLOSED
        self.lives = saved.lives
        self.number = saved.number  # of the last durable commit with records
        self.settled = saved.settled
        self.waiting = deque(batch for batch in batches if batch.number > saved.settled)
        self.events = sum(batch.events for batch in self.waiting)
        self.bytes = sum(len(batch.data) for batch in self.waiting)
        self.failing_since: float | None = None
        self.before = 0  # commits that another life has published, which is not known here
        self._fence = fence
        self._publishing = 0
        self._pause = FIRST_PAUSE
        self._due = 0.0

    def written(self, number: int, batches: Iterable[Batch]) -> None:
        """Take the records of commits up to ``number`` that are durable and whose claim holds."""
        self.number = number
        for batch in batches:
            self.waiting.append(batch)
            self.events += batch.events
            self.bytes += len(batch.data)

    def step(self, now: float) -> Step:
        """The next thing to do; ``receiver_opened``, ``published`` or ``receiver_lost`` follows."""
        if not self.waiting or self.state in (State.OPENING, State.PUBLISHING):
            return Wait()
        if now < self._due:
            return Wait(self._due)
        if self.state is State.CLOSED:
            self.state = State.OPENING
            return Open()
        batches, size = list[Batch](), 0
        for batch in self.waiting:
            if size >= AT_ONCE_BYTES and batch.number != batches[-1].number:
                break
            batches.append(batch)
            size += len(batch.data)
        self.state = State.PUBLISHING
        self._publishing = batches[-1].number
        self._due = now + PACE
        return Publish(tuple(batches), Marker(self.lives, self._publishing, self._fence))

    def receiver_opened(self, marker: Marker | None) -> int:
        """The receiver is open, and the claim holds; return up to which commit is published.

        Raises MarkerError if that contradicts our state, TaskFenced if a later owner has published.
        """
        assert self.state is State.OPENING
        published = self._published_of(marker)
        if published > self.settled or not self.waiting:
            self.failing_since, self._pause = None, FIRST_PAUSE  # the last transaction was ours
        self._settle(published)
        self.state = State.OPEN
        return self.settled

    def published(self) -> int:
        """The transaction is committed; return up to which commit all is published."""
        assert self.state is State.PUBLISHING
        self._settle(self._publishing)
        self.state = State.OPEN
        self.failing_since, self._pause = None, FIRST_PAUSE
        return self.settled

    def receiver_lost(self, now: float) -> None:
        """The receiver could not be opened, or the outcome of the transaction is unknown."""
        assert self.state in (State.OPENING, State.PUBLISHING)
        self.state = State.CLOSED
        if self.failing_since is None:
            self.failing_since = now
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE)

    def _settle(self, number: int) -> None:
        self.settled = max(self.settled, number)
        while self.waiting and self.waiting[0].number <= self.settled:
            batch = self.waiting.popleft()
            self.events -= batch.events
            self.bytes -= len(batch.data)

    def _published_of(self, marker: Marker | None) -> int:
        """The number up to which the commits of our life are published, from the marker."""
        theirs = () if marker is None else marker.lives
        common = 0
        while common < min(len(theirs), len(self.lives)) and theirs[common] == self.lives[common]:
            common += 1
        if marker is None or not common:
            if self.settled:
                raise self._gone(marker)
            self.before = 0 if marker is None else marker.number
            return 0
        if common == len(self.lives) and (
            len(theirs) > common or (marker.fence > self._fence and marker.number > self.number)
        ):
            raise TaskFenced(
                f"another container has taken over task {self.task!r}, and has published its "
                f"commit {marker.number} to system {self.system!r}; this container stops"
            )
        found = marker.number
        if len(theirs) > common:
            found = min(found, theirs[common][1])
        if len(self.lives) > common:
            found = min(found, self.lives[common][1])
        if found < self.settled:
            raise self._gone(marker)
        if found > self.number:
            raise MarkerError(
                f"{self._place} has commit {found} of task {self.task!r}, whose state has only "
                f"{self.number}: the state is older than what was published from it. Restore the "
                f"newer state, or go on from a savepoint (--from NAME)"
            )
        return found

    @property
    def _place(self) -> str:
        return f"system {self.system!r}"

    def _gone(self, marker: Marker | None) -> S4Error:
        found = "has no marker" if marker is None else f"has only the marker {marker.number}"
        what = (
            f"commits {self.settled + 1} to {self.number} may be there already, or not"
            if self.waiting
            else "its rows may be there, or not"
        )
        return MarkerError(
            f"{self._place} {found} of task {self.task!r}, which has published commit "
            f"{self.settled}: the topic of markers was deleted, or the brokers were restored from "
            f"a backup; {what}. Restore the topic, or go on from a savepoint (--from NAME), which "
            f"publishes again what came after it"
        )
