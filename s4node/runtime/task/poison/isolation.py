"""The isolation of one task from the events that make it fail or kill its process. Pure.

Rules
- Poison events are skipped when their batch is loaded. After a failure, or a death of its process,
  the task commits after 1, 2, 4 ... events, so that a second one replays little.
- A careful task processes one event at a time, and has the place of each written; see
  ``runtime.commit.careful_mode``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from s4node.events.event import EventBatch
from s4node.offsets.deaths import WELL_PAST_EVENTS
from s4node.offsets.receipts import PartReceipt
from s4node.runtime.task.poison.failed_hooks import FailedHooks, LeftOutCall
from s4node.runtime.task.poison.poison_events import (
    ROUNDS_AFTER_DEATHS,
    CommitBackoff,
    LeftOut,
    Place,
    PoisonEvents,
)

if TYPE_CHECKING:
    from s4node.app.stream import Stream


class Careful(Protocol):
    """Writes the place of each event of a careful task."""

    @property
    def may(self) -> bool:
        """True if an event may begin."""
        ...

    def event_begins(self, batch: EventBatch, index: int, /) -> None: ...

    def event_ended(self) -> None: ...


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class IsolationPolicy(Protocol[T_contra]):
    def left_out(self, task: T_contra, batch: EventBatch, found: list[LeftOut], /) -> None: ...

    def call_left_out(self, task: T_contra, left: LeftOutCall, /) -> None:
        """Handle a call of a window or a timer that the task leaves out."""
        ...

    def covered(self, task: T_contra, own: list[Place], /) -> None:
        """Note that a commit covers these events of the task's own, which it has skipped."""
        ...


class Isolation(Generic[T]):
    """The isolation of ``task``; ``policy`` decides for all tasks of the container.

    A task that does not roll back never skips anything, so nobody asks its policy.
    """

    policy: IsolationPolicy[T]

    def __init__(self, task: T) -> None:
        self.poison_events = PoisonEvents()
        self.failed_hooks = FailedHooks()
        self.careful: Careful | None = None
        self.backoff: CommitBackoff | None = None
        self.end_written = False  # a commit covers the end of its inputs
        self._end_taken = False
        self._task = task
        self._on_well_past: Callable[[], None] | None = None
        self._unsent: list[tuple[EventBatch, LeftOut, Stream]] = []
        self._unsent_calls: list[tuple[Stream, Any]] = []

    # -- life --------------------------------------------------------------------------------

    def succeeds(self, before: Isolation[T]) -> None:
        """Take over from the failed task that this one replaces."""
        self.poison_events = before.poison_events
        self.failed_hooks = before.failed_hooks
        self.failed_hooks.going_back()
        self.end_written = before.end_written
        self.backoff = CommitBackoff()

    def after_deaths(self, on_well_past: Callable[[], None]) -> None:
        """Commit often, and call ``on_well_past`` once the task is well past where it began."""
        self.backoff = CommitBackoff(ROUNDS_AFTER_DEATHS)
        self._on_well_past = on_well_past

    # -- events ------------------------------------------------------------------------------

    def loaded(self, batch: EventBatch) -> None:
        known = self.poison_events
        if (known.numbered or known.own) and (found := known.leave_out(batch)):
            self.policy.left_out(self._task, batch, found)

    def add_dead_letter(self, batch: EventBatch, left: LeftOut, stream: Stream) -> None:
        """Put a dead letter on a stream, in the first commit that covers its event."""
        self._unsent.append((batch, left, stream))

    def call_left_out(self, left: LeftOutCall) -> None:
        self.policy.call_left_out(self._task, left)

    def add_call_dead_letter(self, left: LeftOutCall, stream: Stream) -> None:
        self._unsent_calls.append((stream, left.dead_letter))

    def taken(self, *, end_notified: bool) -> list[tuple[Stream, Any]]:
        """Return the dead letters, with their streams, that belong to the commit to be taken.

        ``end_notified``: the task was notified of the end of its inputs before.
        """
        self._end_taken = end_notified
        left, letters = [], self._unsent_calls
        self._unsent_calls = []
        for unsent in self._unsent:
            batch, one, stream = unsent
            if is_covered(batch, one):
                letters.append((stream, one.dead_letter))
            else:
                left.append(unsent)
        self._unsent = left
        return letters

    # -- commits -----------------------------------------------------------------------------

    def commit_taken(self) -> None:
        if self.poison_events.gone:
            self.poison_events.taken()
        if self.failed_hooks.calls:
            self.failed_hooks.taken()
        if self.backoff is not None and self.backoff.commit_taken():
            self.backoff = None

    def written(self) -> None:
        if self.poison_events.going and (own := self.poison_events.written()):
            self.policy.covered(self._task, own)
        if self.failed_hooks.calls:
            self.failed_hooks.written()
        self.end_written = self._end_taken
        far = self.backoff is None or self.backoff.covered >= WELL_PAST_EVENTS
        if far and self._on_well_past is not None:
            on_well_past, self._on_well_past = self._on_well_past, None
            on_well_past()


def is_covered(batch: EventBatch, left: LeftOut) -> bool:
    """Return True if a commit that is taken now covers a skipped event."""
    receipt = batch.receipt
    if receipt is None:  # commits save the task's waiting events, and this one waits no more
        return True
    if isinstance(receipt, PartReceipt) and receipt.past is not None:  # done as the task passes
        return receipt.past > left.place.number
    return batch.at >= left.at
