"""The event loop of a container: gives its tasks their turns.

Rules
- One turn is at most ``max_events`` events or ``max_seconds``, over all tasks; then verdicts go out
  and the other trio tasks (sockets, timers, cancellation) run.
- A loop that sleeps takes its turn in the trio task that brings events, at once.
- Ready tasks take turns, one step each.
- Steps that take their time run beside the loop; their task's gate keeps out what must not run
  beside them. Other tasks go on.
- Nothing here waits on a stage: a task whose outputs are full is left alone until they have room.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import trio

from s4node import clocks
from s4node.runtime.loop.rest import Rest
from s4node.runtime.loop.step_runner import StepRunner
from s4node.runtime.task.coordinator_requests import CoordinatorRequests
from s4node.runtime.task.gate import Op
from s4node.runtime.task.pace import Pace

if TYPE_CHECKING:
    from s4node.runtime.task.task import Task


_HELD_SECONDS = 0.005


class RunLoop:
    """Runs the steps of the tasks that it has adopted.

    ``after_turn`` is called after every turn (it sends verdicts) and returns when it wants to be
    called again at the latest, or None. While ``held`` says so no turn begins. ``on_shutdown`` is
    called when the tasks have asked for the container's end. ``arrived`` says whether all that
    they have sent each other is where it belongs. Plain slices of tasks with threads run
    in so many ``threads``; when the loop is cancelled they are waited for, ``grace`` seconds long.
    ``rest`` is measured while it runs.
    """

    def __init__(
        self,
        *,
        max_events: int,
        max_seconds: float,
        after_turn: Callable[[], float | None],
        held: Callable[[], bool] | None = None,
        on_shutdown: Callable[[], None] = lambda: None,
        arrived: Callable[[], bool] = lambda: True,
        threads: int = 0,
        grace: float = math.inf,
        rest: Rest | None = None,
    ) -> None:
        self.tasks: list[Task] = []
        self.rest = rest
        self.grace = grace
        self._requests = CoordinatorRequests(self._shut_down, self.wake, arrived)
        self._steps_of = StepRunner(self.wake, threads, held)
        self._on_shutdown = on_shutdown
        self.turns = 0
        self.busy = 0.0  # seconds in turns
        self._running_since = clocks.steady()
        self.step_began = 0.0
        self._max_events = max_events
        self._max_seconds = max_seconds
        self._after_turn = after_turn
        self._held = held
        self._ready: deque[Task] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self._asleep_until: float | None = None
        self._turning = False
        self._nudged = False
        self._draining = False
        self._windows_over = False

    def adopt(self, task: Task) -> None:
        """Run this task, too."""
        task.pace = Pace(self._max_events, self._max_seconds)
        if self._draining:
            task.drain()
        if self._windows_over:
            task.timetable.end_windows()
        self.tasks.append(task)
        self._requests.add(task)
        self._steps_of.adopt(task, trio.lowlevel.current_trio_token())

    def drop(self, task: Task) -> None:
        """Run this task no more; nothing of it is under way."""
        self.tasks.remove(task)
        self._requests.remove(task)
        if task.ready:
            self._ready.remove(task)

    def add(self, task: Task) -> None:
        """The task may have something to do; the caller sees to it that a turn follows."""
        if not task.ready:
            task.ready = True
            self._ready.append(task)

    def wake(self, task: Task) -> None:
        """The task may have something to do soon."""
        self.add(task)
        self.nudge()

    def nudge(self) -> None:
        """Have a turn soon even if no task is ready, to send what is due."""
        self._nudged = True
        if self._asleep_until is not None and not self._turning:
            self._lot.unpark()

    def take_turn(self) -> None:
        """Have a turn right now if the loop sleeps; for callers that have just added events.

        It saves the way over trio's scheduler. What a handler raises is raised here.
        """
        held = self._held is not None and self._held()
        if self._asleep_until is None or self._nudged or self._nursery is None or held:
            self.nudge()  # it is awake, or about to be
            return
        due = self._turn(self._nursery)
        if self._ready or self._nudged or self._deadline(due) < self._asleep_until:
            self.nudge()  # it sleeps, so what was told behind the turn has not woken it

    def drain(self) -> None:
        """Make ``run`` return once no task has anything left to do."""
        self._draining = True
        for task in self.tasks:
            task.drain()
            self.wake(task)
        self.nudge()

    def give_back(self) -> None:
        """Begin nothing more of what can be read again."""
        for task in self.tasks:
            task.give_back()

    def end_windows(self) -> None:
        """Have no further windows: where they take all the time, there is never nothing to do."""
        self._windows_over = True
        for task in self.tasks:
            task.timetable.end_windows()

    def _shut_down(self) -> None:
        self.give_back()
        self._on_shutdown()

    @property
    def ending(self) -> bool:
        """Whether inputs have ended of tasks that are to be told together."""
        return self._requests.ending

    @property
    def stopped_itself(self) -> bool:
        """Whether the tasks have asked for the container's end."""
        return self._requests.stopping

    @property
    def utilization(self) -> float:
        """Which part of the time since it began the loop was in turns, from 0 to 1."""
        elapsed = clocks.steady() - self._running_since
        return min(1.0, self.busy / elapsed) if elapsed > 0 else 0.0

    @property
    def idle(self) -> bool:
        """Whether no task has anything to do now."""
        return not self._ready and not any(
            task.gate.in_flight or task.gate.running for task in self.tasks
        )

    @property
    def done(self) -> bool:
        """Whether no draining task has anything left, not even what waits for room."""
        return all(task.next_op() is Op.DONE for task in self.tasks)

    async def run(self) -> None:
        """Take turns until drained or cancelled; raises what a handler raised.

        Cancelling leaves the batches at hand unfinished and unacknowledged.
        """
        with self.rest or nullcontext():
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._turns(nursery)
                except BaseException:
                    self._steps_of.give_up(self.grace)
                    raise
        self._after_turn()

    async def _turns(self, nursery: trio.Nursery) -> None:
        due = self._after_turn()
        self._running_since = clocks.steady()
        while not (self._draining and not self._ready and self.done):
            if not self._ready:
                self._requests.settle()
            if self._ready or self._nudged:
                await trio.lowlevel.checkpoint()
            else:
                await self._sleep(due)
            while self._held is not None and self._held():  # noqa: ASYNC110 - it is rare, and short
                await trio.sleep(_HELD_SECONDS)
            self._check_timers()
            due = self._turn(nursery)

    async def _sleep(self, due: float | None) -> None:
        """Wait until there is something to do, or until it is due."""
        self._asleep_until = self._deadline(due)
        try:
            with trio.move_on_at(self._asleep_until):
                await self._lot.park()
        finally:
            self._asleep_until = None

    def _turn(self, nursery: trio.Nursery) -> float | None:
        """One turn and what follows it; returns when the next is due at the latest."""
        self._turning = True
        try:
            self._steps(nursery)
            self._nudged = False  # what the turn itself had to tell goes out right here
            return self._after_turn()
        finally:
            self._turning = False

    def _steps(self, nursery: trio.Nursery) -> None:
        self.turns += 1
        budget = self._max_events
        began = now = clocks.steady()
        ready = self._ready
        take, spawn = self._steps_of.take, nursery.start_soon
        while ready and budget > 0:
            task = ready.popleft()
            op = task.next_op()
            if op in _RESTING:
                task.ready = False
                continue
            ready.append(task)
            self.step_began = now
            pace, kind = task.pace, task.stream if op is Op.PROCESS else op.value
            count = take(task, op, min(pace.events(kind), budget), spawn)
            budget -= count
            ended = clocks.steady()
            if op is Op.PROCESS:
                pace.took(kind, count, ended - now)
            now = ended
            if now - began > self._max_seconds:
                break
        self.busy += now - began
        self.step_began = 0.0

    def _check_timers(self) -> None:
        now = trio.current_time()
        for task in self.tasks:
            timetable, backlog = task.timetable, task.backlog
            if (timetable.timed or timetable.at <= now) and timetable.check_due(now):
                self.wake(task)
            if backlog.resume_at is not None and backlog.resume_at <= now:
                backlog.resume_at = None
                self.wake(task)

    def _deadline(self, due: float | None) -> float:
        """When to wake at the latest, in trio's time."""
        earliest = math.inf if due is None else due
        for task in self.tasks:
            next_due, resume_at = task.timetable.next_due, task.backlog.resume_at
            if next_due < earliest:
                earliest = next_due
            if resume_at is not None and resume_at < earliest:
                earliest = resume_at
        return earliest


_RESTING = (Op.NOTHING, Op.DONE)
