"""Streams: PEs put events on them, and get events from them.

Rules
- ``put`` is for handlers: it checks the event's type and appends; nothing waits. The task delivers
  the events at the end of the batch.
- An event is the receiver's alone: if it has a list, or anything else that can change, a copy of it
  is put or sent.
- ``send`` is for sources (adapters, background tasks): it waits while the stream is full.
- A stream declares its event types, or has those that its PEs' handlers name, or else GenericEvent.
  An output stream without types learns them from its events.
- A stream knows no task, socket or process: its carrier is injected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from sys import getrefcount
from typing import Any, NamedTuple, Protocol, Self

from s4node.errors import EventError, GraphError, S4Error
from s4node.events.copies import copier_of, sharing
from s4node.events.event import LIVE, GenericEvent, Tombstone
from s4node.events.keys import KeySpec
from s4node.events.routing import compiled
from s4node.events.schema import EventType

MOST_PARALLEL = 1024
"""The most handlers of a stream that may run at a time in a partition."""

emitted: ContextVar[list[list[Any]]] = ContextVar("emitted")
"""The events that the running task has put since its last batch, by the stream's index."""


def begin_put(put: list[list[Any]]) -> Token[list[list[Any]]]:
    """Collect puts in lists by the stream's index, until ``end_put``."""
    return emitted.set(put.copy())


def end_put(token: Token[list[list[Any]]]) -> None:
    """Stop collecting: a later ``put`` of anything left running raises."""
    emitted.get().clear()
    emitted.reset(token)


class Carrier(Protocol):
    """Takes events that come from outside any handler."""

    async def send(self, events: Sequence[Any]) -> int:
        """Take the events as soon as there is room; return how many were dropped."""
        ...

    def send_nowait(self, events: Sequence[Any]) -> int:
        """As ``send``, but raises WouldBlock, and takes none, if there is no room."""
        ...

    @property
    def pressure(self) -> float:
        """How full the queue is: 0 is empty; from 1 on, senders wait."""
        ...


class RemoteCarrier(Carrier, Protocol):
    """Takes events for other clusters."""

    def watermark(self, time: float) -> None:
        """Promise consumers that events from now on are not older than ``time``."""
        ...


class StreamTime(NamedTuple):
    """Which ``field`` has the time of an event, by how many seconds events may be out of order, and
    after how many seconds without news a producer is waited for no longer. An input that is more
    than ``drift`` seconds ahead of others waits for them. Without a field, the time of an event is
    when it was sent. While all are idle, the watermark is later than the latest event by
    ``beyond``."""

    field: str
    lateness: float
    idle: float
    drift: float = 600.0
    beyond: float | None = None


class Target(Protocol):
    name: str
    singleton: bool

    @property
    def is_async(self) -> bool:
        """Return True if anything that runs for an event is ``async``."""
        ...

    def event_types(self) -> tuple[type, ...]: ...


class Stream:
    """An internal stream of an app: from PEs to PEs.

    Keyed, its events go to the partition and the PE instance of their key. Un-keyed, they stay in
    the partition where they were put, or go to all of them with ``broadcast``.
    """

    kind = "internal"

    put: Callable[[Any], None]
    """``put(event)`` sends an event from a handler; it leaves when the current batch is done.

    Raises EventError for a type that the stream does not carry.
    """

    def __init__(
        self,
        name: str,
        index: int,
        targets: Sequence[Target] = (),
        *,
        key: KeySpec | None = None,
        types: Sequence[type] = (),
        broadcast: bool = False,
        time: StreamTime | None = None,
    ) -> None:
        self.name = name
        self.time = time
        self.targets = tuple(targets)
        self.key = key
        self.broadcast = broadcast
        self.carrier: Carrier | None = None
        self.parallelism = 1
        self.in_order_of: tuple[str, ...] = ()
        """The streams whose events this one has, in the order of their times."""
        self.takes: dict[str, frozenset[type]] = {}
        """The types that a PE gets of this stream, by its name, if it does not get all."""
        self._index = index
        named = types or dict.fromkeys(t for p in self.targets for t in p.event_types())
        self._checks = False
        self._declared = tuple(named) or self._default_types()
        self._set_types(self._typed())

    def _typed(self) -> dict[type, EventType]:
        names = (self.key,) if isinstance(self.key, str) else self.key
        fixed = list(names) if isinstance(names, (list, tuple)) else []
        fixed += [self.time.field] if self.time is not None else []
        return {cls: EventType(cls, fixed) for cls in self._declared}

    def _default_types(self) -> tuple[type, ...]:
        return (GenericEvent,)

    def __deepcopy__(self, _memo: object) -> Self:
        """Itself: a copied default that holds a stream puts on the same stream."""
        return self

    @property
    def types(self) -> tuple[EventType, ...]:
        return tuple(self._types.values())

    def taken_by(self, target: Target) -> frozenset[type]:
        """The types that a PE gets of this stream."""
        return self.takes.get(target.name) or frozenset(self._types)

    def take_types_of(self, other: Stream) -> None:
        self._declared = tuple(dict.fromkeys((*self._declared, *other._declared)))
        self._set_types(self._typed())

    def _set_types(self, types: dict[type, EventType]) -> None:
        self._types = types
        found = ((cls, copier_of(cls)) for cls in types)
        self._copiers = {cls: copier for cls, copier in found if copier is not None}
        # what put takes as it is
        self._accepts = frozenset() if self._checks else frozenset(types) - self._copiers.keys()
        lines, bindings = ["def put(event):"], dict[str, Any]()
        for number, cls in enumerate(() if self._checks else self._copiers):
            keyword = "elif" if number else "if"
            lines += [
                f"    {keyword} event.__class__ is t{number}:",
                f"        if {sharing(cls, 'event')}: event = copy{number}(event)",
            ]
            bindings |= {f"t{number}": cls, f"copy{number}": self._copiers[cls]}
        lines += [
            f"    {'elif' if bindings else 'if'} event.__class__ not in taken: event = own(event)",
            "    try:",
            f"        lists()[{self._index}].append(event)",
            "    except LookupError:",
            "        outside()",
        ]
        bindings |= {"taken": self._accepts, "own": self._own, "refs": getrefcount}
        bindings |= {"lists": emitted.get, "outside": self._outside}
        self.put = compiled("put", lines, bindings)

    @property
    def can_change(self) -> bool:
        """Return True if an event of the stream may hold a list, or anything else that changes."""
        return bool(self._copiers)

    def check_values(self) -> None:
        """Have ``put`` refuse an event whose values are not of its fields' types.

        That is slow, so it is for tests.
        """
        self._checks = True
        self._set_types(self._types)

    def set_parallelism(self, handlers: int) -> None:
        """Let up to ``handlers`` handlers of this stream run at a time in each partition.

        The events of a key stay in order. ``async`` handlers overlap on the event loop, plain ones
        run in threads, which helps handlers that wait and not those that compute. The stream needs
        a key, and PEs that are not singletons. The setting ``s4.stream.parallelism`` wins over it.
        """
        if type(handlers) is not int or not 1 <= handlers <= MOST_PARALLEL:
            raise GraphError(
                f"stream {self.name!r}: parallelism {handlers!r} is not a whole number from 1 to "
                f"{MOST_PARALLEL}"
            )
        self.parallelism = handlers

    def put_into(self, put: list[list[Any]], event: Any) -> None:
        """As ``put``, into the lists of a known task; from any thread."""
        if event.__class__ not in self._accepts:
            event = self._own(event)
        put[self._index].append(event)

    async def send(self, event: Any) -> int:
        """Send an event from a source, waiting while the stream is full.

        Returns how many events at least one consumer will not get: 0, or 1 if the stream's stage
        sheds and is full. Raises EventError for a type that the stream does not carry, and S4Error
        before the app has started, as do ``send_many`` and ``send_nowait``.
        """
        return await self.send_many((event,))

    async def send_many(self, events: Iterable[Any]) -> int:
        """Send events from a source, in order, waiting while the stream is full.

        If the stage sheds, the newest events are dropped.
        """
        return await self._carrier().send(self._checked(events))

    def send_nowait(self, event: Any) -> int:
        """As ``send``, but raises WouldBlock if ``send`` would wait."""
        return self._carrier().send_nowait(self._checked((event,)))

    @property
    def pressure(self) -> float:
        """How full the queue is, so that a source can react; ``send`` waits from 1 on."""
        return self._carrier().pressure

    def _carrier(self) -> Carrier:
        if self.carrier is None:
            raise S4Error(f"stream {self.name!r} is used before its app has started")
        return self.carrier

    def _checked(self, events: Iterable[Any]) -> list[Any]:
        checked = list(events)
        if self._accepts.issuperset(map(type, checked)):
            return checked
        return list(map(self._owned, checked))

    def _outside(self) -> None:
        raise S4Error(
            f"put() on stream {self.name!r} outside of a handler, or after its end; await in the "
            f"handler the code that puts, or use 'await stream.send()'"
        ) from None

    def _own(self, event: Any) -> Any:
        """As ``_owned``, for a handler."""
        if self._checks and event.__class__ in self._types:
            self._types[event.__class__].encode_checked([event])
        return self._owned(event)

    def _owned(self, event: Any) -> Any:
        """The event, or a copy of one that can change."""
        cls = event.__class__
        if cls not in self._types:
            self._admit_type(cls)
        copier = self._copiers.get(cls)
        return event if copier is None else copier(event)

    def _admit_type(self, cls: type) -> None:
        declared = ", ".join(kind.name for kind in self.types)
        raise EventError(
            f"stream {self.name!r} takes {declared}, not {cls.__name__}; declare it with "
            f"types=(...)"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class InputStream(Stream):
    """A stream that brings events from other clusters and clients to PEs, or from a system.

    ``system`` is where its events are read from; ``live`` are those that producers send.
    With a key it owns its keys: an event that arrives in the wrong partition is sent on to the
    right one, so a key lives in one place whatever the sender did.
    """

    kind = "input"
    system = LIVE
    sending: StreamTime | None = None
    """Its time, if it leads to windows and names no field."""
    whole = True
    """True if all its partitions are read, False if only those that the settings broadcast."""

    @property
    def is_live(self) -> bool:
        """Return True if producers send its events."""
        return self.system == LIVE


class OutputStream(Stream):
    """A stream to the clusters that consume it.

    With a key its events go to the partition of their key there, without one round robin over the
    consuming cluster's partitions. Each consuming cluster gets every event once. With another
    ``system`` than ``live``, tasks write its events there, as records.
    """

    kind = "output"
    system = LIVE
    carrier: RemoteCarrier | None

    @property
    def is_live(self) -> bool:
        """Return True if clusters consume it."""
        return self.system == LIVE

    def watermark(self, time: float) -> None:
        """Say in a source that nothing sent from now on is older than ``time``, in Unix seconds.

        More than the lateness of the consumer's stream, that is. Without this, consumers get
        the latest time of the events sent; with it, a quiet adapter need not be waited for. Raises
        EventError for what is no time, or is more than an hour ahead of the clock.
        """
        if self.carrier is None:
            raise S4Error(f"stream {self.name!r} is used before its app has started")
        self.carrier.watermark(time)

    def _default_types(self) -> tuple[type, ...]:
        return ()

    def _admit_type(self, cls: type) -> None:
        if self._declared and (cls is not Tombstone or self.is_live):
            super()._admit_type(cls)
        if cls is Tombstone and (self.is_live or self.key is None):
            raise EventError(
                f"stream {self.name!r} takes no Tombstone: it deletes a key, and is for a stream "
                f"with a key to a system such as kafka"
            )
        self._set_types({**self._types, cls: EventType(cls)})


def outlets_of(streams: Mapping[str, Stream]) -> list[OutputStream]:
    found = [stream for stream in streams.values() if isinstance(stream, OutputStream)]
    return [stream for stream in found if not stream.is_live]
