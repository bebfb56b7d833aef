"""Durable streams in real containers: what producers send counts once, whatever dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import free_port, until

from s4node import App, Client, Config, Container, Event, ProcessingElement


class Click(Event):
    user: str
    number: int = 0


class Count(ProcessingElement):
    count: int = 0
    seen: list[int] = []  # noqa: RUF012 - copied for each instance

    def on_event(self, event: Click) -> None:
        self.count += 1
        self.seen.append(event.number)
        self.app.counts[self.key] = self.count
        self.app.seen[self.key] = list(self.seen)


class Counting(App):
    """Counts clicks by user. What it notes is of this object, so of one life."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.counts: dict[Any, int] = {}
        self.seen: dict[Any, list[int]] = {}

    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(Count), key="user")


USERS = ["joe", "ann", "eve", "bob"]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "s4.stream.clicks.grade": "durable",
        "s4.state.folder": str(tmp_path / "state"),
        "s4.listener.address": f"tcp://127.0.0.1:{free_port()}",
        "s4.cluster.partitions": "2",
        "s4.watchdog.ms": "0",
        "task.commit.ms": "60000",
    }


class Lives:
    """Containers of one address, one after the other; each ends at once, without a last commit."""

    def __init__(self, nursery: trio.Nursery, settings: dict[str, str]) -> None:
        self._nursery = nursery
        self._settings = settings
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.container: Container

    async def begin(self, app: App, **settings: str) -> Container:
        """Start the next one."""
        self.container = Container(app, Config.of(self._settings | settings))
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._run, self.container)
        await self.container.ready.wait()
        return self.container

    async def _run(self, container: Container) -> None:
        with self._scope:
            await container.run()
        self._ended.set()

    async def crash(self) -> None:
        """End it as it is."""
        self._scope.cancel()
        await self._ended.wait()

    def commit(self) -> None:
        """Have all tasks commit soon."""
        for task in self.container.tasks.values():
            task.want_commit()
            self.container.loop.wake(task)


@asynccontextmanager
async def lives(settings: dict[str, str]) -> AsyncIterator[Lives]:
    """Where containers live; what runs at the end is ended."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            yield Lives(nursery, settings)
            nursery.cancel_scope.cancel()


def clicks_of(first: int, end: int) -> list[Click]:
    return [Click(USERS[n % 4], n) for n in range(first, end)]


def processed(app: Counting) -> int:
    return sum(app.counts.values())


async def test_after_a_crash_a_producer_goes_back_to_what_was_committed(
    settings: dict[str, str],
) -> None:
    first, second = Counting(), Counting()
    async with lives(settings) as node:
        await node.begin(first)
        async with Client(settings["s4.listener.address"], producer="clicker") as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 100))
            await until(lambda: processed(first) == 100)
            assert clicks.counts["admitted"] == 0  # nothing is committed
            node.commit()
            await clicks.flush()
            await clicks.send_many(clicks_of(100, 200))
            await until(lambda: processed(first) == 200)
            assert clicks.counts["admitted"] == 100
            await node.crash()
            await node.begin(second)
            await until(lambda: processed(second) == 200)
            node.commit()
            assert await clicks.flush() == []
            assert clicks.counts["admitted"] == 200
    assert second.counts == dict.fromkeys(USERS, 50)
    for at, user in enumerate(USERS):
        assert second.seen[user] == list(range(at, 200, 4))
