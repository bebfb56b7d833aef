"""Values that can be saved: they decode, and come back from state as they were. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias, get_origin

import msgspec
from msgspec import inspect

from s4node.errors import EventError
from s4node.events.plain_values import check_events, check_value

_DEPTH = 100
"""Levels that stay free below the interpreter's limit, for containers of saved events."""

_SHALLOW = 400
"""Events of fewer bytes cannot nest too deeply."""

_BELOW = b"\x91" * _DEPTH  # arrays of one

_encoder = msgspec.msgpack.Encoder()


class DeepDecoder:
    """A decoder of a type that may nest deeply; it leaves levels to spare."""

    __slots__ = ("_below", "_check", "_plain")

    def __init__(self, kind: Any) -> None:
        self._check = check_events if get_origin(kind) is list else check_value
        self._plain: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)
        for _ in range(_DEPTH):
            kind = list[kind]
        self._below: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)

    def decode(self, body: bytes | memoryview) -> Any:
        """Decode; raises RecursionError for a value that is nested too deeply."""
        if len(body) <= _SHALLOW:
            return self._plain.decode(body)
        self._check(body)
        try:
            found = self._below.decode(_BELOW + body)
        except msgspec.ValidationError:
            return self._plain.decode(body)  # which says where in an event it is
        for _ in range(_DEPTH):
            (found,) = found
        return found


def check(value: Any, raw: Any) -> None:
    """Raise EventError for a value from JSON that msgpack cannot hold."""
    if memoryview(raw).nbytes > _SHALLOW:
        for _ in range(_DEPTH):
            value = [value]
    try:
        _encoder.encode(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise EventError(f"it holds a value that cannot be saved: {error}") from error


_FIRST_DAY, _LAST_DAY = b"0001-01-01", b"9999-12-31"


def check_dates(events: Any, body: Any) -> None:
    """Raise EventError for a time that is beyond the first or the last year in UTC."""
    text = bytes(body)
    if _FIRST_DAY in text or _LAST_DAY in text:
        try:
            _encoder.encode(events)
        except OverflowError as error:
            raise EventError(f"it holds a time that cannot be saved: {error}") from error


_Kinds: TypeAlias = frozenset[type[inspect.Type]]

_RECURSIVE = inspect.Type  # stands for a type that contains itself
_DEEP = {inspect.AnyType, _RECURSIVE}


def decoder_of(kind: Any, holds: _Kinds) -> msgspec.msgpack.Decoder[Any] | DeepDecoder:
    return msgspec.msgpack.Decoder(kind) if _DEEP.isdisjoint(holds) else DeepDecoder(kind)


def held_in(cls: type) -> _Kinds:
    """The kinds of values that events of a class hold, at any depth."""
    found: set[type[inspect.Type]] = set()

    def look(kind: inspect.Type, within: tuple[Any, ...]) -> None:
        found.add(type(kind))
        cls = getattr(kind, "cls", None)
        if cls is not None and cls in within:
            found.add(_RECURSIVE)
            return
        for part in parts_of(kind):
            look(part, (*within, cls))

    look(inspect.type_info(cls), ())
    return frozenset(found)


def parts_of(kind: Any) -> Iterator[inspect.Type]:
    for name in ("item_type", "key_type", "value_type", "type"):
        part = getattr(kind, name, None)
        if part is not None:
            yield part
    yield from (*getattr(kind, "item_types", ()), *getattr(kind, "types", ()))
    yield from (field.type for field in getattr(kind, "fields", ()))


# -- state ----------------------------------------------------------------------------------------


def saver_of(kind: Any) -> Callable[[Any], Any] | None:
    """A function that makes values of a type such that msgpack brings them back unchanged; None if
    it does so with all. It raises TypeError for a value that would come back as another one."""
    holds = held_in(kind)
    if inspect.AnyType in holds:
        slow = partial(_checked, msgspec.msgpack.Decoder(kind).decode)
        if holds - _OF_JSON:
            return slow
        return partial(_plain_or, slow)
    return _with_zone if inspect.DateTimeType in holds else None


_OF_JSON: _Kinds = frozenset((inspect.AnyType, inspect.DictType, inspect.ListType, inspect.StrType))
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_KEYS = frozenset((int, str))


def _plain_or(slow: Callable[[Any], Any], value: Any) -> Any:
    try:
        plain = _is_plain(value)
    except RecursionError:  # deeper than this can follow
        plain = False
    return value if plain else slow(value)


def _is_plain(value: Any) -> bool:
    """Return True if a value that is declared as anything comes back as it is."""
    if value.__class__ is dict:
        if not _KEYS.issuperset(map(type, value)):
            return False
        value = value.values()
    elif value.__class__ is not list:
        return value.__class__ in _PLAIN
    return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value))


def _with_zone(value: Any) -> Any:
    """The value with its times as text, which has their distance from UTC."""
    if isinstance(value, datetime) and value.utcoffset() == timedelta():
        return value
    return msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))


def _checked(decode: Callable[[bytes], Any], value: Any) -> Any:
    data = _encoder.encode(value)
    with suppress(msgspec.MsgspecError):  # it is not of its type, which loading it reports
        read = decode(data)
        try:
            _check_same(value, read)
        except RecursionError:  # deeper than this can follow; comparing goes deeper
            if read != value:
                raise
    return msgspec.Raw(data)


def _check_same(value: Any, read: Any) -> None:
    """Raise TypeError if a value would come back as another one."""
    other = type(value) is not type(read)
    if other or (isinstance(value, datetime) and value.utcoffset() != read.utcoffset()):
        raise TypeError(
            f"{value!r} would come back as {read!r}; annotate what is inside, as in "
            f"dict[str, set[int]] or list[datetime]"
        )
    if isinstance(value, dict):
        if value.keys() != read.keys() or list(map(type, value)) != list(map(type, read)):
            raise TypeError(
                f"the keys {list(value)} would come back as {list(read)}; annotate them"
            )
        value, read = list(value.values()), list(read.values())
    if isinstance(value, list | tuple):
        for mine, its in zip(value, read, strict=True):
            _check_same(mine, its)
    for name in getattr(value, "__struct_fields__", getattr(value, "__dataclass_fields__", ())):
        _check_same(getattr(value, name), getattr(read, name))
