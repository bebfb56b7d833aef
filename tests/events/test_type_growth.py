"""A reader's type may have more values than the writer's, but none of the writer's is lost."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from s4node.events.event import Event
from s4node.events.schema import EventType


class One(enum.Enum):
    NEW = "new"


class Two(enum.Enum):
    NEW = "new"
    PAID = "paid"


class Odd(enum.Enum):
    NEW = "new)"
    PAID = "paid"


@dataclass
class Item:
    name: str


@dataclass
class Counted:
    name: str
    quantity: int = 1


@dataclass
class Bare:
    name: str
    quantity: int


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Place(NamedTuple):
    x: int


class Spot(NamedTuple):
    x: int
    y: int = 0


class Loose(TypedDict):
    name: str
    quantity: NotRequired[int]


class Inner(Event):
    name: str


class Grown(Event):
    name: str
    quantity: int | None = None


class Dog(msgspec.Struct, tag=True):
    name: str


class Cat(msgspec.Struct, tag=True):
    name: str


class Cow(msgspec.Struct, tag=True):
    name: str
    milk: int = 0


class Dear(msgspec.Struct, tag="Cow"):
    name: str
    milk: int
    price: int = 0


class Node(msgspec.Struct):
    name: str
    inside: list[Node] = []


class Leafy(msgspec.Struct):
    name: str
    inside: list[Leafy] = []
    leaf: bool = False


Leafy.__name__ = "Node"  # as its later version is called


def holding(kind: Any) -> EventType:
    return EventType(type(Event)("E", (Event,), {"__annotations__": {"held": kind}}))


TAKEN = [
    (int, int | None, 5, 5),
    (int, int | str | None, 5, 5),
    (int, Any, 5, 5),
    (int, int | float, 2**53 + 1, 2**53 + 1),
    (One, Two, One.NEW, Two.NEW),
    (Literal["a"], Literal["b", "a"], "a", "a"),
    (Item, Counted, Item("tea"), Counted("tea", 1)),
    (Item, Counted | None, Item("tea"), Counted("tea", 1)),
    (Item, Loose, Item("tea"), {"name": "tea"}),
    (Counted, Item, Counted("tea", 2), Item("tea")),
    (list[Item], list[Counted], [Item("tea")], [Counted("tea", 1)]),
    (
        dict[str, list[Item]],
        dict[str, list[Counted]],
        {"a": [Item("tea")]},
        {"a": [Counted("tea")]},
    ),
    (tuple[int, Item], tuple[int | None, Counted], (1, Item("tea")), (1, Counted("tea", 1))),
    (tuple[()], tuple[()], (), ()),
    (Place, Spot, Place(1), Spot(1, 0)),
    (Inner, Grown, Inner("tea"), Grown("tea", None)),
    (Dog | Cat, Dog | Cat | Cow, Cat("tom"), Cat("tom")),
    (Node, Leafy, Node("a", [Node("b")]), Leafy("a", [Leafy("b")])),
]

REFUSED = [
    (int, float),  # 2**53 + 1 would become another number
    (int | None, int),
    (int, str),
    (bool, int),
    (Item, Any),  # it would become a dict
    (Two, One),
    (Literal["a", "b"], Literal["a"]),
    (Item, Bare),
    (Counted, Closed),
    (Spot, Place),
    (dict[str, int], dict[str | None, int]),
    (tuple[int, int], tuple[int, int, int]),
    (tuple[int, int], tuple[int]),
    (Item, Dog | Cow),  # it has no tag
    (Dog | Cow, Dog | Dear),
    (Odd, Grown),
    (Odd, Two),
]


@pytest.mark.parametrize(("writer", "reader", "value", "read"), TAKEN)
def test_a_type_that_has_all_values_of_the_writer_s_reads_them(
    writer: Any, reader: Any, value: Any, read: Any
) -> None:
    theirs, ours = holding(writer), holding(reader)
    assert ours.refusal_of(theirs.declaration) is None
    (event,) = ours.decode(theirs.encode([theirs.cls(value)]))
    assert event.held == read


@pytest.mark.parametrize(("writer", "reader"), REFUSED)
def test_a_type_that_lacks_values_of_the_writer_s_is_refused_by_name(
    writer: Any, reader: Any
) -> None:
    reason = holding(reader).refusal_of(holding(writer).declaration)
    assert reason is not None
    assert reason.startswith("E: field held: ")
    assert reason.endswith("; a reader's type has to take all values of the writer's")


def test_a_sender_that_knows_a_reader_s_words_leaves_nested_defaults_to_the_reader() -> None:
    reader, writer = holding(Bare), holding(Item)
    assert reader.declaration.refusal_of(writer.declaration) is None
    assert reader.refusal_of(writer.declaration) is not None


def test_the_type_of_a_key_or_a_time_does_not_change() -> None:
    reader = EventType(holding(int | None).cls, ["held"])
    assert reader.refusal_of(holding(int | None).declaration) is None
    assert reader.refusal_of(holding(int).declaration) == (
        "E: field held: int where this side has held: int|none; the type of a key or a time "
        "may not change"
    )
