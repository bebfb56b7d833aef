"""Events from JSON objects: a whole batch in one call, or one by one. Pure.

Rules
- An object has the fields of an event class by name, and no others. It is decoded as a twin of the
  class, which is an object where the class is an array, and the event is made from the twin.
- A batch is decoded as strictly as single events. If it does not decode, its events are read one by
  one, and only the bad ones are refused.
- A value that cannot be saved is refused. The twin's type bounds integers, which costs nothing. If
  a class holds other values that may not be saveable, the batch is encoded once to check.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import inspect

from s4node.events.event import GenericEvent
from s4node.events.keepable import check

_Bounded = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_INT = inspect.IntType()
_INT_OR_NONE = inspect.UnionType((_INT, inspect.NoneType()))
_KEPT = (inspect.NoneType, inspect.BoolType, inspect.FloatType, inspect.StrType, inspect.BytesType)


class _AnyObject(msgspec.Struct, gc=False):
    """An object, whatever it has."""


_any_object = msgspec.json.Decoder(_AnyObject)
_map_decoder = msgspec.json.Decoder(dict[str, Any])
_maps_decoder = msgspec.json.Decoder(list[dict[str, Any]])


def are_objects(text: bytes, lines: int) -> bool:
    """Return True if each of a text's ``lines`` lines is a JSON object without anything around it.

    It checks all of them at once, and less strictly than a reader. If it returns False, check each
    line: most of them may be objects all the same.
    """
    if not (text[:1] == b"{" and text[-1:] == b"}" and text.count(b"}\n{") == lines - 1):
        return False  # else no newline is within an object, where "}\n{" cannot occur
    try:
        if not text.isascii():
            text.decode()
        return len(_any_object.decode_lines(text)) == lines
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def attributes_of(text: Any) -> dict[str, Any]:
    values = _map_decoder.decode(text)
    check(values, text)
    return values


def attributes_of_all(body: bytes | memoryview) -> list[dict[str, Any]]:
    values = _maps_decoder.decode(body)
    check(values, body)
    return values


def generic_events(body: bytes | memoryview) -> list[GenericEvent]:
    return list(map(GenericEvent.from_attributes, attributes_of_all(body)))


class JsonObjects:
    """Reads JSON objects as events of the class ``cls``.

    All methods raise the errors of msgspec and of the class itself, and EventError for a value that
    cannot be saved.
    """

    __slots__ = ("_all", "_cls", "_doubtful", "_made", "_one")

    def __init__(self, cls: type) -> None:
        bounded, self._doubtful = bounds_of(cls)
        self._cls = cls
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(twin(cls))
        self._all = msgspec.json.Decoder(list[twin(cls, bounded)])  # type: ignore[misc]
        self._made = maker_of(cls)

    def decode(self, body: bytes | memoryview) -> list[Any]:
        events: list[Any] = self._made(self._all.decode(body))
        if self._doubtful:
            check(events, body)
        return events

    def decode_one(self, text: Any) -> Any:
        event = self._cls(**msgspec.structs.asdict(self._one.decode(text)))
        check(event, text)
        return event


def bounds_of(cls: type) -> tuple[dict[str, Any], bool]:
    """The types of the fields that are bounded so that they can be saved, and whether others may
    hold a value that cannot."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    bounded: dict[str, Any] = {}
    doubtful = False
    for field in info.fields:
        if field.type == _INT:
            bounded[field.name] = _Bounded
        elif field.type == _INT_OR_NONE:
            bounded[field.name] = _Bounded | None
        elif not isinstance(field.type, _KEPT):
            doubtful = True
    return bounded, doubtful


def twin(
    cls: Any,
    types: Mapping[str, Any] | None = None,
    *,
    without: Collection[str] = (),
    others: bool = False,
) -> type:
    """The same fields as an object instead of an array, but for those ``without``; some of them
    with other ``types``. ``others``: an object may have other fields, too."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(cls):
        if field.name in without:
            continue
        named = msgspec.field(  # type: ignore[call-overload]
            name=field.encode_name, default=field.default, default_factory=field.default_factory
        )
        fields.append((field.name, (types or {}).get(field.name, field.type), named))
    return msgspec.defstruct(
        cls.__name__, fields, forbid_unknown_fields=not others, kw_only=True, gc=False
    )


def maker_of(cls: Any, given: Sequence[str] = ()) -> Any:
    """A loop that makes events of twins, and of a sequence for each of the ``given`` fields."""
    names, plain = cls.__struct_fields__, set(cls.__match_args__)
    found = {name: f"v{number}" for number, name in enumerate(given)}
    of = {name: found.get(name, f"t.{name}") for name in names}
    values = [of[name] if name in plain else f"{name}={of[name]}" for name in names]
    columns = ", ".join(("twins", *(f"c{number}" for number, _ in enumerate(given))))
    rows = f"{', '.join(('t', *found.values()))} in "
    rows += f"zip({columns}, strict=True)" if given else columns
    scope = {"cls": cls}
    lines = f"def made({columns}): return [cls({', '.join(values)}) for {rows}]"
    exec(lines, scope)  # noqa: S102
    return scope["made"]
