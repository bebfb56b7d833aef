"""Metrics: one's own, and the reporters that are given them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import DEADLINE, ROOT, free_port, metric, running, until
from input_systems import fresh, shared
from shared_apps import HoldingApp, NotingApp, OnePE
from structlog.testing import capture_logs

from s4node import App, Client, Event
from s4node.app.stream_task import Collector, Coordinator, Envelope, TaskApp, TaskContext
from s4node.config.config import Config
from s4node.deploy.cluster_snapshot import InputRow, inputs_of
from s4node.errors import ConfigError, MetricError
from s4node.metrics.registry import MetricsRegistry
from s4node.metrics.reporter import JsonLines, MetricsReport, MetricsReporter, reporters_of, table
from s4node.metrics.reporting import Reporting
from s4node.metrics.statistics import FAMILIES, OWN, OutboxStatistics
from s4node.metrics.table import Sample, Value, finite
from s4node.runtime.container.container import Container

# --- metrics of one's own ------------------------------------------------------------------------


def test_a_task_counts_sets_and_times_under_its_own_name() -> None:
    metrics = MetricsRegistry("Partition 0")
    metrics.counter("orders").increment()
    metrics.counter("orders").increment(4)
    metrics.counter("orders").decrement()
    metrics.gauge("open").set(2.5)
    metrics.gauge("size", lambda: 7, group="cache")
    metrics.timer("call-ns").update(0.001)
    metrics.timer("call-ns").update(0.003)
    assert own_values(metrics.samples()) == {
        ("Partition 0", "app", "orders"): 4,
        ("Partition 0", "app", "open"): 2.5,
        ("Partition 0", "cache", "size"): 7,
        ("Partition 0", "app", "call-ns"): 2_000_000,
        ("Partition 0", "app", "call-ns-max"): 3_000_000,
        ("Partition 0", "app", "call-ns-count"): 2,
    }


def test_a_timer_measures_a_block_that_raises_too() -> None:
    timer = MetricsRegistry("me").timer("t")
    with pytest.raises(ZeroDivisionError), timer.time():
        assert 1 / 0
    assert timer.count == 1
    assert timer.longest == timer.seconds > 0


def test_a_name_is_one_kind_of_metric() -> None:
    metrics = MetricsRegistry("Partition 0")
    metrics.counter("n")
    metrics.timer("n", group="other")
    with pytest.raises(MetricError) as caught:
        metrics.gauge("n")
    assert str(caught.value) == (
        "metric 'n' of 'Partition 0' is a counter already; give the gauge another name"
    )


def test_a_gauge_whose_function_raises_says_so_in_its_place() -> None:
    metrics = MetricsRegistry("me")
    metrics.gauge("broken", lambda: 1 // 0)
    metrics.counter("fine")
    assert own_values(metrics.samples()) == {
        ("me", "app", "broken"): "ZeroDivisionError: integer division or modulo by zero",
        ("me", "app", "fine"): 0,
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


def test_what_an_author_sets_is_cut_down_to_finite_numbers() -> None:
    values: Any = {
        "n": 1,
        "b": True,
        "huge": 10**400,
        "none": None,
        "nan": float("nan"),
        "text": "broken",
        "\ud800": 2.5,
        "last": 3,
        "left out": 4,
    }
    set_by = [Sample(OWN, {"name": name}, value) for name, value in values.items()]
    assert finite([*set_by, *set_by], 4) == [
        Sample(OWN, {"name": name}, value)
        for name, value in (("n", 1.0), ("b", 1.0), ("?", 2.5), ("last", 3.0))
    ]


# --- reporters -----------------------------------------------------------------------------------

REPORT = MetricsReport(
    job="clicks",
    container="node-1",
    host="here",
    version="1",
    since_ms=1_000,
    time_ms=61_000,
    samples=(
        Sample("s4_turns_total", {}, 12_345),
        Sample("s4_partitions", {}, 0),
        Sample("s4_task_sent_total", {"task": "Partition 0"}, 5),
        Sample(OWN, {"source": "Partition 1", "group": "app", "name": "rate"}, 0.25),
    ),
)


def test_the_console_s_table_can_be_read() -> None:
    assert table(REPORT) == (
        "-- metrics of node-1, job clicks, at 00:01:01 UTC after 60 s\n"
        "s4_turns_total                      12,345\n"
        "s4_task_sent_total Partition 0           5\n"
        "s4_app_metric Partition 1 app rate   0.250\n"
    )


def test_json_lines_have_a_line_a_report_and_are_appended(tmp_path: Path) -> None:
    file = tmp_path / "new" / "metrics.jsonl"
    for _ in range(2):
        reporter = JsonLines(file)
        reporter.start()
        reporter.report(REPORT)
        reporter.stop()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0]["header"] == {
        "job-name": "clicks",
        "container-name": "node-1",
        "host": "here",
        "version": "1",
        "time": 61_000,
        "reset-time": 1_000,
    }
    assert lines[0]["metrics"][2] == {
        "name": "s4_task_sent_total",
        "labels": {"task": "Partition 0"},
        "value": 5,
    }


def test_json_lines_without_a_file_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    ((name, reporter),) = reporters_of(Config.from_values({"metrics.reporters": "jsonl"}))
    reporter.start()
    reporter.report(REPORT)
    reporter.stop()
    assert name == "jsonl"
    (line,) = capsys.readouterr().err.splitlines()
    assert len(json.loads(line)["metrics"]) == 4


# --- one's own, and reporters that fail ----------------------------------------------------------


TURNS = Sample("s4_turns_total", {}, 1)


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
    with capture_logs():
        made = Reporting(named, lambda: [TURNS], interval=interval, job="app", container="node-1")
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            yield made
            nursery.cancel_scope.cancel()


async def seen(reporter: Own, count: int) -> None:
    with trio.fail_after(10):
        while len(reporter.reports) < count:
            await trio.sleep(0.005)


def test_a_custom_reporter_is_named_in_the_configuration_and_gets_the_parameters() -> None:
    config = Config.from_values(
        {"metrics.reporters": f"console, {HERE}:Own", "s4.app.trouble": "report"}
    )
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
def test_a_class_that_is_not_a_reporter_is_refused(own: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reporters_of(Config.from_values({"metrics.reporters": f"{HERE}:{own}"}))
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
    assert report.samples == [TURNS]
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


@pytest.mark.long
async def test_a_reporter_that_hangs_holds_up_neither_the_others_nor_the_end() -> None:
    stuck, good = own("hang in report"), own()
    with trio.fail_after(DEADLINE):
        async with reporting(stuck, good):
            await seen(good, 3)
            assert len(stuck.reports) == 1
    stuck.release.set()


# --- of a running container ----------------------------------------------------------------------

PAGE = ROOT / "docs" / "metrics.md"


class Tick(Event):
    number: int = 0


class Counting:
    """Counts, sends, raises what is to be ignored, and commits."""

    def __init__(self, at_init: Callable[[], None]) -> None:
        self.metrics: MetricsRegistry
        self._at_init = at_init

    def init(self, config: Mapping[str, str], context: TaskContext) -> None:
        self._at_init()
        self.metrics = context.metrics
        self.metrics.gauge("seven", lambda: 7)

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.metrics.counter(envelope.stream).increment()
        if envelope.message.number < 0:
            raise ValueError(envelope.message.number)
        if envelope.stream == "ticks":
            raise KeyError(envelope.offset)
        collector.send("out", envelope.message)
        coordinator.commit()

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        self.metrics.counter("windows").increment()


TASKS = ("Partition 0", "Partition 1")


def counting(at_init: Callable[[], None] = lambda: None) -> TaskApp:
    inputs = ["memory.clicks", "memory.gate"]
    app = TaskApp("counting", lambda: Counting(at_init), inputs=inputs, outputs=["out"])
    app.create_input_stream("ticks", types=Tick)
    return app


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    system = fresh("the metrics' tests'")
    system.create("clicks", 2)
    system.create("gate", 2)
    for partition in (0, 1):
        system.put("clicks", partition, *(Tick(number) for number in range(5)))
    return {
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": "the metrics' tests'",
        "systems.memory.samza.offset.default": "oldest",
        "s4.state.folder": str(tmp_path / "state"),
        "task.window.ms": "10",
        "task.ignored.exceptions": "KeyError",
        "s4.stream.ticks.grade": "fast",  # whose producers need no commits
    }


def own_values(found: Iterable[Sample]) -> dict[tuple[str, ...], Value]:
    return {tuple(each.labels.values()): each.value for each in found if each.name == OWN}


def test_the_page_has_every_family_of_the_table_and_no_other() -> None:
    row = r"^\| `(s4_\w+)` \| (\w+) \| ([\w, ]*)\| (.+) \|$"
    rows = re.findall(row, PAGE.read_text(), re.MULTILINE)
    told = {name: (kind, labels.strip(), meaning) for name, kind, labels, meaning in rows}
    assert told == {
        name: (family.kind, ", ".join(family.labels), family.meaning)
        for name, family in FAMILIES.items()
    }


async def test_what_a_running_container_reports_is_in_the_table(values: dict[str, str]) -> None:
    values |= {
        "streams.gate.samza.bootstrap": "true",
        "s4.stream.gate.onError": "skip",
        "s4.stream.ticks.grade": "durable",
        "task.commit.ms": "20",
    }
    found: dict[str, tuple[str, ...]] = {}

    def look(container: Container) -> bool:
        found.update((each.name, tuple(each.labels)) for each in container.metrics())
        return all(task.processed >= 6 for task in container.tasks.values())

    system = shared(values["systems.memory.address"])
    for partition in (0, 1):
        system.put("gate", partition, Tick(-1))  # and a task is made anew for it
    going = iter((system.go_away, system.go_away))  # so that there is something that lags
    app = counting(lambda: next(going, lambda: None)())
    async with running(app, values, partitions=2) as container:
        look(container)
        system.come_back()
        async with Client(container.address) as client:
            ticks = await client.stream("ticks")
            await ticks.send_many([Tick(number) for number in range(8)])
            assert await ticks.flush() == []
        await until(lambda: look(container))
        committer = container.replay.committer  # type: ignore[union-attr]
        await until(lambda: committer.commits > 0)
        look(container)
    assert found == {name: FAMILIES[name].labels for name in found}
    assert len(found) > 40
    assert {"s4_task_lagging", "s4_left_out_total", "s4_input_committed"} <= found.keys()


async def test_the_lag_of_an_input_counts_events_that_are_not_processed(
    values: dict[str, str],
) -> None:
    system = shared(values["systems.memory.address"])
    system.create("orders", 1)
    system.put("orders", 0, *map(Tick, range(300)))
    app = HoldingApp("orders", types=Tick, key="number")
    del values["s4.stream.ticks.grade"]
    async with running(app, {**values, "task.inputs": "memory.orders"}) as container:

        def lag() -> float:
            return metric(container, "s4_input_lag", system="memory", stream="orders")

        await until(lambda: sum(stage.depth for stage in container.statistics().stages) == 300)
        assert lag() == 300
        system.put("orders", 0, Tick(300))
        (row,) = inputs_of([container.statistics()])
        assert (row.app, row.input, row.lag) == (app.name, "memory.orders", 301)
        await until(lambda: inputs_of([container.statistics()])[0].late > row.late)  # it waits
        app.may_go_on.set()
        await until(lambda: lag() == 0)
        assert inputs_of([container.statistics()]) == [InputRow(app.name, "memory.orders")]
        assert len(app.seen) == 301


async def test_the_values_are_those_of_what_was_done(values: dict[str, str]) -> None:
    async with running(counting(), values, partitions=2) as container:
        async with Client(container.address) as client:
            ticks = await client.stream("ticks")
            await ticks.send_many([Tick(number) for number in range(6)])
            assert await ticks.flush() == []
        await until(lambda: container.processed == 16)
        await until(lambda: container.replay.committer.commits > 1)  # type: ignore[union-attr]
        found: dict[tuple[str, ...], Value] = {}

        def all_have_windows() -> bool:
            found.update(own_values(container.metrics()))
            return all((task, "app", "windows") in found for task in TASKS)

        await until(all_have_windows)

        def of(name: str, **labels: str) -> float:
            return metric(container, name, **labels)

        assert of("s4_task_calls_total", call="process") == 16
        commits = of("s4_task_calls_total", call="commit")
        assert 10 <= commits <= 20  # one for each click, and again where another was being written
        assert of("s4_partitions") == 2
        assert 0 < of("s4_utilization") <= 1
        assert of("s4_process_resident_bytes") > 10 << 20
        assert of("s4_input_admitted_total", stream="ticks") == 6
        assert of("s4_input_lag", system="memory", stream="clicks", partition="1") == 0
        for number, task in enumerate(TASKS):
            assert of("s4_task_sent_total", task=task) == 5
            ignored = of("s4_task_ignored_total", task=task, exception="KeyError")
            assert of("s4_task_calls_total", task=task, call="process") == 5 + ignored
            assert of("s4_task_processed_total", task=task) == 5 + ignored
            assert of("s4_input_offset", task=task, stream="clicks", partition=str(number)) == 5
            assert found[task, "app", "clicks"] == 5
            assert found[task, "app", "seven"] == 7


def copying() -> App:
    """Passes ticks on to another app, but for those at which it fails."""

    def copy(_pe: Any, tick: Tick) -> None:
        copies.put(tick)
        if tick.number < 0:
            raise ValueError(tick.number)

    app = OnePE(copy, "ticks", key="number", types=Tick)
    copies = app.create_output_stream("copies", key="number", types=Tick)
    return app


async def test_skipped_events_and_events_that_wait_for_others_are_counted(
    tmp_path: Path,
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    consumed = {"s4.stream.copies.consumers": "keeper", "s4.cluster.keeper.address": address}
    values = {
        "s4.state.folder": str(tmp_path / "state"),
        "s4.stream.ticks.grade": "durable",
        "s4.stream.ticks.onError": "skip",
        "task.commit.ms": "10",
        "task.shutdown.ms": "200",
    }

    def waiting(container: Container) -> int:
        return sum(each.depth for each in container.statistics().outboxes)

    async with running(copying(), values | consumed, partitions=2) as container:
        async with Client(container.address) as client:
            ticks = await client.stream("ticks")
            await ticks.send_many([Tick(number) for number in range(-3, 20)])
            assert len(await ticks.flush()) == 3
        statistics = container.statistics()
        found = container.metrics()
        assert metric(container, "s4_left_out_total", stream="ticks") == 3
        assert metric(container, "s4_outbox_depth", stream="copies", consumer="keeper") == 20
        assert metric(container, "s4_outbox_bytes") > 0
    assert statistics.replay.left_out == {"ticks": 3}
    assert {each.labels["task"] for each in found if each.name == "s4_outbox_depth"} == set(TASKS)
    # whose consumer is not there at all: it waits as it is
    async with running(copying(), values, partitions=2) as container:
        left = container.statistics().outboxes
        assert sum(each.depth for each in left) == 20
        assert all(isinstance(each, OutboxStatistics) and each.bytes > 0 for each in left)
    async with running(copying(), values | consumed, partitions=2) as container:
        assert waiting(container) == 20
        keeper = NotingApp("copies", key="number", types=Tick)
        async with running(keeper, {"s4.listener.address": address}):
            await until(lambda: not waiting(container))
        assert sorted(tick.number for tick in keeper.seen) == list(range(20))


async def test_a_container_reports_while_it_runs_and_once_more_at_its_end(
    values: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "metrics.jsonl"
    values |= {
        "metrics.reporters": f"jsonl, {HERE}:Own",
        "metrics.reporter.jsonl.file": str(file),
        "metrics.reporter.interval": "20",
        "s4.app.trouble": "report",  # one that fails stops nothing
    }
    async with running(counting(), values, partitions=2) as container:
        await until(lambda: container.processed == 10)
        await until(lambda: file.exists() and file.read_text().count("\n") > 3)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    last = [Sample(**each) for each in lines[-1]["metrics"]]

    def total(name: str, **labels: str) -> float:
        found = (each for each in last if each.name == name)
        return sum(each.value for each in found if labels.items() <= each.labels.items())  # type: ignore[misc]

    assert lines[-1]["header"]["container-name"] == container.node
    assert total("s4_task_calls_total", call="process") == 10
    for number, task in enumerate(TASKS):
        place = {"task": task, "stream": "clicks", "partition": str(number)}
        assert total("s4_input_committed", **place) == 5


# -- set-up ---------------------------------------------------------------------------------------


HERE = __name__
