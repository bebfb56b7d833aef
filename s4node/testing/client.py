"""The client of an app under test: what it has sent, what waits, what was refused. Pure.

Rules
- What can be read again has as many partitions as the app, and begins at offset 0.
- Events go through their wire format, so what cannot travel fails here as it does with a real node.
- A keyed stream's events wait in a line for each partition, in the order sent. The stage of the
  partition says how many may go in; the rest stays here, as with a producer that has no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from s4node.app.stream import InputStream, Stream
from s4node.events.event import LIVE, EventBatch
from s4node.events.schema import EventType
from s4node.offsets.input_progress import InputProgress, InputReceipt
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.outputs.dispatch import Dispatch


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

    def put(self, events: Sequence[Any], partition: int | None = None) -> None:
        """Take events, in order; raises EventError for a type that the stream does not carry.

        They go to a ``partition``, or where the stream's key says, or in turn to each.
        """
        travelled = list(self._travelled(self.stream._checked(events)))
        if partition is not None:
            self.lanes[partition].extend(travelled)
            return
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

    def source(self, _partition: int) -> Hashable:
        """Under what its batches are queued in their task."""
        return self.stream.name

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


class InputClient(ClientStream):
    """An input that can be read again: each of its partitions has offsets, and progress."""

    def __init__(self, stream: InputStream, dispatch: Dispatch, partitions: int) -> None:
        super().__init__(stream, dispatch, partitions)
        self.ssps = [
            SystemStreamPartition(stream.system, stream.name, number)
            for number in range(partitions)
        ]
        self.progress = [InputProgress(ssp, 0, self._refused) for ssp in self.ssps]
        self._next = [0] * partitions

    def begin(self, partition: int, offset: int) -> None:
        """The first event of a partition has this offset."""
        self._next[partition] = offset
        self.progress[partition] = InputProgress(self.ssps[partition], offset, self._refused)

    def source(self, partition: int) -> SystemStreamPartition:
        """Under what its batches are queued in their task."""
        return self.ssps[partition]

    def take(self, partition: int, room: int) -> EventBatch | None:
        """A batch of the events for a partition that has room for so many, or None."""
        lane = self.lanes[partition]
        count = min(len(lane), room)
        if count <= 0:
            return None
        first = self._next[partition]
        self._next[partition] += count
        batch = InputBatch(self.ssps[partition], first, count, 0, 0)
        batch.events = [lane.popleft() for _ in range(count)]
        batch.receipt = InputReceipt(self.progress[partition], first, first + count, batch)
        return batch

    def _refused(self, receipt: InputReceipt, number: int, reason: str) -> None:
        self.refuse(receipt.batch.events[number - receipt.first], reason)


class _Receipt:
    """Tells the client of one batch what became of it."""

    by_event = False

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

    def without(self, reasons: Mapping[int, str], _: list[int]) -> _Receipt:
        """Some of its events were left out."""
        for number, reason in reasons.items():
            self.refuse(number, reason)
        return self

    @property
    def home(self) -> tuple[str, str, int]:
        """The test is everywhere."""
        return LIVE, self._client.stream.name, 0

    @property
    def origin(self) -> str:
        """The test has all numbers."""
        return "test"

    def describe(self, number: int) -> str:
        """The event's position in words."""
        return f"test:{number}"
