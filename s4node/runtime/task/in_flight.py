"""In-flight events: events of one task that have begun and not yet ended. Pure.

Rules
- At most ``limit`` events are in flight. They begin in the order of arrival. In key order, an event
  waits for earlier events of its key and holds up no others.
- Events are looked at ahead of their turn only to find other keys, and not while a commit is due.
- A batch that is put aside and resumed keeps its load; it is done when all of its events have
  ended.
- An event is ended once, from any thread; the loop's thread handles the result.
- Events that it has put are handed on when it ends.
- Events of a replayable input are released in the order in which they came. A request made at an
  event takes effect when the event is released. A batch without events for this task keeps its
  place in that order, as it may hold events of other tasks, which go on when it is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from s4node.app.stream import Stream
from s4node.errors import EventTimeout, ProcessingError
from s4node.events.event import EventBatch
from s4node.offsets.ordered_release import OrderedRelease
from s4node.runtime.task.actions import NONE, Action, Actions, Ask, HandOn
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.failures import Failures
from s4node.runtime.task.gate import Gate, Op, Phase
from s4node.runtime.task.poison.isolation import Careful
from s4node.runtime.task.processor import InFlightEvent, Load, Mode, Processor
from s4node.runtime.task.schedule import Schedule
from s4node.stages.key_order import KeyOrder

_AHEAD = 4
"""Events looked at for each that may be in flight, to find other keys."""

_EMPTY = 512
"""A look ends after so many events that did not decode, because loading them takes time."""


class InFlightEvents:
    """The order of the events of one task that were looked at and have not ended."""

    def __init__(self, limit: int, streams: int) -> None:
        self.order: KeyOrder[InFlightEvent] = KeyOrder(limit)
        self._streams = streams
        self._load: Load | None = None
        self._aside: dict[Hashable, Load] = {}  # at most one for each source
        self._begun: dict[InFlightEvent, None] = {}
        self._looked: dict[InFlightEvent, None] = {}  # and not ended
        self._releases: dict[Hashable, OrderedRelease[InFlightEvent | EventBatch]] = {}

    def wants(self, by_key: bool) -> bool:
        """Return True if another event should be looked at."""
        order = self.order
        if by_key:
            return order.waiting < order.limit * _AHEAD
        return not order.waiting and order.outstanding < order.limit

    def look(self, batch: EventBatch, *, in_order: bool) -> InFlightEvent:
        """The next event of a batch; the caller then calls ``add``.

        ``in_order`` says that its place is part of commits, so events are released in order.
        """
        load = self._load
        if load is None or load.batch is not batch:
            if load is not None and load.batch.at < len(load.batch.events):
                self._aside[load.batch.source] = load
            load = self._load = self._aside.pop(batch.source, None)
        if load is None or load.batch is not batch:
            release = None
            if in_order:
                release = self._release_of(batch)
            load = self._load = Load(batch, release)
        entry = InFlightEvent(load, batch.at, self._streams)
        self._looked[entry] = None
        if load.release is not None:
            load.release.add(entry)
        return entry

    def look_past(self, batch: EventBatch) -> list[InFlightEvent | EventBatch]:
        """Pass a batch without events; return what this releases."""
        release = self._release_of(batch)
        release.add(batch)
        return release.complete(batch)

    def _release_of(self, batch: EventBatch) -> OrderedRelease[InFlightEvent | EventBatch]:
        return self._releases.setdefault(batch.source, OrderedRelease())

    def load_of(self, batch: EventBatch) -> Load | None:
        for load in (self._load, self._aside.get(batch.source)):
            if load is not None and load.batch is batch:
                return load
        return None

    def add(self, entry: InFlightEvent) -> None:
        """Put an event that was looked at into the order."""
        self.order.add(entry.place, entry)

    def begin_event(self, now: float) -> InFlightEvent | None:
        begun = self.order.begin_event()
        if begun is None:
            return None
        entry = begun[1]
        entry.began = now
        self._begun[entry] = None
        return entry

    def end_event(self, entry: InFlightEvent) -> None:
        del self._begun[entry]
        del self._looked[entry]
        self.order.end_event(entry.place)
        entry.load.left -= 1

    @property
    def unended(self) -> list[InFlightEvent]:
        """The events that were looked at and have not ended, in order."""
        return list(self._looked)

    @property
    def begun(self) -> list[InFlightEvent]:
        return list(self._begun)

    def commit_taken(self) -> Iterator[InFlightEvent | EventBatch]:
        for release in self._releases.values():
            if release.stopped:
                yield from release.commit_taken()


class InFlight:
    """Begins and ends the ``entries`` of a task.

    ``modes`` say how the events of each stream are run; ``streams`` are all streams of the app.
    ``on_arrival`` is called, from any thread, when an event has ended. ``processed`` counts events.
    """

    def __init__(
        self,
        entries: InFlightEvents,
        *,
        gate: Gate,
        backlog: Backlog,
        processor: Processor,
        schedule: Schedule,
        failures: Failures[Any],
        modes: Mapping[str, Mode],
        streams: Sequence[Stream],
    ) -> None:
        self.processed = 0
        self.on_arrival: Callable[[], None] = lambda: None
        self._entries = entries
        self._order = entries.order
        self._gate = gate
        self._backlog = backlog
        self._processor = processor
        self._schedule = schedule
        self._failures = failures
        self._modes = modes
        self._streams = streams
        self._released: list[Action] = []  # requests made at released events
        self._stream: str | None = None  # the only one whose events may be in flight now
        self._looks_again = False  # when other tasks have had their turn
        self._arrived: deque[tuple[InFlightEvent, BaseException | None]] = deque()
        backlog.on_cut = self._cut
        self.be_careful(None)

    def be_careful(self, careful: Careful | None) -> None:
        """Have the place of each event written by ``careful``; None ends this."""
        begin, end = self._processor.before_event, self._entries.end_event
        self._before_event, self._end_event = begin, end
        if careful is None:
            return

        def begin_carefully(entry: InFlightEvent) -> None:
            careful.event_begins(entry.batch, entry.index)
            begin(entry)

        def end_carefully(entry: InFlightEvent) -> None:
            end(entry)
            careful.event_ended()

        self._before_event, self._end_event = begin_carefully, end_carefully

    # -- what may begin ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True if an event that was looked at has not ended."""
        return bool(self._order.outstanding or self._order.waiting)

    @property
    def ready(self) -> bool:
        """True if an event that was looked at may begin now."""
        return self._order.ready

    @property
    def closing(self) -> bool:
        """True if a commit waits for events that were looked at, as later ones may be done."""
        return self._gate.whole and self._gate.commit_due and self._order.waiting > 0

    def own_events(self) -> Iterator[tuple[str, list[Any]]]:
        """The events that the app itself has put, by stream."""
        for entry in self._entries.unended:
            if entry.batch.receipt is None:
                yield entry.batch.stream, [entry.event]

    def choose(self) -> bool:
        """Choose the next event, also one that runs alone; return False if there is none."""
        order, backlog = self._order, self._backlog
        if not (order.outstanding or order.waiting):
            self._stream = None
            if not backlog.choose():
                return False
            assert backlog.at_hand is not None
            stream = backlog.at_hand.stream
            if self._modes[stream] is not Mode.TOGETHER:
                return True
            order.limit = self._processor.limit(stream)
            self._stream = None if self._processor.mixes else stream
        self._looks_again = False
        self._look_ahead()
        return order.ready or self._looks_again

    def _look_ahead(self) -> None:
        """Look at the next events: those that may begin, and some ahead to find other keys.

        A due commit may have to wait for all events that were looked at, so no further ones are.
        """
        entries, backlog, stream = self._entries, self._backlog, self._stream
        by_key = self._processor.by_key
        turn = 1 if stream is None else self._order.limit * _AHEAD
        empty = 0
        while not self._gate.commit_due and entries.wants(by_key):
            batch = backlog.at_hand
            if batch is not None and backlog.turn_over(turn):
                backlog.put_aside()
                batch = None
            if batch is None or not backlog.may(batch.source):
                if not (backlog.choose() if stream is None else backlog.choose_of(stream)):
                    return
                continue
            if batch.at < len(batch.events):
                receipt = batch.receipt
                entry = entries.look(batch, in_order=receipt is not None and receipt.by_event)
                self._processor.set_order_key(entry)
                entries.add(entry)
                batch.at += 1
                for executor in backlog.rates.get(batch.source, ()):
                    executor.left(1)
            elif not batch.events:
                backlog.stages[batch.source].release(batch.size, batch.bytes)
                if batch.receipt is not None:
                    if batch.receipt.by_event:
                        self._release(entries.look_past(batch))
                    else:
                        batch.receipt.done()
            if batch.at >= len(batch.events):
                more = backlog.finished()
                empty += 0 if batch.events else batch.size
                if empty >= _EMPTY and more:
                    self._looks_again = True
                    return

    def _cut(self, batch: EventBatch, events: int) -> bool:
        """Leave the last ``events`` events of a batch, not yet looked at, to their producer.

        Return True if other events of the batch have not ended, or are not released.
        """
        load = self._entries.load_of(batch)
        if load is None:
            return False
        load.left -= events
        load.unreleased -= events
        return (load.left if load.release is None else load.unreleased) > 0

    # -- begin and end -----------------------------------------------------------------------

    def begin_event(self, now: float) -> InFlightEvent | None:
        entry = self._entries.begin_event(now)
        if entry is not None:
            self._gate.begin_step(Op.PROCESS)
            self._schedule.event_begins()
            self._before_event(entry)
        return entry

    def end_soon(self, entry: InFlightEvent, error: BaseException | None) -> None:
        """Note, from any thread, that an event has ended."""
        self._arrived.append((entry, error))
        self.on_arrival()

    def end_arrived(self) -> Actions:
        """End the events noted by ``end_soon``; raises an error that stops the app."""
        actions = self._taken()
        while self._arrived:
            actions = [*actions, *self.end_event(*self._arrived.popleft())]
        return actions

    def end_overdue(self, now: float, timeout: float) -> Actions:
        """Fail the events that have been in flight for ``timeout`` seconds.

        A handler that still runs is cancelled if possible, and its end is ignored. Raises
        EventTimeout if the failure stops the app.
        """
        actions = list(self.end_arrived())
        for entry in self._entries.begun:
            if entry.began + timeout <= now:
                failure = self._failures.timed_out(entry.batch, entry.index, timeout)
                actions += self.end_event(entry, failure)
                entry.over = True
                if entry.cancel is not None:
                    entry.cancel()
        return actions

    def overdue_at(self, now: float, timeout: float) -> float:
        """The earliest time at which an event can be overdue."""
        return min([now, *(entry.began for entry in self._entries.begun)]) + timeout

    async def tidy(self, entry: InFlightEvent) -> None:
        """Apply the bounds of caches after a handler, if the task is idle or they are too full."""
        order, processor = self._order, self._processor
        alone = False
        while not alone:  # other events that end meanwhile leave the work to this one
            alone = order.outstanding == 1 and not order.waiting
            if not alone and not processor.crowded(len(order.keys)):
                return
            processor.after_event(entry)  # instances that leave memory are saved as they are now
            await processor.tidy(None if alone else order.keys)

    def end_event(self, entry: InFlightEvent, error: BaseException | None = None) -> Actions:
        """End an event; raises an error that stops the app."""
        if entry.over:
            return NONE
        load, failures = entry.load, self._failures
        batch, backoff = load.batch, failures.isolation.backoff
        failure: ProcessingError | None = None
        if isinstance(error, EventTimeout):
            failure = error
        elif error is not None:
            try:
                self._processor.failed(batch, error, entry.index)
            except ProcessingError as found:
                failure = found
        if failure is not None:
            failures.roll_back(failure)
        if self._gate.phase is Phase.FAILED:
            entry.put.clear()
            self._end_event(entry)
            self._gate.end_step(Op.PROCESS)
            return failures.step_ended()
        self._processor.after_event(entry)
        pulled, changes = backoff is not None and backoff.pulls(1), failures.changes
        if pulled or (changes is not None and changes.bytes > failures.changes_bytes):
            self._gate.commit_due = True
        actions: list[Action] = [
            HandOn(batch.stream, self._streams[index], events)
            for index, events in enumerate(entry.put)
            if events
        ]
        self.processed += 1
        entry.put.clear()
        self._end_event(entry)
        self._gate.end_step(Op.PROCESS)
        stage = self._backlog.stages[batch.source]
        if load.left:
            stage.release(1)
        else:
            stage.release(batch.size - len(batch.events) + 1, batch.bytes)
        if load.release is None:
            if not load.left and batch.receipt is not None:
                batch.receipt.done()
            if entry.asked.any:
                actions.append(Ask(entry.asked))
            return actions
        stops = entry.asked.commit_this and not self._gate.whole
        self._release(load.release.complete(entry, stops))
        actions += self._taken()
        return actions

    # -- releasing ---------------------------------------------------------------------------

    @property
    def asks(self) -> bool:
        """True if ``end_arrived`` has requests to return."""
        return bool(self._released)

    def _taken(self) -> Actions:
        if not self._released:
            return NONE
        taken, self._released = self._released, []
        return taken

    def commit_ended(self) -> Actions:
        """Release the events that waited for a commit; they are part of the next one."""
        behind = list(self._entries.commit_taken())
        self._gate.uncommitted |= bool(behind)
        self._release(behind)
        return self._taken()

    def release_all(self) -> Actions:
        """Release all events that wait for a commit, without a commit."""
        while behind := list(self._entries.commit_taken()):
            self._release(behind)
        return self._taken()

    def _release(self, released: Iterable[InFlightEvent | EventBatch]) -> None:
        """Acknowledge released events, and note the requests made at them."""
        for entry in released:
            if isinstance(entry, EventBatch):
                if self._processor.timed:
                    self._processor.events_done(entry)
                assert entry.receipt is not None
                entry.receipt.done()
                continue
            load = entry.load
            receipt = load.batch.receipt
            assert receipt is not None
            load.unreleased -= 1
            if load.unreleased:
                number = load.batch.number(entry.index)
                receipt.complete(number, number + 1)
            else:
                if self._processor.timed:
                    self._processor.events_done(load.batch)
                receipt.done()
            if entry.asked.any:
                self._released.append(Ask(entry.asked))
