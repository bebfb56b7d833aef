"""The accounts of a container: what it has counted, as statistics and as metrics that are reported.

Rules
- Nothing is counted here: parts and tasks count, and are asked when somebody wants to know.
- Metrics are reported from when the first tasks are about to start to the container's end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from s4node.config import settings
from s4node.metrics.process import ProcessUse
from s4node.metrics.reporter import reporters_of
from s4node.metrics.reporting import Reporting
from s4node.metrics.snapshot import MetricsSnapshot
from s4node.runtime.container.metrics import snapshots_of
from s4node.runtime.inputs.binding import grades_of
from s4node.runtime.task.statistics import ContainerStatistics
from s4node.stages.stage import StageStatistics

if TYPE_CHECKING:
    from s4node.runtime.container.container import Container


class Accounts:
    """Those of ``container``; there are none before it has its parts."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._reporters = reporters_of(container.config)
        self._process = ProcessUse()
        self._made_at = time.monotonic()
        self._started_after = 0.0

    def started(self) -> None:
        """The container has started."""
        self._started_after = time.monotonic() - self._made_at

    async def report(self, nursery: trio.Nursery) -> None:
        """Have metrics reported from now on, in a trio task of the nursery; once."""
        reporters, self._reporters = self._reporters, []
        if reporters:
            reporting = Reporting(
                reporters,
                self.metrics,
                interval=self._container.config[settings.METRICS_INTERVAL],
                job=self._container.app.name,
                container=self._container.node,
            )
            await nursery.start(reporting.run)

    def statistics(self) -> ContainerStatistics:
        """Counts since the start."""
        of = self._container
        inputs = of.inputs.statistics(of.members.passed_on() if of.members is not None else {})
        return ContainerStatistics(
            tuple(task.statistics() for task in of.tasks.values()),
            {name: inputs[name].admitted for name in of.ports},
            {name: inputs[name].refused for name in of.ports},
            {name: sender.sent for name, sender in of.senders.items()},
            dict(of.listener.counts),
            tuple(self._stages()),
            inputs,
            replay=of.replay.statistics() if of.replay is not None else None,
            outboxes=tuple(of.exchange.statistics()) if of.exchange is not None else (),
            turns=of.loop.turns,
            utilization=of.loop.utilization,
            started_after=self._started_after,
            threads=of.config[settings.THREAD_POOL_SIZE],
            grades=grades_of(of.app, of.config),
            unsendable={stage: dict(each) for stage, each in of.refusals.unsendable.items()},
        )

    def metrics(self) -> list[MetricsSnapshot]:
        """The values of the container and its tasks, and those that tasks measure themselves."""
        of = self._container
        own = [task.metrics.snapshot() for task in of.tasks.values() if task.metrics is not None]
        return [*snapshots_of(of.node, self.statistics(), self._process.take()), *own]

    def _stages(self) -> Iterator[StageStatistics]:
        of = self._container
        yield from of.inputs.stages()
        for task in of.tasks.values():
            for stage in task.backlog.stages.values():
                yield stage.statistics()
        if of.members is not None:
            yield from of.members.statistics()
        for sender in of.senders.values():
            yield from sender.statistics().values()
