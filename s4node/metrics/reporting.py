"""Reporting: takes the values at an interval and gives them to the reporters.

Rules
- Each reporter has its own trio task and thread; a slow one misses reports, and delays neither the
  others nor the container.
- The last report comes at the container's end. A reporter that takes more than a second for it is
  abandoned.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import trio

from s4node import clocks, threads
from s4node.errors import described, is_signal
from s4node.logger import get_logger
from s4node.metrics.reporter import MetricsReport, MetricsReporter
from s4node.metrics.table import Sample
from s4node.version import __version__

log = get_logger("s4node.metrics")

_LAST_SECONDS = 1.0


class Reporting:
    """Reports the values of ``take`` every ``interval`` seconds, to reporters by name.

    ``failures`` counts the failures of each reporter. ``run`` sets ``started``.
    """

    def __init__(
        self,
        reporters: Sequence[tuple[str, MetricsReporter]],
        take: Callable[[], Sequence[Sample]],
        *,
        interval: float,
        job: str,
        container: str,
    ) -> None:
        self.started = False
        self.failures = {name: 0 for name, _ in reporters}
        self._reporters = reporters
        self._take = take
        self._interval = interval
        self._job = job
        self._container = container
        self._host = socket.gethostname()
        self._since_ms = _now_ms()

    def report(self) -> MetricsReport:
        return MetricsReport(
            self._job,
            self._container,
            self._host,
            __version__,
            self._since_ms,
            _now_ms(),
            self._take(),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report until cancelled, and once more then."""
        self.started = True
        async with trio.open_nursery() as nursery:
            for name, reporter in self._reporters:
                await nursery.start(self._serve, name, reporter)
            task_status.started()

    async def _serve(
        self,
        name: str,
        reporter: MetricsReporter,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        started = await self._call(name, reporter.start)
        task_status.started()
        if not started:
            return
        try:
            while True:
                await trio.sleep(self._interval)
                await self._call(name, reporter.report, self.report())
        finally:
            with trio.move_on_after(_LAST_SECONDS, shield=True) as scope:
                await self._call(name, reporter.report, self.report())
                await self._call(name, reporter.stop)
            if scope.cancelled_caught:
                log.warning("a metrics reporter did not end in time", reporter=name)

    async def _call(self, name: str, method: Callable[..., Any], *arguments: Any) -> bool:
        try:
            await threads.run_sync(method, *arguments, abandon_on_cancel=True)
        except BaseException as error:
            if is_signal(error):
                raise
            self.failures[name] += 1
            if self.failures[name] == 1:
                log.warning(
                    "a metrics reporter failed; further failures are only counted",
                    reporter=name,
                    method=method.__name__,
                    error=described(error),
                )
            return False
        return True


def _now_ms() -> int:
    return int(clocks.wall() * 1000)
