"""Reads streams of a node's log, and the state in savepoints, into DataFrames.

Rules
- The planner asks the node for bounds, and read tasks fetch frames from it. All progress is in
  Spark's checkpoint: a restarted query reads again what its checkpoint names.
- The columns are those of one event type, then the partition, the offset, and the time at which the
  event was appended.
- A batch query reads up to the end that the stream had when the query was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from s4node.config import plugins
from s4node.errors import ConfigError, StoreCorrupt
from s4node.events.schema import GENERIC, EventType
from s4node.events.type_declaration import TypeDecl
from s4node.offsets.startpoint import Specific, Startpoint, Timestamp, Upcoming
from s4node.offsets.system import Bounds, SystemStreamPartition
from s4node.spark import columns, positions
from s4node.spark.event_rows import ON_SPARK
from s4node.spark.log_reader import PartitionFrames
from s4node.spark.positions import Position, Positions, Range
from s4node.spark.read_options import Options, Wanted, parse_start
from s4node.spark.shipped import Shipped
from s4node.spark.short_errors import short_errors

if TYPE_CHECKING:
    import pyarrow as pa


def schema(options: Options) -> StructType:
    """The columns of a DataFrame read with these options."""
    if options.get("state"):
        from s4node.spark import state_source

        return state_source.schema(options)
    wanted = Wanted.of(options)
    stream = _Stream.described(wanted)
    if stream.name == GENERIC:
        raise ConfigError(
            f"stream {wanted.stream!r} has no events with a type, so its columns are not known; "
            f"name the class with option type=package.module:Class, or the columns of events "
            f"without a type as in .schema('user string, seconds bigint')"
        )
    return columns.chosen(columns.schema_of(stream.read), wanted.columns)


def batch_reader(options: Options, schema: StructType) -> DataSourceReader:
    if options.get("state"):
        from s4node.spark import state_source

        return state_source.SavepointReader(options, schema)
    if options.get("maxEventsPerTrigger"):
        raise ConfigError("option maxEventsPerTrigger is for readStream; leave it out")
    return LogReader(Wanted.of(options), schema)


def stream_reader(options: Options, schema: StructType) -> DataSourceStreamReader:
    if options.get("state"):
        raise ConfigError("a savepoint does not change; read option state with spark.read")
    if options.get("end"):
        raise ConfigError(
            "option end is for spark.read; a stream query ends with trigger(availableNow=True)"
        )
    return LogStreamReader(Wanted.of(options), schema)


class _Stream:
    def __init__(self, wanted: Wanted, described: Mapping[str, Any]) -> None:
        self.wanted = wanted
        self.types = [
            TypeDecl(name, fingerprint, tuple((f, w, bool(r)) for f, w, r in fields))
            for name, fingerprint, fields in described["declarations"]
        ]
        damage = [each["damage"] for each in described["partitions"] if "damage" in each]
        if damage:
            raise StoreCorrupt(damage[0])
        self.bounds = {
            number: Bounds(
                each["oldest"],
                each["upcoming"],
                epochs=tuple((epoch, first) for epoch, first in each["epochs"]),
            )
            for number, each in enumerate(described["partitions"])
        }
        self.name, self.read = self._chosen()
        self.known = [*self.types, *self.read]  # also the class's own

    @classmethod
    def described(cls, wanted: Wanted) -> _Stream:
        """The stream now; raises UnknownStream, or NoAnswerError if its node is down."""
        return cls(wanted, wanted.question("describe"))

    def _chosen(self) -> tuple[str, list[TypeDecl]]:
        """The name of the event type to read, and the versions of it; raises ConfigError."""
        stream, kind = self.wanted.stream, self.wanted.type
        names = sorted({each.name for each in self.types} - {GENERIC})
        if ":" in kind:
            own = EventType(plugins.found(kind, "option type", "event class", ON_SPARK))
            versions = [each for each in self.types if each.name == own.name]
            bad = [why for each in versions if (why := own.refusal_of(each))]
            if bad:
                raise ConfigError(f"stream {stream!r} cannot be read as {kind}: {bad[0]}")
            return own.name, [own.declaration, *versions]
        if not kind and len(names) > 1:
            raise ConfigError(
                f"stream {stream!r} has events of the types {', '.join(names)}; say which to read "
                f"with option type: a name, or package.module:Class"
            )
        name = kind or (names[0] if names else GENERIC)
        if name not in (*names, GENERIC):
            raise ConfigError(
                f"stream {stream!r} has no events of the type {name!r}; it has "
                f"{', '.join(names) or 'none with a type'}"
            )
        return name, [each for each in self.types if each.name == name]

    def check_columns(self, schema: StructType) -> None:
        known = {name for each in self.read for name, _, _ in each.fields}
        known |= {field.name for field in columns.PLACE}
        unknown = [name for name in schema.fieldNames() if name not in known]
        if unknown and self.name != GENERIC:
            raise ConfigError(
                f"the schema has columns {', '.join(unknown)}, and {self.name} in stream "
                f"{self.wanted.stream!r} has {', '.join(sorted(known))}; correct .schema(...)"
            )

    def positions(self, place: Startpoint | dict[int, int], others: Positions) -> Positions:
        """The positions that a startpoint, or offsets by partition, mean now; ``others`` are those
        of partitions that are not named."""
        if isinstance(place, dict):
            if unknown := sorted(place.keys() - self.bounds):
                raise ConfigError(
                    f"stream {self.wanted.stream!r} has no partition {unknown[0]}: it has 0 to "
                    f"{len(self.bounds) - 1}; name these in options start and end"
                )
            named = {number: self._offset(number, Specific(at)) for number, at in place.items()}
            offsets = {number: at.offset for number, at in others.items()} | named
        else:
            offsets = {number: self._offset(number, place) for number in self.bounds}
        return {
            number: Position(offset, self.bounds[number].epoch)
            for number, offset in offsets.items()
        }

    def _offset(self, number: int, place: Startpoint) -> int:
        if isinstance(place, Timestamp):
            found = self.wanted.question("offset", partition=number, millis=place.millis)
            return int(found["offset"])
        ssp = SystemStreamPartition("log", self.wanted.stream, number)
        return self.bounds[number].offset_of(ssp, place)

    @property
    def newest(self) -> Positions:
        return {n: Position(each.upcoming, each.epoch) for n, each in self.bounds.items()}

    @property
    def oldest(self) -> Positions:
        return {n: Position(each.oldest, each.epoch) for n, each in self.bounds.items()}


class _Part(InputPartition):
    """The part of a stream that one read task reads."""

    def __init__(self, part: Range, name: str, types: Sequence[TypeDecl]) -> None:
        self.range, self.name, self.types = part, name, types


def _read(wanted: Wanted, schema: StructType, part: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a read task, on an executor."""
    if not isinstance(part, _Part):  # Spark's own, where there is nothing to read
        return
    with short_errors():
        yield from _batches(wanted, schema, part)


def _batches(wanted: Wanted, schema: StructType, part: _Part) -> Iterator[pa.RecordBatch]:
    number, first, end, epoch = part.range
    batches = columns.Batches(schema, part.name, part.types)
    with PartitionFrames(
        wanted.address,
        wanted.patience,
        wanted.stream,
        number,
        first,
        epoch,
        wanted.credentials,
    ) as frames:
        for arrived in frames:
            batches.add(arrived.first, arrived.data, arrived.body)
            if batches.full or arrived.end >= end:
                batch = batches.take(number, end)
                if batch is not None:
                    yield batch
                if arrived.end >= end:
                    return


class LogReader(Shipped, DataSourceReader):
    """Reads what a stream has now, from ``start`` to ``end``."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._wanted = wanted
        self._schema = schema

    @short_errors()
    def partitions(self) -> Sequence[InputPartition]:
        wanted = self._wanted
        stream = _Stream.described(wanted)
        stream.check_columns(self._schema)
        start = stream.positions(parse_start("start", wanted.start), stream.oldest)
        place = parse_start("end", wanted.end)
        newest = stream.newest
        end = newest if isinstance(place, Upcoming) else stream.positions(place, newest)
        for each in (start, end):
            positions.check(wanted.stream, each, stream.bounds)
        return [
            _Part(part, stream.name, stream.known)
            for part in positions.ranges(start, end, stream.bounds)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._wanted, self._schema, partition)


class LogStreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._wanted = wanted
        self._schema = schema
        self._columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema.fields)
        self._last: Positions | None = None  # the end for trigger(availableNow=True)

    @short_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        stream = _Stream.described(self._wanted)
        start = stream.positions(parse_start("start", self._wanted.start), stream.oldest)
        positions.check(self._wanted.stream, start, stream.bounds)
        return positions.to_json(start, self._columns)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._wanted.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @short_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        stream = _Stream.described(self._wanted)
        before = self._checked(stream, start)
        end = self._last or stream.newest
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begun = {**stream.oldest, **before}  # a stream may get more partitions
        return positions.to_json(positions.advance(begun, end, most), self._columns)

    @short_errors()
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return positions.to_json(_Stream.described(self._wanted).newest, self._columns)

    @short_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = _Stream.described(self._wanted).newest

    @short_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        stream = _Stream.described(self._wanted)
        stream.check_columns(self._schema)
        first, last = self._checked(stream, start), self._checked(stream, end)
        return [
            _Part(part, stream.name, stream.known)
            for part in positions.ranges(first, last, stream.bounds)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._wanted, self._schema, partition)

    def _checked(self, stream: _Stream, row: dict[str, Any]) -> Positions:
        """The positions of Spark's checkpoint; raises InputLost if events there are gone."""
        positions.check_columns(row, self._columns)
        found = positions.from_json(row)
        positions.check(self._wanted.stream, found, stream.bounds)
        return found
