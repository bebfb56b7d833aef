"""The one table of counts: a name, labels and a value, from the statistics that declare them. Pure.

Rules
- A family is declared once: as a field of a class of statistics, ``Annotated`` with its kind and
  meaning. Its name is ``s4_``, the prefix of the class and the field's name. Reporters,
  ``/metrics`` and ``docs/metrics.md`` have it from there, ``s4 status`` and ``top`` the field.
- A field that is a dictionary has a label for its keys.
- Added up over tasks and partitions, counters and gauges are sums; of some gauges the most counts,
  or the least.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

Value = int | float | str

SUM = "sum"
MOST = "most"
LEAST = "least"


class Sample(NamedTuple):
    """A value of a family; counted since the start if that is a counter."""

    name: str
    labels: dict[str, str]
    value: Value


class Family(NamedTuple):
    """The description of a field's values. ``labels`` are for keys of dictionaries; ``of`` returns
    the number in a value, or None. One of a ``place`` is of no use added up over partitions."""

    kind: str
    meaning: str
    labels: tuple[str, ...] = ()
    merge: str = SUM
    of: Callable[[Any], float | None] | None = None
    place: bool = False

    def merged(self, one: float, other: float) -> float:
        """The value of two sources together."""
        if self.merge == SUM:
            return one + other
        return max(one, other) if self.merge == MOST else min(one, other)


class Keyed(NamedTuple):
    """Marks further statistics; the keys of a dictionary of them have this label."""

    label: str = ""


def finite(found: Iterable[Sample], most: int = 1000) -> list[Sample]:
    """The values that are finite numbers, at most ``most``, as plain data whatever was set."""
    numbers = ((each, _number(each.value)) for each in found)
    kept = (
        Sample(each.name, {label: _plain(text) for label, text in each.labels.items()}, number)
        for each, number in numbers
        if number is not None
    )
    return list(islice(kept, most))


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _plain(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode()


def counter(meaning: str, *labels: str) -> Family:
    return Family("counter", meaning, labels)


def gauge(meaning: str, *labels: str) -> Family:
    return Family("gauge", meaning, labels)


class _Shape(NamedTuple):
    labels: list[tuple[str, str]]
    families: list[tuple[str, str, Family]]
    nested: list[tuple[str, str, type[msgspec.Struct]]]


@cache
def _shape(kind: type[msgspec.Struct]) -> _Shape:
    """The labels, families with their names, and further statistics of a class, by field."""
    prefix: str = getattr(kind, "PREFIX", "")
    labels: Mapping[str, str] = getattr(kind, "LABELS", {})
    families: list[tuple[str, str, Family]] = []
    nested: list[tuple[str, str, type[msgspec.Struct]]] = []
    hints = get_type_hints(kind, include_extras=True)
    for field in kind.__struct_fields__:
        for mark in getattr(hints[field], "__metadata__", ()):
            if isinstance(mark, Family):
                end = "_total" if mark.kind == "counter" else ""
                families.append((field, f"s4_{prefix}{field}{end}", mark))
            elif isinstance(mark, Keyed):
                nested.append((field, mark.label, _inner(hints[field])))
    return _Shape(list(labels.items()), families, nested)


def _inner(hint: Any) -> Any:
    """The class of statistics in an annotation."""
    while arguments := get_args(hint):
        hint = arguments[-1] if get_origin(hint) is dict else arguments[0]
    return hint


def samples(found: msgspec.Struct, **labels: str) -> Iterator[Sample]:
    """The samples of statistics and all further ones in them."""
    shape = _shape(type(found))
    for field, label in shape.labels:
        value = getattr(found, field)
        if value is not None:
            labels[label] = str(value)
    for field, name, family in shape.families:
        yield from _values(name, family, getattr(found, field), labels, family.labels)
    for field, label, _ in shape.nested:
        inner = getattr(found, field)
        if isinstance(inner, msgspec.Struct):
            yield from samples(inner, **labels)
        elif isinstance(inner, Mapping):
            for key, each in inner.items():
                yield from samples(each, **labels, **{label: key})
        else:
            for each in inner:
                yield from samples(each, **labels)


def _values(
    name: str, family: Family, found: Any, labels: dict[str, str], keys: tuple[str, ...]
) -> Iterator[Sample]:
    if keys:
        for key, value in found.items():
            yield from _values(name, family, value, {**labels, keys[0]: key}, keys[1:])
        return
    value = found if family.of is None else family.of(found)
    if value is not None:
        yield Sample(name, dict(labels), value)


def families(kind: type[msgspec.Struct], *labels: str) -> dict[str, Family]:
    """The families of a class of statistics and all further ones in it, with all their labels."""
    shape = _shape(kind)
    labels += tuple(label for _, label in shape.labels)
    found = {
        name: family._replace(labels=labels + family.labels) for _, name, family in shape.families
    }
    for _, label, inner in shape.nested:
        found |= families(inner, *labels, *([label] if label else []))
    return found


def add(total: Any, found: msgspec.Struct) -> None:
    """Add the counts that ``total`` has fields for; None, for unknown, stays None."""
    for field, _, family in _shape(type(found)).families:
        if field not in total.__struct_fields__:
            continue
        before, more = getattr(total, field), getattr(found, field)
        value: Any = None
        if isinstance(before, dict):
            value = dict(Counter(before) + Counter(more))
        elif before is not None and more is not None:
            value = family.merged(before, more)
        setattr(total, field, value)
