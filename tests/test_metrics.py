"""Metrics: one's own, and the reporters that are given them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from s4node.config import Config
from s4node.errors import ConfigError, MetricError
from s4node.metrics.registry import MetricsRegistry
from s4node.metrics.reporter import JsonLines, MetricsReporter, reporters_of, table
from s4node.metrics.reporting import Reporting
from s4node.metrics.snapshot import MetricsReport, MetricsSnapshot, merged

HERE = __name__


# --- metrics of one's own ------------------------------------------------------------------------


def test_a_task_counts_sets_and_times_under_its_own_name() -> None:
    metrics = MetricsRegistry("TaskName-Partition 0")
    metrics.counter("orders").increment()
    metrics.counter("orders").increment(4)
    metrics.counter("orders").decrement()
    metrics.gauge("open").set(2.5)
    metrics.gauge("size", lambda: 7, group="cache")
    metrics.timer("call-ns").update(0.001)
    metrics.timer("call-ns").update(0.003)
    assert metrics.snapshot() == MetricsSnapshot(
        "TaskName-Partition 0",
        {
            "app": {
                "orders": 4,
                "open": 2.5,
                "call-ns": 2_000_000,
                "call-ns-max": 3_000_000,
                "call-ns-count": 2,
            },
            "cache": {"size": 7},
        },
    )


def test_a_timer_measures_a_block_that_raises_too() -> None:
    timer = MetricsRegistry("me").timer("t")
    with pytest.raises(ZeroDivisionError), timer.time():
        assert 1 / 0
    assert timer.count == 1
    assert timer.longest == timer.seconds > 0


def test_a_name_is_one_kind_of_metric() -> None:
    metrics = MetricsRegistry("TaskName-Partition 0")
    metrics.counter("n")
    metrics.timer("n", group="other")
    with pytest.raises(MetricError) as caught:
        metrics.gauge("n")
    assert str(caught.value) == (
        "metric 'n' of 'TaskName-Partition 0' is a counter already; give the gauge another name"
    )


def test_a_gauge_whose_function_raises_says_so_in_its_place() -> None:
    metrics = MetricsRegistry("me")
    metrics.gauge("broken", lambda: 1 // 0)
    metrics.counter("fine")
    values = metrics.snapshot().groups["app"]
    assert values == {
        "broken": "ZeroDivisionError: integer division or modulo by zero",
        "fine": 0,
    }


def test_no_count_is_lost_between_threads() -> None:
    metrics = MetricsRegistry("me")

    def count() -> None:
        for _ in range(20_000):
            metrics.counter("n").increment()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.counter("n").value == 80_000


def test_snapshots_of_one_source_are_one() -> None:
    parts = [
        MetricsSnapshot("a", {"g": {"x": 1}}),
        MetricsSnapshot("b", {"g": {"x": 2}}),
        MetricsSnapshot("a", {"g": {"y": 3}, "h": {"z": 4}}),
    ]
    assert merged(parts) == (
        MetricsSnapshot("a", {"g": {"x": 1, "y": 3}, "h": {"z": 4}}),
        MetricsSnapshot("b", {"g": {"x": 2}}),
    )


# --- reporters -----------------------------------------------------------------------------------

REPORT = MetricsReport(
    job="clicks",
    container="node-1",
    host="here",
    version="1",
    since_ms=1_000,
    time_ms=61_000,
    snapshots=(
        MetricsSnapshot("node-1", {"Container": {"process-calls": 12_345, "idle": 0}}),
        MetricsSnapshot("TaskName-Partition 0", {"Task": {"send-calls": 5}, "app": {"rate": 0.25}}),
        MetricsSnapshot("TaskName-Partition 1", {"Task": {"send-calls": 1000}}),
    ),
)


def test_the_console_s_table_can_be_read() -> None:
    assert table(REPORT) == (
        "-- metrics of node-1, app clicks, at 00:01:01 UTC after 60 s\n"
        "                 node-1\n"
        "Container\n"
        "  process-calls  12,345\n"
        "              Partition 0  Partition 1\n"
        "Task\n"
        "  send-calls            5        1,000\n"
        "app\n"
        "  rate              0.250\n"
    )


def test_json_lines_have_a_line_a_source_and_are_appended(tmp_path: Path) -> None:
    file = tmp_path / "new" / "metrics.jsonl"
    for _ in range(2):
        reporter = JsonLines(file)
        reporter.start()
        reporter.report(REPORT)
        reporter.stop()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 6
    assert lines[:3] == lines[3:]
    assert lines[1] == {
        "header": {
            "job-name": "clicks",
            "container-name": "node-1",
            "source": "TaskName-Partition 0",
            "host": "here",
            "version": "1",
            "time": 61_000,
            "reset-time": 1_000,
        },
        "metrics": {"Task": {"send-calls": 5}, "app": {"rate": 0.25}},
    }


def test_json_lines_without_a_file_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    ((name, reporter),) = reporters_of(Config.of({"metrics.reporters": "jsonl"}))
    reporter.start()
    reporter.report(REPORT)
    reporter.stop()
    assert name == "jsonl"
    sources = [
        json.loads(line)["header"]["source"] for line in capsys.readouterr().err.splitlines()
    ]
    assert sources == ["node-1", "TaskName-Partition 0", "TaskName-Partition 1"]


# --- one's own, and reporters that fail ----------------------------------------------------------


class Own:
    """Keeps what it is told; raises or hangs where its parameter ``trouble`` says."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.trouble = parameters.get("trouble", "")
        self.told: list[str] = []
        self.reports: list[MetricsReport] = []
        self.release = threading.Event()

    def _do(self, what: str) -> None:
        self.told.append(what)
        if self.trouble == what:
            raise RuntimeError("no")
        if self.trouble == f"hang in {what}":
            self.release.wait(30)

    def start(self) -> None:
        self._do("start")

    def report(self, report: MetricsReport) -> None:
        self.reports.append(report)
        self._do("report")

    def stop(self) -> None:
        self._do("stop")


class NoReporter:
    def __init__(self, parameters: Mapping[str, str]) -> None:
        pass


def own(trouble: str = "") -> Own:
    return Own({"trouble": trouble})


@asynccontextmanager
async def reporting(
    *reporters: MetricsReporter, interval: float = 0.01
) -> AsyncIterator[Reporting]:
    named = [(f"reporter {number}", reporter) for number, reporter in enumerate(reporters)]
    snapshots = [MetricsSnapshot("node-1", {"g": {"n": 1}})]
    with capture_logs():
        made = Reporting(named, lambda: snapshots, interval=interval, job="app", container="node-1")
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            yield made
            nursery.cancel_scope.cancel()


async def seen(reporter: Own, count: int) -> None:
    with trio.fail_after(10):
        while len(reporter.reports) < count:
            await trio.sleep(0.005)


def test_one_s_own_reporter_is_named_in_the_configuration_and_gets_the_app_s_parameters() -> None:
    config = Config.of({"metrics.reporters": f"console, {HERE}:Own", "s4.app.trouble": "report"})
    names = [name for name, _ in reporters_of(config)]
    assert names == ["console", f"{HERE}:Own"]
    made = reporters_of(config)[1][1]
    assert isinstance(made, Own)
    assert made.trouble == "report"


@pytest.mark.parametrize(
    ("own", "what"),
    [
        ("NoReporter", "has no start, report, stop; it needs start, report, stop"),
        ("Missing", "cannot be imported: AttributeError"),
    ],
)
def test_what_is_no_reporter_is_refused(own: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reporters_of(Config.of({"metrics.reporters": f"{HERE}:{own}"}))
    assert str(caught.value).startswith(
        f"metrics reporter '{HERE}:{own}' of metrics.reporters {what}"
    )


async def test_a_reporter_is_started_told_again_and_again_and_stopped() -> None:
    reporter = own()
    async with reporting(reporter):
        await seen(reporter, 3)
    assert reporter.told[0] == "start"
    assert set(reporter.told[1:-1]) == {"report"}
    assert reporter.told[-1] == "stop"
    report = reporter.reports[-1]
    assert (report.job, report.container) == ("app", "node-1")
    assert report.snapshots == (MetricsSnapshot("node-1", {"g": {"n": 1}}),)
    assert report.since_ms <= report.time_ms <= time.time() * 1000


async def test_there_is_a_last_report_however_short_the_run() -> None:
    reporter = own()
    async with reporting(reporter, interval=3600):
        pass
    assert reporter.told == ["start", "report", "stop"]


async def test_a_reporter_that_fails_is_told_once_counted_and_tried_again() -> None:
    bad, good = own("report"), own()
    with capture_logs() as logs:
        named = [("bad", bad), ("good", good)]
        made = Reporting(named, list, interval=0.01, job="app", container="node-1")
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            await seen(good, 3)
            await seen(bad, 3)
            nursery.cancel_scope.cancel()
    assert made.failures["bad"] >= 3
    assert made.failures["good"] == 0
    assert bad.told[-1] == "stop"
    (line,) = logs
    assert (line["reporter"], line["method"], line["error"]) == (
        "bad",
        "report",
        "RuntimeError: no",
    )


async def test_a_reporter_that_cannot_start_gets_no_reports() -> None:
    bad, good = own("start"), own()
    async with reporting(bad, good) as made:
        await seen(good, 2)
    assert bad.told == ["start"]
    assert made.failures == {"reporter 0": 1, "reporter 1": 0}


async def test_a_reporter_that_hangs_holds_up_neither_the_others_nor_the_end() -> None:
    stuck, good = own("hang in report"), own()
    began = time.monotonic()
    async with reporting(stuck, good):
        await seen(good, 3)
        assert len(stuck.reports) == 1
    assert time.monotonic() - began < 8
    stuck.release.set()
