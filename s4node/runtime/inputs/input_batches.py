"""The batches of an input as tasks get them: undecoded, a copy each, or with others' events.

Rules
- A batch is decoded when its task comes to it; one for several tasks by the first of them.
- A task gets nothing below its own start, and what does not decode is rejected once for each task
  that should have had it.
- Events whose keys are another task's are put on the way there as the task comes past them, in
  their order among its own. So they are part of the same commit as the offset behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from s4node.net.ingress.rerouted_batch import MixedInputPart, Send, sorted_out
from s4node.offsets.input_progress import InputProgress, InputReceipt
from s4node.offsets.system import InputBatch

Reject = Callable[[InputReceipt, int, str, Any], None]
"""Takes an event that no task gets: its batch's receipt, offset, reason, and the event; its bytes,
where it does not decode."""


class TaskBatch(InputBatch):
    """A batch of an input for the one task ``partition``; decoded when the task comes to it."""

    __slots__ = ("_reject", "_source", "_whole")

    def __init__(
        self,
        source: InputBatch,
        partition: int,
        progress: InputProgress,
        start: int,
        reject: Reject,
    ) -> None:
        end = source.first + source.size
        first = max(source.first, start)
        super().__init__(source.source, first, end - first, source.bytes, source.created_ms)  # type: ignore[arg-type]
        self.partition = partition
        self._source = source
        self._reject = reject
        self._whole = InputReceipt(progress, first, end, source)
        self.receipt = self._whole

    def load(self) -> None:
        """Decode, unless another task has; what is not decodable is rejected."""
        source, whole = self._source, self._whole
        load(source)
        if source.undecoded:
            settle_undecoded(source, whole, self._reject)
        numbers = source.numbers
        if numbers is None:
            skip = whole.first - source.first
            self.events = source.events[skip:] if skip else source.events
            return
        good = [index for index, number in enumerate(numbers) if number >= whole.first]
        self.events = [source.events[index] for index in good]
        self.numbers = [numbers[index] for index in good]
        self.receipt = whole.part(self.numbers)


class MixedBatch(TaskBatch):
    """A batch in which there may be events of other tasks than ``partition``, which reads it."""

    __slots__ = ("_partition_of", "_send")

    def __init__(
        self,
        source: InputBatch,
        partition: int,
        progress: InputProgress,
        start: int,
        reject: Reject,
        partition_of: Callable[[Any], int],
        send: Send,
    ) -> None:
        super().__init__(source, partition, progress, start, reject)
        self._partition_of = partition_of
        self._send = send

    def load(self) -> None:
        """Decode, and keep what is the task's own; an event whose key is not found is rejected."""
        super().load()
        whole = self._whole
        numbers: Sequence[int] = range(whole.first, whole.end)
        if self.numbers is not None:  # there may be none
            numbers = self.numbers

        def refuse(number: int, reason: str, event: Any) -> None:
            self._reject(whole, number, reason, event)

        found = sorted_out(numbers, self.events, self._partition_of, self.partition, refuse)
        self.events, self.numbers = found.events, found.numbers
        self.receipt = MixedInputPart(whole, found, self._send)


def load(source: InputBatch) -> None:
    """Decode a batch unless that was done."""
    if not source.loaded:
        source.loaded = True
        source.load()


def settle_undecoded(source: InputBatch, whole: InputReceipt, reject: Reject) -> None:
    """Reject what does not decode and is not below the task's start."""
    for number, reason, raw in source.undecoded:
        if number >= whole.first:
            reject(whole, number, reason, raw)


def refused(receipt: InputReceipt, number: int) -> Any:
    """An event that its task has refused."""
    batch = receipt.batch
    numbers: Sequence[int] | None = batch.numbers
    index = number - batch.first if numbers is None else numbers.index(number)
    return batch.events[index]
