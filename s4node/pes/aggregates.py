"""Declared aggregates: a PE class that names what it counts, adds up or keeps of its events. Pure.

Rules
- Each aggregate is an attribute of the state with its initial value. ``on_event`` and ``merge`` are
  generated from all of them, so they work in windows of every kind, and without windows.
- An aggregate that keeps another value than it shows (a mean) keeps it in ``_name``.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import merge, nlargest
from itertools import islice
from typing import Any, NamedTuple

from s4node.app.processing_element import ElementType, ProcessingElement
from s4node.errors import GraphError
from s4node.events.routing import compiled


class Aggregate(NamedTuple):
    """How an attribute is derived from events: a ``kind`` of state that begins at ``initial``.

    ``add`` and ``both`` are source texts of the state after an event, and of two states together;
    ``{s}`` is the state, ``{o}`` the later one, ``{v}`` the value in the event, which has the
    ``field``. ``shown`` makes what the attribute shows, if that is not the state.
    """

    kind: Any
    initial: Any
    add: str
    both: str
    field: str = ""
    shown: Callable[[Any], Any] | None = None
    bindings: tuple[Any, ...] = ()


def Count() -> Any:  # noqa: N802 - as a class would be
    """The number of events."""
    return Aggregate(int, 0, "{s} + 1", "{s} + {o}")


def Sum(field: str) -> Any:  # noqa: N802
    """The sum of a field."""
    return Aggregate(float, 0.0, "{s} + {v}", "{s} + {o}", _field("Sum", field))


def Min(field: str) -> Any:  # noqa: N802
    """The least value of a field; None without events."""
    least = "{x} if {s} is None or {x} < {s} else {s}"
    return Aggregate(
        float | None, None, least.replace("{x}", "{v}"), _unless(least), _field("Min", field)
    )


def Max(field: str) -> Any:  # noqa: N802
    """The greatest value of a field; None without events."""
    most = "{x} if {s} is None or {x} > {s} else {s}"
    return Aggregate(
        float | None, None, most.replace("{x}", "{v}"), _unless(most), _field("Max", field)
    )


def Mean(field: str) -> Any:  # noqa: N802
    """The mean of a field; None without events."""
    add = "({s}[0] + {v}, {s}[1] + 1)"
    both = "({s}[0] + {o}[0], {s}[1] + {o}[1])"
    return Aggregate(
        tuple[float, int], (0.0, 0), add, both, _field("Mean", field),
        lambda state: state[0] / state[1] if state[1] else None,
    )  # fmt: skip


def Top(most: int, field: str, *, of: str = "") -> Any:  # noqa: N802
    """The greatest ``most`` values of a field, the greatest first.

    With ``of`` they are pairs of the value and that field of its event.
    """
    if type(most) is not int or most < 1:
        raise GraphError(f"Top({most!r}, ...): give a whole number from 1 on")

    def add(state: list[Any], value: Any) -> list[Any]:
        if len(state) < most or value > state[-1]:
            return nlargest(most, [*state, value])
        return state

    def both(state: list[Any], other: list[Any]) -> list[Any]:
        return list(islice(merge(state, other, reverse=True), most))

    fields = _field("Top", field), _field("Top", of) if of else ""
    value = "({v}, {e}." + of + ")" if of else "{v}"
    kind = list[tuple[float, Any]] if of else list[float]
    return Aggregate(
        kind, [], "{b0}({s}, " + value + ")", "{b1}({s}, {o})", fields[0], None, (add, both)
    )


def Fold(  # noqa: N802
    initial: Any,
    add: Callable[[Any, Any], Any],
    *,
    merge: Callable[[Any, Any], Any] | None = None,
    kind: Any = Any,
) -> Any:
    """``add(state, event)`` of all events, from ``initial`` on; what it returns is the next state.

    ``merge(state, later)`` is of two states; overlapping windows and sessions need it. ``kind`` is
    the type of the state; without it, only what msgpack returns as it was can be saved.
    """
    return Aggregate(kind, initial, "{b0}({s}, {e})", "{b1}({s}, {o})", "", None, (add, merge))


def _field(what: str, field: str) -> str:
    if not isinstance(field, str) or not field.isidentifier():
        raise GraphError(f"{what}({field!r}): give the name of a field of the event")
    return field


def _unless(better: str) -> str:
    """The better of two states, of which the later one may be None."""
    return "{s} if {o} is None else (" + better.replace("{x}", "{o}") + ")"


class AggregatesType(ElementType):
    """The class of classes with aggregates: makes state and methods of them."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        of: type | None = None,
        **more: Any,
    ) -> AggregatesType:
        declared = {n: each for n, each in namespace.items() if isinstance(each, Aggregate)}
        every: dict[str, Aggregate] = {}
        for base in reversed(bases):
            every |= getattr(base, "_aggregates", {})
        every |= declared
        for base in bases:
            of = of or getattr(base, "_of", None)
        if declared:
            namespace = {n: each for n, each in namespace.items() if n not in declared}
            kinds = dict(namespace.get("__annotations__", {}))
            for attribute, each in declared.items():
                place = attribute if each.shown is None else f"_{attribute}"
                kinds[place], namespace[place] = each.kind, each.initial
                if each.shown is not None:
                    namespace[attribute] = _shown(place, each.shown)
            namespace["__annotations__"] = kinds
            handler = _adder(every)
            if of is not None:
                handler.__annotations__ = {"event": of}
            namespace["on_event_of_aggregates"] = handler
            if all(None not in each.bindings for each in every.values()):
                namespace.setdefault("merge", _merger(every))
        cls: Any = super().__new__(mcs, name, bases, namespace, **more)
        cls._aggregates, cls._of = every, of
        return cls  # type: ignore[no-any-return]


class Aggregates(ProcessingElement, metaclass=AggregatesType):
    """A PE whose attributes are declared: ``n = Count()``, ``total = Sum("price")``.

    Give the type of the events: ``class Stats(Aggregates, of=Trade)``. ``Count``, ``Sum``, ``Min``,
    ``Max``, ``Mean``, ``Top`` and ``Fold`` are there; write ``on_window``, or other hooks.
    """


def _shown(place: str, shown: Callable[[Any], Any]) -> property:
    return property(lambda self: shown(getattr(self, place)))


def _adder(declared: dict[str, Aggregate]) -> Any:
    lines = ["def on_event_of_aggregates(self, event):"]
    bindings: dict[str, Any] = {}
    for number, (name, each) in enumerate(declared.items()):
        state = f"self.{name if each.shown is None else '_' + name}"
        lines.append(f"    {state} = {_filled(each.add, number, each, state, '', bindings)}")
    return compiled("on_event_of_aggregates", lines, bindings)


def _merger(declared: dict[str, Aggregate]) -> Any:
    lines = ["def merge(self, later):"]
    bindings: dict[str, Any] = {}
    for number, (name, each) in enumerate(declared.items()):
        place = name if each.shown is None else "_" + name
        state, other = f"self.{place}", f"later.{place}"
        lines.append(f"    {state} = {_filled(each.both, number, each, state, other, bindings)}")
    return compiled("merge", lines, bindings)


def _filled(
    text: str, number: int, each: Aggregate, state: str, other: str, bindings: dict[str, Any]
) -> str:
    """A source text of an aggregate with its names in it."""
    for place, value in enumerate(each.bindings):
        bindings[f"_b{number}_{place}"] = value
        text = text.replace(f"{{b{place}}}", f"_b{number}_{place}")
    text = text.replace("{v}", f"event.{each.field}").replace("{e}", "event")
    return text.replace("{s}", state).replace("{o}", other)
