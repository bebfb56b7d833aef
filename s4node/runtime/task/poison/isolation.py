"""The isolation of one task from the events that make it fail or kill its process. Pure.

Rules
- Poison events are skipped when their batch is loaded. After a failure the task commits after
  1, 2, 4 ... events, so that a second failure replays little.
- Unsaveable state is caused by an event before the commit that finds it; see
  ``unsaveable_search``.
- Events in flight are recorded in case they kill the process. Suspects of earlier deaths are
  processed alone: one event at a time, and one task with suspects at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from s4node.events.event import EventBatch
from s4node.offsets.receipts import PartReceipt
from s4node.runtime.task.poison.failed_hooks import FailedHooks, LeftOutCall
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
    """The gate of a task, as far as isolation knows it."""

    max_concurrency: int

    @property
    def end_told(self) -> bool:
        """True if the task was told of the end of its inputs."""
        ...


class Isolated(Protocol):
    """A task, as far as isolation knows it."""

    name: str

    @property
    def gate(self) -> IsolatedGate:
        """The gate of the task."""
        ...

    def own_events(self) -> Mapping[str, list[Any]]:
        """The waiting events that the app itself has put, by stream."""
        ...


T = TypeVar("T", bound=Isolated)
T_contra = TypeVar("T_contra", contravariant=True)


class IsolationPolicy(Protocol[T_contra]):
    """Handles skipped events, and gives turns to tasks with suspects."""

    def left_out(self, task: T_contra, batch: EventBatch, found: list[LeftOut], /) -> None:
        """Handle events of a batch that the task skips."""
        ...

    def call_left_out(self, task: T_contra, left: LeftOutCall, /) -> None:
        """Handle a call of a window or a timer that the task leaves out."""
        ...

    def may(self, task: T_contra, /) -> bool:
        """Return True if a task with suspects may process an event now."""
        ...

    def turns(self, task: T_contra, /, *, begins: bool) -> None:
        """Note that a task with suspects begins to process, or has ended."""
        ...


class Isolation(Generic[T]):
    """The isolation of ``task``; ``policy`` decides for all tasks of the container."""

    __slots__ = (
        "_backoff",
        "_end_taken",
        "_most",
        "_policy",
        "_suspects",
        "_task",
        "_under_way",
        "_untold",
        "_untold_calls",
        "end_written",
        "examination",
        "failed_hooks",
        "poison_events",
    )

    def __init__(self, task: T, policy: IsolationPolicy[T]) -> None:
        self.poison_events = PoisonEvents()
        self.failed_hooks = FailedHooks()
        self.examination = UnsaveableSearch()
        self.end_written = False  # a commit covers the end of its inputs
        self._end_taken = False
        self._task = task
        self._policy = policy
        self._most = task.gate.max_concurrency
        self._backoff: CommitBackoff | None = None
        self._under_way: InFlightJournal | None = None
        self._suspects: Suspects | None = None
        self._untold: list[tuple[EventBatch, LeftOut, Stream]] = []
        self._untold_calls: list[tuple[Stream, Any]] = []

    # -- life --------------------------------------------------------------------------------

    def watch(self, under_way: InFlightJournal) -> None:
        """Record events in flight, and isolate those that may have killed earlier owners."""
        self._under_way = under_way
        for one in under_way.suspects:
            if one.convicted or one.only_killed:
                fault = KILLS if one.convicted else KILLED
                self.poison_events.add(Place(one.origin, one.first), fault)
        self._suspect(under_way.suspects)

    def succeeds(self, before: Isolation[T]) -> None:
        """Take over from the failed task that this one replaces."""
        self.poison_events = before.poison_events
        self.failed_hooks = before.failed_hooks
        self.failed_hooks.going_back()
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
        """The uncommitted events that may have killed the process."""
        return [] if self._suspects is None else self._suspects.left

    @property
    def suspects_files(self) -> str:
        """A pattern for the files with the suspects of the task; empty if there are none."""
        return "" if self._under_way is None else self._under_way.suspects_files

    # -- events ------------------------------------------------------------------------------

    def loaded(self, batch: EventBatch) -> None:
        """Skip the poison events of a batch that has just been loaded."""
        found = self.poison_events.leave_out(batch)
        if found:
            if self._suspects is not None:
                for one in found:
                    if one.place.own:  # others are cleared by the next event in order
                        self._suspects.processed(*one.place)
            self._policy.left_out(self._task, batch, found)

    def tell(self, batch: EventBatch, left: LeftOut, stream: Stream) -> None:
        """Put a dead letter on a stream, in the first commit that covers its event."""
        self._untold.append((batch, left, stream))

    def call_left_out(self, left: LeftOutCall) -> None:
        """Report a call that the task has left out."""
        self._policy.call_left_out(self._task, left)

    def tell_call(self, left: LeftOutCall, stream: Stream) -> None:
        """Add a dead letter for a failed call to the next commit."""
        self._untold_calls.append((stream, left.dead_letter))

    def taken(self) -> list[tuple[Stream, Any]]:
        """Return the dead letters, with their streams, that belong to the commit to be taken."""
        self._end_taken = self._task.gate.end_told
        if self._suspects is not None:
            self._suspects.taken(waits=bool(self._task.own_events()))
        left, told = [], self._untold_calls
        self._untold_calls = []
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
        """True if an event may be processed now."""
        return self._suspects is None or self._policy.may(self._task)

    def limit(self, batch: EventBatch, limit: int) -> int:
        """The number of events of a batch, up to ``limit``, that may be processed together."""
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

    def events_begin(self, batch: EventBatch, count: int) -> None:
        """Record that ``count`` events of a batch are about to be processed."""
        if self._suspects is not None:
            self._policy.turns(self._task, begins=True)
        if self._under_way is None or not count:
            return
        if batch.receipt is not None:
            first, last = batch.number(batch.at), batch.number(batch.at + count - 1)
            self._under_way.write_slot(batch.receipt.origin, first, last)
        elif count == 1:
            origin, first = place_of(batch, batch.at)
            self._under_way.write_slot(origin, first, first)
        else:
            self._under_way.write_slot(origin_of(batch), 0, ALL)

    def events_ended(self, batch: EventBatch, count: int) -> None:
        """Record that ``count`` of the events that began are done."""
        self.examination.did(count)
        if self._under_way is not None:
            self._under_way.clear_slot()
        if self._suspects is not None:
            if count:
                self._suspects.processed(*place_of(batch, batch.at + count - 1))
            self._policy.turns(self._task, begins=False)

    def event_begins(self, batch: EventBatch, index: int) -> int:
        """Record that an event begins beside others; return its slot, for ``ended_one``."""
        slot = -1
        if self._under_way is not None:
            slot = self._under_way.take_slot()
            if slot > 0:
                origin, number = place_of(batch, index)
                self._under_way.write_slot(origin, number, number, slot)
        if self._suspects is not None:
            self._policy.turns(self._task, begins=True)
        return slot

    def event_ended(self, batch: EventBatch, index: int, slot: int) -> None:
        """Record that an event that began beside others has ended."""
        self.examination.did(1)
        if self._under_way is not None:
            self._under_way.free_slot(slot)
        if self._suspects is not None:
            self._suspects.processed(*place_of(batch, index))
            self._policy.turns(self._task, begins=False)

    # -- commits -----------------------------------------------------------------------------

    def calls_limit(self, limit: int) -> int:
        """The number of calls of windows and timers, up to ``limit``, before the next commit."""
        return limit if self._backoff is None else min(limit, self._backoff.left)

    def pulls(self, count: int) -> bool:
        """Count processed events, or calls; return True if a commit is due."""
        return self._backoff is not None and self._backoff.pulls(count)

    def commit_taken(self) -> None:
        """Note that a commit was taken."""
        self.poison_events.taken()
        if self.failed_hooks.calls:
            self.failed_hooks.taken()
        self.examination.taken()
        if self._backoff is not None and self._backoff.commit_taken():
            self._backoff = None

    def written(self) -> None:
        """Note that the commit was written."""
        self.poison_events.written()
        if self.failed_hooks.calls:
            self.failed_hooks.written()
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
    """Return True if a commit that is taken now covers a skipped event."""
    receipt = batch.receipt
    if receipt is None:  # commits save the task's waiting events, and this one waits no more
        return True
    if isinstance(receipt, PartReceipt) and receipt.past is not None:  # done as the task passes
        return receipt.past > left.place.number
    return batch.at >= left.at
