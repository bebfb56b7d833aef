"""A partition task: its inputs, the current batch, and what it does next. Pure.

Rules
- One step does one thing: a slice of a batch, a commit, a window, or a slice of a timer. The gate
  says which, the loop says when and how much, and the task's processor runs it.
- Events that handlers put on streams are handed on after each slice; with several events in flight,
  as each one ends.
- A request made while an event is processed takes effect once that event and all before it are
  done. A commit acknowledges no later event. If output or state is part of the task's commits, the
  commit first waits for events that later ones may have overtaken, and covers them all.
- A draining task begins no more replayable events, and finishes the rest.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.errors import ProcessingError
from s4node.events.event import EventBatch
from s4node.metrics.registry import MetricsRegistry
from s4node.metrics.statistics import TaskStatistics
from s4node.net.ingress.unbegun import WillResend
from s4node.runtime.event_time.state_use import note_use
from s4node.runtime.task.actions import NONE, Actions, Ask, EndTold, HandOn
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.chooser import Bootstrap, MessageChooser
from s4node.runtime.task.failures import Failures
from s4node.runtime.task.gate import (
    COMMIT,
    END_OF_STREAM,
    FAILED,
    NOTHING,
    PROCESS,
    RUNNING,
    Gate,
    Op,
    Pace,
    Phase,
)
from s4node.runtime.task.in_flight import InFlight, InFlightEvents
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.runtime.task.poison.isolation import Careful
from s4node.runtime.task.processor import LOOP, TOGETHER, Mode, Processor
from s4node.runtime.task.schedule import CommitBudget, Schedule
from s4node.runtime.task.settings import TaskSettings
from s4node.stages.executors import Executor
from s4node.stages.stage import Stage

if TYPE_CHECKING:
    from s4node.offsets.system import SystemStreamPartition
    from s4node.state.task_state import TaskState

_ROWS_OF_CALLS = 1 << 16
"""Changed rows after which a task commits between two parts of its windows and timers. A million
that end at once would be one commit: to take it, and each growth of its table, is a pause of up to
70 ms."""

TIME_PATIENCE = 0.5
"""Seconds for which receivers of events can wait for the time that a commit sends them."""

_SLICES = (Mode.AWAIT, Mode.THREAD)

R = TypeVar("R")


def at_once(step: Coroutine[Any, Any, R]) -> R:
    """Run a step to its end; its mode is not AWAIT, so it awaits nothing."""
    try:
        step.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    step.close()
    raise AssertionError("a step awaits something, but its mode is not AWAIT")


class Task:
    """One partition of an app.

    ``stages``, ``held``, ``rates``, ``chooser`` and ``bootstrap`` go to its backlog. ``parallel``
    maps a stream to the number of its handlers that may be outstanding. Without a ``processor``
    the task runs the app's PEs. ``starts`` is where the author's task wants its inputs to begin.
    ``in_flight`` is None unless events of some stream overlap (``together``). All tasks of the
    container share ``commit_budget``. ``done`` is True once the task has asked to shut down or
    knows of the end of its inputs. ``sent`` counts the events that were handed on.
    """

    def __init__(
        self,
        app: App,
        partition: int,
        *,
        stages: Mapping[Any, Stage],
        clock: Callable[[], float],
        held: Collection[str],
        rates: Mapping[str, tuple[Executor, ...]] | None = None,
        parallel: Mapping[str, int] | None = None,
        name: str = "",
        processor: Processor | None = None,
        settings: TaskSettings | None = None,
        chooser: MessageChooser[Any] | None = None,
        bootstrap: Bootstrap | None = None,
        commit_budget: CommitBudget | None = None,
        phase: Phase = Phase.CREATED,
        wall: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.app = app
        self.partition = partition
        self.name = name or f"Partition {partition}"
        self.settings = settings = settings or TaskSettings()
        self.processor = processor or PeProcessor(app, partition, clock, parallel, self.name, wall)
        self.instances = self.processor.instances
        most = max((settings.concurrency, *(parallel or {}).values()))
        self._concurrency = most
        self.gate = Gate(most, async_commit=settings.async_commit, phase=phase)
        self.pace = Pace(2048, 0.005)
        self.sent = 0
        self._processed = 0
        self._calls: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.starts: Mapping[Any, Any] = self.processor.starts
        self.done = False
        self._clock = clock
        self.backlog = Backlog(
            app, stages, clock, held=held, rates=rates or {}, chooser=chooser, bootstrap=bootstrap
        )
        self.processor.times.queues = self.backlog.stages
        self.metrics: MetricsRegistry | None = None  # of the author's task
        self._streams = list(app.streams.values())
        fed = [s.name for s in self._streams if not isinstance(s, OutputStream)]
        self._modes = {name: self.processor.mode(Op.PROCESS, name) for name in fed}
        self._slicing = False
        self.failures = Failures(self, self.name, app.name, self.gate, self.backlog, self.processor)
        entries = None
        if TOGETHER in self._modes.values():
            entries = InFlightEvents(settings.concurrency, len(self._streams))
        self.together = entries is not None
        self.schedule = Schedule(self, clock(), commit_budget, together=self.together)
        self.in_flight: InFlight | None = None
        if entries is not None:
            self.in_flight = InFlight(
                entries,
                gate=self.gate,
                backlog=self.backlog,
                processor=self.processor,
                schedule=self.schedule,
                failures=self.failures,
                modes=self._modes,
                streams=self._streams,
            )

    # -- feeding -----------------------------------------------------------------------------

    def attach_state(self, state: TaskState, changes_bytes: int) -> None:
        """Make the task durable in ``state``; call before the start.

        The task commits early when its changes take more than ``changes_bytes``.
        """
        self.failures.changes = state.changes
        self.failures.changes_bytes = changes_bytes
        self.processor.attach_state(state)
        self.gate.commit_due = note_use(self.app, state)  # the next version's check needs it
        puts = any(not isinstance(stream, InputStream) for stream in self.app.streams.values())
        self.gate.whole = puts or bool(state.stores or state.instances)

    def runs_ahead(self, ssp: SystemStreamPartition, ended: Collection[str]) -> bool:
        """Return True if an input waits for others that are behind it in time."""
        bootstrap = self.backlog.bootstrap
        if bootstrap is not None and bootstrap.streams:
            return False  # the others wait for the bootstrap
        return self.processor.times.runs_ahead(ssp.stream, str(ssp), ended)

    def end_input(self, source: Hashable) -> None:
        """All batches of an input have been offered; the caller wakes the loop."""
        self.backlog.end_input(source)
        if self.alone and self.backlog.inputs_ended:
            self.gate.end_inputs()

    @property
    def alone(self) -> bool:
        return not self.backlog.inner and not self.settings.exchanging

    @property
    def may_rest(self) -> bool:
        """True if its events come only from inputs that it reads."""
        return self.alone and not self.backlog.is_live

    @property
    def busy(self) -> bool:
        """True while work is in flight, or finished events wait for an earlier one."""
        working = self.gate.in_flight or self.gate.running or self._looked_ahead
        failed = self.gate.phase is Phase.FAILED
        return bool(working or self.failures.dead_letters_wait or failed)

    @property
    def _looked_ahead(self) -> bool:
        """True if events were looked at that have not ended; later ones may have."""
        return self.in_flight is not None and self.in_flight.busy

    @property
    def at_end(self) -> bool:
        """True if all inputs have ended and nothing is left to do."""
        return self.backlog.inputs_ended and self.at_rest

    @property
    def at_rest(self) -> bool:
        """True if nothing waits and nothing is in flight."""
        gate = self.gate
        busy = gate.in_flight or gate.running or gate.commit_due
        return not busy and not self.choose() and not self.backlog.has_waiting

    def drain(self) -> None:
        """Finish the events that cannot be replayed, then be done."""
        self.give_back()
        self.schedule.end_windows()
        if self.gate.may_enter(Phase.DRAINING):
            self.gate.enter(Phase.DRAINING)

    def give_back(self) -> None:
        """Begin no more replayable events; those that have begun go on."""
        self.backlog.give_back(slicing=self._slicing)

    def unbegun(self) -> Iterator[EventBatch]:
        """The batches that have not begun and cannot be replayed."""
        return self.backlog.unbegun(slicing=self._slicing)

    def leave_to_producers(self, frames: Collection[Any], kept: WillResend) -> None:
        self.backlog.leave_to_producers(frames, kept, slicing=self._slicing)

    def own_events(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        in_flight = self.in_flight.own_events() if self.in_flight is not None else ()
        for stream, events in chain(in_flight, self.backlog.own_events()):
            found.setdefault(stream, []).extend(events)
        return found

    # -- what is next ------------------------------------------------------------------------

    def next_op(self) -> Op:
        in_flight, failures, phase = self.in_flight, self.failures, self.gate.phase
        if self._slicing:
            return NOTHING
        if phase is not RUNNING:
            if not self.gate.begins:
                return NOTHING
            if phase is Phase.RETIRING and not self._looked_ahead:
                return Op.DONE
        if in_flight is None:
            waiting, closing = self.backlog.choose(), False
        else:
            closing = in_flight.closing
            waiting = in_flight.ready if closing else in_flight.choose()
        op = self.gate.next_op(waiting, not waiting and self.backlog.has_waiting, closing)
        isolation = failures.isolation
        if op is END_OF_STREAM:
            op = failures.before_end()
        if op is PROCESS and isolation.careful is not None and not isolation.careful.may:
            return NOTHING
        if op is COMMIT and isolation.poison_events.unsafe:
            return NOTHING
        return op

    def choose(self) -> bool:
        return self.backlog.choose() if self.in_flight is None else self.in_flight.choose()

    @property
    def stream(self) -> str:
        """The stream of the current batch; empty if there is none."""
        batch = self.backlog.at_hand
        return "" if batch is None else batch.stream

    def mode(self, op: Op) -> Mode:
        if op is PROCESS:
            batch = self.backlog.at_hand
            if self.in_flight is not None and (self.in_flight.busy or batch is None):
                return TOGETHER
            assert batch is not None
            return self._modes[batch.stream]
        return LOOP if op is COMMIT else self.processor.mode(op, "")

    # -- steps -------------------------------------------------------------------------------

    def begin_step(self, op: Op, mode: Mode) -> None:
        """Begin a step; ``run`` and ``end_step`` follow."""
        self.gate.begin_step(op)
        if op is PROCESS and (self.schedule.owing or self.schedule.timers_owing):
            self.schedule.event_begins()
        self._slicing = op is PROCESS and mode in _SLICES

    async def run(self, op: Op, limit: int) -> int:
        """Process up to ``limit`` events of the batch at hand, or run a step that runs alone.

        Return how many events were processed; for other steps, True if the step is complete. The
        loop itself takes commits.
        """
        if op is PROCESS:
            return await self.process(limit)
        backoff = self.failures.isolation.backoff
        if backoff is not None and op is Op.TIMER:
            limit = min(limit, backoff.left)
            if backoff.pulls(limit):
                self.want_commit()
        return await self.processor.run(op, limit)

    def process(self, limit: int) -> Coroutine[Any, Any, int]:
        """The step that processes up to ``limit`` events of the batch at hand."""
        batch, isolation = self.backlog.at_hand, self.failures.isolation
        assert batch is not None
        events = batch.events
        limit = self.backlog.limit(limit)
        if isolation.careful is not None:
            limit = 1
        elif isolation.backoff is not None:
            limit = min(limit, isolation.backoff.left)
        if batch.at or limit < len(events):
            events = events[batch.at : batch.at + limit]
        if isolation.careful is not None and events:
            isolation.careful.event_begins(batch, batch.at)
        return self.processor.process(batch, events)

    def put(self, op: Op) -> Actions:
        """Hand on the events that handlers have put in a step that ended; ``end_step`` follows."""
        if self.gate.phase is FAILED:
            return NONE
        batch = self.backlog.at_hand if op is PROCESS else None
        source = "" if batch is None else batch.stream
        put, actions = self.processor.put, []
        for i, events in enumerate(put):
            if events:
                actions.append(HandOn(source, self._streams[i], events))
                put[i] = []
        return actions

    def end_step(self, op: Op, result: int) -> Actions:
        """End a step; ``result`` is what ``run`` returned, or whether a commit was taken."""
        gate, failures, isolation = self.gate, self.failures, self.failures.isolation
        actions: Actions = NONE
        self._slicing = False
        if gate.phase is FAILED:  # a commit has failed meanwhile
            return failures.undone(op)
        changes = failures.changes
        if op is PROCESS:
            if changes is not None and changes.bytes > failures.changes_bytes:
                self.want_commit()
            if isolation.careful is not None:
                isolation.careful.event_ended()
            if isolation.failed_hooks.calls:  # some may have been due before these events
                for left in self.processor.left_out_calls():
                    isolation.call_left_out(left)
            if isolation.backoff is not None and isolation.backoff.pulls(result):
                self.want_commit()
            self._processed += result
            self.backlog.advance(result)
            gate.end_step(op)
        elif op is COMMIT:
            if result:
                isolation.commit_taken()
            if self.in_flight is not None:
                actions = self.in_flight.commit_ended()
        else:
            gate.end_step(op)
            if changes is not None and len(changes) > _ROWS_OF_CALLS:
                self.want_commit()
            if isolation.failed_hooks.calls:
                for left in self.processor.left_out_calls():
                    isolation.call_left_out(left)
            if op is Op.WINDOW:
                self.schedule.window_ended(self._clock())
            elif op is Op.TIMER:
                self.schedule.timers_ended(over=bool(result))
                if self.gate.whole and self.processor.times.puts.moved:
                    self.await_commit(TIME_PATIENCE)
            elif op is END_OF_STREAM and not result:  # the rest follows in further steps
                gate.open_inputs()
                gate.end_inputs()
            elif op is END_OF_STREAM:
                if failures.undoes:
                    gate.commit_due = True  # before anything that follows can fail
                if self.processor.times.ends_again:
                    gate.open_inputs()
                else:
                    actions = (EndTold(),)
        if self.processor.asked.any:
            actions = (*actions, Ask(self.processor.asked.taken()))
        return actions

    def failed(self, error: ProcessingError, op: Op = PROCESS) -> Actions:
        """End a step that has failed; raises the error if it stops the app."""
        self.failures.roll_back(error)
        self._slicing = False
        return self.failures.undone(op)

    def want_commit(self) -> None:
        """Commit as soon as the gate allows; the caller wakes the loop."""
        self.gate.commit_due = True
        self.interrupt()

    def await_commit(self, patience: float = 0.0) -> bool:
        """Schedule a commit that others wait for, within ``patience`` seconds if the budget allows.

        Return True if it is now due earlier than before; then the caller wakes the loop.
        """
        schedule = self.schedule
        if patience and schedule.commit_scheduled:
            return False
        return schedule.schedule_commit(self._clock(), patience)

    def be_careful(self, careful: Careful | None) -> None:
        """Process one event at a time, with its place written by ``careful``; None ends this."""
        self.failures.isolation.careful = careful
        self.gate.max_concurrency = self._concurrency if careful is None else 1
        if self.in_flight is not None:
            self.in_flight.be_careful(careful)

    def interrupt(self) -> None:
        """End the current slice, if any, after its current event."""
        if self._slicing:
            self.processor.asked.any = True

    def end_overdue(self, now: float) -> Actions:
        """End the events that timed out; raises the error if it stops the app."""
        schedule, in_flight = self.schedule, self.in_flight
        if in_flight is None or schedule.timeout_at > now:
            return NONE
        timeout = self.settings.callback_timeout
        actions = in_flight.end_overdue(now, timeout)
        schedule.timeout_at = in_flight.overdue_at(now, timeout)
        return actions

    def check_due(self, now: float) -> bool:
        """Report to the gate what is due; return True if anything is, and end the current slice."""
        due = self.schedule.check_due(now)
        if due:
            self.interrupt()
        return due

    @property
    def processed(self) -> int:
        return self._processed + (0 if self.in_flight is None else self.in_flight.processed)

    # -- life --------------------------------------------------------------------------------

    def succeed(self, before: Task) -> None:
        self.failures.succeed(before.failures)
        self.processor.succeed(before.processor)
        self._processed, self.sent = before.processed, before.sent

    def retire(self) -> None:
        """Begin nothing more: another container takes the partition over.

        A task that has not started or has failed ignores this.
        """
        if self.gate.may_enter(Phase.RETIRING):
            self.gate.enter(Phase.RETIRING)

    @property
    def has_retired(self) -> bool:
        gate, failures = self.gate, self.failures
        busy = gate.in_flight or gate.running or self._slicing or self._looked_ahead
        return gate.phase is Phase.RETIRING and not (busy or failures.dead_letters_wait)

    def leave_none_behind(self) -> Actions:
        """Release all ended events, also those that wait for a commit: the last one covers all."""
        return NONE if self.in_flight is None else self.in_flight.release_all()

    def took(self, op: Op, seconds: float) -> None:
        """Count a step other than processing, and its time."""
        self._calls[op.value] += 1
        self._seconds[op.value] += seconds

    async def start(self) -> Actions:
        await self.processor.start()
        if self.gate.may_enter(RUNNING):  # it may drain already
            self.gate.enter(RUNNING)
        self.schedule.begin_windows(self._clock())
        put = self.put(NOTHING)
        if self.processor.asked.any:
            return [*put, Ask(self.processor.asked.taken())]
        return put

    async def close(self) -> None:
        """Close the processor, even if it never started."""
        await self.processor.close()

    def statistics(self) -> TaskStatistics:
        backlog = self.backlog
        unhandled: dict[str, int] = {}
        for instances in self.instances.values():
            for cls, count in instances.prototype.on_event.unhandled.items():
                unhandled[f"{instances.prototype.name}:{cls.__name__}"] = count
        return TaskStatistics(
            name=self.name,
            partition=self.partition,
            processed=self.processed,
            refused=self.processor.refused,
            sent=self.sent,
            pending=sum(stage.depth for stage in backlog.stages.values()),
            in_flight=self.gate.in_flight,
            buffered=backlog.buffered,
            batch_resets=backlog.batch_resets,
            instances={name: len(instances) for name, instances in self.instances.items()},
            unhandled=unhandled,
            ignored=dict(self.processor.ignored),
            calls=dict(self._calls) | {PROCESS.value: self.processed},
            seconds=dict(self._seconds) | {PROCESS.value: self.pace.seconds},
            lagging=backlog.lagging,
            **self.processor.times.statistics_parts(),
            **self.processor.cost_statistics(),
        )
