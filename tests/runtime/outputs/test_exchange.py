"""What tasks send each other counts once, whatever dies: real processes, killed and stopped."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from operator import gt
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, NodeProcess, free_port, plain_errors, s4_process, until, until_told
from shared_apps import KEEPER

from s4node import Client, Event, Oldest
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.job import task_folder
from s4node.state.task_state import TaskState
from s4node.systems.embedded_log import EmbeddedLog


@pytest.mark.long
async def test_an_app_that_is_down_for_longer_than_a_log_knows_programs_writes_all_once(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, "-p", "s4.producer.expiry=100") as it:
        await it.append(3000)
        async with s4_process(
            *it.arguments(), cwd=tmp_path, fault="outbox.settled:1", ready=False
        ) as process:
            assert await process.wait() == -signal.SIGKILL
        assert await it.done()
        await it.log.create("witness")
        await it.log.append("witness", 0, [Click("joe")])
        # by then the log would have forgotten any program
        await until_told(lambda: it.log.describe("witness"), lambda told: not told["producers"])
        async with s4_process(*it.arguments(), cwd=tmp_path) as process:
            await it.wait_done()
            await ends(process)
        await it.check()


@pytest.mark.long
async def test_a_log_has_again_what_was_written_since_a_savepoint_and_else_nothing(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        await it.append(300)
        async with s4_process(*it.arguments(), cwd=tmp_path) as process:
            await it.wait_done()
            await ends(process)
        words = ("savepoint", "take", *it.arguments()[1:], "--name", "one")
        async with s4_process(*words, cwd=tmp_path, ready=False) as process:
            assert await process.wait() == 0, process.errors
        await it.append(300)
        async with s4_process(*it.arguments(), "--from", "one", cwd=tmp_path) as process:
            await it.wait_done()
            await ends(process)
        await it.check()
        back = (*it.arguments(), "--from", "one")
        async with s4_process(*back, cwd=tmp_path, ready=False) as process:
            assert await process.wait() == 1
        assert "done to keeper: 300 events come again" in process.errors
        async with s4_process(*back, "--outputs", "again", cwd=tmp_path) as process:
            await it.wait_done(again=300)
            await ends(process)
        await it.check(again=range(300, 600))


async def test_a_member_that_wakes_up_after_others_took_over_counts_nothing_twice(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        arguments = [*it.arguments(**{"s4.session.timeout": "1000"}), "--nodes", "2"]
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await it.append(3000)
            await until(lambda: len(it.living()) == 2)
            await until(lambda: all(it.owned()))
            before = it.owned()
            victim = it.living()[0]
            os.kill(victim, signal.SIGSTOP)
            await it.append(3000)
            await until(lambda: any(map(gt, it.owned(), before)), "taken over")
            os.kill(victim, signal.SIGCONT)
            await it.append(3000)
            await it.wait_done()
            await ends(process)
        await it.check()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("outbox.release", marks=pytest.mark.long),
        "outbox.released",
        pytest.param("outbox.settled", marks=pytest.mark.long),
    ],
)
async def test_a_container_that_dies_at_a_step_of_its_outbox_counts_all_once(
    tmp_path: Path, point: str
) -> None:
    async with bench(tmp_path) as it:
        await it.append(2000)
        for times in (1, 2, 4):
            async with s4_process(
                *it.arguments(), cwd=tmp_path, fault=f"{point}:{times}", ready=False
            ) as process:
                assert await process.wait() == -signal.SIGKILL
            await it.append(500)
        async with s4_process(*it.arguments(), cwd=tmp_path) as process:
            await it.wait_done()
            await ends(process)
        await it.check()


@pytest.mark.long
async def test_events_in_a_full_cycle_count_once_after_kills(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    async with bench(tmp_path) as it:
        (tmp_path / "counter.py").write_text(LOOPS)
        arguments = it.arguments(**{"s4.stream.turns.workQueueSize": "10"})
        kept = tmp_path / "state" / "default" / "counter"
        for _ in range(5):
            async with s4_process(*arguments, cwd=tmp_path) as process:
                await it.append(300)
                await trio.sleep(chance.random() * 0.3)
                await process.kill()
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: counted(kept, "Spin").total() == it.appended * 21)
            await ends(process)
        assert counted(kept, "Begin").total() == it.appended
        assert counted(kept, "Spin").total() == it.appended * 21


@pytest.mark.long
async def test_events_in_a_cycle_of_two_apps_count_once_after_kills(tmp_path: Path) -> None:
    chance, sent = random.Random(3), 0
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    arguments = [
        ring(tmp_path, "one", "two", addresses),
        ring(tmp_path, "two", "one", addresses[::-1]),
    ]
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(s4_process(*each, cwd=tmp_path)) for each in arguments
        ]
        client = await stack.enter_async_context(Client(addresses[0], producer="program"))
        stream = await client.stream("toone")
        for _ in range(5):
            for _ in range(300):
                await stream.send(Step(f"user-{sent % USERS}", 6))
                sent += 1
            await trio.sleep(chance.random() * 0.3)
            which = chance.randrange(2)
            await running[which].kill()
            running[which] = await stack.enter_async_context(
                s4_process(*arguments[which], cwd=tmp_path)
            )
        await stream.flush()
        apps = [tmp_path / "state" / name / "ring" for name in ("one", "two")]

        def steps() -> int:
            return sum(counted(app, "Walk").total() for app in apps)

        await until(lambda: steps() == sent * 127)
        for process in running:
            process.signal(signal.SIGTERM)
        for process in running:
            assert await process.wait() == 0
    assert steps() == sent * 127


# -- set-up ---------------------------------------------------------------------------------------

RING = """
from s4node import App, Event, OutputStream, ProcessingElement

class Step(Event):
    user: str
    left: int = 0

class Walk(ProcessingElement):
    count: int = 0
    out: OutputStream

    def on_event(self, event: Step) -> None:
        self.count += 1
        if event.left:
            for turn in "ab":
                self.out.put(Step(f"{event.user}{turn}"[-12:], event.left - 1))

class Ring(App):
    def on_init(self) -> None:
        walk = self.create_pe(Walk)
        walk.out = self.create_output_stream(OTHER, key="user", types=Step)
        self.create_input_stream(OWN, walk, key="user")

app = Ring("ring")
"""

APP = """
import os
from pathlib import Path
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int = 0

class Digit(Event):
    digit: str
    number: int

class Spread(ProcessingElement):
    count: int = 0

    def on_event(self, event: Click) -> None:
        self.count += 1
        self.app.streams["digits"].put(Digit(str(event.number % 10), event.number))

class Count(ProcessingElement):
    count: int = 0

    def on_event(self, event: Digit) -> None:
        self.count += 1
        self.app.streams["done"].put(event)

class Clicks(App):
    def on_init(self) -> None:
        self.create_output_stream("done", key="digit", types=Digit)
        self.create_stream("digits", self.create_pe(Count), key="digit")
        self.create_input_stream("clicks", self.create_pe(Spread), key="user", system="log")

    def on_start(self) -> None:
        Path("pids", str(os.getpid())).touch()

app = Clicks("counter")
"""

LOOPS = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int = 0

class Turn(Event):
    place: int
    left: int

class Begin(ProcessingElement):
    count: int = 0

    def on_event(self, event: Click) -> None:
        self.count += 1
        self.app.streams["turns"].put(Turn(event.number % 7, 20))

class Spin(ProcessingElement):
    count: int = 0

    def on_event(self, event: Turn) -> None:
        self.count += 1
        if event.left:
            step = event.left % 2  # every other stays where it is
            self.app.streams["turns"].put(Turn((event.place + step) % 7, event.left - 1))

class Clicks(App):
    def on_init(self) -> None:
        self.create_stream("turns", self.create_pe(Spin), key="place")
        self.create_input_stream("clicks", self.create_pe(Begin), key="user", system="log")

app = Clicks("counter")
"""

PARTITIONS = 3
TASKS = 4
USERS = 97


class Click(Event):
    user: str
    number: int = 0


class Digit(Event):
    digit: str
    number: int


def ring(folder: Path, name: str, other: str, addresses: Sequence[str]) -> list[str | Path]:
    """The command of an app whose output another one consumes, and the other way round."""
    file = folder / f"{name}.py"
    file.write_text(f"OWN, OTHER = 'to{name}', 'to{other}'\n{RING}")
    settings = {
        "s4.cluster.name": name,
        "s4.listener.address": addresses[0],
        f"s4.cluster.{other}.address": addresses[1],
        f"s4.stream.to{other}.consumers": other,
        f"s4.stream.to{name}.grade": "durable",
        "s4.state.folder": str(folder / "state"),
        "s4.stream.workQueueSize": "10",
        "task.commit.ms": "20",
    }
    given = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    return ["run", file, *given]


class Step(Event):
    user: str
    left: int = 0


class Bench:
    """A log in a process of its own, and an app that reads from it and writes to it."""

    def __init__(self, folder: Path, log: EmbeddedLog, address: str) -> None:
        self.folder = folder
        self.log = log
        self.address = address
        self.appended = 0

    def arguments(self, **more: str) -> list[str | Path]:
        settings = {
            "systems.log.type": "log",
            "systems.log.address": self.address,
            "systems.log.samza.offset.default": "oldest",
            "s4.state.folder": str(self.folder / "state"),
            "s4.coordination.folder": str(self.folder / "cluster"),
            "s4.listener.address": ANY_PORT,
            "s4.cluster.partitions": str(TASKS),
            "s4.stream.done.consumers": "keeper",
            "s4.cluster.keeper.address": self.address,
            "task.commit.ms": "20",
            **more,
        }
        given = [word for name, value in settings.items() for word in ("-p", f"{name}={value}")]
        return ["run", self.folder / "counter.py", *given]

    async def append(self, count: int) -> None:
        """Append events, each to whichever partition."""
        numbers = range(self.appended, self.appended + count)
        self.appended += count
        for partition in range(PARTITIONS):
            mine = [Click(f"user-{n % USERS}", n) for n in numbers if n % PARTITIONS == partition]
            await self.log.append("clicks", partition, mine)

    def living(self) -> list[int]:
        """The processes that run the app."""
        found = []
        for file in (self.folder / "pids").iterdir():
            try:
                os.kill(int(file.name), 0)
            except ProcessLookupError:
                file.unlink()
            else:
                found.append(int(file.name))
        return found

    def owned(self) -> list[int]:
        """The last epoch in which each task was taken; 0 for one that nobody had."""
        app = self.folder / "state" / "default" / "counter"
        return [epochs.highest(task_folder(app, f"Partition {n}")) for n in range(TASKS)]

    async def done(self) -> int:
        """How many events have come out."""
        bounds = (await self.log.describe("done"))["partitions"]
        return sum(each["upcoming"] for each in bounds)

    async def wait_done(self, seconds: float = 60, again: int = 0) -> None:
        """Return when as many have come out as went in, and some ``again``."""
        with trio.fail_after(seconds):
            while await self.done() < self.appended + again:
                await trio.sleep(0.05)

    async def check(self, again: Sequence[int] = ()) -> None:
        """All that was appended has been counted at each step once, and come out once; and some
        ``again``."""
        numbers = range(self.appended)
        kept = self.folder / "state" / "default" / "counter"
        assert counted(kept, "Spread") == Counter(f"user-{n % USERS}" for n in numbers)
        assert counted(kept, "Count") == Counter(str(n % 10) for n in numbers)
        came: list[int] = []
        count = await self.done()
        async with (
            Client(self.address) as client,
            client.subscribe("done", types=Digit, start=Oldest()) as events,
        ):
            async for event in events:
                came.append(event.number)
                if len(came) == count:
                    break
        assert Counter(came) == Counter(numbers) + Counter(again)


def counted(app: Path, pe: str) -> Counter[str]:
    """What the instances of a PE have counted, by key, over all tasks."""
    found: Counter[str] = Counter()
    for folder in sorted(app.glob("tasks/*")):
        with epochs.copied(folder) as database:
            for key, attributes in StateReader(TaskState(database, crc32m)).instances(pe):
                found[str(key)] += attributes["count"]
    return found


@asynccontextmanager
async def bench(folder: Path, *words: str) -> AsyncIterator[Bench]:
    (folder / "keeper.py").write_text(KEEPER)
    (folder / "counter.py").write_text(APP)
    (folder / "pids").mkdir()
    address = f"tcp://127.0.0.1:{free_port()}"
    keeper = [
        "run",
        folder / "keeper.py",
        "--listen",
        address,
        "-p",
        f"s4.log.folder={folder / 'log'}",
        *words,
    ]
    log = EmbeddedLog("log", address)
    with plain_errors(), trio.fail_after(100):
        async with s4_process(*keeper, cwd=folder), trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            await log.create("clicks", PARTITIONS)
            await log.create("done", 2, key="digit")
            yield Bench(folder, log, address)
            nursery.cancel_scope.cancel()


async def ends(process: NodeProcess) -> None:
    """It stops in order."""
    process.signal(signal.SIGTERM)
    assert await process.wait() == 0
