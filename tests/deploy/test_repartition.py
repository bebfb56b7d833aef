"""Other numbers of partitions for apps that run in real processes: what counts stays exact."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import NodeProcess, filled, free_port, node_process, s4_process, until_told

from s4node import Client, Config, Event, SyncClient
from s4node.deploy.repartition import Repartition
from s4node.errors import EventError
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.job import known_job, saved_state
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import RemoteTask
from s4node.state.task_state import TaskState

pytestmark = [pytest.mark.slow, pytest.mark.long]


async def test_counts_stay_exact_over_four_six_and_three_partitions(it: Shop) -> None:
    async with Client(it.address, producer="goes on") as goes_on:
        async with it.app("counter.py", 4):
            await send(goes_on, "a", range(1000))
            async with Client(it.address, producer="away") as away:
                await send(away, "b", range(500))
            async with Client(it.address, producer="sends again") as again:
                await send(again, "c", range(700), again=True)
        await it.repartition(6)
        async with it.app("counter.py", 6):
            await send(goes_on, "a", range(1000, 2000))
            async with Client(it.address, producer="sends again") as again:
                await send(again, "c", range(900), again=True)
        assert it.counts() == counts(a=2000, b=500, c=900)
        await it.repartition(3)
        async with it.app("counter.py", 3):
            await send(goes_on, "a", range(2000, 2500))
            async with Client(it.address, producer="away") as away:
                await send(away, "b", range(500, 800))
            async with Client(it.address, producer="sends again") as again:
                clicks = await again.stream("clicks", again=True)
                await clicks.send_many(events("c", range(300)))  # fewer than have been counted
                assert await clicks.flush() == []
                await clicks.send_many(events("c", range(300, 1100)))
                assert await clicks.flush() == []
            async with Client(it.address, producer="away") as away:
                with pytest.raises(EventError, match="500 events of earlier lives") as told:
                    await (await away.stream("clicks")).resume_at()
                assert "again=True" in str(told.value)
            await trio.to_thread.run_sync(it.send_sync, "d", range(400))
        assert it.counts() == counts(a=2500, b=800, c=1100, d=400)


async def test_what_cannot_be_repartitioned_is_named_and_the_app_stays_as_it_was(it: Shop) -> None:
    async with it.app("counter.py", 4):
        async with Client(it.address, producer="p") as client:
            await send(client, "a", range(300))
        running = await it.s4("repartition", "counter", "6", ends=1)
        assert "is running" in running.errors
    for number in ("0", "-1", "4097"):
        refused = await it.s4("repartition", "counter", number, ends=2)
        assert f"argument N: '{number}' is out of bounds (1 to 4096)" in refused.errors
    refused = await it.s4("repartition", "counter", "4", ends=1)
    assert "it has 4 partitions already" in refused.errors
    unknown = await it.s4("repartition", "nix", "6", ends=2)
    assert "no app 'nix'" in unknown.errors
    async with it.app("counter.py", 4):
        assert it.counts() == counts(a=300)


async def test_an_app_that_starts_with_the_former_number_is_told_the_new_one(it: Shop) -> None:
    async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(300))
    await it.repartition(6)
    more = ("--partitions", "4", "-p", "s4.stream.clicks.grade=durable")
    refused = await it.s4("run", "counter.py", *more, ends=1)
    assert "set s4.cluster.partitions = 6" in refused.errors


async def test_a_savepoint_from_before_is_refused_and_goes_on_in_another_folder(it: Shop) -> None:
    async with it.app("counter.py", 4), Client(it.address, producer="sends again") as client:
        await send(client, "c", range(300), again=True)
        await it.s4("savepoint", "take", "counter", "--name", "one")
    back = ("--from", "one", "--outputs", "again", "--accept-loss")
    await it.repartition(6)
    for partitions in (4, 6):
        run = ("run", "counter.py", "--partitions", str(partitions), *back)
        refused = await it.s4(*run, "-p", "s4.stream.clicks.grade=durable", ends=1)
        assert "counter had 4 partitions and has 6" in refused.errors
        assert "s4 savepoint export counter one one.tar" in refused.errors
    async with it.app("counter.py", 6), Client(it.address, producer="sends again") as client:
        await send(client, "c", range(500), again=True)
    assert it.counts() == counts(c=500)
    await it.s4("savepoint", "export", "counter", "one", "one.tar")
    it.state = it.folder / "former"
    await it.s4("savepoint", "import", "counter.py", "one.tar")
    async with it.app("counter.py", 4, *back), Client(it.address, producer="sends again") as again:
        await send(again, "c", range(400), again=True)
    assert it.counts() == counts(c=400)


@pytest.mark.parametrize("step", ["moved:3", "decided", "replaced"])
async def test_a_repartition_that_is_killed_is_undone_or_completed(it: Shop, step: str) -> None:
    async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(300))
    await it.s4("repartition", "counter", "6", ends=-9, fault=f"repartition.{step}")
    if step == "moved:3":
        async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
            await send(client, "a", range(300, 500))
    else:
        more = ("--partitions", "4", "-p", "s4.stream.clicks.grade=durable")
        for nodes in ((), ("--nodes", "2")):
            refused = await it.s4("run", "counter.py", *more, *nodes, ends=1)
            assert "complete it: s4 repartition counter 6" in refused.errors
        other = await it.s4("repartition", "counter", "3", ends=1)
        assert "complete it: s4 repartition counter 6" in other.errors
    await it.repartition(6)
    assert not (it.job / ".repartition").exists()
    async with it.app("counter.py", 6), Client(it.address, producer="p") as client:
        end = 500 if step == "moved:3" else 300
        await send(client, "a", range(end, 600))
        await send(client, "b", range(100))
    assert it.counts() == counts(a=600, b=100)


async def test_state_at_a_url_gets_other_partitions_on_any_machine(it: Shop) -> None:
    it.url = f"file://{it.folder}/shipped"
    async with Client(it.address, producer="goes on") as goes_on:
        async with it.app("counter.py", 6):
            await send(goes_on, "a", range(1000))
        await it.repartition(3)
        it.state = it.folder / "another-machine"
        async with it.app("counter.py", 3):
            await send(goes_on, "a", range(1000, 1500))
        await it.repartition(6)
        it.state = it.folder / "state"  # where the six tasks of the beginning still are
        async with it.app("counter.py", 6):
            await send(goes_on, "a", range(1500, 1600))
            async with Client(it.address, producer="sends again") as again:
                await send(again, "b", range(300), again=True)
    assert it.counts() == counts(a=1600, b=300)
    listed = await it.s4("savepoint", "list", "counter", "--json")
    assert json.loads(listed.stdout[-1]) == []


async def test_each_task_at_a_url_is_fetched_twice_however_many_it_becomes(
    it: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.url = f"file://{it.folder}/shipped"
    async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(300))
    fetched: Counter[str] = Counter()
    restored = RemoteTask.restored

    def counted(task: RemoteTask, *arguments: Any) -> Database:
        fetched[task.url.rpartition("/")[2]] += 1
        return restored(task, *arguments)

    monkeypatch.setattr(RemoteTask, "restored", counted)
    elsewhere = it.folder / "another-machine" / "default" / "counter"
    remote_job = RemoteJob(it.url, Path("default") / "counter")
    guard, _ = known_job(elsewhere, remote_job)
    assert guard is not None
    config = Config.from_values({"s4.state.url": it.url})
    work = Repartition("counter", elsewhere, config, guard, 11, remote_job)
    assert await trio.to_thread.run_sync(work.run) > 0
    assert fetched == {f"Partition%20{n}": 2 for n in range(4)}
    it.state = it.folder / "another-machine"
    assert it.counts() == counts(a=300)


@pytest.mark.parametrize(
    ("step", "partitions"),
    [
        ("repartition.made", 3),
        ("restore.claimed:2", 6),
        ("restore.commit:3", 3),
        ("repartition.removed", 3),
        ("repartition.claimed", 6),
    ],
)
async def test_a_repartition_of_state_at_a_url_is_completed_by_another_machine(
    it: Shop, step: str, partitions: int
) -> None:
    it.url = f"file://{it.folder}/shipped"
    async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(300))
    await it.s4("repartition", "counter", str(partitions), ends=-9, fault=step)
    it.state = it.folder / "another-machine"
    end = 300
    if step == "repartition.made":
        async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
            await send(client, "a", range(300, 500))
            end = 500
    else:
        more = ("--partitions", "4", "-p", "s4.stream.clicks.grade=durable")
        refused = await it.s4("run", "counter.py", *more, *it.place, ends=1)
        assert f"complete it: s4 repartition counter {partitions}" in refused.errors
        back = await it.s4("run", "counter.py", *more, *it.place, "--from", "x", ends=1)
        assert "no savepoint 'x'" in back.errors
    await it.repartition(partitions)
    for machine in ("state", "another-machine"):
        it.state = it.folder / machine
        async with it.app("counter.py", partitions), Client(it.address, producer="p") as client:
            await send(client, "a", range(end, end + 100))
            end += 100
    assert it.counts() == counts(a=end)


async def test_events_between_tasks_and_for_a_consumer_that_is_away_are_named(it: Shop) -> None:
    async with it.feeder(3) as feeder, Client(feeder.address, producer="f") as source:
        async with it.app("counter.py", 4):
            await send(source, "f", range(200), to="raw")
            await it.until_counted(200)
        await send(source, "f", range(200, 260), to="raw")
        await feeder.kill()
    refused = await it.s4("repartition", "feeder", "5", *it.of_feeder, ends=1)
    assert "the job keeps its 3 partitions" in refused.errors
    assert "60 events on stream clicks wait for default" in refused.errors
    async with it.app("counter.py", 4), it.feeder(3):
        await it.until_counted(260)
    await it.s4("repartition", "feeder", "5", *it.of_feeder)
    async with it.app("counter.py", 4), it.feeder(5) as feeder:
        async with Client(feeder.address, producer="g") as source:
            await send(source, "g", range(100), to="raw")
        await it.until_counted(360)
    assert it.counts() == counts(f=260, g=100)


@pytest.mark.short
async def test_a_singleton_is_named(it: Shop) -> None:
    single = "spread = app.create_pe(Spread)\nspread.set_singleton(True)\napp.create_input"
    (it.folder / "single.py").write_text(
        COUNTER.replace("app.create_input", single).replace("app.create_pe(Spread),", "spread,")
    )
    async with it.app("single.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(50))
    refused = await it.s4("repartition", "counter", "6", ends=1)
    assert "PE Spread is a singleton" in refused.errors


async def test_stores_move_if_their_keys_are_those_of_the_streams(it: Shop) -> None:
    async with it.app("stores.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(200))
    refused = await it.s4("repartition", "counter", "6", ends=1)
    assert "store counts belongs to tasks" in refused.errors
    await it.repartition(6, "--stores-by-key")
    async with it.app("stores.py", 6), Client(it.address, producer="p") as client:
        await send(client, "a", range(200, 370))
    assert it.stored() == {f"a-{n}": 10 for n in range(37)}


async def test_a_store_with_a_key_of_another_task_is_named(it: Shop) -> None:
    (it.folder / "stores.py").write_text(STORES.replace("event.user", '"all"'))
    async with it.app("stores.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(200))
    refused = await it.s4("repartition", "counter", "6", "--stores-by-key", ends=1)
    assert "has a row in store counts whose key is of another task" in refused.errors


@pytest.mark.short
async def test_a_full_disk_leaves_the_app_as_it_was(it: Shop, small_disk: Path) -> None:
    it.state = small_disk / "state"
    async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(300))
    ballast = filled(small_disk)
    os.truncate(ballast, ballast.stat().st_size - (256 << 10))  # enough to begin
    full = await it.s4("repartition", "counter", "6", ends=1)
    assert "space" in full.errors
    ballast.unlink()
    assert not (it.job / ".repartition").exists()
    async with it.app("counter.py", 4), Client(it.address, producer="p") as client:
        await send(client, "a", range(300, 400))
    await it.repartition(6)
    assert it.counts() == counts(a=400)


# -- set-up ---------------------------------------------------------------------------------------

COUNTER = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Digit(Event):
    digit: str
    number: int

class Spread(ProcessingElement):
    n: int = 0

    def on_event(self, event: Click) -> None:
        self.n += 1
        self.app.streams["digits"].put(Digit(event.user[0] + str(event.number % 10), event.number))

class Count(ProcessingElement):
    n: int = 0

    def on_event(self, event: Digit) -> None:
        self.n += 1

app = App("counter")
app.create_stream("digits", app.create_pe(Count), key="digit")
app.create_input_stream("clicks", app.create_pe(Spread), key="user")
"""


FEEDER = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Pass(ProcessingElement):
    n: int = 0

    def on_event(self, event: Click) -> None:
        self.n += 1
        self.app.streams["clicks"].put(event)

app = App("feeder")
app.create_output_stream("clicks", key="user", types=Click)
app.create_input_stream("raw", app.create_pe(Pass), key="user")
"""


STORES = """
from s4node import Event, TaskApp

class Click(Event):
    user: str
    number: int

class Count:
    def init(self, config, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        event = envelope.message
        self.counts.put(event.user, self.counts.get(event.user, 0) + 1)

class Counter(TaskApp):
    def __init__(self):
        super().__init__("counter", Count)

    def on_init(self):
        self.create_input_stream("clicks", types=Click, key="user")
        self.create_store("counts", key=str, value=int)

app = Counter()
"""


class Click(Event):
    user: str
    number: int


def events(who: str, numbers: range) -> list[Click]:
    """The events of a program, of many users."""
    return [Click(f"{who}-{number % 37}", number) for number in numbers]


async def send(
    client: Client, who: str, numbers: range, *, again: bool = False, to: str = "clicks"
) -> None:
    clicks = await client.stream(to, again=again)
    await clicks.send_many(events(who, numbers))
    assert await clicks.flush() == []


def counts(**sent: int) -> Counter[str]:
    """How often each digit of a program is to be counted, if it has sent so many events."""
    return Counter(f"{who}{n % 10}" for who, end in sent.items() for n in range(end))


class Shop:
    """An app that counts the digits of events by program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        (folder / "counter.py").write_text(COUNTER)
        (folder / "feeder.py").write_text(FEEDER)
        (folder / "stores.py").write_text(STORES)
        self.state = folder / "state"
        self.url = ""
        self.of_feeder = ("--cluster", "feeding", "-p", "s4.state.folder=feeder")

    @property
    def job(self) -> Path:
        return self.state / "default" / "counter"

    @property
    def place(self) -> tuple[str, ...]:
        url = ("-p", f"s4.state.url={self.url}") if self.url else ()
        return ("-p", f"s4.state.folder={self.state}", *url)

    @asynccontextmanager
    async def app(
        self, file: str, partitions: int, *more: str, fault: str = ""
    ) -> AsyncIterator[NodeProcess]:
        """An app that runs, and is stopped in order."""
        settings = ("-p", "s4.stream.clicks.grade=durable", *self.place)
        place = ("--listen", self.address, "--partitions", str(partitions))
        command = ("run", file, *place, *settings, *more)
        async with s4_process(*command, cwd=self.folder, fault=fault) as node:
            yield node
            if node.process.returncode is None:
                node.process.terminate()
                assert await node.wait() == 0, node.errors

    @asynccontextmanager
    async def feeder(self, partitions: int) -> AsyncIterator[NodeProcess]:
        """Another app, which sends what it gets to the one that counts."""
        settings = ("--partitions", str(partitions), "-p", "s4.stream.raw.grade=durable")
        to = ("-p", "s4.stream.clicks.consumers=default",
              "-p", f"s4.cluster.default.address={self.address}")  # fmt: skip
        place = ("-p", "s4.state.folder=feeder", "-p", "s4.cluster.name=feeding")
        async with node_process("feeder.py", *settings, *to, *place, cwd=self.folder) as node:
            yield node
            if node.process.returncode is None:
                node.process.terminate()
                assert await node.wait() == 0, node.errors

    async def until_counted(self, many: int) -> None:
        """Wait until so many events are counted, and no more."""

        async def total() -> int:
            return sum(self.counts().values())

        assert await until_told(total, lambda found: found >= many, seconds=60) == many

    async def s4(self, *words: str, ends: int = 0, fault: str = "") -> NodeProcess:
        """A command, whose exit status has to be this one."""
        place = () if "-p" in words and words[0] != "run" else self.place
        async with s4_process(*words, *place, cwd=self.folder, ready=False, fault=fault) as command:
            with trio.fail_after(60):
                status = await command.wait()
            assert status == ends, command.errors
        return command

    async def repartition(self, partitions: int, *more: str) -> dict[str, Any]:
        done = await self.s4("repartition", "counter", str(partitions), "--json", *more)
        told: dict[str, Any] = json.loads(done.stdout[-1])
        return told

    def send_sync(self, who: str, numbers: range) -> None:
        with SyncClient(self.address, producer=who) as client:
            clicks = client.stream("clicks")
            clicks.send_many(events(who, numbers))
            assert clicks.flush() == []

    def counts(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for state in self.tasks():
            reader = StateReader(state)
            for key, saved in reader.instances("Count") if "Count" in reader.elements else ():
                found[str(key)] += saved["n"]
        return found

    def stored(self) -> dict[str, int]:
        """The rows in the store of the tasks."""
        found: Counter[str] = Counter()
        for state in self.tasks():
            for key, value in StateReader(state).store("counts"):
                found[str(key)] += value
        return dict(found)

    def tasks(self) -> Iterator[TaskState]:
        """The state of each task that the job has."""
        remote_job = RemoteJob(self.url, Path("default", "counter")) if self.url else None
        _, tasks = known_job(self.job, remote_job)
        for task in tasks:
            with saved_state(self.job, task, remote_job) as state:
                if state is not None:
                    yield state


@pytest.fixture
def it(tmp_path: Path) -> Shop:
    return Shop(tmp_path)
