"""Events of one task that are outstanding together: begun, and not yet ended. Pure.

Rules
- At most ``limit`` are outstanding. In the order of arrival each begins when there is a place; in
  the order of keys one waits for those of its key that came before it, and stops no other.
- Events are looked at ahead of their turn only to find other keys; none while a commit is due.
- A batch that is put aside and comes back is the same load: it is done when all of it has ended.
- An event ends when it is told to, once, from whatever thread; what comes of that is done in the
  loop's thread.
- What it has put is handed on when it ends.
- What is read from an input that can be read again is released in the order in which it came. What
  was asked for at an event takes effect when it is released. A batch without events of the task has
  its place in that order, too: it may have events of other tasks, which go on when it is released.
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
from s4node.runtime.task.processor import InFlightEvent, Load, Mode, Processor
from s4node.runtime.task.timers import Timers
from s4node.stages.key_order import KeyOrder

_AHEAD = 4
"""Events looked at for each that may be outstanding, to find other keys."""

_EMPTY = 512
"""Events of batches in which none decodes, after which a look ends: it takes time to load them."""


class InFlightEvents:
    """The events of one task that were looked at and have not ended: their order."""

    def __init__(self, limit: int, streams: int) -> None:
        self.order: KeyOrder[InFlightEvent] = KeyOrder(limit)
        self._streams = streams
        self._load: Load | None = None
        self._aside: dict[Hashable, Load] = {}  # by source, one at most each
        self._begun: dict[InFlightEvent, None] = {}
        self._looked: dict[InFlightEvent, None] = {}  # and not ended
        self._releases: dict[Hashable, OrderedRelease[InFlightEvent | EventBatch]] = {}

    def wants(self, by_key: bool) -> bool:
        """Whether to look at another event."""
        order = self.order
        if by_key:
            return order.waiting < order.limit * _AHEAD
        return not order.waiting and order.outstanding < order.limit

    def look(self, batch: EventBatch, *, in_order: bool) -> InFlightEvent:
        """The next event of a batch; ``add`` it then. Whether its place is part of commits, and
        events are released ``in_order``."""
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
            load.release.begin(entry)
        return entry

    def look_past(self, batch: EventBatch) -> list[InFlightEvent | EventBatch]:
        """A batch without events is done in its turn; returns what is released by that."""
        release = self._release_of(batch)
        release.begin(batch)
        return release.complete(batch)

    def _release_of(self, batch: EventBatch) -> OrderedRelease[InFlightEvent | EventBatch]:
        return self._releases.setdefault(batch.source, OrderedRelease())

    def load_of(self, batch: EventBatch) -> Load | None:
        """What was made of a batch when its first event was looked at; None if none was."""
        for load in (self._load, self._aside.get(batch.source)):
            if load is not None and load.batch is batch:
                return load
        return None

    def add(self, entry: InFlightEvent) -> None:
        """Let it take its place."""
        self.order.add(entry.place, entry)

    def begin(self, now: float) -> InFlightEvent | None:
        """Begin an event that may be begun now; None if there is none."""
        begun = self.order.begin()
        if begun is None:
            return None
        entry = begun[1]
        entry.began = now
        self._begun[entry] = None
        return entry

    def end(self, entry: InFlightEvent) -> None:
        """An event has ended."""
        del self._begun[entry]
        del self._looked[entry]
        self.order.end(entry.place)
        entry.load.left -= 1

    @property
    def unended(self) -> list[InFlightEvent]:
        """The events that were looked at and have not ended, in their order."""
        return list(self._looked)

    @property
    def begun(self) -> list[InFlightEvent]:
        """The events that are outstanding."""
        return list(self._begun)

    def resume(self) -> Iterator[InFlightEvent | EventBatch]:
        """A commit has been taken; what is released by that."""
        for release in self._releases.values():
            if release.stopped:
                yield from release.resume()


class InFlight:
    """Begins and ends the ``entries`` of a task.

    ``modes`` say how the events of each stream are run, ``streams`` are all of the app.
    ``on_arrival`` is called when an event has ended, in whatever thread. ``processed`` counts.
    """

    def __init__(
        self,
        entries: InFlightEvents,
        *,
        gate: Gate,
        backlog: Backlog,
        processor: Processor,
        timetable: Timers,
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
        self._timetable = timetable
        self._failures = failures
        self._modes = modes
        self._streams = streams
        self._released: list[Action] = []  # what was asked for at events that are released
        self._stream: str | None = None  # the only one whose events may be outstanding now
        self._looks_again = False  # at further events, when others have had their turn
        self._arrived: deque[tuple[InFlightEvent, BaseException | None]] = deque()
        backlog.on_cut = self._cut

    # -- what may begin ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether some event that was looked at has not ended."""
        return bool(self._order.outstanding or self._order.waiting)

    @property
    def ready(self) -> bool:
        """Whether an event that was looked at may begin now."""
        return self._order.ready

    @property
    def closing(self) -> bool:
        """Whether a commit waits for events that were looked at: those behind them may be done."""
        return self._gate.whole and self._gate.commit_due and self._order.waiting > 0

    def own(self) -> Iterator[tuple[str, list[Any]]]:
        """The events that came from nowhere but the app itself, by stream."""
        for entry in self._entries.unended:
            if entry.batch.receipt is None:
                yield entry.batch.stream, [entry.event]

    def choose(self) -> bool:
        """Have an event that may be processed, if there is one; also one that is not run beside
        others."""
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
            self._stream = None if self._processor.mixes() else stream
        self._looks_again = False
        self._look()
        return order.ready or self._looks_again

    def _look(self) -> None:
        """Look at further events: those that may begin, and ahead of them to find other keys.

        At none while a commit is due: it may have to wait for all that were looked at, and would
        wait for as long as there are events.
        """
        entries, backlog, stream = self._entries, self._backlog, self._stream
        by_key = self._processor.by_key()
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
                self._processor.place(entry)
                entries.add(entry)
                batch.at += 1
                for executor in backlog.rates.get(batch.source, ()):
                    executor.left(1)
            elif not batch.events:
                backlog.stages[batch.source].passed(batch.size, batch.bytes)
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
        """The last so many events of a batch, at which nobody has looked, go back to their
        producer; True if others of it have not ended, or are not released."""
        load = self._entries.load_of(batch)
        if load is None:
            return False
        load.left -= events
        load.unreleased -= events
        return (load.left if load.release is None else load.unreleased) > 0

    # -- from the begin to the end -----------------------------------------------------------

    def begin(self, now: float) -> InFlightEvent | None:
        """Begin the next event beside those that are outstanding, if one may begin."""
        entry = self._entries.begin(now)
        if entry is not None:
            self._gate.begin(Op.PROCESS)
            self._timetable.event_begins()
            isolation, processor = self._failures.isolation, self._processor
            if isolation is not None:
                entry.slot = isolation.begins_one(entry.batch, entry.index)
            processor.begins(entry)
            if isolation is not None and isolation.examination.looks:
                processor.check(entry.batch.stream, entry.event)
        return entry

    def end_soon(self, entry: InFlightEvent, error: BaseException | None) -> None:
        """An event has ended, in whatever thread."""
        self._arrived.append((entry, error))
        self.on_arrival()

    def end_arrived(self) -> Actions:
        """End what has ended in whatever thread since the last time; raises what stops the app."""
        actions = self._taken()
        while self._arrived:
            actions = [*actions, *self.end(*self._arrived.popleft())]
        return actions

    def end_overdue(self, now: float, timeout: float) -> Actions:
        """End the events that are outstanding for ``timeout`` seconds, as such at which the task
        has failed. Raises EventTimeout where that stops the app.

        What still runs of them is cancelled, or left alone, and its end is ignored.
        """
        actions = list(self.end_arrived())
        for entry in self._entries.begun:
            if entry.began + timeout <= now:
                failure = self._failures.timed_out(entry.batch, entry.index, timeout)
                actions += self.end(entry, failure)
                entry.over = True
                if entry.cancel is not None:
                    entry.cancel()
        return actions

    def overdue_at(self, now: float, timeout: float) -> float:
        """When the next event is overdue, at the earliest."""
        return min([now, *(entry.began for entry in self._entries.begun)]) + timeout

    async def tidy(self, entry: InFlightEvent) -> None:
        """A handler has returned, and its event is about to end: apply the bounds of what is in
        memory, if nothing else is left to do or too much is there."""
        if self._failures.left_by(entry.batch, entry.index) is not None:
            return  # it goes back for this; what cannot be saved stays where it is looked for
        order, processor = self._order, self._processor
        alone = False
        while not alone:  # others may end meanwhile, and leave it to this one
            alone = order.outstanding == 1 and not order.waiting
            if not alone and not processor.crowded(len(order.keys)):
                return
            processor.ended(entry)  # for what leaves memory is saved as of now
            await processor.tidy(None if alone else order.keys)

    def end(self, entry: InFlightEvent, error: BaseException | None = None) -> Actions:
        """An event has ended; raises what stops the app."""
        if entry.over:
            return NONE
        entries, load, failures = self._entries, entry.load, self._failures
        batch, isolation = load.batch, failures.isolation
        failure: ProcessingError | None = None
        if error is None and self._gate.phase is not Phase.FAILED:
            failure = failures.left_by(batch, entry.index)
        if isolation is not None:
            isolation.ended_one(batch, entry.index, entry.slot)
        if isinstance(error, EventTimeout):
            failure = error
        elif error is not None:
            try:
                self._processor.failed(batch, error, entry.index)
            except ProcessingError as found:
                failure = found
        if failure is not None:
            failures.go_back(failure)
        actions = list(failures.check_changes())
        if self._gate.phase is Phase.FAILED:
            entry.put.clear()
            entries.end(entry)
            self._gate.end(Op.PROCESS)
            return [*actions, *failures.ended()]
        self._processor.ended(entry)
        pulled, changes = isolation is not None and isolation.pulls(1), failures.changes
        if pulled or (changes is not None and changes.bytes > failures.changes_bytes):
            self._gate.commit_due = True
        actions += [
            HandOn(batch.stream, self._streams[index], events)
            for index, events in enumerate(entry.put)
            if events
        ]
        self.processed += 1
        entry.put.clear()
        entries.end(entry)
        self._gate.end(Op.PROCESS)
        stage = self._backlog.stages[batch.source]
        if load.left:
            stage.passed(1)
        else:
            stage.passed(batch.size - len(batch.events) + 1, batch.bytes)
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

    # -- what is released --------------------------------------------------------------------

    @property
    def asks(self) -> bool:
        """Whether something was asked for that ``end_arrived`` has yet to return."""
        return bool(self._released)

    def _taken(self) -> Actions:
        if not self._released:
            return NONE
        taken, self._released = self._released, []
        return taken

    def commit_ended(self) -> Actions:
        """A commit has ended: what has waited for it is released, and is of the next one."""
        behind = list(self._entries.resume())
        self._gate.uncommitted |= bool(behind)
        self._release(behind)
        return self._taken()

    def release_all(self) -> Actions:
        """Release all that waits for a commit, without one."""
        while behind := list(self._entries.resume()):
            self._release(behind)
        return self._taken()

    def _release(self, released: Iterable[InFlightEvent | EventBatch]) -> None:
        """Tell the inputs of what is released, and note what was asked for there."""
        for entry in released:
            if isinstance(entry, EventBatch):
                assert entry.receipt is not None
                entry.receipt.done()
                continue
            load = entry.load
            receipt = load.batch.receipt
            assert receipt is not None
            load.unreleased -= 1
            if load.unreleased:
                number = load.batch.number(entry.index)
                receipt.passed(number, number + 1)
            else:
                receipt.done()
            if entry.asked.any:
                self._released.append(Ask(entry.asked))
