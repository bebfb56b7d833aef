"""Copies of events with lists, dicts and the like, so that no two owners share one. Pure.

Rules
- An event is copied when it is put or sent, if its class has a field whose value can change. What
  to copy is known from the types of the fields, once for a class.
- In a GenericEvent, and in a field that may hold anything, the class of the value decides.
- Lists, dicts, sets, bytearrays, and structs and dataclasses are copied at any depth, unless they
  cannot change. Objects of other classes, which cannot leave the process, are not.
- An event that was made in the call of ``put``, with lists and dicts that nothing else refers to,
  is the receiver's alone as it is. CPython's counts of references show that, up to 3.13; later
  versions do not count those of a caller's variables.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import inspect

from s4node.events.event import GenericEvent
from s4node.events.keepable import parts_of
from s4node.events.routing import compiled

Copier: TypeAlias = Callable[[Any], Any]

_CHANGES = (
    inspect.AnyType,
    inspect.ListType,
    inspect.DictType,
    inspect.SetType,
    inspect.ByteArrayType,
    inspect.MemoryViewType,
    inspect.TypedDictType,
)
_FIXED = frozenset(
    (type(None), bool, int, float, str, bytes, date, time, datetime, timedelta, Decimal, UUID)
)
_COUNTED = (
    sys.implementation.name == "cpython"
    and sys.version_info < (3, 14)
    and "t" not in getattr(sys, "abiflags", "")  # without the GIL
)
"""True if each reference to an object is counted, also that of a variable."""


def copier_of(cls: type) -> Copier | None:
    """Return what copies an event, or a value, of a class; None if it cannot change."""
    return _COPIERS[cls]


def copied(value: Any) -> Any:
    """An event, or a value; a copy of one that can change."""
    copier = _COPIERS[value.__class__]
    return value if copier is None else copier(value)


def copies_of(events: Sequence[Any]) -> Sequence[Any]:
    if all(_COPIERS[cls] is None for cls in set(map(type, events))):
        return events
    return list(map(copied, events))


def sharing(cls: type, event: str) -> str:
    """Source text that is false if nothing but a variable of a function refers to an event.

    Nor may anything but the event refer to its lists and dicts. ``refs`` is sys.getrefcount.
    """
    kinds = {list: inspect.ListType, dict: inspect.DictType}
    plain = issubclass(cls, msgspec.Struct) and not (cls.__weakrefoffset__ or cls.__dictoffset__)
    if not plain or not _COUNTED:
        return "True"
    tests = [f"refs({event}) != 2"]
    for field in inspect.type_info(cls).fields:  # type: ignore[attr-defined]
        value = f"{event}.{field.name}"
        copy_of = _copying(field.type, value)
        if copy_of == value:
            continue
        made = next((made for made, kind in kinds.items() if isinstance(field.type, kind)), None)
        if made is None or copy_of != f"{value}.copy()" or keyword.iskeyword(field.name):
            return "True"
        tests.append(f"refs({value}) != 2 or {value}.__class__ is not {made.__name__}")
    return " or ".join(tests)


class _Copiers(dict[type, Copier | None]):
    def __missing__(self, cls: type) -> Copier | None:
        found = self[cls] = _copier(cls)
        return found


def _copy_generic(event: GenericEvent) -> GenericEvent:
    """The event itself, frozen, unless one of its values can change."""
    event.freeze()
    attributes = event._attributes
    if _FIXED.issuperset(map(type, attributes.values())):
        return event
    return GenericEvent.from_attributes({n: copied(value) for n, value in attributes.items()})


_COPIERS = _Copiers({**dict.fromkeys(_FIXED), GenericEvent: _copy_generic})


def _copier(cls: type) -> Copier | None:
    if issubclass(cls, list):
        return lambda value: [copied(each) for each in value]
    if issubclass(cls, dict):
        return lambda value: {key: copied(each) for key, each in value.items()}
    if issubclass(cls, (set, bytearray)):
        return copy
    if issubclass(cls, memoryview):
        return lambda value: memoryview(bytes(value))
    if issubclass(cls, tuple):
        make = getattr(cls, "_make", tuple)
        return lambda value: make(map(copied, value))
    if issubclass(cls, msgspec.Struct):
        info = inspect.type_info(cls)
        return _struct_copier(cls, info) if _can_change(info, set()) else None
    names = getattr(cls, "__dataclass_fields__", ())
    names = names or [field.name for field in getattr(cls, "__attrs_attrs__", ())]
    return _by_field(names, object.__setattr__) if names else None


def _struct_copier(cls: type[msgspec.Struct], info: Any) -> Copier:
    names = cls.__struct_fields__
    slow = _by_field(names, msgspec.structs.force_setattr)
    if names != cls.__match_args__ or hasattr(cls, "__post_init__"):
        return slow
    if any(map(keyword.iskeyword, names)):
        return slow
    values = [_copying(field.type, f"e.{field.name}") for field in info.fields]
    lines = [
        "def copy_of(e):",
        "    try:",
        f"        return cls({', '.join(values)})",
        "    except Exception:",  # a value is not of its field's type
        "        return slow(e)",
    ]
    return compiled("copy_of", lines, {"cls": cls, "slow": slow, "copied": copied})  # type: ignore[no-any-return]


def _by_field(names: Iterable[str], set_field: Callable[[Any, str, Any], None]) -> Copier:
    names = tuple(names)

    def copy_of(value: Any) -> Any:
        made = copy(value)
        for name in names:
            set_field(made, name, copied(getattr(value, name)))
        return made

    return copy_of


def _copying(kind: inspect.Type, value: str, depth: int = 0) -> str:
    if not _can_change(kind, set()):
        return value
    inner = f"x{depth}"
    if isinstance(kind, inspect.ListType):
        each = _copying(kind.item_type, inner, depth + 1)
        return f"{value}.copy()" if each == inner else f"[{each} for {inner} in {value}]"
    if isinstance(kind, inspect.DictType):
        each = _copying(kind.value_type, inner, depth + 1)
        if each == inner:
            return f"{value}.copy()"
        return f"{{k{depth}: {each} for k{depth}, {inner} in {value}.items()}}"
    if isinstance(kind, inspect.SetType):
        return f"{value}.copy()"
    return f"copied({value})"


def _can_change(kind: inspect.Type, met: set[type]) -> bool:
    if isinstance(kind, _CHANGES):
        return True
    if isinstance(kind, (inspect.StructType, inspect.DataclassType)):
        if kind.cls in met:
            return False
        met.add(kind.cls)
        options = getattr(kind.cls, "__struct_config__", None)
        options = options or getattr(kind.cls, "__dataclass_params__", None)
        if options is None or not options.frozen:
            return True
    return any(_can_change(part, met) for part in parts_of(kind))
