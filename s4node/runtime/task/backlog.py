"""What waits in a task: the batches in its stages, and which of them is at hand. Pure.

Rules
- Each source of batches, a stream or an input that can be read again, has a stage. A batch is in
  its stage from its coming to its end; the one at the head of a stage is the source's next.
- A source with a batch at its head waits for its turn, or the batch is at hand. Internal streams
  take turns, and go before inputs; among inputs the chooser decides.
- A source that is held, because a stage it leads to is full or because its rate is used up, stops
  no other: it waits with the rest of its batch.
- After each step a source gives way to the others that wait. One that is alone keeps its batch at
  hand until all of it has passed.
- What is given back comes again, to the next owner of the task. What was taken apart by key is not
  given back, for its parts are with several tasks; a frame is, where all of its parts still wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from itertools import chain
from typing import Any

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.events.event import EventBatch
from s4node.net.ingress.unbegun import KeptElsewhere, cut_off
from s4node.offsets.system import InputBatch
from s4node.runtime.task.chooser import Bootstrap, MessageChooser, batching_of
from s4node.stages.executors import UNLIMITED, Executor
from s4node.stages.stage import Overflow, Stage


class Backlog:
    """That of one task, by source.

    ``at_hand`` is the batch that is processed now; code that takes its last event without
    ``passed`` calls ``finished``. ``held`` are the streams that must not be processed now; it
    changes. ``rates`` are the executors that limit how fast events may leave their stages.
    ``chooser`` is for what comes from outside, which takes turns if it is None, and heeds the
    ``bootstrap``. ``on_load`` is called with each batch that is to be at hand for the first time.
    ``on_cut`` is called with a frame of which the last so many events have been left to its
    producer, and says whether others of it have yet to end.
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
        self.resume_at: float | None = None  # when a rate gives leave again
        self.replayable: set[Hashable] = set()
        self.closed = False  # what comes is discarded
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
        self._began = 0  # where the batch at hand was when it was chosen
        self._inner_waiting: dict[Any, EventBatch] = {}  # the heads that are not at hand
        self._outer_waiting: dict[Any, EventBatch] = {}
        self._unended: set[Hashable] = set()  # inputs that can be read again
        self._given_back = False
        self._cuts: KeptElsewhere | None = None  # frames that have begun, after their next slice

    # -- what comes --------------------------------------------------------------------------

    def add_input(self, source: Hashable, stage: Stage, rates: tuple[Executor, ...] = ()) -> None:
        """Queue the batches of ``source``, an input that can be read again, in a stage of their
        own; before any is offered."""
        self.stages[source] = stage
        self._stream_of[source] = stage.settings.stream
        self._unended.add(source)
        self.replayable.add(source)
        if rates:
            self.rates[source] = rates

    def ended(self, source: Hashable) -> None:
        """All batches of an input have been offered."""
        self._unended.discard(source)

    @property
    def fed(self) -> bool:
        """Whether there is anything from outside that the task could wait for."""
        return self.is_live or bool(self.replayable)

    @property
    def inputs_ended(self) -> bool:
        """Whether nothing more can come from outside."""
        return bool(self.replayable) and not self.is_live and not self._unended

    def offer(self, batch: EventBatch) -> None:
        """Put a batch into the stage of its source; the caller wakes the loop."""
        if self.closed or (self._given_back and isinstance(batch, InputBatch)):
            batch.discard()
            return
        stage = self.stages[batch.source]
        stage.offer(batch, self._clock())
        if stage.head is None:
            self._next(batch.source, stage)

    def resume(self, source: Any, overflow: Overflow, events: int) -> None:
        """So many events of an earlier life are in the overflow of a stage."""
        stage = self.stages[source]
        stage.resume(overflow, events)
        if stage.head is None:
            self._next(source, stage)

    def finished(self) -> bool:
        """The events of the batch at hand have all begun; return True if its source has more."""
        batch = self.at_hand
        assert batch is not None
        self.at_hand = None
        return self._next(batch.source, self.stages[batch.source])

    def _next(self, source: Any, stage: Stage) -> bool:
        """The head of a source is finished: have its next batch wait, if there is one."""
        if stage.depth <= stage.in_flight:
            stage.head = None
            return False
        batch = stage.take(self._clock())
        assert batch is not None
        self._wait(source, batch)
        return True

    def _wait(self, source: Any, batch: EventBatch) -> None:
        waiting = self._inner_waiting if source in self.inner else self._outer_waiting
        waiting[source] = batch

    # -- what is at hand ---------------------------------------------------------------------

    def choose(self) -> bool:
        """Have a batch at hand, if there is one that may be processed."""
        batch = self.at_hand
        if batch is not None:
            if self.may(batch.source):
                return True
            self.put_aside()  # the others go on meanwhile
        return self._take(self.may)

    def put_aside(self) -> None:
        """Let the others that wait have their turn before what is left of the batch at hand."""
        batch = self.at_hand
        assert batch is not None
        self.at_hand = None
        self._wait(batch.source, batch)

    def turn_over(self, events: int) -> bool:
        """Whether others wait, and so many events of the batch at hand have gone meanwhile."""
        batch = self.at_hand
        assert batch is not None
        if not (self._inner_waiting or self._outer_waiting):
            return False
        return batch.at - self._began >= events or self._left_of_turn(batch) <= 0

    def limit(self, events: int) -> int:
        """How many events of the batch at hand a step of so many may take; one at least."""
        batch = self.at_hand
        assert batch is not None
        if batch.source in self.rates:
            events = min(events, self.allowance(batch.source))
        if self._inner_waiting or self._outer_waiting:
            events = min(events, self._left_of_turn(batch))
        return max(1, events)

    def _left_of_turn(self, batch: EventBatch) -> int:
        if self._batching is None or batch.source in self.inner:
            return UNLIMITED
        return self._batching.left

    def choose_of(self, stream: str) -> bool:
        """Have another batch of a stream at hand, as long as nothing else may go."""
        waiting = (*self._inner_waiting, *self._outer_waiting)
        if self.at_hand is not None or any(
            self._stream_of[s] != stream and self.may(s) for s in waiting
        ):
            return False
        return self._take(lambda s: self._stream_of[s] == stream and self.may(s))

    def _take(self, may: Callable[[Any], bool]) -> bool:
        """Have the head of a source at hand whose turn it is, of those that may go now."""
        inner, outer, chooser = self._inner_waiting, self._outer_waiting, self._chooser
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
        """Whether a source may go now."""
        if self._stream_of[source] in self._held:
            return False
        return source not in self.rates or self.allowance(source) > 0

    def allowance(self, source: Any) -> int:
        """How many events of a source may leave now, by its rate."""
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

    def passed(self, count: int) -> None:
        """A step has ended: so many events of the batch at hand are done. Behind its last one
        acknowledge it, and let the next be offered."""
        batch = self.at_hand
        assert batch is not None
        for executor in self.rates.get(batch.source, ()):
            executor.left(count)
        stage, before = self.stages[batch.source], batch.at
        batch.at += count
        if batch.at < len(batch.events):
            stage.passed(count)
            if count and batch.receipt is not None and batch.receipt.by_event:
                batch.receipt.passed(batch.number(before), batch.number(batch.at - 1) + 1)
            if self._given_back and _is_whole(batch):
                self._abandon(batch)
            elif self._cuts is not None and self._cut_off(batch, self._cuts):
                pass
            elif self._inner_waiting or self._outer_waiting:
                self.put_aside()
            return
        stage.passed(batch.size - before, batch.bytes)
        self.finished()
        if batch.receipt is not None:
            batch.receipt.done()

    # -- what goes without being processed -----------------------------------------------------

    def give_back(self, *, slicing: bool) -> None:
        """Begin nothing more of what can be read again. While a slice of the batch at hand is
        under way, that goes when the slice has passed."""
        self._given_back = True
        for source in self.replayable:
            self.stages[source].give_back(_is_whole)
            batch = self.stages[source].head
            if batch is not None and _is_whole(batch) and not (slicing and batch is self.at_hand):
                self._abandon(batch)

    @property
    def has_sent(self) -> bool:
        """Whether something waits that was sent from outside, and cannot be read again."""
        heads = (self.stages[source].head for source in self._fed)
        return any(batch is not None and batch.receipt is not None for batch in heads)

    def unbegun(self, *, slicing: bool) -> Iterator[EventBatch]:
        """The batches that nothing was processed of and that cannot be read again.

        While a slice runs, the current batch counts as begun.
        """
        for source in self._fed:
            batch = self.stages[source].head
            if batch is not None and not batch.at and not (slicing and batch is self.at_hand):
                yield batch
            yield from self.stages[source].waiting

    def leave_to_producers(
        self, frames: Collection[Any], kept: KeptElsewhere, *, slicing: bool
    ) -> None:
        """Process nothing of ``frames``, named by their receipts, which have not begun; and no more
        of others that have begun; of the one that is being processed, after its slice."""
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

    def _cut_off(self, batch: EventBatch, kept: KeptElsewhere) -> bool:
        """Process no more of a frame, if that may be."""
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
        """Process no more of the batch at the head of its source."""
        batch.discard()
        source = batch.source
        stage = self.stages[source]
        stage.passed(batch.size - batch.at, batch.bytes)
        if batch is self.at_hand:
            self.at_hand = None
        self._inner_waiting.pop(source, None)
        self._outer_waiting.pop(source, None)
        self._next(source, stage)

    def discard(self) -> None:
        """Forget all that waits; it comes again, to the task that takes the place of this one."""
        self._inner_waiting.clear()
        self._outer_waiting.clear()
        for stage in self.stages.values():
            stage.clear()

    # -- for those who look ------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether batches wait that are not at hand.

        What waits for a bootstrap that will not end any more is left to who sent it.
        """
        if self._inner_waiting:
            return True
        ends = self._given_back and self.bootstrap is not None and self.bootstrap.streams
        return bool(self._outer_waiting) and not ends

    def own(self) -> Iterator[tuple[str, list[Any]]]:
        """The events that wait here and came from nowhere but the app itself, by stream."""
        for name in self._fed:
            for events in self.stages[name].own:
                yield name, events

    @property
    def buffered(self) -> int:
        """Events that were taken from their stages and have not passed."""
        heads = (stage.head for stage in self.stages.values())
        return sum(head.size - head.at for head in heads if head is not None)

    @property
    def batch_resets(self) -> int:
        """How often a chooser that batches let others have their turn."""
        return 0 if self._batching is None else self._batching.resets

    @property
    def lagging(self) -> dict[str, int]:
        """How many partitions of each stream the bootstrap has yet to catch up with."""
        return self.bootstrap.lag if self.bootstrap is not None else {}


def _is_whole(batch: EventBatch) -> bool:
    """Whether a batch can be read again as it is."""
    return isinstance(batch, InputBatch)
