"""The statistics of a container, its tasks, inputs and outputs. Pure.

Rules
- Each statistic is declared once, here; ``table`` makes a flat table of them, with their names.
- Values hold plain data, so that they travel to other processes as they are.
- Counts are events since the start, unless a field says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from s4node.metrics.table import LEAST, MOST, Family, Keyed, counter, families, gauge


class StageStatistics(msgspec.Struct):
    """The counts of a stage; ``partition`` is None for a stage of a whole container."""

    PREFIX: ClassVar = "stage_"
    LABELS: ClassVar[Mapping[str, str]] = {
        "stage": "stage",
        "stream": "stream",
        "partition": "partition",
    }

    stage: str
    stream: str
    partition: int | None = None
    executor: str = "block"
    depth: Annotated[int, gauge("events in the stage")] = 0
    bytes: Annotated[int, gauge("bytes in the stage")] = 0
    capacity: Annotated[int, gauge("events that the stage can hold")] = 0
    max_bytes: int = 0
    highest: int = 0
    admitted: Annotated[int, counter("events that the stage has admitted")] = 0
    shed: Annotated[dict[str, int], counter("events that the stage has dropped", "reason")] = {}
    in_flight: Annotated[int, gauge("events of the stage that are being processed")] = 0
    spilled: Annotated[int, gauge("events of the stage that wait on disk")] = 0
    waited_last: Annotated[
        float, Family("gauge", "seconds that the last taken batch had waited", merge=MOST)
    ] = 0.0


class TaskStatistics(msgspec.Struct, frozen=True):
    """The counts of one task.

    ``hot_keys`` has, by PE, its hottest keys with their parts of its events.
    ``watermarks`` has, with the watermark of each stream with time, the source that holds it back;
    it is 0 if windows wait and there is none. ``ahead`` has the source as well. ``waiting`` inputs
    are ahead of others in event time, and wait for these.
    """

    PREFIX: ClassVar = "task_"
    LABELS: ClassVar[Mapping[str, str]] = {"name": "task"}

    name: str
    partition: int
    processed: Annotated[int, counter("events processed")]
    refused: Annotated[int, counter("events without a key")]
    sent: Annotated[int, counter("events put on streams")]
    pending: Annotated[int, gauge("events in the stages of the task")]
    in_flight: Annotated[
        int, gauge("events being processed; a slice of plain events counts as one")
    ]
    buffered: Annotated[int, gauge("events of the next batch of each source")]
    batch_resets: Annotated[
        int, counter("turns that ended because task.consumer.batch.size was reached")
    ]
    instances: Annotated[dict[str, int], gauge("instances of processing elements", "pe")]
    unhandled: dict[str, int]
    ignored: Annotated[
        dict[str, int], counter("exceptions that task.ignored.exceptions names", "exception")
    ]
    calls: Annotated[
        dict[str, int], counter("calls of process, commit, window, timer and end of stream", "call")
    ]
    seconds: Annotated[
        dict[str, float],
        counter("seconds in these; of events in flight together only the loop's own", "call"),
    ]
    lagging: Annotated[
        dict[str, int], gauge("partitions that a bootstrap still has to read", "input")
    ]
    windows: Annotated[int, gauge("windows that have not ended; sessions and counts by key")] = 0
    held_back: Annotated[int, gauge("events that streams with order=time hold back")] = 0
    late: Annotated[dict[str, int], counter("events that came too late for a window", "pe")] = {}
    watermarks: Annotated[
        dict[str, tuple[float, str]],
        Family(
            "gauge",
            "watermark of the stream, in seconds since 1970",
            ("stream",),
            LEAST,
            lambda found: found[0] or None,
        ),
    ] = {}
    behind: Annotated[
        dict[str, float],
        Family(
            "gauge",
            "seconds by which the stream's latest event is later than its watermark",
            ("stream",),
            MOST,
        ),
    ] = {}
    ahead: Annotated[
        dict[str, tuple[float, str]],
        Family(
            "gauge",
            "seconds by which the clock of a source is ahead; absent below one",
            ("stream",),
            MOST,
            lambda found: found[0],
        ),
    ] = {}
    waiting: list[str] = []
    pe_seconds: Annotated[
        dict[str, dict[str, float]],
        counter("seconds in a PE's handler, estimated from a sample", "pe", "handler"),
    ] = {}
    pe_calls: Annotated[
        dict[str, dict[str, int]],
        counter("calls of a PE's handler, estimated from a sample", "pe", "handler"),
    ] = {}
    pe_errors: Annotated[
        dict[str, dict[str, int]],
        counter("exceptions of a PE's handler", "pe", "handler"),
    ] = {}
    hot_keys: dict[str, dict[str, float]] = {}


class InputStatistics(msgspec.Struct, frozen=True):
    """The counts of one input stream.

    Events passed on to the owner of their partition are counted by the owner as ``admitted``,
    ``refused`` or ``shed``, and not here.
    """

    PREFIX: ClassVar = "input_"

    admitted: Annotated[int, counter("events admitted from producers, nodes and tasks")] = 0
    refused: Annotated[int, counter("events refused")] = 0
    shed: Annotated[int, counter("events dropped for overload")] = 0
    left: Annotated[int, counter("events left to their producers for lack of room")] = 0
    duplicates: Annotated[int, counter("events that came a second time")] = 0
    gaps: Annotated[int, counter("frames dropped because earlier ones were missing")] = 0
    over_credit: Annotated[int, counter("frames dropped because they were over the credit")] = 0
    redispatched: Annotated[int, counter("events that came to the wrong partition")] = 0
    forwarded: Annotated[int, counter("events that came by another container or task")] = 0


class ProgressStatistics(msgspec.Struct, frozen=True):
    """How far a task is in a partition of an input; None of what is not known.

    Everything below ``offset`` is done, and a restart would resume at ``committed``.
    """

    PREFIX: ClassVar = "input_"
    LABELS: ClassVar[Mapping[str, str]] = {
        "task": "task",
        "system": "system",
        "stream": "stream",
        "partition": "partition",
    }

    task: str
    system: str
    stream: str
    partition: int
    offset: Annotated[
        int, Family("gauge", "offset up to which everything is processed", place=True)
    ]
    committed: Annotated[
        int | None, Family("gauge", "offset at which a restart would resume", place=True)
    ]
    lag: Annotated[
        int | None, gauge("events that are not processed yet, whether read or not, if known")
    ]
    uncommitted: Annotated[
        int, gauge("records of Kafka behind a transaction that its producer has left open")
    ] = 0
    late: Annotated[
        float,
        Family("gauge", "seconds since the oldest read, unprocessed event was sent", merge=MOST),
    ] = 0.0


class OutboxStatistics(msgspec.Struct, frozen=True):
    """The unacknowledged events that a task has put on a stream.

    ``consumer`` is the receiving app, empty for tasks of the same app.
    """

    PREFIX: ClassVar = "outbox_"
    LABELS: ClassVar[Mapping[str, str]] = {
        "task": "task",
        "stream": "stream",
        "consumer": "consumer",
    }

    task: str
    stream: str
    consumer: str
    depth: Annotated[
        int, gauge("events that receivers have not committed; of a fast stream: processed")
    ]
    bytes: Annotated[int, gauge("about how many bytes these are")]


class RestoreStatistics(msgspec.Struct, frozen=True):
    """How far the restore of a task's state from a URL is."""

    PREFIX: ClassVar = "restore_"

    fetched: Annotated[int, gauge("objects that a task whose state is restored has fetched")]
    wanted: Annotated[int, gauge("objects that it will fetch at most, as far as is known")]


class CommitStatistics(msgspec.Struct):
    """The commits that ended within ten seconds from ``at`` (Unix time)."""

    at: int
    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    bytes: int = 0


class Rejected(msgspec.Struct, frozen=True):
    """An event, or a call of a window or timer, that was given up at a time (Unix time, ms)."""

    ms: int
    task: str
    stream: str
    at: str
    pe: str
    reason: str


class ReplayStatistics(msgspec.Struct, frozen=True):
    """The counts of replayable inputs and commits.

    ``recent`` are the commits of the last ten minutes, ``rejected`` the events given up last.
    ``failing`` has, by task, why its commit could not be written, or its state read, and is tried
    again; "" is the start of the container. ``away`` has the systems that do not answer or take no
    records, and why.
    """

    progress: Annotated[tuple[ProgressStatistics, ...], Keyed()] = ()
    commits: Annotated[int, counter("commits that are on disk")] = 0
    commit_failures: Annotated[
        int, counter("commits that could not be written, and were retried")
    ] = 0
    undecodable: Annotated[
        dict[str, int], counter("events that could not be decoded or had no key", "input")
    ] = {}
    lost: Annotated[
        dict[str, int], counter("events that retention removed before they were read", "input")
    ] = {}
    left_out: Annotated[
        dict[str, int],
        counter("events skipped because a handler failed or the process died", "stream"),
    ] = {}
    restoring: Annotated[dict[str, RestoreStatistics], Keyed("task")] = {}
    standbys: Annotated[
        dict[str, float],
        Family(
            "gauge",
            "seconds for which a task that is followed here was not caught up with",
            ("task",),
            MOST,
        ),
    ] = {}
    failing: dict[str, str] = {}
    away: dict[str, str] = {}
    commit_bytes: Annotated[int, counter("bytes that commits have written")] = 0
    commit_seconds: Annotated[
        float, counter("seconds from the begin of commits until they were on disk")
    ] = 0.0
    commit_age: Annotated[
        float,
        Family("gauge", "seconds since the last commit of a task that changed since", merge=MOST),
    ] = 0.0
    recent: list[CommitStatistics] = []
    rejected: list[Rejected] = []


class ProcessStatistics(msgspec.Struct, frozen=True):
    """The resources that a process uses."""

    PREFIX: ClassVar = "process_"

    cpu_seconds: Annotated[float, counter("CPU time; without an app: the node's own process")]
    resident_bytes: Annotated[int, gauge("memory of the process")]
    open_files: Annotated[int, gauge("open files and sockets of the process")]
    threads: Annotated[int, gauge("threads of the process")]


class ListenerStatistics(msgspec.Struct, frozen=True):
    """The counts of what listens; ``published`` has batches of sinks and their events."""

    peers: Annotated[
        dict[str, int], counter("connections, and those refused, ended or at fault", "kind")
    ] = {}
    published: Annotated[
        dict[str, int], counter("batches of sinks that the log has published, and events", "kind")
    ] = {}


class ContainerStatistics(ListenerStatistics, frozen=True, kw_only=True):
    """The counts of a container of ``app`` since its start.

    It has run for ``up_seconds``. ``cpu_seconds`` are those of its process, and ``load`` is that of
    its machine in the last minute by core: above 1, programs wait for one. For ``waited_seconds``
    the process waited for a processor. ``levels`` is, by stream, the number of
    streams before it on the way from an input; ``grades`` says if it is fast or durable, and
    ``ways`` which PEs put events on it and which take them. ``replay`` and ``outboxes`` are empty
    if tasks keep no state.
    """

    app: str
    up_seconds: float = 0.0
    cpu_seconds: float = 0.0
    load: float = 0.0
    waited_seconds: float = 0.0
    levels: dict[str, int] = {}
    grades: dict[str, str] = {}
    ways: dict[str, tuple[list[str], list[str]]] = {}
    tasks: Annotated[tuple[TaskStatistics, ...], Keyed()] = ()
    stages: Annotated[tuple[StageStatistics, ...], Keyed()] = ()
    inputs: Annotated[dict[str, InputStatistics], Keyed("stream")] = {}
    replay: Annotated[ReplayStatistics, Keyed()] = ReplayStatistics()
    outboxes: Annotated[tuple[OutboxStatistics, ...], Keyed()] = ()
    sent: Annotated[dict[str, int], counter("events put on the output stream", "stream")] = {}
    dropped: Annotated[
        dict[str, int], counter("events that the output stream's stages dropped", "stream")
    ] = {}
    unsendable: Annotated[
        dict[str, dict[str, int]],
        counter("events that could not be sent, once for each receiver", "stage", "stream"),
    ] = {}
    partitions: Annotated[int, gauge("partitions that the container runs")] = 0
    turns: Annotated[int, counter("turns of the loop")] = 0
    utilization: Annotated[
        float, Family("gauge", "part of the time in which the loop was busy, 0 to 1", merge=MOST)
    ] = 0.0
    start_seconds: Annotated[float, Family("gauge", "how long the last start took", merge=MOST)] = (
        0.0
    )
    gains: Annotated[int, counter("times that partitions were given to the container")] = 0
    gain_seconds: Annotated[
        float, counter("seconds until these took events, with the restore of their state")
    ] = 0.0
    recoveries: Annotated[int, counter("roll backs of a failed task to its last commit")] = 0
    recovery_seconds: Annotated[float, counter("seconds that these took")] = 0.0

    @property
    def processed(self) -> int:
        return sum(task.processed for task in self.tasks)


class LifeStatistics(msgspec.Struct, frozen=True):
    """A node's knowledge of a container's process."""

    PREFIX: ClassVar = "container_"
    LABELS: ClassVar[Mapping[str, str]] = {"version": "version"}

    version: str
    running: Annotated[int, gauge("1 if the container runs its app, else 0")]
    starts: Annotated[int, counter("starts of the container's process")]


class NodeStatistics(msgspec.Struct, frozen=True):
    PREFIX: ClassVar = "node_"
    LABELS: ClassVar[Mapping[str, str]] = {
        "node": "node",
        "cluster": "cluster",
        "version": "version",
    }

    node: str
    cluster: str
    version: str
    ready: Annotated[int, gauge("1 if /readyz says so, else 0")]


OWN = "s4_app_metric"
"""The family of the metrics of an app's author."""

FAMILIES: dict[str, Family] = {
    **families(NodeStatistics),
    **families(LifeStatistics),
    **families(ProcessStatistics),
    **families(ContainerStatistics),
    OWN: Family("untyped", "a metric of the app's author", ("source", "group", "name")),
}
