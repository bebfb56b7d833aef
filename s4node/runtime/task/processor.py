"""The processor of a task: runs the PEs of an app, or a user's task, on events. Pure.

Rules
- A task decides what runs next, and counts what has; its processor runs it. Nothing of a processor
  runs beside anything else of it, but for events that are outstanding together.
- ``process`` and ``run`` touch nothing but the processor's own, for they may run in a thread. They
  await something in the mode AWAIT only; in others they are run at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, Protocol

from s4node.app.instances import Instances
from s4node.events.event import EventBatch
from s4node.offsets.ordered_release import OrderedRelease
from s4node.runtime.task.actions import Asked
from s4node.runtime.task.gate import Op
from s4node.runtime.task.pe_state import State


class Mode(Enum):
    """The way in which a step of a task is run."""

    LOOP = "at once, on the loop"
    AWAIT = "awaited, beside the loop"
    THREAD = "in a thread"
    TOGETHER = "event by event, several outstanding"
    CALLBACK = "begun on the loop, ended by a callback"


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
        "slot",
    )

    def __init__(self, load: Load, index: int, streams: int) -> None:
        self.load = load
        self.index = index
        self.event = load.batch.events[index]
        self.key: Hashable = None
        self.place: Hashable = self
        self.slot = -1  # in the in-flight journal
        self.began = 0.0  # infinity while it waits for a thread
        self.over = False
        self.cancel: Callable[[], None] | None = None
        self.put: list[list[Any]] = [[] for _ in range(streams)]
        self.asked = Asked()

    @property
    def batch(self) -> EventBatch:
        """The batch that holds the event."""
        return self.load.batch

    @property
    def position(self) -> str:
        """Where the event is, in words."""
        return self.load.batch.position(self.index)


EndEvent = Callable[[InFlightEvent, BaseException | None], None]
"""Ends an event that has begun, from any thread, with the error if it failed."""


class Processor(Protocol):
    """Runs the steps of a task.

    ``put`` has the events that handlers put on the app's streams, by index; ``asked`` the requests
    outside single events. ``ignored`` counts exceptions by class.
    """

    put: list[list[Any]]
    asked: Asked
    refused: int
    ignored: Counter[str]

    @property
    def instances(self) -> Mapping[str, Instances]:
        """The instances of PEs, by the PE's name."""
        ...

    @property
    def starts(self) -> Mapping[Any, Any]:
        """Where the author's task wants inputs to begin, by SSP."""
        ...

    @property
    def windowable(self) -> bool:
        """True if there is anything to run at a window."""
        ...

    @property
    def timed(self) -> bool:
        """True if ``next_due`` may be set."""
        ...

    def slow_timers(self) -> Iterable[str]:
        """The PEs whose last round of ``on_time`` took longer than its interval; each once."""
        ...

    def mode(self, op: Op, stream: str, /) -> Mode:
        """How ``op`` is run; ``stream`` matters for PROCESS only."""
        ...

    def keep(self, state: State, /) -> None:
        """Make the processor durable in ``state``; called before ``start``."""
        ...

    # -- slices, and steps that run alone

    def check(self, stream: str, event: Any, /) -> None:
        """Raise NotSaveable if the state that an event of ``stream`` belongs to cannot be saved."""
        ...

    async def process(self, batch: EventBatch, events: list[Any]) -> int:
        """Process these events, from ``batch.at`` on; returns how many it did."""
        ...

    async def run(self, op: Op, limit: int, /) -> bool:
        """Run a window, timers or the end of stream; False if timers are left for a next step."""
        ...

    # -- events that are outstanding together

    def limit(self, stream: str, /) -> int:
        """How many events of a stream may be in flight."""
        ...

    def mixes(self) -> bool:
        """Return True if events of several streams may be in flight together."""
        ...

    def by_key(self) -> bool:
        """Return True if events of one key wait for each other."""
        ...

    def place(self, entry: InFlightEvent) -> None:
        """Set the event's place in the order."""
        ...

    def begins(self, entry: InFlightEvent) -> None:
        """Prepare for an event that is about to begin; called on the loop."""
        ...

    def ended(self, entry: InFlightEvent) -> None:
        """Clean up after an event that has ended; called on the loop."""
        ...

    def style(self, stream: str, /) -> Mode:
        """How single events of a stream are run: AWAIT, THREAD or CALLBACK."""
        ...

    async def process_one(self, entry: InFlightEvent) -> None:
        """Process one event."""
        ...

    def begin_one(self, entry: InFlightEvent, end_event: EndEvent) -> None:
        """Begin one event; its callback ends it with ``end_event``."""
        ...

    def crowded(self, in_use: int) -> bool:
        """Return True if ``tidy`` should be called while ``in_use`` keys are in use."""
        ...

    async def tidy(self, in_use: Collection[Hashable] | None = None) -> None:
        """Apply the bounds of caches, except for the keys in use.

        With None, only the event that has just been processed is in flight.
        """
        ...

    def failed(self, batch: EventBatch, error: BaseException, index: int) -> None:
        """Count a failed event as refused or ignored, or raise the error that stops the app."""
        ...

    # -- time and life

    @property
    def next_due(self) -> float | None:
        """When the next timer is due; None if there is none."""
        ...

    async def start(self) -> None:
        """Called before anything else."""
        ...

    async def close(self) -> None:
        """Called after everything else."""
        ...
