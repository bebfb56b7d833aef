"""The isolation of one task: keeps what its failures and deaths are due to apart. Pure.

Rules
- Poison events are skipped when their batch is loaded. After a failure the task commits after
  1, 2, 4 ... events, so that a second failure replays little.
- What cannot be saved is due to an event before the commit that finds it; see
  ``unsaveable_search``.
- What is under way is told for the case that it kills the process. Suspects of earlier deaths are
  processed alone: one event at a time in the task, and no other task with suspects beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from s4node.events.event import EventBatch
from s4node.offsets.receipts import PartReceipt
from s4node.runtime.task.poison.poison_events import (
    KILLED,
    KILLS,
    CommitBackoff,
    LeftOut,
    Place,
    PoisonEvents,
    origin_of,
    place_of,
)
from s4node.runtime.task.poison.suspects import ALL, Suspect, Suspects
from s4node.runtime.task.poison.unsaveable_search import UnsaveableSearch

if TYPE_CHECKING:
    from s4node.app.stream import Stream
    from s4node.runtime.task.poison.in_flight_journal import InFlightJournal


class IsolatedGate(Protocol):
    """What isolation knows of the gate of a task."""

    max_concurrency: int

    @property
    def end_told(self) -> bool:
        """Whether the task was told of the end of its inputs."""
        ...


class Isolated(Protocol):
    """What isolation knows of a task."""

    name: str

    @property
    def gate(self) -> IsolatedGate:
        """Its gate."""
        ...

    def own(self) -> Mapping[str, list[Any]]:
        """The events that wait here and came from nowhere but the app itself, by stream."""
        ...


T = TypeVar("T", bound=Isolated)
T_contra = TypeVar("T_contra", contravariant=True)


class IsolationPolicy(Protocol[T_contra]):
    """What becomes of events that tasks leave out, and whose turn it is of tasks with suspects."""

    def left_out(self, task: T_contra, batch: EventBatch, found: list[LeftOut], /) -> None:
        """The task leaves these out, which were in a batch."""
        ...

    def may(self, task: T_contra, /) -> bool:
        """Whether a task that has suspects may process an event now."""
        ...

    def turns(self, task: T_contra, /, *, begins: bool) -> None:
        """Such a task begins to process, or has ended."""
        ...


class Isolation(Generic[T]):
    """That of ``task``, by a ``policy``."""

    __slots__ = (
        "_backoff",
        "_end_taken",
        "_most",
        "_policy",
        "_suspects",
        "_task",
        "_under_way",
        "_untold",
        "end_written",
        "examination",
        "poison_events",
    )

    def __init__(self, task: T, policy: IsolationPolicy[T]) -> None:
        self.poison_events = PoisonEvents()
        self.examination = UnsaveableSearch()
        self.end_written = False  # a commit has what the task has done at the end of its inputs
        self._end_taken = False
        self._task = task
        self._policy = policy
        self._most = task.gate.max_concurrency
        self._backoff: CommitBackoff | None = None
        self._under_way: InFlightJournal | None = None
        self._suspects: Suspects | None = None
        self._untold: list[tuple[EventBatch, LeftOut, Stream]] = []

    # -- life --------------------------------------------------------------------------------

    def watch(self, under_way: InFlightJournal) -> None:
        """Tell what is under way, and be careful with those who may have killed its owners."""
        self._under_way = under_way
        for one in under_way.suspects:
            if one.convicted or one.only_killed:
                fault = KILLS if one.convicted else KILLED
                self.poison_events.add(Place(one.origin, one.first), fault)
        self._suspect(under_way.suspects)

    def succeeds(self, before: Isolation[T]) -> None:
        """This is of the task that takes the place of one that has failed."""
        self.poison_events = before.poison_events
        self.end_written = before.end_written
        self._backoff = CommitBackoff()
        self._under_way = before._under_way
        self._suspect(before.suspects)
        self.examination.succeeds(before.examination)

    def _suspect(self, suspects: list[Suspect]) -> None:
        if suspects:
            self._suspects = Suspects(suspects)
            self._task.gate.max_concurrency = 1

    @property
    def suspects(self) -> list[Suspect]:
        """Events that may have killed the process, and are not committed."""
        return [] if self._suspects is None else self._suspects.left

    @property
    def suspects_files(self) -> str:
        """The files that have the suspects of the task; empty where it keeps none."""
        return "" if self._under_way is None else self._under_way.suspects_files

    # -- events ------------------------------------------------------------------------------

    def loaded(self, batch: EventBatch) -> None:
        """A batch is about to be processed."""
        found = self.poison_events.leave_out(batch)
        if found:
            if self._suspects is not None:
                for one in found:
                    if one.place.own:  # in no order; of others' the next that is processed says so
                        self._suspects.passed(*one.place)
            self._policy.left_out(self._task, batch, found)

    def tell(self, batch: EventBatch, left: LeftOut, stream: Stream) -> None:
        """Put the dead letter of an event of ``batch`` on a stream, in the first commit that covers
        the event."""
        self._untold.append((batch, left, stream))

    def taken(self) -> list[tuple[Stream, Any]]:
        """A commit is about to be taken; returns the dead letters that are to be part of it, with
        the streams to put them on."""
        self._end_taken = self._task.gate.end_told
        if self._suspects is not None:
            self._suspects.taken(waits=bool(self._task.own()))
        left, told = [], []
        for untold in self._untold:
            batch, one, stream = untold
            if is_covered(batch, one):
                told.append((stream, one.dead_letter))
            else:
                left.append(untold)
        self._untold = left
        return told

    @property
    def may(self) -> bool:
        """Whether an event may be processed now."""
        return self._suspects is None or self._policy.may(self._task)

    def limit(self, batch: EventBatch, limit: int) -> int:
        """How many events of a batch may be processed together, of so many."""
        if self.examination.looks:
            return 1
        if self._backoff is not None:
            limit = min(limit, self._backoff.left)
        if self._suspects is not None:
            numbers: Any = (0,)
            if batch.receipt is not None:
                end = min(len(batch.events), batch.at + limit)
                numbers = map(batch.number, range(batch.at, end))
            limit = max(1, self._suspects.alone(origin_of(batch), numbers))
        return limit

    def begins(self, batch: EventBatch, count: int) -> None:
        """So many events of a batch are about to be processed."""
        if self._suspects is not None:
            self._policy.turns(self._task, begins=True)
        if self._under_way is None or not count:
            return
        if batch.receipt is not None:
            first, last = batch.number(batch.at), batch.number(batch.at + count - 1)
            self._under_way.begin(batch.receipt.origin, first, last)
        elif count == 1:
            origin, first = place_of(batch, batch.at)
            self._under_way.begin(origin, first, first)
        else:
            self._under_way.begin(origin_of(batch), 0, ALL)

    def ended(self, batch: EventBatch, count: int) -> None:
        """Of the events that began so many are done."""
        self.examination.did(count)
        if self._under_way is not None:
            self._under_way.end()
        if self._suspects is not None:
            if count:
                self._suspects.passed(*place_of(batch, batch.at + count - 1))
            self._policy.turns(self._task, begins=False)

    def begins_one(self, batch: EventBatch, index: int) -> int:
        """An event is about to be processed beside others; returns where it is told that it is
        under way, for ``ended_one``."""
        slot = -1
        if self._under_way is not None:
            slot = self._under_way.take()
            if slot > 0:
                origin, number = place_of(batch, index)
                self._under_way.begin(origin, number, number, slot)
        if self._suspects is not None:
            self._policy.turns(self._task, begins=True)
        return slot

    def ended_one(self, batch: EventBatch, index: int, slot: int) -> None:
        """It has ended."""
        self.examination.did(1)
        if self._under_way is not None:
            self._under_way.give(slot)
        if self._suspects is not None:
            self._suspects.passed(*place_of(batch, index))
            self._policy.turns(self._task, begins=False)

    # -- commits -----------------------------------------------------------------------------

    def pulls(self, count: int) -> bool:
        """Events are done; whether to commit now."""
        return self._backoff is not None and self._backoff.pulls(count)

    def committed(self) -> None:
        """A commit is taken."""
        self.poison_events.taken()
        self.examination.taken()
        if self._backoff is not None and self._backoff.committed():
            self._backoff = None

    def written(self) -> None:
        """The commit is written."""
        self.poison_events.written()
        self.end_written = self._end_taken
        if self._suspects is None:
            return
        own = [one for one in self._suspects.written() if one.own]
        if own and self._under_way is not None:
            self._under_way.acquit(own)
        if not self._suspects.left:
            self._suspects = None
            self._task.gate.max_concurrency = self._most
            self._policy.turns(self._task, begins=False)


def is_covered(batch: EventBatch, left: LeftOut) -> bool:
    """Whether a commit that is taken now has the place of an event that was left out behind it."""
    receipt = batch.receipt
    if receipt is None:  # commits keep what waits of the task's own, and no more of this one
        return True
    if isinstance(receipt, PartReceipt) and receipt.past is not None:  # done as the task passes
        return receipt.past > left.place.number
    return batch.at >= left.at
