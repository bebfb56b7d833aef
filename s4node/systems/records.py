"""Records: values, keys, times and headers of other programs, read as events. Pure.

Rules
- A stream of records has one event class, or GenericEvents, and a format of its values. Fields that
  the class does not have are left out: an app reads what it needs.
- The key, the time and the headers of a record get into fields that the settings name. They replace
  what the value has there. The time is as the class of its field has times: see ``event_time``.
- The values of a batch are decoded in one call. Only if that fails, each is decoded by itself, and
  the bad ones are refused.
- A tombstone, a record without a value, has no event unless the settings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.errors import ConfigError, EventError, described
from s4node.events.event import GenericEvent
from s4node.events.json_objects import bounds_of, maker_of, twin
from s4node.events.keepable import check
from s4node.events.schema import EventType
from s4node.events.type_text import type_text
from s4node.offsets.system import InputBatch, SystemStreamPartition

_CHECKED = ("json", "msgpack")
"""Formats whose decoders refuse numbers that cannot be saved."""

_CONFLUENT = 0
"""The first byte of values whose format is in a schema registry."""

Headers = Sequence[tuple[str, bytes | None]]

Refusal = tuple[int, str, bytes]
"""A record that is refused: its offset, the reason, and its value."""


class Records(NamedTuple):
    """Records of a partition, in columns. A value is None in a tombstone. ``keys``, ``times`` (Unix
    time, ms) and ``headers`` are empty unless the format has a field for them."""

    offsets: Sequence[int]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] = ()
    times: Sequence[int] = ()
    headers: Sequence[Headers] = ()

    def only(self, index: int) -> Records:
        return self.between(index, index + 1)

    def with_values(self) -> Records:
        kept = [index for index, value in enumerate(self.values) if value is not None]
        columns = (([column[index] for index in kept] if column else ()) for column in self)
        return Records(*columns)  # type: ignore[arg-type]

    def between(self, start: int, end: int) -> Records:
        return Records(
            self.offsets[start:end],
            self.values[start:end],
            self.keys[start:end],
            self.times[start:end],
            self.headers[start:end],
        )


class RecordFormat(NamedTuple):
    """The format of a stream; ``key``, ``time`` and ``headers`` are fields, or empty."""

    serde: str = "json"
    key: str = ""
    time: str = ""
    headers: str = ""
    tombstones: str = "skip"

    @classmethod
    def configured(cls, config: Config, stream: str) -> RecordFormat:
        return cls(
            config.matching(settings.STREAM_SERDE).get(stream, "json"),
            config.matching(settings.RECORD_KEY).get(stream, ""),
            config.matching(settings.RECORD_TIME).get(stream, ""),
            config.matching(settings.RECORD_HEADERS).get(stream, ""),
            config.matching(settings.TOMBSTONES).get(stream, "skip"),
        )


class RecordReader:
    """Makes events of ``types`` of the records of a stream.

    Raises ConfigError if the settings of the stream do not fit its types.
    """

    def __init__(self, stream: str, form: RecordFormat, types: Sequence[type]) -> None:
        if len(types) != 1:
            names = ", ".join(cls.__name__ for cls in types)
            raise ConfigError(
                f"stream {stream!r} has the types {names}, and its records do not say which one "
                f"they are; declare one type, with types= of create_input_stream"
            )
        self.form = form
        self._cls = types[0]
        self._generic = self._cls is GenericEvent
        self._given = tuple(name for name in (form.key, form.time, form.headers) if name)
        if not self._generic:
            _check_fields(stream, form, self._cls)
        if form.tombstones == "event" and not form.key:
            raise ConfigError(
                f"streams.{stream}.tombstones = event needs streams.{stream}.record.key, the field "
                f"that gets the key"
            )
        self._key: Callable[[bytes | None], Any] = (
            _text_or_bytes if self._generic else _key_of(self._cls, form.key)
        )
        self._time = _seconds if self._generic else _time_of(stream, self._cls, form.time)
        self._values = _values_of(stream, form, self._cls, self._given)
        own = isinstance(self._values, _Own) and not self._generic
        self._unchecked = EventType(self._cls) if own else None
        self._doubtful = self._generic or form.serde not in _CHECKED or bounds_of(self._cls)[1]

    def read(self, records: Records) -> tuple[list[Any], Sequence[int], list[Refusal]]:
        """The events, the offset of each, and what is refused."""
        if self.form.tombstones == "skip" and None in records.values:
            records = records.with_values()
        try:
            return self._made(records), records.offsets, []
        except Exception:  # event classes that check themselves may raise anything
            return self._one_by_one(records)

    def _made(self, records: Records) -> list[Any]:
        values = records.values
        if None in values:
            values = [self._values.empty if value is None else value for value in values]
        found = self._values.many(values)  # type: ignore[arg-type]
        if len(found) != len(values):
            raise EventError(f"it has {len(found)} values")  # as "1, 2" has
        events = self._values.made(found, *self._columns(records))
        if self._unchecked is not None:
            self._unchecked.encode_checked(events)
        if self._doubtful:  # GenericEvents are made of what was found
            check(found if self._generic else events, b"".join(values))  # type: ignore[arg-type]
        return events

    def _one_by_one(self, records: Records) -> tuple[list[Any], list[int], list[Refusal]]:
        events, offsets, refusals = list[Any](), [], list[Refusal]()
        for index, (offset, value) in enumerate(zip(records.offsets, records.values, strict=True)):
            try:
                events += self._made(records.only(index))
            except Exception as error:  # event classes that check themselves may raise anything
                raw = value or b""
                refusals.append((offset, _reason(self._cls, error, raw), raw))
            else:
                offsets.append(offset)
        return events, offsets, refusals

    def _columns(self, records: Records) -> list[Sequence[Any]]:
        form, columns = self.form, list[Sequence[Any]]()
        if form.key:
            columns.append([self._key(key) for key in records.keys])
        if form.time:
            columns.append(list(map(self._time, records.times)))
        if form.headers:
            columns.append([dict(headers) for headers in records.headers])
        return columns


class RecordBatch(InputBatch):
    """Records of a partition, from the offset ``first`` to before ``end``."""

    __slots__ = ("_reader", "_records")

    def __init__(
        self,
        ssp: SystemStreamPartition,
        first: int,
        end: int,
        records: Records,
        weight: int,
        created_ms: int,
        reader: RecordReader,
    ) -> None:
        super().__init__(ssp, first, len(records.offsets), weight, created_ms, end=end)
        self._records = records
        self._reader = reader

    def load(self) -> None:
        events, offsets, refusals = self._reader.read(self._records)
        self.events = events
        self.undecoded = refusals
        if len(events) != self.end - self.first:
            self.numbers = offsets
        self._records = Records((), ())


# -- values ---------------------------------------------------------------------------------------


class _Values:
    """Decodes values, many at once. ``made`` makes events of what ``many`` has found."""

    empty = b""
    """A value that gives each field its default."""

    def __init__(self, make: Callable[..., list[Any]]) -> None:
        self.made = make

    def many(self, values: Sequence[bytes]) -> list[Any]:
        raise NotImplementedError


class _Json(_Values):
    empty = b"{}"

    def __init__(self, kind: Any, make: Callable[..., list[Any]]) -> None:
        super().__init__(make)
        self._decode = msgspec.json.Decoder(list[kind]).decode

    def many(self, values: Sequence[bytes]) -> list[Any]:
        return self._decode(b"[%b]" % b",".join(values))


class _Msgpack(_Values):
    empty = b"\x80"

    def __init__(self, kind: Any, make: Callable[..., list[Any]]) -> None:
        super().__init__(make)
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode

    def many(self, values: Sequence[bytes]) -> list[Any]:
        return self._decode(b"\xdd" + len(values).to_bytes(4, "big") + b"".join(values))


class _Bytes(_Values):
    def many(self, values: Sequence[bytes]) -> list[Any]:
        return [{"value": value} for value in values]


class _Own(_Values):
    """Values of the author's own format."""

    def __init__(self, decode: Callable[[bytes], Any], make: Callable[..., list[Any]]) -> None:
        super().__init__(make)
        self._decode = decode

    def many(self, values: Sequence[bytes]) -> list[Any]:
        return [self._decode(value) for value in values]


def _values_of(stream: str, form: RecordFormat, cls: type, given: tuple[str, ...]) -> _Values:
    if form.serde in ("json", "msgpack"):
        kind = _Json if form.serde == "json" else _Msgpack
        if cls is GenericEvent:
            return kind(dict[str, Any], _generic_maker(given))
        objects = twin(cls, bounds_of(cls)[0], without=given, others=True)
        return kind(objects, maker_of(cls, given))
    fields = _generic_maker(given) if cls is GenericEvent else _class_maker(cls, given)
    if form.serde == "bytes":
        return _Bytes(fields)
    setting = f"streams.{stream}.samza.msg.serde"
    serde = plugins.made(form.serde, setting, "format")
    plugins.lacking(serde, ("decode",), form.serde, setting, "format")
    if cls is GenericEvent:
        return _Own(lambda value: fields_of(serde.decode(value)), fields)
    return _Own(serde.decode, fields)


def _generic_maker(given: tuple[str, ...]) -> Callable[..., list[Any]]:
    def made(found: list[Any], *columns: Sequence[Any]) -> list[Any]:
        for name, column in zip(given, columns, strict=True):
            for fields, value in zip(found, column, strict=True):
                fields[name] = value
        return [GenericEvent.from_attributes(fields) for fields in found]

    return made


def _class_maker(cls: Any, given: tuple[str, ...]) -> Callable[..., list[Any]]:
    """Makes events of dicts of their fields; a format may have made the events itself."""

    def made(found: list[Any], *columns: Sequence[Any]) -> list[Any]:
        rows = zip(*columns, strict=True) if columns else [()] * len(found)
        return [event_of(each, row) for each, row in zip(found, rows, strict=True)]

    def event_of(found: Any, row: tuple[Any, ...]) -> Any:
        fields = dict(zip(given, row, strict=True))
        if isinstance(found, cls):
            return msgspec.structs.replace(found, **fields) if fields else found
        return cls(**{**found, **fields})

    return made


# -- keys and fields ------------------------------------------------------------------------------


def _check_fields(stream: str, form: RecordFormat, cls: Any) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(cls)}
    for part, name in (("key", form.key), ("time", form.time), ("headers", form.headers)):
        if name and name not in fields:
            raise ConfigError(
                f"streams.{stream}.record.{part} = {name}: {cls.__name__} has no such field; it "
                f"has: {', '.join(fields)}"
            )
    if form.serde == "bytes" and "value" not in fields:
        raise ConfigError(
            f"streams.{stream}.samza.msg.serde = bytes puts the value of a record into the field "
            f"value, which {cls.__name__} does not have; it has: {', '.join(fields)}"
        )


def _key_of(cls: Any, name: str) -> Callable[[bytes | None], Any]:
    """A function that makes a value of the field's type of the key of a record."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(cls)}
    kind = kinds.get(name, bytes)

    def read(key: bytes | None) -> Any:
        if key is None:
            raise EventError("the record has no key")
        return msgspec.convert(key.decode(), kind, strict=False)

    def raw(key: bytes | None) -> Any:
        if key is None:
            raise EventError("the record has no key")
        return key

    return raw if kind is bytes else read


def _time_of(stream: str, cls: Any, name: str) -> Callable[[int], Any]:
    """A function that makes a value of the field's type of the time of a record."""
    fields = {field.name: field.type for field in msgspec.structs.fields(cls)}
    if name not in fields:
        return _seconds
    kind = inspect.type_info(fields[name])
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    for taken, made in _TIMES:
        if any(isinstance(each, taken) for each in kinds):
            return made
    raise ConfigError(
        f"streams.{stream}.record.time = {name}: the field of {cls.__name__} is "
        f"{type_text(kind)}, which holds no time; declare it as float (seconds), int "
        f"(milliseconds) or datetime"
    )


def _seconds(time: int) -> float:
    return time / 1000


def _millis(time: int) -> int:
    return time


def _date(time: int) -> datetime:
    return datetime.fromtimestamp(time / 1000, UTC)


_TIMES: Sequence[tuple[Any, Callable[[int], Any]]] = (
    ((inspect.FloatType, inspect.AnyType), _seconds),
    (inspect.DateTimeType, _date),
    (inspect.IntType, _millis),
)


def fields_of(event: Any) -> Any:
    if isinstance(event, GenericEvent):
        return event.attributes
    return msgspec.structs.asdict(event) if isinstance(event, msgspec.Struct) else event


def _text_or_bytes(key: bytes | None) -> str | bytes | None:
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _reason(cls: type, error: Exception, value: bytes) -> str:
    said = f"{cls.__name__} does not decode: {described(error)}"
    if value[:1] == bytes([_CONFLUENT]) and len(value) > 5:
        said += (
            "; the value begins with the id of a schema, as Confluent's serializers write it: set "
            "samza.msg.serde to a class of your own that reads it"
        )
    return said
