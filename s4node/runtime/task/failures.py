"""The failures of a task: it rolls back to its last commit, or stops the app. Pure.

Rules
- A task that rolls back begins nothing more, and discards the results of events in flight. When
  they have ended, a new task replaces it.
- The new task commits after 1, 2, 4 ... events, so that a second failure replays little.
- State that cannot be saved stops the app: the commit finds it long after its event.
- A commit waits until the dead letters of skipped events are stored.
- If the task cannot roll back, a failure stops the app.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from s4node.errors import EventTimeout, ProcessingError
from s4node.events.event import EventBatch
from s4node.runtime.task.actions import NONE, Actions, Replace
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.gate import Gate, Inputs, Op, Phase
from s4node.runtime.task.poison.isolation import Isolation, IsolationPolicy
from s4node.runtime.task.processor import Processor
from s4node.state.rows import Changes

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Recovery(IsolationPolicy[T_contra], Protocol[T_contra]):
    """Decides which failures roll a task back to its last commit."""

    @property
    def undoes(self) -> bool:
        """True if tasks can roll back."""
        ...

    def takes(self, task: T_contra, error: ProcessingError, /) -> bool:
        """Return True if the task rolls back for this failure; otherwise it stops the app."""
        ...

    def before_end(self, task: T_contra, /) -> Op:
        """Return what runs first at the end of inputs: a commit, or END_OF_STREAM itself."""
        ...


class Failures(Generic[T]):
    """The failures of ``task``, called ``name``. Each one stops the app, unless ``isolate`` was
    called.

    ``changes`` are the changes for the next commit of a task that keeps state. They are committed
    early when they take more than ``changes_bytes``.
    """

    def __init__(
        self, task: T, name: str, app: str, gate: Gate, backlog: Backlog, processor: Processor
    ) -> None:
        self.isolation = Isolation(task)
        self.changes: Changes | None = None
        self.changes_bytes = 0
        self._recovery: Recovery[T] | None = None
        self._task = task
        self._name = name
        self._app = app
        self._gate = gate
        self._backlog = backlog
        self._processor = processor

    def isolate(self, recovery: Recovery[T]) -> None:
        """Roll back for events at which the task fails; call before its start."""
        self._recovery = recovery
        self.isolation.policy = recovery
        self._backlog.on_load = self.isolation.loaded
        self._processor.leave_out(self.isolation.failed_hooks)

    def succeed(self, before: Failures[T]) -> None:
        """Take over from the task that has failed; call before the start."""
        self.isolation.succeeds(before.isolation)
        self._processor.leave_out(self.isolation.failed_hooks)
        if self.isolation.end_written:
            self._gate.inputs = Inputs.NOTIFIED

    @property
    def undoes(self) -> bool:
        return self._recovery is not None and self._recovery.undoes

    @property
    def dead_letters_wait(self) -> bool:
        return self.isolation.poison_events.unsafe > 0

    def before_end(self) -> Op:
        return Op.END_OF_STREAM if self._recovery is None else self._recovery.before_end(self._task)

    # -- rolling back ------------------------------------------------------------------------

    def roll_back(self, error: ProcessingError) -> None:
        """Roll back because of ``error``; raises it if it stops the app."""
        recovery = self._recovery
        can_leave_out = error.at is not None or error.call is not None
        if not can_leave_out or recovery is None or not recovery.takes(self._task, error):
            raise error
        self._halt()

    def timed_out(self, batch: EventBatch, index: int, seconds: float) -> EventTimeout:
        failure = EventTimeout(self._app, self._name, batch.position(index), seconds)
        failure.at = batch, index
        return failure

    def undone(self, op: Op) -> Actions:
        """End a step whose result is discarded."""
        if op is Op.PROCESS and self.isolation.careful is not None:
            self.isolation.careful.event_ended()
        self._gate.end_step(op)
        return self.step_ended()

    def step_ended(self) -> Actions:
        """Replace the failed task if nothing of it is in flight any more."""
        return NONE if self._gate.in_flight or self._gate.running is not None else (Replace(),)

    def _halt(self) -> None:
        if self._gate.phase is not Phase.FAILED:
            self._gate.enter(Phase.FAILED)
        self._backlog.closed = True
