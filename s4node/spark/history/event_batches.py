"""Events as columns of Arrow, and as the bytes in which stages pass them on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec
import pyarrow as pa
from msgspec import inspect
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from s4node.errors import EventError
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType
from s4node.events.type_text import type_text
from s4node.spark.columns import kind_of
from s4node.spark.event_rows import fits, is_plain, values_of
from s4node.spark.shipped import Shipped


def misfits(kind: EventType, schema: StructType) -> list[str]:
    """The reason why rows with these columns are not events of a type; empty if they are."""
    info = inspect.type_info(kind.cls)
    if kind.cls is GenericEvent or not isinstance(info, inspect.StructType):
        return []
    found, columns = [], {each.name: each.dataType for each in schema.fields}
    for field in info.fields:
        name, said = field.encode_name, type_text(field.type, (kind.cls,))
        column = columns.get(name)
        if column is None:
            if field.required:
                found.append(f"there is no column {name!r} for field {name}: {said}")
        elif not (
            fits(field.type, column) or (kind_of(said).as_json and isinstance(column, StringType))
        ):
            found.append(f"column {name!r} is {column.simpleString()}, not {said}")
    return found


def events_of(kind: EventType, batch: pa.RecordBatch) -> list[Any]:
    """The events of a batch whose columns are the fields of an event type, as nodes decode them."""
    if kind.cls is GenericEvent:
        return [GenericEvent.from_attributes(row) for row in batch.to_pylist()]
    names = set(batch.schema.names)
    info, hints = inspect.type_info(kind.cls), msgspec.structs.fields(kind.cls)
    assert isinstance(info, inspect.StructType)
    given, columns = [], []
    for field, hint in zip(info.fields, hints, strict=True):
        name = field.encode_name
        if name not in names:
            continue
        column, text = batch.column(name), type_text(field.type, (kind.cls,))
        if column.null_count and not kind_of(text).nullable:
            raise EventError(
                f"{column.null_count} rows of the history have no {name}, and {kind.name}.{name} "
                f"is {text}; drop or fill them before, or declare {text} | None"
            )
        try:
            columns.append(_decoded(field.type, hint.type, column))
        except msgspec.DecodeError as error:
            fix = f"text for {text} has to be JSON" if kind_of(text).as_json else "filter such rows"
            raise EventError(
                f"a row of the history is not a valid {kind.name}: {name}: {error}; {fix}"
            ) from error
        given.append(field.name)
    if not columns:
        return [kind.cls() for _ in range(len(batch))]
    try:
        if given == [field.name for field in info.fields][: len(given)]:
            return list(map(kind.cls, *columns))
        rows = zip(*columns, strict=True)
        return [kind.cls(**dict(zip(given, row, strict=True))) for row in rows]
    except (TypeError, ValueError) as error:  # of its __post_init__
        raise EventError(f"a row of the history is not a valid {kind.name}: {error}") from error


def _decoded(kind: inspect.Type, hint: Any, column: pa.Array) -> list[Any]:
    """The values of a column as a node decodes them: enums, times in UTC, floats that came whole.
    Text for a type that Spark does not have is JSON, as of a log, unless it is a value itself."""
    values, items = values_of(column), list.__class_getitem__(hint)
    as_json = kind_of(type_text(kind)).as_json and pa.types.is_string(column.type)
    kinds = set(map(type, _parts(kind)))
    any_text = kinds & {inspect.StrType, inspect.AnyType}
    if as_json and not any_text and fits(kind, StringType()):  # an enum, a literal or a UUID
        with suppress(msgspec.ValidationError):
            return cast("list[Any]", msgspec.convert(values, items))
    if pa.types.is_integer(column.type) and any(map(_has_texts, _parts(kind))):
        values = [None if value is None else str(value) for value in values]
    if as_json:
        decode = msgspec.json.Decoder(hint).decode
        return [None if value is None else decode(value) for value in values]
    to_float = pa.types.is_integer(column.type) and kinds <= {inspect.FloatType, inspect.NoneType}
    if is_plain(kind) and not to_float:
        return values
    return cast("list[Any]", msgspec.msgpack.decode(msgspec.msgpack.encode(values), type=items))


def _parts(kind: inspect.Type) -> Sequence[inspect.Type]:
    return kind.types if isinstance(kind, inspect.UnionType) else [kind]


def _has_texts(kind: inspect.Type) -> bool:
    """Return True for an enum or a literal of texts, which a log may show as numbers."""
    if isinstance(kind, inspect.EnumType):
        return all(isinstance(each.value, str) for each in kind.cls)
    return isinstance(kind, inspect.LiteralType) and isinstance(kind.values[0], str)


def columns_of(kind: EventType) -> StructType:
    columns = StructType()
    for name, text, _ in kind.declaration.fields:
        columns.add(name, kind_of(text).spark)
    return columns


@dataclass(frozen=True)
class Columns(Shipped):
    """Makes columns of events of a class, which come as bytes in the column ``value``."""

    cls: type

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = EventType(self.cls)
        schema = to_arrow_schema(columns_of(kind), timezone="UTC")
        as_json = [kind_of(text).as_json for _, text, _ in kind.declaration.fields]
        names = [each.name for each in msgspec.structs.fields(self.cls)]
        for batch in batches:
            events = unpacked(kind, batch.column("value").to_pylist())
            columns = []
            for name, column, of_json in zip(names, schema, as_json, strict=True):
                values = msgspec.to_builtins(
                    [getattr(event, name) for event in events],
                    builtin_types=(datetime, date, bytes, Decimal, timedelta),
                )
                if pa.types.is_integer(column.type):  # an enum may have texts that are numbers
                    values = msgspec.convert(values, list[int | None], strict=False)
                if of_json:
                    values = [None if value is None else _text(value) for value in values]
                columns.append(pa.array(values, type=column.type))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def packed(kinds: Sequence[EventType], events: Sequence[Any]) -> list[bytes]:
    found = {kind.cls: kind for kind in kinds}
    return [found[type(event)].encode([event])[1:] for event in events]


def unpacked(kind: EventType, values: Sequence[bytes]) -> list[Any]:
    return kind.decode(b"\xdd" + len(values).to_bytes(4, "big") + b"".join(values))
