"""What a container has counted, as it is reported. Pure.

Rules
- Values are frozen and hold plain data, so that they travel to other processes.
- Counts are events since the start, unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from s4node.stages.stage import StageStatistics


@dataclass(frozen=True)
class TaskStatistics:
    """What one task has done. Counts are events.

    ``sent`` are those that it has put on streams, ``in_flight`` those that are outstanding,
    ``buffered`` those at the heads of its stages. ``calls`` and ``seconds`` are by what was called:
    commit, window, timer, end of stream, process. ``ignored`` counts exceptions by class;
    ``lagging`` are the partitions, by input, that are yet to be caught up with.
    """

    partition: int
    processed: int
    refused: int
    stages: dict[str, StageStatistics]
    instances: dict[str, int]
    unhandled: dict[str, int]
    ignored: dict[str, int] = field(default_factory=dict)
    name: str = ""
    sent: int = 0
    in_flight: int = 0
    buffered: int = 0
    batch_resets: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lagging: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class InputStatistics:
    """What came in on one stream, in events but for ``gaps`` and ``over_credit``: frames dropped.

    ``left`` were left to their producers for lack of room, ``redispatched`` came to the wrong
    partition. ``admitted``, ``refused`` and ``shed`` are without those that were passed on to the
    owner of their partition, which counts them. ``forwarded`` are those that came so: by way of
    another container of the app, or another task.
    """

    admitted: int
    refused: int
    shed: int
    left: int
    duplicates: int
    gaps: int
    over_credit: int
    redispatched: int
    forwarded: int


@dataclass(frozen=True)
class ProgressStatistics:
    """How far a task is in a partition of an input.

    ``offset`` is that of the event up to which everything is done, ``committed`` where a restart
    would go on (None while there is none), ``lag`` how many events there are that were not read yet
    (None while nobody knows).
    """

    task: str
    system: str
    stream: str
    partition: int
    offset: int
    committed: int | None
    lag: int | None


@dataclass(frozen=True)
class ReplayStatistics:
    """What became of the inputs that can be read again.

    ``commits`` were written, ``failures`` could not be and were tried again. ``rejected`` counts
    events that could not be processed, ``lost`` those that retention took, by ``system.stream``;
    ``left_out`` those at which a handler failed, by stream.
    """

    progress: tuple[ProgressStatistics, ...]
    commits: int
    failures: int
    rejected: dict[str, int]
    lost: dict[str, int]
    left_out: dict[str, int]


@dataclass(frozen=True)
class OutboxStatistics:
    """What a task has put on a stream for others, and they have not taken for good yet.

    ``consumer`` is the app that it is for, empty where it is for tasks of the same app. ``depth``
    counts events, ``bytes`` is about what they take.
    """

    task: str
    stream: str
    consumer: str
    depth: int
    bytes: int


@dataclass(frozen=True)
class ContainerStatistics:
    """What a container has done since its start.

    ``utilization`` is which part of the time its loop was busy, from 0 to 1; ``started_after`` how
    many seconds its start took, 0 while it lasts. ``replay`` is None where its tasks keep no state.
    ``grades`` say of each stream what is promised: fast or durable. ``outboxes`` are there where
    tasks keep state. ``unsendable`` counts events that could not be sent, by the stage that they
    were to leave by and by stream; ``dropped`` those that the stages of output streams dropped.
    """

    tasks: tuple[TaskStatistics, ...]
    admitted: dict[str, int]
    refused: dict[str, int]
    sent: dict[str, int]
    peers: dict[str, int]
    stages: tuple[StageStatistics, ...] = ()
    inputs: dict[str, InputStatistics] = field(default_factory=dict)
    replay: ReplayStatistics | None = None
    turns: int = 0
    utilization: float = 0.0
    started_after: float = 0.0
    threads: int = 0
    grades: dict[str, str] = field(default_factory=dict)
    outboxes: tuple[OutboxStatistics, ...] = ()
    unsendable: dict[str, dict[str, int]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        """Events handled, over all tasks and streams."""
        return sum(task.processed for task in self.tasks)
