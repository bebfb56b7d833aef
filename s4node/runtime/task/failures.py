"""What a task does about a failure at an event: it goes back to its last commit, or stops. Pure.

Rules
- A task that goes back begins nothing more; what is outstanding ends, and counts for nothing. When
  nothing is under way any more, another task takes its place.
- The other one commits after one event, two, four and so on, so that a further failure goes back
  no further than the task has come since the last.
- What cannot be saved is a failure too. Which event it is due to is not known: all since the last
  commit is done again, and looked at event by event.
- A commit waits until the dead letters of events that were left out are safe.
- Where nothing can be undone, a failure stops the app.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from s4node.errors import EventTimeout, NotSaveable, ProcessingError
from s4node.events.event import EventBatch
from s4node.runtime.task.actions import NONE, Actions, Replace
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.gate import Gate, Inputs, Op, Phase
from s4node.runtime.task.poison.isolation import Isolated, Isolation, IsolationPolicy
from s4node.runtime.task.processor import Processor
from s4node.state.rows import Changes

T = TypeVar("T", bound=Isolated)
T_contra = TypeVar("T_contra", contravariant=True)


class Recovery(IsolationPolicy[T_contra], Protocol[T_contra]):
    """Has tasks go back to their last commit for events at which they fail."""

    @property
    def undoes(self) -> bool:
        """Whether tasks may go back at all."""
        ...

    def takes(self, task: T_contra, error: ProcessingError, /) -> bool:
        """Whether the task goes back for this failure; otherwise it stops the app."""
        ...

    def searches(self, task: T_contra, error: NotSaveable, /) -> None:
        """The task goes back to find the event that this is due to."""
        ...

    def before_end(self, task: T_contra, /) -> Op:
        """What the task does that is to be told of the end of its inputs."""
        ...


class Failures(Generic[T]):
    """Those of ``task``, of the app of this name. Without an ``isolation`` each stops the app.

    ``changes`` are those of its next commit, if it keeps what it does; they are committed early
    when they take ``changes_bytes``.
    """

    def __init__(
        self, task: T, app: str, gate: Gate, backlog: Backlog, processor: Processor
    ) -> None:
        self.isolation: Isolation[T] | None = None
        self.changes: Changes | None = None
        self.changes_bytes = 0
        self._recovery: Recovery[T] | None = None
        self._task = task
        self._app = app
        self._gate = gate
        self._backlog = backlog
        self._processor = processor

    def isolate(self, recovery: Recovery[T]) -> None:
        """Go back for events at which the task fails; before its start."""
        self._recovery = recovery
        self.isolation = Isolation(self._task, recovery)
        self._backlog.on_load = self.isolation.loaded

    def succeed(self, before: Failures[T]) -> None:
        """The task takes the place of one that has failed, and has not started yet."""
        assert self.isolation is not None
        assert before.isolation is not None
        self.isolation.succeeds(before.isolation)
        if self.isolation.end_written:
            self._gate.inputs = Inputs.TOLD

    @property
    def undoes(self) -> bool:
        """Whether the task may go back at all."""
        return self._recovery is not None and self._recovery.undoes

    @property
    def dead_letters_wait(self) -> bool:
        """Whether dead letters of the task are not safe yet."""
        return self.isolation is not None and self.isolation.poison_events.unsafe > 0

    def before_end(self) -> Op:
        """What the task does that is to be told of the end of its inputs."""
        return Op.END_OF_STREAM if self._recovery is None else self._recovery.before_end(self._task)

    # -- going back --------------------------------------------------------------------------

    def go_back(self, error: ProcessingError) -> None:
        """The task goes back for this; raises what stops the app."""
        recovery = self._recovery
        if error.at is None or recovery is None or not recovery.takes(self._task, error):
            raise error
        self._halt()

    def timed_out(self, batch: EventBatch, index: int, seconds: float) -> EventTimeout:
        """The failure of an event that was not ended in so many seconds."""
        failure = EventTimeout(self._app, self._task.name, batch.position(index), seconds)
        failure.at = batch, index
        return failure

    def undone(self, op: Op) -> Actions:
        """A step has ended, and counts for nothing."""
        if op is Op.PROCESS:
            assert self.isolation is not None
            assert self._backlog.at_hand is not None
            self.isolation.ended(self._backlog.at_hand, 0)
        self._gate.end(op)
        return self.ended()

    def ended(self) -> Actions:
        """Something of a task that has failed has ended; nothing else of it may be under way."""
        return NONE if self._gate.in_flight or self._gate.running is not None else (Replace(),)

    def _halt(self) -> None:
        if self._gate.phase is not Phase.FAILED:
            self._gate.enter(Phase.FAILED)
        self._backlog.closed = True

    # -- what cannot be saved ----------------------------------------------------------------

    def left_by(self, batch: EventBatch, index: int) -> ProcessingError | None:
        """The failure of an event that has left what cannot be saved, where that is looked at."""
        isolation = self.isolation
        if isolation is None or not isolation.examination.looks:
            return None
        try:
            self._processor.check(batch.stream, batch.events[index])
        except NotSaveable as error:
            place = batch.position(index)
            failure = ProcessingError(self._app, error.pe, error.key, place, error)
            failure.at = batch, index
            isolation.examination.found()
            return failure
        return None

    def check_changes(self) -> Actions:
        """If something has left memory that cannot be saved, go back before it is missed."""
        if self.changes is not None and self.changes.spoiled is not None:
            return self.spoiled(self.changes.spoiled, of_commit=False)
        return NONE

    def spoiled(self, error: NotSaveable, *, of_commit: bool = True) -> Actions:
        """What the last commit has, or what was done since, cannot be saved; raises what stops the
        app.

        It is done again, and looked at event by event until it is known which it is due to.
        """
        if self._gate.phase is Phase.FAILED:  # it goes back anyway
            return NONE
        recovery, isolation = self._recovery, self.isolation
        if recovery is None or isolation is None or not recovery.undoes:
            raise error
        if not isolation.examination.begins(of_commit=of_commit):
            raise error
        recovery.searches(self._task, error)
        self._halt()
        return self.ended()
