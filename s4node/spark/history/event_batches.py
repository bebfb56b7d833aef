"""Events as columns of Arrow, and as the bytes in which stages pass them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from s4node.errors import ConfigError, EventError
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType
from s4node.spark.columns import kind_of


def events_of(kind: EventType, batch: pa.RecordBatch) -> list[Any]:
    """The events of a batch whose columns are the fields of an event type."""
    names = set(batch.schema.names)
    if kind.cls is GenericEvent:
        return [GenericEvent.from_attributes(row) for row in batch.to_pylist()]
    columns = []
    for name, words, required in kind.declaration.fields:
        if name not in names:
            if required:
                raise ConfigError(f"the history has no column {name!r}, which {kind.name} needs")
            continue
        wanted = kind_of(words)
        column = batch.column(name)
        if column.null_count and not wanted.nullable:
            raise EventError(
                f"{column.null_count} rows of the history have no {name}, and {kind.name}.{name} "
                f"is {words}; drop or fill them before, or declare {words} | None"
            )
        columns.append((name, column.to_pylist()))
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
