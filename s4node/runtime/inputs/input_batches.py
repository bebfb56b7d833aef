"""The batches of an input as tasks get them: undecoded, a copy each, or with others' events.

Rules
- A batch is decoded when its task comes to it; a batch for several tasks by the first of them.
  Each of them has copies of events that can change.
- A task gets nothing below its own start. An event that does not decode is refused once for each
  task that should have had it.
- An event whose key belongs to another task is sent there when the reading task passes it, in its
  order among the task's own events. So the same commit covers the event and its offset.
"""

from __future__ import annotations

from s4node.events.copies import copies_of
from s4node.events.routing import Router
from s4node.net.ingress.rerouted_batch import sorted_out
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.receipts import BatchReceipt, Onward, PartReceipt
from s4node.offsets.system import InputBatch


class TaskBatch(InputBatch):
    """A batch of an input for one task, ``partition``; decoded when the task comes to it.

    ``shared``: other tasks get the events of the ``source``, too.
    """

    __slots__ = ("_shared", "_source", "_whole")

    def __init__(
        self,
        source: InputBatch,
        partition: int,
        progress: InputProgress,
        start: int,
        *,
        shared: bool = False,
    ) -> None:
        first, end = max(source.first, start), source.end
        super().__init__(
            source.source,  # type: ignore[arg-type]
            first,
            min(source.size, end - first),
            source.bytes,
            source.created_ms,
            end=end,
        )
        self.partition = partition
        self._shared = shared
        self._source = source
        self._whole = BatchReceipt(progress, first, end)
        self.receipt = self._whole

    def load(self) -> None:
        """Decode, unless another task has; refuse events that do not decode."""
        source, whole = self._source, self._whole
        load(source)
        for number, reason, raw in source.undecoded:
            if number >= whole.first:
                whole.refuse(number, reason, raw)
        numbers = source.numbers
        if numbers is None:
            skip = whole.first - source.first
            self.events = source.events[skip:] if skip else source.events
            if self._shared:
                self.events = list(copies_of(self.events))
            return
        good = [index for index, number in enumerate(numbers) if number >= whole.first]
        self.events = [source.events[index] for index in good]
        if self._shared:
            self.events = list(copies_of(self.events))
        self.numbers = [numbers[index] for index in good]
        self.receipt = PartReceipt(whole, self.numbers)
        at = whole.first
        for number in (*self.numbers, whole.end):
            if at < number:
                whole.complete(at, number)  # no event, or none that decodes: it belongs to no task
            at = number + 1


class MixedBatch(TaskBatch):
    """A batch read by the task ``partition``, which may hold events of other tasks."""

    __slots__ = ("_onward", "_router")

    def __init__(
        self,
        source: InputBatch,
        partition: int,
        progress: InputProgress,
        start: int,
        router: Router,
        onward: Onward,
    ) -> None:
        super().__init__(source, partition, progress, start)
        self._router = router
        self._onward = onward

    def load(self) -> None:
        """Decode, and keep the task's own events; refuse events whose key is not found."""
        super().load()
        found = sorted_out(self, self._whole, self._router, self._onward)
        self.events, self.numbers, self.receipt = found.events, found.numbers, found.receipt
        self.strays = found.strays


def load(source: InputBatch) -> None:
    """Decode a batch unless it is decoded."""
    if not source.loaded:
        source.loaded = True
        source.load()
