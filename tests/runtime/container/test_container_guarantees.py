"""The promises of docs/semantics.md about containers: real ones, with tasks of several inputs."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from harness import running, until
from input_systems import fresh
from saved_state import saved_positions
from several_containers import nodes

from s4node import Callback, Client, Collector, Coordinator, Envelope, GenericEvent, TaskApp
from s4node.errors import CheckpointError, ProcessingError
from s4node.offsets.task_claims import FILE
from s4node.systems.memory import MemorySystem

GROUPER = "job.systemstreampartition.grouper.factory"


def event(number: int) -> GenericEvent:
    return GenericEvent(number=number)


class Story:
    """A trace of the tasks of an app, in order, and the place of each event."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.seen: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        self.threads: set[int] = set()
        self.read: dict[str, list[str]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))


class Teller:
    """Tells what happens to it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.name = "nobody"
        story.steps.append(("made", ""))

    def init(self, config: Mapping[str, str], context: Any) -> None:
        self.name = context.task_name
        self.story.read[self.name] = sorted(map(str, context.system_stream_partitions))
        self.story.steps.append(("init", self.name))

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.story.threads.add(threading.get_ident())
        place = (envelope.stream, envelope.partition, envelope.offset)
        self.story.seen[self.name].append(place)
        self.story.steps.append(("process", self.name))

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        self.story.threads.add(threading.get_ident())
        self.story.steps.append(("window", self.name))

    def close(self) -> None:
        self.story.steps.append(("close", self.name))


def app_of(story: Story, *inputs: str, make: Callable[[Story], Any] = Teller) -> TaskApp:
    return TaskApp("told", lambda: make(story), inputs=inputs)


def views_and_metrics(system: MemorySystem) -> None:
    """The example of the container's page: one stream of 12 partitions and one of 14."""
    for stream, partitions in (("views", 12), ("metrics", 14)):
        system.create(stream, partitions)
        for partition in range(partitions):
            system.put(stream, partition, event(partition))


# -- tasks from partitions ------------------------------------------------------------------------


async def test_twelve_and_fourteen_partitions_are_fourteen_tasks(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    async with running(app_of(story, "memory.views", "memory.metrics"), settings):
        await until(lambda: story.count == 26)
    assert {name: sorted(seen) for name, seen in story.seen.items()} == {
        f"Partition {n}": [("metrics", n, 0)] + [("views", n, 0)] * (n < 12) for n in range(14)
    }


async def test_by_system_stream_partition_they_are_twenty_six(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    app = app_of(story, "memory.views", "memory.metrics")
    async with running(app, {**settings, GROUPER: "by-ssp"}):
        await until(lambda: story.count == 26)
    assert len(story.seen) == 26
    assert all(len(seen) == 1 for seen in story.seen.values())


class Pairs:
    """A grouper of one's own: two neighbouring partitions of all streams are a task."""

    def group(self, ssps: Any) -> dict[str, set[Any]]:
        groups: dict[str, set[Any]] = defaultdict(set)
        for ssp in ssps:
            groups[f"Pair {ssp.partition // 2}"].add(ssp)
        return groups


async def test_a_custom_grouper_makes_the_tasks(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    app = app_of(story, "memory.views", "memory.metrics")
    async with running(app, {**settings, GROUPER: f"{__name__}:Pairs"}):
        await until(lambda: story.count == 26)
    assert {name: len(seen) for name, seen in story.seen.items()} == {
        **{f"Pair {n}": 4 for n in range(6)},
        "Pair 6": 2,
    }


async def test_the_grouper_cannot_be_changed_once_there_is_progress(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    async with running(app_of(story, "memory.views"), settings):
        await until(lambda: story.count == 12)
    changed = app_of(Story(), "memory.views")

    async def again() -> None:
        async with running(changed, {**settings, GROUPER: "by-ssp"}):
            raise AssertionError("it must not run")

    with pytest.raises(CheckpointError, match="by-partition, which is now by-ssp; restore"):
        await again()


async def test_a_task_is_made_and_initialised_before_its_first_event_and_closed_at_the_end(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    async with running(app_of(story, "memory.views"), {**settings, "task.window.ms": "5"}):
        await until(lambda: ("window", "Partition 3") in story.steps and story.count == 12)
    names = [f"Partition {n}" for n in range(12)]
    assert sum(what == "made" for what, _ in story.steps) == 12
    for name in names:
        mine = [what for what, whose in story.steps if whose == name]
        assert mine[0] == "init"
        assert mine[-1] == "close"
        assert mine.count("init") == mine.count("close") == mine.count("process") == 1


# -- joins and broadcast --------------------------------------------------------------------------


async def test_two_streams_of_four_partitions_meet_in_four_tasks(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    for stream in ("a", "b"):
        system.create(stream, 4)
        for partition in range(4):
            system.put(stream, partition, event(partition))
    story = Story()
    async with running(app_of(story, "memory.a", "memory.b"), settings):
        await until(lambda: story.count == 8)
    assert {name: sorted(seen) for name, seen in story.seen.items()} == {
        f"Partition {n}": [("a", n, 0), ("b", n, 0)] for n in range(4)
    }


async def test_events_of_one_key_meet_whatever_numbers_of_partitions_their_streams_have(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    homes: dict[str, set[tuple[str, str]]] = defaultdict(set)

    class Note(Teller):
        def process(
            self, envelope: Envelope, collector: Collector, coordinator: Coordinator
        ) -> None:
            super().process(envelope, collector, coordinator)
            homes[envelope.key].add((envelope.stream, self.name))

    story = Story()
    app = app_of(story, make=Note)
    for stream, partitions in (("views", 12), ("metrics", 14)):
        system.create(stream, partitions)
        for n in range(200):
            system.put(stream, n % partitions, GenericEvent(user=f"user-{n % 30}"))
        app.create_input_stream(stream, key="user", types=GenericEvent, system="memory")
    async with running(app, settings) as node:
        await until(lambda: story.count == 400)
        assert len(node.tasks) == 14
    for user in range(30):
        places = homes[f"user-{user}"]
        assert {stream for stream, _ in places} == {"views", "metrics"}
        assert len({task for _, task in places}) == 1


async def test_broadcast_partitions_come_to_every_task_and_others_to_none(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 5)
    for stream in ("rules", "more.rules"):
        system.create(stream, 3)
        for partition in range(3):
            system.put(stream, partition, event(partition))
    story = Story()
    settings["task.broadcast.inputs"] = "memory.rules#[0-1], memory.more.rules#2"
    async with running(app_of(story, "memory.clicks"), settings):
        await until(lambda: story.count == 15)
        await until(lambda: len(story.read) == 5)
    for n in range(5):
        assert sorted(story.seen[f"Partition {n}"]) == [
            ("more.rules", 2, 0),
            ("rules", 0, 0),
            ("rules", 1, 0),
        ]
        assert story.read[f"Partition {n}"] == sorted(
            [f"memory.clicks[{n}]", "memory.more.rules[2]", "memory.rules[0]", "memory.rules[1]"]
        )


# -- containers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_the_number_of_containers_changes_nothing_about_the_tasks(
    count: int, system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    system.create("views", 4)
    for n in range(100):
        system.put("views", n % 4, event(n))
    story = Story()

    def make() -> TaskApp:
        return app_of(story, "memory.views")

    async with nodes(tmp_path / "tree", make, count, partitions=4, app="told", **settings) as (
        several,
        _,
    ):
        await until(lambda: story.count == 100)
        shares = [len(container.tasks) for container in several.containers.values()]
    assert shares == [4 // count] * count
    assert story.seen == {f"Partition {p}": [("views", p, n) for n in range(25)] for p in range(4)}


async def test_all_tasks_run_on_the_container_s_one_thread_unless_it_has_a_pool(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    async with running(app_of(story, "memory.views"), {**settings, "task.window.ms": "5"}):
        await until(lambda: ("window", "Partition 3") in story.steps and story.count == 12)
    assert story.threads == {threading.get_ident()}


# -- the loop -------------------------------------------------------------------------------------


async def test_inputs_of_several_systems_and_sockets_lead_into_one_loop(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    other = fresh("another place")
    settings |= {
        "systems.archive.type": "input_systems:memory",
        "systems.archive.address": "another place",
        "systems.archive.samza.offset.default": "oldest",
    }
    system.create("views", 2)
    other.create("metrics", 2)
    for partition in range(2):
        system.put("views", partition, event(0))
        other.put("metrics", partition, event(0))
    story = Story()
    app = app_of(story, "memory.views", "archive.metrics", "live.clicks")
    async with running(app, settings, partitions=2) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many([event(0), event(1)])
        assert await clicks.flush() == []
        await until(lambda: story.count == 6)
    assert sorted(stream for seen in story.seen.values() for stream, _, _ in seen) == [
        "clicks",
        "clicks",
        "metrics",
        "metrics",
        "views",
        "views",
    ]


class Waits:
    """Begins its events and ends them when the test says so; the first task's never by itself."""

    def __init__(self, held: dict[str, list[Callback]], windows: dict[str, int]) -> None:
        self.held = held
        self.windows = windows

    def init(self, config: Mapping[str, str], context: Any) -> None:
        self.name = context.task_name

    def process_async(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        self.held[self.name].append(callback)
        if self.name != "Partition 0":
            callback.complete()
        coordinator.commit()

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        self.windows[self.name] += 1


async def test_no_task_waits_for_the_callback_window_or_commit_of_another(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("views", 2)
    for n in range(60):
        system.put("views", n % 2, event(n))
    held: dict[str, list[Callback]] = defaultdict(list)
    windows: dict[str, int] = defaultdict(int)
    app = TaskApp("waits", lambda: Waits(held, windows), inputs=["memory.views"])
    async with running(app, {**settings, "task.window.ms": "5"}):
        await until(lambda: len(held["Partition 1"]) == 30 and windows["Partition 1"] >= 3)
        await until(lambda: held["Partition 0"])  # each partition begins to be read by itself
        assert len(held["Partition 0"]) == 1
        for n in range(30):
            await until(lambda n=n: len(held["Partition 0"]) == n + 1)
            held["Partition 0"][n].complete()
        await until(lambda: windows["Partition 0"] >= 3)


async def test_while_every_task_is_busy_the_loop_sleeps(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("views", 1)
    system.put("views", 0, *map(event, range(50)))
    held: dict[str, list[Callback]] = defaultdict(list)
    app = TaskApp("waits", lambda: Waits(held, defaultdict(int)), inputs=["memory.views"])
    settings["task.commit.ms"] = "0"  # nothing but a callback wakes the loop
    async with running(app, settings) as container:
        await until(lambda: len(held["Partition 0"]) == 1)
        before = container.parts.loop.turns
        await trio.testing.wait_all_tasks_blocked(0.02)  # for so long nothing at all has run
        assert container.parts.loop.turns - before < 10
        assert len(held["Partition 0"]) == 1
        for n in range(50):
            await until(lambda n=n: len(held["Partition 0"]) == n + 1)
            held["Partition 0"][n].complete()


@pytest.mark.parametrize("pool", ["0", "2"])
async def test_windows_are_called_in_good_time_while_events_keep_coming(
    pool: str, system: MemorySystem, settings: dict[str, str]
) -> None:
    processed: Counter[str] = Counter()
    windows: dict[str, list[int]] = defaultdict(list)  # how many events came before each

    class Busy(Teller):
        def process(
            self, envelope: Envelope, collector: Collector, coordinator: Coordinator
        ) -> None:
            time.sleep(0.0005)
            processed[self.name] += 1

        def window(self, collector: Collector, coordinator: Coordinator) -> None:
            windows[self.name].append(processed[self.name])

    system.create("views", 2)
    for n in range(4000):
        system.put("views", n % 2, event(n))
    app = app_of(Story(), "memory.views", make=Busy)
    settings |= {"task.window.ms": "50", "job.container.thread.pool.size": pool}
    tasks = ("Partition 0", "Partition 1")
    began = time.monotonic()
    async with running(app, settings) as node:
        await until(lambda: min(len(windows[task]) for task in tasks) >= 10)
        assert node.processed < 4000  # it has been busy all the time
        most = (time.monotonic() - began) / 0.05 + 1
        for task in tasks:
            assert len(windows[task]) <= most
            # an event takes half a millisecond or longer, so no more than 100 fit between two
            assert max(b - a for a, b in pairwise(windows[task])) < 200


# -- a container's life ---------------------------------------------------------------------------


class Diary:
    """A listener, named in the settings, that writes down what it is told."""

    told: list[str] = []  # noqa: RUF012 - the container makes the listener, the test reads here

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.told.clear()

    def before_start(self) -> None:
        self.told.append("before start")

    def on_step(self, step: str) -> None:
        self.told.append(step)

    def after_start(self) -> None:
        self.told.append("after start")

    def after_stop(self) -> None:
        self.told.append("after stop")

    def after_failure(self, error: BaseException) -> None:
        self.told.append(f"after failure: {error}")


STEPS = [
    "before start",
    "offsets",
    "readers",
    "reporters",
    "commit timer",
    "window timer",
    "tasks",
    "loop",
    "after start",
]


async def test_listeners_are_told_of_each_step_of_the_start_and_of_one_end(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    settings["container.lifecycle.listeners"] = f"{__name__}:Diary"
    async with running(app_of(story, "memory.views"), settings):
        await until(lambda: story.count == 12)
    assert Diary.told == [*STEPS, "after stop"]


async def test_a_task_that_raises_ends_the_container_in_a_failure_that_is_told_once(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Broken(Teller):
        def process(
            self, envelope: Envelope, collector: Collector, coordinator: Coordinator
        ) -> None:
            raise ZeroDivisionError("no")

    system.create("views", 3)
    story = Story()
    settings["container.lifecycle.listeners"] = f"{__name__}:Diary"

    async def run() -> None:
        async with running(app_of(story, "memory.views", make=Broken), settings):
            system.put("views", 1, event(0))
            await trio.sleep_forever()

    with pytest.raises(ProcessingError, match=r"process of task 'Partition 1' .*views\[1\]@0"):
        await run()
    assert Diary.told[:-1] == STEPS
    assert "ZeroDivisionError: no" in Diary.told[-1]
    closed = sorted(name for what, name in story.steps if what == "close")
    assert closed == ["Partition 0", "Partition 1", "Partition 2"]


# -- members that stop -----------------------------------------------------------------------------


class Lingering(Teller):
    """Its windows take longer than the time between two, and all tasks' together much longer."""

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        super().window(collector, coordinator)
        time.sleep(0.02)


class LingeringAsync(Lingering):
    """Its events wait."""

    async def process(  # type: ignore[override]
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator
    ) -> None:
        await trio.lowlevel.checkpoint()
        super().process(envelope, collector, coordinator)


LINGERING = pytest.mark.parametrize("make", [Lingering, LingeringAsync], ids=["plain", "async"])


@LINGERING
async def test_events_get_their_turn_between_windows_that_take_all_the_time(
    make: Callable[[Story], Any], system: MemorySystem, settings: dict[str, str]
) -> None:
    views_and_metrics(system)
    story = Story()
    settings |= {"task.window.ms": "5", "task.max.concurrency": "4"}
    async with running(app_of(story, "memory.views", make=make), settings):
        await until(lambda: ("window", "Partition 3") in story.steps)
        for n in range(40):
            system.put("views", 3, event(n))
        before = len(story.steps)
        await until(lambda: len(story.seen["Partition 3"]) == 41, seconds=20)
        await until(lambda: ("window", "Partition 3") in story.steps[before:])


@pytest.mark.long
@LINGERING
async def test_windows_that_take_all_the_time_do_not_keep_members_from_stopping(
    make: Callable[[Story], Any],
    system: MemorySystem,
    settings: dict[str, str],
    tmp_path: Path,
) -> None:
    system.create("views", 4)
    story = Story()

    def made() -> TaskApp:
        return app_of(story, "memory.views", make=make)

    settings |= {"task.window.ms": "5", "task.shutdown.ms": "600000"}
    async with nodes(tmp_path / "tree", made, 2, partitions=4, app="told", **settings):
        for n in range(100):
            system.put("views", n % 4, event(n))
        await until(lambda: story.count >= 8)


async def test_a_member_that_is_stopped_while_it_takes_over_a_partition_ends_in_order(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    system.create("views", 4)
    for n in range(100):
        system.put("views", n % 4, event(n))
    story = Story()

    def make() -> TaskApp:
        return app_of(story, "memory.views")

    async with nodes(tmp_path / "tree", make, 2, partitions=4, app="told", **settings) as (
        both,
        _,
    ):
        await until(lambda: story.count == 100)
        path = tmp_path / "state" / "default" / "told" / FILE
        heir = both.containers["n0"]
        owned = set(heir.tasks)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nobody can claim a task meanwhile
            both.kill("n1")
            await until(lambda: len(heir.tasks) == 4, "it takes over")
            heir.stop()
            await trio.sleep(0.6)  # it has had the time to work off everything, and commits
            other.execute("ROLLBACK")
    kept = saved_positions(path.parent)
    assert kept.keys() == {f"Partition {n}" for n in range(4)}
    for n in owned:
        assert kept[f"Partition {n}"] == {f"memory.views[{n}]": 25}
