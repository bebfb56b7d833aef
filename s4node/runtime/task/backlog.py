"""The waiting batches of a task, in its stages, and the choice of the current one. Pure.

Rules
- Each source of batches, a stream or a replayable input, has a stage. A batch stays in its stage
  until it is finished; the head of a stage is the source's next batch.
- The head of a source is either the current batch or waits for its turn. Internal streams take
  turns and go before inputs; among inputs the chooser decides.
- A source is held while a stage that it leads to is full, or while its rate is used up. A held
  source keeps the rest of its batch and stops no other source.
- After each step a source gives way to others that wait. If none wait, it keeps its batch current
  until all events have passed.
- A batch that is given back is replayed by the next owner of the task. A frame that was divided by
  key is given back only if all of its parts, which are with several tasks, still wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from itertools import chain
from typing import Any

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.events.event import EventBatch
from s4node.net.ingress.unbegun import WillResend, cut_off
from s4node.offsets.system import InputBatch
from s4node.runtime.task.chooser import Bootstrap, MessageChooser, batching_of
from s4node.stages.executors import UNLIMITED, Executor
from s4node.stages.stage import Overflow, Stage


class Backlog:
    """The waiting batches of one task, by source.

    ``at_hand`` is the batch being processed. Code that takes its last event without calling
    ``advance`` must call ``finished``. ``held`` names the streams that must not be processed now;
    its owner changes it. ``rates`` are the executors that limit how fast events leave their stages.
    ``chooser`` decides among inputs; if it is None they take turns. ``on_load`` is called with each
    batch before it becomes current for the first time. ``on_cut`` is called with a frame and the
    number of its last events that were left to its producer, and returns True if other events of
    the frame have yet to end. ``inner_waiting`` and ``outer_waiting`` are the heads of sources that
    wait for their turn.
    """

    def __init__(
        self,
        app: App,
        stages: Mapping[Any, Stage],
        clock: Callable[[], float],
        *,
        held: Collection[str],
        rates: Mapping[str, tuple[Executor, ...]],
        chooser: MessageChooser[Any] | None,
        bootstrap: Bootstrap | None,
    ) -> None:
        fed = [s for s in app.streams.values() if not isinstance(s, OutputStream)]
        self.stages: dict[Any, Stage] = dict(stages)
        self.at_hand: EventBatch | None = None
        self.inner = frozenset(s.name for s in fed if not isinstance(s, InputStream))
        self.rates: dict[Any, tuple[Executor, ...]] = dict(rates)
        self.resume_at: float | None = None  # when a rate next allows an event
        self.replayable: set[Hashable] = set()
        self.closed = False  # offered batches are discarded
        self.bootstrap = bootstrap
        self.on_load: Callable[[EventBatch], None] | None = None
        self.on_cut: Callable[[EventBatch, int], bool] | None = None
        self._clock = clock
        self._held = held
        self.is_live = any(isinstance(s, InputStream) and s.is_live for s in fed)
        self._fed = [s.name for s in fed]
        self._stream_of: dict[Any, str] = {s.name: s.name for s in fed}
        self._chooser = chooser
        self._batching = batching_of(chooser)
        self._began = 0  # where the current batch was when chosen
        self.inner_waiting: dict[Any, EventBatch] = {}
        self.outer_waiting: dict[Any, EventBatch] = {}
        self._unended: set[Hashable] = set()  # replayable inputs
        self._given_back = False
        self._cuts: WillResend | None = None  # to cut begun frames after their slice

    # -- offering ----------------------------------------------------------------------------

    def add_input(self, source: Hashable, stage: Stage, rates: tuple[Executor, ...] = ()) -> None:
        """Add the stage of ``source``, a replayable input, before its first batch is offered."""
        self.stages[source] = stage
        self._stream_of[source] = stage.settings.stream
        self._unended.add(source)
        self.replayable.add(source)
        if rates:
            self.rates[source] = rates

    def end_input(self, source: Hashable) -> None:
        """Note that all batches of an input have been offered."""
        self._unended.discard(source)

    @property
    def fed(self) -> bool:
        """True if the task has any input from outside the app."""
        return self.is_live or bool(self.replayable)

    @property
    def inputs_ended(self) -> bool:
        """True if nothing more can come from outside the app."""
        return bool(self.replayable) and not self.is_live and not self._unended

    def offer(self, batch: EventBatch) -> None:
        """Put a batch into the stage of its source; the caller wakes the loop."""
        if self.closed or (self._given_back and isinstance(batch, InputBatch)):
            return
        source = batch.source
        stage = self.stages[source]
        if stage.take_in(batch, self._clock()):
            assert stage.head is not None
            self._wait(source, stage.head)

    def restore_overflow(self, source: Any, overflow: Overflow, events: int) -> None:
        """Take over ``events`` events that an earlier run left in the overflow of a stage."""
        stage = self.stages[source]
        stage.restore_overflow(overflow, events)
        if stage.head is None:
            self._next(source, stage)

    def finished(self) -> bool:
        """End the current batch, as all of it has begun; return True if its source has more."""
        batch = self.at_hand
        assert batch is not None
        self.at_hand = None
        return self._next(batch.source, self.stages[batch.source])

    def _next(self, source: Any, stage: Stage) -> bool:
        """Move the next batch of a source to its head; return False if there is none."""
        if stage.depth <= stage.in_flight:
            stage.head = None
            return False
        batch = stage.poll(self._clock())
        assert batch is not None
        self._wait(source, batch)
        return True

    def _wait(self, source: Any, batch: EventBatch) -> None:
        waiting = self.inner_waiting if source in self.inner else self.outer_waiting
        waiting[source] = batch

    # -- choosing ----------------------------------------------------------------------------

    def choose(self) -> bool:
        """Choose the current batch; return False if none may be processed."""
        batch = self.at_hand
        if batch is not None:
            if self.may(batch.source):
                return True
            self.put_aside()  # the others go on meanwhile
        return self._take(self.may)

    def put_aside(self) -> None:
        """Let other sources go before the rest of the current batch."""
        batch = self.at_hand
        assert batch is not None
        self.at_hand = None
        self._wait(batch.source, batch)

    def turn_over(self, events: int) -> bool:
        """Return True if others wait and the current batch has had ``events`` or its turn."""
        batch = self.at_hand
        assert batch is not None
        if not (self.inner_waiting or self.outer_waiting):
            return False
        return batch.at - self._began >= events or self._left_of_turn(batch) <= 0

    def limit(self, events: int) -> int:
        """The number of ``events`` of the current batch that a step may take; at least one."""
        batch = self.at_hand
        assert batch is not None
        if batch.source in self.rates:
            events = max(1, min(events, self.allowance(batch.source)))
        if self.inner_waiting or self.outer_waiting:
            events = max(1, min(events, self._left_of_turn(batch)))
        return events

    def _left_of_turn(self, batch: EventBatch) -> int:
        if self._batching is None or batch.source in self.inner:
            return UNLIMITED
        return self._batching.left

    def choose_of(self, stream: str) -> bool:
        """Choose another batch of a stream, unless another stream may go."""
        waiting = (*self.inner_waiting, *self.outer_waiting)
        if self.at_hand is not None or any(
            self._stream_of[s] != stream and self.may(s) for s in waiting
        ):
            return False
        return self._take(lambda s: self._stream_of[s] == stream and self.may(s))

    def _take(self, may: Callable[[Any], bool]) -> bool:
        """Make the head of the next source current, of those that may go now."""
        inner, outer, chooser = self.inner_waiting, self.outer_waiting, self._chooser
        for source in inner if chooser is not None else chain(inner, outer):
            if may(source):
                break
        else:
            source = None if chooser is None else chooser.choose(outer, may)
            if source is None:
                return False
        batch = inner.pop(source, None) or outer.pop(source)
        stage = self.stages[source]
        if not stage.loaded:
            stage.load()
            if self.on_load is not None:
                self.on_load(batch)
        self.at_hand, self._began = batch, batch.at
        return True

    def may(self, source: Any) -> bool:
        if self._stream_of[source] in self._held:
            return False
        return source not in self.rates or self.allowance(source) > 0

    def allowance(self, source: Any) -> int:
        """The number of events of a source that may leave now, by its rate."""
        if source not in self.rates:
            return UNLIMITED
        now = self._clock()
        allowed = UNLIMITED
        for executor in self.rates[source]:
            one = executor.allowance(now)
            if one <= 0:
                at = executor.next_at(now)
                self.resume_at = at if self.resume_at is None else min(at, self.resume_at)
            allowed = min(allowed, one)
        return allowed

    def advance(self, count: int) -> None:
        """End a step that processed ``count`` events of the current batch.

        After its last event, acknowledge the batch and move to the next one of its source.
        """
        batch = self.at_hand
        assert batch is not None
        for executor in self.rates.get(batch.source, ()):
            executor.left(count)
        stage, before = self.stages[batch.source], batch.at
        batch.at += count
        if batch.at < len(batch.events):
            stage.release(count)
            if count and batch.receipt is not None and batch.receipt.by_event:
                batch.receipt.complete(batch.number(before), batch.number(batch.at - 1) + 1)
            if self._given_back and _is_whole(batch):
                self._abandon(batch)
            elif self._cuts is not None and self._cut_off(batch, self._cuts):
                pass
            elif self.inner_waiting or self.outer_waiting:
                self.put_aside()
            return
        self.at_hand = None
        self._next(batch.source, stage)
        stage.release(batch.size - before, batch.bytes)
        if batch.receipt is not None:
            batch.receipt.done()

    # -- leaving events unprocessed ------------------------------------------------------------

    def give_back(self, *, slicing: bool) -> None:
        """Begin no more replayable events.

        If a slice of the current batch runs, the rest of that batch goes after the slice.
        """
        self._given_back = True
        for source in self.replayable:
            self.stages[source].give_back(_is_whole)
            batch = self.stages[source].head
            if batch is not None and _is_whole(batch) and not (slicing and batch is self.at_hand):
                self._abandon(batch)

    @property
    def has_sent(self) -> bool:
        """True if events wait that a producer sent and that cannot be replayed."""
        heads = (self.stages[source].head for source in self._fed)
        return any(batch is not None and batch.receipt is not None for batch in heads)

    def unbegun(self, *, slicing: bool) -> Iterator[EventBatch]:
        """The batches that have not begun and cannot be replayed.

        While a slice runs, the current batch counts as begun.
        """
        for source in self._fed:
            batch = self.stages[source].head
            if batch is not None and not batch.at and not (slicing and batch is self.at_hand):
                yield batch
            yield from self.stages[source].waiting

    def leave_to_producers(
        self, frames: Collection[Any], kept: WillResend, *, slicing: bool
    ) -> None:
        """Leave ``frames``, given by their receipts, to their producers, as none has begun.

        Also leave the rest of frames that have begun; of the current one after its slice.
        """
        for source in self._fed:
            self.stages[source].give_back(lambda batch: batch.receipt in frames)
            batch = self.stages[source].head
            if batch is None:
                continue
            if batch.receipt in frames:
                self._abandon(batch)
            elif batch.at and not (slicing and batch is self.at_hand):
                self._cut_off(batch, kept)
        self._cuts = kept

    def _cut_off(self, batch: EventBatch, kept: WillResend) -> bool:
        """Leave the rest of a frame to its producer; return False if that is not possible."""
        if not cut_off(batch, kept):
            return False
        self._abandon(batch)
        rest = len(batch.events) - batch.at
        batch.events = batch.events[: batch.at]
        batch.size, batch.bytes = batch.at, 0
        assert batch.receipt is not None
        if self.on_cut is None or not self.on_cut(batch, rest):
            batch.receipt.done()
        return True

    def _abandon(self, batch: EventBatch) -> None:
        """Drop the batch at the head of its source."""
        source = batch.source
        stage = self.stages[source]
        stage.give_head_back()
        if batch is self.at_hand:
            self.at_hand = None
        self.inner_waiting.pop(source, None)
        self.outer_waiting.pop(source, None)
        self._next(source, stage)

    def discard(self) -> None:
        """Drop all waiting batches; they are replayed to the task that replaces this one."""
        self.inner_waiting.clear()
        self.outer_waiting.clear()
        for stage in self.stages.values():
            stage.clear()

    # -- observing ---------------------------------------------------------------------------

    @property
    def has_waiting(self) -> bool:
        """True if batches wait beside the current one.

        Batches that wait for a bootstrap that will never end are left to their producers.
        """
        if self.inner_waiting:
            return True
        ends = self._given_back and self.bootstrap is not None and self.bootstrap.streams
        return bool(self.outer_waiting) and not ends

    def own_events(self) -> Iterator[tuple[str, list[Any]]]:
        for name in self._fed:
            for events in self.stages[name].own_events:
                yield name, events

    @property
    def buffered(self) -> int:
        """The number of events at the heads of stages that have not passed."""
        heads = (stage.head for stage in self.stages.values())
        return sum(head.size - head.at for head in heads if head is not None)

    @property
    def batch_resets(self) -> int:
        """The number of times that a batching chooser gave way to other inputs."""
        return 0 if self._batching is None else self._batching.resets

    @property
    def lagging(self) -> dict[str, int]:
        """The number of partitions that the bootstrap still has to read, by stream."""
        return self.bootstrap.lag if self.bootstrap is not None else {}


def _is_whole(batch: EventBatch) -> bool:
    return isinstance(batch, InputBatch)
