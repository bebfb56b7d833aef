"""ProcessingElement: the class that an app's author subclasses.

Rules
- A prototype is configured once, before the app starts; an instance is made for each key at the
  key's first event. The constructor runs for the prototype only; ``on_create`` for each instance.
- Annotated attributes with defaults are the state of an instance, and all of it: they become
  slots, which are small and quick, and an attribute that is not declared cannot be set. A mutable
  default is copied for each instance. What all are to share is annotated as ClassVar: a list, dict
  or the like without an annotation is refused.
- Attributes annotated with ``OfKey`` are state of the key of an instance with a window. They are
  those of another instance, which all windows of the key share.
- What is set on the prototype holds for all its instances: a state attribute's new default, or
  anything else (streams, parameters) as a common value.
- One instance runs one handler at a time.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from types import FunctionType
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar, get_args

from s4node.app.pe_timers import RELATIVE, PeTimers
from s4node.app.stream import Stream, Target
from s4node.app.windows import EarlyWindow, Window, WindowKind
from s4node.errors import GraphError, S4Error
from s4node.events.keys import Key

T = TypeVar("T")

_OF_KEY = "of the key"

OfKey = Annotated[T, _OF_KEY]
"""``total: OfKey[int] = 0`` in a class with windows is state of the key, beside its windows."""

_STREAMS = {"Stream", "InputStream", "OutputStream"}
"""The classes of streams; an annotation may be their text."""

_RESERVED = {
    "_abc_impl", "_again", "_aggregates", "_group", "_home", "_mark", "_of_key", "_prototype",
    "_round", "_row", "_span", "_state", "_until", "app", "key", "partition",
}  # fmt: skip


class ElementType(ABCMeta):
    """The class of PE classes: makes slots of annotated attributes with defaults."""

    _state: dict[str, Any]
    _of_key: dict[str, tuple[Any, Any]]
    """The annotations and defaults of the attributes that all windows of a key share."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **more: Any
    ) -> ElementType:
        inherited: dict[str, Any] = {}
        of_key: dict[str, tuple[Any, Any]] = {}
        for base in reversed(bases):
            inherited |= getattr(base, "_state", {})
            of_key |= getattr(base, "_of_key", {})
        own = {
            attribute: namespace.pop(attribute)
            for attribute, kind in _annotations(namespace).items()
            if attribute in namespace and not _is_class_variable(kind)
        }
        for attribute, kind in _annotations(namespace).items():
            if attribute in own and _is_of_key(kind):
                of_key[attribute] = kind, own.pop(attribute)
                namespace[attribute] = _OfKeyAttribute(attribute)
        changed = [n for n in inherited if n in namespace and _is_default(namespace[n])]
        own |= {attribute: namespace.pop(attribute) for attribute in changed}
        for attribute in (own.keys() | of_key.keys()) & _RESERVED:
            raise GraphError(f"PE class {name}: {attribute!r} is taken; give it another name")
        slots = namespace.get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else slots
        added = [n for n in own if n not in inherited]
        if isinstance(slots, dict):  # of names and what help() says of them
            namespace["__slots__"] = {**slots, **dict.fromkeys(added)}
        else:
            namespace["__slots__"] = (*slots, *added)
        try:
            cls = super().__new__(mcs, name, bases, namespace, **more)
        except TypeError as error:
            if "layout" not in str(error) and "lay-out" not in str(error):
                raise
            raise GraphError(
                f"PE class {name}: two of its bases {', '.join(b.__name__ for b in bases)} have "
                f"state; let one derive from the other, or keep the state in one"
            ) from error
        cls._state = inherited | own
        cls._of_key = of_key
        return cls


class _OfKeyAttribute:
    """An attribute of the key's own instance, seen from the instance of one of its windows."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, _owner: type) -> Any:
        return self if instance is None else getattr(self._own(instance), self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(self._own(instance), self._name, value)

    def _own(self, instance: Any) -> Any:
        home = getattr(instance, "_home", None)
        if home is None:
            raise S4Error(
                f"{self._name!r} of {type(instance).__name__} is state of a key: use it in "
                f"handlers, and set its default in the class"
            )
        return home.owner.state_of_key(instance.key)


def _is_of_key(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind.replace("s4node.", "").startswith("OfKey[")
    return _OF_KEY in get_args(kind)[1:]


def _is_default(value: Any) -> bool:
    """Return True if a subclass gives a state attribute a new default, not a method of that
    name."""
    return not isinstance(value, (property, staticmethod, classmethod, FunctionType))


def _is_class_variable(kind: Any) -> bool:
    return "ClassVar" in str(kind)


def class_variables(cls: type) -> set[str]:
    annotated = [item for base in cls.__mro__ for item in _annotations(vars(base)).items()]
    return {name for name, kind in annotated if _is_class_variable(kind)}


def unset_streams(element: ProcessingElement) -> list[str]:
    """The mistakes in a prototype: attributes that are annotated as streams and have no value."""
    bases = type(element).__mro__
    annotated = {n: kind for base in bases for n, kind in _annotations(vars(base)).items()}
    return [
        f"{name!r} is annotated as a stream, and not set; set it on what create_pe returns, as in "
        f"pe.{name} = self.create_stream(...)"
        for name, kind in annotated.items()
        if getattr(kind, "__name__", str(kind)).rpartition(".")[2] in _STREAMS
        and not hasattr(element, name)
        and not hasattr(type(element), name)  # as a slot, which each instance sets
    ]


def _annotations(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations in a class body; from Python 3.14 on they are computed on demand."""
    if "__annotations__" in namespace or "__annotate_func__" not in namespace:
        return dict(namespace.get("__annotations__", {}))
    import annotationlib

    annotate = annotationlib.get_annotate_from_class_namespace(namespace)
    if annotate is None:
        return {}
    form = annotationlib.Format.FORWARDREF
    return dict(annotationlib.call_annotate_function(annotate, form))


class AppFacts(Protocol):
    """The app, as far as its PEs know it; see :class:`s4node.App`."""

    name: str
    parameters: Mapping[str, str]
    partitions: int
    clock: Callable[[], float]
    streams: dict[str, Stream]

    def start_soon(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run an async function beside the app until it ends or the app stops."""
        ...


class PrototypeOptions(Target, Protocol):
    app: AppFacts

    def set_trigger(self, event_type: type, events: int, seconds: float) -> None: ...
    def set_timer_interval(self, seconds: float) -> None: ...
    def set_singleton(self, singleton: bool) -> None: ...
    def set_cache(self, max_size: int, idle_seconds: float) -> None: ...
    def set_ttl(self, seconds: float) -> None: ...
    def set_window(
        self,
        kind: object,
        clock: object,
        grace: object,
        late: object,
        early: object,
        report_late: object,
    ) -> None: ...


class Home(Protocol):
    """The map that an instance belongs to."""

    partition: int
    timers: PeTimers | None

    def get(self, key: Any, /) -> ProcessingElement | None: ...

    def is_open(self, end: float, /) -> bool: ...

    def remove(self, instance: ProcessingElement) -> None:
        """Drop the instance and call its ``on_remove``; no effect if it is gone already."""
        ...


class Nowhere(NamedTuple):
    """The home of an instance that was removed and could have timers."""

    partition: int
    timers: None = None

    def get(self, _key: Any, /) -> None:
        """Return nothing."""

    def remove(self, _instance: ProcessingElement) -> None:
        """Do nothing: it is gone."""


class ProcessingElement(metaclass=ElementType):
    """The state and the handlers of one key.

    Write the handlers that you need; each may be plain or ``async``:

    - ``on_event(self, event: Click)``: any number of them, named ``on_event`` or ``on_event_...``,
      each annotated with the event type it takes (none means every type). The most specific one
      that fits is called. An event that none fits is counted, and reported once for its type.
    - ``on_trigger(self, event: Click)``, named likewise: after ``on_event``, when the trigger set
      with :meth:`set_trigger` fires.
    - ``on_time(self)``: every :meth:`set_timer_interval` seconds, on each instance.
    - ``on_create(self)`` before an instance's first event, ``on_remove(self)`` when the instance
      leaves its cache or is removed. They are not called when the app starts or stops.
    - ``on_window(self)`` at the end of a window of :meth:`set_window`.
    - ``on_timer(self, name)`` when a timer fires that was set with :meth:`at` or :meth:`after`.

    A handler sends with ``stream.put(event)``, which never waits. A plain handler holds up its
    process while it runs: use an ``async`` one for whatever waits.
    """

    __slots__ = {  # with what help() says of them
        "_group": None,
        "_home": None,
        "_mark": None,
        "_row": None,
        "key": "The instance's key: a str, an int, bytes, or a tuple of at least two of those. "
        "None in a prototype and in a singleton.",
    }

    _prototype: ClassVar[PrototypeOptions]

    app: ClassVar[AppFacts]
    """The app that this PE belongs to."""

    key: Key | None

    _home: Home
    _mark: object  # the mark of the last touch, for saved instances
    _row: bytes  # the key of its row, once saved; empty if it is new
    _group: tuple[bytes, list[ProcessingElement]]  # those of its key group in a commit

    # of an instance with a window:
    _span: tuple[float, float]  # its start and end
    _round: int  # how often on_window was called; of a count the number of events
    _until: float  # the end of the last window for which it was called
    _again: bool  # events have come since

    @property
    def partition(self) -> int:
        """The partition in which this instance lives, from 0."""
        return self._home.partition

    @property
    def window(self) -> Window:
        """The window of this instance; in ``on_event`` of overlapping windows the pane."""
        if not hasattr(self, "_span"):
            raise S4Error(f"{self!r} has no window; call set_window on its prototype")
        if self._home.is_open(self._span[1]):
            return EarlyWindow(*self._span, self._round)
        return Window(*self._span, self._round)

    # -- for the prototype, before the app starts --------------------------------------------

    def set_trigger(self, event_type: type, *, events: int = 0, seconds: float = 0) -> None:
        """Call ``on_trigger`` for events of this type (or a subclass), counted for each key.

        It fires with the event that is the ``events``-th since the last firing, or that arrives
        ``seconds`` or more after the last firing, whichever comes first. Until it has fired, both
        count from the key's first event of the type. 0 leaves that condition out.
        """
        self._prototype.set_trigger(event_type, events, seconds)

    def set_timer_interval(self, seconds: float) -> None:
        """Call ``on_time`` on each instance every ``seconds`` (processing time); 0 for never."""
        self._prototype.set_timer_interval(seconds)

    def set_singleton(self, singleton: bool = True) -> None:
        """Make one instance in each partition, at the start, for every event."""
        self._prototype.set_singleton(singleton)

    def set_pe_cache(self, max_size: int = 0, idle_seconds: float = 0) -> None:
        """Keep at most ``max_size`` instances in a partition, and none unused for longer.

        Give one bound or both; 0 means none. They are applied between batches. Instances beyond
        them are removed, and their ``on_remove`` is called. If tasks keep state, the least recently
        used instances beyond ``max_size`` only leave memory, and an instance that is not in memory
        never expires.
        """
        self._prototype.set_cache(max_size, idle_seconds)

    def set_ttl(self, seconds: float) -> None:
        """Let the state of a key end ``seconds`` after its last event, by the clock.

        It also ends if it is not in memory, on disk, without being read. So there is no
        ``on_remove``. The timers of the key end with it. With windows, it is the state of the key
        beside them (:data:`OfKey`).
        """
        self._prototype.set_ttl(seconds)

    def set_window(
        self,
        kind: WindowKind,
        *,
        clock: str = "event",
        grace: float = 0,
        late: Stream | None = None,
        early: float = 0,
        report_late: bool = False,
    ) -> None:
        """Have an instance for each key *and window*, and ``on_window`` called at its end.

        ``kind`` is ``tumbling(60)``, ``hopping(300, every=60)``, ``session(gap=1800)``,
        ``count(100)`` or ``day("Europe/Berlin")``. Windows end by the time of events, which their
        streams have (``time=``), or by the ``clock="wall"``. For ``grace`` seconds of event time
        after its end, events still count, and ``on_window`` is called again. Later ones are counted
        as late, and put on the stream ``late`` if one is given. With ``early``, ``on_window`` is
        also called every so many seconds of the clock before the end, on instances that have
        changed; ``self.window.final`` is False then. With ``report_late`` the program that has sent
        a late event gets a refusal that says by how much.
        """
        self._prototype.set_window(kind, clock, grace, late, early, report_late)

    # -- for an instance ---------------------------------------------------------------------

    def remove(self) -> None:
        """Remove this instance: its ``on_remove`` is called, the key's next event makes a new one.

        A handler that removes its own instance goes on to its end.
        """
        self._home.remove(self)

    def at(self, time: float | datetime, name: str = "", *, clock: str = "event") -> None:
        """Have ``on_timer(name)`` called once, when the events up to ``time`` have come.

        With ``clock="wall"``, when it is that time. ``time`` is in seconds since 1970, or a
        datetime with a time zone. A timer of the same name is replaced; one in the past fires
        after the handler. Timers are saved with the state.
        """
        if clock not in ("event", "wall"):
            raise S4Error(f"at(clock={clock!r}): give 'event' or 'wall'")
        self._timers().set_timer(self.key, name, time, by_wall=clock == "wall")

    def after(self, seconds: float, name: str = "") -> None:
        """Have ``on_timer(name)`` called in ``seconds`` seconds; see :meth:`at`.

        They do not change if the machine's clock is set meanwhile.
        """
        timers = self._timers()
        try:
            time = timers.now() + seconds
        except TypeError:
            raise S4Error(f"{self!r}: after({seconds!r}): give seconds as a number") from None
        timers.set_timer(self.key, name, time, by_wall=RELATIVE)

    def cancel(self, name: str = "") -> None:
        """Remove the timer of this name, if it is set."""
        if not isinstance(self._home, Nowhere):
            self._timers().cancel(self.key, name)

    def _timers(self) -> PeTimers:
        timers = self._home.timers
        if timers is None and isinstance(self._home, Nowhere):
            raise S4Error(
                f"{self!r} was removed, so a timer that is set now would find nothing; to begin "
                f"anew with a timer, set the attributes back in place of self.remove()"
            )
        if timers is None:
            raise S4Error(f"{self!r} has no timers; give its class a method on_timer(self, name)")
        return timers

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'key', None)!r}>"
