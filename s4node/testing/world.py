"""The world of an app during a test: its time, its threads, its network, and its trio runs.

Rules
- The world runs in the test's own thread, and only while the test waits for it; so a debugger,
  ``capsys`` and tracebacks work as usual. A test may be async: its own loop stands still meanwhile.
- Calls that may block are inline, and connections in memory. So when no run has anything to do, and
  nothing is in transit at this time, nothing happens before time moves or the world outside acts.
- The clocks, threads, names and connections of the whole process are the test's while it waits: no
  other container or client may run in another thread then.
- Time moves from one moment at which something is due to the next.
- The systems that inputs are read from are in memory, except in a cluster. A stream exists as soon
  as it is used, with as many partitions as the app has, and outlives the app, as a log does.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import trio

from s4node import clocks, failpoints, open_files, threads, tokens
from s4node.cluster.tree import coordinations
from s4node.cluster.tree.contract import Coordination
from s4node.errors import S4Error, leaves
from s4node.net.transport import network
from s4node.offsets.startpoint import Specific, Startpoint
from s4node.offsets.system import SystemStreamPartition
from s4node.state.remote_log import is_commit
from s4node.systems import registry
from s4node.systems.memory import MemorySystem, _Partition
from s4node.testing import memory_store
from s4node.testing.memory_network import MemoryNetwork, Message
from s4node.testing.memory_store import MemoryStore
from s4node.testing.runs import Restless, Run, Runs, scheduler, waits_text

T = TypeVar("T")

_REAL_SECONDS = 60.0
"""A call that takes longer in real time is reported as hanging."""

_LOOK_SECONDS = 0.05
_LAST_SECONDS = 10.0
_JOB_SECONDS = 120.0
_EPOCH = 1_700_000_000.0
"""Unix time when a test begins."""


class Inputs:
    """The systems by name; ``partitions`` is the number of a stream that is not made explicitly."""

    def __init__(self) -> None:
        self.partitions = 1
        self._systems: dict[str, Memory] = {}

    def system(self, name: str) -> Memory:
        if name not in self._systems:
            self._systems[name] = Memory(name, self)
        return self._systems[name]


class Memory(MemorySystem):
    """A system that has every stream."""

    def __init__(self, name: str, inputs: Inputs) -> None:
        super().__init__(name)
        self._inputs = inputs

    def count(self, stream: str) -> int:
        return len(self._stream(stream))

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        """The offset that a startpoint means now; an offset of what is empty is where it begins."""
        home = self.partition_of(ssp)
        if isinstance(startpoint, Specific) and not home.events and not home.oldest:
            home.oldest = startpoint.offset
        return await super().resolve(ssp, startpoint)

    def _stream(self, stream: str) -> list[_Partition]:
        if stream not in self._streams:
            self.create(stream, self._inputs.partitions)
        return super()._stream(stream)


_current: World | None = None


def spend(seconds: float) -> None:
    """Have a handler take so long, by the clock of the test that runs the app; call it there.

    What the process does later happens later, and others go on meanwhile.
    """
    if _current is None or _current.runs.here is None:
        raise S4Error("spend() is for handlers of an app in an AppTest or a ClusterTest")
    _current.runs.here.spent += seconds


async def _rest_forever(_: Run) -> None:
    await trio.sleep_forever()


class World:
    """Runs async functions while the test waits; ``now`` is the time in seconds.

    ``delay(random)`` gives the seconds that an envelope takes in the network. The ``seed`` decides
    everything random, including trio's order of tasks. Functions run in the process ``first``, on
    ``host``, or in one that was added.
    """

    def __init__(
        self, delay: Callable[[Random], float] = lambda _: 0.0, seed: int = 0, host: str = ""
    ) -> None:
        self.failures: list[BaseException] = []
        self.on_point: Callable[[Run, str], None] = lambda _run, _point: None
        """Called when a process passes a failpoint."""
        self.call_seconds: Callable[[], float] | None = None
        """Half of what a call in a thread takes; without it, no time."""
        self.inputs = Inputs()
        self.coordination: Callable[[], Coordination] | None = None
        """That of a cluster, whose systems are those that are configured; without one, all systems
        are ``inputs``."""
        self.random = Random(seed)  # noqa: S311 - to be repeated
        self._order = Random(seed)  # noqa: S311
        self.runs = Runs(self._order)
        self.network = MemoryNetwork(self.runs, partial(delay, self.random))
        self.store = MemoryStore(lambda: self.runs.here, self._was_put)
        self._interrupted = False
        self._broken = False  # nothing can be ended in order
        self.first = self.add(host)

    @property
    def now(self) -> float:
        return self.runs.now

    def add(self, host: str, function: Callable[[Run], Awaitable[Any]] = _rest_forever) -> Run:
        """Start a process on a host, which ends with the function."""

        async def live(run: Run) -> None:
            async with trio.open_nursery() as run.nursery:
                await self._noting_failures(partial(function, run))
                run.nursery.cancel_scope.cancel()

        with self.inside():
            return self.runs.add(host, live)

    def run(self, function: Callable[[], Awaitable[T]], run: Run | None = None) -> T:
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

        self._soon(run or self.first, job)
        self._pump(run or self.first, lambda: results or errors)
        if errors:
            raise errors[0]
        return results[0]

    def run_in_time(self, function: Callable[[], Awaitable[T]]) -> T:
        results: list[T] = []
        errors: list[Exception] = []

        async def job() -> None:
            try:
                results.append(await function())
            except Exception as error:
                errors.append(error)

        self.start_soon(job)
        self.pass_time(_JOB_SECONDS, lambda: bool(results or errors))
        if errors or self.failures:
            raise [*errors, *self.failures][0]
        if not results:
            raise self.hangs(f"{function} has not ended within {_JOB_SECONDS:g} s")
        return results[0]

    def call(self, function: Callable[..., T], *arguments: Any, run: Run | None = None) -> T:
        """Call a plain function inside a run; return its result or raise its exception."""

        async def called() -> T:
            return function(*arguments)

        return self.run(called, run)

    def start_soon(
        self,
        function: Callable[..., Awaitable[Any]],
        *arguments: Any,
        run: Run | None = None,
    ) -> None:
        """Run an async function beside the others; its exception is kept in ``failures``."""
        self._soon(run or self.first, partial(self._noting_failures, partial(function, *arguments)))

    async def _noting_failures(self, function: Callable[[], Awaitable[Any]]) -> None:
        try:
            await function()
        except BaseException as error:
            found = [one for one in leaves(error) if not isinstance(one, trio.Cancelled)]
            self.failures += found
            if not found:
                raise

    def wait_idle(self) -> None:
        """Wait until nothing happens before time moves, or the world outside acts."""
        with self.inside():
            self._look()

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Move the time from one due moment to the next; stop early once ``until`` is true."""
        runs, target = self.runs, self.now + seconds
        with self.inside():
            self._look()
            while not until() and not self.failures:
                if runs.next > target:
                    runs.now = target
                    return
                runs.now = max(runs.now, runs.next)
                self._rest()

    def give_time(self, seconds: float) -> None:
        """Let sockets and threads run for real ``seconds``, or until something happens."""
        with self.inside():
            self.runs.step(self.first, seconds)

    def close(self) -> None:
        """Cancel all that runs, and end; then also what was killed, which holds on to memory.

        After Ctrl-C, or if something hangs, all is killed.
        """
        if self._broken:
            for run in list(self.runs.all):
                self.runs.kill(run)
        self.failures = []  # they would end each move of the time
        for run in list(self.runs.all):
            self.runs.resume(run)
        for run in list(self.runs.all):
            self._pump(run, lambda: run.nursery is not None)  # noqa: B023 - called before the next
            if not run.ended:
                with self.inside():
                    self.runs.enter(run, run.nursery.cancel_scope.cancel)  # type: ignore[union-attr]
                deadline = _real_deadline()
                while not run.ended:  # what is shielded may wait for time
                    self.pass_time(_LAST_SECONDS, lambda: run.ended)  # noqa: B023
                    self._check(deadline)
        with self.inside():
            self.runs.clear()

    def _soon(self, run: Run, job: Callable[[], Awaitable[None]]) -> None:
        self._pump(run, lambda: run.nursery is not None)
        nursery = run.nursery
        assert nursery is not None
        with self.inside():
            self.runs.enter(run, lambda: nursery.start_soon(job))

    def _pump(self, run: Run, until: Callable[[], object]) -> None:
        """Go on without moving the time until something holds of a run."""
        deadline = _real_deadline()
        with self.inside():
            while not until():
                if not self.runs.turn():
                    self.runs.step(run, _LOOK_SECONDS)
                self._check(deadline)

    def _look(self) -> None:
        """Come to rest; sockets may have become readable, or threads have ended."""
        for run in self.runs.all:
            run.due = min(run.due, self.now)
        self._rest()

    def _rest(self) -> None:
        deadline = _real_deadline()
        while self.runs.turn():
            self._check(deadline)

    def _check(self, deadline: float) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            raise self.hangs(f"the app did not come to rest within {_REAL_SECONDS:g} s")

    def hangs(self, what: str) -> S4Error:
        """The error that also says where all tasks wait, the app's own code first."""
        return S4Error(f"{what}{waits_text(self.runs.all)}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Activate this world; trio's run, if any, is replaced meanwhile."""
        global _current
        before, _current = _current, self
        context = scheduler.GLOBAL_RUN_CONTEXT.__dict__
        theirs = dict(context)
        hooks = sys.get_asyncgen_hooks()
        chance = scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING
        scheduler._r = self._order
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
        context.clear()
        try:
            with ExitStack() as stack:
                stack.enter_context(self._interruptible())
                stack.enter_context(clocks.replaced(self._steady, self._wall))
                stack.enter_context(tokens.replaced(self._token_hex))
                stack.enter_context(threads.replaced_by_inline(self.run_in_time, self.call_seconds))
                stack.enter_context(network.replaced(self.network))
                stack.enter_context(memory_store.reached(self.store))
                stack.enter_context(failpoints.replaced(self._passing))
                stack.enter_context(open_files.replaced(self._opened))
                if self.coordination is None:
                    stack.enter_context(registry.replaced(self.inputs.system))
                else:
                    stack.enter_context(coordinations.replaced(self.coordination))
                yield
        except Restless:
            self._broken = True
            raise self.hangs(f"the app never comes to rest at {self.now:.3f} s") from None
        finally:
            _current = before
            context.clear()
            context.update(theirs)
            sys.set_asyncgen_hooks(*hooks)
            scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING = chance

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """End all with KeyboardInterrupt after Ctrl-C, also if code of the run has caught it."""
        before = signal.getsignal(signal.SIGINT)
        if not callable(before) or threading.current_thread() is not threading.main_thread():
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            if self._interrupted:
                self._interrupted, self._broken = False, True
                raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    def _passing(self, point: str) -> None:
        if self.runs.here is not None:
            self.on_point(self.runs.here, point)

    def _was_put(self, name: str, path: str, data: bytes) -> None:
        if is_commit(data):  # other objects have random names of files
            self.network.trace.append(Message(self.now, name, path, data))

    def _opened(self, file: open_files.Closable, path: Path) -> None:
        if self.runs.here is not None:
            self.runs.here.files[file] = path

    def _token_hex(self, size: int) -> str:
        return self.random.randbytes(size).hex()

    def _steady(self) -> float:
        return self.runs.now

    def _wall(self) -> float:
        here = self.runs.here
        return _EPOCH + self.runs.now + (0.0 if here is None else here.ahead)


def _real_deadline() -> float:
    return time.monotonic() + _REAL_SECONDS
