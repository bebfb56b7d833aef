"""What waits in a task: the batches in its stages, and which of them is at hand. Pure.

Rules
- Each source of batches, a stream or an input that can be read again, has a stage. The stage offers
  its next batch to a chooser; what the choosers give is at hand.
- Internal streams go before inputs. A source that is held, because a stage it leads to is full or
  because its rate is used up, stops no other: its batch is put aside, where it stopped.
- After each step the batch at hand is put aside if other sources have one, and the choosers say
  what is next. A source that is alone keeps its batch at hand until all of it has passed.
- What is given back comes again, to the next owner of the task. What was taken apart by key is not
  given back, for its parts are with several tasks; a frame is, where all of its parts still wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.events.event import EventBatch
from s4node.net.ingress.unbegun import KeptElsewhere, cut_off
from s4node.offsets.system import InputBatch
from s4node.runtime.task.chooser import Bootstrap, MessageChooser, RoundRobin, batching_of
from s4node.stages.executors import UNLIMITED, Executor
from s4node.stages.stage import Overflow, Stage


class Backlog:
    """That of one task, by source.

    ``at_hand`` is the batch that is processed now; code that takes its last event without
    ``passed`` sets it to None and has its source's next one offered by ``update``. ``held`` are the
    streams that must not be processed now; it changes. ``rates`` are the executors that limit how
    fast events may leave their stages. ``chooser`` is for what comes from outside, round robin if
    it is None, and heeds the ``bootstrap``. ``on_load`` is called with each batch that is to be at
    hand for the first time. ``on_cut`` is called with a frame of which the last so many events have
    been left to its producer, and says whether others of it have yet to end.
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
        self.inner = [s.name for s in fed if not isinstance(s, InputStream)]
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
        self._inner_chooser: MessageChooser[Any] = RoundRobin()
        self._outer_chooser: MessageChooser[Any] = RoundRobin() if chooser is None else chooser
        self._batching = batching_of(self._outer_chooser)
        self._began = 0  # where the batch at hand was when it was chosen
        self._offered: dict[Any, EventBatch] = {}  # taken from their stages
        self._loaded: dict[Any, EventBatch] = {}  # those that were chosen, maybe to be put aside
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
        source = batch.source
        self.stages[source].offer(batch, self._clock())
        if source not in self._offered:
            self.update(source)

    def resume(self, source: Any, overflow: Overflow, events: int) -> None:
        """So many events of an earlier life are in the overflow of a stage."""
        self.stages[source].resume(overflow, events)
        if source not in self._offered:
            self.update(source)

    def update(self, source: Any) -> None:
        """Let the stage offer its next batch to its chooser."""
        stage = self.stages[source]
        batch = stage.take(self._clock()) if stage.depth > stage.in_flight else None
        self._loaded.pop(source, None)
        if batch is None:
            self._offered.pop(source, None)
            return
        self._offered[source] = batch
        self._chooser(source).update(source, batch)

    def _chooser(self, source: Any) -> MessageChooser[Any]:
        return self._inner_chooser if source in self.inner else self._outer_chooser

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
        """Offer what is left of the batch at hand again: the choosers say what is next."""
        batch = self.at_hand
        assert batch is not None
        self.at_hand = None
        self._chooser(batch.source).update(batch.source, batch)

    def turn_over(self, events: int) -> bool:
        """Whether others wait, and so many events of the batch at hand have gone meanwhile."""
        batch = self.at_hand
        assert batch is not None
        if len(self._offered) < 2:
            return False
        return batch.at - self._began >= events or self._left_of_turn(batch) <= 0

    def limit(self, events: int) -> int:
        """How many events of the batch at hand a step of so many may take; one at least."""
        batch = self.at_hand
        assert batch is not None
        if batch.source in self.rates:
            events = min(events, self.allowance(batch.source))
        if len(self._offered) > 1:
            events = min(events, self._left_of_turn(batch))
        return max(1, events)

    def _left_of_turn(self, batch: EventBatch) -> int:
        if self._batching is None or batch.source in self.inner:
            return UNLIMITED
        return self._batching.left

    def choose_of(self, stream: str) -> bool:
        """Have another batch of a stream at hand, as long as nothing else may go."""
        if self.at_hand is not None or any(
            self._stream_of[s] != stream and self.may(s) for s in self._offered
        ):
            return False
        return self._take(lambda s: self._stream_of[s] == stream and self.may(s))

    def _take(self, may: Callable[[Any], bool]) -> bool:
        """Take a batch from the choosers, of a source that may go now."""
        while self._offered:
            chosen = self._inner_chooser.choose(may) or self._outer_chooser.choose(may)
            if chosen is None:
                return False
            source, batch = chosen
            if self._offered.get(source) is not batch:
                continue  # it was given back
            if not batch.at and self._loaded.get(source) is not batch:
                self._loaded[source] = batch
                rest = batch.load()
                if rest is not None:
                    self.stages[source].put_back(rest)
                if self.on_load is not None:
                    self.on_load(batch)
            self.at_hand, self._began = batch, batch.at
            return True
        return False

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
        before = batch.at
        batch.at += count
        if batch.at < len(batch.events):
            self.stages[batch.source].passed(count)
            if count and batch.receipt is not None and batch.receipt.by_event:
                batch.receipt.passed(batch.number(before), batch.number(batch.at - 1) + 1)
            if self._given_back and _is_whole(batch):
                self._abandon(batch)
            elif self._cuts is not None and self._cut_off(batch, self._cuts):
                pass
            elif len(self._offered) > 1:
                self.put_aside()
            return
        self.stages[batch.source].passed(batch.size - before, batch.bytes)
        self.at_hand = None
        self.update(batch.source)
        if batch.receipt is not None:
            batch.receipt.done()

    # -- what goes without being processed -----------------------------------------------------

    def give_back(self, *, slicing: bool) -> None:
        """Begin nothing more of what can be read again. While a slice of the batch at hand is
        under way, that goes when the slice has passed."""
        self._given_back = True
        for source in self.replayable:
            self.stages[source].give_back(_is_whole)
            batch = self._offered.get(source)
            if batch is not None and _is_whole(batch) and not (slicing and batch is self.at_hand):
                self._abandon(batch)

    @property
    def has_sent(self) -> bool:
        """Whether something waits that was sent from outside, and cannot be read again."""
        offered = (self._offered.get(source) for source in self._fed)
        return any(batch is not None and batch.receipt is not None for batch in offered)

    def unbegun(self, *, slicing: bool) -> Iterator[EventBatch]:
        """The batches that nothing was processed of and that cannot be read again.

        While a slice runs, the current batch counts as begun.
        """
        for source in self._fed:
            batch = self._offered.get(source)
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
            batch = self._offered.get(source)
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
        """Process no more of a batch that was offered; the choosers may still have it."""
        batch.discard()
        self.stages[batch.source].passed(batch.size - batch.at, batch.bytes)
        if batch is self.at_hand:
            self.at_hand = None
        self.update(batch.source)

    def discard(self) -> None:
        """Forget all that waits; it comes again, to the task that takes the place of this one."""
        for batch in self._offered.values():
            batch.discard()
        self._offered.clear()
        self._loaded.clear()
        for stage in self.stages.values():
            stage.clear()

    def offers(self, source: Any) -> bool:
        """Whether a source has something to process, now or when it may go."""
        return source in self._offered

    # -- for those who look ------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether batches wait that are not at hand.

        What waits for a bootstrap that will not end any more is left to who sent it.
        """
        batch = self.at_hand
        if self._given_back and self.bootstrap is not None and self.bootstrap.streams:
            return any(source in self.inner for source in self._offered)
        return len(self._offered) > (batch is not None and batch.source in self._offered)

    def own(self) -> Iterator[tuple[str, list[Any]]]:
        """The events that wait here and came from nowhere but the app itself, by stream."""
        for name in self._fed:
            batch = self._offered.get(name)
            if batch is not None and batch.receipt is None and batch.at < len(batch.events):
                yield name, batch.events[batch.at :]
            for waiting in self.stages[name].own:
                yield name, waiting.events

    @property
    def buffered(self) -> int:
        """Events that were taken from their stages and have not passed."""
        return sum(batch.size - batch.at for batch in self._offered.values())

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
