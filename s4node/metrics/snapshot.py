"""The content of a report: the values of one source at one moment. Pure.

Rules
- Names are those of Apache Samza where it has one; docs/metrics.md has them all.
- Values are plain numbers and short texts, since the start unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = int | float | str

Groups = Mapping[str, Mapping[str, Value]]
"""Values by group and name."""


@dataclass(frozen=True)
class MetricsSnapshot:
    """The values of a ``source``: a container by its name, or a task such as
    ``TaskName-Partition 0``."""

    source: str
    groups: Groups


@dataclass(frozen=True)
class MetricsReport:
    """All snapshots of a container, with its names.

    ``time_ms`` is when they were taken, ``since_ms`` when the container started (Unix time).
    """

    job: str
    container: str
    host: str
    version: str
    since_ms: int
    time_ms: int
    snapshots: Sequence[MetricsSnapshot] = field(default_factory=tuple)


def merged(snapshots: Sequence[MetricsSnapshot]) -> tuple[MetricsSnapshot, ...]:
    """One snapshot for each source, in the order of first appearance."""
    groups: dict[str, dict[str, dict[str, Value]]] = {}
    for snapshot in snapshots:
        mine = groups.setdefault(snapshot.source, {})
        for group, values in snapshot.groups.items():
            mine.setdefault(group, {}).update(values)
    return tuple(MetricsSnapshot(source, found) for source, found in groups.items())
