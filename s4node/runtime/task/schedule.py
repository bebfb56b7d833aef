"""The schedule of a task: windows, commits, timers, and timeouts of events. Pure.

Rules
- The gate gets what is due, and says when it may run. A slice that runs ends for it.
- Ticks coalesce: after missed ticks there is one, and the next one keeps the same beat.
- Windows begin with the task. Ticks missed while a window ran count as that window. If windows take
  all the time, events get a turn between two of them.
- A commit that others wait for (producers for acknowledgements, receivers for events) begins as
  soon as the task has spent less than a tenth of its time in commits, and all tasks of its
  container together less than a quarter of the process's. The first one after the start of a task
  does not wait for those of others: a takeover makes the process busy, and producers wait for it.
  Other commits begin at their ticks. All commits count, whatever the reason. The time that such a
  commit waits for events in flight counts for the task as well, because no other event begins.
- The timers of a busy task wait until it wakes the loop. They run in parts. If events wait, some
  get a turn between two parts, and a task that drains can end, even if a round of timers takes
  longer than its interval.
"""

from __future__ import annotations

import math
from typing import Protocol

from s4node.app.app import App
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.gate import TIMER, Gate
from s4node.runtime.task.processor import Processor
from s4node.runtime.task.settings import TaskSettings

OF_TASK = 0.1
"""The part of a task's time that awaited commits may take."""

OF_CONTAINER = 0.25
"""The part of the process's time that awaited commits of all its tasks may take."""

ASIDE = 0.0004
"""Seconds that a commit costs besides its own work: a thread, turns of the loop, and smaller frames
with more acknowledgements."""

SPAN = 1.0
"""Seconds over which the budget counts: it saves up, and owes, at most its part of them."""

_BUSY, _AT_EASE = 0.1, 0.3
"""A process is busy if its idle share is below the first; above the second, commits may use all of
their part. A wait for Python's lock counts as idle."""

_OF_THE_BUSY = 0.08
"""The share of the part that is left while the process is busy."""

_LOOKING_SECONDS = 0.1


class Rests(Protocol):
    """Measures for how many seconds a process has been idle."""

    seconds: float


class CommitBudget:
    """The ``part`` of the time that may go to commits which others wait for.

    ``free_at`` is when the next commit may begin. Unused time grows evenly, up to the part of a
    second; with a plain sum over the last second, commits would follow each other until the sum is
    spent, and none would begin for the rest of the second. A commit that took longer is paid back
    within a second.

    ``rest`` says for how many seconds the process has been idle. If it is nearly always busy,
    commits take the time of events, and the part is smaller.
    """

    __slots__ = ("_looked_at", "_most", "_rest", "_rest_before", "free_at", "part")

    def __init__(self, part: float, now: float, rest: Rests | None = None) -> None:
        self.part = self._most = part
        self.free_at = now - SPAN
        self._rest = rest
        self._rest_before = 0.0
        self._looked_at = now

    def spend(self, seconds: float, now: float) -> None:
        if self._rest is not None and now - self._looked_at >= _LOOKING_SECONDS:
            self._adjust(self._rest.seconds, now)
        free_at = max(self.free_at, now - SPAN) + (seconds + ASIDE) / self.part
        self.free_at = min(free_at, now + SPAN)

    def _adjust(self, rest: float, now: float) -> None:
        resting = (rest - self._rest_before) / (now - self._looked_at)
        share = min(1.0, (resting - _BUSY) / (_AT_EASE - _BUSY))
        self.part = self._most * max(share, _OF_THE_BUSY)
        self._rest_before, self._looked_at = rest, now


class Tick:
    """A tick every ``interval`` seconds, next at ``at``; never if the interval is 0."""

    __slots__ = ("at", "interval")

    def __init__(self, interval: float, now: float) -> None:
        self.interval = interval
        self.at = now + interval if interval else math.inf

    def due(self, now: float) -> bool:
        if self.at > now:
            return False
        self.at += ((now - self.at) // self.interval + 1) * self.interval
        return True

    def stop(self) -> None:
        self.at = math.inf


class Timed(Protocol):
    name: str
    app: App
    settings: TaskSettings
    gate: Gate
    backlog: Backlog
    processor: Processor

    def choose(self) -> bool:
        """Choose the next event to process; return False if there is none."""
        ...


class Schedule:
    """The schedule of ``task``; times are those of its clock, in seconds.

    ``shared`` is the commit budget of all tasks of a container. ``together`` says that events may
    be in flight and so may time out; ``timeout_at`` is when to check. ``at`` is the next tick,
    without timers. ``owing`` is True if no event has begun since the last window, ``timers_owing``
    since the last part of the timers.
    """

    __slots__ = (
        "_awaited_at",
        "_budget",
        "_commits",
        "_committing",
        "_first",
        "_gate",
        "_processor",
        "_shared",
        "_task",
        "_waited",
        "_waiting_since",
        "_windows",
        "_windows_over",
        "at",
        "owing",
        "timeout_at",
        "timers_owing",
    )

    def __init__(
        self,
        task: Timed,
        now: float,
        shared: CommitBudget | None = None,
        *,
        together: bool = False,
    ) -> None:
        self.owing = self.timers_owing = False
        self._task = task
        self._gate = task.gate
        self._processor = task.processor
        self._windows = Tick(0, now)  # none before the task has started
        self._windows_over = False
        self._commits = Tick(task.settings.commit, now)
        self._budget = CommitBudget(OF_TASK, now)
        self._shared = shared or CommitBudget(OF_CONTAINER, now)
        self._awaited_at = math.inf  # when an awaited commit is due
        self._waiting_since = math.inf  # since when it waits for events in flight
        self._waited = 0.0  # how long the current commit had waited for them
        self._committing = False
        self._first = True  # until a commit has ended
        self.timeout_at = math.inf
        if task.settings.callback_timeout and together:
            self.timeout_at = now + task.settings.callback_timeout
        self.at = min(self._commits.at, self.timeout_at)

    @property
    def next_due(self) -> float:
        """The latest time to call ``check_due``; infinity if never."""
        gate = self._gate
        if not self._processor.timed or gate.in_flight or gate.running is not None:
            return self.at
        if not gate.calls:  # the loop would turn without end
            return self.at
        due = self._processor.next_due
        return self.at if due is None or self._events_first else min(due, self.at)

    @property
    def _events_first(self) -> bool:
        """True if events, or the end of the task, come before further timers."""
        if not self.timers_owing:
            return False
        ends = self._gate.ends
        if self._task.choose() and (ends or not self._processor.calls_first):
            return True
        return ends and not self._task.backlog.has_waiting

    def check_due(self, now: float) -> bool:
        """Report to the gate what is due; return True if anything is."""
        gate = self._gate
        if self.at <= now:
            self._tick(now)
        timed = self._processor.timed and gate.calls
        if timed and gate.running is not TIMER:  # it says itself what is left
            due = self._processor.next_due
            if due is not None and due <= now and not self._events_first:
                gate.timer_due = True
        return gate.timer_due or gate.window_due or gate.commit_due

    def _tick(self, now: float) -> None:
        """Mark due windows and commits; missed ones coalesce."""
        if self._windows.due(now):
            self._gate.window_due |= not (self.owing and self._task.choose())
        if self._commits.due(now):
            self._gate.commit_due = True  # other tasks may have processed what it has read
        if self._awaited_at <= now:
            self._await_commit(now)
        self.at = min(self._windows.at, self._commits.at, self._awaited_at, self.timeout_at)

    # -- commits -----------------------------------------------------------------------------

    @property
    def commit_scheduled(self) -> bool:
        """True if an awaited commit is scheduled, or the current commit must end first."""
        return self._committing or self._awaited_at < math.inf

    def schedule_commit(self, now: float, patience: float = 0.0) -> bool:
        """Schedule an awaited commit after ``patience`` seconds, or when the budgets then allow it.

        Return True if that is earlier than before.
        """
        if self._committing:
            return False
        at = max(now + patience, self._budget.free_at)
        if not self._first:
            at = max(at, self._shared.free_at)
        if at >= self._awaited_at:
            return False
        self._awaited_at = at
        self.at = min(self.at, at)
        return True

    def _await_commit(self, now: float) -> None:
        """Begin the awaited commit, unless it is not the first and others have spent the budget."""
        if self._shared.free_at > now and not self._first:
            self._awaited_at = self._shared.free_at
            return
        self._awaited_at = math.inf
        self._gate.commit_due = True
        if self._gate.in_flight and not self._gate.async_commit:
            self._waiting_since = min(self._waiting_since, now)

    def commit_begins(self, now: float) -> None:
        self._committing = True
        self._awaited_at = math.inf
        self._waited = max(0.0, now - self._waiting_since)
        self._waiting_since = math.inf

    def commit_ended(self, now: float, took: float, here: float) -> None:
        """Note that the commit was written and acknowledged, or has failed.

        It took ``took`` seconds in all, and ``here`` seconds in this process. The first one costs
        other tasks nothing: after a takeover all have one, and more events come just after it.
        """
        self._committing = False
        self._budget.spend(self._waited + took, now)
        if not self._first:
            self._shared.spend(here, now)
        self._first = False

    # -- windows -----------------------------------------------------------------------------

    def begin_windows(self, now: float) -> None:
        """Begin windows, if the processor has any; called when the task has started."""
        interval = self._task.settings.window
        if interval and self._processor.windowable and not self._windows_over:
            self._windows = Tick(interval, now)
            self.at = min(self.at, self._windows.at)

    def window_ended(self, now: float) -> None:
        self._windows.due(now)  # ticks that were missed meanwhile count as this one
        self._gate.window_due = False
        self.owing = True

    def timers_ended(self, *, over: bool) -> None:
        """Note the end of a part of the timers; ``over`` is True for the last one."""
        self.timers_owing = True
        if not over and not self._events_first:
            self._gate.timer_due = True

    def event_begins(self) -> None:
        self.owing = self.timers_owing = False

    def end_windows(self) -> None:
        """Have no further windows, also if the task has not started yet."""
        self._windows_over = True
        self._gate.window_due = False
        self._windows.stop()
