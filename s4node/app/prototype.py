"""A prototype: what the instances of one PE of one app have in common.

Rules
- Every mistake in a PE class is a GraphError when the PE is created, not a surprise at an event.
"""

from __future__ import annotations

import copy
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from s4node.app.handlers import HandlerTable, handlers_of, may_return, plain_hook, timer_hook
from s4node.app.processing_element import (
    AppFacts,
    ElementType,
    Home,
    ProcessingElement,
    PrototypeOptions,
    class_variables,
)
from s4node.app.stream import Stream
from s4node.app.windows import LONGEST, WindowKind
from s4node.errors import GraphError, described
from s4node.events.event import Event, GenericEvent
from s4node.events.routing import compiled

OF_KEY = " (key)"
"""Ends the name of a PE with the state of keys beside their windows."""

_EARLIEST = 0.1  # seconds

P = TypeVar("P", bound=ProcessingElement)

_PLAIN = {int, float, str, bytes, bool, type(None)}
_IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), frozenset, type, range)


@dataclass(frozen=True)
class Trigger:
    """When ``on_trigger`` fires for a type of event; 0 leaves a condition out."""

    event_type: type
    events: int
    seconds: float


class WindowOptions(NamedTuple):
    """The windows of a prototype: by which clock they end, for how long after that events still
    count, the stream of late events, the seconds between results before the end, and whether the
    late events are reported to their senders."""

    kind: WindowKind
    on_wall_clock: bool = False
    grace: float = 0.0
    late: Stream | None = None
    early: float = 0.0
    report_late: bool = False


class Prototype:
    """The bound class of one PE: the user's class with the app and the configuration on it."""

    def __init__(self, cls: type[ProcessingElement], app: AppFacts, name: str) -> None:
        for attribute, (base, value) in shared_containers(cls).items():
            of = "" if base is cls else f" of its base {base.__name__}"
            raise _shared(cls, attribute, value, of)
        self.name = name
        self.app = app
        self.singleton = False
        self.timer_interval: float | None = None  # until it is set, be it to 0 for never
        self.cache_size = 0
        self.cache_idle = 0.0
        self.ttl = 0.0
        self.own: Prototype | None = None  # of the keys, beside their windows
        self.triggers: list[Trigger] = []
        self.windows: WindowOptions | None = None
        self.started = False
        self.on_event = HandlerTable("on_event", handlers_of(cls, "on_event"))
        self.on_trigger = HandlerTable("on_trigger", handlers_of(cls, "on_trigger"))
        self.on_time = plain_hook(cls, "on_time")
        self.on_create = plain_hook(cls, "on_create")
        self.on_remove = plain_hook(cls, "on_remove")
        self.awaits_create = inspect.iscoroutinefunction(self.on_create)
        self.awaits_remove = inspect.iscoroutinefunction(self.on_remove)
        self.on_window = plain_hook(cls, "on_window")
        self.on_timer = timer_hook(cls)
        self.cls = self._bound(cls, ())
        # a foreign base class may have a __dict__
        self._element_cls = self._bound(cls, () if cls.__dictoffset__ else ("__dict__",))
        self.make: Callable[[Any, Home | None], ProcessingElement] = _not_started
        """``make(key, home)`` makes an instance; the caller calls its ``on_create``."""
        self.merge: Callable[..., list[Any]] | None = None

    def _bound(self, cls: type[P], slots: tuple[str, ...]) -> type[P]:
        options: PrototypeOptions = self  # a type check, because the body is untyped
        body = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__slots__": slots,
            "_prototype": options,
            "app": self.app,
        }
        return ElementType(cls.__name__, (cls,), body)  # type: ignore[return-value]

    def element(self, *arguments: Any, **named: Any) -> ProcessingElement:
        """The prototype object, which the app's author configures."""
        element = self._element_cls.__new__(self._element_cls)
        element.key = None
        for name, value in self.cls._state.items():
            setattr(element, name, self._copied(name, value))
        element.__init__(*arguments, **named)  # type: ignore[misc]
        meant = class_variables(self.cls)
        for name, value in vars(element).items():
            if can_change(value) and name not in meant:
                origin = ", for __init__ runs once, on the prototype"
                raise _shared(self.cls, name, value, origin)
        return element

    def _copied(self, attribute: str, value: Any) -> Any:
        try:
            return copy.deepcopy(value)
        except Exception as error:
            raise GraphError(
                f"{self.name}: the default of {attribute!r} cannot be copied for each key "
                f"({described(error)}); make the default None and set it in "
                f"on_create, or annotate it as ClassVar for one that all keys share"
            ) from error

    @property
    def is_async(self) -> bool:
        return (
            self.on_event.any_async
            or self.on_trigger.any_async
            or self.awaits_create
            or self.awaits_remove
            or inspect.iscoroutinefunction(self.on_window)
        )

    def call_lines(self, call: str, instance: str) -> list[str]:
        """Source of a call of a handler, and of what becomes of its result.

        Most handlers can return nothing but None, as their code shows: their events cost no check.
        """
        if self.is_async:
            return [f"r = {call}", "if _isawaitable(r): await r"]
        if any(map(may_return, self.on_event.declared.values())):
            return [f"r = {call}", f"if r is not None: _returned({instance}, r)"]
        return [call]

    def touch_lines(self, number: int) -> list[str]:
        """Source that touches a saved instance, by a call only if a commit has yet to save it."""
        touch = f"if i._mark is _v{number}: _u{number}(i)"
        other = f"else: i._mark = _m{number}; _g{number}(i)"
        return [f"if i._mark is not _m{number}:", f"    {touch}", f"    {other}"]

    def hooks(self) -> list[tuple[str, Callable[..., Any] | None]]:
        """The names and methods that are called for events, timers, creation and removal."""
        handlers = [*self.on_event.declared.values(), *self.on_trigger.declared.values()]
        return [
            *((handler.__name__, handler) for handler in dict.fromkeys(handlers)),
            ("on_time", self.on_time),
            ("on_create", self.on_create),
            ("on_remove", self.on_remove),
            ("on_window", self.on_window),
            ("on_timer", self.on_timer),
        ]

    def event_types(self) -> tuple[type, ...]:
        return tuple(
            cls
            for cls in self.on_event.declared
            if cls is GenericEvent or (issubclass(cls, Event) and cls is not Event)
        )

    def set_trigger(self, event_type: type, events: int, seconds: float) -> None:
        self._check_not_started()
        if not isinstance(event_type, type):
            raise GraphError(f"{self.name}: a trigger is for an event type, not {event_type!r}")
        self._check_number("set_trigger", "events", events, whole=True)
        self._check_number("set_trigger", "seconds", seconds)
        if not (events or seconds):
            raise GraphError(f"{self.name}: a trigger needs events > 0 or seconds > 0")
        if not self.on_trigger.declared:
            raise GraphError(f"{self.name}: a trigger is set but there is no on_trigger method")
        self.triggers.append(Trigger(event_type, events, seconds))

    def set_timer_interval(self, seconds: float) -> None:
        self._check_not_started()
        self._check_number("set_timer_interval", "seconds", seconds)
        if self.on_time is None:
            raise GraphError(f"{self.name}: a timer is set but there is no on_time method")
        self.timer_interval = seconds

    def set_singleton(self, singleton: bool) -> None:
        self._check_not_started()
        if not isinstance(singleton, bool):
            raise GraphError(f"{self.name}: set_singleton takes True or False, not {singleton!r}")
        self.singleton = singleton

    def set_cache(self, max_size: int, idle_seconds: float) -> None:
        self._check_not_started()
        self._check_number("set_pe_cache", "max_size", max_size, whole=True)
        self._check_number("set_pe_cache", "idle_seconds", idle_seconds)
        if not (max_size or idle_seconds):
            raise GraphError(f"{self.name}: a PE cache needs max_size > 0 or idle_seconds > 0")
        self.cache_size, self.cache_idle = max_size, idle_seconds

    def set_ttl(self, seconds: float) -> None:
        self._check_not_started()
        self._check_number("set_ttl", "seconds", seconds)
        if not 0 < seconds <= 100 * LONGEST:
            raise GraphError(
                f"{self.name}: set_ttl(seconds={seconds!r}); give more than 0, at most 100 years"
            )
        self.ttl = float(seconds)

    def set_window(
        self,
        kind: object,
        clock: object,
        grace: object,
        late: object,
        early: object,
        report_late: object,
    ) -> None:
        self._check_not_started()
        if not isinstance(kind, WindowKind):
            raise GraphError(
                f"{self.name}: set_window({kind!r}): give tumbling(60), hopping(300, every=60), "
                f"session(gap=1800), count(100) or day('Europe/Berlin')"
            )
        if clock not in ("event", "wall"):
            raise GraphError(f"{self.name}: set_window(clock={clock!r}): give 'event' or 'wall'")
        if self.on_window is None:
            raise GraphError(f"{self.name}: windows are set but there is no on_window method")
        if (kind.is_hopping or kind.gap) and not callable(getattr(self.cls, "merge", None)):
            raise GraphError(
                f"{self.name}: {kind.text} windows are made of parts, so the class needs "
                f"merge(self, later), which adds another instance's state to its own"
            )
        self._check_number("set_window", "grace", grace)
        if grace > LONGEST:  # type: ignore[operator]
            raise GraphError(
                f"{self.name}: set_window(grace={grace!r}) is more than a year; give at most "
                f"{LONGEST:.0f} s"
            )
        if late is not None and not isinstance(late, Stream):
            raise GraphError(
                f"{self.name}: set_window(late={late!r}): give a stream of this app, from "
                f"create_stream or create_output_stream"
            )
        if not isinstance(report_late, bool):
            raise GraphError(
                f"{self.name}: set_window(report_late={report_late!r}): give True or False"
            )
        if (grace or late is not None or report_late) and (clock == "wall" or kind.events):
            raise GraphError(
                f"{self.name}: only windows by the time of events have late events; leave out "
                f"grace, late and report_late"
            )
        self._check_number("set_window", "early", early)
        if early and (kind.is_hopping or kind.events):
            raise GraphError(
                f"{self.name}: set_window(early={early!r}): {kind.text} windows have no results "
                f"before their end; use tumbling, session or day, or end windows more often"
            )
        if early and early < _EARLIEST:  # type: ignore[operator]
            raise GraphError(
                f"{self.name}: set_window(early={early!r}); give at least {_EARLIEST:g} s"
            )
        if "window" in self.cls._state:
            raise GraphError(f"{self.name}: the attribute 'window' is taken; give it another name")
        self.give_windows(
            WindowOptions(kind, clock == "wall", float(grace), late, float(early), report_late)  # type: ignore[arg-type]
        )

    def give_windows(self, options: WindowOptions) -> None:
        """Have instances with a window, which have further slots."""
        own = self.cls.__mro__[1]
        self.cls = self._bound(own, ("_again", "_round", "_span", "_until"))
        self.windows = options

    def freeze(self, element: ProcessingElement) -> None:
        """The app starts: values set on the prototype hold for all its instances."""
        for name, value in vars(element).items():
            # a function set as a value is not a method
            setattr(self.cls, name, staticmethod(value) if inspect.isfunction(value) else value)
        state = {name: getattr(element, name) for name in self.cls._state}
        for name, value in state.items():
            self._copied(name, value)  # once now, so that a failure is reported
        bindings = {f"_{name}": value for name, value in state.items()}
        bindings |= {"cls": self.cls, "new": self.cls.__new__, "copy": copy.deepcopy}
        bindings["never"] = -math.inf
        lines = self._making({name: _copying(name, value) for name, value in state.items()})
        self.make = compiled("make", ["def make(key, home):", *lines, "    return i"], bindings)
        if self.windows is not None and self.windows.kind.is_hopping:
            self.merge = self._merging()
        self.started = True

    def _making(self, state: Mapping[str, str]) -> list[str]:
        """Source that makes an instance ``i``; ``state`` has that of its attributes."""
        lines = ["i = new(cls)", "i.key = key", "i._home = home", "i._mark = None"]
        lines += [f"i.{name} = {value}" for name, value in state.items()]
        if self.windows is not None:
            lines += ["i._again = False", "i._round = 0", "i._until = never"]
        return [f"    {line}" for line in lines]

    def _merging(self) -> Callable[..., list[Any]]:
        """The function that makes the windows of ``span`` of their panes, which are in order.

        There is none for a key without panes, or with its call made before, unless ``again``. The
        panes of which a window waits for another call are in ``changed`` then.
        """
        state = {
            name: f"v if (v := p.{name}).__class__ in plain else copied(v)"
            for name in self.cls._state
        }
        lines = [
            "def merge(keys, panes, span, home, mark, touch, changed, again):",
            "    start, end = span",
            "    found = []",
            "    for key in keys:",
            "        i = None",
            "        for p in panes.get(key, ()):",
            "            first, last = p._span",
            "            if first < start: continue",
            "            if last > end: break",
            "            if i is None:",
            *(f"            {line}" for line in self._making(state)),
            "                i._span = span",
            "            else: join(i, p)",
            "            if p._again: changed.append(p)",
            "            if p._until >= end: i._round = 1",
            "            newest = p",
            "        if i is None or (newest._until >= end and not again): continue",
            "        if newest._mark is not mark: touch(newest)",
            "        if newest._until < end: newest._until = end",
            "        found.append(i)",
            "    return found",
        ]
        bindings = {"cls": self.cls, "new": self.cls.__new__, "never": -math.inf, "plain": _PLAIN}
        bindings |= {"join": self.cls.merge, "copied": copied}  # type: ignore[attr-defined]
        return compiled("merge", lines, bindings)  # type: ignore[no-any-return]

    def _check_number(self, method: str, name: str, value: object, *, whole: bool = False) -> None:
        kinds = (int,) if whole else (int, float)
        right = isinstance(value, kinds) and not isinstance(value, bool)
        if not right or not 0 <= value < math.inf:  # type: ignore[operator]
            kind = "a whole number" if whole else "a number"
            raise GraphError(
                f"{self.name}: {method}({name}={value!r}); give {kind} that is 0 or more"
            )

    def _check_not_started(self) -> None:
        if self.started:
            raise GraphError(
                f"{self.name} is configured after the app has started; do it in on_init"
            )


def key_class(cls: ElementType) -> type[ProcessingElement]:
    """The class of the state of keys, of the attributes of ``cls`` annotated with OfKey."""
    author = cls.__mro__[1]
    body = {name: default for name, (_, default) in cls._of_key.items()}
    kinds = {name: _within(kind) for name, (kind, _) in cls._of_key.items()}
    named = {"__module__": author.__module__, "__annotations__": kinds}
    return ElementType(author.__name__, (ProcessingElement,), {**body, **named})  # type: ignore[return-value]


def _within(kind: Any) -> Any:
    """The type in an annotation with OfKey: ``int`` of ``OfKey[int]``."""
    return kind[kind.index("[") + 1 : -1] if isinstance(kind, str) else typing.get_args(kind)[0]


def _is_fixed(value: Any) -> bool:
    """Return True if no instance can change a default, so that all may have the same."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return isinstance(value, _IMMUTABLE)


def _copying(name: str, value: Any) -> str:
    """The code that copies the default ``_name`` for an instance."""
    if _is_fixed(value):
        return f"_{name}"
    held = [*value, *value.values()] if value.__class__ is dict else value
    if value.__class__ in (dict, list, set) and all(map(_is_fixed, held)):
        return f"_{name}.copy()"  # a fiftieth of the time
    return f"copy(_{name})"


def copied(value: Any) -> Any:
    if _is_fixed(value):
        return value
    held = [*value, *value.values()] if value.__class__ is dict else value
    if value.__class__ in (dict, list, set) and all(map(_is_fixed, held)):
        return value.copy()  # a fiftieth of the time
    return copy.deepcopy(value)


def can_change(value: Any) -> bool:
    """Return True for a mutable container. As in a dataclass, an object that cannot be hashed is
    taken to be one."""
    if isinstance(value, tuple):
        return any(map(can_change, value))
    return type(value).__hash__ is None and not isinstance(value, types.MappingProxyType)


def shared_containers(cls: type) -> dict[str, tuple[type, Any]]:
    """The containers that all objects of a class share without a ClassVar.

    By name: the class that has it, and the container.
    """
    meant = {*class_variables(cls), *getattr(cls, "_state", ()), "_state", "_of_key", "_aggregates"}
    found = {n: (base, value) for base in reversed(cls.__mro__) for n, value in vars(base).items()}
    return {
        name: (base, value)
        for name, (base, value) in found.items()
        if can_change(value) and name not in meant and not name.startswith("__")
    }


def _shared(cls: type, name: str, value: Any, origin: str) -> GraphError:
    kind = type(value).__name__
    return GraphError(
        f"PE class {cls.__name__}: all keys would share {name!r}, a {kind}{origin}; annotate "
        f"it in {cls.__name__}: '{name}: {kind} = ...' for a copy for each key, "
        f"'{name}: ClassVar[{kind}]' for one that all keys share"
    )


def _not_started(_key: Any, _home: Any) -> ProcessingElement:
    raise GraphError("a PE instance before its app has started")
