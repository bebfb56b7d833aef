"""The text for Prometheus, read by Prometheus's own parser."""

from __future__ import annotations

import json
import re

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from s4node.cluster.node.container_status import ContainerStatus
from s4node.metrics.statistics import (
    FAMILIES,
    OWN,
    ContainerStatistics,
    OutboxStatistics,
    ProcessStatistics,
    ProgressStatistics,
    ReplayStatistics,
    RestoreStatistics,
    StageStatistics,
    TaskStatistics,
)
from s4node.metrics.table import Sample
from s4node.monitoring.exposition import ContainerReport, NodeReport, Series, Totals, exposition

PROCESS = ProcessStatistics(1.25, 4096, 7, 3)


def task(partition: int) -> TaskStatistics:
    return TaskStatistics(
        name=f"Partition {partition}",
        partition=partition,
        processed=10,
        refused=1,
        sent=4,
        pending=2,
        in_flight=1,
        buffered=1,
        batch_resets=0,
        instances={"Count": 3},
        unhandled={},
        ignored={},
        calls={"commit": 2, "process": 10},
        seconds={"commit": 0.5, "process": 0.25},
        lagging={},
        late={"Hourly": 1},
        watermarks={"clicks": (1000.0 + partition, "joe")},
    )


def container(partitions: int, app: str = "shop") -> ContainerReport:
    some = range(partitions)
    replay = ReplayStatistics(
        progress=tuple(
            ProgressStatistics(f"Partition {p}", "log", "orders", p, 5, 5, 3) for p in some
        ),
        commits=4,
        commit_failures=1,
        undecodable={"log.orders": 1},
        lost={"log.orders": 2},
        left_out={"clicks": 1},
        restoring={"Partition 0": RestoreStatistics(3, 9)},
        standbys={"Partition 7": 1.5},
    )
    counts = ContainerStatistics(
        app=app,
        tasks=tuple(map(task, some)),
        stages=tuple(
            StageStatistics(
                "stream", "clicks", p, depth=2, capacity=100, shed={"full": 1}, waited_last=p / 10
            )
            for p in some
        ),
        replay=replay,
        outboxes=(OutboxStatistics("Partition 0", "bills", "bank", 6, 600),),
        sent={"bills": 8},
        dropped={"bills": 1},
        unsendable={"sender": {"bills": 1}},
        peers={"connections": 2},
        gains=2,
        gain_seconds=0.5,
        start_seconds=1.5,
        utilization=0.25,
    )
    status = ContainerStatus(app, "one", "v1", "running", 4711, "tcp://x:1", 3)
    return ContainerReport(1, status, counts, [], PROCESS)


def text(*containers: ContainerReport, totals: Totals | None = None) -> str:
    node = NodeReport("one", "shop", "0.1.0", True, PROCESS, containers)
    return exposition(node, totals or Totals())


def values(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def test_tasks_are_added_up_and_the_longest_wait_and_the_lowest_watermark_count() -> None:
    found = values(text(container(3)))

    def one(name: str, **labels: str) -> float:
        return found[name, tuple(sorted(labels.items()))]

    stage = {"app": "shop", "stage": "stream", "stream": "clicks"}
    assert one("s4_task_processed_total", app="shop") == 30
    assert one("s4_stage_depth", **stage) == 6
    assert one("s4_stage_waited_last", **stage) == 0.2
    assert one("s4_stage_shed_total", **stage, reason="full") == 3
    assert one("s4_input_lag", app="shop", system="log", stream="orders") == 9
    assert one("s4_task_calls_total", app="shop", call="commit") == 6
    assert one("s4_task_seconds_total", app="shop", call="commit") == 1.5
    assert one("s4_gain_seconds_total", app="shop") == 0.5
    assert one("s4_task_watermarks", app="shop", stream="clicks") == 1000
    assert one("s4_restore_wanted", app="shop") == 9
    assert one("s4_standbys", app="shop") == 1.5
    assert one("s4_process_cpu_seconds_total", app="shop") == 1.25
    assert one("s4_node_ready", node="one", cluster="shop", version="0.1.0") == 1


def test_partitions_add_no_series() -> None:
    assert values(text(container(1))).keys() == values(text(container(64))).keys()


def test_names_with_quotes_backslashes_and_lines_come_back_as_they_are() -> None:
    name = 'a "b"\\n\nc'
    own = [of_app(name, 2.5), of_app("size", 7)]
    shop = container(1)
    page = text(ContainerReport(1, shop.status, shop.statistics, own, None))
    found = {
        dict(labels)["name"]: value
        for (family, labels), value in values(page).items()
        if family == "s4_app_metric"
    }
    assert found == {name: 2.5, "size": 7}


def test_numbers_that_are_not_finite_are_read_as_such() -> None:
    shop = container(1)
    own = [of_app("up", float("inf")), of_app("down", float("-inf"))]
    page = text(ContainerReport(1, shop.status, shop.statistics, own, None))
    assert sorted(v for (n, _), v in values(page).items() if n == "s4_app_metric") == [
        float("-inf"),
        float("inf"),
    ]


def test_a_counter_stays_when_its_partitions_have_moved_away() -> None:
    totals = Totals()
    key = "s4_task_processed_total", (("app", "shop"),)
    assert values(text(container(3), totals=totals))[key] == 30
    assert values(text(container(1), totals=totals))[key] == 30


def test_a_container_that_is_not_ready_is_not_running() -> None:
    status = ContainerStatus("shop", "one", "v1", "starting", None, "", 1)
    for statistics in (None, container(1).statistics):  # which it has as soon as it has tasks
        found = values(text(ContainerReport(1, status, statistics, [], None)))
        assert found["s4_container_running", (("app", "shop"), ("version", "v1"))] == 0


def of_app(name: str, value: float) -> Sample:
    return Sample(OWN, {"source": "Partition 0", "group": "app", "name": name}, value)


SERIES: Series = ("s4_task_processed_total", (("app", "counter"),))


def collect(totals: Totals, **counts: float) -> float:
    for source, count in counts.items():
        totals.add(SERIES, source, count)
    return totals.collected()[SERIES]


def test_what_a_source_has_counted_stays_when_it_has_gone() -> None:
    totals = Totals()
    assert collect(totals, one=5, two=7) == 12
    assert collect(totals, two=8) == 13  # one has moved away
    assert collect(totals, one=2, two=8) == 15  # it is back, and began again


def test_a_source_that_begins_again_under_its_name_counts_from_zero() -> None:
    totals = Totals()
    assert collect(totals, one=5) == 5
    assert collect(totals, one=1) == 6


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)), max_size=20))
def test_a_total_never_falls_and_has_each_gain_once(steps: list[dict[str, int]]) -> None:
    totals, counted, before, last = Totals(), dict.fromkeys("abc", 0), 0.0, {}
    for step in steps:
        for source, more in step.items():
            counted[source] = counted[source] + more if source in last else more
        last = {source: counted[source] for source in step}
        now = collect(totals, **last) if last else totals.collected().get(SERIES, 0)
        assert now == before + sum(step.values())
        before = now


PANELS = json.loads((ROOT / "docker" / "dashboard.json").read_text())["panels"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_there_are_and_for_rates_of_counters_only(
    panel: dict[str, list[dict[str, str]]],
) -> None:
    for target in panel["targets"]:
        names = set(re.findall(r"\bs4_\w+", target["expr"]))
        assert names
        assert names <= FAMILIES.keys()
        for name in re.findall(r"(?:rate|increase)\((s4_\w+)", target["expr"]):
            assert FAMILIES[name].kind == "counter"
