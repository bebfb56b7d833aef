"""The declared types of the parts of a store's tuple keys. Pure.

Rules
- ``tuple[str, int]`` allows two parts of these types and ``tuple[str, ...]`` any number. ``tuple``,
  or one with an unpacked part such as ``tuple[str, *tuple[int, ...]]``, allows any parts.
- A part has one of the types of keys; if the declaration names none of them, any is allowed.
- The bound of a range may be the beginning of a key.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, Unpack, get_args, get_origin

_TYPES = (str, int, bytes)


class KeyParts:
    """The parts that the ``declared`` type allows, such as ``tuple[str, int]``."""

    def __init__(self, declared: Any) -> None:
        kinds = get_args(declared)
        self._any_number = kinds[1:] == (...,)
        self._allowed = [_types_of(kind) for kind in kinds if kind is not ...]
        self._exactly: tuple[type, ...] = ()  # if there is one type for each part
        if not self._any_number and all(len(each) == 1 for each in self._allowed):
            self._exactly = tuple(kind for each in self._allowed for kind in each)

    def wrong(self, key: tuple[Any, ...], *, beginning: bool = False) -> str:
        """The mistake in a key, or in the ``beginning`` of one; empty if there is none."""
        found = tuple(map(type, key))
        if found == self._exactly:
            return ""
        allowed = self._allowed * len(key) if self._any_number else self._allowed
        if len(key) > len(allowed) or (len(key) < len(allowed) and not beginning):
            return f"has {len(key)} part{'' if len(key) == 1 else 's'}"
        for place, (kind, kinds) in enumerate(zip(found, allowed, strict=False), 1):
            if kind not in kinds:
                return f"has part {place} of type {kind.__name__}"
        return ""


def parts_of(declared: Any) -> KeyParts | None:
    """The parts of a store's keys; None if any are allowed, or if keys are not tuples."""
    kinds = get_args(declared)
    if get_origin(declared) is not tuple or not kinds or any(map(_is_unpacked, kinds)):
        return None
    return KeyParts(declared)


def _is_unpacked(kind: Any) -> bool:
    """Return True for a type such as ``*tuple[int, ...]``, which stands for any number of parts."""
    return get_origin(kind) is Unpack or getattr(kind, "__unpacked__", False) is True


def _types_of(kind: Any) -> frozenset[type]:
    return _named(kind) or frozenset(_TYPES)


def _named(kind: Any) -> frozenset[type]:
    if hasattr(kind, "__supertype__"):  # a NewType
        return _named(kind.__supertype__)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        named = [_named(each) for each in inner if each is not types.NoneType]
        return frozenset().union(*named) if all(named) else frozenset()
    if origin is Annotated:
        return _named(inner[0])
    if origin is Literal:
        return frozenset(type(each) for each in inner)
    return frozenset(each for each in _TYPES if isinstance(kind, type) and issubclass(kind, each))
