"""A partition task: the PE instances of its keys, their inputs, timers, and what they emit.

Rules
- One step does one thing: a slice of a batch, or a slice of a timer's instances. The gate says
  which; the loop says when and how much.
- Internal streams go before inputs. A stream that is held, because a stage it leads to is full or
  because its rate is used up, stops no other: its batch is put aside, where it stopped.
- What handlers put on streams is handed on after each slice.
- A PE that raises fails the app, naming the place. A KeyFinder that fails on an event from outside
  refuses that event only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from s4node import graph
from s4node.app import App
from s4node.container.chooser import MessageChooser, RoundRobin
from s4node.container.gate import Gate, Op
from s4node.container.pace import Pace
from s4node.errors import ProcessingError
from s4node.event import EventBatch
from s4node.executors.policy import UNLIMITED, Executor
from s4node.executors.stage import Stage, StageStatistics
from s4node.pe.element import ProcessingElement
from s4node.pe.instances import Instances
from s4node.routing import culprit, key_failure
from s4node.stream import InputStream, OutputStream, Stream, emitted

Deliver = Callable[["Task", str, Stream, list[Any]], None]
"""Hands on events: who put them, while processing which stream (or none), on what."""


@dataclass
class Timer:
    """The next firing of a prototype's ``on_time``."""

    instances: Instances
    on_time: Callable[[Any], Any]
    interval: float
    due: float


@dataclass(frozen=True)
class TaskStatistics:
    """What one task has done. Counts are events."""

    partition: int
    processed: int
    refused: int
    stages: dict[str, StageStatistics]
    instances: dict[str, int]
    unhandled: dict[str, int]


class Task:
    """One partition of an app.

    ``held`` are the streams that must not be processed now; it changes. ``rates`` are the executors
    that limit how fast the events of some streams may leave their stages. ``parallel`` says of
    which streams more than one handler may be outstanding.
    """

    def __init__(
        self,
        app: App,
        partition: int,
        *,
        stages: Mapping[str, Stage],
        clock: Callable[[], float],
        deliver: Deliver,
        held: Collection[str] = (),
        rates: Mapping[str, tuple[Executor, ...]] | None = None,
        parallel: Mapping[str, int] | None = None,
    ) -> None:
        self.app = app
        self.partition = partition
        self.gate = Gate()
        self.pace: Pace
        self.ready = False
        self.starts: dict[Any, Any] = {}
        self.ended_inputs: set[Hashable] = set()
        self.on_commit: Callable[[Task], None] | None = None
        self.processed = 0
        self.refused = 0
        self._clock = clock
        self._deliver = deliver
        self._held = held
        self._rates: dict[Hashable, tuple[Executor, ...]] = dict((rates or {}).items())
        self._parallel = dict(parallel or {})
        self._finders = {name: graph.finder_of(app.streams[name]) for name in self._parallel}
        self.on_offer: Callable[[], None] | None = None  # of a parallel run
        self._may = None if isinstance(held, tuple) and not rates else self._may_run
        self.resume_at: float | None = None  # when a rate gives leave again
        self.instances = {
            name: graph.make_instances(prototype, partition, clock)
            for name, (prototype, _) in app.prototypes.items()
        }
        self._triggers = {
            name: graph.TriggerState(prototype, clock)
            for name, (prototype, _) in app.prototypes.items()
            if prototype.triggers
        }
        for name, trigger in self._triggers.items():
            self.instances[name].gone = trigger.forget
        fed = [s for s in app.streams.values() if not isinstance(s, OutputStream)]
        self.plans = {s.name: graph.compile_plan(s, self.instances, self._triggers) for s in fed}
        self.stages: dict[Hashable, Stage] = dict(stages.items())
        self._inner = [s.name for s in fed if not isinstance(s, InputStream)]
        self._inner_chooser: MessageChooser[Hashable] = RoundRobin()
        self._outer_chooser: MessageChooser[Hashable] = RoundRobin()
        self._offered: set[Hashable] = set()
        self._stream_of: dict[Hashable, str] = {name: name for name in stages}
        self.emitted: list[list[Any]] = [[] for _ in app.streams]
        self._streams = list(app.streams.values())
        self._bounded = [i for i in self.instances.values() if type(i) is not Instances]
        self._leaving = [
            i for i in self.instances.values() if inspect.iscoroutinefunction(i.prototype.on_remove)
        ]
        awaited = set(map(id, self._leaving))  # trimmed in steps that can wait
        self._trimmed = [i for i in self._bounded if id(i) not in awaited]
        self._batch: EventBatch | None = None
        self.timers = [
            Timer(self.instances[name], p.on_time, p.timer_interval, clock() + p.timer_interval)
            for name, (p, _) in app.prototypes.items()
            if p.timer_interval and p.on_time is not None
        ]
        self.timed = bool(self.timers) or any(p.cache_idle for p, _ in app.prototypes.values())
        self._timing: Iterator[tuple[Timer, ProcessingElement]] | None = None

    # -- feeding -----------------------------------------------------------------------------

    def add_input(self, source: Hashable, stage: Stage, rates: tuple[Executor, ...] = ()) -> None:
        """Queue the batches of ``source``, a replayable input, in a stage of their own."""
        self.stages[source] = stage
        self._stream_of[source] = stage.settings.stream
        if rates:
            self._rates[source] = rates
            self._may = self._may_run

    def input_ended(self, source: Hashable) -> None:
        """Nothing more will be offered of a replayable input."""
        self.ended_inputs.add(source)

    def offer(self, batch: EventBatch) -> None:
        """Put a batch into its source's stage; the caller wakes the loop."""
        self.stages[batch.source].offer(batch, self._clock())
        if batch.source not in self._offered:
            self._update(batch.source)
        elif self.on_offer is not None:
            self.on_offer()

    def _update(self, name: Hashable) -> None:
        """Let the stage offer its next batch to its chooser."""
        batch = self.stages[name].take(self._clock())
        if batch is None:
            self._offered.discard(name)
            return
        self._offered.add(name)
        self._chooser(name).update(name, batch)

    def _chooser(self, name: Hashable) -> MessageChooser[Hashable]:
        return self._inner_chooser if name in self._inner else self._outer_chooser

    def _choose(self) -> bool:
        """Have a batch at hand, if there is one that may be processed."""
        batch = self._batch
        if batch is not None:
            if self._may is None or self._may_run(batch.source):
                return True
            self._batch = None  # the others go on meanwhile
            self._chooser(batch.source).update(batch.source, batch)
        chosen = self._inner_chooser.choose(self._may) or self._outer_chooser.choose(self._may)
        if chosen is None:
            return False
        batch = chosen[1]
        if not batch.at:
            batch.load()
        self._batch = batch
        return True

    def _may_run(self, name: Hashable) -> bool:
        if self._stream_of[name] in self._held:
            return False
        return name not in self._rates or self.allowance(name) > 0

    def allowance(self, name: Hashable) -> int:
        """How many events of a source may leave now, by its rate."""
        if name not in self._rates:
            return UNLIMITED
        now = self._clock()
        allowed = UNLIMITED
        for executor in self._rates[name]:
            one = executor.allowance(now)
            if one <= 0:
                at = executor.next_at(now)
                self.resume_at = at if self.resume_at is None else min(at, self.resume_at)
            allowed = min(allowed, one)
        return allowed

    @property
    def waiting(self) -> bool:
        """Whether batches wait that are not at hand."""
        return bool(len(self._inner_chooser) or len(self._outer_chooser))

    # -- stepping ----------------------------------------------------------------------------

    def next_op(self) -> Op:
        """What the task may do now."""
        if self.gate.in_flight:
            return Op.NOTHING  # the batch at hand is being processed
        return self.gate.next_op(self._choose(), self.waiting)

    @property
    def awaits(self) -> bool:
        """Whether the batch at hand, or the timer that is due, has ``async`` handlers."""
        if self.gate.timer_due:
            return bool(self._leaving) or any(
                inspect.iscoroutinefunction(timer.on_time) for timer in self.timers
            )
        return self._batch is not None and self.plans[self._batch.stream].is_async

    def process(self, limit: int) -> int:
        """Process up to ``limit`` events of the batch at hand; returns how many."""
        batch, events = self._slice(limit)
        run = self.plans[batch.stream].run
        token = emitted.set(self.emitted)
        try:
            it = iter(events)
            while True:
                try:
                    run(it)
                    break
                except Exception as error:
                    self.failed(batch, error, batch.at + culprit(it, len(events)))
            self._trim()
        finally:
            emitted.reset(token)
        return self._processed(batch, len(events))

    async def process_async(self, limit: int) -> int:
        """As process, for plans with ``async`` handlers."""
        batch, events = self._slice(limit)
        run = self.plans[batch.stream].run
        token = emitted.set(self.emitted)
        try:
            it = iter(events)
            while True:
                try:
                    await run(it)
                    break
                except Exception as error:
                    self.failed(batch, error, batch.at + culprit(it, len(events)))
            await self._trim_async()
        finally:
            emitted.reset(token)
        return self._processed(batch, len(events))

    def _slice(self, limit: int) -> tuple[EventBatch, list[Any]]:
        batch = self._batch
        assert batch is not None
        events = batch.events
        if batch.source in self._rates:
            limit = max(1, min(limit, self.allowance(batch.source)))
        if batch.at or limit < len(events):
            events = events[batch.at : batch.at + limit]
        return batch, events

    def _processed(self, batch: EventBatch, count: int) -> int:
        """Count a slice; at the end of the batch acknowledge it and let the next be offered."""
        self.hand_on(batch.stream)
        for executor in self._rates.get(batch.source, ()):
            executor.left(count)
        before = batch.at
        batch.at += count
        self.processed += count
        if batch.at < len(batch.events):
            self.stages[batch.source].passed(count)
        else:
            self.stages[batch.source].passed(batch.size - before, batch.bytes)
            self._batch = None
            self._update(batch.source)
            if batch.receipt is not None:
                batch.receipt.done()
        return count

    def _trim(self) -> None:
        """Apply the caches' bounds, as a part of a step, so that ``on_remove`` may put."""
        for instances in self._trimmed:
            try:
                instances.trim()
            except Exception as error:
                raise self._hook_failed("on_remove", error) from error

    async def _trim_async(self) -> None:
        """As _trim, and await the ``on_remove`` of all that leaves."""
        self._trim()
        for instances in self._leaving:
            try:
                instances.trim()
                await instances.finish_leaving()
            except Exception as error:
                raise self._hook_failed("on_remove", error) from error

    def hand_on(self, source: str = "", put: list[list[Any]] | None = None) -> None:
        """Hand on what handlers have put on streams, while they processed ``source``."""
        put = self.emitted if put is None else put
        for index, events in enumerate(put):
            if events:
                put[index] = []
                self._deliver(self, source, self._streams[index], events)

    # -- what a parallel run calls -------------------------------------------------------------

    @property
    def batch(self) -> EventBatch | None:
        """The batch at hand."""
        return self._batch

    @property
    def parallelism(self) -> int:
        """How many handlers of the batch at hand may be outstanding."""
        if self.gate.timer_due or self._batch is None:
            return 1
        return self._parallel.get(self._batch.stream, 1)

    def key_of(self, stream: str, event: Any) -> Any:
        """The key of an event of a parallel stream."""
        return self._finders[stream](event)

    def goes_on(self, source: Hashable) -> bool:
        """Whether a run may begin further events."""
        return self._stream_of[source] not in self._held and not self.gate.timer_due

    def begun(self, batch: EventBatch) -> None:
        """The batch's next event is under way."""
        batch.at += 1
        for executor in self._rates.get(batch.source, ()):
            executor.left(1)
        if batch.at >= len(batch.events) and self._batch is batch:
            self._batch = None

    def next_batch(self, source: Hashable) -> EventBatch | None:
        """The source's next batch, at hand for the run."""
        batch = self.stages[source].take(self._clock())
        if batch is None:
            return None
        batch.load()
        self._batch = batch
        return batch

    def ended(self, batch: EventBatch, events: int, *, last: bool) -> None:
        """So many events of a run's batch have ended; with the ``last`` the batch is done."""
        self.processed += events
        stage = self.stages[batch.source]
        if not last:
            stage.passed(events)
            return
        stage.passed(batch.size - len(batch.events) + events, batch.bytes)
        if self._batch is batch:
            self._batch = None
        if batch.receipt is not None:
            batch.receipt.done()

    async def end_run(self, stream: str, source: Hashable) -> None:
        """Nothing of a run is outstanding any more."""
        token = emitted.set(self.emitted)
        try:
            await self._trim_async()
        finally:
            emitted.reset(token)
        self.hand_on(stream)
        if self._batch is None:
            self._update(source)

    def failed(self, batch: EventBatch, error: Exception, index: int) -> None:
        """Refuse the culprit if its key was not found, or raise what stops the app."""
        event, position = batch.events[index], batch.position(index)
        if graph.is_key_failure(error):
            if batch.receipt is None:
                raise ProcessingError(
                    self.app.name, f"KeyFinder of {batch.stream!r}", None, position, error
                )
            self.refused += 1
            batch.receipt.refuse(batch.number(index), f"{key_failure(error)} (event {event!r})")
            return
        pe = graph.blame(error)
        if isinstance(error, AttributeError) and pe is not None and error.obj is pe:
            error.add_note(f"declare it in the PE class: {error.name}: type = default")
        name = type(pe).__name__ if pe is not None else f"a PE of {batch.stream!r}"
        raise ProcessingError(
            self.app.name, name, pe.key if pe is not None else None, position, error
        )

    # -- timers ------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When the next timer or expiry is due; None if there is none."""
        due = [timer.due for timer in self.timers]
        due += [at for i in self._bounded if (at := i.next_expiry) is not None]
        return min(due, default=None)

    def check_timers(self, now: float) -> bool:
        """Mark a due timer or expiry for the gate; True if there is one."""
        due = self.next_due
        if due is not None and due <= now:
            self.gate.timer_due = True
        return self.gate.timer_due

    def fire(self, limit: int) -> bool:
        """Call ``on_time`` of up to ``limit`` instances; True when all have been called.

        What has expired goes at the end.
        """
        token = emitted.set(self.emitted)
        try:
            for timer, instance in self._take_timed(limit):
                try:
                    timer.on_time(instance)
                except Exception as error:
                    raise self._hook_failed("on_time", error, instance) from error
            if self._timing is None:
                self._trim()
        finally:
            emitted.reset(token)
        self.hand_on()
        return self._timing is None

    async def fire_async(self, limit: int) -> bool:
        """As fire, where some ``on_time`` or ``on_remove`` is ``async``."""
        token = emitted.set(self.emitted)
        try:
            for timer, instance in self._take_timed(limit):
                try:
                    result = timer.on_time(instance)
                    if inspect.isawaitable(result):
                        await result
                except Exception as error:
                    raise self._hook_failed("on_time", error, instance) from error
            if self._timing is None:
                await self._trim_async()
        finally:
            emitted.reset(token)
        self.hand_on()
        return self._timing is None

    def _take_timed(self, limit: int) -> Iterator[tuple[Timer, ProcessingElement]]:
        if self._timing is None:
            self._timing = self._timed()
        for _ in range(limit):
            pair = next(self._timing, None)
            if pair is None:
                self._timing = None
                return
            yield pair

    def _timed(self) -> Iterator[tuple[Timer, ProcessingElement]]:
        now = self._clock()
        for timer in self.timers:
            if timer.due <= now:
                missed = int((now - timer.due) // timer.interval)  # ticks coalesce
                timer.due += (missed + 1) * timer.interval
                for instance in list(timer.instances.values()):
                    if timer.instances.get(instance.key) is instance:  # not removed meanwhile
                        yield timer, instance

    def _hook_failed(
        self, hook: str, error: Exception, instance: ProcessingElement | None = None
    ) -> ProcessingError:
        pe = instance if instance is not None else graph.blame(error)
        return ProcessingError(
            self.app.name,
            type(pe).__name__ if pe is not None else "a PE",
            pe.key if pe is not None else None,
            f"{hook} in partition {self.partition}",
            error,
        )

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Call ``on_create`` of the singletons."""
        token = emitted.set(self.emitted)
        try:
            for instances in self.instances.values():
                prototype = instances.prototype
                if prototype.singleton and prototype.on_create is not None:
                    singleton = instances.singleton()
                    try:
                        result = prototype.on_create(singleton)
                        if inspect.isawaitable(result):
                            await result
                    except Exception as error:
                        raise self._hook_failed("on_create", error, singleton) from error
        finally:
            emitted.reset(token)
        self.hand_on()

    def statistics(self) -> TaskStatistics:
        """Counts since the start."""
        unhandled: dict[str, int] = {}
        for instances in self.instances.values():
            for cls, count in instances.prototype.on_event.unhandled.items():
                unhandled[f"{instances.prototype.name}:{cls.__name__}"] = count
        return TaskStatistics(
            self.partition,
            self.processed,
            self.refused,
            {str(name): stage.statistics() for name, stage in self.stages.items()},
            {name: len(instances) for name, instances in self.instances.items()},
            unhandled,
        )
