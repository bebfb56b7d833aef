"""Events of one task that are outstanding together: begun, and not yet ended. Pure.

Rules
- At most ``limit`` are outstanding. In the order of arrival each begins when there is a place; in
  the order of keys one waits for those of its key that came before it, and stops no other.
- Events are looked at ahead of their turn only to find other keys.
- A batch that is put aside and comes back is the same load: it is done when all of it has ended.
- An event ends when it is told to, once, from whatever thread; it lands in the loop's thread.
- What is read from an input that can be read again is released in the order in which it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from s4node.events.event import EventBatch
from s4node.offsets.ordered_release import Release
from s4node.runtime.task.coordinator_requests import Asked
from s4node.stages.key_order import KeyOrder

_AHEAD = 4
"""Events looked at for each that may be outstanding, to find other keys."""


class Load:
    """A batch of which events were looked at; so many have not ended, and are not released."""

    __slots__ = ("batch", "left", "release", "unreleased")

    def __init__(self, batch: EventBatch, release: Release[Flight] | None) -> None:
        self.batch = batch
        self.left = self.unreleased = len(batch.events) - batch.at
        self.release = release


class Flight:
    """One event. ``put`` is what it has put on streams, ``asked`` what it asks for."""

    __slots__ = ("asked", "began", "event", "index", "key", "load", "place", "put", "slot")

    def __init__(self, load: Load, index: int, streams: int) -> None:
        self.load = load
        self.index = index
        self.event = load.batch.events[index]
        self.key: Hashable = None
        self.place: Hashable = self
        self.slot = -1  # where it is told that the event is under way
        self.began = 0.0
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


class Flights:
    """The events of one task that were looked at and have not ended.

    ``landed(flight, error)`` may be called from any thread; what came so is given by ``arrivals``.
    """

    def __init__(self, limit: int, streams: int) -> None:
        self.order: KeyOrder[Flight] = KeyOrder(limit)
        self.stream: str | None = None  # the only one whose events may be outstanding now
        self.on_arrival: Callable[[], None] = lambda: None
        self._streams = streams
        self._load: Load | None = None
        self._aside: dict[Hashable, Load] = {}  # by source, one at most each
        self._begun: dict[Flight, None] = {}
        self._looked: dict[Flight, None] = {}  # and not ended
        self._arrived: deque[tuple[Flight, BaseException | None]] = deque()
        self._releases: dict[Hashable, Release[Flight]] = {}

    @property
    def busy(self) -> bool:
        """Whether some event that was looked at has not ended."""
        return bool(self.order.outstanding or self.order.waiting)

    def wants(self, by_key: bool) -> bool:
        """Whether to look at another event."""
        order = self.order
        if by_key:
            return order.waiting < order.limit * _AHEAD
        return not order.waiting and order.outstanding < order.limit

    def look(self, batch: EventBatch, *, in_order: bool) -> Flight:
        """The next event of a batch; ``add`` it then. Whether its place is part of commits, and
        events are released ``in_order``."""
        load = self._load
        if load is None or load.batch is not batch:
            if load is not None and load.batch.at < len(load.batch.events):
                self._aside[load.batch.source] = load
            load = self._load = self._aside.pop(batch.source, None)
        if load is None or load.batch is not batch:
            release = None
            if in_order:
                release = self._releases.setdefault(batch.source, Release())
            load = self._load = Load(batch, release)
        flight = Flight(load, batch.at, self._streams)
        self._looked[flight] = None
        if load.release is not None:
            load.release.begin(flight)
        return flight

    def add(self, flight: Flight) -> None:
        """Let it take its place."""
        self.order.add(flight.place, flight)

    def begin(self, now: float) -> Flight | None:
        """Begin an event that may be begun now; None if there is none."""
        begun = self.order.begin()
        if begun is None:
            return None
        flight = begun[1]
        flight.began = now
        self._begun[flight] = None
        return flight

    def end(self, flight: Flight) -> None:
        """An event has ended."""
        del self._begun[flight]
        del self._looked[flight]
        self.order.end(flight.place)
        flight.load.left -= 1

    @property
    def unended(self) -> list[Flight]:
        """The events that were looked at and have not ended, in their order."""
        return list(self._looked)

    def oldest(self) -> Flight | None:
        """The event that began first of those that are outstanding."""
        return next(iter(self._begun), None)

    def landed(self, flight: Flight, error: BaseException | None) -> None:
        """An event has ended, in whatever thread."""
        self._arrived.append((flight, error))
        self.on_arrival()

    def arrivals(self) -> Iterator[tuple[Flight, BaseException | None]]:
        """What has ended in whatever thread since the last time."""
        while self._arrived:
            yield self._arrived.popleft()

    def resume(self) -> Iterator[Flight]:
        """A commit has been taken; what is released by that."""
        for release in self._releases.values():
            if release.stopped:
                yield from release.resume()
