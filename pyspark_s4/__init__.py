"""Spark finds the data source ``s4`` here: it looks in modules whose names begin with ``pyspark_``.

Keep it light: each planning of any Python data source imports it.
"""

from s4node.spark.data_source import S4DataSource as DefaultSource

__all__ = ["DefaultSource"]
