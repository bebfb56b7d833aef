"""Writes DataFrames to streams: batches that become visible whole, or not at all.

Rules
- A task attempt appends its rows to the sink's spool on the log's node, as a producer of its own.
  Spark's commit names the attempts that count, and the node publishes these
  (``s4node.log.sink.decision``). So attempts may run again, with the same rows or with others.
- The id of a sink is Spark's id of the query, the name in option ``job``, or a new one for each
  batch write. A batch is published in a stream only once, ever. The node forgets a batch write that
  has learned that it is published, for nobody can ask for it again.
- Rows for an app's own stream are sent at once, and sent again if a task runs again. The user has
  to accept that in option ``delivery``.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from s4node import tokens
from s4node.errors import ConfigError, S4Error, SinkError, UnknownStream
from s4node.events.type_declaration import TypeDecl
from s4node.net.certificates.credentials import OPTIONS, Credentials
from s4node.net.wire import frame as wire
from s4node.spark.addresses import (
    ADDRESS,
    CLUSTER,
    COORDINATION,
    addresses_of,
    check_given,
    problems_of,
)
from s4node.spark.connection import NoAnswerError, ask
from s4node.spark.event_rows import EventRows, event_class
from s4node.spark.shipped import Shipped
from s4node.spark.short_errors import short_errors
from s4node.spark.upload import Upload

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("s4node.spark")

STAGED, AT_LEAST_ONCE = "exactly-once", "at-least-once"

_OPTIONS = (
    *(ADDRESS, CLUSTER, COORDINATION, "stream", "type", "columns", "partitions", "key", "job"),
    *("delivery", "patience"),
    *OPTIONS,  # of TLS
    *("path", "checkpointlocation"),  # Spark's own
)
_ABORT_SECONDS = 5.0
_PART_BYTES = 64 << 10  # of the attempts that one question names
_GC_THRESHOLD = 100_000
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class Target:
    addresses: tuple[str, ...]
    stream: str
    type: str
    columns: Mapping[str, str] = field(default_factory=dict)
    partitions: int | None = None
    key: str = ""
    job: str = ""
    delivery: str = STAGED
    patience: float = 60.0
    credentials: Credentials | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Target:
        """The values of options, with the addresses of a cluster; raises ConfigError, which lists
        all mistakes."""
        given = {name.lower(): value for name, value in options.items()}
        check_given(given)
        problems = [f"there is no option {name}" for name in given if name not in _OPTIONS]
        problems += problems_of(given)
        problems += [
            f"option {name} is missing, as in .option({name!r}, {example!r})"
            for name, example in (
                ("stream", "clicks"),
                ("type", "shop.events:Click"),
            )
            if not given.get(name)
        ]
        columns: dict[str, str] = {}
        for pair in filter(None, given.get("columns", "").split(",")):
            name, colon, column = (part.strip() for part in pair.partition(":"))
            if not (name and colon and column):
                problems.append(f"option columns: {pair!r} is not field:column")
            columns[name] = column
        partitions, patience = None, cls.patience
        try:
            partitions = int(given["partitions"]) if "partitions" in given else None
        except ValueError:
            problems.append(f"option partitions: {given['partitions']!r} is not a number")
        try:
            patience = float(given.get("patience", patience))
            if not 0 < patience < 1e6:
                raise ValueError
        except ValueError:
            problems.append(f"option patience: {given['patience']!r} is not a number of seconds")
        delivery = given.get("delivery", STAGED)
        if delivery not in (STAGED, AT_LEAST_ONCE):
            problems.append(
                f"option delivery: {delivery!r} is neither {STAGED} nor {AT_LEAST_ONCE}"
            )
        if problems:
            raise ConfigError(f"format('s4'): {'; '.join(problems)}", tuple(problems))
        return cls(
            addresses_of(given, given["stream"]),
            given["stream"],
            given["type"],
            columns,
            partitions,
            given.get("key", ""),
            given.get("job", ""),
            delivery,
            patience,
            Credentials.in_options(given),
        )

    def question(
        self,
        question: str,
        meanwhile: tuple[str, Mapping[str, Any]] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        return ask(
            self.addresses,
            self.patience,
            question,
            meanwhile,
            credentials=self.credentials,
            **arguments,
        )

    def prepare(self, rows: EventRows) -> None:
        """Create the stream if the options say how; raises ConfigError if it does not take the
        rows."""
        if self.partitions is not None:
            self.question("create", stream=self.stream, partitions=self.partitions, key=self.key)
        declared = rows.type.declaration
        try:
            upload = self.upload(self.stream, f"spark-{tokens.fresh(10)}", declared)
        except SinkError as error:
            raise self._unknown(error) from error
        hello = upload.hello
        upload.finish()
        if not hello.headers.get(wire.LOG) and self.delivery != AT_LEAST_ONCE:
            raise ConfigError(
                f"stream {self.stream!r} is an app's input, where rows that Spark writes again "
                f"count again. Write to a stream of a log, which the app reads (system='log'), or "
                f"accept that: .option('delivery', '{AT_LEAST_ONCE}')"
            )
        for known in hello.types:
            refused = known.name == declared.name and (
                known.refusal_of(declared) and declared.refusal_of(known)
            )
            if refused:
                raise ConfigError(
                    f"stream {self.stream!r} has events of another {declared.name}: {refused}. "
                    f"Write the columns that it had, or write to another stream"
                )
        rows.check_key(hello, self.delivery == STAGED)

    def upload(self, stream: str, producer: str, declared: TypeDecl) -> Upload:
        return Upload(self.addresses, stream, producer, declared, self.patience, self.credentials)

    def _unknown(self, error: SinkError) -> Exception:
        """The error for a stream that cannot be opened."""
        if "s4 log create" not in str(error) and "no stream" not in str(error):
            return error
        return UnknownStream(
            f"{error}. Create it: s4 log create {self.stream} --partitions 4 --key ATTRIBUTE, or "
            f"with .option('partitions', 4).option('key', 'ATTRIBUTE')"
        )


@dataclass
class Staged(WriterCommitMessage):
    """An attempt, and how many rows it has staged in each partition; ``batch`` is -1 if the rows
    were sent without staging."""

    sink: str
    batch: int
    producer: str
    counts: dict[int, int]


class Sink:
    """The sink of a query: writes attempts, and publishes those that count."""

    def __init__(self, target: Target, schema: StructType) -> None:
        self._target = target
        self._schema = schema

    def named(self, name: str) -> str:
        """The id of a sink; in TLS it begins with the name in the certificate, as all ids."""
        credentials = self._target.credentials
        return name if credentials is None else credentials.holder.own_id(name)

    def write_rows(
        self, sink: str, batch: int, batches: Iterator[pa.RecordBatch], *, last: bool
    ) -> Staged:
        """Append the rows of one attempt; ``last`` if the sink has only this batch."""
        target = self._target
        gc.set_threshold(_GC_THRESHOLD)  # rows are many, and free of cycles
        rows = EventRows(event_class(target.type), self._schema, target.columns)
        context = TaskContext.get()
        task = f"{context.partitionId()}/{context.attemptNumber()}" if context else "0/0"
        producer = f"{sink}/{max(0, batch)}/{task}-{tokens.fresh(10)}"
        stream = target.stream
        if batch >= 0:
            found = target.question("sink.stage", sink=sink, stream=stream, last=last)
            if found["batch"] >= batch:  # published before; the rows need not be looked at
                return Staged(sink, batch, producer, {})
            stream = found["spool"]
        upload = target.upload(stream, producer, rows.type.declaration)
        try:
            for each in batches:
                if each.num_rows:
                    for partition, count, body, routed in rows.frames(each, upload):
                        upload.send(partition, count, body, routed=routed)
            counts = upload.finish()
        finally:
            upload.close()
        return Staged(sink, batch, producer, counts)

    def publish(self, messages: Sequence[WriterCommitMessage | None], *, last: bool) -> None:
        named = [message for message in messages if isinstance(message, Staged)]
        if not named or named[0].batch < 0:  # nothing to publish, or sent without staging
            return
        sink, batch, stream = named[0].sink, named[0].batch, self._target.stream
        attempts = [(each.producer, each.counts) for each in named if each.counts]
        commit, known = tokens.fresh(10), 0
        try:
            while True:
                found = self._target.question(
                    "sink.publish",
                    # a large batch takes long
                    meanwhile=("sink.carried", {"sink": sink, "stream": stream}),
                    sink=sink,
                    stream=stream,
                    batch=batch,
                    attempts=_part(attempts, known),
                    last=last,
                    commit=commit,
                    first=known,
                    total=len(attempts),
                )
                if "known" not in found:
                    break
                known = found["known"]
        except NoAnswerError as error:
            raise SinkError(
                f"{error}. The node may have decided batch {batch} before, and then publishes it "
                f"when it runs again: look for {sink} in s4 log sinks before you write the rows "
                f"again. A query, or a write with option job, may just run again"
            ) from error
        log.log(
            logging.INFO if found["published"] else logging.WARNING,
            "batch %s of sink %s: %s",
            *(batch, sink),
            f"{found['events']} events published"
            if found["published"]
            else "it was published before, and nothing of it is written again",
        )

    def drop_staged(
        self,
        messages: Sequence[WriterCommitMessage | None],
        sink: str = "",
        *,
        over: bool = False,
    ) -> None:
        """Have the node drop what was staged; ``over`` if the sink is not used again."""
        for message in messages:
            if isinstance(message, Staged) and message.batch >= 0:
                sink = message.sink
        if sink:
            self._request("sink.abort", sink, over=over)

    def end_write(self, sink: str) -> None:
        """Have the node forget a sink whose only batch is published."""
        self._request("sink.end", sink)

    def _request(self, question: str, sink: str, **arguments: Any) -> None:
        """Ask for what may also be left undone: an error here would hide how the write has ended,
        and the node drops unpublished attempts by itself."""
        target = self._target
        try:
            ask(
                target.addresses,
                min(target.patience, _ABORT_SECONDS),
                question,
                credentials=target.credentials,
                sink=sink,
                stream=target.stream,
                **arguments,
            )
        except S4Error as error:
            log.warning("what the node keeps of sink %s is not dropped yet: %s", sink, error)


def _part(attempts: Sequence[tuple[str, Mapping[int, int]]], first: int) -> Sequence[Any]:
    """As many attempts from ``first`` on as one question names."""
    size, end = 0, first
    while end < len(attempts) and (size < _PART_BYTES or end == first):
        producer, counts = attempts[end]
        size += len(producer) + 8 * len(counts) + 8
        end += 1
    return attempts[first:end]


class _Attempts(Shipped):
    """A writer whose attempts ``sink`` writes. ``_place`` has the id of the sink and the number of
    the batch; ``_last`` is true if the sink has only this batch."""

    _last = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with short_errors():
            return self._sink.write_rows(*self._place(), iterator, last=self._last)

    def _place(self) -> tuple[str, int]:
        raise NotImplementedError


class BatchWriter(_Attempts, DataSourceArrowWriter):
    """The writer of ``df.write``; ``job`` is its name, if it has one."""

    _last = True

    def __init__(self, sink: Sink, job: str = "", *, staged: bool = True) -> None:
        super().__init__(sink)
        self._id = sink.named(f"job/{job}" if job else f"write/{tokens.fresh(20)}")
        self._has_name = bool(job)
        self._batch = 0 if staged else -1

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with short_errors():
            self._sink.publish(messages, last=self._last)
        if self._batch >= 0 and not self._has_name:
            self._sink.end_write(self._id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = self._batch >= 0
        self._sink.drop_staged(messages, self._id if staged else "", over=not self._has_name)

    def _place(self) -> tuple[str, int]:
        return self._id, self._batch


class StreamWriter(_Attempts, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``; Spark makes a new one for every step."""

    def __init__(self, sink: Sink, *, staged: bool = True) -> None:
        super().__init__(sink)
        self._staged = staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        with short_errors():
            self._sink.publish(messages, last=self._last)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self._sink.drop_staged(messages)

    def _place(self) -> tuple[str, int]:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise SinkError(
                "Spark does not say which query and batch it runs; use pyspark 4.3 or newer"
            )
        return self._sink.named(f"query/{query}"), int(batch) if self._staged else -1


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``; raises an error unless the stream takes these rows."""
    if overwrite:
        raise ConfigError(
            "format('s4') does not overwrite: a stream only grows. Use mode('append'); "
            "s4 log trim deletes old events"
        )
    target = Target.from_options(options)
    _check(target, schema)
    staged = target.delivery == STAGED
    return BatchWriter(Sink(target, schema), target.job, staged=staged)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of ``df.writeStream``; raises an error unless the stream takes these rows."""
    if overwrite:
        raise ConfigError("format('s4') only appends; use outputMode('append') or 'update'")
    target = Target.from_options(options)
    if target.job:
        raise ConfigError(
            "option job is for df.write: a query has its id in the checkpoint; leave it out"
        )
    _check(target, schema)
    return StreamWriter(Sink(target, schema), staged=target.delivery == STAGED)


def _check(target: Target, schema: StructType) -> None:
    target.prepare(EventRows(event_class(target.type), schema, target.columns))
