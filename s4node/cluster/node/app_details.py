"""Rows of a snapshot beside its stages: flows, partitions, commits, rejected events. Pure.

Rules
- Rows of several containers are put together as in :mod:`s4node.deploy.cluster_snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from s4node.cluster.node.history import MOST, Happening
from s4node.metrics.statistics import CommitStatistics, ContainerStatistics, Rejected

_REJECTED = 50
_SAME_MS = 10_000
"""Within this time, nodes see the same."""


class FlowRow(msgspec.Struct, frozen=True):
    """A stream of an app: the PEs that put events on it, and those that take them."""

    app: str
    stream: str
    level: int
    grade: str
    sources: list[str]
    targets: list[str]


class PartitionRow(msgspec.Struct):
    """A partition of an app: its events, and those that wait; ``seconds`` were spent in them.
    ``hot`` is the hottest key of ``hot_pe``, with its ``part`` of the events."""

    app: str
    partition: int
    node: str
    processed: int = 0
    pending: int = 0
    seconds: float = 0.0
    lag: int | None = 0
    hot: str = ""
    hot_pe: str = ""
    part: float = 0.0


class CommitsRow(CommitStatistics):
    app: str = ""


class RejectedRow(Rejected, frozen=True, kw_only=True):
    app: str


def flows_of(reports: Iterable[ContainerStatistics]) -> list[FlowRow]:
    found = {
        (report.app, stream): FlowRow(
            report.app,
            stream,
            report.levels.get(stream, 0),
            report.grades.get(stream, ""),
            sources,
            targets,
        )
        for report in reports
        for stream, (sources, targets) in report.ways.items()
    }
    return sorted(found.values(), key=lambda row: (row.app, row.level))


def partitions_of(node: str, reports: Iterable[ContainerStatistics]) -> list[PartitionRow]:
    rows = []
    for report in reports:
        for task in report.tasks:
            row = PartitionRow(report.app, task.partition, node, task.processed, task.pending)
            row.seconds = sum(task.seconds.values())
            parts = [
                (part, key, pe) for pe, keys in task.hot_keys.items() for key, part in keys.items()
            ]
            row.part, row.hot, row.hot_pe = max(parts, default=(0.0, "", ""))
            lags = [each.lag for each in report.replay.progress if each.task == task.name]
            known = [lag for lag in lags if lag is not None]
            row.lag = sum(known) if len(known) == len(lags) else None
            rows.append(row)
    return rows


def commits_of(reports: Iterable[ContainerStatistics]) -> list[CommitsRow]:
    """The commits of all containers of each app, the oldest first."""
    rows: dict[tuple[str, int], CommitsRow] = {}
    for report in reports:
        for each in report.replay.recent:
            row = rows.setdefault((report.app, each.at), CommitsRow(each.at, app=report.app))
            row.count += each.count
            row.seconds += each.seconds
            row.longest = max(row.longest, each.longest)
            row.bytes += each.bytes
    return [row for _, row in sorted(rows.items())]


def rejected_of(reports: Iterable[ContainerStatistics]) -> list[RejectedRow]:
    """The events that were given up last, the latest first."""
    rows = [
        RejectedRow(app=report.app, **msgspec.structs.asdict(each))
        for report in reports
        for each in report.replay.rejected
    ]
    return sorted(rows, key=lambda row: -row.ms)[:_REJECTED]


def history_of(found: Iterable[Sequence[Happening]]) -> list[Happening]:
    """The history that all nodes have seen, each thing once, the latest first."""
    kept: list[Happening] = []
    for one in sorted((each for seen in found for each in seen), key=lambda each: each.ms):
        what = one.app, one.kind, one.text
        recent = [each for each in kept if each.ms > one.ms - _SAME_MS]
        if not any((each.app, each.kind, each.text) == what for each in recent):
            kept.append(one)
    return kept[: -MOST - 1 : -1]
