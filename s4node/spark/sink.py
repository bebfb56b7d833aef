# ruff: noqa: ARG001
"""Writes DataFrames to streams of a node's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from s4node.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceWriter
    from pyspark.sql.types import StructType


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceWriter:
    """The writer of ``df.write``."""
    raise ConfigError("format('s4') cannot write yet")


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of ``df.writeStream``."""
    raise ConfigError("format('s4') cannot write yet")
