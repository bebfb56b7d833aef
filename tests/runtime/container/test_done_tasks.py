"""Tasks that are done: told of the end of their inputs, or by their own word. It is part of their
commits, whoever has them next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import running, until
from several_containers import Nodes, nodes

from s4node import GenericEvent
from s4node.app.stream_task import TaskApp
from s4node.systems.memory import MemorySystem

SETTINGS = {"task.commit.ms": "20"}
LAST = 99


def end(system: MemorySystem, partition: int) -> None:
    system.end_partition("clicks", partition)
    system.wake_all()


def last(system: MemorySystem, partition: int) -> None:
    system.put("clicks", partition, GenericEvent(number=LAST))


BOTH = pytest.mark.parametrize("finish", [end, last], ids=["its inputs end", "it says so"])


@BOTH
async def test_tasks_that_are_done_are_not_called_again_where_another_container_has_them(
    system: MemorySystem,
    settings: dict[str, str],
    tmp_path: Path,
    finish: Callable[[MemorySystem, int], None],
) -> None:
    calls = Calls()
    system.create("clicks", 4)
    for partition in range(4):
        system.put("clicks", partition, *(GenericEvent(number=n) for n in range(10)))
    async with nodes(
        tmp_path / "cluster", lambda: counting(calls), 2, partitions=4, **settings
    ) as (all_nodes, _):
        mine, others = await owned(all_nodes)
        for partition in mine:
            finish(system, partition)
        await until(lambda: "n0" not in all_nodes.running, "the first container ends by itself")
        second = all_nodes.containers["n1"]
        await until(lambda: len(second.tasks) == 4, "the second one has its tasks")
        for partition in others:
            finish(system, partition)
        await until(lambda: "n1" not in all_nodes.running, "the second container ends by itself")
    every = dict.fromkeys(map(name, range(4)), 1)
    assert calls.started == every
    assert calls.ended == (every if finish is end else {})


@BOTH
async def test_a_task_that_was_done_before_a_kill_stays_done_and_the_job_ends(
    system: MemorySystem,
    settings: dict[str, str],
    tmp_path: Path,
    finish: Callable[[MemorySystem, int], None],
) -> None:
    calls = Calls()
    system.create("clicks", 2)

    def make() -> TaskApp:
        return counting(calls)

    async with nodes(tmp_path / "first", make, 1, partitions=2, **settings) as (all_nodes, _):
        container = all_nodes.containers["n0"]
        finish(system, 0)
        await until(lambda: calls.ended.total() + calls.processed.total() == 1)
        assert container.replay.keeps
        committer = container.replay.committer
        await until(lambda: not committer.changed(container.tasks[0]), "it has committed")
        all_nodes.kill("n0")
    async with nodes(tmp_path / "second", make, 1, partitions=2, **settings) as (all_nodes, _):
        finish(system, 1)
        await until(lambda: "n0" not in all_nodes.running, "the job ends by itself")
    assert calls.started == {name(0): 1, name(1): 2}
    assert calls.ended == ({name(0): 1, name(1): 1} if finish is end else {})


async def test_a_job_that_has_ended_itself_begins_anew_when_it_is_started_again(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    calls = Calls()
    system.create("clicks", 1)
    for life in range(2):
        last(system, 0)
        async with running(counting(calls), settings):
            await until(lambda: calls.processed.total() == life + 1)  # noqa: B023 - this one's
    assert calls.started == {name(0): 2}


# -- set-up ---------------------------------------------------------------------------------------


class Calls:
    """The calls of tasks, by their names."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.processed: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()


class Counting:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.name = ""

    def init(self, config: Any, context: Any) -> None:
        self.name = context.task_name
        self.calls.started[self.name] += 1

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.calls.processed[self.name] += 1
        if envelope.message.number == LAST:
            coordinator.shutdown()

    def on_end_of_stream(self, collector: Any, coordinator: Any) -> None:
        self.calls.ended[self.name] += 1


def counting(calls: Calls) -> TaskApp:
    return TaskApp("counting", lambda: Counting(calls), inputs=["memory.clicks"])


def name(partition: int) -> str:
    return f"Partition {partition}"


async def owned(all_nodes: Nodes) -> tuple[list[int], list[int]]:
    """The partitions of the first container and of the second, two each."""
    first, second = all_nodes.containers.values()
    await until(lambda: len(first.tasks) == len(second.tasks) == 2)
    return list(first.tasks), list(second.tasks)
