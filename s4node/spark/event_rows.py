"""Rows of a DataFrame as events: checks their types when a query starts, and encodes batches.

Rules
- The event class decides: a column fits a field if each value of the column's type is one of the
  field's type. All columns that do not fit are reported together.
- A null fits only a field that may be None. Spark knows of nulls only once it has the rows, so each
  batch is checked for them.
- Rows are sorted by partition and encoded column by column, without event objects. Only if the
  class checks more than types, each frame is decoded once for that check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect
from pyspark.sql import types as spark

from s4node.config import plugins
from s4node.errors import ConfigError, EventError, KeyFinderError, SinkError
from s4node.events.event import Event
from s4node.events.keys import Partitioner, hasher_named
from s4node.events.schema import EventType, raws_in
from s4node.events.type_text import type_text
from s4node.net.wire import frame as wire

if TYPE_CHECKING:
    from s4node.spark.upload import Upload

ON_SPARK = (
    "and ship its module to Spark's driver and executors (install a wheel, or ship it with "
    "--py-files and call s4node.spark.register(spark))"
)
"""The fix in a message about a class of the user's that cannot be imported."""

FRAME_EVENTS = 4096
FRAME_BYTES = 262_144

_WHOLE = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_TEXT = (spark.StringType, spark.CharType, spark.VarcharType)
_TAKEN: dict[type[inspect.Type], tuple[type[spark.DataType], ...]] = {
    inspect.BoolType: (spark.BooleanType,),
    inspect.IntType: _WHOLE,
    inspect.FloatType: (spark.FloatType, spark.DoubleType, *_WHOLE),
    inspect.StrType: _TEXT,
    inspect.BytesType: (spark.BinaryType,),
    inspect.ByteArrayType: (spark.BinaryType,),
    inspect.DateTimeType: (spark.TimestampType, spark.TimestampNTZType),
    inspect.DateType: (spark.DateType,),
    inspect.DecimalType: (spark.DecimalType,),
    inspect.TimeDeltaType: (spark.DayTimeIntervalType,),
    inspect.UUIDType: _TEXT,
    inspect.EnumType: (*_TEXT, *_WHOLE),
    inspect.LiteralType: (*_TEXT, *_WHOLE),
}
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


def event_class(named: str) -> type[Event]:
    """The class that option ``type`` names; raises ConfigError."""
    found = plugins.found(named, "option type", "the event class", ON_SPARK)
    if not (isinstance(found, type) and issubclass(found, Event)):
        raise ConfigError(f"option type: {named!r} is not an event class; subclass s4node.Event")
    return found


class EventRows:
    """Rows with the columns of ``schema`` as events of ``cls``.

    ``columns`` has the column of a field that has another name. Raises ConfigError, which names
    every column that does not fit.
    """

    def __init__(
        self, cls: type[Event], schema: spark.StructType, columns: Mapping[str, str]
    ) -> None:
        self.type = EventType(cls)
        self._names: list[str] = []
        self._places: list[int] = []
        self._optional: list[bool] = []
        self._checked = hasattr(cls, "__post_init__")
        self._turn = 0
        self._partitioner: Partitioner | None = None
        self._few_keys = True  # rows share keys, as far as batches have shown
        info = inspect.type_info(cls)
        assert isinstance(info, inspect.StructType)
        known = [field.encode_name for field in info.fields]
        problems = [
            f"option columns names field {field!r}, and the fields are {', '.join(known)}"
            for field in columns
            if field not in known
        ]
        at = {name: place for place, name in enumerate(schema.fieldNames())}
        absent = ""
        for field in info.fields:
            name = field.encode_name
            column = columns.get(name, name)
            said = type_text(field.type, (cls,))
            if column not in at:
                absent = absent or name
                if field.required:
                    problems.append(f"there is no column {column!r} for field {name}: {said}")
                continue
            if absent:
                problems.append(
                    f"column {column!r} needs a column for the field {absent} before it"
                )
            place = at.pop(column)
            kind = schema.fields[place].dataType
            if not fits(field.type, kind):
                problems.append(f"column {column!r} is {kind.simpleString()}, not {said}")
            self._names.append(name)
            self._places.append(place)
            self._optional.append(_may_be_none(field.type))
            self._checked = self._checked or not is_plain(field.type)
        if at:
            problems.append(f"there is no field for {', '.join(at)}")
        if problems:
            raise ConfigError(
                f"the rows are not events of {cls.__name__}: {'; '.join(problems)}. Select or cast "
                f"the columns, or name them in option columns, as in columns=user:user_id",
                tuple(problems),
            )

    def check_key(self, hello: wire.Hello, staged: bool) -> None:
        """Raise ConfigError unless this side can route rows by the key of a stream."""
        key = _key_of(hello)
        if key is None and staged:
            raise ConfigError(
                f"stream {hello.stream!r} is routed by {hello.routing!r}, which is no column; "
                f"write to a stream whose key is one, or several joined by +"
            )
        missing = [name for name in key or () if name not in self._names]
        if missing:
            raise ConfigError(
                f"the key of stream {hello.stream!r} is {'+'.join(key or ())}, and "
                f"{self.type.name} has no column for {', '.join(missing)}; write to a stream with "
                f"another key"
            )
        if key:
            hasher_named(hello.routing.rpartition(":")[0])

    def frames(
        self, batch: pa.RecordBatch, upload: Upload
    ) -> Iterator[tuple[int, int, bytes, bool]]:
        """All rows as frames: partition, count and body of each, and whether the partition is that
        of the key."""
        key = _key_of(upload.hello)
        self._check_nulls(batch, key)
        if not key:
            lane = upload.own_lane
            if key is not None:  # without a key any partition will do
                lane = (lane + self._turn) % upload.partitions
                self._turn += 1
            yield from self._bodies(self._rows(batch), lane, upload.max_body, key is not None)
            return
        places = self._partitions(batch, key, upload)
        order = pc.sort_indices(places)
        rows = self._rows(batch.take(order))
        counts = {
            each["values"].as_py(): each["counts"].as_py() for each in pc.value_counts(places)
        }
        start = 0
        for partition in sorted(counts):
            end = start + counts[partition]
            yield from self._bodies(rows[start:end], partition, upload.max_body, True)
            start = end

    def _rows(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        columns = [batch.column(place) for place in self._places]
        return list(zip(*map(values_of, columns), strict=True))

    def _bodies(
        self, rows: Sequence[tuple[Any, ...]], partition: int, most: int, routed: bool
    ) -> Iterator[tuple[int, int, bytes, bool]]:
        for start in range(0, len(rows), FRAME_EVENTS):
            yield from self._fitting(rows[start : start + FRAME_EVENTS], partition, most, routed)

    def _fitting(
        self, rows: Sequence[tuple[Any, ...]], partition: int, most: int, routed: bool
    ) -> Iterator[tuple[int, int, bytes, bool]]:
        """Frames of these rows; those that are too long are halved."""
        try:
            body = self.type.encode(rows)
        except EventError as error:
            raise SinkError(str(error)) from error
        if len(body) > min(most, FRAME_BYTES) and len(rows) > 1:
            half = len(rows) // 2
            yield from self._fitting(rows[:half], partition, most, routed)
            yield from self._fitting(rows[half:], partition, most, routed)
            return
        if len(body) > most:
            raise SinkError(
                f"a row takes {len(body)} bytes as a {self.type.name}, and a frame has room for "
                f"{most}: {str(rows[0])[:80]}...; write smaller rows, or raise "
                f"s4.listener.maxFrameBytes of the node. Nothing of the batch is visible"
            )
        if self._checked:
            self._check(rows, body)
        yield partition, len(rows), body, routed

    def _check(self, rows: Sequence[tuple[Any, ...]], body: bytes) -> None:
        """Raise SinkError if a row is no event of the class."""
        try:
            self.type.decode(body)
        except Exception as error:  # a class may raise anything
            _, refusals = self.type.decode_each(raws_in(body))
            index, reason = refusals[0] if refusals else (0, str(error))
            raise SinkError(
                f"a row is not a valid {self.type.name} ({reason}): {str(rows[index])[:200]}; "
                f"filter or correct it. Nothing of the batch is visible"
            ) from error

    def _check_nulls(self, batch: pa.RecordBatch, key: Sequence[str] | None) -> None:
        for name, place, optional in zip(self._names, self._places, self._optional, strict=True):
            nulls = batch.column(place).null_count
            if nulls and (not optional or name in (key or ())):
                of_key = name in (key or ())
                what = "is the key of the stream" if of_key else "may not be None"
                more = "" if of_key else ", or allow None in the class"
                raise SinkError(
                    f"column {batch.schema.names[place]!r} has {nulls} nulls in {batch.num_rows} "
                    f"rows, and field {name} of {self.type.name} {what}; filter them (df.na.drop) "
                    f"or fill them (df.na.fill){more}. Nothing of the batch is visible"
                )

    def _partitions(self, batch: pa.RecordBatch, key: Sequence[str], upload: Upload) -> pa.Array:
        if self._partitioner is None:
            hasher = hasher_named(upload.hello.routing.rpartition(":")[0])
            self._partitioner = Partitioner(upload.partitions, hasher)
        memo = self._partitioner.memo
        columns = [batch.column(self._places[self._names.index(name)]) for name in key]
        try:
            if len(columns) == 1 and self._few_keys:
                coded = columns[0].dictionary_encode()
                self._few_keys = 2 * len(coded.dictionary) < batch.num_rows
                found = [memo[each] for each in coded.dictionary.to_pylist()]
                return pa.array(found, pa.int16()).take(coded.indices)
            values = [column.to_pylist() for column in columns]
            keys = values[0] if len(values) == 1 else zip(*values, strict=True)
            return pa.array(np.fromiter(map(memo.__getitem__, keys), np.int16, batch.num_rows))
        except KeyFinderError as error:
            raise SinkError(f"a row has no key for {'+'.join(key)}: {error}") from error


def _key_of(hello: wire.Hello) -> tuple[str, ...] | None:
    """The attributes of the stream's key, () without a key, None if this side cannot route."""
    hasher, _, name = hello.routing.rpartition(":")
    if not hasher:
        return () if not name else None
    if not name:
        return ()
    parts = tuple(name.split("+"))
    return parts if all(part.isidentifier() for part in parts) else None


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column; asking for maps as dicts costs a hundred times as much."""
    found: list[Any] = (
        column.to_pylist(maps_as_pydicts="strict")
        if pa.types.is_nested(column.type)
        else column.to_pylist()
    )
    return found


def fits(kind: inspect.Type, column: spark.DataType) -> bool:
    """Return True if each value of the column, but for nulls in it, is of this type."""
    if isinstance(kind, inspect.AnyType):
        return _has_equal(column)
    if isinstance(kind, inspect.UnionType):
        return any(fits(each, column) for each in kind.types)
    if isinstance(column, spark.ArrayType):
        item = getattr(kind, "item_type", None)
        return item is not None and fits(item, column.elementType)
    if isinstance(column, spark.MapType):
        return (
            isinstance(kind, inspect.DictType)
            and fits(kind.key_type, column.keyType)
            and fits(kind.value_type, column.valueType)
        )
    return isinstance(column, _TAKEN.get(type(kind), ()))


def _has_equal(column: spark.DataType) -> bool:
    """Return True if the values of a column mean the same in Python; a VARIANT's are raw bytes."""
    if isinstance(column, spark.ArrayType):
        return _has_equal(column.elementType)
    if isinstance(column, spark.MapType):
        return _has_equal(column.keyType) and _has_equal(column.valueType)
    if isinstance(column, spark.StructType):
        return all(_has_equal(field.dataType) for field in column.fields)
    return isinstance(
        column, (spark.NullType, *(kind for each in _TAKEN.values() for kind in each))
    )


def _may_be_none(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(map(_may_be_none, kind.types))
    return isinstance(kind, (inspect.NoneType, inspect.AnyType))


def is_plain(kind: inspect.Type) -> bool:
    """Return True if a value that Spark has for it is one without looking."""
    if isinstance(kind, inspect.UnionType):
        return all(map(is_plain, kind.types))
    plain = (
        *(inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType),
        *(inspect.BytesType, inspect.DateType, inspect.AnyType),
    )
    return isinstance(kind, plain) and all(getattr(kind, bound, None) is None for bound in _BOUNDS)
