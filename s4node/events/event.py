"""Events, and the batches in which they travel.

Rules
- An event never changes once it is sent: typed events are frozen structs, a GenericEvent freezes
  when it is put on a stream. What is put and sent shares no list or dict with anything else.
- A typed event is an array on the wire; new fields are appended at the end with a default.
- Every boundary passes an EventBatch; only the dispatch loop and the user's handler process single
  events.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from operator import length_hint
from sys import getsizeof
from typing import Any, ClassVar, Protocol, TypeAlias, dataclass_transform

import msgspec

from s4node.errors import EventError, S4Error

LIVE = "live"
"""The system of events that producers send over sockets."""


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base of typed events: annotate the fields, as in a dataclass.

    ::

        class Click(Event):
            user: str
            millis: int = 0

    Fields may be anything that msgspec encodes: numbers, text, bytes, dates, lists, dicts, other
    structs. The name on the wire is the class's name, or ``event_name`` where you set it without an
    annotation. Append
    new fields at the end with a default, and old and new programs understand each other.
    """

    event_name: ClassVar[str] = ""


class Tombstone(Event):
    """Deletes a key: on an output stream to Kafka it becomes a record with ``key`` and no value."""

    key: Any


class GenericEvent:
    """An event with dynamic attributes, for programs that share no classes.

    ``event["name"]`` and ``event.name`` read an attribute, ``event.put("name", value)`` sets one
    until the event is sent. Values are what msgpack knows: None, bool, int, float, str, bytes,
    lists and dicts of those, dates.
    """

    __slots__ = ("_attributes", "_frozen")

    def __init__(self, /, **attributes: Any) -> None:
        self._attributes: dict[str, Any] = attributes
        self._frozen = False

    @classmethod
    def from_attributes(cls, attributes: dict[str, Any]) -> GenericEvent:
        """A frozen event that takes ``attributes`` over without copying them."""
        event = cls.__new__(cls)
        event._attributes = attributes
        event._frozen = True
        return event

    def put(self, name: str, value: Any) -> None:
        """Set an attribute; raises EventError once the event has been sent."""
        if self._frozen:
            raise EventError(
                f"attribute {name!r} put on an event that was already sent; make a new event"
            )
        self._attributes[name] = value

    def freeze(self) -> None:
        """Refuse further changes; sending does this."""
        self._frozen = True

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes by name, in a dict of your own: changing it changes no event.

        The values are those of the event, so do not change lists and dicts among them.
        """
        return self._attributes.copy()

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or ``default`` if the event has none of that name."""
        return self._attributes.get(name, default)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._attributes[name]
        except KeyError:
            raise KeyError(
                f"{name!r}: the event has {', '.join(self._attributes) or 'no'} attributes"
            ) from None

    def __getattr__(self, name: str) -> Any:
        if name in GenericEvent.__slots__:  # not initialised yet, during unpickling
            raise AttributeError(name)
        try:
            return self._attributes[name]
        except KeyError:
            known = ", ".join(self._attributes) or "none"
            raise AttributeError(f"no attribute {name!r}; the event has: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._attributes

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenericEvent) and self._attributes == other._attributes

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._attributes.items())
        return f"GenericEvent({inside})"


class Receipt(Protocol):
    """Acknowledges a batch to its source."""

    @property
    def by_event(self) -> bool:
        """Return True if ``complete`` means anything: some sources count whole batches only."""
        ...

    def done(self) -> None:
        """One part of the batch is fully processed."""
        ...

    def complete(self, first: int, end: int) -> None:
        """Report events numbered ``first <= n < end`` as processed while the batch goes on.

        In any order, each once; ``done`` reports all the others.
        """
        ...

    def refuse(self, number: int, reason: str, event: Any = None, *, shed: bool = False) -> None:
        """Report that the event of this number was not processed, or dropped for overload."""
        ...

    def without(self, gone: Collection[int], numbers: Sequence[int]) -> Receipt:
        """Report the events that have ``gone``, by their numbers, as skipped and done.

        Returns the receipt of the others, which have these ``numbers``.
        """
        ...

    @property
    def ssp(self) -> tuple[str, str, int]:
        """System, stream and partition that the events came from."""
        ...

    @property
    def origin(self) -> str: ...

    def describe(self, number: int) -> str:
        """The event's position as text, for messages."""
        ...

    def senders(self, first: int, end: int) -> list[tuple[str, int]]:
        """The producers that have sent these numbers, in runs: each with the end of its run. Their
        names are empty for events of inputs."""
        ...


class EventBatch:
    """Events of one stream for one partition, in order.

    ``first`` is the number of ``events[0]`` at its source, so a position is ``first + index``; in a
    batch with holes (events refused or sent elsewhere) ``numbers`` lists every number. ``receipt``
    is None for batches that were emitted inside the process. ``size`` and ``bytes`` are the batch's
    weight in a queue; they do not change when events are refused. A batch can be interrupted:
    events before ``at`` have been processed. ``source`` is what it is queued under in its task: the
    stream's name, or the partition of a system that it was read from. ``created_ms`` is when it was
    appended or sent (Unix time), 0 if unknown. ``strays`` are events of other tasks that came with
    it, and that its task sends on after the last one; None if there can be none.
    """

    __slots__ = (
        "at",
        "bytes",
        "created_ms",
        "events",
        "first",
        "numbers",
        "offered_at",
        "partition",
        "receipt",
        "size",
        "source",
        "strays",
        "stream",
    )

    is_frame = False
    """True if it is a frame of a producer, undecoded until it is loaded."""

    def __init__(
        self,
        stream: str,
        partition: int,
        events: list[Any],
        receipt: Receipt | None = None,
        first: int = 0,
        numbers: Sequence[int] | None = None,
        weight: int = 0,
    ) -> None:
        self.stream = stream
        self.source: Hashable = stream
        self.partition = partition
        self.events = events
        self.size = len(events)
        self.created_ms = 0
        self.bytes = weight
        self.at = 0
        self.offered_at = 0.0
        self.receipt = receipt
        self.first = first
        self.numbers = numbers
        self.strays: Sequence[Any] | None = None

    def load(self) -> EventBatch | None:
        """Decode ``events``; called once, right before the batch is processed.

        If that takes long, a part of the batch is decoded and the rest returned: it comes next.
        """
        return None

    def precedes(self, other: EventBatch) -> bool:  # noqa: ARG002
        """Return True if ``other``, which came later, must not overtake it."""
        return True

    def number(self, index: int) -> int:
        """The number of ``events[index]`` at its source."""
        return self.first + index if self.numbers is None else self.numbers[index]

    def position(self, index: int) -> str:
        """The position of ``events[index]`` as text, such as ``clicks[0]@spark-1:4711``."""
        place = f"{self.stream}[{self.partition}]"
        if self.receipt is None:
            return f"{place} (emitted in this process)"
        return f"{place}@{self.receipt.describe(self.number(index))}"


Handled: TypeAlias = tuple[str, EventBatch, Any, int]
"""A task's name, the current batch, and the iterator over some of its events; or, without an
iterator, the index of the one event."""

handled: ContextVar[Handled | None] = ContextVar("handled", default=None)
"""The event, or the events, that the running handler processes."""


def event_id() -> str:
    """A text that identifies the event being handled, the same whenever it is replayed.

    For handlers only. After a crash an uncommitted event is handled again with the same id: pass
    the id to external systems, so that they recognise a repetition. If several handlers of an
    event, or several calls in one, use it, add something that differs. Raises S4Error in
    timers and windows, and for an event that the task itself has put.
    """
    now = handled.get()
    if now is None:
        raise S4Error("event_id() is for handlers, while they handle an event")
    task, batch, it, index = now
    if it is not None:
        index = batch.at + index - length_hint(it) - 1
    if batch.receipt is None:
        raise S4Error(
            f"an event of stream {batch.stream!r} was put by its own task, so it has no id; put "
            f"one into it, made of the event_id() of the event that led to it"
        )
    return f"{task}/{batch.receipt.origin}:{batch.number(index)}"


def report_to_sender(reason: str, event: Any) -> None:
    """Report to the event's sender that it did not count, and the reason.

    No effect for events of inputs, of tasks, and of the task itself.
    """
    now = handled.get()
    if now is None:
        return
    _, batch, it, index = now
    if it is not None:
        index = batch.at + index - length_hint(it) - 1
    if batch.receipt is not None and batch.receipt.ssp[0] == LIVE:
        batch.receipt.refuse(batch.number(index), reason, event)


def created_ms() -> int:
    """When the event being handled was sent, or appended to its log: ms since 1970.

    It is the time of the event's frame, by the clock of the machine that made the frame. An event
    from another task has that task's time. An event that the task itself has put has 0, as has one
    of a producer that gives no time. For handlers only: raises S4Error without an event.
    """
    now = handled.get()
    if now is None:
        raise S4Error("created_ms() is for handlers, while they handle an event")
    return now[1].created_ms


def footprint(events: Sequence[Any]) -> int:
    """The approximate bytes of memory of events: those of the first, times their number."""
    if not events:
        return 0
    first = events[0]
    values: Iterable[Any]
    if isinstance(first, msgspec.Struct):
        values = msgspec.structs.astuple(first)
    elif isinstance(first, GenericEvent):
        values = [first._attributes, *first._attributes.values()]
    else:
        values = ()
    return len(events) * (8 + getsizeof(first) + sum(map(getsizeof, values)))
