"""Spark: streams as DataFrames, a Java to run Spark on, and local sessions.

``data_source`` is the format ``s4``: ``sink`` writes streams, ``source`` reads them. Importing this
package imports no Spark; its functions ask for the extra ``s4node[spark]`` when they need it.

It may touch ``runtime``, ``cluster``, ``net``, ``savepoints``, ``state``, ``offsets``, ``events``,
``config``, ``logger`` and ``errors``. It starts processes, opens sockets and makes
temporary folders.

Begin with ``data_source`` to follow rows, or with ``java`` for a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format ``s4`` known to a session, with all files that were shipped so far.

    A format that Spark has found by itself runs without shipped files on executors.
    """
    from s4node.spark.data_source import S4DataSource

    spark.dataSource.register(S4DataSource)
