"""The gate of a task: where the task is in its life, and what it may do next. Pure.

``NEXT`` has the phases of that life, and which may follow which. What else the gate knows is of the
moment: what is due, what runs, and how far the inputs have come.

Rules, highest first
1. A window, a timer or the end of stream runs alone: nothing else of its task beside it.
2. A due commit, window or timer stops new processing of its task, drains what is in flight, and
   runs; in this order. However often one was due, it runs once. A commit that waits for events
   behind which others are done already lets those begin first.
3. A commit runs alone too. With ``async_commit`` events may be in flight and begin beside it; a
   further commit that is due meanwhile stops them from beginning until it has ended.
4. Events are processed while fewer than ``max_concurrency`` are outstanding. What waits may be
   held: by a full stage that it leads to, or by its rate.
5. A task whose inputs have all ended, with nothing left, is told of it, once.
6. A task that has been told, drains or rests, and has nothing left, commits what it has done since
   its last commit, and is done.
Other tasks are never affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Phase(Enum):
    """Where a task is in its life."""

    CREATED = "created: it gets back what it has kept, and starts"
    REPLACING = "replacing: as created, in the place of a task that has failed"
    RUNNING = "running"
    DRAINING = "draining: works off what cannot be read again, and is done then"
    RETIRING = "retiring: begins nothing more, for another container is about to have it"
    FAILED = "failed: begins nothing more, and another task takes its place"
    RESTING = "resting: was done before it came here, and nothing of it is called"


NEXT: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.CREATED: (Phase.RUNNING, Phase.DRAINING, Phase.RESTING),
    Phase.REPLACING: (Phase.RUNNING, Phase.FAILED),
    Phase.RUNNING: (Phase.DRAINING, Phase.RETIRING, Phase.FAILED),
    Phase.DRAINING: (Phase.RESTING, Phase.RETIRING, Phase.FAILED),
    Phase.RETIRING: (Phase.FAILED,),
    Phase.FAILED: (),
    Phase.RESTING: (Phase.RETIRING,),
}
"""The phases that may follow each. A task may be told to drain before it has started: it starts all
the same, or rests."""


class Inputs(Enum):
    """How far the inputs of a task have come, all together."""

    OPEN = "open"
    ENDED = "ended: the task is to be told when nothing is left"
    TOLD = "told: the task was told of their end"


class Op(Enum):
    """What a task does in its next step."""

    NOTHING = "nothing"
    COMMIT = "commit"
    WINDOW = "window"
    TIMER = "timer"
    END_OF_STREAM = "end of stream"
    PROCESS = "process"
    DONE = "done"


_STILL = (Phase.CREATED, Phase.REPLACING, Phase.FAILED)
_ENDING = (Phase.DRAINING, Phase.RESTING)


class Gate:
    """Counts what is under way in one task and says what may begin.

    ``whole`` says that what the task does is part of its commits, so they leave no event out.
    """

    __slots__ = (
        "async_commit",
        "commit_due",
        "committing",
        "in_flight",
        "inputs",
        "max_concurrency",
        "phase",
        "running",
        "timer_due",
        "uncommitted",
        "whole",
        "window_due",
    )

    def __init__(
        self,
        max_concurrency: int = 1,
        *,
        async_commit: bool = False,
        phase: Phase = Phase.CREATED,
    ) -> None:
        self.phase = phase
        self.inputs = Inputs.OPEN
        self.whole = False
        self.max_concurrency = max_concurrency
        self.async_commit = async_commit
        self.in_flight = 0
        self.commit_due = False
        self.window_due = False
        self.timer_due = False
        self.committing = False
        self.running: Op | None = None  # a window, a timer or the end of stream
        self.uncommitted = False  # something was done since the last commit

    def may_enter(self, phase: Phase) -> bool:
        """Return True if a phase may follow the one of now."""
        return phase in NEXT[self.phase]

    def enter(self, phase: Phase) -> None:
        """Go on to a phase."""
        assert self.may_enter(phase), f"{self.phase.name} -> {phase.name}"
        self.phase = phase

    @property
    def end_told(self) -> bool:
        """Whether the task was told of the end of its inputs."""
        return self.inputs is Inputs.TOLD

    def end_inputs(self) -> None:
        """All inputs have ended."""
        if self.inputs is Inputs.OPEN:
            self.inputs = Inputs.ENDED

    @property
    def begins(self) -> bool:
        """Whether anything may begin in this phase."""
        return self.phase not in _STILL

    @property
    def ends(self) -> bool:
        """Whether the task is to come to its end, or to that of its inputs."""
        return self.phase in _ENDING or self.inputs is Inputs.ENDED

    def next_op(self, waiting: bool, held: bool = False, closing: bool = False) -> Op:
        """What may begin now.

        ``waiting`` tells whether an event may begin, ``held`` whether others wait that must not be
        processed yet; ``closing`` that the commit that is due is for events which have yet to begin
        or to end, and only those are ``waiting``.
        """
        if self.running is not None:
            return Op.NOTHING
        if closing:
            may = waiting and (self.async_commit or not self.committing)
            return Op.PROCESS if may and self.in_flight < self.max_concurrency else Op.NOTHING
        if self.commit_due:
            free = not self.committing and (self.async_commit or not self.in_flight)
            return Op.COMMIT if free else Op.NOTHING
        if self.committing and not self.async_commit:
            return Op.NOTHING
        if self.window_due or self.timer_due:
            if self.in_flight or self.committing:
                return Op.NOTHING
            return Op.WINDOW if self.window_due else Op.TIMER
        if waiting:
            return Op.PROCESS if self.in_flight < self.max_concurrency else Op.NOTHING
        if self.in_flight or self.committing or held:
            return Op.NOTHING
        inputs = self.inputs
        if inputs is Inputs.ENDED:
            return Op.END_OF_STREAM
        if inputs is Inputs.TOLD or self.phase in _ENDING:
            return Op.COMMIT if self.uncommitted else Op.DONE
        return Op.NOTHING

    def begin(self, op: Op) -> None:
        """``op``, as given by next_op, has begun."""
        if op is Op.PROCESS:
            self.in_flight += 1
        elif op is Op.COMMIT:
            assert not self.committing
            self.commit_due = self.uncommitted = False
            self.committing = True
        else:
            assert self.running is None
            self.running = op
            if op is Op.WINDOW:
                self.window_due = False
            elif op is Op.TIMER:
                self.timer_due = False
            else:
                self.inputs = Inputs.TOLD
        self.validate()

    def end(self, op: Op) -> None:
        """``op`` has ended."""
        if op is Op.COMMIT:
            self.committing = False
            return
        self.uncommitted = True
        if op is Op.PROCESS:
            self.in_flight -= 1
            self.validate()
        else:
            self.running = None

    @property
    def complete(self) -> bool:
        """Whether the end of stream has been told and all that followed is done."""
        return self.inputs is Inputs.TOLD and self.running is None and not self.in_flight

    def validate(self) -> None:
        """Assert the rules."""
        assert 0 <= self.in_flight <= self.max_concurrency
        if self.running is not None:
            assert not self.in_flight
            assert not self.committing
        assert self.async_commit or not (self.committing and self.in_flight)
