"""The metrics of a node in the text format of Prometheus. Pure.

Rules
- A family is declared once, in the table below; docs/monitoring.md has them all.
- Labels are names of apps, versions, stages, streams and systems, never partitions, keys or peers:
  there are as many series as an app has streams, whatever the number of partitions. Only metrics of
  an app's author have their names and tasks as labels, and each container reports a bounded number.
- Values with the same labels are added up over tasks and processes, except for those of which the
  most counts (waiting times, shares) or the least (watermarks). Counters never fall (``totals``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from s4node.cluster.node.container_status import ContainerStatus
from s4node.metrics.snapshot import MetricsSnapshot
from s4node.metrics.statistics import ContainerStatistics, ProcessStatistics
from s4node.monitoring.totals import Series, Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FAMILIES = {
    "s4_node_info": ("gauge", "1, with the names of the node and its cluster, and its version"),
    "s4_node_ready": ("gauge", "1 if /readyz says so, else 0"),
    "s4_process_cpu_seconds": ("counter", "CPU time; without an app: the node's own process"),
    "s4_process_resident_bytes": ("gauge", "memory of the process"),
    "s4_process_open_files": ("gauge", "open files and sockets of the process"),
    "s4_process_threads": ("gauge", "threads of the process"),
    "s4_container_running": ("gauge", "1 if the container runs its app, else 0"),
    "s4_container_starts": ("counter", "starts of the container's process"),
    "s4_container_start_seconds": ("gauge", "how long the last start took"),
    "s4_loop_utilization": ("gauge", "part of the time in which the loop was busy, 0 to 1"),
    "s4_partitions": ("gauge", "partitions that the container runs"),
    "s4_gain_seconds": (
        "summary",
        "from being given partitions until they take events, with the restore of their state",
    ),
    "s4_recovery_seconds": ("summary", "roll back of a failed task to its last commit"),
    "s4_restoring_tasks": ("gauge", "tasks whose state is being fetched from the URL"),
    "s4_restored_objects": ("gauge", "objects that these have fetched"),
    "s4_restore_objects": ("gauge", "objects that these will fetch at most, as far as is known"),
    "s4_standby_tasks": (
        "gauge",
        "tasks of other containers that are followed, as a standby or before they move here",
    ),
    "s4_standby_lag_seconds": ("gauge", "how long the slowest of them has not caught up"),
    "s4_processed_events": ("counter", "events processed"),
    "s4_refused_events": ("counter", "events without a key"),
    "s4_late_events": ("counter", "events that came too late for their window, by PE"),
    "s4_call_seconds": ("summary", "calls of process, commit, window and timer, and their time"),
    "s4_commits_written": ("counter", "commits that are on disk"),
    "s4_commit_failures": ("counter", "commits that could not be written, and were retried"),
    "s4_stage_events": ("gauge", "events in the stage"),
    "s4_stage_capacity_events": ("gauge", "events that the stage can hold"),
    "s4_stage_bytes": ("gauge", "bytes in the stage"),
    "s4_stage_spilled_events": ("gauge", "events of the stage that wait on disk"),
    "s4_stage_in_flight_events": ("gauge", "events of the stage that are being processed"),
    "s4_stage_wait_seconds": ("gauge", "how long the last taken batch had waited"),
    "s4_stage_admitted_events": ("counter", "events that the stage has admitted"),
    "s4_stage_shed_events": ("counter", "events that the stage has dropped, by reason"),
    "s4_input_lag_events": ("gauge", "events of the input that are not processed yet, if known"),
    "s4_input_undecodable_events": ("counter", "events of the input that could not be decoded"),
    "s4_input_lost_events": ("counter", "events that retention removed before they were read"),
    "s4_left_out_events": ("counter", "events skipped because a handler failed"),
    "s4_sent_events": ("counter", "events put on the output stream"),
    "s4_dropped_events": ("counter", "events that the output stream's stages dropped"),
    "s4_unsendable_events": ("counter", "events that could not be sent"),
    "s4_outbox_events": ("gauge", "events that receivers have not committed"),
    "s4_outbox_bytes": ("gauge", "about how many bytes these are"),
    "s4_watermark_seconds": ("gauge", "watermark of the stream, in seconds since 1970"),
    "s4_peer_incidents": ("counter", "connections, and those refused, ended or at fault, by kind"),
    "s4_app_metric": ("untyped", "a metric of the app's author, by source, group and name"),
}
"""Kind and meaning by name; samples of counters end with ``_total``."""

_MOST_LABEL = 200
"""Longer texts of labels are cut."""


@dataclass(frozen=True)
class ContainerReport:
    """What the node knows of a container, which has a ``place`` among its containers.

    Nothing is counted before the container is ready.
    """

    place: int
    status: ContainerStatus
    statistics: ContainerStatistics | None
    own: Sequence[MetricsSnapshot]
    process: ProcessStatistics | None


@dataclass(frozen=True)
class NodeReport:
    """What a node knows of itself and its containers."""

    name: str
    cluster: str
    version: str
    is_ready: bool
    process: ProcessStatistics | None
    containers: Sequence[ContainerReport]


def exposition(node: NodeReport, totals: Totals) -> str:
    """The text for Prometheus; ``totals`` are those of the same node's earlier texts."""
    page = _Page(totals)
    page.add("s4_node_info", 1, node=node.name, cluster=node.cluster, version=node.version)
    page.add("s4_node_ready", int(node.is_ready))
    _add_process(page, node.process, "node", app="")
    for each in node.containers:
        status, source = each.status, each.status.pid
        running = bool(status.address)  # it may have statistics before
        page.add("s4_container_running", int(running), app=status.app, version=status.version)
        page.count("s4_container_starts", each.place, status.starts, app=status.app)
        _add_process(page, each.process, source, app=status.app)
        if each.statistics is not None:
            _add_container(page, each.statistics, status.app, source)
            _add_own(page, each.own, status.app)
    return page.text()


def _add_process(
    page: _Page, process: ProcessStatistics | None, source: Hashable, **labels: str
) -> None:
    if process is None:
        return
    page.count("s4_process_cpu_seconds", source, process.cpu_seconds, **labels)
    page.add("s4_process_resident_bytes", process.resident_bytes, **labels)
    page.add("s4_process_open_files", process.open_files, **labels)
    page.add("s4_process_threads", process.threads, **labels)


def _add_container(page: _Page, found: ContainerStatistics, app: str, source: Hashable) -> None:
    page.most("s4_container_start_seconds", found.started_after, app=app)
    page.most("s4_loop_utilization", found.utilization, app=app)
    page.add("s4_partitions", len(found.tasks), app=app)
    page.summary("s4_gain_seconds", source, found.gains, found.gain_seconds, app=app)
    page.summary("s4_recovery_seconds", source, found.recoveries, found.recovery_seconds, app=app)
    replay = found.replay
    page.add("s4_restoring_tasks", len(replay.restoring), app=app)
    page.add("s4_restored_objects", sum(n for n, _ in replay.restoring.values()), app=app)
    page.add("s4_restore_objects", sum(n for _, n in replay.restoring.values()), app=app)
    page.add("s4_standby_tasks", len(replay.standbys), app=app)
    page.most("s4_standby_lag_seconds", max(replay.standbys.values(), default=0.0), app=app)
    page.count("s4_commits_written", source, replay.commits, app=app)
    page.count("s4_commit_failures", source, replay.failures, app=app)
    for task in found.tasks:
        each = source, task.name
        page.count("s4_processed_events", each, task.processed, app=app)
        page.count("s4_refused_events", each, task.refused, app=app)
        for pe, count in task.late.items():
            page.count("s4_late_events", each, count, app=app, pe=pe)
        for call, calls in task.calls.items():
            spent = task.seconds.get(call, 0.0)
            page.summary("s4_call_seconds", each, calls, spent, app=app, call=call)
        for stream, (at, _) in task.watermarks.items():
            if at:
                page.least("s4_watermark_seconds", at, app=app, stream=stream)
    _add_stages(page, found, app, source)
    _add_streams(page, found, app, source)


def _add_stages(page: _Page, found: ContainerStatistics, app: str, source: Hashable) -> None:
    for stage in found.stages:
        labels = {"app": app, "stage": stage.stage, "stream": stage.stream}
        page.add("s4_stage_events", stage.depth, **labels)
        page.add("s4_stage_capacity_events", stage.capacity, **labels)
        page.add("s4_stage_bytes", stage.bytes, **labels)
        page.add("s4_stage_spilled_events", stage.spilled, **labels)
        page.add("s4_stage_in_flight_events", stage.in_flight, **labels)
        page.most("s4_stage_wait_seconds", stage.waited_last, **labels)
        each = source, stage.partition
        page.count("s4_stage_admitted_events", each, stage.admitted, **labels)
        for reason, count in stage.shed.items():
            page.count("s4_stage_shed_events", each, count, **labels, reason=reason)


def _add_streams(page: _Page, found: ContainerStatistics, app: str, source: Hashable) -> None:
    replay = found.replay
    for each in replay.progress:
        if each.lag is not None:
            labels = {"app": app, "system": each.system, "stream": each.stream}
            page.add("s4_input_lag_events", each.lag, **labels)
    for name, counts in (
        ("s4_input_undecodable_events", replay.rejected),
        ("s4_input_lost_events", replay.lost),
    ):
        for place, count in counts.items():
            system, _, stream = place.partition(".")
            page.count(name, source, count, app=app, system=system, stream=stream)
    for name, counts in (
        ("s4_left_out_events", replay.left_out),
        ("s4_sent_events", found.sent),
        ("s4_dropped_events", found.dropped),
    ):
        for stream, count in counts.items():
            page.count(name, source, count, app=app, stream=stream)
    for stage, streams in found.unsendable.items():
        for stream, count in streams.items():
            page.count("s4_unsendable_events", source, count, app=app, stage=stage, stream=stream)
    for outbox in found.outboxes:
        labels = {"app": app, "stream": outbox.stream, "consumer": outbox.consumer}
        page.add("s4_outbox_events", outbox.depth, **labels)
        page.add("s4_outbox_bytes", outbox.bytes, **labels)
    for kind, count in found.peers.items():
        page.count("s4_peer_incidents", source, count, app=app, kind=kind)


def _add_own(page: _Page, snapshots: Iterable[MetricsSnapshot], app: str) -> None:
    for snapshot in snapshots:
        for group, values in snapshot.groups.items():
            for name, value in values.items():
                if not isinstance(value, str):
                    labels = {"source": snapshot.source, "group": group, "name": name}
                    page.add("s4_app_metric", value, app=app, **labels)


class _Page:
    """The values of one text."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._values: dict[Series, float] = {}

    def add(self, name: str, value: float, /, **labels: str) -> None:
        """Add to the value with these labels."""
        key = name, _labels(labels)
        self._values[key] = self._values.get(key, 0) + value

    def most(self, name: str, value: float, /, **labels: str) -> None:
        """Keep the largest value with these labels."""
        key = name, _labels(labels)
        self._values[key] = max(self._values.get(key, value), value)

    def least(self, name: str, value: float, /, **labels: str) -> None:
        """Keep the smallest value with these labels."""
        key = name, _labels(labels)
        self._values[key] = min(self._values.get(key, value), value)

    def count(self, name: str, source: Hashable, value: float, /, **labels: str) -> None:
        """Note what ``source`` has counted since its start."""
        self._totals.add((f"{name}_total", _labels(labels)), source, value)

    def summary(
        self, name: str, source: Hashable, count: float, total: float, /, **labels: str
    ) -> None:
        """Note the number of calls of ``source`` since its start, and their sum."""
        self._totals.add((f"{name}_count", _labels(labels)), source, count)
        self._totals.add((f"{name}_sum", _labels(labels)), source, total)

    def text(self) -> str:
        """The text, family by family in the order of the table."""
        samples: dict[str, list[str]] = {}
        for (name, labels), value in (self._values | self._totals.collected()).items():
            told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            line = f"{name}{{{told}}} {_number(value)}" if told else f"{name} {_number(value)}"
            samples.setdefault(name, []).append(line)
        return "\n".join([*_lines(samples), ""])


def _lines(samples: dict[str, list[str]]) -> Iterator[str]:
    for family, (kind, meaning) in FAMILIES.items():
        names = {"counter": [f"{family}_total"], "summary": [f"{family}_count", f"{family}_sum"]}
        found = [line for name in names.get(kind, [family]) for line in samples.get(name, [])]
        if found:
            whole = f"{family}_total" if kind == "counter" else family
            yield f"# HELP {whole} {meaning}"
            yield f"# TYPE {whole} {kind}"
            yield from found


def _labels(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, text[:_MOST_LABEL]) for name, text in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
