"""The gate of a task: the phase of its life, what it may do next, and how much of it. Pure.

``NEXT`` says which phases may follow each phase. The rest of the gate's state is momentary: what is
due, what runs, and how far the inputs have come.

Rules, highest first
1. A window, a timer or the end of stream runs alone: nothing else of its task runs beside it.
2. A due commit, window or timer, in this order, stops new events, waits for the events in flight,
   and runs once, however often it was due. If events may have been overtaken by later ones that
   are done, a commit lets the overtaken ones begin first.
3. A commit is taken in one call, while no event is in flight; with ``async_commit`` some may be. It
   is written beside the task, whose events go on (:mod:`s4node.runtime.commit.committer`).
4. At most ``max_concurrency`` events are in flight. Waiting events may be held: by a full stage
   that their stream leads to, or by its rate.
5. A task whose inputs have all ended, with nothing left, is notified once.
6. A task that was notified, drains or rests commits, once nothing is left, the work since its last
   commit, and is done.
Other tasks are never affected.

A step is bounded by events and by time. The cost of an event is estimated from earlier steps of its
kind (a stream or a timer). The estimate rises at once and falls slowly, so a slow handler gets
small steps. The first step of a kind is small, because the cost of its handlers, and what they put
on streams, are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_FIRST = 8  # events of a first step


class Phase(Enum):
    CREATED = "created: restores its state, and starts"
    REPLACING = "replacing: as created, in place of a task that has failed"
    RUNNING = "running"
    DRAINING = "draining: finishes the events that cannot be replayed, and is done then"
    RETIRING = "retiring: begins nothing more, because another container takes it over"
    FAILED = "failed: begins nothing more, and another task replaces it"
    RESTING = "resting: was done before it came here; none of its handlers is called"


NEXT: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.CREATED: (Phase.RUNNING, Phase.DRAINING, Phase.RESTING),
    Phase.REPLACING: (Phase.RUNNING, Phase.FAILED),
    Phase.RUNNING: (Phase.DRAINING, Phase.RETIRING, Phase.FAILED),
    Phase.DRAINING: (Phase.RESTING, Phase.RETIRING, Phase.FAILED),
    Phase.RETIRING: (Phase.FAILED,),
    Phase.FAILED: (),
    Phase.RESTING: (Phase.RETIRING,),
}
"""The phases that may follow each phase. A task that drains before its start starts, or rests."""


class Inputs(Enum):
    OPEN = "open"
    ENDED = "ended: the task is notified when nothing is left"
    NOTIFIED = "notified: on_end_of_stream was called"


class Op(Enum):
    NOTHING = "nothing"
    COMMIT = "commit"
    WINDOW = "window"
    TIMER = "timer"
    END_OF_STREAM = "end of stream"
    PROCESS = "process"
    DONE = "done"


# A name of the module is found in a tenth of the time of an attribute of an Enum (CPython 3.11): a
# step looks at twenty.
CREATED, REPLACING, RUNNING, DRAINING, RETIRING, FAILED, RESTING = Phase
OPEN, ENDED, NOTIFIED = Inputs
NOTHING, COMMIT, WINDOW, TIMER, END_OF_STREAM, PROCESS, DONE = Op

_STILL = (CREATED, REPLACING, FAILED)
_CALLING = (RUNNING, DRAINING)
_ENDING = (DRAINING, RESTING)


@dataclass(eq=False, repr=False, slots=True)
class Gate:
    """Counts what runs in one task, and says what may begin.

    ``whole`` says that output or state is part of the task's commits, so a commit covers every
    event that is done.
    """

    max_concurrency: int = 1
    async_commit: bool = False
    phase: Phase = CREATED
    inputs: Inputs = OPEN
    whole: bool = False
    in_flight: int = 0
    commit_due: bool = False
    window_due: bool = False
    timer_due: bool = False
    running: Op | None = None  # a window, a timer or the end of stream
    uncommitted: bool = False  # work was done since the last commit

    def may_enter(self, phase: Phase) -> bool:
        return phase in NEXT[self.phase]

    def enter(self, phase: Phase) -> None:
        assert self.may_enter(phase), f"{self.phase.name} -> {phase.name}"
        self.phase = phase

    @property
    def end_notified(self) -> bool:
        return self.inputs is NOTIFIED

    def end_inputs(self) -> None:
        if self.inputs is OPEN:
            self.inputs = ENDED

    def open_inputs(self) -> None:
        """Notify the task of the end again, when what it has put has arrived."""
        self.inputs = OPEN

    @property
    def begins(self) -> bool:
        """True if anything may begin in this phase."""
        return self.phase not in _STILL

    @property
    def calls(self) -> bool:
        """True if windows and timers may be called in this phase."""
        return self.phase in _CALLING

    @property
    def ends(self) -> bool:
        return self.phase in _ENDING or self.inputs is ENDED

    def next_op(self, waiting: bool, held: bool = False, closing: bool = False) -> Op:
        """The operation that may begin now.

        ``waiting`` says that an event may begin, ``held`` that events wait which must not begin
        yet. ``closing`` says that the due commit waits for events that have yet to begin or end;
        only those count as ``waiting``.
        """
        if self.running is not None:
            return NOTHING
        if closing:
            return PROCESS if waiting and self.in_flight < self.max_concurrency else NOTHING
        if self.commit_due:
            return COMMIT if self.async_commit or not self.in_flight else NOTHING
        if self.window_due or self.timer_due:
            if self.in_flight:
                return NOTHING
            return WINDOW if self.window_due else TIMER
        if waiting:
            return PROCESS if self.in_flight < self.max_concurrency else NOTHING
        if self.in_flight or held:
            return NOTHING
        inputs = self.inputs
        if inputs is ENDED:
            return END_OF_STREAM
        if inputs is NOTIFIED or self.phase in _ENDING:
            return COMMIT if self.uncommitted else DONE
        return NOTHING

    def begin_step(self, op: Op) -> None:
        if op is PROCESS:
            self.in_flight += 1
            assert self.in_flight <= self.max_concurrency
            assert self.running is None
            return
        if op is COMMIT:
            assert self.running is None
            assert self.async_commit or not self.in_flight
            self.commit_due = self.uncommitted = False
        else:
            assert self.running is None
            self.running = op
            if op is WINDOW:
                self.window_due = False
            elif op is TIMER:
                self.timer_due = False
            else:
                self.inputs = NOTIFIED
        self.validate()

    def end_step(self, op: Op) -> None:
        if op is COMMIT:
            return
        self.uncommitted = True
        if op is PROCESS:
            assert self.in_flight > 0
            self.in_flight -= 1
        else:
            self.running = None

    @property
    def complete(self) -> bool:
        """True if the task was notified of the end of stream, and all that followed is done."""
        return self.inputs is NOTIFIED and self.running is None and not self.in_flight

    def validate(self) -> None:
        assert 0 <= self.in_flight <= self.max_concurrency
        if self.running is not None:
            assert not self.in_flight


class Pace:
    """The step sizes of one task; ``seconds`` is the total time spent processing.

    ``share`` is the loop's: the seconds of the task's steps, which decide who has the next step.
    """

    __slots__ = ("_costs", "_unknown", "max_events", "max_seconds", "seconds", "share")

    def __init__(self, max_events: int, max_seconds: float) -> None:
        self.max_events = max_events
        self.max_seconds = max_seconds
        self.seconds = 0.0
        self.share = 0.0
        self._costs: dict[str, float] = {}
        self._unknown = max_seconds / min(_FIRST, max_events)

    def events(self, kind: str) -> int:
        """The size of the next step of a kind: 1 to ``max_events``."""
        fit = int(self.max_seconds / self._costs.get(kind, self._unknown))
        return self.max_events if fit >= self.max_events else fit or 1

    def took(self, stream: str, events: int, seconds: float) -> None:
        """Count the time of a step that processed events, and learn from it."""
        self.seconds += seconds
        self.learn(stream, events, seconds)

    def learn(self, kind: str, events: int, seconds: float) -> None:
        """Update the estimate of a kind from a step of ``events`` events, or instances."""
        if events:
            before = self._costs.get(kind, self._unknown)
            cost = max(seconds / events, 1e-9)
            self._costs[kind] = cost if cost > before else before * 0.5 + cost * 0.5
