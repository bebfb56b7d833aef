"""The clocks that are read directly: what the time is, beside trio's own.

Rules
- Everything that runs in a container reads its time here or from trio, so that a test can move it.
- The clocks are names that are called, as cheap as the functions behind them. An object that keeps
  one takes it when it is made, not when its module is imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

steady: Callable[[], float] = time.perf_counter
"""Seconds that only go forward, for what takes how long."""

wall: Callable[[], float] = time.time
"""Seconds since 1970."""

cpu: Callable[[], float] = time.thread_time
"""Seconds for which the thread that asks has used a processor."""


@contextmanager
def replaced(other_steady: Callable[[], float], other_wall: Callable[[], float]) -> Iterator[None]:
    """Use other clocks inside the block, in which nothing uses a processor for long."""
    global steady, wall, cpu
    before = steady, wall, cpu
    steady, wall, cpu = other_steady, other_wall, other_steady
    try:
        yield
    finally:
        steady, wall, cpu = before
