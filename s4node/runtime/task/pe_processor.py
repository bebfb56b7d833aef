"""The PEs of an app in one partition: their instances, dispatch plans, triggers and timers. Pure.

Rules
- A PE that raises fails the app, naming the place. A KeyFinder that fails on an event from outside
  refuses only that event.
- The bounds of caches are applied after each slice, as a part of it, so that ``on_remove`` may put.
  For a parallel stream they are applied when no handler is left; before that, only to keys that
  have no handler.
- Durable instances are read from the store before or while their events are processed, all of a
  slice at once; see ``pe_state``.
- Handlers of a parallel stream overlap, in order for each key; no other stream's run beside them.
- What time makes due is called between slices; see ``timed_calls``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from s4node.app.app import App
from s4node.app.handlers import check_returned
from s4node.app.instances import BoundedInstances, Instances
from s4node.app.pe_timers import PeTimers
from s4node.app.plan import dispatch, graph
from s4node.app.plan.pe_costs import PROBED, PeCosts
from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype
from s4node.app.stream import OutputStream, begin_put, end_put
from s4node.app.window_instances import WindowInstances
from s4node.errors import HeldBackBeyond, NotRestorable, ProcessingError, is_signal
from s4node.events.event import EventBatch, handled
from s4node.events.routing import failed_at, key_failure
from s4node.runtime.event_time.task_times import TaskTimes
from s4node.runtime.task.gate import END_OF_STREAM, PROCESS, TIMER, Op
from s4node.runtime.task.pe_state import PeState
from s4node.runtime.task.poison.failed_hooks import FailedHooks, HookCall, LeftOutCall
from s4node.runtime.task.processor import InFlightEvent, Mode, Processor
from s4node.runtime.task.timed_calls import Calls, TimedCalls

if TYPE_CHECKING:
    from s4node.state.task_state import TaskState


class PeProcessor(Processor):
    """Runs the PEs of ``app`` in a partition.

    ``parallel`` maps a stream to the number of its handlers that may be in flight. ``name`` is the
    task's. ``wall`` gives Unix time.
    """

    timed = False

    def __init__(
        self,
        app: App,
        partition: int,
        clock: Callable[[], float],
        parallel: Mapping[str, int] | None = None,
        name: str = "",
        wall: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(len(app.streams))
        self._name = name or f"Partition {partition}"
        self._app = app
        self._partition = partition
        self._clock = clock
        self._parallel = dict(parallel or {})
        self._finders = {name: graph.finder_of(app.streams[name]) for name in self._parallel}
        self.instances = {
            name: dispatch.make_instances(prototype, partition, clock, wall)
            for name, (prototype, _) in app.prototypes.items()
        }
        for windows in self._windowed():
            if windows.prototype.own is not None:
                windows.own = self.instances[windows.prototype.own.name]
        self.triggers = {
            name: dispatch.TriggerState(prototype, clock)
            for name, (prototype, _) in app.prototypes.items()
            if prototype.triggers
        }
        for name, trigger in self.triggers.items():
            self.instances[name].gone = trigger.remove
        for name, (prototype, _) in app.prototypes.items():
            if prototype.on_timer is not None:
                timed = any(prototype in s.targets and s.time for s in app.streams.values())
                self.instances[name].timers = PeTimers(name, wall, event_time=timed)
        for name, each in self.instances.items():
            if dispatch.goes_by_order(app, each):
                hook = each.prototype.on_timer or each.prototype.on_window
                awaits = inspect.iscoroutinefunction(hook)
                each.before = partial(self._make_before if awaits else self._call_before, name)
        self.times = TaskTimes(app, self.instances, wall, clock)
        self.costs = PeCosts(clock)
        fed = [s for s in app.streams.values() if not isinstance(s, OutputStream)]
        self._plans = {s.name: dispatch.compile_plan(s, self.instances, self.triggers) for s in fed}
        self._bounded = [i for i in self.instances.values() if isinstance(i, BoundedInstances)]
        self._leaving = [each for each in self.instances.values() if each.prototype.awaits_remove]
        awaited = set(map(id, self._leaving))  # trimmed in steps that can wait
        self._trimmed = [i for i in self._bounded if id(i) not in awaited]
        self._calls = TimedCalls(app, partition, self.instances, self.times, clock)
        idles = any(p.cache_idle or p.ttl for p, _ in app.prototypes.values())
        self.timed = bool(self._calls.intervals) or idles or self.times.timed
        self._saved: PeState | None = None
        self._restoring: Iterator[None] = iter(())
        waits = bool(self._leaving) or any(
            inspect.iscoroutinefunction(each.on_time) for each in self._calls.intervals
        )
        waits = waits or any(
            inspect.iscoroutinefunction(hook)
            for p, _ in app.prototypes.values()
            for hook in (p.on_window, p.on_timer)
        )
        self._timer_mode = Mode.AWAIT if waits else Mode.LOOP

    def attach_state(self, state: TaskState) -> None:
        """Make the instances durable in ``state`` and restore singletons; ``restore`` follows."""
        self.times.restore(state)
        self._calls.have = self.have
        for windows in self._windowed():
            if windows.own is not None:
                windows.have = partial(self.have, windows.own.prototype.name)
        saved = self._saved = PeState(self._app, self.instances, self.triggers, state)
        self._restoring = saved.restore()
        for name in self._plans:
            stream = self._app.streams[name]
            savers = saved.savers(stream, parallel=self._parallel.get(name, 1) > 1)
            self._plans[name] = dispatch.compile_plan(stream, self.instances, self.triggers, savers)

    def restore(self, limit: int) -> bool:
        restored = sum(1 for _ in islice(self._restoring, limit))
        self.times.look_again()
        return restored == limit

    def _windowed(self) -> list[WindowInstances]:
        return [each for each in self.instances.values() if isinstance(each, WindowInstances)]

    def succeed(self, before: Processor) -> None:
        if isinstance(before, PeProcessor):
            self.costs = before.costs

    def cost_statistics(self) -> dict[str, Any]:
        return self.costs.statistics()

    def leave_out(self, failed: FailedHooks) -> None:
        self._calls.failed = failed

    def events_done(self, batch: EventBatch) -> None:
        if self.times.timed:
            self.times.events_done(batch, batch.events, last=True)

    def have(self, name: str, keys: Iterable[Any]) -> None:
        assert self._saved is not None
        self._saved.have(name, keys)

    def instance_of(self, name: str, key: Any) -> ProcessingElement | None:
        """An instance, for reading only: the one in memory, or a copy of the saved one, or None."""
        instances = self.instances[name]
        if isinstance(instances, WindowInstances):
            return next(iter(instances.of_key(key)), None)
        found = dict.get(instances, key)
        if found is None and self._saved is not None:
            found = self._saved.instance_of(name, key)
        return found

    def mode(self, op: Op, stream: str) -> Mode:
        if op is not PROCESS:
            return self._timer_mode
        if self._parallel.get(stream, 1) > 1:
            return Mode.TOGETHER
        return Mode.AWAIT if self._plans[stream].is_async else Mode.LOOP

    # -- slices ------------------------------------------------------------------------------

    async def process(self, batch: EventBatch, events: list[Any]) -> int:
        plan = self._plans[batch.stream]
        run, waits, count = plan.run, plan.is_async, len(events)
        plan.slices += 1
        plan.unmeasured += count
        probe = None
        if self.times.timed:
            self.times.events_begin()
        if self._saved is not None:
            self._saved.before(batch.stream, events)
        token = begin_put(self.put)
        try:
            some = it = iter(events)
            if plan.slices >= plan.next_probe:
                probe = self.costs.sample(plan, count)
                run, some = probe.run, islice(it, PROBED)
            handled.set((self._name, batch, it, count))
            try:
                while True:
                    try:
                        if waits:
                            await run(some)
                        else:
                            run(some)
                        if some is it:
                            break
                        run, some = plan.run, it
                    except BaseException as error:
                        if is_signal(error):
                            raise
                        self.failed(batch, error, batch.at + failed_at(it, count))
            finally:
                handled.set(None)
            if self.times.timed:
                last = batch.at + count >= len(batch.events)
                self.times.events_done(batch, events, last=last)
            if waits:
                await self.tidy()
            elif self._trimmed:
                self._trim(self._trimmed)
            if probe is not None:
                self.costs.measured(batch.stream, plan, probe, min(count, PROBED))
        finally:
            end_put(token)
        return count

    def failed(self, batch: EventBatch, error: BaseException, index: int) -> None:
        """Refuse the event if its key was not found, or raise the error that stops the app."""
        if isinstance(error, ProcessingError):  # of a call before the event
            raise error
        event, position = batch.events[index], batch.position(index)
        if dispatch.is_key_failure(error):
            if batch.receipt is None:
                finder = f"KeyFinder of {batch.stream!r}"
                failure = ProcessingError(self._app.name, finder, None, position, error)
                failure.at = batch, index
                raise failure
            self.refused += 1
            why = f"{key_failure(error)} (event {event!r})"
            batch.receipt.refuse(batch.number(index), why, event)
            return
        pe = dispatch.blame(error)
        if isinstance(error, AttributeError) and pe is not None and error.obj is pe:
            error.add_note(f"declare it in the PE class: {error.name}: type = default")
        name = type(pe).__name__ if pe is not None else f"a PE of {batch.stream!r}"
        key: object = pe.key if pe is not None else None
        if isinstance(error, NotRestorable):  # there is no instance yet
            name, key = error.pe, error.key
        self.costs.failed(name if pe is None else pe._prototype.name, "on_event")
        failure = ProcessingError(self._app.name, name, key, position, error)
        if not isinstance(error, HeldBackBeyond):
            failure.at = batch, index
        raise failure

    def _trim(
        self, bounded: Iterable[Instances], in_use: Collection[Hashable] | None = None
    ) -> None:
        """Apply the bounds of caches, within a step, so that ``on_remove`` may put.

        While keys are ``in_use``, only the size bound is applied, and only to other keys.
        """
        for instances in bounded:
            try:
                if in_use is None:
                    instances.trim()
                else:
                    instances.shrink(in_use)
            except BaseException as error:
                if is_signal(error):
                    raise
                raise self._hook_failed("on_remove", error) from error

    def crowded(self, in_use: int) -> bool:
        return any(instances.crowded(in_use) for instances in self._bounded) or any(
            instances.leaving for instances in self._leaving
        )

    async def tidy(self, in_use: Collection[Hashable] | None = None) -> None:
        """Apply the bounds of all caches, and await ``on_remove`` of instances that leave.

        Handlers of keys that are not ``in_use`` may begin meanwhile.
        """
        self._trim(self._bounded, in_use)
        for instances in self._leaving:
            try:
                await instances.finish_leaving()
            except BaseException as error:
                if is_signal(error):
                    raise
                raise self._hook_failed("on_remove", error) from error

    # -- handlers that overlap ---------------------------------------------------------------

    def limit(self, stream: str) -> int:
        return self._parallel[stream]

    def set_order_key(self, entry: InFlightEvent) -> None:
        """Set the event's place to its key; the dispatch reports a bad key."""
        try:
            place: Hashable = self._finders[entry.batch.stream](entry.event)
            hash(place)
        except BaseException as error:
            if is_signal(error):
                raise
            return
        entry.place = place

    def style(self, stream: str) -> Mode:
        """AWAIT for async handlers; plain ones overlap in threads."""
        return Mode.AWAIT if self._plans[stream].is_async else Mode.THREAD

    def before_event(self, entry: InFlightEvent) -> None:
        """Load the event's instances into memory."""
        self.times.events_begin()
        if self._saved is not None:
            self._saved.before_one(entry.batch.stream, entry.event)

    def after_event(self, entry: InFlightEvent) -> None:
        """Mark the event's instances again: a commit may have been taken while it was processed."""
        self.times.look_again()
        if self._saved is not None:
            self._saved.before_one(entry.batch.stream, entry.event)

    async def process_one(self, entry: InFlightEvent) -> None:
        handled.set((self._name, entry.batch, None, entry.index))
        plan = self._plans[entry.batch.stream]
        ran = plan.run(iter([entry.event]))
        if plan.is_async:
            await ran

    # -- timers ------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        if self._calls.in_round:  # the rest of a round
            return -math.inf
        of_times = self.times.next_due if self.times.timed else None
        if not self._calls.intervals and not self._bounded:
            return of_times
        due = [each.due for each in self._calls.intervals]
        due += [at for i in self._bounded if (at := i.next_expiry) is not None]
        if of_times is not None:
            due.append(of_times)
        return min(due, default=None)

    @property
    def calls_first(self) -> bool:  # type: ignore[override]
        """True if events wait until the calls that are due were made."""
        return self._calls.late

    async def run(self, op: Op, limit: int) -> bool:
        """Call the hooks of up to ``limit`` instances that are due; True when all were called.

        Expired instances are removed at the end of a round. At the end of the inputs, all windows
        end, in a round of their own.
        """
        calls, ends = self._calls, op is END_OF_STREAM and self.times.timed
        if not ends and op is not TIMER:
            return True
        if ends and not calls.in_round:
            self.times.finish_inputs()
        token = begin_put(self.put)
        calls.begin_step()
        try:
            await self._make(calls.take(limit))
            if not calls.in_round:
                await self.tidy()
        finally:
            calls.end_step()
            self.called = calls.taken
            self.times.look_again()
            end_put(token)
        over = not calls.in_round
        return over and (not ends or self.times.inputs_finished())

    async def _make(self, found: Iterable[Calls]) -> None:
        waits = self._timer_mode is Mode.AWAIT
        made, prototype, name = 0, None, ""
        began = self._clock()
        for calls in found:
            if calls.instances[0]._prototype is not prototype or calls.name != name:
                began = self._count_calls(prototype, name, began, made)
                made, prototype, name = 0, calls.instances[0]._prototype, calls.name
            made += len(calls.instances)
            hook, timer = calls.hook, calls.timer
            for instance in calls.instances:
                try:
                    result = hook(instance) if timer is None else hook(instance, timer.name)
                    if result is not None:
                        if waits and inspect.isawaitable(result):
                            await result
                        else:
                            check_returned(instance, result)
                except BaseException as error:
                    if is_signal(error):
                        raise
                    raise self._call_failed(calls, instance, error) from error
            if calls.done is not None:
                calls.done(calls.instances)
        self._count_calls(prototype, name, began, made)

    def _count_calls(self, pe: Prototype | None, hook: str, began: float, made: int) -> float:
        """Count calls of a PE since ``began``, if there are any; return the time."""
        now = self._clock()
        if pe is not None:
            self.costs.add(pe.name, hook, now - began, made)
        return now

    def _call_before(self, name: str, key: Any, time: float) -> None:
        with suppress(StopIteration):  # it awaits nothing
            self._make_before(name, key, time).send(None)

    async def _make_before(self, name: str, key: Any, time: float) -> None:
        """Make the calls of a key that are due before its event at ``time``."""
        of_event = handled.get()
        handled.set(None)
        await self._make(self._calls.before(name, key, time))
        handled.set(of_event)

    def left_out_calls(self) -> Iterable[LeftOutCall]:
        return self._calls.left_out()

    def slow_timers(self) -> list[str]:
        return self._calls.slow_timers()

    def _call_failed(
        self, calls: Calls, instance: ProcessingElement, error: BaseException
    ) -> ProcessingError:
        what = calls.what(instance)
        if what is None:
            return self._hook_failed(calls.name, error, instance)
        return self._hook_failed(f"{calls.name} of {what.what}", error, instance, what)

    def _hook_failed(
        self,
        hook: str,
        error: BaseException,
        instance: ProcessingElement | None = None,
        call: HookCall | None = None,
    ) -> ProcessingError:
        pe = instance if instance is not None else dispatch.blame(error)
        if pe is not None:
            self.costs.failed(pe._prototype.name, hook.partition(" ")[0])
        return ProcessingError(
            self._app.name,
            type(pe).__name__ if pe is not None else "a PE",
            pe.key if pe is not None else None,
            f"{hook} in partition {self._partition}",
            error,
            of_event=False,
            call=call,
        )

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Call ``on_create`` of singletons; windows are created at their first event."""
        token = begin_put(self.put)
        resumed = self._saved.resumed if self._saved is not None else ()
        try:
            for name, instances in self.instances.items():
                prototype = instances.prototype
                if prototype.windows is not None or name in resumed:
                    continue
                if prototype.singleton and prototype.on_create is not None:
                    singleton = instances.singleton()
                    if instances.keeper is not None:
                        instances.keeper.touch((None,))
                    try:
                        result = prototype.on_create(singleton)
                        if inspect.isawaitable(result):
                            await result
                    except BaseException as error:
                        if is_signal(error):
                            raise
                        raise self._hook_failed("on_create", error, singleton) from error
        finally:
            end_put(token)
