"""The producers of durable streams, as the commits of tasks see them. Pure.

Rules
- What a commit takes of a task's producers is as of the moment in which it takes the state.
- Only what is written is told: then the producers hear of it, and who has waited for it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from s4node.net.ingress.durable_admission import DurableAdmission, TakenLanes
from s4node.offsets.producer_offsets import KeptProducer, KeptProducers, Producer

TakenProducers = Mapping[str, TakenLanes]
"""What a commit takes, by stream."""


class Producers:
    """Those of the streams of ``admissions``. ``clock`` is that of hellos; ``on_committed`` is
    called when a commit was told."""

    def __init__(
        self,
        admissions: Iterable[DurableAdmission],
        clock: Callable[[], float],
        on_committed: Callable[[], None],
    ) -> None:
        self._admissions = {each.stream: each for each in admissions}
        self._clock = clock
        self._on_committed = on_committed

    def restore(self, partition: int, kept: Mapping[Producer, KeptProducer]) -> None:
        """What the task of a partition has kept, when it is about to open."""
        for stream, admission in self._admissions.items():
            rows = {name: row for (where, name), row in kept.items() if where == stream}
            admission.restore(partition, rows, self._clock())

    def moved(self, partition: int) -> bool:
        """Whether a commit would write anything of them."""
        return any(each.has_moved(partition) for each in self._admissions.values())

    def patience(self, partition: int) -> float:
        """For how many seconds producers can wait for a commit; infinity where none needs one."""
        waiting = [each.patience(partition) for each in self._admissions.values()]
        return min(waiting, default=math.inf)

    def take(self, partition: int) -> TakenProducers:
        """What is to be written of them, as of now."""
        return {
            stream: admission.take(partition)
            for stream, admission in self._admissions.items()
            if admission.has_moved(partition)
        }

    def committed(self, partition: int, taken: TakenProducers) -> None:
        """It is written."""
        for stream, each in taken.items():
            self._admissions[stream].committed(partition, each)
        self._on_committed()


def rows_of(taken: TakenProducers) -> KeptProducers:
    """What is written of producers."""
    found: dict[Producer, KeptProducer | None] = {}
    for stream, each in taken.items():
        found.update({(stream, name): None for name in each.forgotten})
        found.update({(stream, lane.producer): kept for lane, kept in each.lanes.items()})
    return found
