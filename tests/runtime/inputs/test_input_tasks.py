"""Inputs of tasks: broadcast partitions, the end of inputs, commits, and who may write them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from harness import running, until
from input_systems import dies
from saved_state import save_positions, saved_positions
from shared_apps import handling

from s4node import App, GenericEvent
from s4node.app.stream_task import TaskApp
from s4node.errors import CheckpointError, StateError, TaskFenced
from s4node.events.keys import Partitioner, hasher_named
from s4node.offsets.startpoint import Oldest
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import FILE
from s4node.state.database import Database
from s4node.systems.memory import MemorySystem


def ssp(stream: str, partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("memory", stream, partition)


async def test_a_task_reads_the_same_partition_of_all_its_inputs(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 3)
    system.create("views", 2)
    for partition in range(3):
        system.put("clicks", partition, event(0))
    for partition in range(2):
        system.put("views", partition, event(0), event(1))
    notes = Notes()
    async with running(writing(notes, "clicks", "views"), settings):
        await until(lambda: notes.count == 7)
    assert {task: sorted(places) for task, places in notes.by_task.items()} == {
        "Partition 0": [("clicks", 0, 0), ("views", 0, 0), ("views", 0, 1)],
        "Partition 1": [("clicks", 1, 0), ("views", 1, 0), ("views", 1, 1)],
        "Partition 2": [("clicks", 2, 0)],
    }
    assert kept(settings)["Partition 1"] == {"memory.clicks[1]": 1, "memory.views[1]": 2}


async def test_every_task_reads_broadcast_partitions_with_progress_of_its_own(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    system.create("rules", 3)
    for partition in range(3):
        system.put("rules", partition, event(0), event(1))
    notes = Notes()
    more = {"task.broadcast.inputs": "memory.rules#[0-1]"}
    async with running(writing(notes, "clicks"), settings | more):
        await until(lambda: notes.count == 8)
    both = [("rules", 0, 0), ("rules", 0, 1), ("rules", 1, 0), ("rules", 1, 1)]
    assert {task: sorted(places) for task, places in notes.by_task.items()} == {
        "Partition 0": both,
        "Partition 1": both,
    }
    assert system.reads == {ssp("rules", 0): 2, ssp("rules", 1): 2}  # read once for both
    assert kept(settings) == {
        task: {"memory.rules[0]": 2, "memory.rules[1]": 2, f"memory.clicks[{number}]": 0}
        for number, task in enumerate(("Partition 0", "Partition 1"))
    }


async def test_a_task_is_given_nothing_of_a_broadcast_partition_below_its_own_start(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    system.create("rules", 1)
    system.put("rules", 0, *map(event, range(20)))
    folder = Path(settings["s4.state.folder"]) / "default" / "notes"
    for task, offset in (("Partition 0", 3), ("Partition 1", 15)):
        save_positions(folder, task, {"memory.rules[0]": offset})
    notes = Notes()
    more = {"task.broadcast.inputs": "memory.rules#0"}
    async with running(writing(notes, "clicks"), settings | more):
        await until(lambda: notes.count == 22)
    assert notes.by_task == {
        "Partition 0": [("rules", 0, offset) for offset in range(3, 20)],
        "Partition 1": [("rules", 0, offset) for offset in range(15, 20)],
    }


async def test_a_slow_task_bounds_what_is_kept_of_a_broadcast_partition(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    go_on = trio.Event()

    class Slow(Writer):
        async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            super().process(envelope, collector, coordinator)
            if self.name == "Partition 1":
                await go_on.wait()

    system.create("clicks", 2)
    system.create("rules", 1)
    system.put("rules", 0, *map(event, range(5000)))
    notes = Notes()
    more = {"task.broadcast.inputs": "memory.rules#0", "s4.stream.workQueueSize": "500"}
    async with running(writing(notes, "clicks", make=Slow), settings | more) as container:
        stages = [task.backlog.stages[ssp("rules", 0)] for task in container.tasks.values()]
        await until(lambda: stages[1].full and not stages[0].depth)
        assert system.reads[ssp("rules", 0)] <= 700
        go_on.set()
        await until(lambda: notes.count == 10_000)
        assert max(stage.highest for stage in stages) <= 700


async def test_the_end_of_all_its_inputs_ends_a_task_and_that_of_all_tasks_the_container(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    system.create("rules", 1)
    for partition in range(2):
        system.put("clicks", partition, *map(event, range(150)))
        system.end_partition("clicks", partition)
    system.put("rules", 0, event(0))
    notes = Notes()
    more = {"task.broadcast.inputs": "memory.rules#0"}
    async with running(writing(notes, "clicks"), settings | more) as container:
        await until(lambda: notes.count == 302)
        assert notes.ended == []
        system.end_partition("rules", 0)
        await until(lambda: len(notes.ended) == 2)
        await until(container._stopping.is_set)
    assert sorted(notes.ended) == ["Partition 0", "Partition 1"]
    assert kept(settings)["Partition 0"] == {"memory.clicks[0]": 150, "memory.rules[0]": 1}


async def test_an_input_that_had_ended_before_is_at_its_end_after_a_restart(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, event(0))
    system.end_partition("clicks", 0)
    for given in (1, 0):
        notes = Notes()
        async with running(writing(notes, "clicks"), settings):
            await until(lambda: notes.ended == ["Partition 0"])  # noqa: B023 - it is this turn's
        assert notes.count == given


async def test_a_task_says_in_init_where_it_begins_whatever_was_committed(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Early(Writer):
        def init(self, config: Any, context: Any) -> None:
            super().init(config, context)
            context.set_starting_offset(ssp("clicks", 0), 2)

    system.create("clicks", 1)
    system.put("clicks", 0, *map(event, range(5)))
    async with running(writing(notes := Notes(), "clicks"), settings):
        await until(lambda: notes.count == 5)
    notes = Notes()
    async with running(writing(notes, "clicks", make=Early), settings):
        await until(lambda: notes.count == 3)
    assert notes.by_task["Partition 0"] == [("clicks", 0, offset) for offset in (2, 3, 4)]


@pytest.mark.parametrize(
    ("place", "start", "said"),
    [
        (ssp("clicks", 0), 6, "offset 6"),
        (ssp("views", 0), 0, "does not read it; it reads memory.clicks"),
        (SystemStreamPartition("live", "clicks", 0), Oldest(), "no live input stream"),
        (ssp("clicks", 0), "5", r"'5' \(str\) is not a place to begin at; give an offset"),
        (ssp("clicks", 0), None, r"None \(NoneType\) is not a place to begin at"),
        (ssp("clicks", 0), 7.5, r"7.5 \(float\) is not a place to begin at"),
        (ssp("clicks", 0), True, "offset True is a bool; give an int"),
        (ssp("clicks", 0), Oldest, "Oldest'> is not a place to begin at"),
    ],
)
async def test_a_start_that_cannot_be_stops_the_container(
    system: MemorySystem,
    settings: dict[str, str],
    place: SystemStreamPartition,
    start: Any,
    said: str,
) -> None:
    class Wrong(Writer):
        def init(self, config: Any, context: Any) -> None:
            super().init(config, context)
            context.set_starting_offset(place, start)

    system.create("clicks", 1)
    system.put("clicks", 0, *map(event, range(5)))
    with dies(Exception, match=said):
        async with running(writing(Notes(), "clicks", make=Wrong), settings):
            await trio.sleep_forever()


# -- commits --------------------------------------------------------------------------------------


class StopTest(Exception):  # noqa: N818
    """Ends a container as a crash does: nothing more is committed."""


async def test_the_starting_offset_is_committed_so_a_crash_before_any_event_skips_none(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    settings |= {"systems.memory.samza.offset.default": "upcoming"}  # and a commit each minute
    system.create("clicks", 1)
    system.put("clicks", 0, event(0))
    notes = Notes()
    with dies(StopTest):
        async with running(writing(notes, "clicks"), settings):
            await until(lambda: kept(settings)["Partition 0"] == {"memory.clicks[0]": 1})
            raise StopTest
    system.put("clicks", 0, event(1))
    for _ in range(2):  # also what was processed, for nothing of it was committed
        notes = Notes()
        with dies(StopTest):
            async with running(writing(notes, "clicks"), settings):
                await until(lambda: notes.count == 1)  # noqa: B023 - it is this turn's
                raise StopTest
        assert notes.by_task == {"Partition 0": [("clicks", 0, 1)]}


@pytest.mark.parametrize("settings_of_order", [{}, {"task.max.concurrency": "3"}])
async def test_a_commit_covers_offsets_without_an_event(
    system: MemorySystem, settings: dict[str, str], settings_of_order: dict[str, str]
) -> None:
    class Committing(Writer):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            super().process(envelope, collector, coordinator)
            if envelope.offset == 8:
                coordinator.commit()
            if envelope.offset == 9:
                raise StopTest

    system.create("clicks", 1)
    system.put("clicks", 0, *map(event, range(12)))
    system.remove("clicks", 0, 0, 5, 6, 10)
    notes = Notes()
    with dies(Exception, match="StopTest"):
        async with running(writing(notes, "clicks", make=Committing), settings | settings_of_order):
            await trio.sleep_forever()
    assert kept(settings) == {"Partition 0": {"memory.clicks[0]": 9}}
    again = Notes()
    async with running(writing(again, "clicks"), settings | settings_of_order):
        await until(lambda: again.count == 2)
    assert again.by_task["Partition 0"] == [("clicks", 0, 9), ("clicks", 0, 11)]
    assert kept(settings) == {"Partition 0": {"memory.clicks[0]": 12}}


async def test_a_batch_without_any_event_is_passed(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *map(event, range(250)))
    system.remove("clicks", 0, *range(250))
    async with running(writing(Notes(), "clicks"), settings | {"task.commit.ms": "10"}):
        await until(lambda: kept(settings)["Partition 0"] == {"memory.clicks[0]": 250})
        system.put("clicks", 0, event(0))
        await until(lambda: kept(settings)["Partition 0"] == {"memory.clicks[0]": 251})


async def test_no_event_is_processed_before_the_starting_offset_is_saved(
    system: MemorySystem, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s4node.runtime.commit.task_commit.RETRY_SECONDS", 0.01)
    system.create("clicks", 2)
    for partition in range(2):
        system.put("clicks", partition, event(0))
    notes = Notes()
    written, broken = Database.write, True

    def write(self: Database, rows: list[bytes], values: list[bytes | None]) -> int:
        if broken:
            raise StateError("the disk is full")
        return written(self, rows, values)

    monkeypatch.setattr(Database, "write", write)
    async with running(writing(notes, "clicks"), settings, partitions=2) as container:
        await until(lambda: container.replay.committer.failures > 4)
        assert notes.count == 0
        broken = False
        await until(lambda: notes.count == 2)


async def test_progress_is_committed_if_other_tasks_have_processed_all_that_was_read(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    memo = Partitioner(2, hasher_named("crc32m")).memo
    of_the_other = next(name for name in "abcdefgh" if memo[name] == 1)
    app = App("notes")
    app.create_input_stream("clicks", app.create_pe(Ignore), key="user", system="memory")
    with dies(StopTest):
        async with running(app, {**settings, "task.commit.ms": "10"}, partitions=2):
            system.put("clicks", 0, *(GenericEvent(user=of_the_other) for _ in range(3)))
            await until(lambda: kept(settings).get("Partition 0") == {"memory.clicks[0]": 3})
            raise StopTest


async def test_commits_that_cannot_be_written_are_reported_and_tried_again(
    system: MemorySystem, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s4node.offsets.sqlite_file._PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("s4node.runtime.commit.task_commit.RETRY_SECONDS", 0.01)
    system.create("clicks", 1)
    notes = Notes()
    file = Path(settings["s4.state.folder"]) / "default" / "notes" / FILE
    with structlog.testing.capture_logs() as logs:
        async with running(
            writing(notes, "clicks"), {**settings, "task.commit.ms": "10"}
        ) as container:
            committer = container.replay.committer
            system.put("clicks", 0, event(0))
            await until(lambda: kept(settings).get("Partition 0") == {"memory.clicks[0]": 1})
            await until(lambda: not committer.writing)
            holder = sqlite3.connect(file, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            written = committer.commits
            system.put("clicks", 0, *map(event, range(1, 6)))
            await until(lambda: notes.count == 6)  # it is no reason to stop
            await until(lambda: committer.failures >= 3)
            assert committer.commits == written
            [(task, reason)] = container.replay.statistics().failing.items()
            assert (task, "locked" in reason) == ("Partition 0", True)
            holder.execute("ROLLBACK")
            await until(lambda: committer.commits > written)
            assert not container.replay.failing
    said = [line["event"] for line in logs if line["event"].startswith("progress")]
    assert said == [
        "progress could not be written; retrying, and a crash now would replay more",
        "progress is written again",
    ]
    assert kept(settings)["Partition 0"] == {"memory.clicks[0]": 6}


async def test_commits_that_fail_for_too_long_stop_the_container(
    system: MemorySystem, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s4node.offsets.sqlite_file._PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("s4node.runtime.commit.task_commit.RETRY_SECONDS", 0.01)
    system.create("clicks", 1)
    file = Path(settings["s4.state.folder"]) / "default" / "notes" / FILE
    more = {"task.commit.ms": "10", "task.commit.timeout.ms": "50"}
    with dies(CheckpointError, match=r"for 0.05 s \(task.commit.timeout.ms\).*locked"):
        async with running(writing(Notes(), "clicks"), settings | more):
            holder = sqlite3.connect(file, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            system.put("clicks", 0, event(0))
            await trio.sleep_forever()


async def test_a_container_whose_task_was_taken_over_stops_at_its_next_commit(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    one, other = Notes(), Notes()

    class Behind(Writer):
        async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            super().process(envelope, collector, coordinator)
            if envelope.offset == 1:  # the commit of which stops the container
                await until(lambda: other.count == 1)

    often = {**settings, "task.commit.ms": "10"}
    with dies(TaskFenced, match="has taken over task 'Partition 0'"):
        async with running(writing(one, "clicks", make=Behind), often):
            system.put("clicks", 0, event(0))
            await until(lambda: kept(settings)["Partition 0"] == {"memory.clicks[0]": 1})
            async with running(writing(other, "clicks"), often):
                system.put("clicks", 0, event(1))
                await until(lambda: other.count == 1)
                await trio.sleep_forever()
    assert other.by_task["Partition 0"] == [("clicks", 0, 1)]


async def test_progress_of_another_job_is_refused_before_anything_is_read(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    async with running(writing(Notes(), "clicks"), settings):
        pass
    more = {"job.systemstreampartition.grouper.factory": "by-ssp"}
    with dies(CheckpointError, match=r"= by-partition, which is now by-ssp; restore that value"):
        async with running(writing(Notes(), "clicks"), settings | more):
            raise AssertionError("it runs")
    with dies(CheckpointError, match=r"had 2 tasks and would have 4"):
        async with running(writing(Notes(), "clicks"), settings, partitions=4):
            raise AssertionError("it runs")
    system.create("clicks", 1)
    with dies(CheckpointError, match=r"memory.clicks had 2 partitions and has 1"):
        async with running(writing(Notes(), "clicks"), settings, partitions=2):
            raise AssertionError("it runs")
    assert system.reads == {}


async def test_each_app_and_cluster_has_progress_of_its_own(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, event(0))
    for name, cluster in (("one", "default"), ("two", "default"), ("one", "east/west")):
        notes = Notes()
        app = writing(notes, "clicks", name=name)
        async with running(app, {**settings, "s4.cluster.name": cluster}):
            await until(lambda: notes.count == 1)  # noqa: B023 - it is this turn's
    root = Path(settings["s4.state.folder"])
    folders = ["default/one", "default/two", "east%2fwest/one"]
    assert [(root / folder / FILE).exists() for folder in folders] == [True, True, True]


# -- set-up ---------------------------------------------------------------------------------------


class Notes:
    """The events that each task of an app was given: stream, partition, offset."""

    def __init__(self) -> None:
        self.by_task: dict[str, list[tuple[str, int, int]]] = {}
        self.ended: list[str] = []

    @property
    def count(self) -> int:
        return sum(map(len, self.by_task.values()))


class Writer:
    """Writes down what it is given."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.name = ""

    def init(self, config: Any, context: Any) -> None:
        self.name = context.task_name
        self.notes.by_task[self.name] = []

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        place = envelope.stream, envelope.partition, envelope.offset
        self.notes.by_task[self.name].append(place)

    def on_end_of_stream(self, collector: Any, coordinator: Any) -> None:
        self.notes.ended.append(self.name)


Ignore = handling(lambda _pe, _event: None, GenericEvent)


def writing(
    notes: Notes, *inputs: str, make: Callable[[Notes], Any] = Writer, name: str = "notes"
) -> TaskApp:
    return TaskApp(name, lambda: make(notes), inputs=[f"memory.{each}" for each in inputs])


def event(number: int) -> GenericEvent:
    return GenericEvent(number=number)


def kept(settings: dict[str, str], app: str = "notes") -> dict[str, dict[str, int]]:
    """The written offsets by partition, by task."""
    return saved_positions(Path(settings["s4.state.folder"]) / "default" / app)
