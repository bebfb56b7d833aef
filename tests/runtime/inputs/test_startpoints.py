"""Startpoints: asked for while a job is stopped or runs, taken over task by task, and consumed."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
import trio
import trio.testing
from harness import ANY_PORT, run_s4, running, s4_process, until
from log_bench import append, bench

from s4node import Config, Container, GenericEvent, tokens
from s4node.app.stream_task import TaskApp
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.coordination.startpoint_store import StartpointStore
from s4node.cluster.coordination.state_coordination import FOLDER
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import JobRuns, StartpointError
from s4node.net.wire import frame as wire
from s4node.offsets.job_lock import JobLock, runs, stopped
from s4node.offsets.startpoint import LARGEST, Oldest, Specific, Startpoint, Timestamp, Upcoming
from s4node.offsets.startpoint_fan_out import EXPIRY_MS, Place, Request, Requests
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import now_ms
from s4node.state.job import folder_of, identity_of
from s4node.state.remote_job import remote_job_of
from s4node.systems.memory import MemorySystem

NOW = 1_700_000_000_000


# -- the store ------------------------------------------------------------------------------------


def test_requested_startpoints_wait_in_a_file_apart_from_progress(
    store: Store, tmp_path: Path
) -> None:
    store.put([CLICKS], Timestamp(5), NOW)
    store.put([CLICKS], Specific(7), NOW, "Partition 0")
    other = Store(tmp_path)  # another process would see it as well
    assert {(r.task, r.startpoint) for r in other.requests()} == {
        ("", Timestamp(5)),
        ("Partition 0", Specific(7)),
    }
    assert (tmp_path / FOLDER / "tree.sqlite").exists()
    assert not list(tmp_path.glob("progress*"))


@pytest.mark.parametrize(("kind", "least"), [(Timestamp, -LARGEST), (Specific, 0)])
def test_a_number_that_is_no_offset_or_time_is_refused_where_a_startpoint_is_made_or_read(
    store: Store, kind: Any, least: int
) -> None:
    assert LARGEST == wire.MAX_NUMBER
    assert kind(LARGEST) != kind(least)
    for number in (2**62, least - 1):
        with pytest.raises(StartpointError, match=f"{number} is out of range: {least} to "):
            kind(number)
    store.put([CLICKS], kind(5), NOW)
    with closing(sqlite3.connect(store.place / "tree.sqlite")) as database, database:
        query = "SELECT data FROM entry WHERE path LIKE '/startpoints/%'"
        ((data,),) = database.execute(query).fetchall()
        body = data.replace(b":5}", f":{least - 1}}}".encode())
        assert str(least - 1).encode() in body
        database.execute("UPDATE entry SET data = ? WHERE path LIKE '/startpoints/%'", (body,))
    with pytest.raises(StartpointError, match=r"the startpoints in .*cannot be read"):
        store.requests()


def test_a_later_request_takes_the_place_of_the_one_before(store: Store) -> None:
    store.put([CLICKS], Oldest(), NOW)
    store.put([CLICKS], Upcoming(), NOW)
    assert [r.startpoint for r in store.requests()] == [Upcoming()]


def test_the_later_of_two_requests_holds_although_the_clock_went_backwards(
    store: Store,
) -> None:
    store.put([CLICKS], Oldest(), NOW, "Partition 0")
    store.put([CLICKS], Specific(3), NOW - 60_000)
    pending = store.fan_out({"Partition 0": [CLICKS]}, NOW - 60_000).pending
    assert found(pending["Partition 0"]) == [("clicks[0]", Specific(3))]


def test_a_fan_out_keeps_what_is_pending_for_other_partitions(store: Store) -> None:
    """A later start must not lose what a task has been given and has not read yet."""
    views = ("log", "views", 0)
    tasks = {"Partition 0": [CLICKS, views]}
    store.put([CLICKS], Specific(3), NOW)
    store.fan_out(tasks, NOW)
    store.put([views], Oldest(), NOW + 1)
    store.fan_out(tasks, NOW + 1)
    assert found(store.take("Partition 0", ())) == [
        ("clicks[0]", Specific(3)),
        ("views[0]", Oldest()),
    ]


@pytest.mark.parametrize("stream", ["foo.bar", "a.7.b", "7", "a.0", "x[1]", "clicks.Partition 0"])
def test_the_stream_of_a_startpoint_may_have_any_name(store: Store, stream: str) -> None:
    place = ("log", stream, 0)
    store.put([place], Specific(1), NOW)
    store.put([("log", "a", 7), CLICKS], Oldest(), NOW)
    store.fan_out({"Partition 0": [place]}, NOW)
    (request,) = store.take("Partition 0", ())
    assert (request.place, request.startpoint) == (place, Specific(1))
    assert {r.place for r in store.requests()} == {("log", "a", 7), CLICKS}


def test_a_request_that_has_expired_is_never_applied_and_can_be_replaced(
    store: Store,
) -> None:
    store.put([CLICKS], Oldest(), NOW)
    late = NOW + EXPIRY_MS
    assert store.fan_out({"Partition 0": [CLICKS]}, late).pending == {}
    store.put([CLICKS], Specific(2), late)
    assert store.fan_out({"Partition 0": [CLICKS]}, late).pending != {}


def test_consumed_startpoints_are_not_given_again_and_are_removed(store: Store) -> None:
    store.put([CLICKS], Oldest(), NOW)
    store.fan_out({"Partition 0": [CLICKS], "Partition 1": [CLICKS]}, NOW)
    (request,) = store.take("Partition 0", ())
    assert store.take("Partition 0", {request.id}) == ()
    assert [task for task, _ in store.pending()] == ["Partition 1"]


def test_deleting_a_startpoint_of_a_task_leaves_those_for_all_tasks(store: Store) -> None:
    store.put([CLICKS], Oldest(), NOW)
    store.put([CLICKS], Specific(1), NOW, "Partition 0")
    assert store.delete([CLICKS], "Partition 0") == 1
    assert [r.startpoint for r in store.requests()] == [Oldest()]
    store.fan_out({"Partition 0": [CLICKS], "Partition 1": [CLICKS]}, NOW)
    assert store.delete([CLICKS], "Partition 1") == 1
    assert [task for task, _ in store.pending()] == ["Partition 0"]
    assert store.delete() == 1
    assert store.pending() == []


def test_a_damaged_store_and_an_unwritable_one_are_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.place.mkdir()
    tree = store.place / "tree.sqlite"
    tree.write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(StartpointError, match=r"it is damaged: stop all nodes and delete"):
        store.requests()
    shutil.rmtree(store.place)
    store.place.touch()
    with pytest.raises(StartpointError, match=r"cannot be used .*fix its permissions"):
        store.put([CLICKS], Oldest(), NOW)


# -- whether a job runs ---------------------------------------------------------------------------


def test_a_job_starts_with_its_first_container_and_ends_with_its_last(tmp_path: Path) -> None:
    starts: list[str] = []

    def enter(lock: JobLock, name: str) -> None:
        if lock.hold():
            starts.append(name)
        lock.enter()

    one, other = JobLock(tmp_path), JobLock(tmp_path)
    assert not runs(tmp_path)
    assert not list(tmp_path.iterdir())
    enter(one, "one")
    enter(other, "other")
    one.leave()
    assert runs(tmp_path)
    enter(one, "one again")
    with pytest.raises(JobRuns, match="is running; stop all"), stopped(tmp_path):
        pass
    one.leave()
    other.leave()
    assert not runs(tmp_path)
    enter(other, "other again")
    other.leave()
    assert starts == ["one", "other again"]


async def test_a_container_waits_while_somebody_needs_the_job_not_to_run(tmp_path: Path) -> None:
    before = JobLock(tmp_path)
    before.hold()
    before.enter()
    before.leave()
    order: list[str] = []

    def enter() -> None:
        JobLock(tmp_path).hold()
        order.append("started")

    async with trio.open_nursery() as nursery:
        with stopped(tmp_path):
            nursery.start_soon(trio.to_thread.run_sync, enter)
            await trio.testing.wait_all_tasks_blocked(0.05)
            order.append("let go")
    assert order == ["let go", "started"]


# -- in a container -------------------------------------------------------------------------------


class Job:
    """An app whose tasks write down what they are given, and the folder that it is kept in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "systems.memory.type": "input_systems:memory",
            "systems.memory.address": str(folder),
            "s4.state.folder": str(folder),
            "systems.memory.samza.offset.default": "oldest",
            "task.commit.ms": "0",
        }
        self.home = folder_of(str(folder), "default", "notes")
        self.seen: list[tuple[str, str, int]] = []
        self.wishes: dict[SystemStreamPartition, Startpoint] = {}
        self.commit_at: set[int] = set()
        self.at_init: Callable[[], None] = lambda: None

    def app(self, *inputs: str) -> TaskApp:
        self.seen.clear()
        return TaskApp("notes", lambda: Task(self), inputs=[f"memory.{one}" for one in inputs])

    def ask(
        self, startpoint: Startpoint, stream: str = "clicks", partition: int = 0, task: str = ""
    ) -> None:
        Store(self.home).put([("memory", stream, partition)], startpoint, now_ms(), task)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many startpoints are asked for, and pending."""
        store = Store(self.home)
        return len(store.requests()), len(store.pending())

    def offsets(self, stream: str = "clicks", task: str = "Partition 0") -> list[int]:
        return [offset for owner, name, offset in self.seen if (owner, name) == (task, stream)]

    async def run(self, *inputs: str, events: int, **more: str) -> None:
        """Run it until so many events were given, and stop it in order."""
        async with running(self.app(*inputs), self.settings | more):
            await until(lambda: len(self.seen) >= events)


class Task:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.name = ""

    def init(self, config: Any, context: Any) -> None:
        self.name = context.task_name
        self.job.at_init()
        for ssp, startpoint in self.job.wishes.items():
            context.set_starting_offset(ssp, startpoint)

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.job.seen.append((self.name, envelope.stream, envelope.offset))
        if envelope.offset in self.job.commit_at:
            coordinator.commit()


@pytest.fixture
def job(tmp_path: Path, system: MemorySystem) -> Job:
    system.create("clicks", 1)
    system.put("clicks", 0, *(GenericEvent(number=n) for n in range(10)), created_ms=NOW)
    return Job(tmp_path)


@pytest.mark.parametrize(
    ("startpoint", "first"),
    [
        (Oldest(), 0),
        (Specific(4), 4),
        (Timestamp(NOW + 1), 10),
        (Timestamp(NOW), 0),
        (Upcoming(), 11),
    ],
)
async def test_a_task_begins_at_the_startpoint_whatever_its_checkpoint_says(
    job: Job, system: MemorySystem, startpoint: Startpoint, first: int
) -> None:
    await job.run("clicks", events=10)
    job.ask(startpoint)
    system.put("clicks", 0, GenericEvent(number=10), created_ms=NOW + 5)
    async with running(job.app("clicks"), job.settings) as container:
        await until(lambda: _begun(container))
        system.put("clicks", 0, GenericEvent(number=11))
        await until(lambda: 11 in job.offsets())
    assert job.offsets() == list(range(first, 12))
    assert job.waiting == (0, 0)
    await job.run("clicks", events=0)
    assert job.offsets() == []  # it was for one start


def _begun(container: Container, stream: str = "clicks") -> bool:
    assert container.replay.keeps
    progress = container.replay.consumers.progress[0]
    return SystemStreamPartition("memory", stream, 0) in progress


async def test_a_startpoint_comes_before_a_reset_and_after_what_the_task_itself_says(
    job: Job,
) -> None:
    more = {"streams.clicks.samza.reset.offset": "true"}
    job.ask(Specific(6))
    await job.run("clicks", events=4, **more)
    assert job.offsets() == [6, 7, 8, 9]
    await job.run("clicks", events=10, **more)
    assert job.offsets() == list(range(10))  # reset again

    job.ask(Specific(6))
    job.wishes[SystemStreamPartition("memory", "clicks", 0)] = Specific(8)
    await job.run("clicks", events=2)
    assert job.offsets() == [8, 9]
    assert job.waiting == (0, 0)  # it is over, and does not come up when the task says no more
    job.wishes.clear()
    await job.run("clicks", events=0)
    assert job.offsets() == []


async def test_a_startpoint_of_a_partition_is_for_all_tasks_and_one_of_a_task_for_it(
    job: Job, system: MemorySystem
) -> None:
    system.create("clicks", 2)
    system.create("rules", 1)
    system.put("rules", 0, *(GenericEvent(number=n) for n in range(5)))
    more = {"task.broadcast.inputs": "memory.rules#0"}
    await job.run("clicks", events=20, **more)

    job.ask(Specific(3), "rules")
    job.ask(Specific(1), "rules", task="Partition 1")
    await job.run("clicks", events=6, **more)
    assert job.offsets("rules", "Partition 0") == [3, 4]
    assert job.offsets("rules", "Partition 1") == [1, 2, 3, 4]
    assert job.offsets() == []
    assert job.waiting == (0, 0)


async def test_a_startpoint_is_over_once_its_offset_is_committed_though_nothing_was_processed(
    job: Job, system: MemorySystem
) -> None:
    await job.run("clicks", events=10)
    job.ask(Upcoming())
    async with running(job.app("clicks"), job.settings):
        await until(lambda: job.waiting == (0, 0))
    system.put("clicks", 0, GenericEvent(number=10))
    await job.run("clicks", events=1)
    assert job.offsets() == [10]


async def test_a_startpoint_is_consumed_by_a_commit_even_if_no_offset_has_changed(
    job: Job,
) -> None:
    await job.run("clicks", events=10)
    job.ask(Specific(7))
    await job.run("clicks", events=3)
    assert job.offsets() == [7, 8, 9]
    assert job.waiting == (0, 0)
    await job.run("clicks", events=0)
    assert job.offsets() == []


async def test_a_startpoint_that_is_set_while_the_job_runs_is_for_its_next_start(job: Job) -> None:
    async with running(job.app("clicks"), job.settings):
        await until(lambda: len(job.seen) == 10)
        job.ask(Specific(5))
    assert job.offsets() == list(range(10))
    assert job.waiting == (1, 0)
    await job.run("clicks", events=5)
    assert job.offsets() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("startpoint", "said"),
    [
        (
            Specific(11),
            r"startpoint offset 11 .*memory\.clicks\[0\].*'Partition 0'.*has no offset 11",
        ),
        (Specific(1), r"startpoint offset 1 .*has no offset 1: it has 3 to 10; start"),
    ],
)
async def test_an_impossible_startpoint_stops_the_start_until_it_is_removed(
    job: Job, system: MemorySystem, startpoint: Startpoint, said: str, tmp_path: Path
) -> None:
    system.trim("clicks", 0, 3)
    job.ask(startpoint)
    for _ in range(2):  # it is not dropped
        with pytest.raises(StartpointError, match=said) as told:
            async with running(job.app("clicks"), job.settings):
                await trio.sleep_forever()
    assert job.seen == []
    command = str(told.value).rpartition("delete it: s4 ")[2]
    done = await run_s4(*shlex.split(command), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "1 startpoint of notes deleted\n")
    await job.run("clicks", events=7)
    assert job.offsets() == list(range(3, 10))


async def test_unread_and_expired_startpoints_are_logged_at_the_start_with_the_fix(
    job: Job, system: MemorySystem, tmp_path: Path
) -> None:
    system.create("clicks", 2)
    store = Store(job.home)
    store.put([("memory", "views", 0)], Oldest(), now_ms())
    store.put([("memory", "clicks", 0)], Specific(5), now_ms() - EXPIRY_MS)
    store.put([("memory", "clicks", 0)], Oldest(), now_ms(), "Nope")
    store.put([("memory", "clicks", 0)], Oldest(), now_ms(), "Partition 1")
    with structlog.testing.capture_logs() as logs:
        await job.run("clicks", events=10)
    told = {line["reason"]: line for line in logs if line["event"] == "no task takes a startpoint"}
    assert told.keys() == {
        "no task reads it",
        "there is no task 'Nope'",
        "task 'Partition 1' does not read it",
        "it has expired",
    }
    assert job.waiting == (4, 0)
    for left, reason in ((3, "there is no task 'Nope'"), (2, "no task reads it")):
        words = shlex.split(told[reason]["fix"].partition("delete it: s4 ")[2])
        done = await run_s4(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "1 startpoint of notes deleted\n")
        assert job.waiting == (left, 0)


async def test_a_job_without_startpoints_has_no_file_for_them(job: Job) -> None:
    await job.run("clicks", events=10)
    assert not (job.home / FOLDER).exists()


async def test_a_startpoint_that_cannot_be_removed_is_ignored_at_the_next_start(job: Job) -> None:
    await job.run("clicks", events=10)
    job.ask(Specific(7))

    def lock() -> None:
        (job.home / FOLDER).rename(job.home / "away")
        (job.home / FOLDER).touch()

    job.at_init = lock
    with structlog.testing.capture_logs() as logs:
        async with running(job.app("clicks"), job.settings):
            await until(lambda: len(job.seen) == 3)
    assert any("could not be removed" in line["event"] for line in logs)
    (job.home / FOLDER).unlink()
    (job.home / "away").rename(job.home / FOLDER)
    job.at_init = lambda: None
    assert job.waiting == (0, 1)
    await job.run("clicks", events=0)
    assert job.offsets() == []
    assert job.waiting == (0, 0)


# -- several nodes ------------------------------------------------------------------------------


async def test_a_startpoint_that_was_consumed_on_one_node_has_no_part_in_a_take_over_by_another(
    job: Job, system: MemorySystem, tmp_path: Path
) -> None:
    """Two nodes have state folders of their own, and what their tasks keep at a URL."""
    system.create("clicks", 2)
    system.put("clicks", 1, *(GenericEvent(number=n) for n in range(10)))
    coordination = FolderCoordination(tmp_path / "cluster", session_timeout=5)
    containers: dict[str, Container] = {}
    scopes = {"a": trio.CancelScope(), "b": trio.CancelScope()}

    async def run(name: str) -> None:
        config = Config.from_values(
            {
                **job.settings,
                "task.commit.ms": "20",
                "s4.state.folder": str(tmp_path / name),
                "s4.state.url": f"file://{tmp_path / 'shared'}",
                "s4.coordination.folder": str(tmp_path / "cluster"),
                "s4.listener.address": ANY_PORT,
                "s4.watchdog.ms": "0",
            }
        )
        app = TaskApp("notes", lambda: Task(job), inputs=["memory.clicks"])
        with scopes[name]:
            async with coordination.session(name) as session:
                enrolment = Enrolment(session, "default", "notes", name, 2)
                containers[name] = Container(app, config, node=name, enrolment=enrolment)
                await containers[name].run()

    def committed(*names: str) -> list[int | None]:
        progress = [containers[name].replay.consumers.progress.values() for name in names]
        return [one.committed for each in progress for task in each for one in task.values()]

    shared = {"s4.state.url": "file:///s", "s4.coordination.folder": str(tmp_path / "cluster")}
    folder = folder_of(str(tmp_path / "b"), "default", "notes")
    url = f"file://{tmp_path / 'shared'}"
    remote_job = remote_job_of(Config.from_values({"s4.state.url": url}), folder)
    identity_of(folder, remote_job)
    store = Store(folder, **shared)
    store.put([("memory", "clicks", 0), ("memory", "clicks", 1)], Oldest(), now_ms())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "a")
            nursery.start_soon(run, "b")
            await until(
                lambda: (
                    len(containers) == 2
                    and all(hasattr(c.replay, "consumers") for c in containers.values())
                )
            )
            await until(lambda: len(job.seen) == 20)
            await until(lambda: committed("a", "b") == [10, 10])
            containers["a"].abandon()
            scopes["a"].cancel()
            await until(lambda: committed("b") == [10, 10])
            system.put("clicks", 0, GenericEvent(number=10))
            system.put("clicks", 1, GenericEvent(number=10))
            await until(lambda: committed("b") == [11, 11])
            containers["b"].stop()
    assert sorted((task, offset) for task, _, offset in job.seen) == [
        (f"Partition {partition}", offset) for partition in range(2) for offset in range(11)
    ]


@pytest.mark.long
async def test_a_reset_is_refused_on_one_node_while_the_job_runs_on_another(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        arguments = [*it.arguments("tasks"), "--nodes", "2"]
        await append(it.log, 0, 100)
        async with s4_process(*arguments, cwd=tmp_path) as nodes:
            await until(lambda: len(it.seen) == 100)
            nodes.signal(signal.SIGTERM)
            assert await nodes.wait() == 0
        shutil.copytree(tmp_path / "state", tmp_path / "other")
        here = ("-p", f"s4.state.folder={tmp_path / 'other'}")
        reset = ("state", "reset", "tasks", *here)
        async with s4_process(*arguments, cwd=tmp_path) as nodes:
            await until(lambda: "see it:  s4 top" in nodes.errors)  # the last of what it tells
            (folder,) = [line.split()[5] for line in nodes.stderr if "see it:  s4 top" in line]
            cluster = ("-p", f"s4.coordination.folder={folder}")  # as if it were another machine
            refused = await run_s4(*reset, *cluster, cwd=tmp_path)
            assert refused.returncode == 1
            assert "the job 'default.tasks' is running, in " in refused.stderr
            nodes.signal(signal.SIGTERM)
            assert await nodes.wait() == 0
        taken = await run_s4(*reset, "--accept-loss", *cluster, cwd=tmp_path)
        assert taken.returncode == 0, taken.stderr


@pytest.mark.long
async def test_commands_see_a_job_whose_containers_one_command_has_started(tmp_path: Path) -> None:
    """They have another state folder, and know its URL only."""
    async with bench(tmp_path) as it:
        more = {
            "s4.state.url": f"file://{tmp_path / 'shared'}",
            "s4.coordination.folder": str(tmp_path / "cluster"),
            "task.commit.ms": "20",
        }
        arguments = [*it.arguments("tasks", **more), "--nodes", "2"]
        more["s4.state.folder"] = str(tmp_path / "other")
        here = [word for each in more.items() for word in ("-p", "=".join(each))]

        async def s4(*words: str) -> tuple[int, str, str]:
            done = await run_s4(*words, *here, cwd=tmp_path)
            return done.returncode, done.stdout, done.stderr

        async def life(events: int, *commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
            async with s4_process(*arguments, cwd=tmp_path) as nodes:
                await until(lambda: len(it.seen) == events)
                said = [await s4(*each) for each in commands]
                nodes.signal(signal.SIGTERM)
                assert await nodes.wait() == 0
            return said

        await append(it.log, 0, 100)
        await life(100)
        reset = ("state", "reset", "tasks")
        places = ("tasks", "log.clicks", "--all-partitions")
        refused, told = await life(100, reset, ("startpoint", "set", *places, "--offset", "40"))
        assert refused[0] == 1
        assert "the job 'default.tasks' is running, in " in refused[2]
        assert "tasks is running and is not moved" in told[2]
        assert (await s4(*reset, "--accept-loss"))[0] == 0
        await life(120)
        assert [int(n) for _, p, n in it.seen[100:] if p == "0"] == list(range(40, 50))
        assert (await s4("startpoint", "show", "tasks", "--json"))[1] == "[]\n"


# -- killed at every step -------------------------------------------------------------------------

# writes each event down for good before it counts as processed, and commits at the 30th
COMMITTING = """
import os
from s4node.app.stream_task import TaskApp

class Write:
    def init(self, config, context):
        self.file = os.open(config["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.count = 0

    def process(self, envelope, collector, coordinator):
        os.write(self.file, f"{os.getpid()} {envelope.partition} {envelope.offset}\\n".encode())
        self.count += 1
        if self.count == 30:
            coordinator.commit()

app = TaskApp("tasks", Write, inputs=["log.clicks"])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        ("startpoint.fanning", [], range(40, 100)),
        ("startpoint.taken", [], range(40, 100)),
        ("commit.write", [], range(40, 100)),
        ("startpoint.removed", [], range(40, 100)),
        ("commit.acknowledged:2", range(40, 70), range(70, 100)),
    ],
)
async def test_a_job_that_is_killed_at_any_step_goes_back_once_and_skips_nothing(
    tmp_path: Path, step: str, before: range, after: range
) -> None:
    async with bench(tmp_path, partitions=1) as it:
        await append(it.log, 0, 100, partitions=1)
        arguments = it.arguments("tasks", **{"task.commit.ms": "0"})
        (tmp_path / "tasks_app.py").write_text(COMMITTING)
        state = ("-p", f"s4.state.folder={tmp_path / 'state'}")

        async def life(step: str, events: int) -> list[int]:
            """Run it until it dies, or has seen so many events and is stopped in order."""
            known = len(it.seen)
            async with s4_process(*arguments, cwd=tmp_path, ready=False, fault=step) as process:
                if step:
                    assert await process.wait() == -signal.SIGKILL
                else:
                    await until(lambda: process.readiness and len(it.seen) - known >= events)
                    process.signal(signal.SIGTERM)
                    assert await process.wait() == 0, process.errors
            return [int(offset) for _, _, offset in it.seen[known:]]

        assert await life("", 100) == list(range(100))
        done = await run_s4(
            "startpoint", "set", "tasks", "log.clicks[0]", "--offset", "40", *state, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr

        died = await life(step, 0)
        assert died[: len(before)] == list(before)
        if step == "startpoint.removed":  # it is committed, so reading has begun, maybe
            assert died == list(range(40, 40 + len(died)))
        elif not before:
            assert died == []
        assert await life("", len(after)) == list(after)
        assert await life("", 0) == []
        done = await run_s4("startpoint", "show", "tasks", "--json", *state, cwd=tmp_path)
        assert done.stdout == "[]\n"


@pytest.mark.long
@pytest.mark.parametrize("wanted", [["--upcoming"], ["--timestamp", "2100-01-01T00:00:00Z"]])
async def test_a_startpoint_means_one_offset_although_its_task_is_killed_before_a_commit(
    tmp_path: Path, wanted: list[str]
) -> None:
    """The next start must not find another place for what was upcoming."""
    async with bench(tmp_path, partitions=1) as it:
        await append(it.log, 0, 10, partitions=1)
        arguments = it.arguments("tasks", **{"task.commit.ms": "0"})
        state = ("-p", f"s4.state.folder={tmp_path / 'state'}")
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: len(it.seen) == 10)
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0, process.errors
        set_ = await run_s4("startpoint", "set", "tasks", "log.clicks[0]", *wanted, *state,
                            cwd=tmp_path)  # fmt: skip
        assert set_.returncode == 0, set_.stderr
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: "input resumes" in process.errors)
            await append(it.log, 10, 60, partitions=1)
            await until(lambda: len(it.seen) == 60)
            await process.kill()
        await append(it.log, 60, 70, partitions=1)
        async with s4_process(*arguments, cwd=tmp_path):
            await until(lambda: it.seen[-1][2] == "69")
        assert [int(offset) for _, _, offset in it.seen[60:]] == list(range(10, 70))


BEGINNING = """
from s4node import Oldest
from tasks_app import Write as Plain
from s4node.app.stream_task import TaskApp

class Write(Plain):
    def init(self, config, context):
        super().init(config, context)
        for ssp in context.system_stream_partitions:
            context.set_starting_offset(ssp, Oldest())

app = TaskApp("tasks", Write, inputs=["log.clicks"])
"""


@pytest.mark.long
@pytest.mark.parametrize("said", ["by the task", "by a reset"])
async def test_starting_offsets_of_tasks_and_resets_apply_to_starts_and_not_to_takeovers(
    tmp_path: Path, said: str
) -> None:
    async with bench(tmp_path, partitions=4) as it:
        more = {"task.commit.ms": "20", "s4.coordination.folder": str(tmp_path / "cluster")}
        if said == "by a reset":
            more["streams.clicks.samza.reset.offset"] = "true"
        arguments = [*it.arguments("tasks", **more), "--nodes", "2"]
        if said == "by the task":
            (tmp_path / "beginning_app.py").write_text(BEGINNING)
            arguments[1] = str(tmp_path / "beginning_app.py")
        await append(it.log, 0, 400, partitions=4)

        async def life(there: int, more: int) -> list[tuple[int, int]]:
            """Have one of two containers die when all is committed, and ``more`` come."""
            known = len(it.seen)
            async with s4_process(*arguments, cwd=tmp_path) as nodes:
                await until(lambda: len(it.seen) - known == there)
                await until(lambda: set(it.offsets("tasks").values()) == {there // 4})
                os.kill(int(it.seen[-1][0]), signal.SIGKILL)
                await append(it.log, there, there + more, partitions=4)
                await until(lambda: set(it.offsets("tasks").values()) == {(there + more) // 4})
                nodes.signal(signal.SIGTERM)
                assert await nodes.wait() == 0
            return sorted((int(partition), int(offset)) for _, partition, offset in it.seen[known:])

        assert await life(400, 200) == [(p, n) for p in range(4) for n in range(150)]
        assert await life(600, 200) == [(p, n) for p in range(4) for n in range(200)]


@pytest.mark.long
async def test_a_job_of_several_containers_goes_back_at_its_start_and_not_when_one_is_replaced(
    tmp_path: Path,
) -> None:
    state = ("-p", f"s4.state.folder={tmp_path / 'state'}")

    async with bench(tmp_path, partitions=4) as it:
        more = {"task.commit.ms": "20", "s4.coordination.folder": str(tmp_path / "cluster")}
        arguments = [*it.arguments("tasks", **more), "--nodes", "2"]

        async def ask(offset: int) -> str:
            done = await run_s4(
                "startpoint",
                "set",
                "tasks",
                "log.clicks",
                "--all-partitions",
                "--offset",
                str(offset),
                *state,
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
            return done.stderr

        await append(it.log, 0, 400, partitions=4)
        async with s4_process(*arguments, cwd=tmp_path) as nodes:
            await until(lambda: len(it.seen) == 400)
            assert "takes effect at its next start" in await ask(60)
            os.kill(int(it.seen[-1][0]), signal.SIGKILL)
            await append(it.log, 400, 800, partitions=4)
            await until(lambda: len({each[1:] for each in it.seen}) == 800)
            await until(lambda: len(set(it.offsets("tasks").values())) == 1)
            nodes.signal(signal.SIGTERM)
            assert await nodes.wait() == 0
        known = len(it.seen)
        async with s4_process(*arguments, cwd=tmp_path) as nodes:
            await until(lambda: len(it.seen) - known >= 4 * 140)
            nodes.signal(signal.SIGTERM)
            assert await nodes.wait() == 0
        again = [(int(partition), int(offset)) for _, partition, offset in it.seen[known:]]
        assert sorted(again) == [(p, n) for p in range(4) for n in range(60, 200)]


@pytest.mark.parametrize(
    ("offset", "why"), [(12, "no offset 12"), (1, "no offset 1")], ids=["beyond the end", "gone"]
)
async def test_an_offset_that_a_log_does_not_have_ends_the_process_and_names_the_way_out(
    tmp_path: Path, offset: int, why: str
) -> None:
    async with bench(tmp_path, partitions=1) as it:
        await append(it.log, 0, 10, partitions=1)
        await it.log.trim("clicks", partition=0, offset=10)
        await append(it.log, 10, 11, partitions=1)
        store = Store(folder_of(str(tmp_path / "state"), "default", "tasks"))
        store.put([CLICKS], Specific(offset), now_ms())
        async with s4_process(*it.arguments("tasks"), cwd=tmp_path, ready=False) as process:
            assert await process.wait() == 1
        (told,) = [line for line in process.stderr if line.startswith("s4: ")]
        assert f"the startpoint offset {offset} that was set for log.clicks[0]" in told
        assert "delete it: s4 startpoint delete tasks 'log.clicks[0]'" in told
        assert why in told
        assert it.seen == []


# -- set-up ---------------------------------------------------------------------------------------


R = TypeVar("R")


CLICKS = ("log", "clicks", 0)


class Store:
    """The startpoints of the job in a folder, for tests that wait for each call."""

    def __init__(self, folder: Path, **given: str) -> None:
        self.inside = StartpointStore(folder, Config.from_values(given))
        self.place = folder / FOLDER
        self._state = identity_of(folder, None)

    def put(
        self, places: list[Place], startpoint: Startpoint, now_ms: int, task: str = ""
    ) -> list[Request]:
        new = [Request(tokens.fresh(6), *place, startpoint, now_ms, task) for place in places]
        return self._change(lambda them: them.put(new))

    def requests(self) -> list[Request]:
        return list(self._change(lambda them: (them, them.asked)))

    def pending(self) -> list[tuple[str, Request]]:
        return self._change(lambda them: (them, them.waiting))

    def delete(self, places: list[Place] | None = None, task: str | None = None) -> int:
        return self._change(lambda them: them.delete(places, task))

    def fan_out(self, tasks: dict[str, list[Place]], now_ms: int) -> Requests:
        def give(them: Requests) -> tuple[Requests, Requests]:
            after = them.fan_out(tasks, now_ms)
            return after, after

        return self._change(give)

    def take(self, task: str, consumed: Collection[str]) -> tuple[Request, ...]:
        return self._change(lambda them: them.pending_of(task, consumed))

    def _change(self, change: Callable[[Requests], tuple[Requests, R]]) -> R:
        with ThreadPoolExecutor(1) as pool:  # the caller may be in a trio of its own
            return pool.submit(trio.run, self.inside.change, self._state, change).result()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def found(requests: list[Request] | tuple[Request, ...]) -> list[tuple[str, Startpoint]]:
    return sorted((f"{r.stream}[{r.partition}]", r.startpoint) for r in requests)
