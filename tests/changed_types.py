"""Two versions of event types and PEs, for each row of the table of docs/state.md."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness import ROOT
from shared_apps import handler_of

from s4node import Event, GenericEvent, ProcessingElement
from s4node.app.processing_element import ElementType


class Kind(enum.Enum):
    NEW = "new"


class LaterKind(enum.Enum):
    NEW = "new"
    PAID = "paid"


@dataclass
class Item:
    name: str


@dataclass
class LaterItem:
    name: str
    quantity: int = 1


class Order(Event):
    user: str
    cents: int
    kind: Kind
    item: Item | None


def order() -> Order:
    return Order("joe", 5, Kind.NEW, Item("tea"))


def _order(name: str = "Order", **changed: tuple[Any, ...]) -> type[Event]:
    """A version of Order; a changed field has a type, perhaps a default, or ``()`` if gone."""
    given: dict[str, tuple[Any, ...]] = {
        "user": (str,), "cents": (int,), "kind": (Kind,), "item": (Item | None,), **changed,
    }  # fmt: skip
    body = {field: each[1] for field, each in given.items() if len(each) > 1}
    annotations = {field: each[0] for field, each in given.items() if each}
    named = {"event_name": name, "__module__": __name__, "__annotations__": annotations}
    made: type[Event] = type(Event)(name, (Event,), {**named, **body})
    return made


class EventChange(NamedTuple):
    row: str
    later: type[Event]


EVENTS = [
    EventChange("a field at the end, with a default", _order(note=(str, "-"))),
    EventChange("a field at the end, without one", _order(note=(str,))),
    EventChange("a field removed at the end", _order(item=())),
    EventChange("a field renamed, moved, or removed before others", _order(cents=())),
    EventChange("`int` to `int \\| None`", _order(cents=(int | None,))),
    EventChange("an enum or Literal with one more member", _order(kind=(LaterKind,))),
    EventChange(
        "a nested type with one more field with a default", _order(item=(LaterItem | None,))
    ),
    EventChange("`int` to `float`", _order(cents=(float,))),
    EventChange("`int \\| None` to `int`, an enum with one member less", _order(item=(Item,))),
    EventChange("the type of the stream's key", _order(user=(str | int,))),
    EventChange("another name", _order("Purchase")),
]


globals().update({f"Later{number}": each.later for number, each in enumerate(EVENTS)})  # for Spark


def _state(name: str, migrate: Any = None, **attributes: Any) -> type[ProcessingElement]:
    annotations = {each: kind for each, (kind, _) in attributes.items()}
    body = {each: default for each, (_, default) in attributes.items()}
    more = {} if migrate is None else {"migrate": staticmethod(migrate)}
    on_event = handler_of(GenericEvent)
    return ElementType(
        name, (ProcessingElement,),
        {"__annotations__": annotations, "on_event": on_event, **body, **more},
    )  # fmt: skip


class StateChange(NamedTuple):
    row: str
    first: type[ProcessingElement]
    later: type[ProcessingElement]


STATE = [
    StateChange(
        "an attribute more",
        _state("A", n=(int, 0)), _state("A", n=(int, 0), more=(str, "")),
    ),
    StateChange(
        "an attribute less, or renamed",
        _state("B", n=(int, 0)), _state("B", m=(int, 0)),
    ),
    StateChange(
        "the same, with `migrate`",
        _state("C", n=(int, 0)), _state("C", lambda saved: {"m": saved["n"]}, m=(int, 0)),
    ),
    StateChange(
        "`int` to `int \\| None`, an enum with one member more",
        _state("D", n=(int, 0), kind=(Kind, Kind.NEW)),
        _state("D", n=(int | None, None), kind=(LaterKind, LaterKind.NEW)),
    ),
    StateChange(
        "a nested type with one more field with a default",
        _state("E", item=(Item | None, None)), _state("E", item=(LaterItem | None, None)),
    ),
    StateChange(
        "`int` to `float`, or to another type without all values of the former",
        _state("F", n=(int, 0)), _state("F", n=(float, 0.0)),
    ),
    StateChange(
        "the name of a PE",
        _state("G", n=(int, 0)), _state("Other", n=(int, 0)),
    ),
]  # fmt: skip


def table(heading: str) -> dict[str, dict[str, str]]:
    """The cells of a table of docs/state.md, by row and column."""
    page = (ROOT / "docs" / "state.md").read_text(encoding="utf-8")
    part = page[page.index(heading) :]
    lines = [
        line
        for line in part[: part.index("\n\n", part.index("|---"))].splitlines()
        if line[:1] == "|"
    ]
    (_, *columns), _, *rows = (
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines
    )
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}


def said(outcome: str, cell: str) -> bool:
    """Return True if a cell says what came out: ``accepted``, or the words of a refusal."""
    words = re.findall("`([^`]*)`", cell)
    if not cell.startswith("refused"):
        return outcome == cell.partition(",")[0]
    return bool(words) and all(word in outcome for word in words)
