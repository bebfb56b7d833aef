"""The accounts of a container: its statistics, and the metrics that are reported.

Rules
- Parts and tasks count; this module asks them when a report is due.
- Metrics are reported from before the start of the first tasks until the container's end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from s4node import clocks
from s4node.app.app import App
from s4node.app.plan import dataflow
from s4node.app.stream import InputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.metrics.process import process_statistics, waited_seconds
from s4node.metrics.reporter import reporters_of
from s4node.metrics.reporting import Reporting
from s4node.metrics.statistics import ContainerStatistics, StageStatistics
from s4node.metrics.table import Sample, samples
from s4node.net.ingress.listener import Listener
from s4node.runtime.container.fast_parts import FastParts
from s4node.runtime.container.wiring import Parts
from s4node.runtime.inputs.binding import grades_of

if TYPE_CHECKING:
    from s4node.log.host import LogHost


class Accounts:
    """The accounts of the container ``node``; available once its parts are made."""

    def __init__(
        self, app: App, config: Config, node: str, listener: Listener, log: LogHost | None
    ) -> None:
        self._app, self._config = app, config
        self._listener, self._log = listener, log
        self.reporting = Reporting(
            reporters_of(config),
            self.metrics,
            interval=config[settings.METRICS_INTERVAL],
            job=app.name,
            container=node,
        )
        self._made_at = clocks.steady()
        self._start_seconds = 0.0
        self._job: str
        self._levels: dict[str, int]
        self._grades: dict[str, str]
        self._ways: dict[str, tuple[list[str], list[str]]]
        self._parts: Parts
        self._replay: FastParts

    def made(self, job: str, parts: Parts, replay: FastParts) -> None:
        """Take the parts to ask, which have just been made."""
        self._job, self._parts, self._replay = job, parts, replay
        puts, streams = dataflow.puts(self._app), self._app.streams
        self._ways = {
            name: (
                [pe for pe in puts if name in puts[pe]],
                [target.name for target in stream.targets],
            )
            for name, stream in streams.items()
        }
        edges = {
            name: set().union(*(puts.get(pe, ()) for pe in takers))
            for name, (_, takers) in self._ways.items()
        }
        inputs = [name for name, each in self._app.streams.items() if isinstance(each, InputStream)]
        self._levels = dataflow.levels(edges, inputs)
        self._grades = grades_of(self._app, self._config)

    def started(self) -> None:
        self._start_seconds = clocks.steady() - self._made_at

    def statistics(self) -> ContainerStatistics:
        parts, replay = self._parts, self._replay
        carriers = parts.outputs.carriers
        gaining, recovering = parts.ownership.gaining, parts.ownership.recovering
        return ContainerStatistics(
            app=self._job,
            up_seconds=clocks.steady() - self._made_at,
            cpu_seconds=time.process_time(),
            load=os.getloadavg()[0] / (os.cpu_count() or 1),
            waited_seconds=waited_seconds(),
            levels=self._levels,
            grades=self._grades,
            ways=self._ways,
            tasks=tuple(task.statistics() for task in parts.partitions.tasks.values()),
            stages=tuple(self._stages()),
            inputs=parts.inputs.statistics(parts.outputs.passed_on()),
            replay=replay.statistics(),
            outboxes=tuple(parts.outputs.outboxes()),
            sent={name: carrier.sent for name, carrier in carriers.items()},
            dropped={name: carrier.dropped for name, carrier in carriers.items()},
            unsendable={stage: dict(each) for stage, each in parts.refusals.unsendable.items()},
            peers=dict(self._listener.counts),
            published=self._log.published if self._log is not None else {},
            partitions=len(parts.partitions.tasks),
            turns=parts.loop.turns,
            utilization=parts.loop.utilization,
            start_seconds=self._start_seconds,
            gains=gaining.count,
            gain_seconds=gaining.seconds,
            recoveries=recovering.count,
            recovery_seconds=recovering.seconds,
        )

    def metrics(self) -> list[Sample]:
        found = [*samples(self.statistics()), *self.own_metrics()]
        process = process_statistics(os.getpid())
        return found if process is None else [*found, *samples(process)]

    def own_metrics(self) -> list[Sample]:
        tasks = self._parts.partitions.tasks.values()
        registries = [self._app.metrics, *(task.metrics for task in tasks)]
        return [each for one in registries if one is not None for each in one.samples()]

    def _stages(self) -> Iterator[StageStatistics]:
        yield from self._parts.inputs.stages()
        for task in self._parts.partitions.tasks.values():
            for stage in task.backlog.stages.values():
                yield stage.statistics()
        yield from self._parts.outputs.stages()
