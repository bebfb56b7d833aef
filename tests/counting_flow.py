"""An app that counts by user what comes into a log all the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from log_bench import Bench, Click, bench

from s4node.events.keys import crc32m
from s4node.systems.embedded_log import EmbeddedLog

USERS = 499

# counts in its state, and says so when an event of a key is not the next one
COUNTING = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Count(ProcessingElement):
    clicks: int = 0
    last: int = -1
    wrong: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        self.wrong += event.number <= self.last
        self.last = event.number

class Clicks(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(Count), key="user", system="log")

app = Clicks("counting")
"""


def counting(it: Bench) -> list[str]:
    more = {"task.commit.ms": "10", "s4.cluster.partitions": "2"}
    arguments = it.arguments("elements", **more)
    (it.folder / "elements_app.py").write_text(COUNTING)
    return arguments


async def append_by_key(log: EmbeddedLog, first: int, end: int) -> None:
    """To the partitions of their keys, as a producer would."""
    for partition in range(2):
        mine = [
            Click(f"user-{n % USERS}", n)
            for n in range(first, end)
            if crc32m(f"user-{n % USERS}") % 4096 * 2 // 4096 == partition
        ]
        await log.append("clicks", partition, mine)


class Flow:
    """Events that come all the time."""

    def __init__(self, it: Bench) -> None:
        self.total = 0
        self._over = trio.Event()
        self._ended = trio.Event()
        self._it = it

    async def run(self) -> None:
        while not self._over.is_set():
            await append_by_key(self._it.log, self.total, self.total + 40)
            self.total += 40
            await trio.sleep(0.01)
        self._ended.set()

    async def end(self) -> None:
        self._over.set()
        await self._ended.wait()


@asynccontextmanager
async def flowing(folder: Path) -> AsyncIterator[tuple[Bench, Flow]]:
    async with bench(folder, key="user") as it, trio.open_nursery() as nursery:
        flow = Flow(it)
        nursery.start_soon(flow.run)
        yield it, flow
        await flow.end()
