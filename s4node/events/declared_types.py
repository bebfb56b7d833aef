"""Checks, and keys, of JSON objects by a declared type, without its class. Pure.

Rules
- An object has the fields of the declaration and no others, with values of their types.
- A declaration does not say what the class itself checks, which fields of nested types have
  defaults, or how the structs of a union differ. So what passes here may be refused by the owner of
  the class, but nothing that it takes is refused here.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal, Union
from uuid import UUID

import msgspec

from s4node.events.routing import KeyRule
from s4node.events.schema import GENERIC, UNREADABLE
from s4node.events.type_declaration import TypeDecl
from s4node.events.type_text import Alternative, DictOf, Fields, Items, Name, Type, TypeParser

_INT = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_KINDS: dict[str, Any] = {
    "none": None,
    "bool": bool,
    "int": _INT,
    "float": float,
    "str": str,
    "bytes": bytes,
    "bytearray": bytes,
    "datetime": datetime,
    "date": date,
    "time": time,
    "timedelta": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}


class ObjectChecks:
    def __init__(self, declared: TypeDecl) -> None:
        kind = _object_of(declared)
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._all: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def refusals(self, texts: list[bytes]) -> list[tuple[int, str]]:
        try:
            self._all.decode(b"[" + b",".join(texts) + b"]")
        except UNREADABLE:
            return [(at, why) for at, text in enumerate(texts) if (why := self._refusal(text))]
        return []

    def _refusal(self, text: bytes) -> str:
        try:
            self._one.decode(text)
        except UNREADABLE as error:
            return str(error)
        return ""


def key_of_texts(declared: TypeDecl, named: str) -> KeyRule | None:
    """The rule by which a producer finds the keys of JSON objects of a type; None if it cannot: the
    key is a function, or a field that an object may lack."""
    if not named or named[0] in "@?":
        return None
    fields = {
        name: _KINDS[kind]
        for name, kind, required in declared.fields
        if required and kind in ("str", "int", "bytes")
    }
    names = named.split("+")
    if not fields.keys() >= set(names):
        return None
    kind = msgspec.defstruct(
        "Key", [(f"k{at}", fields[name], msgspec.field(name=name)) for at, name in enumerate(names)]
    )
    decode = msgspec.json.Decoder(kind).decode
    keys = attrgetter(*(f"k{at}" for at in range(len(names))))
    rule = KeyRule(lambda text: keys(decode(text)))
    rule.name = named
    return rule


@lru_cache(256)
def checks_of(declared: TypeDecl) -> ObjectChecks:
    return ObjectChecks(declared)


def _object_of(declared: TypeDecl) -> Any:
    if declared.name == GENERIC:
        return dict[str, Any]
    try:
        return _struct(declared, _of_text)
    except TypeError:  # a union whose classes msgspec would need
        return _struct(declared, lambda _: Any)


def _struct(declared: TypeDecl, of_text: Any) -> Any:
    fields: list[Any] = [
        (
            f"f{at}",
            of_text(kind),
            msgspec.field(name=name, **({} if required else {"default": None})),
        )
        for at, (name, kind, required) in enumerate(declared.fields)
    ]
    made = msgspec.defstruct(declared.name, fields, forbid_unknown_fields=True, kw_only=True)
    msgspec.json.Decoder(made)
    return made


def _of_text(text: str) -> Any:
    try:
        return _of(TypeParser(text, marked=False).whole())
    except ValueError:
        return Any


def _of(kind: Type) -> Any:
    if sum(isinstance(each, Fields) for each in kind) > 1:
        return Any
    return Union[tuple(map(_one, kind))]  # noqa: UP007 - made at run time


def _one(kind: Alternative) -> Any:
    match kind:
        case Name("enum" | "literal", values):
            return Literal[tuple(_values(values))]
        case Name(name):
            return _KINDS.get(name, Any)
        case Items([item]):
            return list[_of(item)]  # type: ignore[misc]
        case Items(items):
            return tuple[tuple(map(_of, items))]  # type: ignore[misc]
        case DictOf(key, value):
            return dict[_of(key), _of(value)]  # type: ignore[misc]
        case Fields(fields):
            inner = [
                (f"f{at}", _of(each), msgspec.field(name=name, default=None))
                for at, (name, each) in enumerate(fields)
            ]
            return msgspec.defstruct("Nested", inner, kw_only=True)


def _values(texts: frozenset[str]) -> list[Any]:
    """The values that an enum or Literal may have, which are known as texts."""
    numbers = [int(text) for text in texts if text.lstrip("-").isdecimal()]
    return [*sorted(texts), *numbers, *([None] if "None" in texts else [])]
