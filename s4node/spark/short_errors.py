"""Errors without the traceback of the Python worker: Spark shows the message at once.

Rules
- Only errors that s4node raises on purpose are shortened; their messages say what to do.
- Spark looks at a variable of the worker's own environment. A worker ends after it has reported an
  error, so tracebacks of other tasks are not hidden.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from s4node.errors import S4Error

_OURS = re.compile(r"s4node\.[\w.]+: (.+)")


@contextmanager
def short_errors() -> Iterator[None]:
    """Have Spark show the errors of the block without their traceback."""
    try:
        yield
    except S4Error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def reasons_of_spark() -> Iterator[None]:
    """Turn an error of Spark in the block into an S4Error with the reason alone: what s4node has
    raised in a task, or else Spark's first line."""
    try:
        yield
    except PySparkException as error:
        text = str(error).strip()
        raise S4Error((_OURS.findall(text) or [text.partition("\n")[0]])[-1]) from None
