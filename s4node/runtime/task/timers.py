"""What a task has to do by time: windows, commits, timers, and events that take too long. Pure.

Rules
- What is due is told to the gate, which says when it may run. A slice that is under way ends for
  it.
- Ticks coalesce: however many were missed, it is due once, and next at a tick of the same beat.
- Windows begin with the task. What was missed while one ran was that one; where they take all the
  time, events get their turn between two.
- What others wait for (producers for verdicts, receivers for events) is committed as soon as the
  task has spent less than a tenth of its time in commits, and all tasks of its container together
  less than a quarter of the process's; the rest at the ticks. All commits count, whatever asked for
  them. Where such a commit waits for events that are outstanding, that counts for the task as well,
  for no other event begins.
- The timers of a busy task wait until it wakes the loop. They come in parts; where events wait,
  some get their turn between two parts, and a task that drains can end: also where a round takes
  longer than its interval.
"""

from __future__ import annotations

import math
from typing import Protocol

from s4node.app.app import App
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.gate import Gate, Op
from s4node.runtime.task.processor import Processor
from s4node.runtime.task.settings import TaskSettings

OF_TASK = 0.1
"""The part of a task's time."""

OF_CONTAINER = 0.25
"""The part of the time of a container's process."""

ASIDE = 0.0004
"""Seconds that a commit costs beside what it does itself: a thread, turns of the loop, and smaller
frames, with verdicts of their own, for what would have left together."""

SPAN = 1.0
"""Seconds of which that part may be spent at once, and after which any commit is paid back."""

_BUSY, _AT_EASE = 0.1, 0.3
"""Where a process has nothing to do in less of the time than the first it is busy; in more than
the second, all of the part may go to commits. A wait for Python's lock counts as nothing to do."""

_OF_THE_BUSY = 0.08
"""What is left of the part where the process is busy."""

_LOOKING_SECONDS = 0.1


class Rests(Protocol):
    """Measures for how many seconds a process has had nothing to do."""

    seconds: float


class CommitBudget:
    """The ``part`` of the time that may go to commits which others wait for.

    ``free_at`` is when the next one may begin. The time that is left grows evenly, up to the part
    of a second: with a plain sum over the last second, commits would follow each other until it is
    spent, and none would begin for the rest of the second. What a commit took beyond that is paid
    back within a second.

    ``rest`` says for how many seconds the process has had nothing to do until now. Where it had
    something to do at nearly all times, commits take the time of events, and the part is smaller.
    """

    __slots__ = ("_looked_at", "_most", "_rest", "_rest_before", "free_at", "part")

    def __init__(self, part: float, now: float, rest: Rests | None = None) -> None:
        self.part = self._most = part
        self.free_at = now - SPAN
        self._rest = rest
        self._rest_before = 0.0
        self._looked_at = now

    def spend(self, seconds: float, now: float) -> None:
        """Subtract what a commit took that ends now."""
        if self._rest is not None and now - self._looked_at >= _LOOKING_SECONDS:
            self._look(self._rest.seconds, now)
        free_at = max(self.free_at, now - SPAN) + (seconds + ASIDE) / self.part
        self.free_at = min(free_at, now + SPAN)

    def _look(self, rest: float, now: float) -> None:
        resting = (rest - self._rest_before) / (now - self._looked_at)
        share = min(1.0, (resting - _BUSY) / (_AT_EASE - _BUSY))
        self.part = self._most * max(share, _OF_THE_BUSY)
        self._rest_before, self._looked_at = rest, now


class Tick:
    """Comes every ``interval`` seconds, at ``at`` next; never, where the interval is 0."""

    __slots__ = ("at", "interval")

    def __init__(self, interval: float, now: float) -> None:
        self.interval = interval
        self.at = now + interval if interval else math.inf

    def due(self, now: float) -> bool:
        """Whether it has come; if so it comes next after ``now``."""
        if self.at > now:
            return False
        self.at += ((now - self.at) // self.interval + 1) * self.interval
        return True

    def stop(self) -> None:
        """It does not come any more."""
        self.at = math.inf


class Timed(Protocol):
    """What a timetable knows of its task."""

    name: str
    app: App
    settings: TaskSettings
    gate: Gate
    backlog: Backlog
    processor: Processor

    def choose(self) -> bool:
        """Have an event that may be processed, if there is one."""
        ...


class Timers:
    """That of ``task``; times are those of its clock, in seconds.

    ``shared`` is the budget for commits of all tasks of a container. ``together`` says that events
    may be outstanding, and so may take too long: ``timeout_at`` is when to look. ``at`` is when the
    next tick comes, timers apart. ``owing`` says that no event has begun since the last window,
    ``timers_owing`` since a part of the timers.
    """

    __slots__ = (
        "_awaited_at",
        "_budget",
        "_commits",
        "_committing",
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
        self._windows = Tick(0, now)  # before the task has started there is none
        self._windows_over = False
        self._commits = Tick(task.settings.commit, now)
        self._budget = CommitBudget(OF_TASK, now)
        self._shared = shared or CommitBudget(OF_CONTAINER, now)
        self._awaited_at = math.inf  # when a commit is due that others wait for
        self._waiting_since = math.inf  # when such a commit was due and events were outstanding
        self._waited = 0.0  # how long the commit under way had waited for them
        self._committing = False
        self.timeout_at = math.inf
        if task.settings.callback_timeout and together:
            self.timeout_at = now + task.settings.callback_timeout
        self.at = min(self._commits.at, self.timeout_at)

    @property
    def timed(self) -> bool:
        """Whether the processor has timers."""
        return self._processor.timed

    @property
    def next_due(self) -> float:
        """When to call ``check_due`` at the latest; infinity if never."""
        gate = self._gate
        if not self._processor.timed or gate.in_flight or gate.running is not None:
            return self.at
        due = self._processor.next_due
        return self.at if due is None or self._events_first else min(due, self.at)

    @property
    def _events_first(self) -> bool:
        """Whether events, or the task's own end, come before further timers."""
        if not self.timers_owing:
            return False
        return self._task.choose() or (self._gate.ends and not self._task.backlog.waiting)

    def check_due(self, now: float) -> bool:
        """Tell the gate what is due; True if something is."""
        gate = self._gate
        if self.at <= now:
            self._tick(now)
        if self._processor.timed and gate.running is not Op.TIMER:  # which says itself what is left
            due = self._processor.next_due
            if due is not None and due <= now and not self._events_first:
                gate.timer_due = True
        return gate.timer_due or gate.window_due or gate.commit_due

    def _tick(self, now: float) -> None:
        """Windows and commits that are due; however many were missed, they are one."""
        if self._windows.due(now):
            self._gate.window_due |= not (self.owing and self._task.choose())
        if self._commits.due(now):
            self._gate.commit_due = True  # others may have processed what it has read
        if self._awaited_at <= now:
            self._await_commit(now)
        self.at = min(self._windows.at, self._commits.at, self._awaited_at, self.timeout_at)

    # -- commits -----------------------------------------------------------------------------

    @property
    def commit_scheduled(self) -> bool:
        """Whether a commit is to begin that others wait for, or it is known only later when."""
        return self._committing or self._awaited_at < math.inf

    def schedule_commit(self, now: float, patience: float = 0.0) -> bool:
        """Others wait for a commit: have one after so many seconds, or as soon as the budgets then
        allow it. Return whether that is earlier than before."""
        if self._committing:
            return False
        at = max(now + patience, self._budget.free_at, self._shared.free_at)
        if at >= self._awaited_at:
            return False
        self._awaited_at = at
        self.at = min(self.at, at)
        return True

    def _await_commit(self, now: float) -> None:
        """A commit was to begin now; other tasks may have spent the time for it."""
        if self._shared.free_at > now:
            self._awaited_at = self._shared.free_at
            return
        self._awaited_at = math.inf
        self._gate.commit_due = True
        if self._gate.in_flight and not self._gate.async_commit:
            self._waiting_since = min(self._waiting_since, now)

    def commit_begins(self, now: float) -> None:
        """What a commit holds is taken."""
        self._committing = True
        self._awaited_at = math.inf
        self._waited = max(0.0, now - self._waiting_since)
        self._waiting_since = math.inf

    def commit_ended(self, now: float, took: float, here: float) -> None:
        """The commit is written and told, or has failed. It took so many seconds, so many of them
        in this process."""
        self._committing = False
        self._budget.spend(self._waited + took, now)
        self._shared.spend(here, now)

    # -- windows -----------------------------------------------------------------------------

    def begin_windows(self, now: float) -> None:
        """The task has started: from now on it has windows, where there is anything to run."""
        interval = self._task.settings.window
        if interval and self._processor.windowable and not self._windows_over:
            self._windows = Tick(interval, now)
            self.at = min(self.at, self._windows.at)

    def window_ended(self, now: float) -> None:
        """A window has ended."""
        self._windows.due(now)  # what was missed meanwhile was this one
        self._gate.window_due = False
        self.owing = True

    def timers_ended(self, *, over: bool) -> None:
        """A part of the timers has ended; ``over`` says whether it was the last one."""
        self.timers_owing = True
        if not over and not self._events_first:
            self._gate.timer_due = True

    def event_begins(self) -> None:
        """Events have their turn."""
        self.owing = self.timers_owing = False

    def end_windows(self) -> None:
        """Have no further windows, nor any if the task has not started."""
        self._windows_over = True
        self._gate.window_due = False
        self._windows.stop()
