"""Real processes over a log: killed they replay and skip nothing, stopped they replay nothing."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from harness import free_port, plain_errors, s4_process, until
from kept import kept_positions

from s4node import Event
from s4node.systems.embedded_log import EmbeddedLog

KEEPER = """
from s4node import App, GenericEvent, ProcessingElement

class Ignore(ProcessingElement):
    def on_event(self, event: GenericEvent) -> None:
        pass

app = App("keeper")
app.create_input_stream("ignored", app.create_pe(Ignore), key="id")
"""

# writes each event down for good before it counts as processed
TASKS = """
import os
import time
from s4node.app.stream_task import TaskApp

class Write:
    def init(self, config, context):
        self.file = os.open(config["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.slow = float(config.get("slow", "0"))

    def process(self, envelope, collector, coordinator):
        line = f"{os.getpid()} {envelope.partition} {envelope.offset}\\n"
        os.write(self.file, line.encode())
        time.sleep(self.slow)
        if envelope.offset % 100 == 99:
            coordinator.commit()

app = TaskApp("tasks", Write, inputs=["log.clicks"])
"""

# the same by PEs: events go to the partitions of their keys, whatever partition they are read from
ELEMENTS = """
import os
import time
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Write(ProcessingElement):
    def on_event(self, event: Click) -> None:
        os.write(self.app.file, f"{os.getpid()} {event.user} {event.number}\\n".encode())
        time.sleep(float(self.app.parameters.get("slow", "0")))

class Clicks(App):
    def on_init(self) -> None:
        self.file = os.open(self.parameters["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.create_input_stream("clicks", self.create_pe(Write), key="user", system="log")

app = Clicks("elements")
"""


class Click(Event):
    user: str
    number: int


class Bench:
    """A log in a process of its own, and apps that read it."""

    def __init__(self, folder: Path, log: EmbeddedLog) -> None:
        self.folder = folder
        self.log = log
        self.file = folder / "seen"

    def arguments(self, app: str, **more: str) -> list[str]:
        settings = {
            "systems.log.type": "log",
            "systems.log.address": self.log.address,
            "systems.log.samza.offset.default": "oldest",
            "s4.state.folder": str(self.folder / "state"),
            "s4.app.file": str(self.file),
            "s4.listener.address": "tcp://127.0.0.1:0",
            **more,
        }
        path = self.folder / f"{app}_app.py"
        path.write_text({"tasks": TASKS, "elements": ELEMENTS}[app])
        given = [f"{name}={value}" for name, value in settings.items()]
        return ["run", str(path), *(word for each in given for word in ("-p", each))]

    @property
    def seen(self) -> list[tuple[str, ...]]:
        """What was processed: process, and what it wrote of the event."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [tuple(line.split()) for line in lines]

    def offsets(self, app: str) -> dict[int, int]:
        """What is committed, by partition."""
        found = kept_positions(self.folder / "state" / "default" / app)
        return {
            int(place[:-1].rpartition("[")[2]): at
            for positions in found.values()
            for place, at in positions.items()
        }


@asynccontextmanager
async def bench(folder: Path, partitions: int = 2, key: str = "") -> AsyncIterator[Bench]:
    (folder / "keeper.py").write_text(KEEPER)
    port = free_port()
    keeper = [
        "run", folder / "keeper.py", "--listen", f"tcp://127.0.0.1:{port}",
        "-p", f"s4.log.folder={folder / 'log'}",
    ]  # fmt: skip
    log = EmbeddedLog("log", f"tcp://127.0.0.1:{port}")
    with plain_errors(), trio.fail_after(100):
        async with s4_process(*keeper, cwd=folder), trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            await log.create("clicks", partitions, key=key)
            yield Bench(folder, log)
            nursery.cancel_scope.cancel()


async def append(log: EmbeddedLog, first: int, end: int, partitions: int = 2) -> None:
    for partition in range(partitions):
        mine = [
            Click(f"user-{n % 13}", n) for n in range(first, end) if n % partitions == partition
        ]
        await log.append("clicks", partition, mine)


@pytest.mark.parametrize("app", ["tasks", "elements"])
async def test_a_killed_container_goes_on_at_its_last_commit_and_skips_nothing(
    tmp_path: Path, app: str
) -> None:
    dice = random.Random(7)
    total = 6000
    async with bench(tmp_path) as it:
        slow = {"task.commit.ms": "20", "s4.cluster.partitions": "2", "s4.app.slow": "0.0003"}
        arguments = it.arguments(app, **slow)
        committed: dict[int, int] = {}
        for life in range(4):
            start = life * total // 4
            before = len(it.seen)
            async with s4_process(*arguments, cwd=tmp_path) as process:
                await append(it.log, start, start + total // 4)
                wanted = before + dice.randrange(200, 1200)
                await until(lambda: len(it.seen) >= wanted)  # noqa: B023 - it is this turn's
                await process.kill()
            now = it.offsets(app)
            assert all(at >= committed.get(partition, 0) for partition, at in now.items())
            committed = now
        assert sum(committed.values()) > 0  # it did not always begin anew
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: len({each[1:] for each in it.seen}) == total)
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert it.offsets(app) == {0: total // 2, 1: total // 2}
        lives = Counter(each[0] for each in it.seen)
        assert len(lives) == 5
        for pid in lives:  # no process sees an event twice, nor those of a place out of order
            mine = [each[1:] for each in it.seen if each[0] == pid]
            assert len(set(mine)) == len(mine)
            places: dict[tuple[str, int], list[int]] = {}
            for where, number in mine:
                of_log = int(number) % 2 if app == "elements" else 0  # it was appended to that one
                places.setdefault((where, of_log), []).append(int(number))
            assert all(numbers == sorted(numbers) for numbers in places.values())


@pytest.mark.parametrize("app", ["tasks", "elements"])
async def test_a_container_that_is_stopped_in_order_replays_nothing_when_it_is_started_again(
    tmp_path: Path, app: str
) -> None:
    total = 100_000
    async with bench(tmp_path) as it:
        seldom = "0" if app == "tasks" else "500"  # elements send each other what they have read
        arguments = it.arguments(app, **{"task.commit.ms": seldom, "s4.cluster.partitions": "4"})
        await append(it.log, 0, total)
        for _ in range(4):
            before = len(it.seen)
            async with s4_process(*arguments, cwd=tmp_path) as process:
                await until(lambda: len(it.seen) > before)  # noqa: B023 - it is this turn's
                process.signal(signal.SIGTERM)
                assert await process.wait() == 0
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: len(it.seen) >= total)
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert len({each[0] for each in it.seen}) > 1  # it took several starts
        assert len(it.seen) == len({each[1:] for each in it.seen}) == total


@pytest.mark.parametrize("app", ["tasks", "elements"])
async def test_partitions_of_a_killed_member_go_on_at_its_last_commit_with_another(
    tmp_path: Path, app: str
) -> None:
    total = 8000
    async with bench(tmp_path, partitions=4) as it:
        more = {"task.commit.ms": "20", "s4.coordination.folder": str(tmp_path / "cluster")}
        arguments = [*it.arguments(app, **more), "--nodes", "2"]
        await append(it.log, 0, total // 2, partitions=4)
        async with s4_process(*arguments, cwd=tmp_path) as nodes:
            await until(lambda: len({each[0] for each in it.seen}) == 2)
            os.kill(int(it.seen[-1][0]), signal.SIGKILL)
            await append(it.log, total // 2, total, partitions=4)
            await until(lambda: len({each[1:] for each in it.seen}) == total)
            nodes.signal(signal.SIGTERM)
            assert await nodes.wait() == 0
        assert it.offsets(app) == dict.fromkeys(range(4), total // 4)
