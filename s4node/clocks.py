"""The clocks that code reads directly, beside trio's own.

Rules
- Code that runs in a container reads the time here or from trio, so that tests can replace it.
- The clocks are names of functions, so reading one costs no more than the function. An object that
  keeps a clock takes it when it is created, not when its module is imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

steady: Callable[[], float] = time.perf_counter
"""Seconds that never go back, for durations."""

wall: Callable[[], float] = time.time
"""Seconds since 1970."""

cpu: Callable[[], float] = time.thread_time
"""Seconds of processor time of the calling thread."""


@contextmanager
def replaced(other_steady: Callable[[], float], other_wall: Callable[[], float]) -> Iterator[None]:
    """Use other clocks during the block, in which no code may need much processor time."""
    global steady, wall, cpu
    before = steady, wall, cpu
    steady, wall, cpu = other_steady, other_wall, other_steady
    try:
        yield
    finally:
        steady, wall, cpu = before
