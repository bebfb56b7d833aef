"""What runs on the events of a task: the PEs of an app, or an object of a user's. Pure.

Rules
- A task decides what runs next, and counts what has; its processor runs it. Nothing of a processor
  runs beside anything else of it, but for events that are outstanding together.
- ``process`` and ``run`` touch nothing but the processor's own, for they may run in a thread. They
  await something in the mode AWAIT only; in others they are run at once.
"""

# ruff: noqa: B027 - what a processor need not have does nothing

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any

from s4node.app.instances import Instances
from s4node.events.event import EventBatch
from s4node.offsets.ordered_release import OrderedRelease
from s4node.runtime.task.actions import Asked
from s4node.runtime.task.gate import Op
from s4node.runtime.task.pe_state import State


class Mode(Enum):
    """How a step of a task is run."""

    LOOP = "at once, on the loop"
    AWAIT = "awaited, beside the loop"
    THREAD = "in a thread"
    TOGETHER = "event by event, several outstanding"
    CALLBACK = "begun on the loop, ended by a callback"


class Load:
    """A batch of which events were looked at; so many have not ended, and are not released."""

    __slots__ = ("batch", "left", "release", "unreleased")

    def __init__(
        self, batch: EventBatch, release: OrderedRelease[InFlightEvent | EventBatch] | None
    ) -> None:
        self.batch = batch
        self.left = self.unreleased = len(batch.events) - batch.at
        self.release = release


class InFlightEvent:
    """One event that runs beside others. ``put`` is what it has put on streams, ``asked`` what it
    asks for. ``over`` says that it has taken too long: what still runs of it counts for nothing;
    ``cancel`` ends that, where there is anything to cancel."""

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
        self.slot = -1  # where it is told that the event is under way
        self.began = 0.0  # infinity while it waits for a thread
        self.over = False
        self.cancel: Callable[[], None] | None = None
        self.put: list[list[Any]] = [[] for _ in range(streams)]
        self.asked = Asked()

    @property
    def batch(self) -> EventBatch:
        """The batch that it is of."""
        return self.load.batch

    @property
    def position(self) -> str:
        """Where the event is, in words."""
        return self.load.batch.position(self.index)


EndEvent = Callable[[InFlightEvent, BaseException | None], None]
"""Ends an event that was begun, from whatever thread, with the error at which it has failed."""


class Processor(ABC):
    """Runs what a task tells it to.

    ``put`` is what it puts on the app's streams, by their index; ``asked`` what it asks for beside
    single events. ``instances`` are those of PEs, by the PE's name, ``ignored`` exceptions by their
    class. ``starts`` says where inputs are to begin, by SSP. ``mixes`` tells whether events of
    several streams may be outstanding, ``by_key`` whether those of one key wait for each other.
    """

    instances: Mapping[str, Instances]
    starts: Mapping[Any, Any] = {}
    windowable = False
    """Whether there is anything to run at a window."""
    mixes = False
    by_key = True

    def __init__(self, streams: int) -> None:
        self.put: list[list[Any]] = [[] for _ in range(streams)]
        self.asked = Asked()
        self.refused = 0
        self.ignored: Counter[str] = Counter()

    @property
    @abstractmethod
    def timed(self) -> bool:
        """Whether ``next_due`` is worth a look."""

    @property
    @abstractmethod
    def next_due(self) -> float | None:
        """When the next timer is due; None if there is none."""

    def slow_timers(self) -> Iterable[str]:
        """Names of PEs of which a round of ``on_time`` has taken longer than its interval; each is
        given once."""
        return ()

    @abstractmethod
    def mode(self, op: Op, stream: str, /) -> Mode:
        """How ``op`` is run; PROCESS for the events of ``stream``."""

    @abstractmethod
    def keep(self, state: State, /) -> None:
        """Keep what is to outlive the process in ``state``; before ``start``, if at all."""

    # -- slices and what runs alone

    def check(self, stream: str, event: Any, /) -> None:
        """Raise NotSaveable where what an event of ``stream`` is for cannot be saved."""

    @abstractmethod
    async def process(self, batch: EventBatch, events: list[Any]) -> int:
        """Process these events, from ``batch.at`` on; returns how many it did."""

    @abstractmethod
    async def run(self, op: Op, limit: int, /) -> bool:
        """Run a window, timers or the end of stream; False if timers are left for a next step."""

    @abstractmethod
    def failed(self, batch: EventBatch, error: BaseException, index: int) -> None:
        """An event could not be processed: count it as refused or ignored, or raise what stops
        the app."""

    # -- events that are outstanding together

    @abstractmethod
    def limit(self, stream: str, /) -> int:
        """How many events of a stream may be outstanding."""

    @abstractmethod
    def place(self, entry: InFlightEvent) -> None:
        """Set the place of an event in the order."""

    def begins(self, entry: InFlightEvent) -> None:
        """An event is about to begin, on the loop."""

    def ended(self, entry: InFlightEvent) -> None:
        """An event has ended, on the loop."""

    @abstractmethod
    def style(self, stream: str, /) -> Mode:
        """How single events of a stream are run: AWAIT, THREAD or CALLBACK."""

    @abstractmethod
    async def process_one(self, entry: InFlightEvent) -> None:
        """Process one event."""

    def begin_one(self, entry: InFlightEvent, end_event: EndEvent) -> None:
        """Begin one event that a callback ends, by ``end_event``."""
        raise NotImplementedError

    def crowded(self, _in_use: int) -> bool:
        """Whether to ``tidy`` while so many keys are in use."""
        return False

    async def tidy(self, in_use: Collection[Hashable] | None = None) -> None:
        """Nothing is outstanding but the event that has just been processed; or what is is at these
        places."""

    # -- life

    @abstractmethod
    async def start(self) -> None:
        """Called before anything else."""

    async def close(self) -> None:
        """Called after everything else."""
