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
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TextIO

from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.config.paths import full_path
from s4node.metrics.snapshot import MetricsReport, MetricsSnapshot, Value


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
    """Writes each source's values as a JSON object in a line, to a file or to stderr."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._stream: TextIO | None = None

    def start(self) -> None:
        """Open the file, and make its folders."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._file.open("a", encoding="utf-8")

    def report(self, report: MetricsReport) -> None:
        """Write a line for each source, in one piece."""
        stream = self._stream or sys.stderr
        stream.write("".join(f"{json.dumps(one)}\n" for one in _documents(report)))
        stream.flush()

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _documents(report: MetricsReport) -> Iterable[dict[str, object]]:
    for snapshot in report.snapshots:
        yield {
            "header": {
                "job-name": report.job,
                "container-name": report.container,
                "source": snapshot.source,
                "host": report.host,
                "version": report.version,
                "time": report.time_ms,
                "reset-time": report.since_ms,
            },
            "metrics": snapshot.groups,
        }


class Console:
    """Prints a table to stderr: a column for each task, and the container's values below."""

    def start(self) -> None:
        """Nothing to do."""

    def report(self, report: MetricsReport) -> None:
        sys.stderr.write(table(report))
        sys.stderr.flush()

    def stop(self) -> None:
        """Nothing to do."""


_COLUMNS = 8


def table(report: MetricsReport) -> str:
    """A report for people, without zeros and empty groups."""
    at = datetime.fromtimestamp(report.time_ms / 1000, UTC).strftime("%H:%M:%S")
    seconds = (report.time_ms - report.since_ms) / 1000
    lines = [
        f"-- metrics of {report.container}, job {report.job}, at {at} UTC after {seconds:.0f} s"
    ]
    tasks = [s for s in report.snapshots if s.source != report.container]
    lines += _block([s for s in report.snapshots if s.source == report.container])
    for first in range(0, len(tasks), _COLUMNS):
        lines += _block(tasks[first : first + _COLUMNS])
    return "\n".join(lines) + "\n"


def _block(snapshots: Sequence[MetricsSnapshot]) -> list[str]:
    names = list(
        dict.fromkeys(
            (group, name)
            for snapshot in snapshots
            for group, values in snapshot.groups.items()
            for name, value in values.items()
            if value
        )
    )
    if not names:
        return []
    rows = [["", *(snapshot.source.removeprefix("TaskName-") for snapshot in snapshots)]]
    before = ""
    for group, name in names:
        if group != before:
            rows.append([group, *[""] * len(snapshots)])
            before = group
        values = (snapshot.groups.get(group, {}).get(name, "") for snapshot in snapshots)
        rows.append([f"  {name}", *map(_text, values)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    ]


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
