"""A snapshot of a cluster, combined from the reports of its nodes. Pure.

Rules
- Containers report counts of their stages. The same stage of several partitions and containers
  becomes one row: counts are added up, times are the longest.
- An event that one container passes on to the owner of its partition is decoded in both. The stages
  count it where it came in from outside, and the inputs at the owner.
- A rate is the difference of two snapshots; a container that started between them counts from 0.
- The bottleneck is the full stage furthest downstream, one that blocks before one that sheds: a
  full stage fills those before it, so all of them wait for the last full one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from s4node.cluster.node.app_details import (
    CommitsRow,
    FlowRow,
    PartitionRow,
    RejectedRow,
    commits_of,
    flows_of,
    partitions_of,
    rejected_of,
)
from s4node.cluster.node.container_status import ContainerStatus
from s4node.cluster.node.history import Happening
from s4node.metrics import table
from s4node.metrics.statistics import ContainerStatistics, StageStatistics

R = TypeVar("R", bound=msgspec.Struct)
N = TypeVar("N", int, float)

_DOWNSTREAM = ("deserializer", "stream", "sender", "remoteSender", "subscriber")
"""The stages in the order in which events pass them."""

FULL = 0.8
"""How full a stage is when it holds up the stages before it."""


class Row(StageStatistics):
    """A stage of a stream of an app, over all its partitions and containers.

    An event that another container has passed on is not counted in ``admitted`` again.
    """

    app: str = ""
    fullest: float = 0.0
    """How full the fullest of its partitions is; 1 is full."""
    level: int = 0
    """The number of streams before this one."""
    grade: str = ""
    """The grade of the stream: fast or durable."""
    left_out: int = 0
    """Events of the stream that were skipped because a handler failed or the process died."""
    unsendable: int = 0
    """Events of the stream that could not be sent by this stage."""
    rate: float | None = None
    """Events admitted per second; None without an earlier snapshot."""

    def add(self, stage: StageStatistics) -> None:
        table.add(self, stage)
        self.executor = stage.executor
        self.max_bytes += stage.max_bytes
        self.highest = max(self.highest, stage.highest)
        self.fullest = max(
            self.fullest,
            stage.depth / (stage.capacity or 1),
            stage.bytes / stage.max_bytes if stage.max_bytes else 0.0,
        )


class OutboxRow(msgspec.Struct):
    """Uncommitted events that an app's tasks have put on a stream for others. ``bytes`` is an
    estimate. ``consumer`` is the receiving app, empty for the same app."""

    app: str
    stream: str
    consumer: str
    depth: int = 0
    bytes: int = 0


class InputRow(msgspec.Struct):
    """An input of an app, as ``system.stream``: the events that its tasks have not processed. None
    while the end of one of its partitions is unknown. ``uncommitted`` records are behind it.
    ``late`` is for how many seconds the oldest one that was read has been sent."""

    app: str
    input: str
    lag: int | None = 0
    uncommitted: int = 0
    late: float = 0.0


class RestoringRow(msgspec.Struct):
    """A task whose owner fetches its state from a URL: objects, and how many they are at most."""

    app: str
    task: str
    fetched: int = 0
    wanted: int = 0


class FailingRow(msgspec.Struct, frozen=True, order=True):
    """The tasks of an app that cannot commit or start, and try again; why the first cannot. If a
    container cannot start, there are none."""

    app: str
    tasks: list[str]
    reason: str


class AwayRow(msgspec.Struct, frozen=True, order=True):
    """A system that does not answer an app, or takes no records of it, and why."""

    app: str
    system: str
    reason: str


class StandbyRow(msgspec.Struct, frozen=True, order=True):
    """The tasks of an app that a node follows as their standby; the slowest is so many seconds
    behind."""

    app: str
    node: str
    tasks: list[str]
    behind: float


class WatermarkRow(msgspec.Struct, frozen=True, order=True):
    """The watermark of a stream, in seconds since 1970: the lowest of all tasks that have one, or 0
    if windows or timers of one wait and it has none.

    ``holding`` is the source that holds it back, and ``behind`` says by how many seconds the latest
    event is later. The clock of ``skewed`` is ``ahead`` by so many seconds, if any is.
    """

    app: str
    stream: str
    at: float
    holding: str = ""
    behind: float = 0.0
    ahead: float = 0.0
    skewed: str = ""


class WindowsRow(msgspec.Struct):
    """The windows of an app's tasks: their number, held-back events, and late events by PE.

    ``waiting`` are the inputs that run ahead of others in event time, and wait for these.
    """

    app: str
    windows: int = 0
    held_back: int = 0
    late: dict[str, int] = {}
    waiting: list[str] = []


class PeRow(msgspec.Struct):
    """A handler or hook of a PE over all tasks of an app; ``hot`` has the events of its hottest
    keys. Seconds, calls and these are estimates."""

    app: str
    pe: str
    handler: str
    seconds: float = 0.0
    calls: int = 0
    errors: int = 0
    hot: dict[str, float] = {}


class WorkRow(msgspec.Struct, frozen=True):
    """The work of an app's container on a node since its start: seconds of its ``tasks`` tasks and
    calls, by kind; and of its process. ``load`` is that of the machine by core, and for
    ``waited_seconds`` the process waited for a processor. It had run for ``up_seconds`` when it
    counted these, some time before the snapshot."""

    app: str
    node: str
    tasks: int
    seconds: dict[str, float]
    calls: dict[str, int]
    cpu_seconds: float
    load: float
    waited_seconds: float = 0.0
    commits: int = 0
    commit_bytes: int = 0
    commit_seconds: float = 0.0
    commit_age: float = 0.0
    up_seconds: float = 0.0


class StreamRow(msgspec.Struct, frozen=True):
    """A stream between apps: which put events on it, and which take them, as ``cluster.app``."""

    stream: str
    producers: list[str]
    consumers: list[str]


class NodeRow(msgspec.Struct, frozen=True):
    """A living node; ``problem`` is why it does not answer, or empty."""

    name: str
    address: str
    pid: int
    host: str
    containers: list[ContainerStatus]
    problem: str = ""


class AppRow(msgspec.Struct, frozen=True):
    """An app. ``state`` is from :func:`state_of`, ``owners`` are its members' names by partition
    (empty without an owner), ``containers`` the members' addresses by node."""

    name: str
    version: str
    state: str
    partitions: int
    owners: list[str]
    members: list[str]
    containers: dict[str, str]


class Snapshot(msgspec.Struct, frozen=True):
    """A cluster at a time (seconds of a steady clock), or a process without a cluster.

    ``folder`` is that of the coordination, empty without a cluster.
    """

    cluster: str
    folder: str
    time: float
    nodes: list[NodeRow]
    apps: list[AppRow]
    stages: list[Row]
    bottleneck: str = ""
    outboxes: list[OutboxRow] = []
    restoring: list[RestoringRow] = []
    watermarks: list[WatermarkRow] = []
    windows: list[WindowsRow] = []
    streams: list[StreamRow] = []
    standbys: list[StandbyRow] = []
    failing: list[FailingRow] = []
    inputs: list[InputRow] = []
    pes: list[PeRow] = []
    work: list[WorkRow] = []
    away: list[AwayRow] = []
    flows: list[FlowRow] = []
    partitions: list[PartitionRow] = []
    commits: list[CommitsRow] = []
    rejected: list[RejectedRow] = []
    history: list[Happening] = []

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the snapshot among those of the same time."""
        alone = "" if self.folder else self.nodes[0].name
        return self.cluster, self.folder, alone


def no_node(cluster: str, others: Collection[str], place: str = "") -> str:
    """The message if no node of a cluster runs, but nodes of ``others`` do. ``place`` is that of
    the coordination which was asked, if it was one."""
    where = f" in {place}" if place else ""
    fix = f"start one with: s4 node {cluster}"
    if others:
        fix = f"nodes of {', '.join(others)} are: name it with --cluster; or {fix}"
    elif place:
        fix += ", or name the nodes' folder with --folder, or their ZooKeeper with --coordination"
    return f"no node of cluster {cluster!r} is running{where}; {fix}"


Rows: TypeAlias = dict[tuple[str, str, str], Row]


def rows_of(reports: Iterable[ContainerStatistics]) -> list[Row]:
    rows: Rows = {}
    for report in reports:
        for stage in report.stages:
            row = _row(rows, report, stage.stage, stage.stream)
            row.grade = report.grades.get(row.stream, row.grade)
            row.add(stage)
        for stream, counts in report.inputs.items():
            if decoded := rows.get((report.app, "deserializer", stream)):
                decoded.admitted -= counts.forwarded
        for stream, count in report.replay.left_out.items():
            _row(rows, report, "stream", stream).left_out += count
        for place, streams in report.unsendable.items():
            for stream, count in streams.items():
                _row(rows, report, place, stream).unsendable += count
    return sorted(rows.values(), key=lambda row: (row.app, _rank(row), row.stream))


def _row(rows: Rows, report: ContainerStatistics, stage: str, stream: str) -> Row:
    key = report.app, stage, stream
    return rows.setdefault(
        key, Row(stage, stream, app=report.app, level=report.levels.get(stream, 0))
    )


_DOING = {
    "running": "starting",  # it was prepared, or has resumed, and has not joined yet
    "starting": "starting",
    "waiting": "waiting to restart",
    "stopping": "stopping",
    "killed": "stopping",
    "prepared": "starting",
    "ended": "ended",
}
"""The state of an app without members, by the phase of its containers; the first one counts."""


def state_of(wanted: str, phases: Collection[str], members: Collection[str]) -> str:
    """The state of an app, given the wanted one of the registry.

    ``phases`` are those of its containers, as far as nodes have answered; ``members`` are the names
    of the containers that have joined. An app that fails at every start is wanted, but not running.
    """
    if wanted != "running" or members:
        return wanted
    return next((doing for phase, doing in _DOING.items() if phase in phases), "not running")


def _added(kind: type[R], found: Iterable[tuple[tuple[str, ...], msgspec.Struct]]) -> list[R]:
    """One row for each key, which are its first fields, with the sums of its statistics."""
    rows: dict[tuple[str, ...], R] = {}
    for key, statistics in found:
        table.add(rows.setdefault(key, kind(*key)), statistics)
    return [row for _, row in sorted(rows.items())]


def outboxes_of(reports: Iterable[ContainerStatistics]) -> list[OutboxRow]:
    found = ((report.app, each) for report in reports for each in report.outboxes)
    rows = _added(OutboxRow, (((app, each.stream, each.consumer), each) for app, each in found))
    return [row for row in rows if row.depth]


def inputs_of(reports: Iterable[ContainerStatistics]) -> list[InputRow]:
    found = ((report.app, each) for report in reports for each in report.replay.progress)
    return _added(InputRow, (((app, f"{each.system}.{each.stream}"), each) for app, each in found))


def restoring_of(reports: Iterable[ContainerStatistics]) -> list[RestoringRow]:
    """The tasks whose state is being fetched."""
    found = ((report.app, report.replay.restoring.items()) for report in reports)
    return _added(RestoringRow, (((app, task), each) for app, all_ in found for task, each in all_))


def failing_of(reports: Iterable[ContainerStatistics]) -> list[FailingRow]:
    """The tasks that cannot commit or start now."""
    reasons: dict[str, dict[str, str]] = {}
    for report in reports:
        reasons.setdefault(report.app, {}).update(report.replay.failing)
    return [
        FailingRow(app, sorted(filter(None, found)), found[min(found)])
        for app, found in sorted(reasons.items())
        if found
    ]


def away_of(reports: Iterable[ContainerStatistics]) -> list[AwayRow]:
    """The systems that do not answer an app, or do not take its records."""
    found = {
        (report.app, system): why
        for report in reports
        for system, why in report.replay.away.items()
    }
    return [AwayRow(*key, why) for key, why in sorted(found.items())]


def standbys_of(node: str, reports: Iterable[ContainerStatistics]) -> list[StandbyRow]:
    return [
        StandbyRow(report.app, node, sorted(found), max(found.values()))
        for report in reports
        if (found := report.replay.standbys)
    ]


def watermarks_of(reports: Iterable[ContainerStatistics]) -> list[WatermarkRow]:
    lowest: dict[tuple[str, str], WatermarkRow] = {}
    for report in reports:
        for task in report.tasks:
            for stream, (at, holding) in task.watermarks.items():
                behind = task.behind.get(stream, 0.0)
                row = WatermarkRow(
                    report.app, stream, at, holding, behind, *task.ahead.get(stream, (0.0, ""))
                )
                known = lowest.setdefault((report.app, stream), row)
                lowest[report.app, stream] = min(row, known)
    return sorted(lowest.values())


def windows_of(reports: Iterable[ContainerStatistics]) -> list[WindowsRow]:
    found = [(report.app, task) for report in reports for task in report.tasks]
    rows = _added(WindowsRow, (((app,), task) for app, task in found))
    for row in rows:
        row.waiting = sorted({each for app, t in found if app == row.app for each in t.waiting})
    return [row for row in rows if row.windows or row.held_back or row.late or row.waiting]


def pes_of(reports: Iterable[ContainerStatistics]) -> list[PeRow]:
    """The handlers and hooks of PEs that were called."""
    rows: dict[tuple[str, str, str], PeRow] = {}
    for report in reports:
        for task in report.tasks:
            for pe, calls in task.pe_calls.items():
                for handler, count in calls.items():
                    row = rows.setdefault(
                        (report.app, pe, handler), PeRow(report.app, pe, handler, hot={})
                    )
                    row.calls += count
                    row.seconds += task.pe_seconds[pe][handler]
                    row.errors += task.pe_errors.get(pe, {}).get(handler, 0)
                    if handler == "on_event":
                        for key, part in task.hot_keys.get(pe, {}).items():
                            row.hot[key] = row.hot.get(key, 0.0) + part * count
    return sorted(rows.values(), key=lambda row: (row.app, -row.seconds))


def work_of(node: str, reports: Iterable[ContainerStatistics]) -> list[WorkRow]:
    return [
        WorkRow(
            report.app,
            node,
            len(report.tasks),
            _summed(task.seconds for task in report.tasks),
            _summed(task.calls for task in report.tasks),
            report.cpu_seconds,
            report.load,
            report.waited_seconds,
            report.replay.commits,
            report.replay.commit_bytes,
            report.replay.commit_seconds,
            report.replay.commit_age,
            report.up_seconds,
        )
        for report in reports
    ]


def _summed(found: Iterable[Mapping[str, N]]) -> dict[str, N]:
    total: dict[str, Any] = {}
    for each in found:
        for key, value in each.items():
            total[key] = total.get(key, 0) + value
    return total


OF_APPS: Mapping[str, Callable[[Iterable[ContainerStatistics]], list[Any]]] = {
    "stages": rows_of,
    "outboxes": outboxes_of,
    "restoring": restoring_of,
    "watermarks": watermarks_of,
    "windows": windows_of,
    "failing": failing_of,
    "inputs": inputs_of,
    "pes": pes_of,
    "away": away_of,
    "flows": flows_of,
    "commits": commits_of,
    "rejected": rejected_of,
}
"""The rows of apps in a snapshot, from the reports of all nodes."""

OF_NODES: Mapping[str, Callable[[str, Iterable[ContainerStatistics]], list[Any]]] = {
    "standbys": standbys_of,
    "work": work_of,
    "partitions": partitions_of,
}
"""Those that name a node, from its reports."""


def _rank(row: Row) -> tuple[int, int]:
    stage = _DOWNSTREAM.index(row.stage) if row.stage in _DOWNSTREAM else len(_DOWNSTREAM)
    return stage, row.level


def bottleneck_of(rows: Iterable[Row]) -> str:
    """The stage that all others wait for, as text, or one that drops; empty if none is full.

    A throttling stage is full because of its rate, so it does not count.
    """
    full = [row for row in rows if row.executor != "throttle" and row.fullest >= FULL]
    if not full:
        return ""
    worst = max(full, key=lambda row: (row.executor != "shed", _rank(row), row.fullest))
    drops = ", and drops" if worst.executor == "shed" else ""
    return (
        f"{worst.stage} {worst.stream!r} of app {worst.app!r} is {worst.fullest:.0%} full{drops}: "
        f"its consumer is too slow"
    )


def with_rates(now: Snapshot, before: Snapshot | None) -> Snapshot:
    if before is None or now.time <= before.time:
        return now
    counts = {(row.app, row.stage, row.stream): row.admitted for row in before.stages}
    for row in now.stages:
        earlier = counts.get((row.app, row.stage, row.stream), 0)
        gained = row.admitted - earlier if row.admitted >= earlier else row.admitted
        row.rate = gained / (now.time - before.time)
    return now


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in ascending order, as in ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def duration(seconds: float) -> str:
    """A duration with its unit, as in ``1.5 ms``."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
