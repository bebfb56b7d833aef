"""A partition task: its inputs, the batch at hand, and what it does next. Pure.

Rules
- One step does one thing: a slice of a batch, a commit, a window, a slice of a timer. The gate says
  which; the loop says when and how much. What runs on the events is the task's processor.
- What handlers put on streams is handed on after each slice, or after its event where several are
  outstanding.
- What was asked for at an event takes effect when it is done and all before it are. Nothing behind
  it has been told to its input when a commit is taken; unless what the task does is part of its
  commits: then events of which a later one may be done are done first, and the commit covers all.
- A task that drains begins nothing more of what can be read again, and works off the rest.
- A task that has failed at an event, and is to go back for it, begins nothing more; what is
  outstanding ends, and counts for nothing. Then another takes its place.
- After that it keeps a short leash: it commits after one event, two, four and so on, so that a
  further failure goes back no further than the task has come since the last.
- A commit waits until the letters of events that were left out are safe.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.errors import NotSaveable, ProcessingError
from s4node.events.event import EventBatch
from s4node.metrics.registry import MetricsRegistry
from s4node.offsets.input_progress import PartReceipt, Pieces
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.chooser import Bootstrap, MessageChooser
from s4node.runtime.task.coordinator_requests import Requests
from s4node.runtime.task.gate import Gate, Op
from s4node.runtime.task.in_flight import Flight, Flights
from s4node.runtime.task.isolation import Isolation, Recovery
from s4node.runtime.task.pace import Pace
from s4node.runtime.task.pe_processor import Elements
from s4node.runtime.task.processor import Mode, Processor
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.statistics import TaskStatistics
from s4node.runtime.task.timers import Timetable
from s4node.stages.executors import Executor
from s4node.stages.stage import Stage
from s4node.state.rows import Changes

if TYPE_CHECKING:
    from s4node.state.task_state import TaskState

Deliver = Callable[["Task", str, Stream, list[Any]], None]
"""Hands on events: who put them, while processing which stream (or none), on what."""

_SLICES = (Mode.AWAIT, Mode.THREAD)


class Task:
    """One partition of an app.

    ``stages``, ``held``, ``rates``, ``chooser`` and ``bootstrap`` are for its backlog. ``parallel``
    says of which streams more than one handler may be outstanding. Without a ``processor`` it runs
    the app's PEs. ``on_commit(task)`` takes the task's progress as it is at that moment, and says
    whether it has; ``awaited(task)`` is whether others wait for that. ``starts`` is where its
    inputs begin, by its own wish. Without an ``isolation`` a failure at an event stops the app.
    """

    def __init__(
        self,
        app: App,
        partition: int,
        *,
        stages: Mapping[Any, Stage],
        clock: Callable[[], float],
        deliver: Deliver,
        held: Collection[str],
        rates: Mapping[str, tuple[Executor, ...]] | None = None,
        parallel: Mapping[str, int] | None = None,
        name: str = "",
        processor: Processor | None = None,
        settings: TaskSettings | None = None,
        chooser: MessageChooser[Any] | None = None,
        bootstrap: Bootstrap | None = None,
    ) -> None:
        self.app = app
        self.partition = partition
        self.name = name or f"Partition {partition}"
        self.settings = settings = settings or TaskSettings()
        self.processor = processor or Elements(app, partition, clock, parallel, self.name)
        self.instances = self.processor.instances
        most = max((settings.concurrency, *(parallel or {}).values()))
        self.gate = Gate(most, async_commit=settings.async_commit)
        self.pace = Pace(2048, 0.005)
        self.ready = False
        self.processed = 0
        self.sent = 0
        self._calls: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.starts: Mapping[Any, Any] = self.processor.starts
        self.on_commit: Callable[[Task], bool | None] | None = None
        self.awaited: Callable[[Task], bool] = lambda _: False
        self.isolation: Isolation | None = None
        self.broken = False  # it has failed at an event, and another will take its place
        self._retired = False
        self._begins = False  # it takes the place of such a one, and has not started
        self.requests: Requests
        self.slow_window = False  # a window has taken longer than the time between two
        self._clock = clock
        self._deliver = deliver
        self.backlog = Backlog(
            app, stages, clock, held=held, rates=rates or {}, chooser=chooser, bootstrap=bootstrap
        )
        self._alone = not self.backlog.inner and not settings.exchanging
        self.metrics: MetricsRegistry | None = None  # those of one's own task
        self._streams = list(app.streams.values())
        fed = [s.name for s in self._streams if not isinstance(s, OutputStream)]
        self._modes = {name: self.processor.mode(Op.PROCESS, name) for name in fed}
        self._slicing = False
        self._changes: Changes | None = None
        self._changes_bytes = 0
        self.whole = False  # what it does is part of its commits, so they leave no event out
        self.flights: Flights | None = None
        if Mode.TOGETHER in self._modes.values():
            self.flights = Flights(settings.concurrency, len(self._streams))
        self.timetable = Timetable(self, clock())

    # -- feeding -----------------------------------------------------------------------------

    def keep(self, state: TaskState, changes_bytes: int) -> None:
        """Keep what is to outlive the process in ``state``, before the start; commit early when
        its changes take so many bytes."""
        self._changes = state.changes
        self._changes_bytes = changes_bytes
        self.processor.keep(state)
        puts = any(not isinstance(stream, InputStream) for stream in self.app.streams.values())
        self.whole = puts or bool(state.stores or state.instances)

    def isolate(self, recovery: Recovery) -> None:
        """Go back for events at which it fails; before the start."""
        self.isolation = Isolation(self, recovery)
        self.backlog.on_load = self.isolation.loaded

    @property
    def letters_wait(self) -> bool:
        """Whether dead letters of it are not safe yet."""
        return self.isolation is not None and self.isolation.culprits.unsafe > 0

    def ended(self, source: Hashable) -> None:
        """All batches of an input have been offered; the caller wakes the loop."""
        self.backlog.ended(source)
        if self._alone:
            self.gate.inputs_ended = self.backlog.inputs_ended
        else:
            self.requests.ending = True

    @property
    def busy(self) -> bool:
        """Whether something of it is under way, or may be done behind something that is not."""
        under_way = self.gate.in_flight or self.gate.running or self._looked_ahead
        return bool(under_way or self.letters_wait or self.broken)

    @property
    def _looked_ahead(self) -> bool:
        """Whether events were looked at that have not ended: those behind them may have."""
        return self.flights is not None and self.flights.busy

    @property
    def at_end(self) -> bool:
        """Whether nothing more can come from outside, and nothing is left to do."""
        return self.backlog.inputs_ended and self.at_rest

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to do, and nothing under way."""
        gate = self.gate
        busy = gate.in_flight or gate.running or gate.commit_due or gate.committing
        return not busy and not self.choose() and not self.backlog.waiting

    def drain(self) -> None:
        """Work off what cannot be read again, and be done."""
        self.give_back()
        self.timetable.end_windows()
        self.gate.draining = True

    def give_back(self) -> None:
        """Begin nothing more of what can be read again, and go on with what has begun."""
        self.backlog.give_back(slicing=self._slicing)

    def own(self) -> dict[str, list[Any]]:
        """The events that wait here and came from nowhere but the app itself, by stream."""
        found: dict[str, list[Any]] = {}
        for flight in self.flights.unended if self.flights is not None else ():
            if flight.batch.receipt is None:
                found.setdefault(flight.batch.stream, []).append(flight.event)
        for stream, events in self.backlog.own():
            found.setdefault(stream, []).extend(events)
        return found

    # -- what is next ------------------------------------------------------------------------

    def next_op(self) -> Op:
        """What the task may do now."""
        flights = self.flights
        if flights is not None:
            for flight, error in flights.arrivals():
                self.land(flight, error)
        if self._slicing or self.broken or self._begins:
            return Op.NOTHING
        if self._retired and not self._looked_ahead:
            return Op.DONE
        closing = self._closes_ranks
        waiting = flights.order.ready if closing and flights is not None else self.choose()
        op = self.gate.next_op(waiting, self.backlog.waiting, closing)
        if self.isolation is not None:
            if op is Op.END_OF_STREAM:
                op = self.isolation.recovery.before_end(self)
            if op is Op.PROCESS and not self.isolation.may:
                return Op.NOTHING
            if op is Op.COMMIT and self.letters_wait:
                return Op.NOTHING
        return op

    @property
    def _closes_ranks(self) -> bool:
        """Whether a commit waits for events that were looked at: those behind them may be done."""
        flights = self.flights
        return (
            flights is not None
            and self.whole
            and self.gate.commit_due
            and flights.order.waiting > 0
        )

    def choose(self) -> bool:
        """Have an event that may be processed, if there is one."""
        flights = self.flights
        if flights is None:
            return self.backlog.choose()
        if not flights.busy:
            flights.stream = None
            if not self.backlog.choose():
                return False
            assert self.backlog.at_hand is not None
            stream = self.backlog.at_hand.stream
            if self._modes[stream] is not Mode.TOGETHER:
                return True
            flights.order.limit = self.processor.limit(stream)
            flights.stream = None if self.processor.mixes() else stream
        self._look(flights)
        return flights.order.ready

    @property
    def stream(self) -> str:
        """The stream of the batch at hand; empty if there is none."""
        batch = self.backlog.at_hand
        return "" if batch is None else batch.stream

    def mode(self, op: Op) -> Mode:
        """How the next step is run."""
        if op is Op.PROCESS:
            if self.flights is not None and self.flights.busy:
                return Mode.TOGETHER
            assert self.backlog.at_hand is not None
            return self._modes[self.backlog.at_hand.stream]
        return Mode.LOOP if op is Op.COMMIT else self.processor.mode(op, "")

    # -- steps -------------------------------------------------------------------------------

    def begin(self, op: Op, mode: Mode) -> None:
        """A step begins; ``run`` and ``finish`` follow."""
        self.gate.begin(op)
        if op is Op.PROCESS:
            self.timetable.event_begins()
        self._slicing = op is Op.PROCESS and mode in _SLICES

    def run(self, op: Op, limit: int) -> int:
        """Process up to ``limit`` events of the batch at hand, or do what runs alone.

        Returns how many events it were; for other steps, whether nothing of them is left.
        """
        if op is Op.PROCESS:
            return self.processor.process(*self._slice(limit))
        if op is Op.COMMIT:
            taken = self.on_commit is not None and self.on_commit(self)
            if taken and self.isolation is not None:
                self.isolation.committed()
            return 1
        return self.processor.run(op, limit)

    async def run_async(self, op: Op, limit: int) -> int:
        """As run, where something is awaited."""
        if op is Op.PROCESS:
            return await self.processor.process_async(*self._slice(limit))
        return await self.processor.run_async(op, limit)

    def _slice(self, limit: int) -> tuple[EventBatch, list[Any]]:
        batch = self.backlog.at_hand
        assert batch is not None
        events = batch.events
        if batch.source in self.backlog.rates:
            limit = max(1, min(limit, self.backlog.allowance(batch.source)))
        if self.isolation is not None:
            limit = self.isolation.limit(batch, limit)
        if batch.at or limit < len(events):
            events = events[batch.at : batch.at + limit]
        if self.isolation is not None:
            self.isolation.begins(batch, len(events))
            if events:
                self._check(batch.stream, events[0])  # what could not be saved before it
        return batch, events

    def finish(self, op: Op, result: int) -> None:
        """A step has ended; ``result`` is what ``run`` returned."""
        gate = self.gate
        self._slicing = False
        if self.broken:  # a commit has failed meanwhile: this is undone
            if op is Op.PROCESS and self.isolation is not None:
                assert self.backlog.at_hand is not None
                self.isolation.ended(self.backlog.at_hand, 0)
            gate.end(op)
            self._rest()
            return
        if op is Op.PROCESS:
            batch = self.backlog.at_hand
            assert batch is not None
            if result and (failure := self._spoils(batch, batch.at)) is not None:
                self.failed(failure)
                return
            self.hand_on(batch.stream)
            if self._changes is not None and self._changes.bytes > self._changes_bytes:
                self.want_commit()
            if self.isolation is not None:
                self.isolation.ended(batch, result)
                if self.isolation.pulls(result):
                    self.want_commit()
            self.processed += result
            self.backlog.passed(result)
            gate.end(op)
        elif op is Op.COMMIT:
            gate.end(op)
            if self.flights is not None:
                behind = list(self.flights.resume())
                gate.uncommitted |= bool(behind)
                self._released(behind)
        else:
            self.hand_on()
            gate.end(op)
            if op is Op.WINDOW:
                self.timetable.window_ended(self._clock())
            elif op is Op.TIMER:
                self.timetable.timers_ended(over=bool(result))
            elif op is Op.END_OF_STREAM:
                if self.isolation is not None and self.isolation.recovery.undoes:
                    gate.commit_due = True  # before anything that comes of it can fail
                self.requests.finished(self)
        if self.processor.asked.any:
            self.requests.take(self, self.processor.asked.taken())
        self._heed_spoils()

    def want_commit(self) -> None:
        """Commit as soon as it may be; the caller wakes the loop."""
        self.gate.commit_due = True
        self.interrupt()

    def interrupt(self) -> None:
        """If a slice is under way, it ends where it is."""
        if self._slicing:
            self.processor.asked.any = True

    def hand_on(self, source: str = "", put: list[list[Any]] | None = None) -> None:
        """Hand on what handlers have put on streams, while they processed ``source``."""
        put = self.processor.put if put is None else put
        for index, events in enumerate(put):
            if events:
                put[index] = []
                self.sent += len(events)
                self._deliver(self, source, self._streams[index], events)

    # -- events that are outstanding together --------------------------------------------------

    def take_off(self) -> Flight | None:
        """Begin the next event beside those that are outstanding, if one may begin."""
        flights = self.flights
        assert flights is not None
        flight = flights.begin(self._clock() if self.settings.callback_timeout else 0.0)
        if flight is not None:
            self.gate.begin(Op.PROCESS)
            self.timetable.event_begins()
            if self.isolation is not None:
                self.isolation.takes_off(flight)
            self.processor.begins(flight)
            self._check(flight.batch.stream, flight.event)
        return flight

    async def tidy(self, flight: Flight) -> None:
        """A handler has returned, and is about to land: apply the bounds of what is in memory, if
        nothing else is left to do or too much is there."""
        assert self.flights is not None
        if self._spoils(flight.batch, flight.index) is not None:
            return  # it goes back for this; what cannot be saved stays where it is looked for
        order = self.flights.order
        alone = False
        while not alone:  # others may land meanwhile, and leave it to this one
            alone = order.outstanding == 1 and not order.waiting
            if not alone and not self.processor.crowded(len(order.keys)):
                return
            self.processor.ended(flight)  # for what leaves memory is saved as of now
            await self.processor.tidy(None if alone else order.keys)

    def land(self, flight: Flight, error: BaseException | None = None) -> None:
        """An event has ended; raises what stops the app."""
        flights, load = self.flights, flight.load
        batch = load.batch
        assert flights is not None
        failure = None if error is not None or self.broken else self._spoils(batch, flight.index)
        if self.isolation is not None:
            self.isolation.lands(flight)
        if error is not None:
            try:
                self.processor.failed(batch, error, flight.index)
            except ProcessingError as found:
                failure = found
        if failure is not None:
            self._give_way(failure)
        self._heed_spoils()
        if self.broken:
            flights.end(flight)
            self.gate.end(Op.PROCESS)
            self._rest()
            return
        self.processor.ended(flight)
        if self.isolation is not None and self.isolation.pulls(1):
            self.gate.commit_due = True
        if self._changes is not None and self._changes.bytes > self._changes_bytes:
            self.gate.commit_due = True
        self.hand_on(batch.stream, flight.put)
        flight.put.clear()
        flights.end(flight)
        self.gate.end(Op.PROCESS)
        self.processed += 1
        stage = self.backlog.stages[batch.source]
        if load.left:
            stage.passed(1)
        else:
            stage.passed(batch.size - len(batch.events) + 1, batch.bytes)
        if load.release is None:
            if not load.left and batch.receipt is not None:
                batch.receipt.done()
            if flight.asked.any:
                self.requests.take(self, flight.asked)
            return
        stops = flight.asked.commit_this and not self.whole
        self._released(load.release.complete(flight, stops))

    def _released(self, flights: Iterable[Flight]) -> None:
        """Tell the inputs of what has been released, and heed what was asked for there."""
        for flight in flights:
            load = flight.load
            receipt = load.batch.receipt
            assert receipt is not None
            load.unreleased -= 1
            if load.unreleased:
                number = load.batch.number(flight.index)
                receipt.passed(number, number + 1)
            else:
                receipt.done()
            if flight.asked.any:
                self.requests.take(self, flight.asked)

    def _look(self, flights: Flights) -> None:
        """Look at further events: those that may begin, and ahead of them to find other keys.

        At none while a commit is due: it may have to wait for all that were looked at, and would
        wait for as long as there are events.
        """
        backlog, stream = self.backlog, flights.stream
        by_key = self.processor.by_key()
        while not self.gate.commit_due and flights.wants(by_key):
            batch = backlog.at_hand
            if batch is None or not backlog.may(batch.source):
                if not (backlog.choose() if stream is None else backlog.choose_of(stream)):
                    return
                continue
            if batch.at < len(batch.events):
                flight = flights.look(batch, in_order=isinstance(batch.receipt, _COUNTED))
                self.processor.place(flight)
                flights.add(flight)
                batch.at += 1
                for executor in backlog.rates.get(batch.source, ()):
                    executor.left(1)
            elif not batch.events:
                backlog.stages[batch.source].passed(batch.size, batch.bytes)
                if batch.receipt is not None:
                    batch.receipt.done()
            if batch.at >= len(batch.events):
                backlog.at_hand = None
                backlog.update(batch.source)

    # -- failures ----------------------------------------------------------------------------

    def failed(self, error: ProcessingError) -> None:
        """A slice has failed; raises what stops the app."""
        self._give_way(error)
        self._slicing = False
        assert self.isolation is not None
        assert self.backlog.at_hand is not None
        self.isolation.ended(self.backlog.at_hand, 0)
        self.gate.end(Op.PROCESS)
        self._rest()

    def _give_way(self, error: ProcessingError) -> None:
        isolation = self.isolation
        if error.at is None or isolation is None or not isolation.recovery.takes(self, error):
            raise error
        self.broken = self.backlog.closed = True

    def _spoils(self, batch: EventBatch, index: int) -> ProcessingError | None:
        """The failure of an event that has left what cannot be saved, where that is looked at."""
        try:
            self._check(batch.stream, batch.events[index])
        except NotSaveable as error:
            assert self.isolation is not None
            place = batch.position(index)
            failure = ProcessingError(self.app.name, error.pe, error.key, place, error)
            failure.at = batch, index
            self.isolation.examination.found()
            return failure
        return None

    def _check(self, stream: str, event: Any) -> None:
        """Raise NotSaveable where what an event is for cannot be saved, if that is looked at."""
        if self.isolation is not None and self.isolation.examination.looks:
            self.processor.check(stream, event)

    def _heed_spoils(self) -> None:
        """If something has left memory that cannot be saved, go back before it is missed."""
        if self._changes is not None and self._changes.spoiled is not None:
            self.spoiled(self._changes.spoiled, of_commit=False)

    def spoiled(self, error: NotSaveable, *, of_commit: bool = True) -> None:
        """What the last commit has, or what was done since, cannot be saved; raises what stops the
        app.

        It is done again, and looked at event by event until it is known which it is due to.
        """
        if self.broken:  # it goes back anyway
            return
        isolation = self.isolation
        if isolation is None or not isolation.recovery.undoes:
            raise error
        if not isolation.examination.begins(of_commit=of_commit):
            raise error
        isolation.recovery.searches(self, error)
        self.broken = self.backlog.closed = True
        self._rest()

    def _rest(self) -> None:
        if not self.gate.in_flight and self.gate.running is None:
            assert self.isolation is not None
            self.isolation.recovery.rests(self)

    def retire(self) -> None:
        """Begin nothing more, for another container is about to have the partition."""
        self._retired = True

    @property
    def has_retired(self) -> bool:
        """Whether nothing of a task that retires is under way."""
        gate = self.gate
        busy = gate.in_flight or gate.running or gate.committing or self._slicing
        busy = busy or self._looked_ahead
        return self._retired and not (busy or self.broken or self._begins or self.letters_wait)

    def leave_none_behind(self) -> None:
        """Release what had ended before a task retired, though a commit was to come in between:
        there is only one to come, and it covers all."""
        flights = self.flights
        while flights is not None and (behind := list(flights.resume())):
            self._released(behind)

    def succeed(self, before: Task) -> None:
        """Take the place of a task that has failed."""
        assert self.isolation is not None
        assert before.isolation is not None
        self.isolation.succeeds(before.isolation)
        self.processed, self.sent = before.processed, before.sent
        self.gate.end_told = self.isolation.end_written
        self._begins = True

    def tell(self, stream: Stream, event: Any) -> None:
        """Put an event of the container's on one of the app's streams, as the task's own."""
        self.sent += 1
        self._deliver(self, "", stream, [event])

    # -- life --------------------------------------------------------------------------------

    def took(self, op: Op, seconds: float) -> None:
        """A step that was no processing took so long."""
        self._calls[op.value] += 1
        self._seconds[op.value] += seconds

    async def start(self) -> None:
        """Have the processor begin its life."""
        await self.processor.start()
        self._begins = False
        self.timetable.begin_windows(self._clock())
        self.hand_on()
        if self.processor.asked.any:
            self.requests.take(self, self.processor.asked.taken())

    async def close(self) -> None:
        """Have the processor end its life, however far it has come."""
        await self.processor.close()

    def statistics(self) -> TaskStatistics:
        """Counts since the start."""
        backlog = self.backlog
        unhandled: dict[str, int] = {}
        for instances in self.instances.values():
            for cls, count in instances.prototype.on_event.unhandled.items():
                unhandled[f"{instances.prototype.name}:{cls.__name__}"] = count
        return TaskStatistics(
            self.partition,
            self.processed,
            self.processor.refused,
            {str(source): stage.statistics() for source, stage in backlog.stages.items()},
            {name: len(instances) for name, instances in self.instances.items()},
            unhandled,
            name=self.name,
            sent=self.sent,
            in_flight=self.gate.in_flight,
            buffered=backlog.buffered,
            batch_resets=backlog.batch_resets,
            calls=dict(self._calls) | {Op.PROCESS.value: self.processed},
            seconds=dict(self._seconds) | {Op.PROCESS.value: self.pace.seconds},
            ignored=dict(self.processor.ignored),
            lagging=backlog.lagging,
        )


_COUNTED = (Pieces, PartReceipt)
"""Receipts of events whose places are part of commits."""
