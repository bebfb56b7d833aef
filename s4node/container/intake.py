"""The batches of an input as tasks get them: whole and undecoded, a copy each, or taken apart.

Rules
- A batch for one task is decoded when the task comes to it. One for several tasks, or of which
  events belong to several, is decoded at once.
- A task gets nothing below its own start, and what does not decode is rejected once for each task
  that should have had it.
- A batch is taken apart by the keys of its events. Each part is queued with its own task, and the
  whole counts where it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from s4node.event import EventBatch, footprint
from s4node.progress.input_progress import InputProgress, InputReceipt
from s4node.routing import key_failure
from s4node.systems.system import InputBatch

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


def parts_of(
    source: InputBatch,
    progress: InputProgress,
    start: int,
    partition_of: Callable[[Any], int],
    home: int,
    reject: Reject,
) -> list[EventBatch]:
    """A batch taken apart: one for each task that has events in it, the ``home`` task's under the
    source itself and the others' under their stream. Nobody else may complete the offsets.
    """
    load(source)
    end = source.first + source.size
    whole = InputReceipt(progress, max(source.first, start), end, source)
    settle_undecoded(source, whole, reject)
    numbers = source.numbers or range(source.first, end)
    lanes: dict[int, tuple[list[Any], list[int]]] = {}
    for number, event in zip(numbers, source.events, strict=True):
        if number < whole.first:
            continue
        try:
            partition = partition_of(event)
        except Exception as error:  # a KeyFinder of the app's may raise anything
            reject(whole, number, f"{key_failure(error)} (event {event!r})", event)
            continue
        lane = lanes.setdefault(partition, ([], []))
        lane[0].append(event)
        lane[1].append(number)
    parts = []
    for partition, (events, mine) in lanes.items():
        part = EventBatch(
            source.stream, partition, events, whole.part(mine), mine[0], mine, footprint(events)
        )
        part.created_ms = source.created_ms
        if partition == home:
            part.source = source.source
        parts.append(part)
    whole.parts += len(parts)
    whole.done()  # the one that it was made with
    return parts


def refused(receipt: InputReceipt, number: int) -> Any:
    """An event that its task has refused."""
    batch = receipt.batch
    numbers: Sequence[int] | None = batch.numbers
    index = number - batch.first if numbers is None else numbers.index(number)
    return batch.events[index]
