# ruff: noqa: ARG001
"""Reads streams of a node's log into DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from s4node.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


def schema(options: Mapping[str, str]) -> StructType:
    """The columns of a DataFrame read with these options."""
    raise ConfigError("format('s4') cannot read yet; write with df.write.format('s4')")


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of ``spark.read``."""
    raise ConfigError("format('s4') cannot read yet; write with df.write.format('s4')")


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of ``spark.readStream``."""
    raise ConfigError("format('s4') cannot read yet; write with df.write.format('s4')")
