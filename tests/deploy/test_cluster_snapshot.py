"""A snapshot of a cluster, put together from the reports of its containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node.app_details import (
    CommitsRow,
    FlowRow,
    commits_of,
    flows_of,
    history_of,
    rejected_of,
)
from s4node.cluster.node.history import Happening
from s4node.cluster.tree.folder import FolderCoordination
from s4node.deploy.cluster_look import asking, of_cluster
from s4node.deploy.cluster_snapshot import (
    FailingRow,
    InputRow,
    OutboxRow,
    RestoringRow,
    Row,
    Snapshot,
    StandbyRow,
    StreamRow,
    WatermarkRow,
    WindowsRow,
    bottleneck_of,
    failing_of,
    inputs_of,
    outboxes_of,
    ranges,
    restoring_of,
    rows_of,
    standbys_of,
    state_of,
    watermarks_of,
    windows_of,
    with_rates,
)
from s4node.metrics.statistics import (
    CommitStatistics,
    ContainerStatistics,
    InputStatistics,
    OutboxStatistics,
    ProgressStatistics,
    Rejected,
    ReplayStatistics,
    RestoreStatistics,
    StageStatistics,
    TaskStatistics,
)


def stage(stage: str, stream: str, depth: int = 0, **more: Any) -> StageStatistics:
    return StageStatistics(stage, stream, depth=depth, capacity=100, **more)


def told(*stages: StageStatistics, **more: Any) -> ContainerStatistics:
    return ContainerStatistics(app="shop", levels={"clicks": 0, "words": 1}, stages=stages, **more)


def test_a_stage_of_several_partitions_and_containers_is_one_row() -> None:
    rows = rows_of(
        [
            told(
                stage("stream", "clicks", 10, admitted=5, shed={"full": 1}, waited_last=0.2),
                stage("stream", "clicks", 90, admitted=7, in_flight=2, waited_last=0.1),
            ),
            told(stage("stream", "clicks", 0, admitted=1, shed={"full": 2, "rate": 4})),
        ]
    )
    assert rows == [
        Row(
            "stream",
            "clicks",
            app="shop",
            depth=100,
            capacity=300,
            in_flight=2,
            admitted=13,
            shed={"full": 3, "rate": 4},
            waited_last=0.2,
            fullest=0.9,
        )
    ]


def test_a_row_tells_what_is_promised_for_its_stream() -> None:
    stages = stage("stream", "clicks"), stage("stream", "words")
    rows = rows_of([told(*stages, grades={"clicks": "durable"})])
    assert [(row.stream, row.grade) for row in rows] == [("clicks", "durable"), ("words", "")]


def test_events_that_were_left_out_stand_in_the_row_of_their_stream() -> None:
    stages = stage("stream", "clicks"), stage("sender", "clicks")
    one = told(*stages, replay=ReplayStatistics(left_out={"clicks": 2}))
    rows = rows_of([one, one, told(*stages)])
    assert [(row.stage, row.left_out) for row in rows] == [("stream", 4), ("sender", 0)]


def test_events_that_could_not_leave_stand_in_the_row_of_their_stage_or_make_one() -> None:
    lost = {"sender": {"words": 2}, "subscriber": {"words": 1}}
    stages = stage("sender", "words", admitted=5), stage("stream", "words")
    rows = rows_of([told(*stages, unsendable=lost)] * 2)
    assert [(row.stage, row.admitted, row.unsendable) for row in rows] == [
        ("stream", 0, 0),
        ("sender", 10, 4),
        ("subscriber", 0, 2),
    ]


def test_tasks_that_are_being_restored_are_those_of_all_containers() -> None:
    fetched = {"Partition 1": RestoreStatistics(32, 900), "Partition 0": RestoreStatistics(0, 5)}
    one = ReplayStatistics(restoring=fetched)
    reports = [ContainerStatistics(app="a", replay=one), ContainerStatistics(app="b")]
    assert restoring_of(reports) == [
        RestoringRow("a", "Partition 0", 0, 5),
        RestoringRow("a", "Partition 1", 32, 900),
    ]


def test_tasks_that_cannot_commit_are_a_row_by_app_with_a_reason() -> None:
    full = ReplayStatistics(failing={"Partition 1": "the place is full"})
    gone = ReplayStatistics(failing={"Partition 0": "the place is gone"})
    reports = [
        ContainerStatistics(app="a", replay=full),
        ContainerStatistics(app="b"),
        ContainerStatistics(app="a", replay=gone),
    ]
    assert failing_of(reports) == [
        FailingRow("a", ["Partition 0", "Partition 1"], "the place is gone")
    ]


def test_a_container_that_cannot_start_is_a_row_without_tasks() -> None:
    report = ContainerStatistics(app="a", replay=ReplayStatistics(failing={"": "it is full"}))
    assert failing_of([report]) == [FailingRow("a", [], "it is full")]


def test_a_node_that_follows_tasks_reports_how_far_the_slowest_is_behind() -> None:
    one = ReplayStatistics(standbys={"Partition 1": 0.5, "Partition 0": 3.0})
    reports = [ContainerStatistics(app="a", replay=one), ContainerStatistics(app="b")]
    assert standbys_of("node", reports) == [
        StandbyRow("a", "node", ["Partition 0", "Partition 1"], 3.0)
    ]


def test_what_is_not_processed_of_an_input_is_added_up_unless_a_part_is_unknown() -> None:
    def report(app: str, *lags: int | None) -> ContainerStatistics:
        made = [ProgressStatistics("t", "log", "clicks", 0, 0, None, lag) for lag in lags]
        return ContainerStatistics(app=app, replay=ReplayStatistics(progress=made))

    assert inputs_of([report("b", 3, None), report("a", 1, 2), report("a", 4), report("b", 1)]) == [
        InputRow("a", "log.clicks", 7),
        InputRow("b", "log.clicks", None),
    ]


def test_the_oldest_event_of_an_input_is_that_of_its_slowest_task() -> None:
    made = [ProgressStatistics("t", "log", "clicks", p, 0, None, 1, late=3.0 - p) for p in (0, 1)]
    report = ContainerStatistics(app="a", replay=ReplayStatistics(progress=made))
    assert inputs_of([report]) == [InputRow("a", "log.clicks", 2, late=3.0)]


def test_the_commits_of_all_containers_of_an_app_are_a_row_for_ten_seconds() -> None:
    def report(app: str, *made: CommitStatistics) -> ContainerStatistics:
        return ContainerStatistics(app=app, replay=ReplayStatistics(recent=list(made)))

    one = report("a", CommitStatistics(10, 2, 0.5, 0.4, 100), CommitStatistics(20, 1, 0.1, 0.1, 7))
    two = report("a", CommitStatistics(10, 1, 1.0, 1.0, 50))
    assert commits_of([one, two, report("b")]) == [
        CommitsRow(10, 3, 1.5, 1.0, 150, app="a"),
        CommitsRow(20, 1, 0.1, 0.1, 7, app="a"),
    ]


def test_a_stream_has_the_pes_at_its_ends_once_for_all_containers() -> None:
    ways = {"words": (["Split"], ["Count"]), "clicks": ([], ["Split"])}
    one = told(grades={"clicks": "durable"}, ways=ways)
    assert flows_of([one, one]) == [
        FlowRow("shop", "clicks", 0, "durable", [], ["Split"]),
        FlowRow("shop", "words", 1, "", ["Split"], ["Count"]),
    ]


def test_events_that_were_given_up_are_shown_the_latest_first() -> None:
    def report(app: str, ms: int) -> ContainerStatistics:
        one = Rejected(ms, "Partition 0", "clicks", "0:7", "Count", "ValueError: joe")
        return ContainerStatistics(app=app, replay=ReplayStatistics(rejected=[one]))

    found = rejected_of([report("a", 1), report("b", 2)])
    assert [(row.app, row.ms, row.reason) for row in found] == [
        ("b", 2, "ValueError: joe"),
        ("a", 1, "ValueError: joe"),
    ]


def test_what_several_nodes_have_seen_is_shown_once_the_latest_first() -> None:
    moved = Happening(1000, "shop", "failover", "partition 0 of a went to b", "a has failed")
    seen_later = msgspec.structs.replace(moved, ms=1500)
    again = msgspec.structs.replace(moved, ms=60_000)
    assert history_of([[moved, again], [seen_later]]) == [again, moved]


def test_the_watermark_of_a_stream_is_the_lowest_of_all_tasks() -> None:
    def report(*tasks: dict[str, tuple[float, str]]) -> ContainerStatistics:
        made = [
            TaskStatistics("t", 0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, {}, {}, {}, watermarks=each)
            for each in tasks
        ]
        return ContainerStatistics(app="a", tasks=made)

    reports = [
        report({"s": (5.0, "x")}, {"s": (3.0, "y"), "r": (9.0, "")}),
        report({"s": (4, "z")}),
    ]
    assert watermarks_of(reports) == [WatermarkRow("a", "r", 9.0), WatermarkRow("a", "s", 3.0, "y")]


def test_windows_held_back_and_late_events_of_an_app_are_added_up() -> None:
    def report(app: str, windows: int, held_back: int, late: int) -> ContainerStatistics:
        task = TaskStatistics(
            "t", 0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, {}, {}, {},
            windows=windows, held_back=held_back, late={"a": late, "b": 1}, waiting=[f"in[{late}]"],
        )  # fmt: skip
        return ContainerStatistics(app=app, tasks=[task])

    reports = [report("b", 1, 2, 3), report("a", 1, 1, 1), report("b", 4, 0, 0)]
    assert windows_of([*reports, ContainerStatistics(app="c", tasks=[])]) == [
        WindowsRow("a", 1, 1, {"a": 1, "b": 1}, ["in[1]"]),
        WindowsRow("b", 5, 2, {"a": 3, "b": 2}, ["in[0]", "in[3]"]),
    ]


def test_outboxes_of_all_tasks_are_one_row_for_each_receiver_that_something_waits_for() -> None:
    def outbox(stream: str, consumer: str, depth: int) -> OutboxStatistics:
        return OutboxStatistics("t", stream, consumer, depth, bytes=10 * depth)

    one = outbox("words", "", 3), outbox("copies", "shop", 1), outbox("copies", "log", 0)
    two = outbox("words", "", 4), outbox("copies", "log", 0)
    reports = [ContainerStatistics(app="a", outboxes=each) for each in (one, two)]
    assert outboxes_of([*reports, ContainerStatistics(app="b")]) == [
        OutboxRow("a", "copies", "shop", 1, 10),
        OutboxRow("a", "words", "", 7, 70),
    ]


def test_an_event_that_one_container_passes_on_to_another_has_come_in_once() -> None:
    def container(came: int, forwarded: int) -> ContainerStatistics:
        inputs = {"clicks": InputStatistics(admitted=came, forwarded=forwarded)}
        return told(stage("deserializer", "clicks", admitted=came), inputs=inputs)

    (row,) = rows_of([container(1000, 0), container(600, 600)])
    assert row.admitted == 1000


@pytest.mark.parametrize(
    ("wanted", "phases", "members", "state"),
    [
        ("running", ["running", "waiting"], ["one"], "running"),
        ("running", ["waiting", "waiting"], [], "waiting to restart"),
        ("running", ["waiting", "starting"], [], "starting"),
        ("running", ["waiting", "prepared"], [], "waiting to restart"),
        ("running", ["running"], [], "starting"),
        ("running", [], [], "not running"),
        ("stopping", ["running"], ["one"], "stopping"),
    ],
)
def test_an_app_is_in_the_state_that_is_true_of_it_and_not_in_the_one_that_is_wanted(
    wanted: str, phases: list[str], members: list[str], state: str
) -> None:
    assert state_of(wanted, phases, members) == state


def test_a_stage_is_as_full_as_its_events_or_its_bytes() -> None:
    (row,) = rows_of([told(stage("stream", "clicks", 1, bytes=60, max_bytes=80))])
    assert row.fullest == 0.75


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([stage("stream", "clicks", 79)], ""),
        ([stage("stream", "clicks", 80)], "stream 'clicks' of app 'shop' is 80% full"),
        ([stage("stream", "clicks", 99), stage("stream", "words", 85)], "stream 'words'"),
        ([stage("deserializer", "clicks", 100), stage("stream", "clicks", 90)], "stream 'clicks'"),
        ([stage("remoteSender", "out", 90), stage("stream", "words", 100)], "remoteSender 'out'"),
        (
            [stage("stream", "clicks", 100, executor="shed")],
            "is 100% full, and drops: its consumer",
        ),
        (
            [stage("stream", "words", 100, executor="shed"), stage("stream", "clicks", 90)],
            "stream 'clicks'",
        ),
        ([stage("sender", "clicks", 100, executor="throttle")], ""),
    ],
)
def test_the_bottleneck_is_the_full_blocking_stage_furthest_downstream_or_else_one_that_drops(
    stages: list[StageStatistics], words: str
) -> None:
    found = bottleneck_of(rows_of([told(*stages)]))
    assert words in found
    assert bool(found) == bool(words)


def at(time: float, admitted: int) -> Snapshot:
    return Snapshot("c", "", time, [], [], rows_of([told(stage("stream", "s", admitted=admitted))]))


def test_a_rate_is_the_difference_of_two_snapshots() -> None:
    assert with_rates(at(12, 300), at(10, 100)).stages[0].rate == 100
    assert with_rates(at(12, 300), None).stages[0].rate is None


def test_a_container_that_was_started_again_counts_from_nothing() -> None:
    assert with_rates(at(12, 30), at(10, 100)).stages[0].rate == 15


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3, 7], "0-3, 7"), ([0, 2, 3], "0, 2-3")],
)
def test_partitions_are_shown_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


WORDS = StreamRow("words", ["outside.lines"], ["east.count", "north.count"])
TOTALS = StreamRow("totals", ["east.count"], [])


@pytest.mark.parametrize(
    ("cluster", "seen"),
    [("outside", [WORDS]), ("north", [WORDS]), ("east", [TOTALS, WORDS]), ("south", [])],
)
async def test_a_cluster_shows_who_is_at_both_ends_of_its_streams(
    tmp_path: Path, cluster: str, seen: list[StreamRow]
) -> None:
    async with FolderCoordination(tmp_path).session("who looks") as session:
        registry = Registry(session)
        for row in (WORDS, TOTALS):
            for app in row.producers:
                await registry.add_stream_user(row.stream, "producers", AppId(*app.split(".")))
            for app in row.consumers:
                await registry.add_stream_user(row.stream, "consumers", AppId(*app.split(".")))
        assert (await of_cluster(registry, cluster, "", asking(None))).streams == seen
