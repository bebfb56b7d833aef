"""A type in words that do not depend on how Python spells it: for fingerprints. Pure."""

from __future__ import annotations

from msgspec import inspect


def words(kind: inspect.Type, seen: tuple[type, ...] = ()) -> str:
    """A type in words that do not depend on Python's spelling of it."""
    match kind:
        case inspect.AnyType():
            return "any"
        case inspect.UnionType(types=types):
            # sorted: typing may give an equal union that another module wrote the other way round
            return "|".join(sorted(words(part, seen) for part in types))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"[{words(item, seen)}]"
        case inspect.SetType(item_type=item) | inspect.FrozenSetType(item_type=item):
            return f"[{words(item, seen)}]"
        case inspect.TupleType(item_types=items):
            return f"[{','.join(words(item, seen) for item in items)}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"{{{words(key, seen)}:{words(value, seen)}}}"
        case (
            inspect.StructType(cls=cls, fields=fields)
            | inspect.DataclassType(cls=cls, fields=fields)
            | inspect.TypedDictType(cls=cls, fields=fields)
            | inspect.NamedTupleType(cls=cls, fields=fields)
        ):
            if cls in seen:
                return cls.__name__
            inside = ",".join(f"{f.encode_name}:{words(f.type, (*seen, cls))}" for f in fields)
            return f"({inside})"
        case inspect.EnumType(cls=cls):
            return f"enum({','.join(str(member.value) for member in cls)})"
        case inspect.CustomType(cls=cls):
            raise TypeError(f"{cls.__name__} is not a type that can be encoded")
        case inspect.LiteralType(values=values):
            return f"literal({','.join(map(str, values))})"
    return type(kind).__name__.removesuffix("Type").lower()
