"""A type as text that does not depend on how Python spells it: for fingerprints. Pure."""

from __future__ import annotations

from functools import partial

from msgspec import inspect

DEFAULT, CLOSED = "=", "!"
"""The marks behind a field of a nested type with a default, and behind a type that takes no fields
but its own. A text without marks is that of fingerprints."""


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
