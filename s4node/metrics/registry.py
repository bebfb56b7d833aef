"""An author's metrics: counters, gauges and timers of a task.

Rules
- A metric is made on the first request; further requests return the same one. A name belongs to one
  kind of metric.
- Counting is safe from any thread. It costs a lock, so count per event, not per comparison.
- Nothing is sent or computed when something is counted: values are read when they are reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from s4node.errors import MetricError, described, is_signal
from s4node.metrics.statistics import OWN
from s4node.metrics.table import Sample, Value

M = TypeVar("M", "Counter", "Gauge", "Timer")

GROUP = "app"
"""The default group of metrics."""


class Counter:
    """A number that is counted up, or down."""

    def __init__(self) -> None:
        self._value = 0
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        return self._value

    def increment(self, by: int = 1) -> None:
        with self._lock:
            self._value += by

    def decrement(self, by: int = 1) -> None:
        self.increment(-by)

    def values(self, name: str) -> Iterator[tuple[str, Value]]:
        yield name, self._value


class Gauge:
    """A value that is set, or returned by a function when it is reported.

    The function is called in the container's loop, so it must be quick; if it raises, the value is
    a text that says so.
    """

    def __init__(self) -> None:
        self._value: Value = 0
        self.function: Callable[[], Value] | None = None

    @property
    def value(self) -> Value:
        if self.function is None:
            return self._value
        try:
            return self.function()
        except BaseException as error:
            if is_signal(error):
                raise
            return described(error)

    def set(self, value: Value) -> None:
        """Set the value: a number, or a short text."""
        self._value = value

    def values(self, name: str) -> Iterator[tuple[str, Value]]:
        yield name, self.value


class Timer:
    """The number of calls since the start, and their time.

    A timer is reported as ``<name>`` (mean nanoseconds), ``<name>-max`` and ``<name>-count``.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest = 0.0
        self._lock = threading.Lock()

    def update(self, seconds: float) -> None:
        """Count one call of this length."""
        with self._lock:
            self.count += 1
            self.seconds += seconds
            self.longest = max(self.longest, seconds)

    @contextmanager
    def time(self) -> Iterator[None]:
        """Measure a block, whether it raises or not."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.update(time.perf_counter() - began)

    def values(self, name: str) -> Iterator[tuple[str, Value]]:
        with self._lock:
            count, seconds, longest = self.count, self.seconds, self.longest
        yield name, round(seconds / count * 1e9) if count else 0
        yield f"{name}-max", round(longest * 1e9)
        yield f"{name}-count", count


class MetricsRegistry:
    """The metrics of one ``source``: a task, such as ``Partition 0``, or an app of PEs."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._metrics: dict[tuple[str, str], Counter | Gauge | Timer] = {}
        self._lock = threading.Lock()

    def counter(self, name: str, group: str = GROUP) -> Counter:
        """The counter of this name; raises MetricError if another kind of metric has it."""
        return self._metric(Counter, name, group)

    def gauge(
        self, name: str, function: Callable[[], Value] | None = None, group: str = GROUP
    ) -> Gauge:
        """The gauge of this name, which uses ``function`` from now on if given."""
        gauge = self._metric(Gauge, name, group)
        if function is not None:
            gauge.function = function
        return gauge

    def timer(self, name: str, group: str = GROUP) -> Timer:
        return self._metric(Timer, name, group)

    def _metric(self, kind: type[M], name: str, group: str) -> M:
        with self._lock:
            metric = self._metrics.get((group, name))
            if metric is None:
                metric = self._metrics[group, name] = kind()
        if not isinstance(metric, kind):
            raise MetricError(
                f"metric {name!r} of {self.source!r} is a {type(metric).__name__.lower()} already; "
                f"give the {kind.__name__.lower()} another name"
            )
        return metric

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            metrics = list(self._metrics.items())
        for (group, name), metric in metrics:
            for each, value in metric.values(name):
                labels = {"source": self.source, "group": group, "name": each}
                yield Sample(OWN, labels, value)
