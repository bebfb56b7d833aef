"""The world of an app during a test: its time, its threads, its network, and a trio run.

Rules
- The world runs in the test's own thread, and only while the test waits for it; so a debugger,
  ``capsys`` and tracebacks work as usual. A test may be async: its own loop stands still meanwhile.
- Calls that may block are inline, and connections in memory. So when trio has no task to run, and
  nothing is in transit at this time, nothing happens before time moves or the world outside acts.
- The clocks, threads, names and connections of the whole process are the test's while it waits: no
  other container or client may run in another thread then.
- Time moves from one moment at which something is due to the next.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar

import trio
import trio.testing

from s4node import clocks, threads, tokens
from s4node.errors import S4Error, leaves
from s4node.net.transport import network
from s4node.systems import registry
from s4node.testing.inputs import Inputs
from s4node.testing.memory_network import MemoryNetwork

T = TypeVar("T")

scheduler: Any = trio._core._run
"""Trio has no public way to nest a run or to repeat one; hypothesis uses the same attributes."""

_REAL_SECONDS = 60.0
"""A call that takes longer in real time is reported as hanging."""

_MOMENT = 1e-6
"""Seconds by which time moves to something that is due within a rounding error."""

_EPOCH = 1_700_000_000.0
"""Unix time when a test begins."""


class World:
    """Runs async functions while the test waits; ``now`` is the time in seconds.

    ``delay(random)`` gives the seconds that an envelope takes in the network. The ``seed`` decides
    everything random, including trio's order of tasks.
    """

    def __init__(self, delay: Callable[[Random], float] = lambda _: 0.0, seed: int = 0) -> None:
        self.now = 0.0
        self.failures: list[BaseException] = []
        self.inputs = Inputs()
        self.random = Random(seed)  # noqa: S311 - to be repeated
        self.network = MemoryNetwork(partial(delay, self.random))
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._ended = False
        self._order = Random(seed)  # noqa: S311
        self._theirs: dict[str, Any] = {}
        with self._inside():
            trio.lowlevel.start_guest_run(
                self._main,
                run_sync_soon_threadsafe=self._calls.put,
                done_callback=self._done,
                clock=_Clock(self),
                host_uses_signal_set_wakeup_fd=True,
            )
        self._pump(lambda: self._nursery is not None)

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function to its end; return its result or raise its exception."""
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

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a plain function inside the run; return its result or raise its exception."""

        async def called() -> T:
            return function(*arguments)

        return self.run(called)

    def start_soon(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run an async function beside the others; its exception is kept in ``failures``."""

        async def job() -> None:
            try:
                await function(*arguments)
            except BaseException as error:
                found = [one for one in leaves(error) if not isinstance(one, trio.Cancelled)]
                self.failures += found
                if not found:
                    raise

        self._soon(job)

    def wait_idle(self) -> None:
        """Wait until nothing happens before time moves, or the world outside acts."""
        self.run(self._rest)

    def advance(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Move the time from one due moment to the next; stop early once ``until`` is true."""
        self.run(lambda: self._advance(self.now + seconds, until))

    def give_time(self, seconds: float) -> None:
        """Let sockets and threads run for real ``seconds``, or until something happens."""
        with self._inside():
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

    async def _rest(self) -> None:
        await trio.testing.wait_all_tasks_blocked()

    async def _advance(self, target: float, until: Callable[[], bool]) -> None:
        await self._rest()
        while not until() and not self.failures:
            due = self.now + trio.lowlevel.current_statistics().seconds_to_next_deadline
            if due > target:
                self.now = max(self.now, target)
                return
            self.now = due if due > self.now else self.now + _MOMENT
            await self._rest()

    def _soon(self, job: Callable[[], Awaitable[None]]) -> None:
        assert self._token is not None
        assert self._nursery is not None
        self._token.run_sync_soon(self._nursery.start_soon, job)

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._token = trio.lowlevel.current_trio_token()
            await nursery.start(self.network.run)
            self._nursery = nursery
            await trio.sleep_forever()

    def _done(self, _outcome: Any) -> None:
        self._ended = True

    def _pump(self, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + _REAL_SECONDS
        with self._inside():
            while not until():
                try:
                    self._calls.get(timeout=max(0.0, deadline - time.monotonic()))()
                except queue.Empty:
                    raise S4Error(
                        f"the app did not come to rest within {_REAL_SECONDS:g} s; does a handler "
                        f"or a source go round without waiting?"
                    ) from None

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Activate this world; trio's run, if any, is replaced meanwhile."""
        context = scheduler.GLOBAL_RUN_CONTEXT.__dict__
        theirs = dict(context)
        chance = scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING
        scheduler._r = self._order
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
        context.clear()
        context.update(self._theirs)
        try:
            with ExitStack() as stack:
                stack.enter_context(clocks.replaced(self._steady, self._wall))
                stack.enter_context(tokens.replaced(self._token_hex))
                stack.enter_context(threads.replaced_by_inline())
                stack.enter_context(network.replaced(self.network))
                stack.enter_context(registry.replaced(self.inputs.system))
                yield
        finally:
            self._theirs = dict(context)
            context.clear()
            context.update(theirs)
            scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING = chance

    def _token_hex(self, size: int) -> str:
        return self.random.randbytes(size).hex()

    def _steady(self) -> float:
        return self.now

    def _wall(self) -> float:
        return _EPOCH + self.now


class _Clock(trio.abc.Clock):
    def __init__(self, world: World) -> None:
        self._world = world

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        return self._world.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """0 if due, else for ever, because time moves only between calls."""
        return 0.0 if deadline <= self._world.now else math.inf
