"""The exchange of tasks that keep no state: their events leave at once, and no commit has any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from s4node.metrics.statistics import OutboxStatistics
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.outputs.output_streams import OutputStreams
from s4node.runtime.task.task import Task


@dataclass(eq=False, repr=False)
class FastExchange:
    """Puts on ``outputs`` what tasks have put on output streams."""

    _pipeline: Pipeline
    _outputs: OutputStreams

    joins = False  # it takes events that a task has put for another one

    def put(
        self, home: int, stream: str, partition: int, events: Sequence[Any], sender: str = ""
    ) -> None:
        raise NotImplementedError

    def send(self, task: Task, stream: str, events: Sequence[Any]) -> None:  # noqa: ARG002
        sender = self._outputs.senders[stream]
        sender.extend(events)
        if sender.was_full and sender.holds:
            self._pipeline.watch(stream, "sender", sender)

    def assign(self, owners: Sequence[str], epoch: int, origin: str = "") -> None: ...

    def insist(self) -> None: ...

    def heard(self) -> None: ...

    def statistics(self) -> Iterable[OutboxStatistics]:
        return ()
