"""What a container has counted, as it is given to whoever asks. Pure.

Rules
- Values are frozen and hold plain data, so that they travel to other processes.
- Counts are events since the start, unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from s4node.container.task import TaskStatistics
from s4node.executors.stage import StageStatistics


@dataclass(frozen=True)
class InputStatistics:
    """What came in on one stream, in events but for ``gaps`` and ``over_credit``: frames dropped.

    ``left`` were left to their producers for lack of room, ``redispatched`` came to the wrong
    partition.
    """

    admitted: int
    refused: int
    shed: int
    left: int
    duplicates: int
    gaps: int
    over_credit: int
    redispatched: int


@dataclass(frozen=True)
class ContainerStatistics:
    """What a container has done since its start."""

    tasks: tuple[TaskStatistics, ...]
    admitted: dict[str, int]
    refused: dict[str, int]
    sent: dict[str, int]
    peers: dict[str, int]
    stages: tuple[StageStatistics, ...] = ()
    inputs: dict[str, InputStatistics] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        """Events handled, over all tasks and streams."""
        return sum(task.processed for task in self.tasks)
