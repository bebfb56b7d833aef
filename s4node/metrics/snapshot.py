"""The content of a report: the values of one source at one moment. Pure.

Rules
- Names are those of Apache Samza where it has one; docs/metrics.md has them all.
- Values are plain numbers and short texts, since the start unless the name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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


def numbers_of(snapshots: Iterable[MetricsSnapshot], most: int) -> list[MetricsSnapshot]:
    """The values that are finite numbers, at most ``most``, as plain data whatever was set.

    Snapshots without any are left out.
    """
    found: dict[str, dict[str, dict[str, Value]]] = {}
    values = (
        (snapshot.source, group, name, value)
        for snapshot in snapshots
        for group, named in snapshot.groups.items()
        for name, value in named.items()
    )
    for source, group, name, value in values:
        number = _number(value)
        if number is None:
            continue
        if most <= 0:
            break
        most -= 1
        found.setdefault(source, {}).setdefault(_plain(group), {})[_plain(name)] = number
    return [MetricsSnapshot(source, groups) for source, groups in found.items()]


def _number(value: object) -> float | None:
    """The finite number that is ``value``, or None."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _plain(name: object) -> str:
    return str(name).encode("utf-8", "replace").decode()


def merged(snapshots: Sequence[MetricsSnapshot]) -> tuple[MetricsSnapshot, ...]:
    """One snapshot for each source, in the order of first appearance."""
    groups: dict[str, dict[str, dict[str, Value]]] = {}
    for snapshot in snapshots:
        mine = groups.setdefault(snapshot.source, {})
        for group, values in snapshot.groups.items():
            mine.setdefault(group, {}).update(values)
    return tuple(MetricsSnapshot(source, found) for source, found in groups.items())
