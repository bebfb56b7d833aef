"""Metrics reporters: they write reports to the console, a file, or elsewhere.

Rules
- A reporter is started once, gets reports, and is stopped once; each in a thread, one call at a
  time.
- An exception is logged once and counted, and stops nothing: the next report is tried again. A
  reporter that cannot start gets no reports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TextIO

from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.config.paths import full_path
from s4node.metrics.table import Sample, Value


@dataclass(frozen=True)
class MetricsReport:
    """All samples of a container, with its names.

    ``time_ms`` is when they were taken, ``since_ms`` when the container started (Unix time).
    """

    job: str
    container: str
    host: str
    version: str
    since_ms: int
    time_ms: int
    samples: Sequence[Sample] = ()


class MetricsReporter(Protocol):
    """Takes reports. An author's class is called with the app's parameters."""

    def start(self) -> None:
        """Open resources."""
        ...

    def report(self, report: MetricsReport) -> None:
        """Report the values; the last report comes when the container stops."""
        ...

    def stop(self) -> None:
        """Release resources."""
        ...


class JsonLines:
    """Writes each report as a JSON object in a line, to a file or to stderr."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._stream: TextIO | None = None

    def start(self) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._file.open("a", encoding="utf-8")

    def report(self, report: MetricsReport) -> None:
        """Write a line, in one piece."""
        stream = self._stream or sys.stderr
        stream.write(f"{json.dumps(_document(report))}\n")
        stream.flush()

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _document(report: MetricsReport) -> dict[str, object]:
    return {
        "header": {
            "job-name": report.job,
            "container-name": report.container,
            "host": report.host,
            "version": report.version,
            "time": report.time_ms,
            "reset-time": report.since_ms,
        },
        "metrics": [each._asdict() for each in report.samples],
    }


class Console:
    """Prints a table to stderr."""

    def start(self) -> None:
        """Nothing to do."""

    def report(self, report: MetricsReport) -> None:
        sys.stderr.write(table(report))
        sys.stderr.flush()

    def stop(self) -> None:
        """Nothing to do."""


def table(report: MetricsReport) -> str:
    """A report for people, without zeros."""
    at = datetime.fromtimestamp(report.time_ms / 1000, UTC).strftime("%H:%M:%S")
    seconds = (report.time_ms - report.since_ms) / 1000
    lines = [
        f"-- metrics of {report.container}, job {report.job}, at {at} UTC after {seconds:.0f} s"
    ]
    rows = [
        (" ".join([each.name, *each.labels.values()]), _text(each.value))
        for each in report.samples
        if each.value
    ]
    most = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += [f"{name.ljust(most[0])}  {value.rjust(most[1])}" for name, value in rows]
    return "\n".join(lines) + "\n"


def _text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else value


def reporters_of(config: Config) -> list[tuple[str, MetricsReporter]]:
    """The configured reporters by name; raises ConfigError for one that cannot be made."""
    file = config[settings.METRICS_FILE]
    built_in: dict[str, MetricsReporter] = {
        "console": Console(),
        "jsonl": JsonLines(full_path(file, settings.METRICS_FILE.name) if file else None),
    }
    found = []
    for name in config[settings.METRICS_REPORTERS]:
        reporter = built_in.get(name)
        if reporter is None:
            setting, parameters = (
                settings.METRICS_REPORTERS.name,
                config.matching(settings.APP_PARAMETER),
            )
            reporter = plugins.made(name, setting, "metrics reporter", parameters)
            plugins.lacking(
                reporter, ("start", "report", "stop"), name, setting, "metrics reporter"
            )
        found.append((name, reporter))
    return found
