"""Events as columns of Arrow, and as the bytes in which stages pass them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import inspect
from pyspark.sql.types import StringType, StructType

from s4node.errors import EventError
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType
from s4node.events.type_words import words as in_words
from s4node.spark.columns import kind_of
from s4node.spark.event_rows import fits, values_of


def misfits(kind: EventType, schema: StructType) -> list[str]:
    """Why rows with these columns are not events of a type; empty if they are."""
    info = inspect.type_info(kind.cls)
    if kind.cls is GenericEvent or not isinstance(info, inspect.StructType):
        return []
    found, columns = [], {each.name: each.dataType for each in schema.fields}
    for field in info.fields:
        name, said = field.encode_name, in_words(field.type, (kind.cls,))
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
    """The events of a batch whose columns are the fields of an event type. Values of types that
    Spark does not have are JSON text, as those of a log."""
    names = set(batch.schema.names)
    if kind.cls is GenericEvent:
        return [GenericEvent.from_attributes(row) for row in batch.to_pylist()]
    columns = []
    hints = {each.encode_name: each.type for each in msgspec.structs.fields(kind.cls)}
    for name, words, _ in kind.declaration.fields:
        if name not in names:
            continue
        wanted = kind_of(words)
        column = batch.column(name)
        if column.null_count and not wanted.nullable:
            raise EventError(
                f"{column.null_count} rows of the history have no {name}, and {kind.name}.{name} "
                f"is {words}; drop or fill them before, or declare {words} | None"
            )
        values = values_of(column)
        try:
            if wanted.as_json and pa.types.is_string(column.type):
                decode = msgspec.json.Decoder(hints[name]).decode
                values = [None if value is None else decode(value) for value in values]
            elif pa.types.is_nested(column.type):  # which may have nulls inside
                values = msgspec.convert(values, list.__class_getitem__((hints[name],)))
        except msgspec.ValidationError as error:
            raise EventError(f"a row of the history is no {kind.name}: {name}: {error}") from error
        columns.append((name, values))
    given = [name for name, _ in columns]
    fields = [name for name, _, _ in kind.declaration.fields][: len(given)]
    if not columns:
        return [kind.cls() for _ in range(len(batch))]
    if given == fields:
        return list(map(kind.cls, *(values for _, values in columns)))
    rows = zip(*(values for _, values in columns), strict=True)
    return [kind.cls(**dict(zip(given, row, strict=True))) for row in rows]


def packed(kinds: Sequence[EventType], events: Sequence[Any]) -> list[bytes]:
    """Each event as bytes."""
    found = {kind.cls: kind for kind in kinds}
    return [found[type(event)].encode([event])[1:] for event in events]


def unpacked(kind: EventType, values: Sequence[bytes]) -> list[Any]:
    """The events of these bytes."""
    return kind.decode(b"\xdd" + len(values).to_bytes(4, "big") + b"".join(values))
