"""An app's dataflow: which streams its PEs put on, and the feedback cycles in that.

Rules
- It is found without running anything, from what handlers can reach: streams in the prototype's
  attributes (also inside lists, dicts, objects and closures), and streams that the code of the
  handlers, and of the functions named there, reads from globals, closures or the app.
- The walk is bounded, and objects that raise when inspected are skipped.
- There may be an extra edge (a stream held but never put on) or a missing one (a name computed at
  run time). A caller that relies on edges adds those that it sees at run time.
- Results are sorted, so that two runs give the same result.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from s4node.app.app import AdapterApp, App
from s4node.app.plan.cycles import components
from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype
from s4node.app.stream import Stream

_LIBRARY = inspect.__file__.rpartition("/")[0]
_MOST = 100_000
"""The values to walk for one PE. A prototype with more holds data, not streams."""

_OURS = (App, AdapterApp, ProcessingElement, object)
_OPAQUE = (App, ProcessingElement, Prototype, type, ModuleType, str, bytes, int, float, complex)


def puts(app: App) -> dict[str, set[str]]:
    """The streams that each PE puts on, by the PE's name."""
    found: dict[str, set[str]] = {}
    for name, (prototype, element) in app.prototypes.items():
        reached = _Reach(app, prototype, element).streams()
        found[name] = {stream.name for stream in reached if app.streams.get(stream.name) is stream}
    return found


def edges(app: App) -> dict[str, set[str]]:
    """For every stream of the app, the streams that its PEs put on."""
    put = puts(app)
    return {
        name: set().union(*(put[target.name] for target in stream.targets))
        for name, stream in app.streams.items()
    }


def reached(edges: Mapping[str, AbstractSet[str]], name: str) -> set[str]:
    """The streams to which a stream leads, itself included."""
    found, border = {name}, [name]
    while border:
        further = edges.get(border.pop(), frozenset()) - found
        found |= further
        border += further
    return found


def levels(edges: Mapping[str, AbstractSet[str]], starts: Iterable[str]) -> dict[str, int]:
    """The distance of each stream from the nearest of ``starts``, which have 0.

    A stream that none of them leads to has 0, too.
    """
    found = dict.fromkeys(edges, 0) | dict.fromkeys(starts, 0)
    reached, border = set(starts), list(starts)
    while border:
        following = []
        for name in border:
            for target in sorted(edges.get(name, ())):
                if target not in reached:
                    reached.add(target)
                    found[target] = found[name] + 1
                    following.append(target)
        border = following
    return found


def hops(edges: Mapping[str, AbstractSet[str]]) -> dict[str, int]:
    """The most hops to each stream from a stream that nothing leads to; a cycle is one place."""
    place = {name: name for name in edges}
    for group in components(edges):
        place |= dict.fromkeys(group, group[0])
    found = dict.fromkeys(edges, 0)
    changed = True
    while changed:
        changed = False
        for name, to in edges.items():
            for target in to:
                here, there = place[name], place[target]
                if here != there and found[there] <= found[here]:
                    found[there], changed = found[here] + 1, True
    return {name: found[place[name]] for name in edges}


# -- what a prototype's handlers can reach --------------------------------------------------------


class _Reach:
    """Walks from one prototype over values and code, each once, and collects streams."""

    def __init__(self, app: App, prototype: Prototype, element: ProcessingElement) -> None:
        self._app = app
        self._element = element
        self._classes = [c for c in type(element).__mro__ if c not in _OURS]
        self._app_classes = [c for c in type(app).__mro__ if c not in _OURS]
        self._tops = {_top(c.__module__) for c in (*self._classes, *self._app_classes)}
        self._hooks = [
            *prototype.on_event.declared.values(),
            *prototype.on_trigger.declared.values(),
            *filter(None, (prototype.on_time, prototype.on_create, prototype.on_remove)),
            *filter(None, (prototype.on_window, prototype.on_timer)),
        ]
        self._found: list[Stream] = []
        self._seen: dict[int, Any] = {}  # the values are kept, so that no id is used twice
        self._of_app: set[int] = set()
        self._waiting: list[Any] = [] if prototype.windows is None else [prototype.windows.late]

    def streams(self) -> list[Stream]:
        self._waiting += self._hooks
        self._waiting += vars(self._element).values() if hasattr(self._element, "__dict__") else ()
        self._waiting += (getattr(self._element, n, None) for n in type(self._element)._state)
        while self._waiting and len(self._seen) < _MOST:
            value = self._waiting.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._waiting += self._behind(value)
        return self._found

    def _behind(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Stream):
            self._found.append(value)
        elif isinstance(value, FunctionType):
            yield from self._behind_function(value)
        elif isinstance(value, (staticmethod, classmethod)):
            yield value.__func__
        elif isinstance(value, MethodType):
            yield from (value.__self__, value.__func__)
        elif isinstance(value, property):
            yield value.fget
        elif isinstance(value, functools.partial):
            yield from (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, dict):
            yield from islice(value.values(), _MOST)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            yield from islice(value, _MOST)
        elif not isinstance(value, _OPAQUE):
            yield from _attributes(value)

    def _behind_function(self, function: FunctionType) -> Iterator[Any]:
        if not self._is_own(function):
            return
        yield getattr(function, "__wrapped__", None)
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        names, texts = _named(function.__code__)
        scope = [function.__globals__[n] for n in names if n in function.__globals__]
        scope += map(_contents, function.__closure__ or ())
        yield from scope
        for place in scope:
            if isinstance(place, (ModuleType, type)):  # helpers.emit(...), Base.on_event(self, ...)
                yield from (vars(place)[name] for name in names if name in vars(place))
        yield from _members(self._classes, names)
        if "app" in names or self._app in scope or id(function) in self._of_app:
            yield from self._behind_app(names, texts)

    def _behind_app(self, names: set[str], texts: set[str]) -> Iterator[Any]:
        """The values that code naming the app reads from it."""
        for name in names & vars(self._app).keys() - {"streams", "prototypes"}:
            yield vars(self._app)[name]
        if "streams" in names:
            yield from (self._app.streams[text] for text in texts & self._app.streams.keys())
        for member in _members(self._app_classes, names):
            self._of_app.add(id(member))
            yield member

    def _is_own(self, function: FunctionType) -> bool:
        """Return True if the function is of the app's author, not of a library."""
        if _top(function.__module__) in self._tops:
            return True
        file = function.__code__.co_filename
        return not (file.startswith((_LIBRARY, "<frozen")) or "-packages/" in file)


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _attributes(value: Any) -> Iterator[Any]:
    with suppress(Exception):  # a proxy may raise anything
        yield from list(getattr(value, "__dict__", {}).values())
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            with suppress(Exception):
                yield getattr(value, slot, None)


def _members(classes: Iterable[type], names: set[str]) -> Iterator[Any]:
    """The members of these names in the first class that has each; in all, for ``super()``."""
    met: set[str] = set()
    for cls in classes:
        here = {name for name in names - met if name in vars(cls)}
        yield from (vars(cls)[name] for name in here)
        if "super" not in names:
            met |= here


def _named(code: CodeType) -> tuple[set[str], set[str]]:
    """The names that the code reads and the texts in it, those of inner functions included."""
    names, texts = set(code.co_names), set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_names, inner_texts = _named(constant)
            names |= inner_names
            texts |= inner_texts
        elif isinstance(constant, str):
            texts.add(constant)
    return names, texts


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
