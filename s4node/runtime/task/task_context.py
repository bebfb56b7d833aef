"""The objects given to a user's task: a collector, a callback and a context. Pure.

Rules
- A collector accepts events only until the event that led to them has ended.
- A callback ends its event once. A second call is an error, which stops the app.
- Only the loop's thread changes the timers; the loop learns of each change.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from s4node.app.plan import graph
from s4node.app.stream import Stream
from s4node.app.stream_task import TaskApp
from s4node.errors import CallbackError, GraphError, S4Error
from s4node.metrics.registry import MetricsRegistry
from s4node.offsets.startpoint import Startpoint, startpoint_of
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.task.processor import EndEvent, InFlightEvent

DueTimer = tuple[float, int, Callable[..., Any]]
"""A timer of a task: when it is due, its number, and the callback."""

DueTimers = list[DueTimer]
"""The timers of a task, as a heap."""


class StreamCollector:
    """Collects the events that a task sends, until they are handed on."""

    __slots__ = ("_put", "_streams")

    def __init__(self, app: TaskApp, put: list[list[Any]]) -> None:
        self._streams: Mapping[str, Stream] = app.streams
        self._put = put

    def send(self, stream: str, event: Any) -> None:
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
                f"an event for stream {stream!r} was sent after the event, window or timer that "
                f"led to it had ended; await the sending code in an async def, or write "
                f"process_async and call its callback when all is sent"
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
        self._end(None)

    def failure(self, error: BaseException) -> None:
        self._end(error if isinstance(error, BaseException) else S4Error(str(error)))

    def _end(self, error: BaseException | None) -> None:
        if next(self._times):  # counting is one step of the interpreter
            error = CallbackError(
                f"task {self._task!r} has ended the event at {self._entry.position} twice; call "
                f"complete() or failure() once for each event"
            )
        self._end_event(self._entry, error)


class Context:
    """The context of a task, given to ``init``: its inputs, stores, metrics and timers."""

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
        self.in_loop: Callable[..., None] = _call
        self._clock = clock
        self._timers = timers
        self._numbers = count()

    def store(self, name: str) -> Any:
        found = self.stores.get(name)
        if found is None:
            raise KeyError(
                f"task {self.task_name!r} has no store {name!r}; it has "
                f"{', '.join(self.stores) or 'none'}. Declare it with create_store, and read from "
                f"a replayable input"
            )
        return found

    def schedule(self, seconds: float, callback: Callable[..., Any]) -> Callable[[], None]:
        """Call ``callback(collector, coordinator)`` once, after ``seconds``.

        Return a function that cancels this. No event of the task is in flight then. The callback
        may be ``async``. Both may be called from any thread, at any time.
        """
        if graph.is_generator(callback):
            raise GraphError(
                f"the timer {callback!r} contains yield, so calling it would not run it; "
                f"remove the yield, and send with collector.send(stream, event)"
            )
        timer = self._clock() + seconds, next(self._numbers), callback
        self.in_loop(heapq.heappush, self._timers, timer)
        return partial(self.in_loop, self._cancel, timer)

    def _cancel(self, timer: DueTimer) -> None:
        if timer in self._timers:  # not called yet
            self._timers.remove(timer)
            heapq.heapify(self._timers)

    def set_starting_offset(self, ssp: SystemStreamPartition, offset: int | Startpoint) -> None:
        """Start reading an input of this task at an offset or Startpoint, instead of the saved one.

        The container checks it after ``init``.
        """
        self.starts[SystemStreamPartition(*ssp)] = startpoint_of(offset)


def _call(function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)
