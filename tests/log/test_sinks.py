"""Sinks at a real node: a batch is visible whole or not at all, whatever dies in between."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from harness import metric
from log_nodes import log_at, log_node
from spark_rows import PATIENCE, Node, Row, check_exact, node_in, send_numbered, until

from s4node import SyncClient
from s4node.errors import LimitReached, SinkError, StoreError
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType
from s4node.failpoints import POINTS
from s4node.spark.connection import connect
from s4node.spark.upload import Upload

STEPS = [
    # every other step in make test
    name if at % 2 else pytest.param(name, marks=pytest.mark.long)
    for at, name in enumerate(name for name in POINTS if name.startswith("sink."))
]
KIND = EventType(Row)


class Attempt:
    """An attempt of a task: rows from ``first`` on, in a few frames."""

    def __init__(self, node: Node, sink: str, name: str, stream: str = "clicks") -> None:
        self.name = f"{sink}/{name}"
        found = node.ask("sink.stage", sink=sink, stream=stream)
        self.upload = Upload([node.address], found["spool"], self.name, KIND.declaration, PATIENCE)
        self._partition_of = Partitioner(self.upload.partitions).partition_of

    def send(self, first: int, count: int, width: int = 1) -> Attempt:
        for start in range(first, first + count, 50):
            rows: dict[int, list[Row]] = {}
            for n in range(start, min(start + 50, first + count)):
                row = Row(f"u{n}" + "." * width, n)
                rows.setdefault(self._partition_of(row.user), []).append(row)
            for partition, events in rows.items():
                self.upload.send(partition, len(events), KIND.encode(events), routed=True)
        return self

    def finish(self) -> tuple[str, dict[int, int]]:
        return self.name, self.upload.finish()


def stage(
    node: Node, sink: str, name: str, first: int, count: int, width: int = 1, stream: str = "clicks"
) -> Any:
    return Attempt(node, sink, name, stream).send(first, count, width).finish()


def publish(
    node: Node, sink: str, batch: int, *attempts: Any, stream: str = "clicks", **more: Any
) -> Any:
    return node.ask(
        "sink.publish", sink=sink, stream=stream, batch=batch, attempts=attempts, **more
    )


def commit(node: Node, attempts: Any, patience: float = PATIENCE) -> None:
    """Publish as Spark's driver does."""
    from pyspark.sql.types import StructType

    from s4node.spark.sink import Sink, Staged, Target

    target = Target((node.address,), "clicks", "tests.spark_rows:Row", patience=patience)
    messages = [Staged("q", 0, *each) for each in attempts]
    Sink(target, StructType()).publish(messages, last=False)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with node_in(tmp_path) as node:
        node.create("clicks")
        yield node


def numbers(node: Node, stream: str = "clicks") -> list[int]:
    return sorted(row.n for row in node.rows(stream))


def test_nothing_is_visible_before_the_decision_and_only_what_it_names_after_it(node: Node) -> None:
    one = stage(node, "q", "0/0", 0, 300)
    stage(node, "q", "0/1", 0, 300)  # finished too, and not named
    two = stage(node, "q", "1/0", 300, 300)
    assert node.count("clicks") == 0
    assert [each["stream"] for each in node.ask("list")["streams"]] == ["clicks"]
    assert publish(node, "q", 0, one, two) == {"published": True, "events": 600}
    assert numbers(node) == list(range(600))
    other = stage(node, "q", "1/1", 1000, 300)
    assert publish(node, "q", 0, other) == {"published": False, "events": 600}
    assert publish(node, "q", 1, stage(node, "q", "2/0", 600, 100))["events"] == 100
    assert numbers(node) == list(range(700))


def test_an_attempt_that_is_not_whole_is_not_published(node: Node) -> None:
    name, counts = stage(node, "q", "0/0", 0, 300)
    counts[0] += 1
    with pytest.raises(SinkError, match="Write the batch again"):
        publish(node, "q", 0, (name, counts))
    assert node.count("clicks") == 0


def test_two_sinks_of_one_stream_do_not_touch_each_other_s_rows(node: Node) -> None:
    mine = stage(node, "a", "0/0", 0, 300)
    publish(node, "b", 0, stage(node, "b", "0/0", 300, 300), last=True)
    publish(node, "a", 0, mine)
    assert numbers(node) == list(range(600))


def test_batches_of_one_query_are_counted_by_stream_when_it_goes_on_with_a_copy_of_its_checkpoint(
    node: Node,
) -> None:
    node.create("trial")

    def write(stream: str, batch: int) -> None:
        attempt = stage(node, "query/q", f"{batch}/0", batch * 10, 10, stream=stream)
        assert publish(node, "query/q", batch, attempt, stream=stream)["published"]

    for stream, batch in [("clicks", 0), ("clicks", 1), ("trial", 1), ("trial", 2), ("clicks", 2)]:
        write(stream, batch)
    one = stage(node, "query/q", "3/0", 30, 10)
    other = stage(node, "query/q", "3/0", 30, 10, stream="trial")
    assert publish(node, "query/q", 3, one)["published"]
    assert publish(node, "query/q", 3, other, stream="trial")["published"]
    node.stop()
    node.start()
    assert publish(node, "query/q", 3, one) == {"published": False, "events": 10}
    write("clicks", 4)
    assert numbers(node) == list(range(50))
    assert numbers(node, "trial") == list(range(10, 40))
    listed = [(each["stream"], each["batch"]) for each in node.ask("sink.list")["sinks"]]
    assert listed == [("clicks", 4), ("trial", 3)]
    node.ask("sink.forget", sink="query/q")
    assert node.ask("sink.list")["sinks"] == []


def test_attempts_are_named_in_parts_and_from_the_first_on_if_the_node_was_started_again(
    node: Node,
) -> None:
    one, two = stage(node, "q", "0/0", 0, 10), stage(node, "q", "1/0", 10, 10)
    former = stage(node, "q", "0/1", 500, 10)
    assert publish(node, "q", 0, former, commit="former", total=2) == {"known": 1}
    assert publish(node, "q", 0, one, commit="this", total=2) == {"known": 1}
    assert publish(node, "q", 0, one, commit="this", total=2) == {"known": 1}  # asked again
    node.stop()
    node.start()
    assert publish(node, "q", 0, two, commit="this", first=1, total=2) == {"known": 0}
    assert publish(node, "q", 0, one, commit="this", total=2) == {"known": 1}
    for published in (True, False):
        answer = publish(node, "q", 0, two, commit="this", first=1, total=2)
        assert answer == {"published": published, "events": 20}
    assert numbers(node) == list(range(20))


@pytest.mark.spark
def test_a_commit_of_so_many_tasks_that_they_do_not_fit_a_frame_is_published(node: Node) -> None:
    attempts = [stage(node, "q", "0/0", 0, 10)]
    attempts += [(f"q/0/{task}/0-{'x' * 100}", {0: 0, 1: 0}) for task in range(12_000)]
    commit(node, attempts)
    assert numbers(node) == list(range(10))


def test_a_question_that_does_not_fit_a_frame_says_so(node: Node) -> None:
    with pytest.raises(SinkError, match=r"refuses 'sink.publish': a frame of .* is over the"):
        publish(node, "q", 0, ("x" * (2 << 20), {0: 1}))


def test_a_write_that_has_learned_that_it_is_published_is_forgotten_and_its_late_attempts_refused(
    node: Node,
) -> None:
    publish(node, "write/w", 0, stage(node, "write/w", "0/0", 0, 100), last=True)
    for _ in range(2):
        assert node.ask("sink.end", sink="write/w", stream="clicks") == {}
    assert node.ask("sink.list")["sinks"] == []
    with pytest.raises(SinkError, match="the write write/w is over"):
        stage(node, "write/w", "1/0", 100, 100)
    assert node.staged == []


def test_spools_take_no_room_from_the_partitions_of_streams(tmp_path: Path) -> None:
    with node_in(tmp_path, **{"s4.log.maxPartitions": "4"}) as node:
        node.create("clicks")
        publish(node, "q", 0, stage(node, "q", "0/0", 0, 100))
        with pytest.raises(
            LimitReached, match=r"the spool of a sink .* forget those that are over"
        ):
            stage(node, "r", "0/0", 0, 100)
        node.ask("drop", stream="clicks")
        node.create("views")
        assert len(node.staged) == 1


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_node_that_is_killed_at_any_step_publishes_the_batch_once(
    tmp_path: Path, step: str
) -> None:
    node = Node(tmp_path)
    node.start(f"{step}@{tmp_path / 'died'}")
    try:
        node.create("clicks")
        attempts = [stage(node, "q", f"{task}/0", task * 3000, 3000, 200) for task in range(2)]
        link = connect([node.address], PATIENCE)
        with pytest.raises(OSError, match=r"closed|reset|answer"):
            link.query(
                "sink.publish", {"sink": "q", "stream": "clicks", "batch": 0, "attempts": attempts}
            )
        link.close()
        until(lambda: node.died, "the node dies")
        node.stop()
        node.start()
        if step != "sink.staged":  # nobody asks again: the node goes on by itself
            until(lambda: node.count("clicks") == 6000, "the batch is carried on")
        answer = publish(node, "q", 0, *attempts)
        assert answer == {"published": step == "sink.staged", "events": 6000}
        check_exact(node.rows("clicks"), 6000)
        assert publish(node, "q", 1, stage(node, "q", "x", 6000, 300))["events"] == 300
        check_exact(node.rows("clicks"), 6300)
    finally:
        node.stop()


def test_an_aborted_batch_is_dropped_as_soon_as_no_attempt_is_under_way(node: Node) -> None:
    stage(node, "q", "0/0", 0, 300)
    slow = Attempt(node, "q", "1/0").send(300, 300)
    node.ask("sink.abort", sink="q", stream="clicks")
    assert len(node.staged) == 1
    slow.send(600, 300)
    late = slow.finish()
    until(lambda: not node.staged, "the spool is dropped")
    with pytest.raises(SinkError, match=r"0 of \d+ events .* are staged"):
        publish(node, "q", 0, late)
    assert publish(node, "q", 0, stage(node, "q", "2/0", 0, 100))["events"] == 100
    assert numbers(node) == list(range(100))


def test_an_attempt_that_begins_after_the_end_of_its_write_is_refused(node: Node) -> None:
    stage(node, "w", "0/0", 0, 300)
    node.ask("sink.abort", sink="w", stream="clicks", over=True)
    until(lambda: not node.staged, "the spool is dropped")

    with pytest.raises(SinkError, match="the write w is over"):
        stage(node, "w", "1/0", 300, 300)

    assert node.staged == []


def test_a_publication_that_is_repeated_after_every_expiry_is_done(tmp_path: Path) -> None:
    expiries = {"s4.producer.expiry": "200", "s4.log.staged.expiry": "200"}
    with node_in(tmp_path, **expiries) as node:
        node.create("clicks")
        one = stage(node, "q", "0/0", 0, 300)
        publish(node, "q", 0, one)
        until(lambda: not node.staged, "the spool is dropped because of its age")
        again = stage(node, "q", "0/1", 0, 300)
        for attempt in (one, again):
            assert publish(node, "q", 0, attempt) == {"published": False, "events": 300}
        node.stop()
        node.start()
        assert publish(node, "q", 0, again) == {"published": False, "events": 300}
        assert numbers(node) == list(range(300))


def test_what_nobody_publishes_is_dropped_after_a_time(tmp_path: Path) -> None:
    with node_in(tmp_path, **{"s4.log.staged.expiry": "300"}) as node:
        node.create("clicks")
        orphan = stage(node, "q", "0/0", 0, 300)
        until(lambda: not node.staged, "the orphan is dropped")
        with pytest.raises(SinkError, match="0 of"):
            publish(node, "q", 0, orphan)
        assert node.ask("sink.list")["sinks"] == []


def test_a_batch_beyond_the_quota_is_refused_before_it_is_decided(tmp_path: Path) -> None:
    with node_in(tmp_path, **{"s4.log.quotaBytes": str(12 << 20)}) as node:
        # 4 MB are staged, as many are in its log of writes or not, and 11 MB are asked for
        node.create("clicks", 1)
        large = stage(node, "q", "0/0", 0, 4000, 1000)
        with pytest.raises(SinkError, match="quota, trim streams, or write smaller batches"):
            publish(node, "q", 0, large)
        assert node.count("clicks") == 0
        (sink,) = node.ask("sink.list")["sinks"]
        assert (sink["batch"], sink["open"]) == (-1, False)
        node.ask("sink.abort", sink="q", stream="clicks")
        assert publish(node, "q", 0, stage(node, "q", "0/1", 0, 300))["events"] == 300


def no_large_files() -> None:
    """As on a full disk: no file grows beyond two megabytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))


def fill(node: Node, stream: str) -> None:
    """Append ten megabytes; raises SinkError if there is no room for two seconds."""
    with closing(Upload([node.address], stream, "q/0", KIND.declaration, 2.0)) as upload:
        for n in range(100):
            body = KIND.encode([Row("u" * 1000, n * 100 + i) for i in range(100)])
            upload.send(0, 100, body, routed=True)
            if n == 0:
                upload._wait(lambda: not upload._bytes)  # else all may come at once
        upload.finish()


def test_a_spool_on_a_full_disk_is_waited_for_and_then_told(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(limits=no_large_files)
    try:
        node.create("clicks", 1)
        spool = node.ask("sink.stage", sink="q", stream="clicks")["spool"]
        with pytest.raises(SinkError, match="has taken nothing for 2 s: the disk is full"):
            fill(node, spool)
        assert node.count("clicks") == 0
        node.ask("sink.abort", sink="q", stream="clicks")
        until(lambda: not node.staged, "the aborted rows make room")
        assert publish(node, "q", 0, stage(node, "q", "0/1", 0, 300))["events"] == 300
        assert numbers(node) == list(range(300))
    finally:
        node.stop()


@pytest.mark.spark
def test_a_batch_for_which_the_disk_has_no_room_while_it_is_published_says_so(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.start(limits=no_large_files)
    try:
        node.create("clicks", 1)
        many = [stage(node, "q", f"{n}/0", n * 10, 10, 4000) for n in range(20)]
        with suppress(SinkError):
            fill(node, "clicks")
        with pytest.raises(SinkError, match=r"waits since 2 s: the disk is full .* log sinks"):
            commit(node, many, 2.0)
    finally:
        node.kill()
        node.stop()


# -- what numbers would do instead of staging: the rows of a task under one producer -------------


def send(node: Node, rows: range, stop_after: int = 1000) -> None:
    """Send rows as an attempt that skips as many as earlier ones have sent."""
    parts = [list(rows)[at : at + 50] for at in range(0, len(rows), 50)][: stop_after // 50]
    with SyncClient(node.address, producer="query/0/0") as client:
        send_numbered(client, "clicks", ([Row(f"u{n}", n) for n in part] for part in parts))


def test_numbers_show_the_rows_of_an_attempt_that_is_aborted_or_that_nobody_names(
    node: Node,
) -> None:
    send(node, range(300))  # finishes, and another attempt is the one that counts
    send(node, range(1000, 1300))
    assert numbers(node) == list(range(300))


def test_numbers_lose_and_double_rows_if_a_node_dies_between_two_attempts(node: Node) -> None:
    send(node, range(300), stop_after=100)
    node.kill()
    node.stop()
    node.start()
    send(node, range(299, -1, -1))
    with pytest.raises(AssertionError, match="100 rows doubled, 100 lost, of 300"):
        check_exact(node.rows("clicks"), 300)


def test_numbers_show_a_part_of_a_batch_for_which_the_disk_has_no_room(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(limits=no_large_files)
    try:
        node.create("clicks", 1)
        with pytest.raises(SinkError, match="has taken nothing for 2 s: the disk is full"):
            fill(node, "clicks")
        assert node.count("clicks") > 0
    finally:
        node.kill()
        node.stop()


def test_numbers_double_a_batch_that_is_repeated_after_an_expiry(tmp_path: Path) -> None:
    with node_in(tmp_path, **{"s4.producer.expiry": "200"}) as node:

        def is_forgotten() -> bool:
            """Return True if the log takes the producer for a new one.

            A hello makes it known once more, so none is sent before it is absent again.
            """
            if node.ask("describe", stream="clicks")["producers"]:
                return False
            with suppress(SinkError):  # it exists: the writer has not deleted its row yet
                Upload([node.address], "clicks", "query/0/0", KIND.declaration, PATIENCE).close()
                return True
            return False

        node.create("clicks", 1)
        body = KIND.encode([Row("joe", n) for n in range(300)])
        for total in (300, 600):
            upload = Upload([node.address], "clicks", "query/0/0", KIND.declaration, PATIENCE)
            with closing(upload):
                upload.send(0, 300, body, routed=True)
                until(lambda total=total: node.count("clicks") == total, "the batch is there")
            until(is_forgotten, "it is forgotten")
        assert numbers(node) == sorted([*range(300), *range(300)])


# -- streams and sinks that go ---------------------------------------------------------------------


def test_a_stream_is_dropped_and_may_be_created_again(node: Node) -> None:
    with SyncClient(node.address) as client:
        client.stream("clicks", types=Row).send(Row("joe", 1))
    assert node.ask("drop", stream="clicks") == {"dropped": True}
    assert node.ask("drop", stream="clicks") == {"dropped": False}
    assert not (node.folder / "log" / "clicks").exists()
    node.create("clicks", 2)
    assert node.count("clicks") == 0
    stage(node, "q", "0/0", 0, 10)
    with pytest.raises(StoreError, match="is the spool of a sink; use s4 log sinks --forget"):
        node.ask("drop", stream=node.staged[0])
    node.stop()
    node.start()
    assert [each["stream"] for each in node.ask("list")["streams"]] == ["clicks"]


def test_a_forgotten_sink_may_publish_its_batch_again(node: Node) -> None:
    publish(node, "job/nightly", 0, stage(node, "job/nightly", "0/0", 0, 100), last=True)
    with pytest.raises(SinkError, match="knows no sink 'job/weekly'; s4 log sinks shows them"):
        node.ask("sink.forget", sink="job/weekly")
    node.ask("sink.forget", sink="job/nightly")
    publish(node, "job/nightly", 0, stage(node, "job/nightly", "0/1", 100, 100), last=True)
    assert numbers(node) == list(range(200))
    assert node.ask("describe", stream="clicks")["producers"] == 0


def test_what_is_published_is_read_in_the_order_in_which_an_attempt_has_written_it(
    node: Node,
) -> None:
    publish(node, "q", 0, stage(node, "q", "0/0", 0, 2000))
    seen: dict[int, int] = {}
    partition_of = Partitioner(4).partition_of
    for row in node.rows("clicks"):
        partition = partition_of(row.user)
        assert seen.get(partition, -1) < row.n
        seen[partition] = row.n


def test_what_was_staged_for_a_former_stream_of_the_name_makes_room(node: Node) -> None:
    stage(node, "q", "0/0", 0, 100)
    node.ask("drop", stream="clicks")
    node.create("clicks", 2)
    publish(node, "q", 0, stage(node, "q", "0/1", 0, 100))
    assert numbers(node) == list(range(100))


def test_a_job_of_a_name_is_refused_for_another_stream(node: Node) -> None:
    publish(node, "job/nightly", 0, stage(node, "job/nightly", "0/0", 0, 100), last=True)
    node.create("other")
    with pytest.raises(SinkError, match="is written to stream 'clicks' already"):
        node.ask("sink.stage", sink="job/nightly", stream="other", last=True)
    (sink,) = node.ask("sink.list")["sinks"]
    assert sink["stream"] == "clicks"


def test_how_far_a_batch_is_carried_is_told(node: Node) -> None:
    q = {"sink": "q", "stream": "clicks"}
    assert node.ask("sink.carried", **q) == {"carried": 0, "trouble": ""}
    publish(node, "q", 0, stage(node, "q", "0/0", 0, 100))
    assert node.ask("sink.carried", **q) == {"carried": 100, "trouble": ""}


def test_a_batch_before_the_last_one_is_not_published_and_the_node_warns(node: Node) -> None:
    for batch in range(2):
        publish(node, "q", batch, stage(node, "q", f"{batch}/0", batch * 100, 100))
    other = stage(node, "q", "0/1", 500, 100)
    assert publish(node, "q", 0, other) == {"published": False, "events": 0}
    assert numbers(node) == list(range(200))
    assert "the checkpoint of its query is an older copy" in (node.folder / "stderr").read_text()


def test_publishing_is_in_the_node_s_log(node: Node) -> None:
    publish(node, "q", 0, stage(node, "q", "0/0", 0, 100))
    text = (node.folder / "stderr").read_text()
    assert '"events": 100' in text
    assert "a batch of a sink is published" in text


def test_the_metrics_of_the_log_s_node_count_what_is_published(tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    reports = {"metrics.reporters": "jsonl", "metrics.reporter.jsonl.file": str(file)}
    with node_in(tmp_path, **reports) as node:
        node.create("clicks")
        publish(node, "q", 0, stage(node, "q", "0/0", 0, 100))
    last = json.loads(file.read_text().splitlines()[-1])
    assert last["header"]["job-name"] == "demo"
    found = {(each["name"], *each["labels"].values()): each["value"] for each in last["metrics"]}
    assert found["s4_published_total", "batches"] == 1
    assert found["s4_published_total", "events"] == 100


async def test_the_metrics_of_the_log_s_container_count_what_is_published(tmp_path: Path) -> None:
    async with log_node(tmp_path) as container, log_at(container.address) as log:
        await log.create("clicks", 1)
        await log.ask("sink.stage", {"sink": "q", "stream": "clicks"})
        batch = {"sink": "q", "stream": "clicks", "batch": 0, "attempts": []}
        assert await log.ask("sink.publish", batch) == {"published": True, "events": 0}
        await log.ask("sink.publish", batch)
        assert metric(container, "s4_published_total", kind="batches") == 1
        assert metric(container, "s4_published_total", kind="events") == 0
