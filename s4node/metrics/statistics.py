"""The statistics of a container, its tasks, inputs and outputs. Pure.

Rules
- Each statistic is defined once, here; metrics, ``s4 status`` and ``s4 top`` read it from here.
- Values are frozen and hold plain data, so that they travel to other processes as they are.
- Counts are events since the start, unless a field says otherwise.
"""

from __future__ import annotations

import msgspec


class StageStatistics(msgspec.Struct, frozen=True):
    """The counts of a stage.

    Counts are events. ``depth`` counts those in the stage now, ``in_flight`` those being processed,
    ``spilled`` those that wait on disk. ``waited_last`` is how many seconds the last taken batch
    had waited. ``partition`` is None for a stage of a whole container. ``shed`` counts by reason.
    """

    stage: str
    stream: str
    partition: int | None = None
    executor: str = "block"
    depth: int = 0
    bytes: int = 0
    capacity: int = 0
    max_bytes: int = 0
    highest: int = 0
    admitted: int = 0
    shed: dict[str, int] = {}
    in_flight: int = 0
    spilled: int = 0
    waited_last: float = 0.0


class TaskStatistics(msgspec.Struct, frozen=True):
    """The counts of one task, in events.

    ``sent`` were put on streams, ``pending`` wait in its stages, ``buffered`` are at the heads of
    them, ``in_flight`` are being processed. ``calls`` and ``seconds`` are by kind of call: commit,
    window, timer, end of stream, process. ``ignored`` counts exceptions by class; ``lagging``
    counts, by input, the partitions that a bootstrap still has to read. ``windows`` are open;
    ``held_back`` are events that a stream in order holds back. ``late`` counts late events by PE.
    ``watermarks`` has the watermark of each stream with time, in seconds since 1970, and the source
    that holds it back, 0 if windows wait and there is none; ``behind`` says by how many seconds its
    latest event is later. ``ahead`` has the seconds by which a source of a stream is ahead of the
    clock here. ``waiting`` inputs are ahead of others in event time, and wait for these.
    """

    name: str
    partition: int
    processed: int
    refused: int
    sent: int
    pending: int
    in_flight: int
    buffered: int
    batch_resets: int
    instances: dict[str, int]
    unhandled: dict[str, int]
    ignored: dict[str, int]
    calls: dict[str, int]
    seconds: dict[str, float]
    lagging: dict[str, int]
    windows: int = 0
    held_back: int = 0
    late: dict[str, int] = {}
    watermarks: dict[str, tuple[float, str]] = {}
    behind: dict[str, float] = {}
    ahead: dict[str, tuple[float, str]] = {}
    waiting: list[str] = []


class InputStatistics(msgspec.Struct, frozen=True):
    """The counts of one input stream, in events; ``gaps`` and ``over_credit`` in dropped frames.

    ``left`` stayed with their producers for lack of room, ``redispatched`` came to the wrong
    partition. ``forwarded`` came through another container of the app, or another task. Events
    passed on to the owner of their partition are counted by the owner as ``admitted``, ``refused``
    or ``shed``, and not here.
    """

    admitted: int = 0
    refused: int = 0
    shed: int = 0
    left: int = 0
    duplicates: int = 0
    gaps: int = 0
    over_credit: int = 0
    redispatched: int = 0
    forwarded: int = 0


class ProgressStatistics(msgspec.Struct, frozen=True):
    """How far a task is in a partition of an input.

    Everything below ``offset`` is done. ``committed`` is where a restart would resume (None before
    the first commit). ``lag`` is the number of events not processed yet, up to the last known end
    of the partition (None while that is unknown).
    """

    task: str
    system: str
    stream: str
    partition: int
    offset: int
    committed: int | None
    lag: int | None


class OutboxStatistics(msgspec.Struct, frozen=True):
    """The unacknowledged events that a task has put on a stream.

    ``consumer`` is the receiving app, empty for tasks of the same app. ``depth`` counts events,
    ``bytes`` is approximate.
    """

    task: str
    stream: str
    consumer: str
    depth: int
    bytes: int


class ReplayStatistics(msgspec.Struct, frozen=True):
    """The counts of replayable inputs and commits.

    ``commits`` were written; ``failures`` could not be written and were tried again. By
    ``system.stream``, ``rejected`` counts events that could not be decoded, and ``lost`` events
    that retention deleted before they were read. By stream, ``left_out`` counts poison events.
    ``restoring`` has, by task that is being restored from a URL, the objects that were fetched and
    how many will be at most, as far as is known. ``standbys`` has, by task of another container
    that is followed here, for how many seconds the end of its log was not reached. ``failing`` has,
    by task, why its commit could not be written, or its state read, and is tried again.
    """

    progress: tuple[ProgressStatistics, ...] = ()
    commits: int = 0
    failures: int = 0
    rejected: dict[str, int] = {}
    lost: dict[str, int] = {}
    left_out: dict[str, int] = {}
    restoring: dict[str, tuple[int, int]] = {}
    standbys: dict[str, float] = {}
    failing: dict[str, str] = {}


class ProcessStatistics(msgspec.Struct, frozen=True):
    """What a process uses: seconds of CPU since its start, and the other values now."""

    cpu_seconds: float
    resident_bytes: int
    open_files: int
    threads: int


class ContainerStatistics(msgspec.Struct, frozen=True):
    """The counts of a container of ``app`` since its start.

    ``levels`` is, by stream, the number of streams before it on the way from an input; ``grades``
    says if it is fast or durable. ``replay`` and ``outboxes`` are empty if tasks keep no
    state. By output stream, ``sent`` counts the events put on it, ``dropped`` those that its stages
    dropped. ``unsendable`` counts events that could not be sent, by stage and stream.
    ``utilization`` is the part of the time in which its loop was busy, from 0 to 1.
    ``published`` counts the batches of sinks in its log, and their events.
    ``started_after`` is how many seconds the start took, 0 until it ends. ``gains`` counts the
    times that it was given partitions, ``gain_seconds`` is the time until these took events.
    ``recoveries`` counts the tasks that were rolled back after a failure.
    """

    app: str
    levels: dict[str, int] = {}
    grades: dict[str, str] = {}
    tasks: tuple[TaskStatistics, ...] = ()
    stages: tuple[StageStatistics, ...] = ()
    inputs: dict[str, InputStatistics] = {}
    replay: ReplayStatistics = ReplayStatistics()
    outboxes: tuple[OutboxStatistics, ...] = ()
    sent: dict[str, int] = {}
    dropped: dict[str, int] = {}
    unsendable: dict[str, dict[str, int]] = {}
    peers: dict[str, int] = {}
    published: dict[str, int] = {}
    turns: int = 0
    utilization: float = 0.0
    started_after: float = 0.0
    gains: int = 0
    gain_seconds: float = 0.0
    recoveries: int = 0
    recovery_seconds: float = 0.0
    threads: int = 0

    @property
    def processed(self) -> int:
        """The number of events processed by all tasks."""
        return sum(task.processed for task in self.tasks)
