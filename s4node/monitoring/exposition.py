"""The metrics of a node in the text format of Prometheus. Pure.

Rules
- What a node and its containers have counted is here as it is in their table
  (:mod:`s4node.metrics.table`), but added up over tasks, partitions and processes of an app: there
  are as many series as an app has streams. Only metrics of an app's author have their names and
  tasks as labels, and each container reports a bounded number.
- A counter of a stream is the sum over tasks and processes, which come and go. A total never falls:
  what a source had counted stays when the source has gone. A source that begins again counts from
  0, under its former name or a new one. Only sources of the last collection are remembered.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from s4node.cluster.node.container_status import ContainerStatus
from s4node.metrics.statistics import (
    FAMILIES,
    ContainerStatistics,
    LifeStatistics,
    NodeStatistics,
    ProcessStatistics,
)
from s4node.metrics.table import Sample, samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A name and its labels."""

_PLACES = ("task", "partition")
_MOST_LABEL = 200
"""Longer texts of labels are cut."""


@dataclass(frozen=True)
class ContainerReport:
    """The node's knowledge of a container, which has a ``place`` among its containers.

    Nothing is counted before the container is ready.
    """

    place: int
    status: ContainerStatus
    statistics: ContainerStatistics | None
    own: Sequence[Sample]
    process: ProcessStatistics | None


@dataclass(frozen=True)
class NodeReport:
    """A node's knowledge of itself and its containers."""

    name: str
    cluster: str
    version: str
    is_ready: bool
    process: ProcessStatistics | None
    containers: Sequence[ContainerReport]


def exposition(node: NodeReport, totals: Totals) -> str:
    """The text for Prometheus; ``totals`` are those of the same node's earlier texts."""
    page = _Page(totals)
    me = NodeStatistics(node.name, node.cluster, node.version, int(node.is_ready))
    page.add(samples(me), "node")
    if node.process is not None:
        page.add(samples(node.process, app=""), "node")
    for each in node.containers:
        status, app = each.status, each.status.app
        running = int(bool(status.address))  # it may have statistics before
        life = LifeStatistics(status.version, running, status.starts)
        page.add(samples(life, app=app), each.place)
        if each.process is not None:
            page.add(samples(each.process, app=app), status.pid)
        if each.statistics is not None:
            page.add(samples(each.statistics, app=app), status.pid)
            page.add((own._replace(labels={"app": app, **own.labels}) for own in each.own), None)
    return page.text()


class _Page:
    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._values: dict[Series, float] = {}

    def add(self, found: Iterable[Sample], source: Hashable) -> None:
        for name, labels, value in found:
            family = FAMILIES[name]
            if family.place or isinstance(value, str):
                continue
            place = tuple(labels[label] for label in _PLACES if label in labels)
            kept = ((label, text) for label, text in labels.items() if label not in _PLACES)
            series = name, tuple((label, text[:_MOST_LABEL]) for label, text in kept)
            if family.kind == "counter":
                self._totals.add(series, (source, place), value)
            else:
                before = self._values.get(series)
                self._values[series] = value if before is None else family.merged(before, value)

    def text(self) -> str:
        """The text, family by family in the order of the table."""
        found: dict[str, list[str]] = {}
        for (name, labels), value in (self._values | self._totals.collected()).items():
            shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            line = f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}"
            found.setdefault(name, []).append(line)
        return "\n".join([*_lines(found), ""])


def _lines(found: dict[str, list[str]]) -> Iterator[str]:
    for name, family in FAMILIES.items():
        if lines := found.get(name):
            yield f"# HELP {name} {family.meaning}"
            yield f"# TYPE {name} {family.kind}"
            yield from lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


class Totals:
    def __init__(self) -> None:
        self._totals: dict[Series, float] = {}
        self._before: dict[tuple[Series, Hashable], float] = {}
        self._seen: dict[tuple[Series, Hashable], float] = {}

    def add(self, series: Series, source: Hashable, count: float) -> None:
        """Note that ``source`` has counted so far; once for each collection."""
        before = self._before.get((series, source), 0)
        gained = count - before if count >= before else count
        self._totals[series] = self._totals.get(series, 0) + gained
        self._seen[series, source] = count

    def collected(self) -> dict[Series, float]:
        self._before, self._seen = self._seen, {}
        return dict(self._totals)
