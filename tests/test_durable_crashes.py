"""Nodes and producers that are killed at any time: what was sent over sockets counts once."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from harness import NodeProcess, environment, free_port, s4_process, until
from kept import kept_instances, kept_producers

from s4node.failpoints import POINTS
from s4node.state import epochs

USERS = 13

# counts in its state, and says so when an event of a key is not the next one
COUNTING = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Count(ProcessingElement):
    clicks: int = 0
    wrong: int = 0

    def on_event(self, event: Click) -> None:
        self.wrong += event.number != self.clicks
        self.clicks += 1

class Clicks(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(Count), key="user")

app = Clicks("counting")
"""

# sends the same events in every life, some at a time; says how many, and that all are committed
PRODUCER = """
import json
import sys
import trio
from s4node import Client, Event
from s4node.events.schema import JsonText

class Click(Event):
    user: str
    number: int

async def main(address, name, count, pause):
    async with Client(address, producer=name, timeout=60) as client:
        clicks = await client.stream("clicks", again=True)
        if name.startswith("json"):  # which the client cannot route
            clicks.read_as("Click")
        for n in range(count):
            user, number = f"{name} {n % USERS}", n // USERS
            if name.startswith("json"):
                await clicks.send(JsonText(json.dumps({"user": user, "number": number}).encode()))
            else:
                await clicks.send(Click(user, number))
            if n % 50 == 49:
                print(n, flush=True)
                await trio.sleep(pause)
        assert await clicks.flush() == []
        print("all", clicks.counts["admitted"], flush=True)

USERS = 13
address, name, count, pause = sys.argv[1:]
trio.run(main, address, name, int(count), float(pause))
"""


class Lives:
    """A node and its producers, each of which may be killed and is started again."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        (folder / "counting.py").write_text(COUNTING)
        (folder / "producer.py").write_text(PRODUCER)
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.state = folder / "state"
        values = {
            "s4.state.folder": str(self.state),
            "s4.stream.clicks.grade": "durable",
            "s4.cluster.partitions": "4",
            "task.commit.ms": "20",
        } | settings
        self.arguments = ["run", folder / "counting.py", "--listen", self.address]
        for key, value in values.items():
            self.arguments += ["-p", f"{key}={value}"]

    def epochs(self) -> dict[str, int]:
        """The last epoch in which each task was taken."""
        tasks = self.state / "default" / "counting" / "tasks"
        return {each.name: epochs.highest(each) for each in tasks.iterdir()}

    def node(self, *arguments: str, **more: Any) -> AbstractAsyncContextManager[NodeProcess]:
        """A node that runs the app, killed at the end."""
        return s4_process(*self.arguments, *arguments, cwd=self.folder, **more)

    @asynccontextmanager
    async def producer(self, name: str, count: int, pause: float) -> AsyncIterator[NodeProcess]:
        """A program that sends, killed at the end."""
        program = [sys.executable, self.folder / "producer.py", self.address, name, str(count)]
        process = await trio.lowlevel.open_process(
            [*program, str(pause)], stdout=-1, stderr=-1, cwd=self.folder, env=environment()
        )
        found = NodeProcess(process)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found._read, process.stdout, found.stdout)
            nursery.start_soon(found._read, process.stderr, found.stderr)
            try:
                yield found
            finally:
                with trio.CancelScope(shield=True):
                    if process.returncode is None:
                        process.kill()
                    await process.wait()
                nursery.cancel_scope.cancel()

    async def send(self, name: str, count: int, random: Random, enough: trio.Event) -> None:
        """Have a producer send all, killing it again and again, at least until it is enough."""
        lives = 0
        while lives < 5 or not enough.is_set():
            async with self.producer(name, count, 0.01) as process:
                with trio.move_on_after(0.3 + 0.2 * lives + random.random()):
                    await process.wait()
            lives += 1
        async with self.producer(name, count, 0.0) as process:
            assert await process.wait() == 0, process.errors
            assert process.stdout[-1] == f"all {count}"

    def check(self, sent: dict[str, int]) -> None:
        """Each event counts once, in order."""
        kept = kept_instances(self.state / "default" / "counting")
        expected = Counter(
            f"{name} {n % USERS}" for name, count in sent.items() for n in range(count)
        )
        assert {key: each["clicks"] for key, each in kept.items()} == expected
        assert [key for key, each in kept.items() if each["wrong"]] == []
        numbers: Counter[str] = Counter()
        for rows in kept_producers(self.state / "default" / "counting").values():
            for (stream, name), row in rows.items():
                assert stream == "clicks"
                if not name.startswith("~"):  # what tasks have sent each other
                    numbers[name] += row.number
        assert numbers == sent


async def stop(process: NodeProcess) -> None:
    process.signal(signal.SIGTERM)
    assert await process.wait() == 0, process.errors


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_events_count_once_when_the_node_and_its_producers_are_killed_at_random(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    lives = Lives(tmp_path, {})
    sent = {"one": 15_000, "two": 15_000, "json": 10_000}
    done: list[str] = []
    enough = trio.Event()
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:

            async def send(name: str) -> None:
                await lives.send(name, sent[name], Random(f"{seed} {name}"), enough)
                done.append(name)

            for name in sent:
                nursery.start_soon(send, name)
            for _ in range(8):
                async with lives.node() as process:
                    await trio.sleep(random.random() * 0.8)
                    await process.kill()
            enough.set()
            async with lives.node() as process:
                await until(lambda: len(done) == len(sent), seconds=60)
                await stop(process)
    lives.check(sent)


@pytest.mark.slow
@pytest.mark.parametrize("paused", [False, True])
async def test_events_count_once_when_containers_of_several_are_killed_and_taken_over(
    tmp_path: Path, *, paused: bool
) -> None:
    """A paused one is taken over as well, and then wakes up."""
    random = Random(3)
    lives = Lives(tmp_path, {"s4.session.timeout": "1000", "s4.container.restartDelay": "50"})
    sent = {"one": 25_000, "json": 20_000}
    done: list[str] = []
    kills = taken_over = 0
    enough = trio.Event()
    with trio.fail_after(150):
        async with lives.node("--nodes", "2") as process, trio.open_nursery() as nursery:

            async def send(name: str) -> None:
                await lives.send(name, sent[name], Random(name), enough)
                done.append(name)

            for name in sent:
                nursery.start_soon(send, name)
            while len(done) < len(sent):
                await trio.sleep(0.3 + random.random())
                containers = children(process.pid)
                if containers and (kills < 8 or not enough.is_set()):
                    # the oldest surely has some; one that was just started may have none
                    victim = min(containers) if paused else random.choice(containers)
                    if paused:
                        before = lives.epochs()
                        os.kill(victim, signal.SIGSTOP)
                        with trio.move_on_after(5):
                            await until(lambda b=before: lives.epochs() != b)
                            taken_over += 1
                        os.kill(victim, signal.SIGCONT)
                    else:
                        os.kill(victim, signal.SIGKILL)
                    kills += 1
                    if taken_over >= 2 if paused else kills >= 6:
                        enough.set()
            await stop(process)
    lives.check(sent)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


STEPS = [name for name in POINTS if name.startswith(("commit.", "claim."))]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_events_count_once_when_the_node_is_killed_at_a_step_of_a_commit(
    tmp_path: Path, step: str
) -> None:
    lives = Lives(tmp_path, {"s4.cluster.partitions": "2"})
    sent = {"one": 12_000}
    done = trio.Event()
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                async with lives.producer("one", sent["one"], 0.02) as process:
                    assert await process.wait() == 0, process.errors
                    done.set()

            nursery.start_soon(send)
            for passing in (1, 2) if step.startswith("claim.") else (3, 8):
                async with lives.node(ready=False, fault=f"{step}:{passing}") as process:
                    assert await process.wait() == -signal.SIGKILL
            async with lives.node() as process:
                await done.wait()
                await stop(process)
    lives.check(sent)
