"""A user's task on the events of a partition, in the manner of Apache Samza. Pure.

Rules
- A slice of events is one loop over their envelopes. It stops after an event at which a request is
  made.
- The task's methods are looked up once, when it is made.
- An exception of the task fails the app, naming task, hook and place. An exception of an ignored
  class counts the event as done, and is counted by class.
- One thread at a time uses a task, except for events that are in flight together.
"""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any

from s4node.app.plan import graph
from s4node.app.stream import OutputStream, begin_put, emitted, end_put
from s4node.app.stream_task import Envelope, TaskApp
from s4node.errors import (
    CallbackError,
    GraphError,
    ProcessingError,
    TaskError,
    described,
    is_signal,
)
from s4node.events.event import LIVE, EventBatch, handled
from s4node.events.routing import key_failure
from s4node.metrics.registry import MetricsRegistry
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.event_time.task_times import TaskTimes
from s4node.runtime.task.gate import Op
from s4node.runtime.task.processor import EndEvent, InFlightEvent, Mode, Processor
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.task_context import Context, DueTimers, EventCallback, StreamCollector

if TYPE_CHECKING:
    from s4node.state.task_state import TaskState

_HOOKS = {Op.WINDOW: "window", Op.END_OF_STREAM: "on_end_of_stream"}
_METHODS = ("process_async", "process", "init", *_HOOKS.values(), "close")


class StreamTaskProcessor(Processor):
    """Runs the task that ``app.factory`` makes."""

    mixes = True

    def __init__(
        self,
        app: TaskApp,
        partition: int,
        clock: Callable[[], float],
        *,
        name: str,
        settings: TaskSettings,
        inputs: Sequence[SystemStreamPartition] = (),
        metrics: MetricsRegistry | None = None,
    ) -> None:
        if app.factory is None:
            raise GraphError(f"app {app.name!r} has no factory; give TaskApp one that makes a task")
        if not callable(app.factory):
            raise GraphError(
                f"app {app.name!r} has the factory {app.factory!r}, which cannot be called; give "
                f"TaskApp a class or a function that makes a task"
            )
        super().__init__(len(app.streams))
        self.instances = {}
        self.times = TaskTimes(app, {}, clock, clock, streams=())
        self.metrics = metrics or MetricsRegistry(name)
        self._timers: DueTimers = []
        self.context = Context(name, partition, inputs, clock, self.metrics, self._timers)
        self.starts = self.context.starts
        self._app = app
        self._name = name
        self._clock = clock
        self._ignoring = settings.ignored
        self._concurrency = settings.concurrency
        self.by_key = settings.by_key
        self._threaded = settings.threads > 0
        self._finders: dict[str, Callable[[Any], Any] | None] = {
            stream.name: graph.finder_of(stream) if stream.key is not None else None
            for stream in app.streams.values()
            if not isinstance(stream, OutputStream)
        }
        try:
            self.task = task = app.factory()
        except BaseException as error:
            if is_signal(error):
                raise
            raise self._blame("factory", error) from error
        self._begin = getattr(task, "process_async", None)
        self._process = getattr(task, "process", None)
        if not callable(self._begin or self._process):
            raise GraphError(
                f"app {app.name!r}: {type(task).__name__} is not a task; give it a method process "
                f"or process_async"
            )
        graph.check_task(app.name, task, _METHODS)
        if inspect.iscoroutinefunction(self._begin):
            raise GraphError(
                f"app {app.name!r}: process_async of {type(task).__name__} is an async def, but it "
                f"must call its callback when it is done; write a plain def that starts the work, "
                f"or await the work in an async def process"
            )
        self._awaits = inspect.iscoroutinefunction(self._process)
        self._slices = settings.concurrency == 1 and not settings.callback_timeout
        self._hooks = {op: getattr(task, hook, None) for op, hook in _HOOKS.items()}
        self.windowable = self._hooks[Op.WINDOW] is not None

    def attach_loop(self, in_loop: Callable[..., None]) -> None:
        """Let other threads, and coroutines beside the task, set its timers."""
        self.context.in_loop = in_loop

    def attach_state(self, state: TaskState) -> None:
        self.context.stores = {name: state.store(spec) for name, spec in self._app.stores.items()}

    # -- modes -------------------------------------------------------------------------------

    def mode(self, op: Op, _stream: str) -> Mode:
        if op is Op.PROCESS:
            if self._begin is not None:
                return Mode.TOGETHER
            if self._awaits:
                return Mode.AWAIT if self._slices else Mode.TOGETHER
            if self._threaded:
                return Mode.THREAD if self._slices else Mode.TOGETHER
            return Mode.LOOP
        timers = self._timers
        hook = timers[0][2] if op is Op.TIMER and timers else self._hooks.get(op)
        if inspect.iscoroutinefunction(hook):
            return Mode.AWAIT
        return Mode.THREAD if self._threaded and hook is not None else Mode.LOOP

    def limit(self, _stream: str) -> int:
        return self._concurrency

    def style(self, _stream: str) -> Mode:
        if self._begin is not None:
            return Mode.CALLBACK
        return Mode.AWAIT if self._awaits else Mode.THREAD

    # -- slices ------------------------------------------------------------------------------

    async def process(self, batch: EventBatch, events: list[Any]) -> int:
        """Process these events up to the first at which a request is made."""
        process, asked, waits = self._process, self.asked, self._awaits
        assert process is not None
        envelopes = self._envelopes(batch, events)
        if envelopes is None:
            return 1  # refused
        it = iter(envelopes)
        handled.set((self._name, batch, it, len(envelopes)))
        token = begin_put(self.put)
        collector = self._collector()
        try:
            while True:
                try:
                    for envelope in it:
                        result = process(envelope, collector, asked)
                        if waits:
                            await result
                        elif result is not None:
                            self._check_result(result)
                        if asked.any:
                            break
                    break
                except BaseException as error:
                    if is_signal(error):
                        raise
                    self.failed(batch, error, batch.at + _behind(it, envelopes) - 1)
                    if asked.any:
                        break
        finally:
            handled.set(None)
            end_put(token)
        return _behind(it, envelopes)

    def _collector(self) -> StreamCollector:
        """A collector that accepts events until the current call has ended."""
        return StreamCollector(self._app, emitted.get())

    def _envelopes(self, batch: EventBatch, events: list[Any]) -> list[Envelope] | None:
        """The envelopes of events from ``batch.at`` on, up to the first without a key.

        If the first event has no key, refuse it and return None.
        """
        system, stream, partition = _place(batch)
        at, created, find = batch.at, batch.created_ms, self._finders[batch.stream]
        numbers: Sequence[int]
        if batch.numbers is None:
            numbers = range(batch.first + at, batch.first + at + len(events))
        else:
            numbers = batch.numbers[at : at + len(events)]
        if find is None:
            return [
                Envelope(system, stream, partition, number, None, event, created)
                for number, event in zip(numbers, events, strict=True)
            ]
        found: list[Envelope] = []
        try:
            for number, event in zip(numbers, events, strict=True):
                found.append(
                    Envelope(system, stream, partition, number, find(event), event, created)
                )
        except BaseException as error:
            if is_signal(error):
                raise
            if not found:
                self._refuse(batch, error, at)
                return None
        return found

    def _refuse(self, batch: EventBatch, error: BaseException, index: int) -> None:
        """Refuse an event whose key was not found, or raise if the app itself has put it."""
        if batch.receipt is None:
            finder, position = f"KeyFinder of {batch.stream!r}", batch.position(index)
            failure = ProcessingError(self._app.name, finder, None, position, error)
            failure.at = batch, index
            raise failure
        self.refused += 1
        event = batch.events[index]
        batch.receipt.refuse(batch.number(index), f"{key_failure(error)} (event {event!r})", event)

    def failed(self, batch: EventBatch, error: BaseException, index: int) -> None:
        """Count an ignored exception, or raise the error that stops the app."""
        if isinstance(error, _NoKey):
            self._refuse(batch, error.error, index)
            return
        if isinstance(error, CallbackError):
            raise error
        hook = "process" if self._begin is None else "process_async"
        if not self._ignore(error):
            failure = self._blame(hook, error, batch.position(index))
            failure.at = batch, index
            raise failure from error

    def _ignore(self, error: BaseException) -> bool:
        """Count an exception of an ignored class; return False if it is of no such class."""
        if not self._ignoring or is_signal(error):
            return False
        for cls in type(error).__mro__:
            if {"*", cls.__name__, f"{cls.__module__}.{cls.__qualname__}"} & self._ignoring:
                self.ignored[type(error).__name__] += 1
                return True
        return False

    def _blame(self, hook: str, error: BaseException, position: str = "") -> TaskError:
        what = type(getattr(self, "task", None) or self._app.factory).__name__
        return TaskError(self._app.name, self._name, hook, what, position, error)

    def _check_result(self, result: object) -> None:
        """Raise TypeError if a plain method returned an awaitable."""
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("it returned an awaitable; write 'async def', and await what it calls")

    # -- events in flight together -------------------------------------------------------------

    def set_order_key(self, entry: InFlightEvent) -> None:
        """Find the event's key, which is also its place if events are in key order."""
        find = self._finders[entry.batch.stream]
        if find is not None:
            try:
                entry.key = find(entry.event)
                hash(entry.key)
            except BaseException as error:
                if is_signal(error):
                    raise
                entry.key = _NoKey(error)
        if self.by_key:
            entry.place = entry.key

    def _envelope(self, entry: InFlightEvent) -> Envelope:
        if isinstance(entry.key, _NoKey):
            raise entry.key
        batch = entry.batch
        return Envelope(
            *_place(batch), batch.number(entry.index), entry.key, entry.event, batch.created_ms
        )

    async def process_one(self, entry: InFlightEvent) -> None:
        assert self._process is not None
        collector = StreamCollector(self._app, entry.put)
        handled.set((self._name, entry.batch, None, entry.index))
        result = self._process(self._envelope(entry), collector, entry.asked)
        if self._awaits:
            await result
        else:
            self._check_result(result)

    def begin_one(self, entry: InFlightEvent, end_event: EndEvent) -> None:
        assert self._begin is not None
        collector = StreamCollector(self._app, entry.put)
        callback = EventCallback(entry, end_event, self._name)
        token = emitted.set(entry.put)
        handled.set((self._name, entry.batch, None, entry.index))
        try:
            self._check_result(self._begin(self._envelope(entry), collector, entry.asked, callback))
        except BaseException as error:
            if is_signal(error):
                raise
            callback.failure(error)
        finally:
            handled.set(None)
            emitted.reset(token)

    # -- steps that run alone ---------------------------------------------------------------

    @property
    def timed(self) -> bool:
        return bool(self._timers)

    @property
    def next_due(self) -> float | None:
        timers = self._timers
        return timers[0][0] if timers else None

    async def run(self, op: Op, _limit: int) -> bool:
        """Call a hook of the task, or one timer; return False if further timers are due."""
        for name, hook in self._hook(op):
            token = begin_put(self.put)
            try:
                result = hook(self._collector(), self.asked)
                if inspect.iscoroutinefunction(hook):
                    await result
                else:
                    self._check_result(result)
            except BaseException as error:
                if is_signal(error):
                    raise
                self._hook_failed(op, name, error)
            finally:
                end_put(token)
        return op is not Op.TIMER or not self._timer_is_due()

    def _hook(self, op: Op) -> Iterator[tuple[str, Callable[..., Any]]]:
        """The name and the function that ``op`` calls, if any."""
        if op is not Op.TIMER:
            hook = self._hooks[op]
            if hook is not None:
                yield _HOOKS[op], hook
        elif self._timer_is_due():
            yield "timer", heapq.heappop(self._timers)[2]

    def _timer_is_due(self) -> bool:
        due = self.next_due
        return due is not None and due <= self._clock()

    def _hook_failed(self, op: Op, name: str, error: BaseException) -> None:
        if op is Op.END_OF_STREAM or not self._ignore(error):
            raise self._blame(name, error) from error

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._call("init", self._app.parameters, self.context)

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, name: str, *arguments: Any) -> None:
        hook = getattr(self.task, name, None)
        if hook is None:
            return
        token = begin_put(self.put)
        try:
            result = hook(*arguments)
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            if is_signal(error):
                raise
            raise self._blame(name, error) from error
        finally:
            end_put(token)


class _NoKey(Exception):  # noqa: N818 - takes the place of the key
    def __init__(self, error: BaseException) -> None:
        super().__init__(described(error))
        self.error = error


def _place(batch: EventBatch) -> tuple[str, str, int]:
    """System, stream and partition that a batch was read from."""
    if isinstance(batch.source, SystemStreamPartition):
        return batch.source
    return LIVE, batch.stream, batch.partition


def _behind(it: Any, envelopes: list[Envelope]) -> int:
    """The number of envelopes that an iterator has handed out."""
    return len(envelopes) - length_hint(it)
