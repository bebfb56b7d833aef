"""A trio run that goes on only while the test waits for it.

Rules
- It runs in the test's own thread, so a debugger, ``capsys`` and tracebacks work as usual.
- Its time is the test's: a sleep ends when the test has moved the clock that far.
- Sources run until ``cancel_sources``, all else until it ends or ``close`` cancels it.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from s4node.errors import S4Error, leaves

T = TypeVar("T")

_REAL_SECONDS = 60.0
"""How long a call may take in real time before it is said to hang."""


class MovedClock(trio.abc.Clock):
    """Trio's time as the test has it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        """The test's time."""
        return self._now()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Real time has no part in it: now, or not before the test moves on."""
        return 0.0 if deadline <= self._now() else math.inf


class Guest:
    """Runs async functions to their end, and others beside them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.failures: list[BaseException] = []
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._ended = False
        self._sources: dict[trio.CancelScope, trio.Event] = {}
        try:
            trio.lowlevel.start_guest_run(
                self._main,
                run_sync_soon_threadsafe=self._calls.put,
                done_callback=self._done,
                clock=MovedClock(now),
            )
        except RuntimeError as error:
            raise S4Error(
                "an app with async handlers or sources is tested in a plain test function; write "
                "'def test_...', without async"
            ) from error
        self._pump(lambda: self._nursery is not None)

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function to its end; returns or raises what it did."""
        results: list[T] = []
        errors: list[BaseException] = []

        async def job() -> None:
            try:
                results.append(await function())
            except BaseException as error:
                errors.append(error)
                if isinstance(error, trio.Cancelled):
                    raise

        self._soon(job)
        self._pump(lambda: results or errors)
        if errors:
            raise errors[0]
        return results[0]

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """By which other threads reach the app."""
        assert self._token is not None
        return self._token

    def start_soon(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run an async function beside the others; what it raises is kept in ``failures``."""

        async def job() -> None:
            try:
                await function(*arguments)
            except trio.Cancelled:
                raise
            except BaseException as error:
                self.failures += leaves(error)

        self._soon(job)

    def start_source(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """As start_soon, until ``cancel_sources``."""
        scope, ended = trio.CancelScope(), trio.Event()
        self._sources[scope] = ended

        async def source() -> None:
            try:
                with scope:
                    await function(*arguments)
            finally:
                ended.set()

        self.start_soon(source)

    def cancel_sources(self) -> None:
        """Cancel the sources and wait until they have ended."""

        async def cancel() -> None:
            for scope in self._sources:
                scope.cancel()
            for ended in self._sources.values():
                await ended.wait()

        self.run(cancel)

    def give_time(self, seconds: float) -> None:
        """Let sockets and threads get on for so many real seconds, or until something happens."""
        try:
            call = self._calls.get(timeout=seconds)
        except queue.Empty:
            return
        call()

    def close(self) -> None:
        """Cancel all that runs, and end."""
        if self._token is not None and self._nursery is not None and not self._ended:
            self._token.run_sync_soon(self._nursery.cancel_scope.cancel)
            self._pump(lambda: self._ended)

    def _soon(self, job: Callable[[], Awaitable[None]]) -> None:
        assert self._token is not None
        assert self._nursery is not None
        self._token.run_sync_soon(self._nursery.start_soon, job)

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._nursery = nursery
            await trio.sleep_forever()

    def _done(self, _outcome: Any) -> None:
        self._ended = True

    def _pump(self, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + _REAL_SECONDS
        while not until():
            try:
                self._calls.get(timeout=max(0.0, deadline - time.monotonic()))()
            except queue.Empty:
                raise S4Error(
                    f"the app did not come to rest within {_REAL_SECONDS:g} s; does a handler or "
                    f"a source go round without waiting?"
                ) from None
