"""Calls that may block, such as those of files: in a thread, or inline in a test.

Rules
- Code that runs in a container makes its blocking calls here.
- trio does not know whether a thread works. With ``inline`` nothing is in progress while trio has
  no task to run, and the order of all calls is that of trio's tasks.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import trio

A = TypeVar("A")
R = TypeVar("R")

run_sync = trio.to_thread.run_sync
"""Call a function in a thread, as ``trio.to_thread.run_sync`` does."""


run_trio: Callable[[Callable[[], Awaitable[Any]]], Any] = trio.run
"""Run an async function in a thread that has no loop."""


def _many(function: Callable[[A], R], values: Sequence[A], most: int) -> list[R]:
    with ThreadPoolExecutor(min(most, len(values))) as pool:
        return list(pool.map(function, values))


class Worker:
    """A thread that calls ``step`` again and again: as many seconds later as it returns, or as soon
    as it is woken. It ends when ``step`` returns None; no call of it may raise."""

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have it called at once, from any thread."""
        self._woken.set()

    async def wait_ended(self) -> None:
        await run_sync(self._thread.join)

    def _run(self) -> None:
        while (seconds := self._step()) is not None:
            self._woken.wait(min(seconds, threading.TIMEOUT_MAX))
            self._woken.clear()


class _InlineWorker:
    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._woken = trio.Event()
        self._ended = trio.Event()
        trio.lowlevel.spawn_system_task(self._run, name=name)

    def wake(self) -> None:
        self._woken.set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def _run(self) -> None:
        while (seconds := await run_sync(self._step)) is not None:
            with trio.move_on_after(seconds):
                await self._woken.wait()
            self._woken = trio.Event()
        self._ended.set()


worker: Callable[[Callable[[], float | None], str], Worker | _InlineWorker] = Worker
"""Start a :class:`Worker`."""

many: Callable[[Callable[[Any], Any], Sequence[Any], int], list[Any]] = _many
"""Call a function for each of the values, in at most so many threads of its own at a time."""

pause: Callable[[float], None] = time.sleep
"""Let other threads go on for some seconds."""

here: Callable[[], int] = threading.get_ident
"""The current thread; in a test's app, a number that no other thread has."""


async def inline(
    function: Callable[..., R],
    *arguments: Any,
    abandon_on_cancel: bool = False,  # noqa: ARG001 - the call ends before it can be cancelled
    limiter: trio.CapacityLimiter | None = None,
) -> R:
    """Call the function in this thread, with the same limits."""
    if limiter is None:
        await trio.lowlevel.checkpoint()
        return contextvars.copy_context().run(function, *arguments)
    async with limiter:
        return contextvars.copy_context().run(function, *arguments)


async def _inline_in_time(
    seconds: Callable[[], float],
    function: Callable[..., R],
    *arguments: Any,
    abandon_on_cancel: bool = False,  # noqa: ARG001 - as inline
    limiter: trio.CapacityLimiter | None = None,
) -> R:
    """As ``inline``, but time passes before the call and after it, while other tasks run."""
    async with limiter or trio.CapacityLimiter(1):
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds())
            result = contextvars.copy_context().run(function, *arguments)
            await trio.sleep(seconds())
    return result


@contextmanager
def replaced_by_inline(
    run: Callable[[Callable[[], Awaitable[Any]]], Any] = trio.run,
    seconds: Callable[[], float] | None = None,
) -> Iterator[None]:
    """Call everything inline during the block; ``seconds()`` is half of what a call takes."""
    global run_sync, run_trio, many, here, worker, pause
    before: Any = run_sync, run_trio, many, here, worker, pause
    other: Any = inline if seconds is None else partial(_inline_in_time, seconds)
    run_sync, run_trio, many, here, worker = other, run, _one_by_one, _inside, _InlineWorker
    pause = _go_on
    try:
        yield
    finally:
        run_sync, run_trio, many, here, worker, pause = before


def _one_by_one(function: Callable[[A], R], values: Sequence[A], _: int) -> list[R]:
    return [function(value) for value in values]


def _go_on(_: float) -> None:
    """There is no other thread."""


def _inside() -> int:
    return -threading.get_ident()
