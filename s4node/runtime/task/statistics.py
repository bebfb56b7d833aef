"""The statistics of a container, its tasks, inputs and outputs. Pure.

Rules
- Values are frozen and hold plain data, so that they travel to other processes.
- Counts are events since the start, unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from s4node.stages.stage import StageStatistics


@dataclass(frozen=True)
class TaskStatistics:
    """The counts of one task, in events.

    ``sent`` were put on streams, ``in_flight`` are being processed, ``buffered`` are at the heads
    of its stages. ``calls`` and ``seconds`` are by kind of call: commit, window, timer, end of
    stream, process. ``ignored`` counts exceptions by class; ``lagging`` counts, by input, the
    partitions that a bootstrap still has to read.
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
    """The counts of one input stream, in events; ``gaps`` and ``over_credit`` in dropped frames.

    ``left`` were left to their producers for lack of room, ``redispatched`` came to the wrong
    partition. ``forwarded`` came by way of another container of the app, or another task. Events
    passed on to the owner of their partition are counted by the owner as ``admitted``, ``refused``
    or ``shed``, and not here.
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

    Everything below ``offset`` is done. ``committed`` is where a restart would resume (None before
    the first commit). ``lag`` is the number of events not read yet (None while unknown).
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
    """The counts of replayable inputs and commits.

    ``commits`` were written; ``failures`` could not be written and were tried again. By
    ``system.stream``, ``rejected`` counts events that could not be decoded, and ``lost`` events
    that retention deleted before they were read. By stream, ``left_out`` counts poison events.
    """

    progress: tuple[ProgressStatistics, ...]
    commits: int
    failures: int
    rejected: dict[str, int]
    lost: dict[str, int]
    left_out: dict[str, int]


@dataclass(frozen=True)
class OutboxStatistics:
    """The unacknowledged events that a task has put on a stream.

    ``consumer`` is the receiving app, empty for tasks of the same app. ``depth`` counts events,
    ``bytes`` is approximate.
    """

    task: str
    stream: str
    consumer: str
    depth: int
    bytes: int


@dataclass(frozen=True)
class ContainerStatistics:
    """The counts of a container since its start.

    ``utilization`` is the part of the time in which its loop was busy, from 0 to 1.
    ``started_after`` is how many seconds the start took, 0 until it ends. ``replay`` is None, and
    ``outboxes`` empty, if tasks keep no state. ``grades`` says of each stream whether it is fast or
    durable. ``unsendable`` counts events that could not be sent, by stage and stream; ``dropped``
    those that the stages of output streams dropped.
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
        """The number of events processed by all tasks."""
        return sum(task.processed for task in self.tasks)
