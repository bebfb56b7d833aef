"""Declared aggregates: a PE class that names what it counts, adds up or keeps of its events. Pure.

Rules
- Each aggregate is an attribute of the state with its initial value. ``on_event`` and ``merge`` are
  generated from all of them, so they work in windows of every kind, and without windows.
- An aggregate that keeps another value than it shows (a mean) keeps it in ``_name``.
- The type of the events says of which type a field is, and so is the state: a sum of ints is an
  int. Without it, a field has numbers.
- ``Min``, ``Max`` and ``Top`` leave NaN out, which is not less or greater than anything, and count
  it in the metric ``<PE>-nan``; ``Sum`` and ``Mean`` show it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from heapq import merge, nlargest
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from msgspec import structs

from s4node.app.processing_element import ElementType, ProcessingElement
from s4node.errors import EventError, GraphError
from s4node.events.event import Event
from s4node.events.routing import compiled

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
_SMALL = (1 << 30) - 1  # what Python compares quickly
_ZEROS: dict[Any, Any] = {int: 0, float: 0.0, Decimal: Decimal(0), timedelta: timedelta(0)}
_NUMBER: Any = int | float


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


class OfField(NamedTuple):
    """An aggregate that depends on the types of fields: ``made`` makes it of those, in order."""

    made: Callable[..., Aggregate]
    fields: tuple[str, ...]


def Count() -> Any:  # noqa: N802 - as a class would be
    """The number of events."""
    return Aggregate(int, 0, "{s} + 1", "{s} + {o}")


def Sum(field: str) -> Any:  # noqa: N802
    """The sum of a field of ints, floats, Decimals or timedeltas; it is of the field's type.

    An event with which a sum of ints is beyond 64 bits is an error.
    """

    def made(kind: Any) -> Aggregate:
        state = kind if kind in _ZEROS else _NUMBER
        add, both = "{s} + {v}", "{s} + {o}"
        if state in (int, _NUMBER):
            within = f"{{{{b0}}}}(t) if (t := {{}}) > {_SMALL} or t < -{_SMALL} else t"
            add, both = within.format(add), within.format(both)
        return Aggregate(state, _ZEROS.get(kind, 0), add, both, field, None, (in_64_bits,))

    return OfField(made, (_field("Sum", field),))


def Min(field: str) -> Any:  # noqa: N802
    """The least value of a field; None without events."""
    return OfField(lambda kind: _extreme("<", kind, field), (_field("Min", field),))


def Max(field: str) -> Any:  # noqa: N802
    """The greatest value of a field; None without events."""
    return OfField(lambda kind: _extreme(">", kind, field), (_field("Max", field),))


def _extreme(better: str, kind: Any, field: str) -> Aggregate:
    value = f"{{x}} if {{s}} is None or {{x}} {better} {{s}} else {{s}}"
    add, both = value.replace("{x}", "{v}"), value.replace("{x}", "{o}")
    both = f"{{s}} if {{o}} is None else ({both})"
    return Aggregate(kind | None, None, _without_nan(kind, add), both, field, None, (count_nan,))


def Mean(field: str) -> Any:  # noqa: N802
    """The mean of a field of numbers, Decimals or timedeltas; None without events."""

    def made(kind: Any) -> Aggregate:
        kind = kind if kind in (Decimal, timedelta) else float
        add = "({s}[0] + {v}, {s}[1] + 1)"
        both = "({s}[0] + {o}[0], {s}[1] + {o}[1])"
        return Aggregate(
            tuple[kind, int], (_ZEROS[kind], 0), add, both, field,
            lambda state: state[0] / state[1] if state[1] else None,
        )  # fmt: skip

    return OfField(made, (_field("Mean", field),))


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

    def made(kind: Any, of_kind: Any = None) -> Aggregate:
        value = "({v}, {e}." + of + ")" if of else "{v}"
        adding = _without_nan(kind, "{b1}({s}, " + value + ")")
        held: Any = kind
        if of:
            held = tuple[kind, Any if of_kind is _NUMBER else of_kind]  # type: ignore[misc]
        bindings = count_nan, add, both
        return Aggregate(list[held], [], adding, "{b2}({s}, {o})", field, None, bindings)

    fields = (_field("Top", field), _field("Top", of)) if of else (_field("Top", field),)
    return OfField(made, fields)


def _without_nan(kind: Any, add: str) -> str:
    """Have an event with NaN counted instead of added, if values of a type may be NaN."""
    may_be = {float, Decimal} & {kind, *get_args(kind)}
    return f"({add}) if {{v}} == {{v}} else {{b0}}(self, {{s}})" if may_be else add


def count_nan(pe: Any, state: Any) -> Any:
    """The state as it was, after an event with NaN, which is counted."""
    pe.app.metrics.counter(f"{pe._prototype.name}-nan").increment()
    return state


def in_64_bits(total: Any) -> Any:
    """A sum; raises EventError for a whole number that no row has room for."""
    if type(total) is int and not _LEAST <= total <= _MOST:
        raise EventError(f"the sum is {total}, beyond 64 bits; make the field a float or Decimal")
    return total


def _kind_of(of: type | None, name: str) -> Any:
    """The type of a field of events, without None and annotations; a number if it is not known."""
    if of is None or not issubclass(of, Event):
        return _NUMBER
    kinds = {field.name: field.type for field in structs.fields(of)}
    kind = kinds.get(name, _NUMBER)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        kind = Union[tuple(each for each in get_args(kind) if each is not NoneType)]  # noqa: UP007
    return kind


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
        for base in bases:
            of = of or getattr(base, "_of", None)
        declared: dict[str, Aggregate] = {}
        for attribute, each in namespace.items():
            if isinstance(each, OfField):
                each = each.made(*(_kind_of(of, field) for field in each.fields))
            if isinstance(each, Aggregate):
                declared[attribute] = each
        every: dict[str, Aggregate] = {}
        for base in reversed(bases):
            every |= getattr(base, "_aggregates", {})
        every |= declared
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
    for place, value in enumerate(each.bindings):
        bindings[f"_b{number}_{place}"] = value
        text = text.replace(f"{{b{place}}}", f"_b{number}_{place}")
    text = text.replace("{v}", f"event.{each.field}").replace("{e}", "event")
    return text.replace("{s}", state).replace("{o}", other)
