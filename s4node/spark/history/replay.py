"""Runs PEs over a sorted history, in a task of Spark.

Rules
- The app's own classes and its compiled dispatch run, as on a node. This module only brings events
  to them, and takes the events that they put.
- An event that is put gets the order of the event that led to it, and a number among all that this
  event led to. So the next level can be sorted in turn.
- A task of Spark keeps nothing for the next one: a task that runs again makes the same rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import length_hint
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import trio
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from s4node import clocks
from s4node.app import graph
from s4node.app.app import App
from s4node.app.stream import OutputStream, Stream, begin_put, end_put
from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.errors import ConfigError, ProcessingError, is_signal
from s4node.events.keys import KEY_GROUPS, hasher_named, identity
from s4node.events.routing import failed_at, key_failure
from s4node.runtime.container.hooks import declare
from s4node.runtime.task.pe_state import PeState
from s4node.spark.event_rows import ON_SPARK
from s4node.spark.history.event_batches import events_of, packed, unpacked
from s4node.spark.history.log_order import LogOrder
from s4node.spark.history.stages import Stage
from s4node.spark.shipped import Shipped
from s4node.spark.short_errors import short_errors
from s4node.state import key_encoding
from s4node.state.rows import TASK_GROUP

STATE, EVENT, REFUSED = "state", "event", "refused"
"""The kinds of rows that a stage makes: an instance, an event that was put, and the number of
events without a key."""

PATH = "path"

_INSTANCES = 8_192
_packed = msgspec.msgpack.Encoder().encode


def rows_of(order: Sequence[StructField]) -> StructType:
    """The rows of a stage. ``name`` is of the PE or the stream, ``type`` the event's type in its
    stream, ``spot`` the key group of an instance."""
    return StructType(
        [
            StructField("kind", StringType(), False),
            StructField("name", StringType(), False),
            StructField("type", IntegerType(), False),
            StructField("spot", IntegerType(), False),
            StructField("key", BinaryType(), False),
            *(StructField(each.name, each.dataType, True) for each in order),
            StructField(PATH, BinaryType(), False),
            StructField("value", BinaryType(), False),
        ]
    )


@dataclass(frozen=True)
class AppSource:
    """How a task of Spark gets the app: its class, or ``package.module:name``, and its settings."""

    named: Any
    values: Mapping[str, str]
    tasks: int

    def made(self) -> App:
        """The declared app; one for each process if the name is that of an object."""
        if isinstance(self.named, str):
            return _named_app(self.named, tuple(self.values.items()), self.tasks)
        return _declared(self.named(), self.values, self.tasks)


@cache
def _named_app(named: str, values: tuple[tuple[str, str], ...], tasks: int) -> App:
    found = plugins.found(named, "the bootstrap", "app", ON_SPARK)
    return _declared(found() if isinstance(found, type) else found, dict(values), tasks)


def _declared(app: object, values: Mapping[str, str], tasks: int) -> App:
    if not isinstance(app, App):
        raise ConfigError(f"{app!r} is not an App; give an App class, or package.module:App")
    trio.run(partial(declare, app, Config.from_values(values), tasks))
    return app


class _Put:
    """The events that are put on one stream, each with the index of the event that led to it."""

    def __init__(self, now: SimpleNamespace) -> None:
        self.events: list[Any] = []
        self.at: list[int] = []
        self.turn: list[int] = []
        self._now = now

    def append(self, event: Any) -> None:
        now = self._now
        now.count += 1
        self.events.append(event)
        self.at.append(length_hint(now.it))
        self.turn.append(now.count)


class _Dropped:
    """Drops the events of a stream that is not kept."""

    def append(self, event: Any) -> None:
        """Drop it."""


@dataclass(frozen=True)
class Replay(Shipped):
    """Runs the PEs of a stage over Arrow batches: columns of the events of one stream (``columns``
    names it), or rows that an earlier stage has made. ``wanted`` are the streams whose events are
    kept; ``order`` are the fields by which events are sorted."""

    source: AppSource
    stage: Stage
    order: StructType
    wanted: frozenset[str]
    columns: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with short_errors():
            yield from _Run(self).run(batches)


class _Run:
    """One task of Spark."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._app = app = replay.source.made()
        self._hasher = hasher_named(Config.from_values(replay.source.values)[settings.HASHER])
        self._arrow = to_arrow_schema(rows_of(replay.order.fields), timezone="UTC")
        self._order = [field.name for field in replay.order.fields]
        self._now = SimpleNamespace(it=iter(()), count=0)
        self._put = [
            _Put(self._now) if name in replay.wanted else _Dropped() for name in app.streams
        ]
        mine = set(replay.stage.pes)
        prototypes = {name: p for name, (p, _) in app.prototypes.items() if name in mine}
        for prototype in prototypes.values():
            prototype.cache_size, prototype.cache_idle = 0, 0.0  # nothing leaves
        self._instances = {
            name: graph.make_instances(prototype, 0, _no_time)
            for name, prototype in prototypes.items()
        }
        self._triggers = {
            name: graph.TriggerState(prototype, _no_time)
            for name, prototype in prototypes.items()
            if prototype.triggers
        }
        for name, trigger in self._triggers.items():
            self._instances[name].gone = trigger.remove
        self._streams = {name: self._part(app.streams[name]) for name in replay.stage.streams}
        self._plans = {
            name: graph.compile_plan(stream, self._instances, self._triggers)
            for name, stream in self._streams.items()
        }
        self._finders = {
            stream.name: None if stream.key is None else graph.finder_of(stream)
            for stream in app.streams.values()
            if not isinstance(stream, OutputStream)
        }
        self._kinds = {stream.name: stream.types for stream in app.streams.values()}
        self._refused = 0
        self._why = ""
        self._log_order = LogOrder(self._order)

    def _part(self, stream: Stream) -> Stream:
        """The stream, leading only to the PEs of this stage."""
        part = copy.copy(stream)
        part.targets = tuple(each for each in stream.targets if each.name in self._instances)
        return part

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = False
        for batch in batches:
            if not began:
                began = True
                yield from self._start(batch)
            if self._replay.columns:
                yield from self._of_columns(batch)
            else:
                yield from self._of_rows(batch)
        yield from self._states()
        yield from self._refusals()

    @property
    def _no_order(self) -> list[None]:
        return [None] * len(self._order)

    def _start(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Create singletons."""
        token = begin_put(self._put)  # type: ignore[arg-type]
        try:
            for instances in self._instances.values():
                prototype = instances.prototype
                if prototype.singleton:
                    singleton = instances.singleton()
                    if prototype.on_create is not None:
                        _complete(prototype.on_create(singleton))
        finally:
            end_put(token)
        none = [pa.nulls(1, batch.schema.field(name).type) for name in self._order]
        yield from self._taken(0, none, [b""])

    # -- events --------------------------------------------------------------------------------

    def _of_columns(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        name = self._replay.columns
        kind = self._kinds[name][0]
        events = events_of(kind, batch)
        self._log_order.follow(batch, pa.array([name] * len(batch), pa.string()))
        yield from self._dispatch(name, events, [batch.column(each) for each in self._order], None)

    def _of_rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        refused = pc.equal(batch.column("kind"), REFUSED)
        if pc.any(refused).as_py():  # counted when the history became rows
            yield batch.filter(refused)
            batch = batch.filter(pc.invert(refused))
        read = batch.filter(pc.equal(batch.column(PATH), b""))  # the others were put
        self._log_order.follow(read, read.column("name"))
        names = batch.column("name")
        for group in self._groups():
            part = batch
            if len(group) < len(self._streams):
                part = batch.filter(pc.is_in(names, pa.array(sorted(group))))
            if len(part):
                yield from self._of_group(part)

    def _groups(self) -> list[set[str]]:
        """The streams in groups that have no PE in common."""
        groups: list[tuple[set[str], set[str]]] = []
        for name, stream in self._streams.items():
            streams, pes = {name}, {target.name for target in stream.targets}
            for other in [each for each in groups if each[1] & pes]:
                groups.remove(other)
                streams |= other[0]
                pes |= other[1]
            groups.append((streams, pes))
        return [streams for streams, _ in groups]

    def _of_group(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run events of streams that lead to the same PEs, in order."""
        names = batch.column("name").to_pylist()
        types = batch.column("type").to_pylist()
        values = batch.column("value").to_pylist()
        paths = batch.column(PATH).to_pylist()
        order = [batch.column(each) for each in self._order]
        first, total = 0, len(names)
        while first < total:
            name, kind = names[first], types[first]
            end = first + 1
            while end < total and names[end] == name and types[end] == kind:
                end += 1
            events = unpacked(self._kinds[name][kind], values[first:end])
            columns = [each.slice(first, end - first) for each in order]
            yield from self._dispatch(name, events, columns, paths[first:end])
            first = end

    def _dispatch(
        self, name: str, events: list[Any], order: Sequence[pa.Array], paths: list[bytes] | None
    ) -> Iterator[pa.RecordBatch]:
        plan = self._plans[name]
        it = self._now.it = iter(events)
        token = begin_put(self._put)  # type: ignore[arg-type]
        try:
            while True:
                try:
                    if plan.is_async:
                        trio.run(plan.run, it)
                    else:
                        plan.run(it)
                    break
                except BaseException as error:
                    if is_signal(error):
                        raise
                    self._failed(name, error, events[failed_at(it, len(events))])
        finally:
            end_put(token)
        yield from self._taken(len(events), order, paths)

    def _failed(self, name: str, error: BaseException, event: Any) -> None:
        """Count an event without a key, as a node refuses it, or raise what failed."""
        if graph.is_key_failure(error) and self._replay.stage.level == 0:
            self._refused += 1
            self._why = self._why or f"{key_failure(error)} (event {event!r})"
            return
        pe = graph.blame(error)
        raise ProcessingError(
            self._app.name,
            type(pe).__name__ if pe is not None else f"a PE of {name!r}",
            pe.key if pe is not None else None,
            f"{name} in the history: {event!r}",
            error,
            of_event=False,
        ) from error

    def _taken(
        self, total: int, order: Sequence[pa.Array], paths: list[bytes] | None
    ) -> Iterator[pa.RecordBatch]:
        """The events that were put meanwhile, as rows."""
        for stream, put in zip(self._app.streams.values(), self._put, strict=True):
            if not isinstance(put, _Put) or not put.events:
                continue
            events, at, turn = put.events, put.at, put.turn
            put.events, put.at, put.turn = [], [], []
            places = [max(0, total - left - 1) for left in at]
            kinds = {kind.cls: number for number, kind in enumerate(self._kinds[stream.name])}
            numbers = [kinds[type(event)] for event in events]
            columns = [
                pa.array([EVENT] * len(events)),
                pa.array([stream.name] * len(events)),
                pa.array(numbers, type=pa.int32()),
                pa.array([0] * len(events), type=pa.int32()),
                pa.array(self._keys(stream.name, events), type=pa.binary()),
                *(column.take(pa.array(places)) for column in order),
                pa.array(
                    [
                        (paths[place] if paths else b"") + count.to_bytes(6, "big")
                        for place, count in zip(places, turn, strict=True)
                    ],
                    type=pa.binary(),
                ),
                pa.array(packed(self._kinds[stream.name], events), type=pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _keys(self, name: str, events: list[Any]) -> list[bytes]:
        find = self._finders.get(name)
        if find is None:
            return [b""] * len(events)
        keys: list[bytes] = []
        for event in events:
            try:
                keys.append(key_encoding.encode(identity(find(event))))
            except Exception as error:
                raise ProcessingError(
                    self._app.name, f"KeyFinder of {name!r}", None, f"{event!r}", error,
                    of_event=False,
                ) from error  # fmt: skip
        return keys

    def rows_in(self, name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The events of an input stream as rows."""
        kinds, find = self._kinds[name], self._finders[name]
        for batch in batches:
            events = events_of(kinds[0], batch)
            keys, good = [], []
            for at, event in enumerate(events):
                try:
                    keys.append(b"" if find is None else key_encoding.encode(identity(find(event))))
                    good.append(at)
                except Exception as error:
                    self._refused += 1
                    self._why = self._why or f"{key_failure(error)} (event {event!r})"
            count = len(good)
            columns = [
                pa.array([EVENT] * count, type=pa.string()),
                pa.array([name] * count, type=pa.string()),
                pa.array([0] * count, type=pa.int32()),
                pa.array([0] * count, type=pa.int32()),
                pa.array(keys, type=pa.binary()),
                *(batch.column(each).take(pa.array(good, pa.int64())) for each in self._order),
                pa.array([b""] * count, type=pa.binary()),
                pa.array(packed(kinds, [events[at] for at in good]), type=pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._arrow)
        yield from self._refusals()

    def _refusals(self) -> Iterator[pa.RecordBatch]:
        if self._refused:
            value = _packed([self._refused, self._why])
            yield self._batch([(REFUSED, "", 0, 0, b"", *self._no_order, b"", value)])

    # -- state ---------------------------------------------------------------------------------

    def _states(self) -> Iterator[pa.RecordBatch]:
        """A row for each instance, as a commit of a node has it."""
        found = _Rows()
        PeState(_only(self._app, self._streams), self._instances, self._triggers, found)
        for name, codec in found.codecs.items():
            instances = list(self._instances[name].values())
            for first in range(0, len(instances), _INSTANCES):
                some = instances[first : first + _INSTANCES]
                yield self._batch(
                    [
                        (STATE, name, 0, *self._spot(one.key), *self._no_order, b"", data)
                        for one, data in zip(some, codec.encode_all(some), strict=True)
                    ]
                )

    def _spot(self, key: Any) -> tuple[int, bytes]:
        """The key group of an instance, and its key as bytes."""
        if key is None:
            return TASK_GROUP, b""
        return self._hasher(key) % KEY_GROUPS, key_encoding.encode(key)

    def _batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(c, type=f.type) for c, f in zip(columns, self._arrow, strict=True)],
            schema=self._arrow,
        )


class _Rows:
    """Takes the place of a task's state, to get the codecs of its PEs."""

    def __init__(self) -> None:
        self.codecs: dict[str, Any] = {}

    def now(self) -> float:
        return clocks.wall()

    def meta(self, _name: str, /) -> Any:
        return None

    def set_meta(self, _name: str, _value: Any, /) -> None:
        """Do nothing: the driver writes these values."""

    def store(self, _spec: Any, /) -> Any:
        raise AssertionError("PEs have no stores here")

    def saved_windows(self, _name: str, _codec: Any, /) -> Any:
        raise AssertionError("windows are refused before")

    def saved_timers(self, _name: str, /) -> Any:
        raise AssertionError("timers are refused before")

    def saved(self, name: str, _live: Mapping[Any, Any], codec: Any, /) -> Any:
        self.codecs[name] = codec
        return SimpleNamespace(
            mark=None, stored=False, find=lambda _keys: {}, touch=lambda _keys: None
        )


def _only(app: App, streams: Mapping[str, Stream]) -> Any:
    return SimpleNamespace(streams=streams, name=app.name)


def _no_time() -> float:
    return 0.0


def _complete(awaitable: Any) -> None:
    if hasattr(awaitable, "__await__"):

        async def wait() -> None:
            await awaitable

        trio.run(wait)


@dataclass(frozen=True)
class Encoding(Shipped):
    """Makes rows of the history of an input stream, as if a stage had put its events."""

    source: AppSource
    stream: str
    order: StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with short_errors():
            none = Stage(0, (), (), single=False)
            run = _Run(Replay(self.source, none, self.order, frozenset()))
            yield from run.rows_in(self.stream, batches)
