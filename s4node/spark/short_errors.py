"""Errors without the traceback of the Python worker: Spark shows the message at once.

Rules
- Only errors that s4node raises on purpose are shortened; their messages say what to do.
- Spark looks at a variable of the worker's own environment. A worker ends after it has reported an
  error, so tracebacks of other tasks are not hidden.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from s4node.errors import S4Error


@contextmanager
def short_errors() -> Iterator[None]:
    """Have Spark show the errors of the block without their traceback."""
    try:
        yield
    except S4Error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
