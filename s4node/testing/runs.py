"""Trio runs that go on only while a test pumps them: the processes of a world.

Rules
- Each process is a trio run of its own. One that is not pumped stands still, as after a SIGSTOP,
  and goes on later. One that is never pumped again was killed: no ``finally`` of it runs.
- All that one run does to another, or that comes later, is an entry in one list, by time and then
  in the order of requests. It happens between two steps, with the run that it is for.
- A step of a run is one pass of trio's scheduler. Of several runs that have something to do, the
  seed chooses which one goes on.
- A step takes no time, unless the app spends some: then what it does later in the step happens
  later, and the run does nothing further until that time has come.
- When no run has anything to do, nothing happens before time moves or the world outside acts.
- Of tasks that hang, those in the app's own code come first: its handlers and sources, with the
  event, the key and the line. Then all, each place once.
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import linecache
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import trio

from s4node.app.processing_element import ProcessingElement
from s4node.events.event import Event
from s4node.open_files import Closable

scheduler: Any = trio._core._run
"""Trio has no public way to nest, pump or repeat runs; hypothesis uses the same module."""

host: ContextVar[str] = ContextVar("host", default="")
"""The host of the code that runs."""

Action = Callable[[], object]

_MOST_BUSY = 3000
_MOMENT = 1e-6
"""A run that waits for what is due but for a rounding error never rests: each time after so many
steps, time moves by this, in seconds."""

_ROUND = 100_000
"""After so many steps without rest, a run goes round for ever."""

_OTHERS = f"{Path(__file__).parents[1]}/", f"{Path(trio.__file__).parent}/"
_SHOWN = 10
_MOST_LETTERS = 100

_MOST_STEPS, _MOST_SECONDS = 1000, 10.0
"""A killed run that does not end within so many steps is left."""


class Run:
    """A trio run of ``main``; ``name`` is its host."""

    def __init__(
        self, name: str, clock: trio.abc.Clock, main: Callable[[Run], Awaitable[None]]
    ) -> None:
        self.name = self.label = name
        self.due = -math.inf
        """When it goes on by itself."""
        self.ahead = 0.0
        """By how much its clock on the wall is ahead, in seconds."""
        self.spent = 0.0
        """The seconds that its current step has taken."""
        self.busy_until = -math.inf
        """When it has done what its last step took."""
        self.steps = 0
        """How many it has taken since it last rested."""
        self.paused = False
        self.killed = False
        self.ended = False
        self.nursery: trio.Nursery | None = None
        """The nursery of its tasks; None before it has begun."""
        self.held: deque[Action] = deque()  # what came while it was paused
        self.files: WeakKeyDictionary[Closable, Path] = WeakKeyDictionary()
        """The files that it has opened, until they are garbage."""
        self.context = contextvars.copy_context()
        self.context.run(host.set, name)
        hooks = sys.get_asyncgen_hooks()
        self.runner = self.context.run(scheduler.setup_runner, clock, [], False, True)
        self.runner.ki_manager.close()  # Ctrl-C is the test's
        self.hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*hooks)
        self._steps = scheduler.unrolled_run(self.runner, main, (self,), True)
        self._events: Any = None

    def step(self, seconds: float = 0.0) -> None:
        """Take a step, or, with nothing to do, wait real seconds for sockets and threads."""
        if seconds:
            self._events = self.runner.io_manager.get_events(seconds)
        try:
            left = self._steps.send(self._events)
        except StopIteration:
            self.ended, self.due = True, math.inf
            self.runner.main_task_outcome.unwrap()
            return
        except trio.TrioInternalError as error:
            self.ended, self.due = True, math.inf
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            raise
        self._events = [] if left <= 0 else self.runner.io_manager.get_events(0)
        is_busy = left <= 0 or self._events
        self.steps = self.steps + 1 if is_busy else 0
        self.due = -math.inf if is_busy else self.runner.deadlines.next_deadline()

    def close_files(self) -> None:
        """Close all that it has open, as the system does when a process has died."""
        for file in list(self.files):
            with suppress(Exception):  # a database that is broken closes with an error
                file.close()


class Restless(Exception):  # noqa: N818 - the world says where
    """A run goes on for ever at one moment."""


class Runs:
    """The runs of a world, and what is to happen in them; ``now`` is the time in seconds."""

    def __init__(self, chance: Random) -> None:
        self._now = 0.0
        self.here: Run | None = None
        """The run that goes on."""
        self.all: list[Run] = []
        self.killed: list[Run] = []
        self._chance = chance
        self._actions: list[tuple[float, int, Run | None, Action]] = []
        self._turns = itertools.count()

    @property
    def now(self) -> float:
        return self._now if self.here is None else self._now + self.here.spent

    @now.setter
    def now(self, seconds: float) -> None:
        self._now = seconds

    def add(self, name: str, main: Callable[[Run], Awaitable[None]]) -> Run:
        run = Run(name, _Clock(self), main)
        self.all.append(run)
        return run

    def after(self, at: float, run: Run | None, action: Action) -> None:
        """Have ``action`` happen in a run at that time, after all that comes at the same time.

        Without a run it happens outside of them. A killed run gets nothing.
        """
        heapq.heappush(self._actions, (at, next(self._turns), run, action))

    def soon(self, run: Run | None, action: Action) -> None:
        """Have ``action`` happen in a run: at once in the one that goes on, else next."""
        if run is self.here:
            action()
        else:
            self.after(self.now, run, action)

    def pause(self, run: Run) -> None:
        run.paused = True

    def resume(self, run: Run) -> None:
        run.paused = False
        while run.held:
            self.after(self.now, run, run.held.popleft())

    def kill(self, run: Run) -> None:
        """Never let the run go on."""
        run.killed = True
        self.all.remove(run)
        self.killed.append(run)

    def clear(self) -> None:
        """Free what killed runs have in memory: they end now, and their ``finally`` blocks run."""
        for run in self.killed:
            with suppress(Exception):
                self._finish(run)
            run.close_files()
        self.killed.clear()
        self._actions.clear()

    def _finish(self, run: Run) -> None:
        if run.nursery is not None:
            self.enter(run, run.nursery.cancel_scope.cancel)
        for _ in range(_MOST_STEPS):
            if run.ended:
                break
            self.now = max(self.now, min(run.due, self.now + _MOST_SECONDS))
            self.step(run)

    @property
    def next(self) -> float:
        dues = [max(run.due, run.busy_until) for run in self.all if not run.paused]
        return min([*dues, self._actions[0][0] if self._actions else math.inf])

    def turn(self) -> bool:
        """Let the next thing happen that is due now; return False if there is none."""
        if self._actions and self._actions[0][0] <= self.now:
            *_, run, action = heapq.heappop(self._actions)
            if run is None:
                action()
            elif run.paused:
                run.held.append(action)
            elif run.busy_until > self.now:
                self.after(run.busy_until, run, action)
            elif not (run.killed or run.ended):
                self.enter(run, action)
            return True
        ready = [
            run
            for run in self.all
            if run.due <= self.now and run.busy_until <= self.now and not run.paused
        ]
        if ready:
            self.step(ready[0] if len(ready) == 1 else self._chance.choice(ready))
        return bool(ready)

    def enter(self, run: Run, action: Action) -> None:
        """Do something in a run, outside of its tasks."""
        run.due = -math.inf
        self._in(run, lambda: run.context.run(action))

    def step(self, run: Run, seconds: float = 0.0) -> None:
        try:
            self._in(run, lambda: run.step(seconds))
        finally:
            if run.ended and run in self.all:
                self.all.remove(run)
        if run.steps and run.steps % _MOST_BUSY == 0:
            self.now += _MOMENT
            if run.steps >= _ROUND:
                raise Restless

    def _in(self, run: Run, action: Action) -> None:
        hooks, before = sys.get_asyncgen_hooks(), self.here
        sys.set_asyncgen_hooks(*run.hooks)
        scheduler.GLOBAL_RUN_CONTEXT.runner = run.runner
        self.here = run
        try:
            action()
        finally:
            run.busy_until, run.spent = self.now, 0.0
            self.here = before
            scheduler.GLOBAL_RUN_CONTEXT.__dict__.clear()
            sys.set_asyncgen_hooks(*hooks)


class _Clock(trio.abc.Clock):
    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        return self._runs.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self._runs.now


# -- reports of runs that hang ---------------------------------------------------------------------

Place = tuple[FrameType, int]


def waits_text(runs: Iterable[Run]) -> str:
    """Where all tasks wait, in lines, each with a line break before it."""
    own: dict[str, list[str]] = {}
    every: dict[str, list[str]] = {}
    for run in runs:
        for task in sorted(run.runner.tasks, key=lambda task: task._counter):
            outside = [*_frames(task)]
            if outside:
                name = task.name.removeprefix("s4node.").replace("<locals>.", "")
                every.setdefault(f"{name}: {_at(outside[-1])}", []).append(run.label)
            others = (*_OTHERS, "<")
            ours = [each for each in outside if not each[0].f_code.co_filename.startswith(others)]
            if ours:
                verb = "goes round" if task in run.runner.runq else "waits"
                line = f"{_what(ours[0][0])} {verb} at {_at(ours[0])}: {_code(ours[0])}"
                if ours[-1] is not ours[0]:
                    line += f", in {_at(ours[-1])}: {_code(ours[-1])}"
                own.setdefault(line, []).append(run.label)
    lines = [f"  {line}{_where(labels)}" for line, labels in own.items()]
    left_out = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    tasks = [f"  {line}{_where(labels)}" for line, labels in every.items()]
    found = [*lines[:_SHOWN], *left_out, "all tasks:", *tasks]
    return "".join(f"\n{line}" for line in found)


def _frames(task: Any) -> Iterator[Place]:
    for frame, line in task.iter_await_frames():
        if not frame.f_code.co_filename.startswith(_OTHERS[1]):
            yield frame, line


def _what(frame: FrameType) -> str:
    """A function of the app, with the event and the key that it is for."""
    values = frame.f_locals
    event = next((each for each in values.values() if isinstance(each, Event)), None)
    name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
    pe = values.get("self")
    given = "" if event is None else f"{event!r}"[:_MOST_LETTERS]
    return f"{name}({given})" + (f" of {pe.key!r}" if isinstance(pe, ProcessingElement) else "")


def _at(place: Place) -> str:
    frame, line = place
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def _code(place: Place) -> str:
    frame, line = place
    return linecache.getline(frame.f_code.co_filename, line).strip()


def _where(labels: list[str]) -> str:
    """On which processes something waits, and how often if there is more than one."""
    named = ", ".join(dict.fromkeys(filter(None, labels)))
    often = f"{len(labels)} times" if len(labels) > 1 else ""
    return f" ({', '.join(filter(None, (named, often)))})" if named or often else ""
