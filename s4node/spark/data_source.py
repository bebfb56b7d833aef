"""Spark's data source ``s4``: DataFrames from and to streams of a node's log.

Rules
- Spark makes a new object in a new process for every step, so nothing is kept here.
- Each direction has its own module, imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from s4node.spark.short_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class S4DataSource(DataSource):
    """``spark.read.format("s4")`` and ``df.write.format("s4")``, batch and streaming."""

    options: Any

    @classmethod
    def name(cls) -> str:
        return "s4"

    def schema(self) -> StructType:
        from s4node.spark import source

        with short_errors():
            return source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from s4node.spark import source

        with short_errors():
            return source.batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from s4node.spark import source

        with short_errors():
            return source.stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from s4node.spark import sink

        with short_errors():
            return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from s4node.spark import sink

        with short_errors():
            return sink.stream_writer(self.options, schema, overwrite)
