"""Runs PEs over a sorted history, in a task of Spark.

Rules
- The app's own classes and its compiled dispatch run, as on a node. This module only brings events
  to them, and takes the events that they put.
- Windows end and timers fire by the time of the events; see ``due_calls``.
- A task of Spark keeps nothing for the next one: a task that runs again makes the same rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import trio
from pyspark.sql.types import StructType

from s4node.app.app import App
from s4node.app.plan import dispatch, graph
from s4node.app.stream import InputStream, Stream, begin_put, end_put
from s4node.app.window_instances import WindowInstances
from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.errors import ConfigError, ProcessingError, is_signal
from s4node.events.keys import hasher_named, identity
from s4node.events.routing import failed_at, key_failure
from s4node.runtime.container.hooks import declare
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.spark.event_rows import ON_SPARK
from s4node.spark.history.due_calls import DueCalls, calls_of
from s4node.spark.history.event_batches import events_of, packed, unpacked
from s4node.spark.history.event_times import AT
from s4node.spark.history.log_order import LogOrder
from s4node.spark.history.stage_rows import EVENT, PATH, REFUSED, STATE, Progress, PutRows
from s4node.spark.history.stages import Stage
from s4node.spark.history.state_rows import state_rows
from s4node.spark.shipped import Shipped
from s4node.spark.short_errors import short_errors
from s4node.state import key_encoding

_packed = msgspec.msgpack.Encoder().encode


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


@dataclass(frozen=True)
class Replay(Shipped):
    """Runs the PEs of a stage over Arrow batches: columns of the events of one stream (``columns``
    names it), or rows that an earlier stage has made. ``wanted`` are the streams whose events are
    kept; ``order`` are the fields by which events are sorted, the first one ``AT`` if they are
    sorted by time. ``until`` has the last watermark of PEs, ``now`` is the Unix time of the run."""

    source: AppSource
    stage: Stage
    order: StructType
    wanted: frozenset[str]
    columns: str = ""
    until: Mapping[str, float] = field(default_factory=dict)
    now: float = 0.0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with short_errors():
            yield from _Run(self).run(batches)


class _Run:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._app = app = replay.source.made()
        self._hasher = hasher_named(Config.from_values(replay.source.values)[settings.HASHER])
        self._order = [each.name for each in replay.order.fields]
        self._now = Progress()
        self._rows = PutRows(app, replay.wanted, replay.order.fields, self._now)
        for prototype, _ in app.prototypes.values():
            prototype.cache_size, prototype.cache_idle = 0, 0.0  # nothing leaves
        self._pes = PeProcessor(app, 0, lambda: 0.0, wall=lambda: replay.now)
        self._instances = {name: self._pes.instances[name] for name in replay.stage.pes}
        for instances in self._instances.values():
            instances.before = None  # calls come between the events of all keys
        self._due = calls_of(app, self._instances, replay.until)
        self._streams = {name: self._part(app.streams[name]) for name in replay.stage.streams}
        self._plans = {
            name: dispatch.compile_plan(stream, self._instances, self._pes.triggers)
            for name, stream in self._streams.items()
        }
        self._kinds = {stream.name: stream.types for stream in app.streams.values()}
        self._between = {
            name: self._due.between_events(stream) for name, stream in self._streams.items()
        }
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
            if self._due and len(batch):
                self._due.reach(batch.column(AT).fill_null(-math.inf)[-1].as_py())
                self._make_calls(self._due)
                yield from self._rows.put_by_calls()
        self._due.reach(math.inf)
        self._make_calls(self._due)
        yield from self._rows.put_by_calls()
        for rows in state_rows(self._pes, self._instances, self._hasher):
            yield self._batch(
                [
                    (STATE, table, 0, spot, key, *self._no_order, b"", value)
                    for table, spot, key, value in rows
                ]
            )
        yield from self._refusals()

    @property
    def _no_order(self) -> list[None]:
        return [None] * len(self._order)

    def _start(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        token = begin_put(self._rows.of_events)
        try:
            for instances in self._instances.values():
                prototype = instances.prototype
                if prototype.singleton and not isinstance(instances, WindowInstances):
                    singleton = instances.singleton()
                    if prototype.on_create is not None:
                        _complete(prototype.on_create(singleton))
        finally:
            end_put(token)
        none = [pa.nulls(1, batch.schema.field(name).type) for name in self._order]
        yield from self._rows.put_by_handlers(0, none, [b""])

    # -- events --------------------------------------------------------------------------------

    def _of_columns(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        name = self._replay.columns
        kind = self._kinds[name][0]
        given = [each for each in batch.schema.names if each != AT]
        events = events_of(kind, batch.select(given))
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
        between = self._between[name]
        times: list[float] = order[0].fill_null(-math.inf).to_pylist() if between else []
        token = begin_put(self._rows.of_events)
        try:
            first, total = 0, len(events)
            while first < total:
                end = total
                if times:
                    between.reach(times[first])
                    self._make_calls(between)
                    end = between.end_of_part(times, first)
                self._now.rest = total - end
                self._run_events(name, events if end - first == total else events[first:end])
                first = end
        finally:
            end_put(token)
        yield from self._rows.put_by_handlers(len(events), order, paths)

    def _run_events(self, name: str, events: list[Any]) -> None:
        plan = self._plans[name]
        it = self._now.it = iter(events)
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

    def _failed(self, name: str, error: BaseException, event: Any) -> None:
        """Count an event without a key or time, which a node refuses, or raise what failed."""
        if dispatch.is_key_failure(error) and isinstance(self._app.streams[name], InputStream):
            self._refused += 1
            self._why = self._why or f"{key_failure(error)} (event {event!r})"
            return
        pe = dispatch.blame(error)
        raise ProcessingError(
            self._app.name,
            type(pe).__name__ if pe is not None else f"a PE of {name!r}",
            pe.key if pe is not None else None,
            f"{name} in the history: {event!r}",
            error,
            of_event=False,
        ) from error

    def _make_calls(self, calls: DueCalls) -> None:
        for call in calls:
            self._now.due = call.due
            token = begin_put(self._rows.of_calls)
            try:
                _complete(call.hook())
                call.done()
            except BaseException as error:
                if is_signal(error):
                    raise
                raise ProcessingError(
                    self._app.name, type(call.instance).__name__, call.instance.key,
                    f"{call.what} in the history", error, of_event=False,
                ) from error  # fmt: skip
            finally:
                end_put(token)

    def rows_in(self, name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The events of an input stream as rows."""
        kinds, stream = self._kinds[name], self._app.streams[name]
        find = None if stream.key is None else graph.finder_of(stream)
        for batch in batches:
            given = [each for each in batch.schema.names if each != AT]
            events = events_of(kinds[0], batch.select(given))
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
            yield pa.RecordBatch.from_arrays(columns, schema=self._rows.schema)
        yield from self._refusals()

    def _refusals(self) -> Iterator[pa.RecordBatch]:
        if self._refused:
            value = _packed([self._refused, self._why])
            yield self._batch([(REFUSED, "", 0, 0, b"", *self._no_order, b"", value)])

    def _batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(c, type=f.type) for c, f in zip(columns, self._rows.schema, strict=True)],
            schema=self._rows.schema,
        )


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
