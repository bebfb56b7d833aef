"""Errors without the traceback of the Python worker: Spark shows the message at once.

Rules
- Only errors that s4node raises on purpose are shortened; their messages say what to do.
- Spark looks at a variable of the worker's own environment. A worker ends after it has reported an
  error, so tracebacks of other tasks are not hidden.
- Before a worker ends it drops the rest of its input, and Spark does not look at the error while it
  can write: a large task would go on to its end. So the worker pauses, until Spark kills it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException

from s4node.errors import S4Error

_REPORT_SECONDS = 2.0  # until an error is written
_PAUSE_SECONDS = 30.0
_OURS = re.compile(r"(?:\bs4node\.[\w.]+|\bImportError): (.+)")  # ImportError is of ``shipped``

_OF_PY4J = re.compile(r"\AAn error occurred while calling .*\n: ")


@contextmanager
def short_errors() -> Iterator[None]:
    """Have Spark show the errors of the block without their traceback."""
    try:
        yield
    except S4Error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if TaskContext.get() is not None:
            signal.signal(signal.SIGALRM, _take_nothing)
            signal.setitimer(signal.ITIMER_REAL, _REPORT_SECONDS, _REPORT_SECONDS)
        raise


def _take_nothing(*_: object) -> None:
    time.sleep(_PAUSE_SECONDS)


@contextmanager
def reasons_of_spark() -> Iterator[None]:
    """Turn an error of Spark in the block into an S4Error with the reason alone: what s4node has
    raised in a task, or else Spark's first line."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = _OF_PY4J.sub("", str(error)).strip()
        raise S4Error((_OURS.findall(text) or [text.partition("\n")[0]])[-1]) from None
