"""Sinks for tests whose tasks fail amid their rows: ours, and one that numbers rows.

The option ``fault`` is a function of tests/spark_rows.py, or ``killing:FILE`` or ``holding:FILE``.
``Staged`` is ours.
``Numbered`` recognises rows by their numbers, as a sink without staging would: a task sends them as
the producer of its batch and partition, and if it runs again, it skips as many as were sent before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from s4node import SyncClient
from s4node.spark import sink
from s4node.spark.event_rows import EventRows, event_class
from tests import spark_rows
from tests.spark_rows import Row, send_numbered


class Staged(DataSource):
    """Our sink, with faults."""

    options: Any

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = dict(self.options)
        fault = options.pop("fault")
        target = sink.Target.from_options(options)
        target.prepare(EventRows(event_class(target.type), schema, target.columns))
        return _StagedWriter(sink.Sink(target, schema), fault)


class _StagedWriter(sink.BatchWriter):
    def __init__(self, to: sink.Sink, fault: str) -> None:
        super().__init__(to)
        self._fault = fault

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(_amid(iterator, self._fault))


class Numbered(DataSource):
    """A sink that numbers rows, with the options ``address`` and ``stream``."""

    options: Any

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _NumberedBatch(self.options)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        return _NumberedStream(self.options)


class _NumberedWriter:
    def __init__(self, options: Any) -> None:
        self.address, self.stream = options["address"], options["stream"]
        self.fault = options.get("fault", "")

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId") or "0"
        producer = f"numbered/{batch}/{context.partitionId()}"
        rows = ([Row(**row) for row in each.to_pylist()] for each in _amid(iterator, self.fault))
        with SyncClient(self.address, producer=producer) as client:
            send_numbered(client, self.stream, rows)
        return WriterCommitMessage()

    def commit(self, *_: Any) -> None: ...

    def abort(self, *_: Any) -> None: ...


class _NumberedBatch(_NumberedWriter, DataSourceArrowWriter): ...


class _NumberedStream(_NumberedWriter, DataSourceStreamArrowWriter): ...


def _amid(batches: Iterator[Any], fault: str) -> Iterator[Any]:
    """The batches, amid which the fault happens."""
    name, _, place = fault.partition(":")
    if not name:
        return batches
    happen = getattr(spark_rows, name)
    return happen(batches, place) if place else happen(batches)
