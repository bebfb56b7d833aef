"""A node and its producers over sockets, each of which is killed and started again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio
from harness import NodeProcess, environment, free_port, s4_process
from saved_state import saved_instances, saved_producers

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
        return s4_process(*self.arguments, *arguments, cwd=self.folder, **more)

    @asynccontextmanager
    async def producer(self, name: str, count: int, pause: float) -> AsyncIterator[NodeProcess]:
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
        while lives < 2 or not enough.is_set():
            async with self.producer(name, count, 0.01) as process:
                with trio.move_on_after(0.3 + 0.2 * lives + random.random()):
                    await process.wait()
            lives += 1
        async with self.producer(name, count, 0.0) as process:
            assert await process.wait() == 0, process.errors
            assert process.stdout[-1] == f"all {count}"

    def check(self, sent: dict[str, int]) -> None:
        kept = saved_instances(self.state / "default" / "counting")
        expected = Counter(
            f"{name} {n % USERS}" for name, count in sent.items() for n in range(count)
        )
        assert {key: each["clicks"] for key, each in kept.items()} == expected
        assert [key for key, each in kept.items() if each["wrong"]] == []
        numbers: Counter[str] = Counter()
        for rows in saved_producers(self.state / "default" / "counting").values():
            for (stream, name), row in rows.items():
                assert stream == "clicks"
                if not name.startswith("~"):  # what tasks have sent each other
                    numbers[name] += row.number
        assert numbers == sent
