"""Types as text, and how one may change between a writer and its readers. Pure.

Rules
- A text does not depend on how Python spells the type: fingerprints are made of it.
- A reader takes a type if every value of the writer's type is a value of its own. So its type may
  have more: None or other alternatives, members of enums and Literals, and in nested types fields
  with defaults at the end. ``Any`` takes numbers, text, bytes, truth values and None.
- Fields that the reader's nested type lacks at the end are dropped, unless it forbids them.
- An ``int`` is not a ``float``: beyond 2**53 it would be another number. The keys of a dict do not
  change.
- A type as text lacks the tags of structs, so the structs of a union do not change; more may be
  added to several of them. Nor do enums change whose values have brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import inspect

DEFAULT, CLOSED = "=", "!"
"""The marks behind a field of a nested type with a default, and behind a type that takes no fields
but its own. A text without marks is that of fingerprints."""

T = TypeVar("T")

_SIMPLE = {"none", "bool", "int", "float", "str", "bytes"}  # they are the same as Any
_NAME = re.compile(r"(enum|literal)\(([^()]*)\)|\w+")
_NO_MARKS = str.maketrans("", "", CLOSED + DEFAULT)
_FIELD = re.compile(r"[^:(){}\[\]|,]+")


class Name(NamedTuple):
    """A type that has a name, or an enum or Literal with its values."""

    name: str
    values: frozenset[str] = frozenset()


class Items(NamedTuple):
    """A list, a set or a tuple."""

    items: list[Type]


class DictOf(NamedTuple):
    key: Type
    value: Type


class Fields(NamedTuple):
    """A nested type: the names and types of its fields, and how many come before the defaults."""

    fields: list[tuple[str, Type]]
    required: int
    closed: bool
    text: str


Alternative: TypeAlias = Name | Items | DictOf | Fields
Type: TypeAlias = list[Alternative]


@lru_cache(1024)
def takes(reader: str, writer: str, *, marked: bool) -> bool:
    """Return True if every value of ``writer``'s type is a value of ``reader``'s.

    If the reader's types are not ``marked``, all fields of its nested types may have defaults.
    """
    try:
        return _type_takes(TypeParser(reader, marked).whole(), TypeParser(writer, False).whole())
    except ValueError:
        return False


def _type_takes(reader: Type, writer: Type) -> bool:
    tagged = _structs(reader) > 1
    if tagged and _structs(writer) == 1:  # which may have no tag
        return False
    return all(any(_takes(mine, its, tagged) for mine in reader) for its in writer)


def _structs(kind: Type) -> int:
    return sum(isinstance(each, Fields) for each in kind)


def _takes(reader: Alternative, writer: Alternative, tagged: bool) -> bool:
    match reader, writer:
        case Name(), Name():
            same = reader.name == writer.name and reader.values >= writer.values
            return same or (reader.name == "any" and writer.name in _SIMPLE)
        case Items(mine), Items(its):
            return len(mine) == len(its) and all(map(_type_takes, mine, its))
        case DictOf(), DictOf():
            return reader.key == writer.key and _type_takes(reader.value, writer.value)
        case Fields(), Fields() if tagged:
            return reader.text == writer.text
        case Fields(mine), Fields(its):
            return (
                reader.required <= len(its)
                and (len(its) <= len(mine) or not reader.closed)
                and all(
                    a == b and _type_takes(x, y) for (a, x), (b, y) in zip(mine, its, strict=False)
                )
            )
    return False


class TypeParser:
    """Parses the text of a type; raises ValueError if it is not as expected."""

    def __init__(self, text: str, marked: bool) -> None:
        self._text = text
        self._marked = marked
        self._at = 0

    def whole(self) -> Type:
        found = self._type()
        if self._at < len(self._text):
            raise ValueError(self._text)
        return found

    def _type(self) -> Type:
        found = [self._alternative()]
        while self._skip("|"):
            found.append(self._alternative())
        return found

    def _alternative(self) -> Alternative:
        began = self._at
        if self._skip("["):
            return Items(self._several("]", self._type))
        if self._skip("{"):
            key = self._type()
            self._expect(":")
            value = self._type()
            self._expect("}")
            return DictOf(key, value)
        if self._skip("("):
            fields = self._several(")", self._field)
            closed = self._skip(CLOSED)
            required = max((n for n, (_, _, free) in enumerate(fields, 1) if not free), default=0)
            text = self._text[began : self._at].translate(_NO_MARKS)
            return Fields([each[:2] for each in fields], required, closed, text)
        found = self._match(_NAME)
        values = found[2].split(",") if found[2] is not None else ()
        return Name(found[1] or found[0], frozenset(values))

    def _field(self) -> tuple[str, Type, bool]:
        name = self._match(_FIELD)[0]
        self._expect(":")
        return name, self._type(), self._skip(DEFAULT) or not self._marked

    def _several(self, end: str, part: Callable[[], T]) -> list[T]:
        found: list[T] = []
        while not self._skip(end):
            if found:
                self._expect(",")
            found.append(part())
        return found

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(self._text)
        self._at = found.end()
        return found

    def _skip(self, mark: str) -> bool:
        there = self._text.startswith(mark, self._at)
        self._at += there
        return there

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise ValueError(self._text)


def type_text(kind: inspect.Type, seen: tuple[type, ...] = (), *, marked: bool = False) -> str:
    of = partial(type_text, seen=seen, marked=marked)
    match kind:
        case inspect.AnyType():
            return "any"
        case inspect.UnionType(types=types):
            # sorted: typing may give an equal union that another module wrote the other way round
            return "|".join(sorted(map(of, types)))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"[{of(item)}]"
        case inspect.SetType(item_type=item) | inspect.FrozenSetType(item_type=item):
            return f"[{of(item)}]"
        case inspect.TupleType(item_types=items):
            return f"[{','.join(map(of, items))}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"{{{of(key)}:{of(value)}}}"
        case (
            inspect.StructType(cls=cls, fields=fields)
            | inspect.DataclassType(cls=cls, fields=fields)
            | inspect.TypedDictType(cls=cls, fields=fields)
            | inspect.NamedTupleType(cls=cls, fields=fields)
        ):
            if cls in seen:
                return cls.__name__
            inside = ",".join(
                f"{f.encode_name}:{type_text(f.type, (*seen, cls), marked=marked)}"
                + (DEFAULT if marked and not f.required else "")
                for f in fields
            )
            return f"({inside})" + (CLOSED if marked and _is_closed(kind) else "")
        case inspect.EnumType(cls=cls):
            return f"enum({','.join(str(member.value) for member in cls)})"
        case inspect.CustomType(cls=cls):
            raise TypeError(f"{cls.__name__} is not a type that can be encoded")
        case inspect.LiteralType(values=values):
            return f"literal({','.join(map(str, values))})"
    return type(kind).__name__.removesuffix("Type").lower()


def _is_closed(kind: inspect.Type) -> bool:
    """Return True if a value with more fields than these is none of the type."""
    forbids = isinstance(kind, inspect.StructType) and kind.forbid_unknown_fields
    return forbids or isinstance(kind, inspect.NamedTupleType)
