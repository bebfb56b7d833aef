"""A stage: a bounded queue of batches before something that processes them, and its credit. Pure.

Rules
- A batch that is processed stays at the head of the queue until it is finished.
- Sizes count events, not batches; bytes are counted beside them.
- A frame counts in the deserializer of its stream, too, until it is decoded at the head. All stages
  of the stream in a container have the same one, so it bounds them together.
- A stage takes every batch. Feeders of live events ask its executor first; those of replayable
  inputs and of restored events do not have to. Being over capacity is possible for a moment
  (batches are not cut to fit) and stops further credit.
- Events that the app itself has put on a stream leave before events from outside.
- Credit says how far each producer may send ahead of what has been processed. A limit is a number
  of the producer's own sequence: it may send events below it. A limit never goes back, so a late
  verdict does no harm.
- Active producers share the capacity evenly, in events and, by the weight of their earlier events,
  in bytes; each may always have one event in flight. A producer that has just joined is active; one
  that sends nothing for a while is not, and has no share. The deserializer is shared as well, but
  each lane may have a quarter: most of many lanes have little in flight, and small shares make
  small frames. Frames beyond its capacity are left to their producers.
- A limit grows by a quarter of the share or not at all: small grants would make small frames.
- While a stage that withholds is over capacity, a producer with events in flight gets no more, and
  one without gets its share: a held producer is remembered and served when there is room again. A
  stage that drops instead holds no producer. A producer may get no more, whatever the stage has,
  while there is no room where the stream leads.
- If a stream feeds itself, events that its own app puts on it go to the ``overflow`` once the stage
  is full, and come back in order: there is always room for them, and memory stays bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, KeysView, Sized
from typing import Any, Generic, Protocol, TypeVar

from s4node.events.event import EventBatch
from s4node.metrics.statistics import StageStatistics
from s4node.stages.executors import UNLIMITED, Executor, StageSettings, executor_of


class Overflow(Protocol):
    """An unbounded queue for batches that the app has put."""

    def append(self, batch: EventBatch) -> None: ...

    def pop(self) -> EventBatch | None: ...

    def clear(self) -> None: ...


_FEEDBACK_GRANT = 2048


B = TypeVar("B", bound=EventBatch)
P = TypeVar("P")


def put_back(waiting: deque[B], rest: B) -> None:
    """Queue the rest of a batch after batches that may overtake it, and before the others."""
    later = [batch for batch in waiting if rest.precedes(batch)]
    sooner = [batch for batch in waiting if not rest.precedes(batch)] if later else waiting
    entries = [*sooner, rest, *later]
    waiting.clear()
    waiting.extend(entries)


class Gauge:
    """The load and the counts of a stage, apart from any queue."""

    __slots__ = (
        "_waited_last",
        "admitted",
        "bytes",
        "capacity",
        "depth",
        "executor",
        "highest",
        "in_flight",
        "max_bytes",
        "partition",
        "settings",
        "sharers",
        "shed",
        "spilled",
    )

    def __init__(
        self,
        settings: StageSettings,
        partition: int | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.settings = settings
        self.partition = partition
        self.executor = executor or executor_of(settings)
        self.capacity = settings.capacity
        self.max_bytes = settings.max_bytes
        self.depth = 0
        self.bytes = 0
        self.highest = 0
        self.admitted = 0
        self.in_flight = 0
        self.spilled = 0
        self.sharers = 0
        """Producers that share the credit for it, by partition."""
        self.shed: Counter[str] = Counter()
        self._waited_last = 0.0

    def came(self, events: int, size: int) -> None:
        """Count a batch that has come in."""
        self.admitted += events
        self.depth += events
        self.bytes += size
        if self.depth > self.highest:
            self.highest = self.depth

    def went(self, events: int, size: int) -> None:
        self.depth -= events
        self.bytes -= size

    def dropped(self, events: int, reason: str) -> None:
        self.shed[reason] += events

    @property
    def full(self) -> bool:
        """Return True if the stage holds as many events or bytes as its capacity."""
        return self.depth >= self.capacity or self.bytes >= self.max_bytes

    @property
    def grant(self) -> int:
        """The number of unprocessed events that all producers together may have sent."""
        return self.capacity

    def share(self, weight: float, parts: int) -> int:
        """One of ``parts`` shares of the grant, in events of ``weight`` bytes each."""
        return min(self.grant // parts, int(self.max_bytes / (parts * weight)))

    @property
    def withheld(self) -> bool:
        return self.full

    @property
    def holds(self) -> bool:
        """True if tasks and sources of this process have to wait before they put more."""
        return self.depth >= self.capacity * self.executor.waits_from or (
            self.bytes >= self.max_bytes * self.executor.waits_from
        )

    @property
    def roomy(self) -> bool:
        """Return True if a quarter of the stage is free, so that held streams may resume."""
        return self.depth * 4 <= self.capacity * 3 and self.bytes * 4 <= self.max_bytes * 3

    def statistics(self) -> StageStatistics:
        return StageStatistics(
            self.settings.stage,
            self.settings.stream,
            self.partition,
            self.settings.executor,
            self.depth,
            self.bytes,
            self.capacity,
            self.max_bytes,
            self.highest,
            self.admitted,
            dict(self.shed),
            self.in_flight,
            self.spilled,
            self._waited_last,
        )


class Stage(Gauge):
    """The queue of one stream in one partition, in order of arrival.

    ``head`` is the batch that was taken and is not finished; ``loaded`` says that it is decoded.
    ``deserializer`` counts the frames that are not decoded, of all stages of the stream.
    """

    __slots__ = ("_inner", "_outer", "deserializer", "head", "loaded", "overflow")

    def __init__(
        self,
        settings: StageSettings | int,
        partition: int | None = None,
        executor: Executor | None = None,
        deserializer: Gauge | None = None,
    ) -> None:
        if isinstance(settings, int):
            settings = StageSettings(capacity=settings)
        super().__init__(settings, partition, executor)
        self.deserializer = deserializer or Gauge(StageSettings(capacity=UNLIMITED))
        self.overflow: Overflow | None = None
        self.head: EventBatch | None = None
        self.loaded = False
        self._inner: deque[EventBatch] = deque()
        self._outer: deque[EventBatch] = deque()

    def offer(self, batch: EventBatch, now: float = 0.0) -> None:
        """Queue a batch after the others of its kind."""
        batch.offered_at = now
        size = batch.size
        if batch.receipt is not None:
            if batch.is_frame:
                self.frame_came(size, batch.bytes)
            else:
                self.came(size, batch.bytes)
            self._outer.append(batch)
            return
        if self.overflow is not None and (self.spilled or (self.depth and self.full)):
            self.came(size, 0)
            self.spilled += size
            self.overflow.append(batch)
            return
        self.came(size, batch.bytes)
        self._inner.append(batch)

    def take_in(self, batch: EventBatch, now: float) -> bool:
        """Queue a batch; return True if there was no head, so that there is one now."""
        if self.head is None and not self.depth:
            batch.offered_at = now
            came = self.frame_came if batch.is_frame else self.came
            came(batch.size, batch.bytes)
            self._set_head(batch, now)
            return True
        self.offer(batch, now)
        if self.head is not None:
            return False
        self.poll(now)
        return True

    def frame_came(self, events: int, size: int) -> None:
        """Count a frame here and in the deserializer."""
        for gauge in (self, self.deserializer):
            gauge.admitted += events
            gauge.bytes += size
            gauge.depth = depth = gauge.depth + events
            if depth > gauge.highest:
                gauge.highest = depth

    def frame_went(self, events: int, size: int) -> None:
        """Count a frame that has not been decoded as gone."""
        self.deserializer.went(events, size)
        self.went(events, size)

    def poll(self, now: float = 0.0) -> EventBatch | None:
        """Take the next batch to the head, if there is one; its events stay until ``release``."""
        if self._inner:
            batch = self._inner.popleft()
        elif self.spilled:
            batch = self._unspilled()
        elif self._outer:
            batch = self._outer.popleft()
        else:
            self.head = None
            return None
        self._set_head(batch, now)
        return batch

    def _set_head(self, batch: EventBatch, now: float) -> None:
        self.head, self.loaded = batch, False
        self.in_flight += batch.size
        self._waited_last = now - batch.offered_at

    def load(self) -> None:
        """Decode the head; if that takes long, queue the rest of it."""
        head = self.head
        assert head is not None
        self.loaded = True
        if head.is_frame:
            self.deserializer.went(head.size, head.bytes)
        rest = head.load()
        if rest is not None:
            if head.is_frame:
                self.deserializer.went(-rest.size, -rest.bytes)
            self.in_flight -= rest.size
            put_back(self._outer, rest)

    def restore_overflow(self, overflow: Overflow, events: int) -> None:
        """Resume with ``events`` events that an earlier process left in the overflow."""
        self.overflow = overflow
        self.came(events, 0)
        self.spilled += events

    @property
    def waiting(self) -> list[EventBatch]:
        """Batches from outside that have not been taken."""
        return list(self._outer)

    @property
    def own_events(self) -> list[list[Any]]:
        """Events of the app itself that have not been processed, without the overflow."""
        head, found = self.head, []
        if head is not None and head.receipt is None and head.at < len(head.events):
            found.append(head.events[head.at :])
        return found + [batch.events for batch in self._inner]

    def release(self, events: int, size: int = 0) -> None:
        """``events`` of a taken batch have been processed, with ``size`` of its bytes."""
        self.depth -= events
        self.in_flight -= events
        self.bytes -= size

    def give_back(self, wanted: Callable[[EventBatch], bool]) -> None:
        """Drop the batches of this kind that have not been taken."""
        kept = [batch for batch in self._outer if not wanted(batch)]
        for batch in self._outer:
            if wanted(batch):
                self._drop(batch)
        self._outer = deque(kept)

    def give_head_back(self) -> None:
        head = self.head
        assert head is not None
        self.in_flight -= head.size - head.at
        if self.loaded:
            self.went(head.size - head.at, head.bytes)
        else:
            self._drop(head)

    def _drop(self, batch: EventBatch) -> None:
        """Count a batch as gone that has not been loaded."""
        if batch.is_frame:
            self.frame_went(batch.size, batch.bytes)
        else:
            self.went(batch.size, batch.bytes)

    def clear(self) -> None:
        """Drop everything, including the head; it will be replayed."""
        self.give_back(lambda _: True)
        if self.head is not None:
            self.give_head_back()
        self.head = None
        self._inner.clear()
        self._outer.clear()
        self.depth = self.in_flight = self.bytes = self.spilled = 0
        if self.overflow is not None:
            self.overflow.clear()

    @property
    def grant(self) -> int:
        """As a gauge's, but a stage that feeds itself takes whole frames from other nodes.

        Events beyond its memory wait on disk, here or there; frames of a few events would never
        move them.
        """
        return self.capacity if self.overflow is None else max(self.capacity, _FEEDBACK_GRANT)

    @property
    def withheld(self) -> bool:
        """As a gauge's, but spilled events do not make other nodes wait."""
        if self.overflow is None:
            return self.depth >= self.capacity or self.bytes >= self.max_bytes
        return self.depth - self.spilled >= self.grant or self.bytes >= self.max_bytes

    def _unspilled(self) -> EventBatch:
        assert self.overflow is not None
        batch = self.overflow.pop()
        assert batch is not None, f"{self.spilled} events spilled, and nothing to read back"
        self.spilled -= batch.size
        self.bytes += batch.bytes
        return batch

    def validate(self) -> None:
        waiting = sum(batch.size for batch in (*self._inner, *self._outer))
        assert self.depth == waiting + self.in_flight + self.spilled
        assert self.bytes >= 0
        assert self.in_flight >= 0


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
