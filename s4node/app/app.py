"""App and AdapterApp: where an author declares streams and PEs.

Rules
- Order of a life: ``on_init`` declares the graph, the graph is checked, ``on_start`` starts the
  app's own sources, ``on_close`` ends it. Each may be plain or ``async``.
- The graph is declared in ``on_init``, or at the top of a module on an App that is used directly.
- An app does not know its process: parameters, clock and the nursery of its background tasks are
  given to it before ``on_init`` and ``on_start``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from s4node.app.in_order import BY_TIME, IN_ORDER, InOrder, complete, end_with, join, time_in_order
from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import OF_KEY, Prototype, key_class
from s4node.app.stream import InputStream, OutputStream, Stream, StreamTime
from s4node.app.windows import LONGEST, tumbling
from s4node.errors import GraphError
from s4node.events.event import LIVE
from s4node.events.keys import KeySpec
from s4node.metrics.registry import MetricsRegistry
from s4node.store_spec import StoreSpec

P = TypeVar("P", bound=ProcessingElement)
S = TypeVar("S", bound=Stream)

IDLE = 30.0
"""Seconds without news after which a producer is waited for no longer."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


class App:
    """An event-processing app: a graph of streams and processing elements.

    Subclass it and declare the graph in :meth:`on_init`, or make one at the top of a module and
    declare on it directly::

        app = App("clicks")
        app.create_input_stream("clicks", app.create_pe(Count), key="user")
    """

    name: str
    """The name in logs and errors; by default the class's name."""

    parameters: Mapping[str, str]
    """The ``s4.app.*`` settings, by the part after that prefix."""

    partitions: int
    """The number of the app's tasks."""

    clock: Callable[[], float]
    """The clock of timers and triggers, in seconds."""

    metrics: MetricsRegistry
    """Counters, gauges and timers of PEs and sources, over all partitions of the process."""

    streams: dict[str, Stream]
    prototypes: dict[str, tuple[Prototype, ProcessingElement]]
    stores: dict[str, StoreSpec[Any, Any]]
    spawn: Callable[..., None] | None
    _frozen: bool

    has_tasks: ClassVar[bool] = False
    """True if the streams lead to tasks instead of PEs."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        """Make a complete object.

        So a subclass's ``__init__`` need not call this class's, and may declare the graph first.
        """
        self = super().__new__(cls)
        self.name = cls.__name__
        self.parameters = {}
        self.partitions = 1
        self.clock = time.time
        self.metrics = MetricsRegistry(cls.__name__)
        self.streams = {}
        self.prototypes = {}
        self.stores = {}
        self.spawn = None
        self._frozen = False
        return self

    def __init__(self, name: str = "") -> None:
        if name:
            self.name = name

    # -- the author overrides ----------------------------------------------------------------

    def on_init(self) -> Any:
        """Declare streams and PEs. ``self.parameters`` holds the ``s4.app.*`` settings."""

    def on_start(self) -> Any:
        """Start the app's sources with :meth:`start_soon`; called when the app runs."""

    def on_close(self) -> Any:
        """Release resources; called after the drain, or after a failure once it has started."""

    # -- the author calls --------------------------------------------------------------------

    def create_pe(self, cls: type[P], *arguments: Any, name: str = "", **named: Any) -> P:
        """The prototype of a PE class; further arguments go to the class's constructor."""
        self._declaring()
        if not (isinstance(cls, type) and issubclass(cls, ProcessingElement)):
            raise GraphError(f"{cls!r} is not a ProcessingElement class")
        name = name or self._free_name(cls.__name__)
        if name in self.prototypes:
            raise GraphError(f"app {self.name!r} has a PE {name!r} already; give it another name")
        prototype = Prototype(cls, self, name)
        element = prototype.element(*arguments, **named)
        self.prototypes[name] = prototype, element
        return element  # type: ignore[return-value]

    def create_stream(
        self,
        name: str,
        *pes: ProcessingElement,
        key: KeySpec | None = None,
        types: Sequence[type] | type = (),
        broadcast: bool = False,
        time: str = "",
        lateness: float = 0,
        idle: float = IDLE,
        idle_ends: bool = False,
        order: str = "",
    ) -> Stream:
        """A stream inside the app: events that PEs put on it go to ``pes``.

        ``key`` is an attribute's name, several names, a KeyFinder, or a function of the event. A
        key of several parts is a tuple; a tuple or list of one part is that part. ``types`` are its
        event types; the default is those that the PEs' handlers name.

        ``time`` is the field with the time of an event: seconds since 1970 as a float, ms as an
        int, or a datetime with a time zone. Events may be out of order by ``lateness`` seconds. A
        producer that has sent nothing for ``idle`` seconds is waited for no longer. Once all are
        idle, ``idle_ends=True`` waits no longer for events that are out of order, either. With
        ``order="time"`` PEs get the events of a key in the order of their times; streams that lead
        to the same PEs so have one order.
        """
        stream_time = self._time(name, time, lateness, idle, idle_ends=idle_ends)
        if not time and lateness:
            raise no_time(name)
        given = stream_time if time else None
        return self._ordered(Stream, name, pes, key, types, broadcast, given, order)

    def create_input_stream(
        self,
        name: str,
        *pes: ProcessingElement,
        key: KeySpec | None = None,
        types: Sequence[type] | type = (),
        system: str = LIVE,
        time: str = "",
        lateness: float = 0,
        idle: float = IDLE,
        idle_ends: bool = False,
        order: str = "",
    ) -> InputStream:
        """A stream that brings events from outside to ``pes``; see :meth:`create_stream`.

        Its events come over sockets, or are read from the stream of this name of a ``system`` such
        as ``log``; the setting ``task.inputs`` overrides it. If it leads to windows and has no
        ``time``, that is when its events were sent.
        """
        stream_time = self._time(name, time, lateness, idle, idle_ends=idle_ends)
        given = stream_time if time else None
        stream = self._ordered(InputStream, name, pes, key, types, False, given, order)
        stream.system, stream.sending = system, stream_time
        return stream

    def create_output_stream(
        self,
        name: str,
        *,
        key: KeySpec | None = None,
        types: Sequence[type] | type = (),
        system: str = LIVE,
    ) -> OutputStream:
        """A stream to the clusters that consume ``name``; without a key, round robin.

        With a ``system`` such as ``kafka``, its events are records of the stream of this name
        there. They are published after the commit that has them, each once, so the tasks of the app
        keep state. The key is that of the records.
        """
        stream = self._add(OutputStream, name, (), key, types, broadcast=False)
        stream.system = system
        return stream

    def start_soon(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run an async function beside the app until it ends or the app stops.

        The function is cancelled when the app begins to stop. If it raises, the app stops with a
        SourceError that names it.
        """
        if self.spawn is None:
            raise GraphError(f"app {self.name!r} has not started; use start_soon in on_start")
        self.spawn(function, *arguments)

    # -- inside ------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Complete the graph: prototypes become what their instances share."""
        self._frozen = True
        for prototype, element in [*self.prototypes.values()]:
            if isinstance(element, InOrder):
                complete(prototype, element.out)
                for name in element.out.in_order_of:
                    end_with(element.out, self.streams[name])
            if prototype.cls._of_key and prototype.windows is not None:
                name = f"{prototype.name}{OF_KEY}"
                own = prototype.own = Prototype(key_class(prototype.cls), self, name)
                own.singleton = prototype.singleton
                if prototype.ttl:
                    own.set_ttl(prototype.ttl)
                self.prototypes[name] = own, own.element()
        for prototype, element in self.prototypes.values():
            prototype.freeze(element)

    def _add(
        self,
        kind: type[S],
        name: str,
        pes: Sequence[ProcessingElement],
        key: KeySpec | None,
        types: Sequence[type] | type,
        broadcast: bool,
        time: StreamTime | None = None,
    ) -> S:
        self._declaring()
        if not isinstance(name, str) or not _NAME.match(name):
            raise GraphError(f"{name!r} is not a stream name; use letters, digits and . _ -")
        if name in self.streams:
            raise GraphError(f"app {self.name!r} has a stream {name!r} already")
        for pe in pes:
            if not isinstance(pe, ProcessingElement):
                raise GraphError(f"stream {name!r}: {pe!r} is not from create_pe()")
            if pe._prototype.app is not self:
                raise GraphError(f"stream {name!r}: {pe!r} belongs to another app")
        if isinstance(types, type):
            types = (types,)
        targets = [pe._prototype for pe in pes]
        stream = kind(
            name,
            len(self.streams),
            targets,
            key=key,
            types=tuple(types),
            broadcast=broadcast,
            time=time,
        )
        self.streams[name] = stream
        return stream

    def _ordered(
        self,
        kind: type[S],
        name: str,
        pes: Sequence[ProcessingElement],
        key: KeySpec | None,
        types: Sequence[type] | type,
        broadcast: bool,
        time: StreamTime | None,
        order: str,
    ) -> S:
        """A stream whose events go to the PEs as they come, or in the order of their times."""
        if order not in ("", "time"):
            raise GraphError(f"stream {name!r}: order={order!r}; leave it out, or give 'time'")
        if not order:
            return self._add(kind, name, pes, key, types, broadcast, time)
        if time is None:
            raise GraphError(
                f"stream {name!r} has order='time' but no time; name the field with time="
            )
        if broadcast:
            raise GraphError(f"stream {name!r} has order='time' and broadcast; choose one")
        targets = [pe._prototype for pe in pes]
        elements = [element for _, element in self.prototypes.values()]
        met = [e for e in elements if isinstance(e, InOrder) and {*e.out.targets} & {*targets}]
        if met:
            held, *others = met
            stream = self._add(kind, name, [held], key, types or _types_of(pes), False, time)
            join(held.out, stream, targets)
            for other in others:  # the new stream connects them
                join(held.out, other.out, other.out.targets)
                self._put_in_place_of(other, held)
            return stream
        stream_time = time_in_order(time)
        inner = self._add(Stream, f"{name}{BY_TIME}", pes, key, types, broadcast, stream_time)
        inner.in_order_of = (name,)
        held = self.create_pe(InOrder, name=f"{name}{IN_ORDER}")
        held.out = inner
        held.set_window(tumbling(stream_time.lateness), late=inner)
        held.set_singleton(key is None)
        return self._add(kind, name, [held], key, types or _types_of(pes), broadcast, time)

    def _put_in_place_of(self, gone: InOrder, held: InOrder) -> None:
        """Have the streams in the order of one PE lead to another one."""
        for name in gone.out.in_order_of:
            self.streams[name].targets = (held._prototype,)
        del self.prototypes[gone._prototype.name], self.streams[gone.out.name]
        for index, stream in enumerate(self.streams.values()):
            stream._index = index

    def _time(
        self, stream: str, field: str, lateness: float, idle: float, *, idle_ends: bool
    ) -> StreamTime:
        if not isinstance(field, str) or (field and not field.isidentifier()):
            raise GraphError(f"stream {stream!r}: time={field!r} is not the name of a field")
        for name, value, least in (("lateness", lateness, 0.0), ("idle", idle, 0.1)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not least <= value <= LONGEST:
                raise GraphError(
                    f"stream {stream!r}: {name}={value!r}; give seconds from {least:g} on, at most "
                    f"a year"
                )
        beyond = 0.0 if idle_ends else None
        return StreamTime(field, float(lateness), float(idle), beyond=beyond)

    def _declaring(self) -> None:
        if self._frozen:
            raise GraphError(f"app {self.name!r} has started; declare its graph in on_init")

    def _free_name(self, name: str) -> str:
        taken = sum(1 for known in self.prototypes if known.split("#")[0] == name)
        return f"{name}#{taken + 1}" if taken else name


def no_time(stream: str) -> GraphError:
    return GraphError(f"stream {stream!r} has a lateness but no time; name the field with time=")


def _types_of(pes: Sequence[ProcessingElement]) -> tuple[type, ...]:
    return tuple(dict.fromkeys(t for pe in pes for t in pe._prototype.event_types()))


class AdapterApp(App):
    """An app that brings events into other clusters through one stream.

    The stream's name is the setting ``s4.adapter.output.stream`` (or ``output_stream`` on the
    class). Set ``remote_stream_key_finder`` before ``super().on_init()`` to choose the partition
    by key; without it events go round robin. The key of the consumer's input goes before it: where
    that is a KeyFinder, give both the same name. Send with ``remote_stream``: ``put`` in handlers,
    ``await send`` in sources.
    """

    output_stream: str = ""
    remote_stream_key_finder: KeySpec | None = None
    remote_stream_types: Sequence[type] = ()
    remote_stream: OutputStream

    def on_init(self) -> Any:
        """Create the remote stream; call it at the end of your own ``on_init``."""
        if not self.output_stream:
            raise GraphError(
                f"adapter {self.name!r} has no output stream; set s4.adapter.output.stream"
            )
        self.remote_stream = self.create_output_stream(
            self.output_stream, key=self.remote_stream_key_finder, types=self.remote_stream_types
        )
