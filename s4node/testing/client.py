"""The client of an app under test: what it has sent, what waits, what was refused. Pure.

Rules
- Events go through their wire format, so what cannot travel fails here as it does with a real node.
- A keyed stream's events wait in a line for each partition, in the order sent. The stage of the
  partition says how many may go in; the rest stays here, as with a producer that has no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from s4node.container.dispatch import Dispatch
from s4node.event import EventBatch
from s4node.schema import EventType
from s4node.stream import Stream


class Refused(NamedTuple):
    """An event that the app did not process, and why."""

    stream: str
    event: Any
    reason: str


class ClientStream:
    """One stream of the app as its client sees it."""

    def __init__(self, stream: Stream, dispatch: Dispatch, partitions: int) -> None:
        self.stream = stream
        self.lanes: list[deque[Any]] = [deque() for _ in range(partitions)]
        self.refused: list[Refused] = []
        self.sent = 0
        self._dispatch = dispatch
        self._next_home = 0
        self._types = {kind.cls: kind for kind in stream.types}

    def put(self, events: Sequence[Any]) -> None:
        """Take events, in order; raises EventError for a type that the stream does not carry."""
        travelled = list(self._travelled(self.stream._checked(events)))
        if self.stream.key is None and not self.stream.broadcast:
            for event in travelled:
                self.lanes[self._next_home].append(event)
                self._next_home = (self._next_home + 1) % len(self.lanes)
            return
        shares, failures = self._dispatch.routed(self.stream, travelled, 0)
        for partition, events_there in shares:
            for lane in self.lanes if self.stream.broadcast else [self.lanes[partition]]:
                lane.extend(events_there)
        for index, reason in failures:
            self.refuse(travelled[index], f"{reason} (event {travelled[index]!r})")

    def _travelled(self, events: Sequence[Any]) -> Iterator[Any]:
        """The events as they arrive, without those that do not."""
        for event in events:
            kind: EventType = self._types[type(event)]
            body = kind.encode([event])
            try:
                yield kind.decode(body)[0]
            except Exception as error:
                self.refuse(event, f"{kind.name} does not decode: {error}")

    @property
    def waiting(self) -> list[Any]:
        """Events that the app has not taken yet."""
        return list(chain.from_iterable(self.lanes))

    def take(self, partition: int, room: int) -> EventBatch | None:
        """A batch of the events for a partition that has room for so many, or None."""
        lane = self.lanes[partition]
        count = min(len(lane), room)
        if count <= 0:
            return None
        events = [lane.popleft() for _ in range(count)]
        first, self.sent = self.sent, self.sent + count
        receipt = _Receipt(self, first, list(events))
        return EventBatch(self.stream.name, partition, events, receipt, first)

    def refuse(self, event: Any, reason: str) -> None:
        """The event is not processed."""
        self.refused.append(Refused(self.stream.name, event, reason))


class _Receipt:
    """Tells the client of one batch what became of it."""

    def __init__(self, client: ClientStream, first: int, events: list[Any]) -> None:
        self._client = client
        self._first = first
        self._events = events

    def done(self) -> None:
        """The batch is processed."""

    def passed(self, first: int, end: int) -> None:
        """A client hears of whole batches."""

    def refuse(self, number: int, reason: str) -> None:
        """One of its events was not."""
        self._client.refuse(self._events[number - self._first], reason)

    def shed(self, number: int, count: int, reason: str) -> None:
        """Some of its events were dropped."""
        for each in range(number, number + count):
            self.refuse(each, reason)

    def describe(self, number: int) -> str:
        """The event's position in words."""
        return f"test:{number}"
