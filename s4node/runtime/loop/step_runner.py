"""The step runner: takes steps of tasks at once, beside the loop, in threads, or by event.

Rules
- A step with async handlers or threads runs beside the loop, in a trio task. The gate of its task
  keeps out what must not run meanwhile, and ``wake`` is called when the step has ended.
- Slices and single events of plain tasks share ``threads``; the handlers of a parallel stream have
  their own threads.
- Events in flight together begin in order. Trio starts tasks in any order, so each trio task takes
  the next event, not a given one.
- An event that times out has ended for its task. An async handler is cancelled. A thread is left
  alone, and another one may run in its place.
- An exception here stops the app, unless the task rolls back for it. Threads then run to their end,
  so that the task is closed after them; a thread that hangs is abandoned after a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

from s4node import clocks, threads
from s4node.app.stream import emitted
from s4node.errors import ProcessingError, is_signal
from s4node.logger import get_logger
from s4node.runtime.task.actions import Actions
from s4node.runtime.task.gate import COMMIT, PROCESS, TIMER, WINDOW, Op
from s4node.runtime.task.processor import (
    AWAIT,
    CALLBACK,
    LOOP,
    THREAD,
    TOGETHER,
    InFlightEvent,
    Mode,
)
from s4node.runtime.task.task import at_once

if TYPE_CHECKING:
    from s4node.runtime.task.in_flight import InFlight
    from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

R = TypeVar("R")

_NO_LIMIT = trio.CapacityLimiter(math.inf)
"""For calls in threads that another limiter bounds."""


Spawn = Callable[..., None]
"""Starts a trio task of a function and its arguments; its failure stops the app."""


class Loop(Protocol):
    @property
    def held(self) -> bool: ...

    def wake(self, task: Task) -> None: ...

    def commit(self, task: Task) -> bool: ...

    def carry_out(self, task: Task, actions: Actions) -> None: ...


class StepRunner:
    """Takes the steps of tasks for ``loop``; at most ``threads`` of them run in threads."""

    def __init__(self, loop: Loop, threads: int = 0) -> None:
        self._loop = loop
        self._carry_out = loop.carry_out
        self._threads = threads
        self._limiters: dict[object, trio.CapacityLimiter] = {}
        self._launched: deque[tuple[Task, InFlight, InFlightEvent]] = deque()
        self._in_threads: set[trio.CancelScope] = set()
        self._give_up_at = math.inf
        self._slow_windows: set[str] = set()  # tasks that were reported

    def adopt(self, task: Task, token: trio.lowlevel.TrioToken) -> None:
        """Let any thread end events of a task by callbacks, and set and cancel its timers."""
        home = threads.here()

        def in_loop(*call: Any) -> None:
            """Make a call in the loop's thread, if there is one, and have the task looked at."""
            if threads.here() != home:
                # after the end of the container events are replayed, and timers forgotten
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(in_loop, *call, idempotent=not call)
                return
            if call:
                call[0](*call[1:])
            self._loop.wake(task)

        task.processor.attach_loop(in_loop)
        if task.in_flight is not None:
            task.in_flight.on_arrival = in_loop

    def run_step(self, task: Task, op: Op, limit: int, spawn: Spawn) -> int:
        """Take a step of at most ``limit`` events; return how many were processed at once."""
        mode = task.mode(op)
        if mode is TOGETHER:
            return self._together(task, limit, spawn)
        task.begin_step(op, mode)
        if mode is not LOOP:
            spawn(self._beside, task, op, limit, mode)
            return 0
        if op is PROCESS:
            try:
                done = at_once(task.process(limit))
            except ProcessingError as error:
                self._carry_out(task, task.failed(error))
                return 0
            if any(task.processor.put):
                self._carry_out(task, task.put(op))
            if actions := task.end_step(op, done):
                self._carry_out(task, actions)
            return done
        began = clocks.steady()
        if op is COMMIT:
            self._carry_out(task, task.end_step(op, self._loop.commit(task)))
        else:
            try:
                self._finish(task, op, at_once(task.run(op, limit)))
            except ProcessingError as error:
                self._carry_out(task, task.failed(error, op))
                return 1
        self._took(task, op, clocks.steady() - began)
        return task.processor.called if op is TIMER else 1

    def _finish(self, task: Task, op: Op, result: int) -> None:
        self._carry_out(task, task.put(op))
        self._carry_out(task, task.end_step(op, result))

    async def _beside(self, task: Task, op: Op, limit: int, mode: Mode) -> None:
        began, stream = clocks.steady(), task.stream
        try:
            if mode is THREAD:
                threads = self._limiter(None, self._threads)
                result = await self._in_thread(threads, task.run, op, limit)
            else:
                result = await task.run(op, limit)
        except ProcessingError as error:
            self._carry_out(task, task.failed(error, op))
            return
        seconds = clocks.steady() - began
        self._finish(task, op, result)
        if op is PROCESS:
            task.pace.took(stream, result, seconds)
        else:
            self._took(task, op, seconds)
        self._loop.wake(task)

    def _took(self, task: Task, op: Op, seconds: float) -> None:
        task.took(op, seconds)
        task.pace.learn(op.value, task.processor.called, seconds)
        for name in task.processor.slow_timers() if op is TIMER else ():
            log.warning(
                "calling on_time of all instances takes longer than the interval of the timer, and "
                "leaves little time for events",
                task=task.name,
                pe=name,
            )
        for held in task.processor.times.held_streams() if op is TIMER else ():
            log.warning(
                "windows or timers wait for the watermark of a stream, which does not rise; what "
                "holds it back is waited for until it is at a later time, idle, or ends",
                task=task.name,
                stream=held.stream,
                watermark=held.watermark if held.watermark > -math.inf else None,
                held_back_by=held.held_back_by or "no source: none has reported its time",
            )
        interval = task.settings.window
        if op is WINDOW and seconds >= interval and task.name not in self._slow_windows:
            self._slow_windows.add(task.name)
            log.warning(
                "a window takes longer than its interval, and leaves little time for events",
                task=task.name,
                seconds=round(seconds, 3),
                setting="task.window.ms",
            )

    # -- event by event ----------------------------------------------------------------------

    def next_op(self, task: Task) -> Op:
        """The next operation that a task may do, after its ended events were handled."""
        in_flight = task.in_flight
        if in_flight is None:
            return task.next_op()
        self._carry_out(task, in_flight.end_arrived())
        op = task.next_op()
        while in_flight.asks:  # requests released when batches without events were passed
            self._carry_out(task, in_flight.end_arrived())
            op = task.next_op()
        return op

    def _begin_next(self, task: Task, in_flight: InFlight) -> InFlightEvent | None:
        now = trio.current_time() if task.settings.callback_timeout else 0.0
        return in_flight.begin_event(now)

    def _together(self, task: Task, limit: int, spawn: Spawn) -> int:
        """Begin up to ``limit`` events that may begin; return how many."""
        begun = 0
        in_flight = task.in_flight
        assert in_flight is not None
        while begun < limit and (entry := self._begin_next(task, in_flight)) is not None:
            begun += 1
            if task.processor.style(entry.batch.stream) is CALLBACK:
                task.processor.begin_one(entry, in_flight.end_soon)
            else:
                self._launched.append((task, in_flight, entry))
                spawn(self._fly)
            if begun < limit and self.next_op(task) is not PROCESS:
                break
        return begun

    async def _fly(self) -> None:
        """Process events until none may begin when one has ended.

        Going on with the next event saves a trio task and a turn of the loop for each. The oldest
        launched event is taken, of any task. Each event runs in the mode of its own stream.
        """
        while True:
            task, in_flight, entry = self._launched.popleft()
            emitted.set(entry.put)
            error: BaseException | None = None
            try:
                if task.settings.callback_timeout:
                    await self._in_time(task, entry)
                elif task.processor.style(entry.batch.stream) is AWAIT:
                    await task.processor.process_one(entry)
                else:
                    await self._in_thread(
                        self._limiter_of(task, entry), task.processor.process_one, entry
                    )
            except BaseException as raised:
                if is_signal(raised):
                    raise
                error = raised
            if entry.over:
                return
            await in_flight.tidy(entry)
            self._carry_out(task, in_flight.end_event(entry, error))
            self._loop.wake(task)
            if self._loop.held or self.next_op(task) is not PROCESS:
                return
            if task.mode(PROCESS) is not TOGETHER:
                return
            following = self._begin_next(task, in_flight)
            if following is None:
                return
            self._launched.append((task, in_flight, following))

    async def _in_time(self, task: Task, entry: InFlightEvent) -> None:
        """Process one event in a way that a timeout can cancel.

        The time counts from when a thread is free for the event.
        """
        if task.processor.style(entry.batch.stream) is AWAIT:
            with trio.CancelScope() as scope:
                entry.cancel = scope.cancel
                await task.processor.process_one(entry)
            return
        began, entry.began = entry.began, math.inf
        async with self._limiter_of(task, entry):
            entry.began = max(began, trio.current_time())
            await self._in_thread(_NO_LIMIT, task.processor.process_one, entry, entry=entry)

    # -- threads -----------------------------------------------------------------------------

    def give_up(self, seconds: float) -> None:
        """Wait at most ``seconds`` for threads, as everything is cancelled."""
        self._give_up_at = trio.current_time() + seconds
        for scope in self._in_threads:
            scope.deadline = self._give_up_at

    async def _in_thread(
        self,
        limiter: trio.CapacityLimiter,
        step: Callable[..., Coroutine[Any, Any, R]],
        *arguments: Any,
        entry: InFlightEvent | None = None,
    ) -> R:
        """Run ``step`` in a thread; a cancelled one still ends, unless ``entry`` is over."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True, deadline=self._give_up_at) as scope:
            self._in_threads.add(scope)
            if entry is not None:
                entry.cancel = scope.cancel
            try:
                return await threads.run_sync(
                    lambda: at_once(step(*arguments)), abandon_on_cancel=True, limiter=limiter
                )
            finally:
                self._in_threads.discard(scope)
        if entry is not None and entry.over:
            raise trio.TooSlowError  # nothing waits for it
        log.error("a task hangs in a thread and is abandoned; it is not closed in order")
        await trio.lowlevel.checkpoint()  # raises Cancelled
        raise AssertionError("a thread is abandoned only when everything is cancelled")

    def _limiter_of(self, task: Task, entry: InFlightEvent) -> trio.CapacityLimiter:
        if self._threads:
            return self._limiter(None, self._threads)
        stream = entry.batch.stream
        return self._limiter((task.name, stream), task.processor.limit(stream))

    def _limiter(self, whose: object, threads: int) -> trio.CapacityLimiter:
        limiter = self._limiters.get(whose)
        if limiter is None:
            limiter = self._limiters[whose] = trio.CapacityLimiter(threads)
        return limiter
