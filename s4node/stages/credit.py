"""Credit: how far each producer may send ahead of what has been processed. Pure.

Rules
- A limit is a number of the producer's own sequence: it may send events below it. A limit never
  goes back, so a late verdict does no harm.
- Active producers share the stage's capacity evenly, in events and, by the weight of their earlier
  events, in bytes; each may always have one event in flight. A producer that has just joined is
  active; one that sends nothing for a while is not, and has no share.
- The deserializer, which several partitions have in common, is shared as well, but each lane
  may have a quarter: most of many lanes have little in flight, and small shares make small frames.
  Frames beyond its capacity are left to their producers.
- A limit grows by a quarter of the share or not at all: small grants would make small frames.
- While a stage that withholds is over capacity, a producer with events in flight gets no more, and
  one without gets its share: a held producer is remembered and served when there is room again. A
  stage that drops instead holds no producer.
- A producer may get no more, whatever the stage has, while there is no room where the stream leads.
"""

from __future__ import annotations

from collections.abc import KeysView, Sized
from typing import Generic, TypeVar

from s4node.stages.stage import Gauge, Stage

P = TypeVar("P")

MOST_PARTS = 4
"""Credit of a stage common to several partitions is divided into at most so many parts."""

UNKNOWN_WEIGHT = 1024
"""The assumed bytes of an event until its producer has sent one."""


class Credit(Generic[P]):
    """The credit of one stage, and of its deserializer, among the producers ``P`` (hashable)."""

    __slots__ = ("_before", "_members", "_recent", "_stages", "held", "withholds")

    def __init__(self, stage: Stage) -> None:
        self._stages: tuple[Gauge, ...] = (stage, stage.deserializer)
        self._members: set[P] = set()
        self._recent: set[P] = set()
        self._before: set[P] = set()
        self.held: dict[P, None] = {}  # producers, in the order in which they were
        self.withholds = all(one.executor.withholds for one in self._stages)
        """True if the stage makes producers wait rather than dropping their events."""

    def join(self, producer: P) -> None:
        """Add a producer that begins to feed the stage."""
        self._members.add(producer)
        self.active(producer)

    def remove(self, producer: P) -> None:
        """Remove a producer; the others share its credit."""
        self._sharing(-(producer in self._recent or producer in self._before))
        for group in (self._members, self._recent, self._before):
            group.discard(producer)
        self.held.pop(producer, None)

    def active(self, producer: P) -> None:
        if producer in self._members and producer not in self._recent:
            self._recent.add(producer)
            self._sharing(producer not in self._before)

    def tick(self) -> None:
        """End a period: a producer that is inactive for two of them loses its share."""
        self._sharing(-len(self._before - self._recent))
        self._before, self._recent = self._recent, set()

    def _sharing(self, more: int) -> None:
        for stage in self._stages:
            stage.sharers += more

    @property
    def full(self) -> bool:
        if self.withholds:
            for stage in self._stages:
                if stage.withheld:
                    return True
        return False

    @property
    def share(self) -> int:
        """Events that each active producer may have between sending and processed."""
        return self.share_of(0)

    def share_of(self, weight: float) -> int:
        """The ``share`` of a producer whose events take ``weight`` bytes each."""
        weight = weight or UNKNOWN_WEIGHT
        share = self._stages[0].share(weight, max(1, self._stages[0].sharers))
        for stage in self._stages[1:]:
            share = min(share, stage.share(weight, max(1, min(stage.sharers, MOST_PARTS))))
        return max(1, share)

    def limit(self, producer: P, done: int, limit: int, share: int) -> int:
        """The new limit of a producer with this ``share``, given up to which number it is done."""
        if limit > done and self.full:
            self.held[producer] = None
            return limit
        grown = done + share
        return grown if (grown - limit) * 4 >= share else limit

    def release(self) -> KeysView[P]:
        """The held producers, once there is room; empty before that."""
        released: dict[P, None] = {}
        if self.held and not self.full:
            released, self.held = self.held, released
        return released.keys()


class Room:
    """The room where streams lead; here there always is some. ``full`` is empty if nothing is."""

    full: Sized = ()

    def stops(self, stream: str, partition: int) -> bool:  # noqa: ARG002
        """Return True if programs get no more credit for a stream in a partition."""
        return False


class Stopped(Generic[P]):
    """The producers of ``stream`` that get no more credit until there is ``room`` where it leads,
    by partition."""

    def __init__(self, room: Room, stream: str) -> None:
        self.producers: dict[P, int] = {}
        self.room = room
        self._stream = stream

    def stops(self, producer: P, partition: int) -> bool:
        """Return True if a producer gets no more credit, and note it if so."""
        if not self.room.stops(self._stream, partition):
            return False
        self.producers[producer] = partition
        return True

    def release(self) -> list[P]:
        """The noted producers that may go on."""
        found = self.producers.items()
        free = [one for one, at in found if not self.room.stops(self._stream, at)]
        for producer in free:
            del self.producers[producer]
        return free
