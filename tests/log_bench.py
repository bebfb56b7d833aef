"""A log in a process of its own, and apps in other processes that read it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from harness import free_port, plain_errors, s4_process
from saved_state import saved_positions
from shared_apps import KEEPER

from s4node import Event
from s4node.systems.embedded_log import EmbeddedLog

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


@asynccontextmanager
async def separate_log(folder: Path) -> AsyncIterator[EmbeddedLog]:
    """A log in a process of its own, as yet without streams."""
    (folder / "keeper.py").write_text(KEEPER)
    port = free_port()
    keeper = [
        "run",
        folder / "keeper.py",
        "--listen",
        f"tcp://127.0.0.1:{port}",
        "-p",
        f"s4.log.folder={folder / 'log'}",
    ]
    log = EmbeddedLog("log", f"tcp://127.0.0.1:{port}")
    with plain_errors(), trio.fail_after(100):
        async with s4_process(*keeper, cwd=folder), trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            yield log
            nursery.cancel_scope.cancel()


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
        """A row for each processed event: the process, and its fields."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [tuple(line.split()) for line in lines]

    def offsets(self, app: str) -> dict[int, int]:
        found = saved_positions(self.folder / "state" / "default" / app)
        return {
            int(place[:-1].rpartition("[")[2]): at
            for positions in found.values()
            for place, at in positions.items()
        }


@asynccontextmanager
async def bench(folder: Path, partitions: int = 2, key: str = "") -> AsyncIterator[Bench]:
    async with separate_log(folder) as log:
        await log.create("clicks", partitions, key=key)
        yield Bench(folder, log)


async def append(log: EmbeddedLog, first: int, end: int, partitions: int = 2) -> None:
    for partition in range(partitions):
        mine = [
            Click(f"user-{n % 13}", n) for n in range(first, end) if n % partitions == partition
        ]
        await log.append("clicks", partition, mine)
