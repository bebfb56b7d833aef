"""Spark: streams as DataFrames, a Java to run Spark on, and local sessions.

``data_source`` is the format ``s4``: ``sink`` writes streams, ``source`` reads them. Importing this
package imports no Spark; its functions ask for the extra ``s4node[spark]`` when they need it.

It may touch ``runtime``, ``cluster``, ``systems``, ``net``, ``savepoints``, ``state``, ``offsets``,
``events``, ``config``, ``logger`` and ``errors``. It starts processes, opens sockets and makes
temporary folders.

Begin with ``data_source`` to follow rows, or with ``java`` for a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format ``s4`` known to a session where Spark does not find it by itself."""
    from s4node.spark.data_source import S4DataSource

    spark.dataSource.register(S4DataSource)
