"""The processor of a task: runs the PEs of an app, or a user's task, on events. Pure.

Rules
- A task decides what runs next and counts it; its processor runs it. A processor runs one thing at
  a time, except events that are in flight together.
- ``process`` and ``run`` may run in a thread, so they touch only what belongs to the processor.
- Only a step in the mode AWAIT awaits anything; a step in another mode ends at once.
"""

# ruff: noqa: B027 - optional methods do nothing by default

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from s4node.app.instances import Instances
from s4node.events.event import EventBatch
from s4node.offsets.ordered_release import OrderedRelease
from s4node.runtime.event_time.task_times import TaskTimes
from s4node.runtime.task.actions import Asked
from s4node.runtime.task.gate import Op
from s4node.runtime.task.poison.failed_hooks import FailedHooks, LeftOutCall

if TYPE_CHECKING:
    from s4node.state.task_state import TaskState


class Mode(Enum):
    """The way in which a step of a task is run."""

    LOOP = "at once, on the loop"
    AWAIT = "awaited, beside the loop"
    THREAD = "in a thread"
    TOGETHER = "event by event, several outstanding"
    CALLBACK = "begun on the loop, ended by a callback"


LOOP, AWAIT, THREAD, TOGETHER, CALLBACK = Mode


class Load:
    """A batch whose events are in flight: how many have not ended, and are not released."""

    __slots__ = ("batch", "left", "release", "unreleased")

    def __init__(
        self, batch: EventBatch, release: OrderedRelease[InFlightEvent | EventBatch] | None
    ) -> None:
        self.batch = batch
        self.left = self.unreleased = len(batch.events) - batch.at
        self.release = release


class InFlightEvent:
    """One event that runs beside others.

    ``put`` has the events that its handler put on streams, ``asked`` its requests. ``over`` is True
    if it timed out: the result of its handler is ignored. ``cancel`` stops the handler, if it can
    be stopped.
    """

    __slots__ = (
        "asked",
        "began",
        "cancel",
        "event",
        "index",
        "key",
        "load",
        "over",
        "place",
        "put",
    )

    def __init__(self, load: Load, index: int, streams: int) -> None:
        self.load = load
        self.index = index
        self.event = load.batch.events[index]
        self.key: Hashable = None
        self.place: Hashable = self
        self.began = 0.0  # infinity while it waits for a thread
        self.over = False
        self.cancel: Callable[[], None] | None = None
        self.put: list[list[Any]] = [[] for _ in range(streams)]
        self.asked = Asked()

    @property
    def batch(self) -> EventBatch:
        return self.load.batch

    @property
    def position(self) -> str:
        return self.load.batch.position(self.index)


EndEvent = Callable[[InFlightEvent, BaseException | None], None]
"""Ends an event that has begun, from any thread, with the error if it failed."""


class Processor(ABC):
    """Runs the steps of a task.

    ``put`` has the events that handlers put on the app's streams, by index; ``asked`` the requests
    outside single events. ``instances`` are those of PEs, by the PE's name; ``ignored`` counts
    exceptions by class. ``starts`` has the starting places that the user's task asked for, by SSP.
    ``times`` is
    about event time. ``called`` counts the calls of the last step that was not for events.
    """

    instances: dict[str, Instances]
    times: TaskTimes
    starts: Mapping[Any, Any] = {}
    called = 1
    calls_first = False
    """True if events wait until the calls that are due were made."""
    windowable = False
    """True if there is anything to run at a window."""
    mixes = False
    """True if events of several streams may be in flight together."""
    by_key = True
    """True if events of one key wait for each other."""

    def __init__(self, streams: int) -> None:
        self.put: list[list[Any]] = [[] for _ in range(streams)]
        self.asked = Asked()
        self.refused = 0
        self.ignored: Counter[str] = Counter()

    @property
    @abstractmethod
    def timed(self) -> bool:
        """True if ``next_due`` may be set."""

    @property
    @abstractmethod
    def next_due(self) -> float | None:
        """When the next timer is due; None if there is none."""

    def slow_timers(self) -> Iterable[str]:
        """Return the PEs with a round of ``on_time`` longer than its interval; each PE once."""
        return ()

    def succeed(self, before: Processor, /) -> None:
        """Go on with the counts of the processor of a task that has failed."""

    def cost_statistics(self) -> dict[str, Any]:
        """The times, calls, errors and hot keys of PEs, as fields of statistics."""
        return {}

    def leave_out(self, failed: FailedHooks, /) -> None:
        """Leave out the calls of windows and timers that have failed."""

    def left_out_calls(self) -> Iterable[LeftOutCall]:
        return ()

    @abstractmethod
    def mode(self, op: Op, stream: str, /) -> Mode:
        """The mode of ``op``; ``stream`` matters for PROCESS only."""

    @abstractmethod
    def attach_state(self, state: TaskState, /) -> None:
        """Make the processor durable in ``state``; ``restore`` and ``start`` follow."""

    def restore(self, limit: int, /) -> bool:  # noqa: ARG002
        """Restore up to ``limit`` saved windows or timers; return True if there may be more."""
        return False

    def attach_loop(self, in_loop: Callable[..., None], /) -> None:
        """Take what calls a function in the loop's thread, from any thread, and wakes the task."""

    def events_done(self, batch: EventBatch, /) -> None:
        """Note that all events of a batch, and of those before it from its source, are done."""

    # -- slices, and steps that run alone

    @abstractmethod
    async def process(self, batch: EventBatch, events: list[Any]) -> int:
        """Process ``events``, which begin at ``batch.at``; return how many were processed."""

    @abstractmethod
    async def run(self, op: Op, limit: int, /) -> bool:
        """Run a window, timers or the end of stream; return False if timers are left."""

    @abstractmethod
    def failed(self, batch: EventBatch, error: BaseException, index: int) -> None:
        """Count a failed event as refused or ignored, or raise the error that stops the app."""

    # -- events in flight together

    @abstractmethod
    def limit(self, stream: str, /) -> int:
        """The number of events of a stream that may be in flight."""

    @abstractmethod
    def set_order_key(self, entry: InFlightEvent) -> None:
        """Set the event's place in the order."""

    def before_event(self, entry: InFlightEvent) -> None:
        """Prepare for an event that is about to begin; called on the loop."""

    def after_event(self, entry: InFlightEvent) -> None:
        """Clean up after an event that has ended; called on the loop."""

    @abstractmethod
    def style(self, stream: str, /) -> Mode:
        """The mode of single events of a stream: AWAIT, THREAD or CALLBACK."""

    @abstractmethod
    async def process_one(self, entry: InFlightEvent) -> None:
        """Process one event."""

    def begin_one(self, entry: InFlightEvent, end_event: EndEvent) -> None:
        raise NotImplementedError

    def crowded(self, _in_use: int) -> bool:
        """Return True if ``tidy`` should be called while ``in_use`` keys are in use."""
        return False

    async def tidy(self, in_use: Collection[Hashable] | None = None) -> None:
        """Apply the bounds of caches, except for the keys in use.

        With None, only the event that has just been processed is in flight.
        """

    # -- life

    @abstractmethod
    async def start(self) -> None:
        """Called before anything else."""

    async def close(self) -> None:
        """Called after everything else."""
