"""The columns of an event type, and frames of a log as Arrow batches of these columns.

Rules
- The log has the declarations of event types, so reading does not need the event class. Values of
  types without an equal in Spark come as JSON text: unions of several types, structs, any.
- Enums and literals are what they are written as, texts or whole numbers; UUIDs are texts. Decimals
  have the precision that Spark gives Python's; a schema may say another one, or text.
- A column may be null only if its type says so, or if an older version of the type lacks it.
- One call decodes a frame and checks its types; one call of Arrow makes a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from s4node.errors import ConfigError, EventError
from s4node.events.schema import GENERIC, UNREADABLE
from s4node.events.type_declaration import FieldDecl, TypeDecl
from s4node.events.type_text import takes
from s4node.net.wire import frame as wire

PARTITION, OFFSET, TIME = "_partition", "_offset", "_time"

PLACE = (
    StructField(PARTITION, IntegerType(), False),
    StructField(OFFSET, LongType(), False),
    StructField(TIME, TimestampType(), False),
)
"""The columns that say where an event is in its log, and when it was appended."""

_SIMPLE: dict[str, tuple[DataType, Any]] = {
    "int": (LongType(), int),
    "float": (DoubleType(), float),
    "str": (StringType(), str),
    "bool": (BooleanType(), bool),
    "bytes": (BinaryType(), bytes),
    "datetime": (TimestampType(), datetime),
    "date": (DateType(), date),
    "decimal": (DecimalType(38, 18), Decimal),
    "timedelta": (DayTimeIntervalType(), timedelta),
    "time": (StringType(), str),
    "uuid": (StringType(), str),
}
_ONE_OF = re.compile(r"(?:enum|literal)\((.*)\)", re.DOTALL)
_AS_TEXT = (DecimalType, DayTimeIntervalType)  # in a frame

_BATCH_ROWS = 32_768  # about
_json = msgspec.json.Encoder().encode


class Kind(NamedTuple):
    """The type of a column: Spark's, Python's when a frame is decoded, and whether it may be null.
    ``as_json`` is true if values come as JSON text."""

    spark: DataType
    decoded: Any
    nullable: bool
    as_json: bool = False


def kind_of(text: str) -> Kind:
    """The type of a field from its text, such as ``int|none``."""
    parts = _split(text, "|")
    nullable = "none" in parts
    parts = [part for part in parts if part != "none"]
    found = _equal(parts[0]) if len(parts) == 1 else None
    if found is None:
        return Kind(StringType(), Any, nullable or "any" in parts, as_json=True)
    spark, decoded = found
    return Kind(spark, decoded | None if nullable else decoded, nullable)


def _equal(text: str) -> tuple[DataType, Any] | None:
    """Spark's equal of one type, and Python's; None if there is none."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    if one_of := _ONE_OF.fullmatch(text):
        whole = [bool(re.fullmatch(r"-?\d+", each)) for each in one_of[1].split(",")]
        if all(whole):
            return LongType(), int
        return (StringType(), str) if not any(whole) else None
    if text.startswith("[") and len(items := _split(text[1:-1], ",")) == 1:
        inner = kind_of(items[0])
        if not inner.as_json:
            decoded: Any = list.__class_getitem__(inner.decoded)
            return ArrayType(inner.spark, inner.nullable), decoded
    if text.startswith("{"):
        key, value = (kind_of(part) for part in _split(text[1:-1], ":"))
        if not (key.as_json or value.as_json or key.nullable):
            spark = MapType(key.spark, value.spark, value.nullable)
            return spark, dict.__class_getitem__((key.decoded, value.decoded))
    return None


def _split(text: str, sign: str) -> list[str]:
    """The parts of a type's text, at a sign that is not inside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == sign and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def schema_of(versions: Sequence[TypeDecl]) -> StructType:
    shortest = min(len(version.fields) for version in versions)
    fields = []
    for place, (name, kind) in enumerate(_kinds_of(versions).items()):
        fields.append(StructField(name, kind.spark, kind.nullable or place >= shortest))
    return StructType([*fields, *PLACE])


def _kinds_of(versions: Sequence[TypeDecl]) -> dict[str, Kind]:
    """The types of the columns: each takes the values of all versions, if that of one does."""
    kinds = {}
    for name, text, _ in max((version.fields for version in versions), key=len, default=()):
        every = [kind for version in versions for each, kind, _ in version.fields if each == name]
        fits = (w for w in every if all(w == o or takes(w, o, marked=False) for o in every))
        kinds[name] = kind_of(next(fits, text))
    return kinds


def chosen(schema: StructType, names: str) -> StructType:
    """The columns of these ``names``, with commas between them; all of them if there are none."""
    if not names:
        return schema
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in schema.fieldNames()]
    if unknown:
        raise ConfigError(
            f"option columns names {', '.join(unknown)}, and the stream has "
            f"{', '.join(schema.fieldNames())}; name some of these"
        )
    return StructType([schema[name] for name in wanted])


class Batches:
    """Makes Arrow batches with ``schema`` of the frames of a stream.

    Events of the type ``name`` are read, of which the stream has ``versions``; those of other types
    are left out.
    """

    def __init__(self, schema: StructType, name: str, versions: Iterable[TypeDecl]) -> None:
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._names = [f.name for f in schema.fields if f.name not in (PARTITION, OFFSET, TIME)]
        self._type = name
        versions = list(versions)
        self._kinds = _kinds_of([each for each in versions if each.name == name])
        for each in schema.fields:
            known = self._kinds.get(each.name)
            if isinstance(each.dataType, StringType) and known and type(known.spark) in _AS_TEXT:
                self._kinds[each.name] = Kind(StringType(), str | None, nullable=True)
        self._decoders = {each.fingerprint: self._decoder(each) for each in versions}
        self._rows: list[Any] = []
        self._offsets: list[np.ndarray[Any, Any]] = []
        self._times: list[tuple[int, int]] = []  # a time, and how many events have it

    def _decoder(self, version: TypeDecl) -> Callable[[Any, int], list[Any]] | None:
        """The function that makes rows of a section, which is msgpack or JSON; None if the version
        is of another type."""
        if version.name not in (self._type, GENERIC):
            return None
        wanted = self._names
        if version.name == GENERIC:
            return _by_name(wanted)
        return _by_place(wanted, version, self._kinds)

    def add(self, first: int, data: wire.Data, body: memoryview) -> None:
        """Add the events of a frame from the offset ``first`` on."""
        skip = first - data.first
        begin = 0
        for which, section in enumerate(data.sections):
            part = body[begin : begin + section.size]
            begin += section.size
            if section.fingerprint not in self._decoders:
                raise EventError(
                    f"{data.stream}[{data.partition}] has from offset {first} on a version of an "
                    f"event type that came since the query began; start the query again"
                )
            decode = self._decoders[section.fingerprint]
            if decode is None:
                continue
            try:
                rows = decode(part, data.encoding)
            except (*UNREADABLE, TypeError, ValueError, KeyError) as error:
                raise EventError(
                    f"{data.stream}[{data.partition}]: the events from offset {data.first} to "
                    f"{data.first + data.count - 1} do not decode: {error}"
                ) from error
            if len(data.sections) == 1:
                offsets = np.arange(first, data.first + data.count)
                rows = rows[skip:] if skip else rows
            else:
                places = np.frombuffer(data.order, dtype=np.uint8)
                offsets = np.flatnonzero(places == which) + data.first
                keep = int(np.searchsorted(offsets, first))
                offsets, rows = offsets[keep:], rows[keep:]
            self._rows += rows
            self._offsets.append(offsets)
            self._times.append((data.created_ms, len(rows)))

    @property
    def full(self) -> bool:
        return len(self._rows) >= _BATCH_ROWS

    def take(self, partition: int, end: int) -> pa.RecordBatch | None:
        """Take the rows before the offset ``end`` as a batch; None if there are none."""
        rows, self._rows = self._rows, []
        pieces, self._offsets = self._offsets, []
        times, self._times = self._times, []
        if not rows:
            return None
        offsets = np.concatenate(pieces)
        moments = np.repeat([time for time, _ in times], [count for _, count in times])
        if offsets[-1] >= end or len(pieces) > 1:
            order = np.argsort(offsets, kind="stable")
            order = order[offsets[order] < end]
            if len(order) != len(offsets) or (order[1:] < order[:-1]).any():
                rows = [rows[index] for index in order]
                offsets, moments = offsets[order], moments[order]
            if not rows:
                return None
        values = dict(zip(self._names, zip(*rows, strict=True), strict=True)) if self._names else {}
        columns = []
        for field in self._arrow:
            if field.name == PARTITION:
                column = pa.array(np.full(len(rows), partition, dtype=np.int32))
            elif field.name == OFFSET:
                column = pa.array(offsets, type=pa.int64())
            elif field.name == TIME:
                column = pa.array(moments * 1000).cast(field.type)
            else:
                column = self._column(field, values[field.name])
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _column(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        try:
            column = pa.array(values, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise EventError(
                f"values of {self._type}.{field.name} are not of the column's type "
                f"{field.type}: {error}; read it with another schema"
            ) from error
        if not field.nullable and column.null_count:
            raise EventError(
                f"{column.null_count} values of {self._type}.{field.name} are null, and the column "
                f"may not be; allow null in the schema"
            )
        return column


def _by_name(names: Sequence[str]) -> Callable[[Any, int], list[Any]]:
    """Rows of events that have their attributes by name."""
    packed, text = (
        msgspec.msgpack.Decoder(list[dict[str, Any]]),
        msgspec.json.Decoder(list[dict[str, Any]]),
    )

    def rows(body: Any, encoding: int) -> list[Any]:
        events = (text if encoding == wire.JSON else packed).decode(body)
        return [tuple([event.get(name) for name in names]) for event in events]

    return rows


def _by_place(
    names: Sequence[str], version: TypeDecl, kinds: Mapping[str, Kind]
) -> Callable[[Any, int], list[Any]]:
    places = {field[0]: place for place, field in enumerate(version.fields)}
    kinds = {name: kinds.get(name) or kind_of(text) for name, text, _ in version.fields}
    fields = [
        kinds[name].decoded if name in names else msgspec.Raw for name, _, _ in version.fields
    ]
    row_type: Any = tuple.__class_getitem__(tuple(fields))
    # not strict: an enum of texts that are numbers is one of numbers by its declaration
    packed = msgspec.msgpack.Decoder(list[row_type], strict=False)
    taken = [places.get(name) for name in names]
    as_json = [at for at, name in enumerate(names) if name in kinds and kinds[name].as_json]
    same = taken == list(range(len(version.fields)))
    from_json = _named_rows(version.fields, names, kinds)

    def rows(body: Any, encoding: int) -> list[Any]:
        if encoding == wire.JSON:
            found = from_json(body)
        else:
            found = packed.decode(body)
            if not same:
                found = [tuple([None if at is None else row[at] for at in taken]) for row in found]
        return [_with_json(row, as_json) for row in found] if as_json else found

    return rows


def _named_rows(
    fields: Sequence[FieldDecl], names: Sequence[str], kinds: Mapping[str, Kind]
) -> Callable[[Any], list[Any]]:
    """Rows of events of a type that came as JSON objects."""
    row = msgspec.defstruct(
        "Row",
        [(f"at_{place}", kinds[name].decoded, None) for place, (name, _, _) in enumerate(fields)],
        rename={f"at_{place}": name for place, (name, _, _) in enumerate(fields)},
    )
    decoder = msgspec.json.Decoder(list[row], strict=False)  # type: ignore[valid-type]
    place_of = {name: f"at_{place}" for place, (name, _, _) in enumerate(fields)}
    taken = [place_of.get(name, "") for name in names]

    def rows(body: Any) -> list[Any]:
        return [
            tuple([getattr(event, at) if at else None for at in taken])
            for event in decoder.decode(body)
        ]

    return rows


def _with_json(row: tuple[Any, ...], places: Sequence[int]) -> tuple[Any, ...]:
    values = list(row)
    for place in places:
        if values[place] is not None:
            values[place] = _json(values[place]).decode()
    return tuple(values)
