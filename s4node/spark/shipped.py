"""Writers and readers that Spark ships to executors, which may lack the package.

Rules
- Spark pickles an object with the name of its class. An executor that cannot import the class
  fails with a traceback that does not say what to do.
- So these objects are pickled together with a function that unpickles them. It needs nothing of
  this package to report what is missing, and where.
"""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle


class Shipped:
    """A base of what is shipped to executors."""

    def __reduce__(self) -> tuple[Any, ...]:
        whole = cloudpickle.dumps((type(self), self.__dict__))  # type: ignore[no-untyped-call]
        return _unpacked, (whole,)


def _unpacked(data: bytes) -> Any:
    """The object; raises ImportError, with what to do, if its class cannot be imported."""
    import os
    import pickle
    import socket
    import sys

    try:
        cls, attributes = pickle.loads(data)  # noqa: S301 - of the driver, as all that it ships
    except ImportError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # as short_errors, which cannot be imported either
        raise ImportError(
            f"{error} for {sys.executable} of Spark's executor on {socket.gethostname()}; install "
            f"s4node[spark] there, as a wheel, or ship it with --py-files, and call "
            f"s4node.spark.register(spark)"
        ) from None
    found = object.__new__(cls)
    found.__dict__.update(attributes)
    return found


_unpacked.__module__ = "__main__"  # what is of this module is pickled whole
