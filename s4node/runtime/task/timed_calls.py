"""The calls of PEs that time makes due: ``on_window``, ``on_timer`` and ``on_time``. Pure.

Rules
- Event time moves as the first part of a round: the watermarks, then the windows that end, then
  timers. ``on_time`` follows.
- A round is made in parts; events go on in between, for its first second while windows and timers
  are called: then they wait. The windows of a part are done after its calls.
- Before an event of a stream with ``order="time"``, the calls of its key that are due before it are
  made, whatever the watermark is; see ``before``.
- A call that has failed before is left out: its window or timer is done, and kept for the next
  start if the failure says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from s4node.app.app import App
from s4node.app.instances import Instances
from s4node.app.pe_timers import Timer
from s4node.app.window_instances import Due, FailedWindows, WindowInstances
from s4node.runtime.event_time.task_times import TaskTimes
from s4node.runtime.task.poison.failed_hooks import FailedHooks, HookCall, LeftOutCall

_SHARED = 1.0
"""Seconds for which events come between the calls of windows and timers."""


class Calls(NamedTuple):
    """A hook that is due on instances of a PE, and what to do after all of them.

    ``timer`` is that of ``on_timer``, which also gets its name. ``work`` says how much that is,
    with what was done besides.
    """

    name: str
    hook: Callable[..., Any]
    instances: Sequence[Any]
    done: Callable[[Sequence[Any]], None] | None = None
    work: int = 1
    timer: Timer | None = None

    def what(self, instance: Any) -> HookCall | None:
        """The identity of a call; None for ``on_time``, which is not left out."""
        return None if self.name == "on_time" else _what(instance, self.timer)


@dataclass
class Interval:
    """The next firing of a prototype's ``on_time``."""

    instances: Instances
    on_time: Callable[[Any], Any]
    interval: float
    due: float


class TimedCalls:
    """The calls that are due in a task.

    ``have(pe, keys)`` loads saved instances into memory; its owner sets it if there are any.
    ``failed`` has the calls to be left out.
    """

    def __init__(
        self,
        app: App,
        partition: int,
        instances: Mapping[str, Instances],
        times: TaskTimes,
        clock: Callable[[], float],
    ) -> None:
        self.have: Callable[[str, Iterable[Any]], None] | None = None
        self.failed = FailedHooks()
        self._limit = self._left = 0  # the work of the step, and what is left of it
        self.intervals = [
            Interval(instances[name], p.on_time, p.timer_interval, clock() + p.timer_interval)
            for name, (p, _) in app.prototypes.items()
            if p.timer_interval and p.on_time is not None
        ]
        self._partition = partition
        self._instances = instances
        self._times = times
        self._clock = clock
        self._round: Iterator[Calls] | None = None
        self._left_out: list[LeftOutCall] = []
        self._slow: dict[str, bool] = {}  # PEs with slow timers, and whether that was reported
        self._ending_since = math.inf  # since when windows and timers are called
        self._spent_before = 0.0  # seconds that earlier steps have taken
        self._step_began = 0.0  # when the current one began

    @property
    def in_round(self) -> bool:
        return self._round is not None

    @property
    def late(self) -> bool:
        """True if windows and timers have been called for longer than events come between.

        Else events that lead to more calls than there is time for would open windows without end.
        """
        return self._clock() - self._ending_since > _SHARED

    def begin_step(self) -> None:
        self._step_began = self._clock()

    def end_step(self) -> None:
        self._spent_before = self._spent

    @property
    def taken(self) -> int:
        """The work of the last step: calls, and other; at least 1."""
        return max(1, self._limit - self._left)

    def take(self, limit: int) -> Iterator[Calls]:
        """Take calls of the round, and other work, up to ``limit``; it is over if less comes."""
        if self._round is None:
            self._round = self._calls()
        self._limit = self._left = limit
        while self._left > 0:
            calls = next(self._round, None)
            if calls is None:
                self._round = None
                return
            self._left -= calls.work
            if calls.instances:
                yield calls

    def before(self, name: str, key: Any, time: float) -> Iterator[Calls]:
        """The calls of a key that are due before its event at ``time``.

        The event is the next one of a slice whose instances are loaded when one is missed.
        """
        instances = self._instances[name]
        if isinstance(instances, WindowInstances):
            calls = self._ended(instances, instances.calls_before(key, time))
            yield from (each for each in calls if each.instances)
        elif instances.timers is not None:
            due = instances.timers.take_before(key, time)
            yield from self._fired(name, due, loaded=True)

    def left_out(self) -> list[LeftOutCall]:
        found, self._left_out = self._left_out, []
        return found

    def slow_timers(self) -> list[str]:
        found = [name for name, reported in self._slow.items() if not reported]
        self._slow.update(dict.fromkeys(found, True))
        return found

    @property
    def _spent(self) -> float:
        """Seconds that calls have taken, without the events that came between."""
        return self._spent_before + self._clock() - self._step_began

    def _calls(self) -> Iterator[Calls]:
        now = self._clock()
        if self._times.timed:
            self._ending_since = now
            if self._times.step():
                for windows in self._times.windows():
                    yield from self._failed_before(windows)
                    yield from self._ended(windows, windows.early_calls(self._most))
                    yield from self._ended(windows, windows.calls(self._most))
                for name, instances in self._instances.items():
                    if instances.timers is not None:
                        yield from self._fired(name, instances.timers.take_due())
                self._times.windows_ended()
            self._ending_since = math.inf
        for each in self.intervals:
            if each.due <= now:
                missed = int((now - each.due) // each.interval)  # ticks coalesce
                each.due += (missed + 1) * each.interval
                yield from self._ticked(each)

    def _most(self) -> int:
        return self._left

    def _ticked(self, each: Interval) -> Iterator[Calls]:
        before = self._spent
        for instance in list(each.instances.values()):
            if each.instances.get(instance.key) is instance:  # not removed meanwhile
                if each.instances.keeper is not None:
                    each.instances.keeper.touch((instance.key,))
                yield Calls("on_time", each.on_time, (instance,))
        if self._spent - before >= each.interval:
            self._slow.setdefault(each.instances.prototype.cls.__name__, False)

    def _failed_before(self, windows: WindowInstances) -> Iterator[Calls]:
        on_window = windows.prototype.on_window
        assert on_window is not None
        for due in windows.failed.calls():
            yield Calls("on_window", on_window, *self._without_failed(due, None))

    def _ended(self, windows: WindowInstances, found: Iterable[Due]) -> Iterator[Calls]:
        on_window, failed = windows.prototype.on_window, windows.failed
        assert on_window is not None
        for due in found:
            instances, done, work = self._without_failed(due, failed) if self.failed.calls else due
            then = partial(_over, failed, done) if failed else done
            yield Calls("on_window", on_window, instances, then, work)

    def _without_failed(self, due: Due, keeper: FailedWindows | None) -> Due:
        """Leave out the calls that have failed; ``keeper`` gets those to be made again, if any."""
        left = []
        for each in due.instances:
            what = _what(each)
            if what not in self.failed.calls:
                left.append(each)
                continue
            kept = self._keeps(what)
            if kept and keeper is not None:
                keeper.add(each)
            if due.done is not None and (keeper is not None or not kept):
                due.done([each])
        return due._replace(instances=left, work=due.work - len(due.instances) + len(left))

    def _fired(self, name: str, taken: Iterable[Timer], *, loaded: bool = False) -> Iterator[Calls]:
        """The calls of ``on_timer`` of one PE, also on instances that are not in memory.

        ``loaded``: the next event of the running slice is of the same key.
        """
        instances = self._instances[name]
        on_timer, timers, keeper = instances.prototype.on_timer, instances.timers, instances.keeper
        assert on_timer is not None
        assert timers is not None
        for timer in taken:
            instance = dict.get(instances, timer.key)
            if instance is None:
                if loaded and instances.fetch is not None:
                    instances.fetch()
                elif not loaded and self.have is not None:
                    self.have(name, [timer.key])
                instance = dict.get(instances, timer.key)
                if instance is None:
                    continue
            if keeper is not None and instance._mark is not keeper.mark:
                keeper.touch_one(instance)
            if not self.failed.calls or (what := _what(instance, timer)) not in self.failed.calls:
                yield Calls("on_timer", on_timer, (instance,), None, 1, timer)
            elif self._keeps(what):
                timers.keep(timer)

    def _keeps(self, what: HookCall) -> bool:
        """Leave a call out; return True if it is made again at the next start."""
        left = self.failed.left_out(what, self._partition)
        if left is not None:
            self._left_out.append(left)
        return self.failed.kept(what)


def _what(instance: Any, timer: Timer | None = None) -> HookCall:
    if timer is not None:
        what = f"timer {timer.name!r} at {timer.time:.15g}"
    else:
        start, end = instance._span
        again = f", round {instance._round}" if instance._round else ""
        what = f"window {start:.15g} to {end:.15g}{again}"
    name = "on_window" if timer is None else "on_timer"
    return HookCall(name, instance._prototype.name, instance.key, what)


def _over(
    failed: FailedWindows, done: Callable[[Sequence[Any]], None] | None, instances: Sequence[Any]
) -> None:
    failed.drop_all_within(instances)
    if done is not None:
        done(instances)
