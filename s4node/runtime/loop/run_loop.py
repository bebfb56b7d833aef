"""The event loop of a container: gives its tasks their turns.

Rules
- One turn is at most ``max_events`` events or ``max_seconds``, over all tasks, and shorter with
  timers; then verdicts go out and the other trio tasks (sockets, timers, cancellation) run.
- If the loop sleeps, the trio task that brings events takes a turn at once.
- Ready tasks take turns, one step each. A task that has had less time than the next one goes on, so
  that many small batches do not wait for a long step of another task each.
- Steps with async handlers or threads run beside the loop, and other tasks go on. The task's gate
  decides what may run beside such a step.
- The loop waits on no stage: a task whose outputs are full gets no step until they have room.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import trio

from s4node import clocks
from s4node.app.stream import Stream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.net.ingress.connection import Waker
from s4node.runtime.loop.coordinator_requests import CoordinatorRequests
from s4node.runtime.loop.step_runner import StepRunner
from s4node.runtime.task.actions import Actions, Ask, EndTold, HandOn
from s4node.runtime.task.gate import DONE, NOTHING, PROCESS, TIMER, Pace

if TYPE_CHECKING:
    from s4node.runtime.task.task import Task


_HELD_SECONDS = 0.005

_PARTS = 4
"""Timers get this part of a step, and end a turn after this part of it: a million of them may be
due at once, and events that arrive meanwhile wait for the end of the turn."""


class Shell(Protocol):
    """The container of a loop: carries out what tasks decide beyond their own work."""

    def after_turn(self) -> float | None:
        """Send what is due after a turn; return the latest time for the next call."""
        ...

    def hand_on(self, task: Task, source: str, stream: Stream, events: list[Any]) -> None:
        """Hand on events that a task put on a stream while processing ``source`` ("" if none)."""
        ...

    def commit(self, task: Task) -> bool:
        """Take the contents of a commit of a task now; return False if there is no commit."""
        ...

    def replace(self, task: Task) -> None: ...

    def arrived(self) -> bool:
        """Return True if all events between tasks have arrived; otherwise hurry them."""
        ...

    def shut_down(self) -> None:
        """Stop the container, as its tasks have asked."""
        ...


class RunLoop:
    """Runs the steps of its tasks, and carries out what they decide.

    The ``shell`` does what concerns the container. No turn begins while the ``enrolment`` is in
    doubt. Plain handlers of tasks run in ``threads`` threads, if there are any; a cancelled loop
    waits ``grace`` seconds for them. ``rest`` is measured while the loop runs. The ``waker`` gives
    it a turn even if no task is ready, to send what is due.
    """

    def __init__(
        self,
        *,
        max_events: int,
        max_seconds: float,
        shell: Shell,
        enrolment: Enrolment | None = None,
        threads: int = 0,
        grace: float = math.inf,
        rest: Rest | None = None,
        waker: Waker | None = None,
    ) -> None:
        self.waker = Waker() if waker is None else waker
        self.tasks: list[Task] = []
        self.rest = rest
        self.grace = grace
        self.commit = shell.commit
        self._shell = shell
        self._enrolment = enrolment
        self.ended = trio.Event()  # ``run`` has returned
        self._requests = CoordinatorRequests()
        self._steps_of = StepRunner(self, threads)
        self._shut = False
        self.turns = 0
        self.busy = 0.0  # seconds in turns
        self._running_since = clocks.steady()
        self.step_began = 0.0
        self._max_events = max_events
        self._max_seconds = max_seconds
        self._after_turn = shell.after_turn
        self._ready: deque[Task] = deque()  # in the order of their turns
        self._queued: set[Task] = set()  # the same tasks
        self._least = 0.0  # the share of a task that becomes ready is at least this
        self._nursery: trio.Nursery | None = None
        self._asleep_until: float | None = None
        self._draining = False
        self._windows_over = False

    def adopt(self, task: Task) -> None:
        task.pace = Pace(self._max_events, self._max_seconds)
        if self._draining:
            task.drain()
        if self._windows_over:
            task.schedule.end_windows()
        self.tasks.append(task)
        self._requests.add(task)
        self._steps_of.adopt(task, trio.lowlevel.current_trio_token())

    async def start(self, task: Task) -> None:
        """Start an adopted task whose state was restored."""
        self.carry_out(task, await task.start())
        if self._draining:
            task.drain()

    def drop(self, task: Task) -> None:
        """Stop running a task that has nothing in flight."""
        self.tasks.remove(task)
        self._requests.remove(task)
        if task in self._queued:
            self._queued.remove(task)
            self._ready.remove(task)

    def add(self, task: Task) -> None:
        """Queue a task that may have something to do; the caller causes a turn."""
        if task not in self._queued:
            self._queued.add(task)
            task.pace.share = max(task.pace.share, self._least)
            if self._ready and task.pace.share < self._ready[0].pace.share:
                self._ready.appendleft(task)
            else:
                self._ready.append(task)

    def wake(self, task: Task) -> None:
        self.add(task)
        self.nudge()

    def wake_partition(self, partition: int) -> None:
        for task in self.tasks:
            if task.partition == partition:
                self.wake(task)

    @property
    def held(self) -> bool:
        """True if nothing may begin now, because others may have taken our partitions."""
        return self._enrolment is not None and self._enrolment.in_doubt()

    def nudge(self) -> None:
        """Have a turn soon even if no task is ready, to send what is due."""
        waker = self.waker
        waker.nudged = True
        if self._asleep_until is not None and not waker.turning:
            waker.lot.unpark_all()

    def take_turn(self) -> None:
        """Have a turn right now if the loop sleeps; for callers that have just added events.

        This bypasses trio's scheduler. Errors of handlers are raised here.
        """
        held = self._enrolment is not None and self._enrolment.in_doubt()
        if self._asleep_until is None or self.waker.nudged or self._nursery is None or held:
            self.nudge()  # the loop is awake, or about to be
            return
        due = self._turn(self._nursery)
        if self._ready or self.waker.nudged or self._deadline(due) < self._asleep_until:
            self.nudge()  # news after the turn have not woken the sleeping loop

    def drain(self) -> None:
        """Make ``run`` return once all tasks are done."""
        self._draining = True
        for task in self.tasks:
            task.drain()
            self.wake(task)
        self.nudge()

    def give_back(self) -> None:
        """Begin no more replayable events."""
        for task in self.tasks:
            task.give_back()

    def end_windows(self) -> None:
        """Have no further windows, because the loop might never become idle with them."""
        self._windows_over = True
        for task in self.tasks:
            task.schedule.end_windows()

    # -- what tasks decide -------------------------------------------------------------------

    def carry_out(self, task: Task, actions: Actions) -> None:
        for action in actions:
            if isinstance(action, HandOn):
                task.sent += len(action.events)
                self._shell.hand_on(task, *action)
            elif isinstance(action, Ask):
                for each in self._requests.apply(task, action.asked):
                    self.wake(each)
                self._check_stop()
            elif isinstance(action, EndTold):
                self.finished(task)
            else:
                self._shell.replace(task)

    def finished(self, task: Task) -> None:
        self._requests.finished(task)
        self._check_stop()

    def inputs_end(self) -> None:
        self._requests.ending = True

    def _check_stop(self) -> None:
        if self._requests.stopping and not self._shut:
            self._shut = True
            self.give_back()
            self._shell.shut_down()

    # -- the life of the loop ----------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """True if inputs have ended of tasks that get their end together."""
        return self._requests.ending

    @property
    def stopped_itself(self) -> bool:
        """True if the tasks have asked for the container's end."""
        return self._requests.stopping

    @property
    def utilization(self) -> float:
        """The part of the time since the start that the loop spent in turns, from 0 to 1."""
        elapsed = clocks.steady() - self._running_since
        return min(1.0, self.busy / elapsed) if elapsed > 0 else 0.0

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def idle(self) -> bool:
        return not self._ready and not any(
            task.gate.in_flight or task.gate.running for task in self.tasks
        )

    @property
    def done(self) -> bool:
        """True if all draining tasks are done, also with events that waited for room."""
        return all(self._steps_of.next_op(task) is DONE for task in self.tasks)

    async def run(self) -> None:
        """Take turns until drained or cancelled; raises the error of a handler.

        A cancelled loop leaves current batches unfinished and unacknowledged.
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
        self.ended.set()

    async def _turns(self, nursery: trio.Nursery) -> None:
        due = self._after_turn()
        self._running_since = clocks.steady()
        while not (self._draining and not self._ready and self.done):
            ending = self._requests.ending and not self._ready
            if ending and self._requests.at_end and self._shell.arrived():
                for task in self._requests.end_inputs():
                    self.wake(task)
            if self._ready or self.waker.nudged:
                await trio.lowlevel.checkpoint()
            else:
                await self._sleep(due)
            while self.held:  # noqa: ASYNC110 - it is rare, and short
                await trio.sleep(_HELD_SECONDS)
            self._check_timers()
            due = self._turn(nursery)

    async def _sleep(self, due: float | None) -> None:
        """Wait until there is something to do, or something is due."""
        self._asleep_until = self._deadline(due)
        try:
            with trio.move_on_at(self._asleep_until):
                await self.waker.lot.park()
        finally:
            self._asleep_until = None

    def _turn(self, nursery: trio.Nursery) -> float | None:
        """Take one turn and send what is due; return the latest time for the next turn."""
        self.waker.turning = True
        try:
            self._steps(nursery)
            self.waker.nudged = False  # news of the turn itself go out right here
            return self._after_turn()
        finally:
            self.waker.turning = False

    def _steps(self, nursery: trio.Nursery) -> None:
        self.turns += 1
        budget = self._max_events
        began = now = clocks.steady()
        ready = self._ready
        run_step, spawn = self._steps_of.run_step, nursery.start_soon
        while ready and budget > 0:
            task = ready.popleft()
            op = task.next_op() if task.in_flight is None else self._steps_of.next_op(task)
            if op in _RESTING:
                self._queued.discard(task)
                continue
            self.step_began = now
            pace, batch = task.pace, task.backlog.at_hand
            kind = op.value if op is not PROCESS else "" if batch is None else batch.stream
            limit, most = min(pace.events(kind), budget), self._max_seconds
            if op is TIMER:
                limit, most = max(1, limit // _PARTS), most / (2 * _PARTS)
            count = run_step(task, op, limit, spawn)
            budget -= count
            ended = clocks.steady()
            if op is PROCESS:
                pace.took(kind, count, ended - now)
            self._least = pace.share
            pace.share += min(ended - now, self._max_seconds)
            backlog = task.backlog
            waits = backlog.at_hand is not None or backlog.inner_waiting or backlog.outer_waiting
            if not (waits or task.together) and task.gate.next_op(waiting=False) is NOTHING:
                self._queued.discard(task)
            elif ready and pace.share < ready[0].pace.share:
                ready.appendleft(task)
            else:
                ready.append(task)
            now = ended
            if now - began > most:
                break
        self.busy += now - began
        self.step_began = 0.0

    def _check_timers(self) -> None:
        now = trio.current_time()
        for task in self.tasks:
            schedule, backlog = task.schedule, task.backlog
            if schedule.at <= now:
                self.carry_out(task, task.end_overdue(now))
            if (task.processor.timed or schedule.at <= now) and task.check_due(now):
                self.wake(task)
            if backlog.resume_at is not None and backlog.resume_at <= now:
                backlog.resume_at = None
                self.wake(task)

    def _deadline(self, due: float | None) -> float:
        """The latest time to wake, on trio's clock."""
        earliest = math.inf if due is None else due
        for task in self.tasks:
            schedule, resume_at = task.schedule, task.backlog.resume_at
            next_due = schedule.next_due if task.processor.timed else schedule.at
            if next_due < earliest:
                earliest = next_due
            if resume_at is not None and resume_at < earliest:
                earliest = resume_at
        return earliest


_RESTING = (NOTHING, DONE)


class Rest(trio.abc.Instrument):
    """Measures, inside ``with``, how long trio waits for something to do.

    A busy machine or busy threads do not reduce that time, except while they hold Python's lock.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def before_io_wait(self, _: float) -> None:
        self._began = clocks.steady()

    def after_io_wait(self, _: float) -> None:
        self.seconds += clocks.steady() - self._began

    def __enter__(self) -> Rest:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        trio.lowlevel.remove_instrument(self)
