"""Samza-style tasks: one object for each partition, given one event at a time.

Rules
- A task is any object that has ``process``, plain or ``async``, or ``process_async`` with a
  callback. Methods of the protocols below are called if it has them; no base class is needed.
- ``init`` comes first and ``close`` last. ``process``, ``window`` and a commit of the same task
  never overlap, except for events in flight together by ``task.max.concurrency``.
- A task may wrap another: it has the methods itself and calls those of the other.

See apps/repartition for a whole job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from s4node.app.app import App
from s4node.errors import GraphError
from s4node.events.keys import Key, KeySpec
from s4node.metrics.registry import MetricsRegistry
from s4node.store_spec import StoreSpec


class Envelope(msgspec.Struct, gc=False):
    """One event as a task gets it.

    ``offset`` is its number in the partition; for a live stream it is the producer's number.
    ``key`` is the event's key, None if the stream has none. ``created_ms`` is when it was appended
    or sent (Unix time), 0 if unknown.
    """

    system: str
    stream: str
    partition: int
    offset: int
    key: Any
    message: Any
    created_ms: int = 0


class Collector(Protocol):
    """Takes the events that a task emits."""

    def send(self, stream: str, event: Any) -> None:
        """Put an event on one of the app's streams; it leaves when the current slice is done."""
        ...


class Coordinator(Protocol):
    """Takes the requests of a task to its container.

    A request takes effect when the event at which it was made, and all before it, are done: the
    commit covers exactly that event.
    """

    def commit(self, *, all_tasks: bool = False) -> None:
        """Save this task's progress, or that of all tasks of the container."""
        ...

    def shutdown(self, *, all_tasks: bool = False) -> None:
        """Declare this task done; once all tasks are, the container stops.

        ``all_tasks`` stops it at once, in order.
        """
        ...


class Callback(Protocol):
    """Ends one asynchronous event; from any thread, exactly once."""

    def complete(self) -> None:
        """End the event as processed."""
        ...

    def failure(self, error: BaseException) -> None:
        """End the event as failed.

        The container stops, unless the stream's ``onError`` skips such events, or
        ``task.ignored.exceptions`` names the exception.
        """
        ...


@runtime_checkable
class StreamTask(Protocol):
    """Processes one event after another; ``process`` may be ``async``."""

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> Any:
        """Process one event."""
        ...


@runtime_checkable
class AsyncStreamTask(Protocol):
    """Begins each event and reports later that it is done."""

    def process_async(
        self,
        envelope: Envelope,
        collector: Collector,
        coordinator: Coordinator,
        callback: Callback,
    ) -> None:
        """Begin one event; always called on the container's own thread."""
        ...


class TaskContext(Protocol):
    """A task's place, and the services of its container.

    ``partition`` is its number among the app's tasks. ``metrics`` are the task's own: their
    ``counter(name)``, ``gauge(name)`` and ``timer(name)`` are reported with the container's.
    """

    task_name: str
    partition: int
    system_stream_partitions: Sequence[tuple[str, str, int]]
    metrics: MetricsRegistry

    def store(self, name: str) -> Any:
        """A key-value store of the task; raises KeyError if there is none of this name."""
        ...

    def schedule(self, seconds: float, callback: Callable[..., Any]) -> Callable[[], None]:
        """Call ``callback(collector, coordinator)`` once, after ``seconds`` of processing time.

        Return a function that cancels this; it has no effect after the call. No event of the task
        is in flight then. The callback may be ``async``. A restart forgets it.
        """
        ...

    def set_starting_offset(self, ssp: tuple[str, str, int], offset: Any) -> None:
        """Start reading an input at an offset or Startpoint, instead of the saved offset.

        Call this in ``init`` only. A container that takes the task over while the app runs ignores
        it. ``ssp`` (system, stream, partition) is one of ``system_stream_partitions``; ``offset``
        is an int or a Startpoint. An impossible one is an error after ``init``.
        """
        ...


@runtime_checkable
class InitableTask(Protocol):
    """Is called before its first event."""

    def init(self, config: Mapping[str, str], context: TaskContext) -> Any:
        """Called once; may be ``async``. ``config`` holds the app's ``s4.app.*`` parameters."""
        ...


@runtime_checkable
class WindowableTask(Protocol):
    """Is called every ``task.window.ms``."""

    def window(self, collector: Collector, coordinator: Coordinator) -> Any:
        """Called while no event of the task is in flight; may be ``async``."""
        ...


@runtime_checkable
class ClosableTask(Protocol):
    """Is called at its end."""

    def close(self) -> Any:
        """Called once, after the last commit; may be ``async``."""
        ...


@runtime_checkable
class EndOfStreamListenerTask(Protocol):
    """Is called when all its inputs have ended."""

    def on_end_of_stream(self, collector: Collector, coordinator: Coordinator) -> Any:
        """Called once; may be ``async``."""
        ...


class TaskApp(App):
    """An app of tasks: ``factory()`` makes the task of each partition.

    ``inputs`` are ``system.stream``; those that are not declared as input streams in ``on_init``
    carry GenericEvents. The setting ``task.inputs`` wins over it. What tasks send must be declared
    with ``create_output_stream``, or with ``create_stream`` where it comes back to the tasks;
    ``outputs`` does the former for output streams by name, or by name and key.
    """

    has_tasks = True
    factory: Callable[[], Any] | None = None
    inputs: tuple[str, ...] = ()

    def __init__(
        self,
        name: str = "",
        factory: Callable[[], Any] | None = None,
        *,
        inputs: Sequence[str] = (),
        outputs: Mapping[str, KeySpec | None] | Sequence[str] = (),
    ) -> None:
        super().__init__(name)
        self.factory = factory
        self.inputs = tuple(inputs)
        for output in outputs:
            key = outputs[output] if isinstance(outputs, Mapping) else None
            self.create_output_stream(output, key=key)

    def create_store(
        self, name: str, *, key: type[Key] | type[Any] = str, value: Any, ttl: float = 0.0
    ) -> None:
        """Give each task a key-value store, which it finds with ``context.store(name)``.

        ``key`` is str, int, bytes or tuple; ``value`` any type that msgspec knows. Values expire
        after ``ttl`` seconds, unless it is 0. Raises GraphError for a name that is taken, and once
        the app has started.
        """
        self._declaring()
        if name in self.stores:
            raise GraphError(f"app {self.name!r} has a store {name!r} already; use another name")
        self.stores[name] = StoreSpec(name, key, value, ttl)
