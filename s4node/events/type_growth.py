"""How a type may change between a writer and its readers, by the types as text. Pure.

Rules
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
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

from s4node.events.type_text import CLOSED, DEFAULT

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
