"""The rules of ``s4 why``: a reason for each way in which an app is held up, and none without."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from s4node.cluster.node.app_details import PartitionRow
from s4node.cluster.node.container_status import ContainerStatus
from s4node.deploy.cluster_snapshot import (
    AppRow,
    AwayRow,
    FailingRow,
    InputRow,
    NodeRow,
    OutboxRow,
    PeRow,
    RestoringRow,
    Row,
    Snapshot,
    WatermarkRow,
    WindowsRow,
    WorkRow,
)
from s4node.monitoring.why import MOST, RULES, Look, reasons_of

SECONDS = 2.0


def app(name: str = "shop", state: str = "running") -> AppRow:
    return AppRow(name, "", state, 1, [], ["one"] if state == "running" else [], {})


def node(problem: str = "", failure: str = "") -> NodeRow:
    container = ContainerStatus("shop", "one", "", "waiting", 1, "", 3, failure)
    return NodeRow("one", "tcp://one:1", 1, "host", [container], problem)


def stage(
    depth: int = 0, admitted: int = 0, waited: float = 0.0, of: str = "clicks", in_flight: int = 0
) -> Row:
    return Row(
        "stream", of, app="shop", depth=depth, capacity=100, admitted=admitted,
        waited_last=waited, fullest=depth / 100, in_flight=in_flight,
    )  # fmt: skip


def work(process: float = 0.0, **of: Any) -> WorkRow:
    known = {"cpu_seconds": process, "load": 0.5} | of
    return WorkRow("shop", "one", 1, {"process": process}, {"process": 99}, **known)


def pe(name: str, seconds: float, calls: int = 1000, **hot: float) -> PeRow:
    return PeRow("shop", name, "on_event", seconds, calls, 0, hot)


def snapshot(time: float, **rows: Any) -> Snapshot:
    kinds = {"nodes": [node()], "apps": [app()], "stages": [stage()]}
    return Snapshot("default", "", time, **(kinds | rows))


NOTHING: dict[str, Any] = {"work": [work()]}
BUSY: dict[str, Any] = {"work": [work(1.9)]}
FULL = {"stages": [stage(99)]}


def marks(at: float, admitted: int, by: str = "program 'joe'") -> dict[str, Any]:
    return {
        "watermarks": [WatermarkRow("shop", "clicks", at, by, 9.0)],
        "windows": [WindowsRow("shop", 3)],
        "stages": [stage(0, admitted)],
    }


def two_streams(silent: float, live: float, admitted: int) -> dict[str, Any]:
    views = WatermarkRow("shop", "views", silent, "program 'joe'")
    clicks = WatermarkRow("shop", "clicks", live, "program 'ann'")
    return marks(live, admitted) | {
        "watermarks": [views, clicks],
        "stages": [stage(0, admitted), stage(0, 5, of="views")],
    }


CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "not-running",
        {},
        {"apps": [app(state="waiting to restart")], "nodes": [node(failure="ValueError: joe")]},
        ("it is waiting to restart, after 3 starts on 'one'; its last failure: ValueError: joe"),
    ),
    (
        "node-away",
        {},
        {"nodes": [node("does not answer within 2 s")]},
        "node 'one' does not answer within 2 s",
    ),
    (
        "failing",
        {},
        {"failing": [FailingRow("shop", ["Partition 0"], "the disk is full")]},
        "1 tasks cannot commit or start, and try again: the disk is full",
    ),
    (
        "system-away",
        {},
        {
            "away": [AwayRow("shop", "kafka", "it cannot be reached")],
            "outboxes": [OutboxRow("shop", "totals", "kafka", 1234)],
        },
        "system 'kafka': it cannot be reached; 1,234 records for it wait",
    ),
    (
        "open-transaction",
        {},
        {"inputs": [InputRow("shop", "kafka.clicks", 0, uncommitted=12)]},
        (
            "a transaction that its producer has not ended holds up input 'kafka.clicks': 12 "
            "records are behind it"
        ),
    ),
    (
        "restoring",
        {},
        {"restoring": [RestoringRow("shop", "Partition 0", 10, 90)]},
        "1 tasks fetch their state: 10 of at most 90 objects",
    ),
    (
        "receiver-away",
        {},
        {
            "outboxes": [OutboxRow("shop", "totals", "page", 1234)],
            "apps": [app(), app("page", "stopped")],
        },
        "1,234 events of stream 'totals' wait for app 'page': it is away",
    ),
    (
        "machine-busy",
        {},
        {"work": [work(1.9, waited_seconds=0.8, load=4.0)]},
        (
            "the machine is busy with other work: the container waits for a processor for 40% of "
            "the time, and the load is 4.0 by core"
        ),
    ),
    (
        "commits",
        {"work": [work()]},
        {"work": [work(0.1, commits=4, commit_seconds=1.8)]},
        "commits take 90% of the time of a task: 4 of 450.0 ms on average",
    ),
    (
        "slow-pe",
        {"pes": [pe("Slow", 5.0, 100), pe("Quick", 2.0, 100)]},
        BUSY | {"pes": [pe("Slow", 6.5, 1600), pe("Quick", 2.1, 1600)]},
        "PE 'Slow' takes 94% of the time of all PEs: a call of on_event takes 1.0 ms",
    ),
    (
        "hot-key",
        {},
        FULL | {"pes": [pe("Count", 0.1, 1000, joe=620.0, ann=9.0)]},
        "key 'joe' has 62% of the events of PE 'Count', for one instance",
    ),
    (
        "watermark",
        marks(60.0, 10),
        marks(60.0, 20),
        (
            "the watermark of stream 'clicks' stands 9 s behind its latest event: it waits for "
            "program 'joe'"
        ),
    ),
    (
        "ahead",
        {},
        {"windows": [WindowsRow("shop", 1, waiting=["log.fast"])]},
        "log.fast: further in time than slower inputs, so it waits",
    ),
    (
        "full",
        {},
        FULL,
        "stream 'clicks' of app 'shop' is 99% full: its consumer is too slow",
    ),
    (
        "waiting",
        {"stages": [stage(7, 100)]},
        {"stages": [stage(9, 102)]},
        "9 events of stream 'clicks' wait; none was done in 2 s",
    ),
]


@pytest.mark.parametrize(("rule", "before", "now", "text"), CASES, ids=[c[0] for c in CASES])
def test_an_app_that_is_held_up_has_a_reason_with_its_figure(
    rule: str, before: dict[str, Any], now: dict[str, Any], text: str
) -> None:
    then = snapshot(0.0, **(NOTHING | before))
    (reason,) = reasons_of("shop", snapshot(SECONDS, **(NOTHING | now)), then)
    assert (reason.rule, reason.text) == (rule, text)
    assert reason.do
    assert reasons_of("another", snapshot(SECONDS, **(NOTHING | now)), then) == []


def test_there_is_a_case_for_each_rule() -> None:
    assert [case[0] for case in CASES] == list(RULES)


HEALTHY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"pes": [pe("Count", 1.0, 10)]}, {"pes": [pe("Count", 1.5, 20, joe=19.0)]}),  # has time left
    ({}, {"work": [work(0.5, commits=2, commit_seconds=0.6, waited_seconds=1.0, load=4.0)]}),
    (marks(60.0, 10), marks(61.0, 20)),  # the watermark moves
    (marks(60.0, 10), marks(60.0, 10)),  # nothing comes
    ({"stages": [stage(9, 100)]}, {"stages": [stage(9, 200, 0.5)]}),  # others wait now
    ({"stages": [stage(0, 100)]}, {"stages": [stage(9, 109)]}),  # they have just come
    ({"stages": [stage(2, 10)]}, {"stages": [stage(1, 10, in_flight=1)]}),  # one was done
    ({}, {"inputs": [InputRow("shop", "kafka.clicks", 9, late=0.5)]}),
    ({}, {"nodes": [node(failure="ValueError: joe")], "work": [work(up_seconds=99.0)]}),
    ({"work": [work()]}, {"work": [work(0.5, commits=100, commit_seconds=2.0)]}),
    ({}, {"outboxes": [OutboxRow("shop", "seen", "", 9), OutboxRow("shop", "totals", "shop", 9)]}),
    ({}, {"nodes": [msgspec.structs.replace(node("is away"), name="two")]}),  # not one of the app
]


@pytest.mark.parametrize(("before", "now"), HEALTHY)
def test_nothing_holds_up_an_app_that_has_time_left(
    before: dict[str, Any], now: dict[str, Any]
) -> None:
    then = snapshot(0.0, **(NOTHING | before))
    assert reasons_of("shop", snapshot(SECONDS, **(NOTHING | now)), then) == []


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (  # the app runs again since a moment
        {},
        {"nodes": [node(failure="ValueError: joe")], "work": [work(up_seconds=3.0)]},
        "it is running, after 3 starts on 'one'; its last failure: ValueError: joe",
    ),
    (
        {"stages": [stage(9, 100)]},
        {"stages": [stage(9, 200, 1.5)]},
        "9 events of stream 'clicks' wait; the last ones did so for 1.5 s",
    ),
    (
        {"stages": [stage(5, 10)]},
        {"stages": [stage(5, 10, in_flight=5)]},
        "5 events of stream 'clicks' wait; none was done in 2 s",
    ),
    ({}, {"apps": [app(state="ended")]}, "its containers have ended"),
    (
        {},
        {"inputs": [InputRow("shop", "kafka.clicks", 9, late=60.0)]},
        "9 events of input 'kafka.clicks' wait, the oldest for 60 s",
    ),
    (
        marks(60.0, 10, by="sums[0]@~default/shop/Partition 2#1"),
        marks(60.0, 20, by="sums[0]@~default/shop/Partition 2#1")
        | {"partitions": [PartitionRow("shop", 2, "two", 10, 700, hot="joe", part=0.9)]},
        (
            "the watermark of stream 'clicks' stands 9 s behind its latest event: it waits for "
            "partition 2 of app 'shop' on node 'two', which has 700 events to process; key 'joe' "
            "has 90%"
        ),
    ),
    (  # the node of that partition is away
        marks(60.0, 10, by="sums[0]@~default/shop/Partition 2#1"),
        marks(60.0, 20, by="sums[0]@~default/shop/Partition 2#1"),
        (
            "the watermark of stream 'clicks' stands 9 s behind its latest event: it waits for "
            "partition 2 of app 'shop'"
        ),
    ),
    (  # a window counts the events of two streams, and one of them is silent
        two_streams(60.0, 80.0, 10),
        two_streams(60.0, 82.0, 20),
        (
            "the watermark of stream 'views' stands 22 s behind that of stream 'clicks': it waits "
            "for program 'joe'"
        ),
    ),
    (
        marks(60.0, 10, by="clicks[0]@~default/feed/Partition 2#1"),
        marks(60.0, 20, by="clicks[0]@~default/feed/Partition 2#1"),
        (
            "the watermark of stream 'clicks' stands 9 s behind its latest event: it waits for "
            "partition 2 of app 'feed'"
        ),
    ),
]


@pytest.mark.parametrize(("before", "now", "text"), OTHERS)
def test_a_rule_names_the_cause_in_further_ways(
    before: dict[str, Any], now: dict[str, Any], text: str
) -> None:
    then = snapshot(0.0, **(NOTHING | before))
    (reason,) = reasons_of("shop", snapshot(SECONDS, **(NOTHING | now)), then)
    assert (reason.text, bool(reason.do)) == (text, True)


def test_a_partition_is_not_named_for_a_watermark_that_it_waits_for_itself() -> None:
    by = "sums[0]@~default/shop/Partition 0#1"
    inner = [WatermarkRow("shop", "sums", 60.0, by, 9.0), *marks(60.0, 10)["watermarks"]]
    rows = {
        "watermarks": inner,
        "windows": [WindowsRow("shop", 3)],
        "partitions": [PartitionRow("shop", 0, "one", 10)],
    }
    then = snapshot(0.0, **(NOTHING | rows | {"stages": [stage(0, 10), stage(0, 10, of="sums")]}))
    now = snapshot(2.0, **(NOTHING | rows | {"stages": [stage(0, 20), stage(0, 20, of="sums")]}))
    (reason,) = reasons_of("shop", now, then)
    assert reason.text.endswith("it waits for program 'joe'")


def test_counts_that_begin_anew_are_those_since_the_restart() -> None:
    before = snapshot(0.0, work=[work(900.0, commits=50)], pes=[pe("Slow", 900.0, 10**6)])
    now = snapshot(SECONDS, work=[work(1.9, commits=1)], pes=[pe("Slow", 1.8, 100)])
    (reason,) = reasons_of("shop", now, before)
    assert (
        reason.text
        == "PE 'Slow' takes 100% of the time of all PEs: a call of on_event takes 18.0 ms"
    )


def test_at_most_three_reasons_are_given_the_most_important_first() -> None:
    rows = FULL | {
        "failing": [FailingRow("shop", ["Partition 0"], "the disk is full")],
        "restoring": [RestoringRow("shop", "Partition 1", 1, 9)],
        "windows": [WindowsRow("shop", 1, waiting=["log.fast"])],
        "pes": [pe("Slow", 1.0, 1000, joe=990.0)],
    }
    found = reasons_of("shop", snapshot(SECONDS, **(BUSY | rows)), snapshot(0.0, **NOTHING))
    assert [each.rule for each in found] == ["failing", "restoring", "slow-pe"]
    assert len(found) == MOST


def test_a_container_is_busy_in_the_time_that_its_reports_cover() -> None:
    before = snapshot(10.0, work=[work(10.0, up_seconds=11.0)])
    now = snapshot(12.0, work=[work(11.46, up_seconds=12.5)])  # reported half a second before
    assert Look("shop", now, before).busy == pytest.approx(1.46 / 1.5)
