"""The producers of durable streams, as the commits of tasks see them. Pure.

Rules
- A commit takes the numbers of a task's producers in the moment in which it takes the state.
- Only what is written is acknowledged to producers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from s4node.net.ingress.commit_rows import CommitRows, TakenLanes
from s4node.offsets.producer_offsets import Closings, Producer, SavedProducer, SavedProducers

TakenProducers = Mapping[str, TakenLanes]
"""The lanes that a commit takes, by stream."""


class Producers:
    """The producers of the streams of ``rosters``; ``clock`` is the clock of hellos."""

    def __init__(
        self,
        rosters: Iterable[CommitRows],
        clock: Callable[[], float],
    ) -> None:
        self._rosters = {each.stream: each for each in rosters}
        self._clock = clock

    def begin_layout(self, layout: int) -> None:
        """Count the producers' numbers in the layout of this number."""
        for roster in self._rosters.values():
            roster.layout = layout

    def restore(
        self,
        partition: int,
        kept: Mapping[Producer, SavedProducer],
        closings: Mapping[Producer, Closings],
    ) -> None:
        """Restore the saved producers of a partition that is about to open."""
        for stream, roster in self._rosters.items():
            rows = {name: row for (where, name), row in kept.items() if where == stream}
            ended = {name: each for (where, name), each in closings.items() if where == stream}
            roster.restore(partition, rows, self._clock(), ended)

    def moved(self, partition: int) -> bool:
        """Return True if a commit would write any producers of a partition."""
        return any(each.has_moved(partition) for each in self._rosters.values())

    def patience(self, partition: int) -> float:
        """For how many seconds producers can wait for a commit; infinity if none waits."""
        waiting = [each.patience(partition) for each in self._rosters.values()]
        return min(waiting, default=math.inf)

    def snapshot(self, partition: int) -> TakenProducers:
        """Take the changed lanes of a partition, for a commit."""
        return {
            stream: roster.snapshot(partition)
            for stream, roster in self._rosters.items()
            if roster.has_moved(partition)
        }

    def commit_written(self, partition: int, taken: TakenProducers) -> None:
        for stream, each in taken.items():
            self._rosters[stream].commit_written(partition, each)


def rows_of(taken: TakenProducers) -> SavedProducers:
    found: dict[Producer, SavedProducer | None] = {}
    for stream, each in taken.items():
        found.update({(stream, name): None for name in each.forgotten})
        found.update({(stream, saved.lane.producer): row for saved, row in each.lanes.items()})
    return found
