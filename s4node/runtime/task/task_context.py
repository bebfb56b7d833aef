"""What a user's task is given: a collector, a callback and its context. Pure.

Rules
- A collector puts events only while the one that has led to them has not ended.
- A callback ends its event once. A second call is an error, which stops the app.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from s4node.app import graph
from s4node.app.stream import Stream
from s4node.app.stream_task import TaskApp
from s4node.errors import CallbackError, GraphError, S4Error
from s4node.metrics.registry import MetricsRegistry
from s4node.offsets.startpoint import Startpoint, startpoint_of
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.task.processor import EndEvent, InFlightEvent

DueTimers = list[tuple[float, int, Callable[..., Any]]]
"""What a task has scheduled, as a heap: when it is due, its number, and what is called."""


class StreamCollector:
    """Puts what a task sends where it is handed on from."""

    __slots__ = ("_put", "_streams")

    def __init__(self, app: TaskApp, put: list[list[Any]]) -> None:
        self._streams: Mapping[str, Stream] = app.streams
        self._put = put

    def send(self, stream: str, event: Any) -> None:
        """Put an event on one of the app's streams."""
        try:
            found = self._streams[stream]
        except KeyError:
            known = ", ".join(self._streams) or "none"
            raise GraphError(
                f"no stream {stream!r}; the app has {known}. Declare it with create_output_stream"
            ) from None
        try:
            found.put_into(self._put, event)
        except IndexError:
            raise S4Error(
                f"an event for stream {stream!r} was sent when the one that led to it, or the "
                f"window or timer, had ended; await in an async def what sends, or write "
                f"process_async, and call its callback when all is sent"
            ) from None


class EventCallback:
    """Ends one event, once, from any thread."""

    __slots__ = ("_end_event", "_entry", "_task", "_times")

    def __init__(self, entry: InFlightEvent, end_event: EndEvent, task: str) -> None:
        self._entry = entry
        self._end_event = end_event
        self._task = task
        self._times = count()

    def complete(self) -> None:
        """The event is fully processed."""
        self._end(None)

    def failure(self, error: BaseException) -> None:
        """The event cannot be processed."""
        self._end(error if isinstance(error, BaseException) else S4Error(str(error)))

    def _end(self, error: BaseException | None) -> None:
        if next(self._times):  # counting is one step of the interpreter
            error = CallbackError(
                f"task {self._task!r} has ended the event at {self._entry.position} twice; call "
                f"complete() or failure() once for each event"
            )
        self._end_event(self._entry, error)


class Context:
    """What a task is told in ``init``: its place, and what it may have of its container."""

    def __init__(
        self,
        name: str,
        partition: int,
        inputs: Sequence[SystemStreamPartition],
        clock: Callable[[], float],
        metrics: MetricsRegistry,
        timers: DueTimers,
    ) -> None:
        self.task_name = name
        self.partition = partition
        self.system_stream_partitions = tuple(inputs)
        self.metrics = metrics
        self.starts: dict[SystemStreamPartition, Startpoint] = {}
        self.stores: dict[str, Any] = {}
        self._clock = clock
        self._timers = timers
        self._numbers = count()

    def store(self, name: str) -> Any:
        """A key-value store of the task, by the name under which the app declares it."""
        found = self.stores.get(name)
        if found is None:
            raise KeyError(
                f"task {self.task_name!r} has no store {name!r}; it has "
                f"{', '.join(self.stores) or 'none'}. Declare it with create_store, and read from "
                f"an input that can be read again"
            )
        return found

    def schedule(self, seconds: float, callback: Callable[..., Any]) -> None:
        """Call ``callback(collector, coordinator)`` once, in so many seconds, while no event of
        the task is outstanding. It may be ``async``."""
        if graph.is_generator(callback):
            raise GraphError(
                f"the timer {callback!r} contains yield, so a call of it would run none of it; "
                f"write it without, and send with collector.send(stream, event)"
            )
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._numbers), callback))

    def set_starting_offset(self, ssp: SystemStreamPartition, offset: int | Startpoint) -> None:
        """Begin to read an input of this task at an offset, or another Startpoint, whatever was
        saved; the container checks it when ``init`` has ended."""
        self.starts[SystemStreamPartition(*ssp)] = startpoint_of(offset)
