"""``s4 status`` and ``s4 top`` on terminals of any width."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import msgspec
import pytest
from rich.console import Console

from s4node.cli.render.dashboard import text_of
from s4node.cli.render.terminal import rendered
from s4node.cluster.node.container_status import ContainerStatus
from s4node.deploy.cluster_snapshot import (
    AppRow,
    FailingRow,
    InputRow,
    NodeRow,
    RestoringRow,
    Row,
    Snapshot,
    StandbyRow,
    StreamRow,
    WatermarkRow,
    WindowsRow,
)


@pytest.mark.parametrize("width", [50, 60, 80, 120])
@pytest.mark.parametrize("live", [True, False])
def test_important_columns_are_whole_however_narrow_the_terminal_is(
    width: int, *, live: bool
) -> None:
    lines = lines_of(width, live=live)
    assert max(map(len, lines)) <= width
    found = [line.split()[:3] for line in lines if line.startswith("counter  ")]
    assert ["counter", "deserializer", "clicks"] in found
    table = next(index for index, line in enumerate(lines) if "deserializer" in line)
    assert lines[table - 1].split()[:3] == ["app", "stage", "stream"]
    assert lines[1].startswith("bottleneck: stream 'clicks' of app 'counter'")


def test_unsendable_events_have_a_column_if_there_are_any() -> None:
    stages = snapshot().stages
    stages[2].unsendable = 7
    lines = [*text_with().splitlines(), *text_with(stages=stages).splitlines()]
    assert [line.rstrip().endswith("unsendable") for line in lines if "stage" in line] == [
        False,
        True,
    ]
    assert [line.split()[-1] for line in lines if "  sender  " in line] == ["ms", "7"]


def test_a_task_whose_state_is_being_fetched_says_how_far_it_is() -> None:
    text = text_with(restoring=[RestoringRow("counter", "Partition 3", 320, 1007)])
    assert "task Partition 3 of counter fetches its state: 320 of at most 1,007 objects" in text


def test_tasks_that_cannot_commit_say_why() -> None:
    row = FailingRow("counter", ["Partition 3", "Partition 4"], "the place is full: free some")
    told = "2 of the tasks of counter cannot commit or start, and try again: the place is full:"
    assert told in text_with(failing=[row])


def test_a_container_that_cannot_start_says_why() -> None:
    console = Console(width=120, file=io.StringIO(), highlight=False)
    shown = msgspec.structs.replace(snapshot(), failing=[FailingRow("counter", [], "it is full")])
    console.print(rendered([shown], 120, live=False))
    assert isinstance(console.file, io.StringIO)
    text = "a container of counter cannot start, and tries again: it is full"
    assert text in console.file.getvalue()


def test_a_standby_says_how_far_it_is_behind() -> None:
    row = StandbyRow("counter", "two", ["Partition 3", "Partition 4"], 1.25)
    told = "node two is the standby of 2 tasks of counter, at most 1.2 s behind"
    assert told in text_with(standbys=[row])


def test_each_input_is_shown_with_its_events_that_are_not_processed() -> None:
    inputs = [
        InputRow("counter", "log.clicks", 12_345, late=2.5),
        InputRow("counter", "log.rules", None),
    ]
    lines = [line.split() for line in text_with(inputs=inputs).splitlines()]
    assert ["app", "input", "not", "processed", "oldest", "sent"] in lines
    assert ["counter", "log.clicks", "12,345", "2.5", "s", "ago"] in lines
    assert ["counter", "log.rules", "unknown"] in lines


def test_a_stream_is_shown_with_the_apps_at_both_ends() -> None:
    streams = [
        StreamRow("clicks", ["outside.web"], ["east.count", "north.count"]),
        StreamRow("totals", ["east.count"], []),
    ]
    lines = [line.split() for line in text_with(streams=streams).splitlines()]
    assert ["stream", "from", "to"] in lines
    assert ["clicks", "outside.web", "east.count,", "north.count"] in lines
    assert ["totals", "east.count", "-"] in lines


def test_the_time_of_a_stream_is_shown_with_what_holds_it_back() -> None:
    row = WatermarkRow("market", "trades", 1_700_000_000.5, "trades[3]@spark", 5.25, 3600.0, "p")
    near = WatermarkRow("market", "bars", 1_700_000_000.5, "bars[1]@spark", 0.25)
    windows = [WindowsRow("market", 3, 120, {"Candle": 7}, ["log.quotes[1]"])]
    text = " ".join(text_with(200, watermarks=[near, row], windows=windows).split())
    assert (
        "stream trades of market is at 2023-11-14 22:13:20+00:00, 5.2 s behind its latest event, "
        "held back by trades[3]@spark"
    ) in text
    assert "stream bars of market is at 2023-11-14 22:13:20+00:00 stream" in text
    assert "stream trades of market: the clock of p is 3600 s ahead" in text
    assert "market has 3 open windows, 120 events held back, and 7 late ones" in text
    assert "market does not read log.quotes[1] now: further in time than slower inputs" in text


def test_columns_that_say_less_go_first_and_empty_ones_before_them() -> None:
    titles = {}
    for width in (120, 80, 60):
        split = map(str.split, lines_of(width))
        titles[width] = next(words for words in split if words[:2] == ["app", "stage"])
    assert titles[120][3:] == ["grade", "waiting", "full", "admitted", "rate", "waited", "shed"]
    assert titles[80][3:] == ["waiting", "full", "admitted", "rate", "waited"]
    assert titles[60][3:] == ["waiting", "full", "rate"]


def test_a_long_reason_comes_last_as_one_line_in_top_and_whole_in_status() -> None:
    lines = lines_of(60)
    assert len(lines) < 20
    assert lines[-1].startswith(f"{ENDED}app"[:59])
    assert lines[-1].endswith("…")
    assert FAILURE.replace("\n", r"\n") in " ".join(lines_of(60, live=False))


def test_line_ends_and_escapes_in_a_reason_are_quoted() -> None:
    for live in (True, False):
        lines = lines_of(200, live=live, failure="ValueError: schlécht\na\x1b[31m")
        assert lines[-1] == ENDED + r"ValueError: schlécht\na\x1b[31m"


def test_line_ends_and_escapes_in_a_name_are_quoted() -> None:
    assert len(lines_of(200, node="a\nb\x1b[31m")) == len(lines_of(200))
    (shown,) = (line for line in lines_of(200, node="ä\nb\x1b[31m") if "26375" in line)
    assert shown.startswith(r"ä\nb\x1b[31m  tcp://127.0.0.1:22001")


def test_zeros_of_a_stage_are_left_out() -> None:
    stages = [Row("stream", "clicks", app="counter", capacity=9, waited_last=1e-6, grade="fast")]
    (line,) = (line for line in text_with(stages=stages).splitlines() if "  clicks  " in line)
    assert line.split() == ["counter", "stream", "clicks", "fast"]


def test_an_end_of_today_is_shown_with_its_time_alone() -> None:
    nodes = snapshot().nodes
    nodes[0].containers[0] = msgspec.structs.replace(
        nodes[0].containers[0], failed_ms=int(time.time() * 1000)
    )
    text = text_with(200, nodes=nodes)
    assert re.search(r"counter on one ended at \d\d:\d\d:\d\d because: ", text)


def test_without_a_terminal_the_tables_are_whole_and_each_text_is_a_line() -> None:
    lines = text_of([snapshot()], live=False).splitlines()
    assert lines[0] == "cluster shop, in /tmp/nodes"
    assert lines[4:6] == [
        "app      stage         stream  grade    waiting      full  admitted  waited  shed",
        "counter  deserializer  clicks  durable  80000/80000  100%  1000000   1.5 ms",
    ]
    assert lines[-1].startswith(ENDED)
    assert lines[-1].endswith("that no terminal has room for in a line")


# -- set-up ---------------------------------------------------------------------------------------


FAILURE = (
    "app 'counter': PE Count, key 'joe', event 12 of stream 'clicks':\n"
    "ValueError: a long story that no terminal has room for in a line"
)

AT = int(time.mktime((2001, 9, 9, 3, 46, 40, 0, 0, -1)) * 1000)

ENDED = "counter on one ended at 2001-09-09 03:46:40 because: "


def snapshot(failure: str = FAILURE, node: str = "one") -> Snapshot:
    owners = [f"node-{number % 3}" for number in range(30)]
    where = dict.fromkeys(owners, "tcp://127.0.0.1:44003")
    counter = ContainerStatus(
        "counter", "one", "3a9bfea1b829", "waiting", None, "tcp://127.0.0.1:44003", 12, failure, AT
    )
    return Snapshot(
        "shop",
        "/tmp/nodes",
        1.0,
        [NodeRow(node, "tcp://127.0.0.1:22001", 26375, "machine.example.org", [counter])],
        [AppRow("counter", "3a9bfea1b829", "running", 30, owners, sorted(where), where)],
        [
            Row(
                stage,
                "clicks",
                app="counter",
                depth=80_000,
                capacity=80_000,
                admitted=1_000_000,
                waited_last=0.0015,
                grade="durable",
                fullest=1.0,
                rate=1234.5,
            )
            for stage in ("deserializer", "stream", "sender")
        ],
        "stream 'clicks' of app 'counter' is 100% full: its consumer is too slow",
    )


def lines_of(
    width: int, *, live: bool = True, failure: str = FAILURE, node: str = "one"
) -> list[str]:
    shown = text_of_terminal(snapshot(failure, node), width, live=live)
    return [line.rstrip() for line in shown.splitlines()]


def text_with(width: int = 120, **rows: Any) -> str:
    """The output of ``s4 status`` for the cluster with these rows."""
    return text_of_terminal(msgspec.structs.replace(snapshot(), **rows), width, live=False)


def text_of_terminal(shown: Snapshot, width: int, *, live: bool) -> str:
    file = io.StringIO()
    Console(width=width, file=file, highlight=False).print(rendered([shown], width, live=live))
    return file.getvalue()
