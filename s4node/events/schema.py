"""Event types on the wire: their classes, and the codec of a whole batch.

Rules
- A node's key and time fields do not change. A peer that knows only the types leaves it
  the rest.
- One encode and one decode call a batch. Only when a batch does not decode is it taken apart, and
  then only the events that do not decode are refused.
- What is decoded can be encoded: an event that a commit could not save, or a frame not carry, does
  not decode. Which types can hold such values is decided once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from s4node.errors import EventError
from s4node.events.event import Event, GenericEvent
from s4node.events.json_objects import (
    JsonObjects,
    attributes_of,
    attributes_of_all,
    generic_events,
    twin,
)
from s4node.events.keepable import DeepDecoder, check_dates, decoder_of, held_in
from s4node.events.type_declaration import FieldDecl, TypeDecl, fingerprint_of, refusal_of
from s4node.events.type_text import type_text

GENERIC = "GenericEvent"

_BASE64 = ("bytes", "bytearray")  # they are text in JSON

_SHOWN = 100  # characters of a JSON text

_PLACE = re.compile(r"`\$\[(\d+)\]([^`]*)`\Z")  # that msgspec ends a message with

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for bad bytes; it raises Python's own ones for text that is not UTF-8 and
for values nested too deeply."""

_encoder = msgspec.msgpack.Encoder()
_raw_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_lists_decoder = DeepDecoder(list[list[Any]])
_list_decoder = DeepDecoder(list[Any])
_maps_decoder = DeepDecoder(list[dict[str, Any]])
_map_decoder = DeepDecoder(dict[str, Any])
_json_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])

Refusals: TypeAlias = list[tuple[int, str]]
"""Index in the batch and the reason, for each event that did not decode."""


JsonText: TypeAlias = bytes
"""One event as the text of a JSON object, to be read by the node."""


class JsonType:
    """Stands for the node's type as which JsonText is to be read."""

    __slots__ = ("declaration", "encoding", "name")

    def __init__(self, declaration: TypeDecl) -> None:
        self.declaration = declaration
        self.name = declaration.name
        self.encoding = 1

    @property
    def fingerprint(self) -> int:
        return self.declaration.fingerprint

    def encode(self, events: Sequence[JsonText]) -> bytes:
        return b"[" + b",".join(events) + b"]"

    encode_checked = encode


def misfit(stream: str, taken: Mapping[str, TypeDecl | EventType], sent: TypeDecl) -> str:
    """The reason why a stream of these types, by name, refuses ``sent``; empty if it accepts it."""
    ours = taken.get(sent.name)
    if ours is None:
        return (
            f"stream {stream!r} takes {', '.join(taken)}, not {sent.name!r}; send one of those, or "
            f"declare the type on the stream"
        )
    reason = ours.refusal_of(sent)
    return f"stream {stream!r}: {reason}" if reason is not None else ""


class EventType:
    """An event class with its wire name, its schema, and its codec.

    Other versions of it have the same types for the ``fixed`` fields.
    """

    __slots__ = (
        "_dated",
        "_decoder",
        "_fixed",
        "_json",
        "_marked",
        "_one",
        "cls",
        "declaration",
        "encoding",
        "name",
    )

    def __init__(self, cls: type, fixed: Collection[str] = ()) -> None:
        self.cls = cls
        self._fixed = fixed
        self._marked: Sequence[str] = ()
        self.encoding = 0
        self._json: JsonObjects | None = None
        self._one: msgspec.msgpack.Decoder[Any] | DeepDecoder
        self._decoder: msgspec.msgpack.Decoder[list[Any]] | DeepDecoder
        self._dated = False
        if cls is GenericEvent:
            self.name = GENERIC
            fields: tuple[FieldDecl, ...] = ()
        else:
            self.name, fields, self._marked = _read(cls)
            holds = held_in(cls)
            self._dated = inspect.DateTimeType in holds
            self._decoder = decoder_of(list[cls], holds)  # type: ignore[valid-type]
            self._one = decoder_of(cls, holds)
        self.declaration = TypeDecl(self.name, fingerprint_of(self.name, fields), fields)

    @property
    def fingerprint(self) -> int:
        return self.declaration.fingerprint

    def refusal_of(self, other: TypeDecl, fixed: Collection[str] = ()) -> str | None:
        """The reason why events of the peer's version cannot be read as ours, or None if they can.

        The types of ``fixed`` fields, as of our own, have to be the same.
        """
        fixed = [self.encoded(each) for each in (*self._fixed, *fixed)]
        return refusal_of(self.declaration, other, self._marked, fixed)

    def kind_of(self, attribute: str) -> str:
        """The declared type of an attribute as text; empty if the class does not have it."""
        kinds = {field: text for field, text, _ in self.declaration.fields}
        return kinds.get(self.encoded(attribute), "")

    def encoded(self, attribute: str) -> str:
        """The name of an attribute's field on the wire; ``rename`` of the class changes it."""
        if not issubclass(self.cls, msgspec.Struct):
            return attribute
        names = zip(self.cls.__struct_fields__, self.cls.__struct_encode_fields__, strict=True)
        return dict(names).get(attribute, attribute)

    def encode(self, events: Sequence[Any]) -> bytes:
        """Encode events as one msgpack array; raises EventError if msgpack cannot encode one."""
        try:
            if self.cls is GenericEvent:
                return _encoder.encode([event._attributes for event in events])
            return _encoder.encode(events)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EventError(f"a {self.name} cannot be encoded: {error}") from error

    def encode_checked(self, events: Sequence[Any]) -> bytes:
        """As ``encode``; raises EventError, too, for a value that is not of its field's type."""
        body = self.encode(events)
        if self.cls is not GenericEvent:
            try:
                self.decode(body)
            except Exception as error:  # an event class may raise anything
                _, refusals = self.decode_each(raws_in(body))
                why = refusals[0][1] if refusals else f"{self.name} does not decode: {error}"
                raise EventError(f"it cannot be sent: {why}") from error
        return body

    def decode(self, body: bytes | memoryview) -> list[Any]:
        """All events of a batch in one call; raises msgspec.ValidationError or DecodeError."""
        if self.cls is GenericEvent:
            return list(map(GenericEvent.from_attributes, _maps_decoder.decode(body)))
        events: list[Any] = self._decoder.decode(body)
        if self._dated:
            check_dates(events, body)
        return events

    def decode_json(self, body: bytes | memoryview) -> list[Any]:
        """As decode, of an array of JSON objects; raises whatever an event class may raise."""
        if self.cls is GenericEvent:
            return generic_events(body)
        return self._objects.decode(body)

    def decode_each(self, raws: Sequence[Any], *, json: bool = False) -> tuple[list[Any], Refusals]:
        """Events one by one: bad ones become None and are listed. Of JSON each is an object."""
        if json:
            return each_text(self.name, raws, self._from_json)
        return each(self.name, raws, self._from_msgpack)

    def _from_msgpack(self, raw: Any) -> Any:
        if self.cls is GenericEvent:
            return GenericEvent.from_attributes(_map_decoder.decode(raw))
        try:
            event = self._one.decode(raw)
            if self._dated:
                check_dates(event, raw)
            return event
        except msgspec.ValidationError as error:
            raise EventError(self._naming_field(str(error))) from error

    def _naming_field(self, why: str) -> str:
        """Replace msgspec's index of a field by its name, which the author knows."""
        config = self.cls.__struct_config__  # type: ignore[attr-defined]
        names = [] if config.tag is None else [config.tag_field]
        names += [name for name, _, _ in self.declaration.fields]
        found = _PLACE.search(why)
        if found is None or int(found[1]) >= len(names):  # which an event class itself may say
            return why
        return f"{why[: found.start()]}`$.{names[int(found[1])]}{found[2]}`"

    def _from_json(self, raw: Any) -> Any:
        if self.cls is GenericEvent:
            return GenericEvent.from_attributes(attributes_of(raw))
        return self._objects.decode_one(raw)

    @property
    def _objects(self) -> JsonObjects:
        if self._json is None:
            self._json = JsonObjects(self.cls)
        return self._json


class OpenType:
    """A type known only by its declaration; its events are read as GenericEvents."""

    __slots__ = ("_required", "_texts", "declaration", "name", "names")

    def __init__(self, declaration: TypeDecl) -> None:
        self.declaration = declaration
        self.name = declaration.name
        self.names = [name for name, _, _ in declaration.fields]
        self._required = {name for name, _, required in declaration.fields if required}
        self._texts = [name for name, kind, _ in declaration.fields if kind in _BASE64]

    def decode(self, body: bytes | memoryview) -> list[GenericEvent]:
        return list(map(self._of, _lists_decoder.decode(body)))

    def decode_json(self, body: bytes | memoryview) -> list[GenericEvent]:
        return list(map(self._named, attributes_of_all(body)))

    def decode_each(self, raws: Sequence[Any], *, json: bool = False) -> tuple[list[Any], Refusals]:
        if json:
            return each_text(self.name, raws, self._from_json)
        return each(self.name, raws, self._one)

    def _from_json(self, raw: Any) -> GenericEvent:
        return self._named(attributes_of(raw))

    def _named(self, values: dict[str, Any]) -> GenericEvent:
        odd = [name for name in values if name not in self.names]
        lacking = sorted(self._required - values.keys())
        if odd:
            raise EventError(f"it has no field {odd[0]!r}, its fields are {', '.join(self.names)}")
        if lacking:
            raise EventError(f"field {lacking[0]!r} is missing")
        for name in self._texts:
            if name in values:
                values[name] = msgspec.convert(values[name], bytes)
        return GenericEvent.from_attributes(values)

    def _one(self, raw: Any) -> GenericEvent:
        return self._of(_list_decoder.decode(raw))

    def _of(self, values: list[Any]) -> GenericEvent:
        return GenericEvent.from_attributes(dict(zip(self.names, values, strict=False)))


class NamedType:
    """Reads GenericEvents as events of ``kind``, whose fields they have by name."""

    __slots__ = ("_dated", "_kind", "_one", "_twins", "name")

    def __init__(self, kind: EventType) -> None:
        self.name = kind.name
        self._kind = kind
        named = twin(kind.cls)
        holds = held_in(kind.cls)
        self._dated = inspect.DateTimeType in holds
        self._twins = decoder_of(list[named], holds)  # type: ignore[valid-type]
        self._one = decoder_of(named, holds)

    def decode(self, body: bytes | memoryview) -> list[Any]:
        twins = self._twins.decode(body)
        if self._dated:
            check_dates(twins, body)
        return list(map(self._of, twins))

    def decode_json(self, body: bytes | memoryview) -> list[Any]:
        return self._kind.decode_json(body)

    def decode_each(self, raws: Sequence[Any], *, json: bool = False) -> tuple[list[Any], Refusals]:
        if json:
            return self._kind.decode_each(raws, json=True)
        return each(self.name, raws, self._from_msgpack)

    def _from_msgpack(self, raw: Any) -> Any:
        found = self._one.decode(raw)
        if self._dated:
            check_dates(found, raw)
        return self._of(found)

    def _of(self, found: Any) -> Any:
        return self._kind.cls(**msgspec.structs.asdict(found))


class UnreadableType:
    """A type whose events cannot be read here, and why."""

    __slots__ = ("name", "reason")

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def decode(self, _: bytes | memoryview) -> list[Any]:
        """Raises EventError."""
        raise EventError(self.reason)

    decode_json = decode

    def decode_each(self, raws: Sequence[Any], *, json: bool = False) -> tuple[list[Any], Refusals]:  # noqa: ARG002
        return [None] * len(raws), [(index, self.reason) for index in range(len(raws))]


TypeReader: TypeAlias = EventType | OpenType | NamedType | UnreadableType
"""A decoder of the events of one fingerprint."""


def reader_of(
    declared: TypeDecl,
    known: Mapping[str, EventType],
    *,
    others: bool,
    fixed: Collection[str] = (),
) -> TypeReader:
    """The reader of a declared type: our class of its name, or, with ``others``, GenericEvents.

    The types of ``fixed`` fields, which are the stream's key, have to be the same.
    GenericEvents are read as our class if there is only one, because events appended as JSON have
    no other type.
    """
    ours = known.get(declared.name)
    if ours is not None:
        reason = ours.refusal_of(declared, fixed)
        return ours if reason is None else UnreadableType(declared.name, reason)
    if not others:
        if declared.name == GENERIC and len(known) == 1:
            return NamedType(next(iter(known.values())))
        names = ", ".join(known) or "none"
        return UnreadableType(
            declared.name, f"{declared.name!r} is not among the event types asked for: {names}"
        )
    return EventType(GenericEvent) if declared.name == GENERIC else OpenType(declared)


def class_of(declared: TypeDecl) -> type | None:
    """The class of this process for a declared type; None if no loaded module has one."""
    if declared.name == GENERIC:
        return GenericEvent
    classes: list[type] = [Event]
    while classes:
        cls = classes.pop()
        named = cls is not Event and _name(cls) == declared.name
        if named and EventType(cls).refusal_of(declared) is None:
            return cls
        classes += cls.__subclasses__()
    return None


def raws_in(body: bytes | memoryview, *, json: bool = False) -> list[msgspec.Raw]:
    """The events of a section, not decoded; raises DecodeError if it is not an array."""
    return (_json_list_decoder if json else _raw_decoder).decode(body)


def each(
    name: str, raws: Iterable[Any], decode: Callable[[Any], Any]
) -> tuple[list[Any], Refusals]:
    """Decode one by one: bad events of the type ``name`` become None and are listed."""
    events: list[Any] = []
    refusals: Refusals = []
    for index, raw in enumerate(raws):
        try:
            events.append(decode(raw))
        except Exception as error:  # an event class may raise anything
            events.append(None)
            refusals.append((index, f"{name} does not decode: {error}"))
    return events, refusals


def each_text(
    name: str, texts: Sequence[Any], decode: Callable[[Any], Any]
) -> tuple[list[Any], Refusals]:
    """As ``each``, for JSON; the reason quotes the beginning of the text, for its sender."""
    events, refusals = each(name, texts, decode)
    return events, [(index, f"{why}, in {_begun(texts[index])}") for index, why in refusals]


def _begun(text: Any) -> str:
    shown = bytes(text).decode(errors="replace")
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


_PLAIN = (type(None), bool, int, float, str, bytes)


def _read(cls: type) -> tuple[str, tuple[FieldDecl, ...], tuple[str, ...]]:
    """The name of an event class, its fields, and their types as text with marks."""
    if not (isinstance(cls, type) and issubclass(cls, Event)):
        raise EventError(
            f"{cls!r} is not an event type; subclass s4node.Event, or use GenericEvent"
        )
    try:
        info = inspect.type_info(cls)
        assert isinstance(info, inspect.StructType)
        fields = tuple((f.encode_name, type_text(f.type, (cls,)), f.required) for f in info.fields)
        marked = tuple(type_text(field.type, (cls,), marked=True) for field in info.fields)
    except (TypeError, NameError) as error:
        raise EventError(f"event type {cls.__name__}: {error}") from error
    _check_defaults(cls)
    return _name(cls), fields, marked


def _check_defaults(cls: type) -> None:
    """Raise EventError for a default that a receiver of the event could not read."""
    for field in msgspec.structs.fields(cls):
        if type(field.default) in _PLAIN:
            try:
                msgspec.msgpack.decode(_encoder.encode(field.default), type=field.type)
            except (OverflowError, UnicodeEncodeError) as error:
                raise EventError(
                    f"event type {cls.__name__}: field {field.name!r} has the default "
                    f"{field.default!r}, which cannot be encoded: {error}; give it another"
                ) from error
            except msgspec.ValidationError as error:
                fix = "write `| None` after its type" if field.default is None else "fix either"
                raise EventError(
                    f"event type {cls.__name__}: field {field.name!r} has the default "
                    f"{field.default!r}, which is not of its type, so the event would not decode: "
                    f"{error}; {fix}"
                ) from error


def _name(cls: type) -> str:
    name = cls.__dict__.get("event_name")  # not a base's name; a field of that name is no text
    return name if isinstance(name, str) and name else cls.__name__
