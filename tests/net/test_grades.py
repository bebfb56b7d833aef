"""A stream of each grade over real sockets: an event is there once, whatever dies or is cut.

What a live stream has is in its app; what a durable stream has is in the state that commits have
saved; what a stream of the embedded log has is read from there.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import free_port, proxy, until, until_told
from lives import Lives, lives
from log_nodes import log_at, read_all
from saved_state import saved_instances, saved_producers
from shared_apps import Click, CountingApp, Ignore, NotingApp, OnePE

from s4node import App, Client, ClientStream
from s4node.offsets.startpoint import Oldest

USERS = [f"user{n}" for n in range(7)]


class Fast:
    """A live stream; its events are in the app."""

    settings: dict[str, str] = {}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        self.app: Any = None
        self.folder = Path()

    def new_app(self, key: Any) -> App:
        self.app = NotingApp(key=key)
        return self.app  # type: ignore[no-any-return]

    async def begin(self, node: Lives, key: Any = "user") -> None:
        await node.begin(self.new_app(key))

    async def events(self, _address: str, count: int) -> dict[str, list[int]]:
        """The numbers of each user, once ``count`` events are there."""
        await until(lambda: sum(map(len, self.app.by_user.values())) >= count)
        return self.app.by_user  # type: ignore[no-any-return]

    async def saved(self, address: str, count: int) -> dict[str, list[int]]:
        return await self.events(address, count)


class Durable(Fast):
    """A durable stream, committed when its producer asks; its events are in the saved state."""

    settings = {"s4.stream.clicks.grade": "durable", "task.commit.ms": "0"}  # noqa: RUF012

    def new_app(self, key: Any) -> App:
        self.app = CountingApp(key=key)
        return self.app  # type: ignore[no-any-return]

    async def events(self, _address: str, count: int) -> dict[str, list[int]]:
        await until(lambda: sum(map(len, self.app.seen.values())) >= count)
        return self.app.seen  # type: ignore[no-any-return]

    async def saved(self, _address: str, count: int) -> dict[str, list[int]]:
        """As ``events``, of the last commits: after a crash no event may be left to come."""
        place = self.folder / "default" / "counting"
        found: dict[str, Any] = {}
        while sum(len(each["seen"]) for each in found.values()) < count:
            await trio.lowlevel.checkpoint()
            found = saved_instances(place)
        return {key: each["seen"] for key, each in found.items()}


class Log(Fast):
    """A stream of the embedded log."""

    async def begin(self, node: Lives, key: Any = "user") -> None:
        container = await node.begin(OnePE(Ignore, "live", name="some"))
        async with log_at(container.address) as log:
            await log.create("clicks", len(container.tasks), key=key)

    async def events(self, address: str, count: int) -> dict[str, list[int]]:
        async with log_at(address) as log:
            await until_told(lambda: log.describe("clicks"), lambda told: _appended(told) >= count)
            assert _appended(await log.describe("clicks")) == count
        found = defaultdict(list)
        for click in await read_all(address, "clicks", count, types=Click, start=Oldest()):
            found[click.user].append(click.n)
        return found


def _appended(described: Any) -> int:
    return sum(each["upcoming"] for each in described["partitions"])


GRADES = {"fast": Fast, "durable": Durable, "log": Log}
SAVED = ["durable", "log"]  # survive their node


@asynccontextmanager
async def nodes(folder: Path, grade: Fast, partitions: int = 2) -> AsyncIterator[tuple[Lives, str]]:
    """Where nodes with a stream of the grade live one after the other, and their address."""
    address = f"tcp://127.0.0.1:{free_port()}"
    settings = {
        "s4.listener.address": address,
        "s4.cluster.partitions": str(partitions),
        "s4.stream.workQueueSize": "1000",
        "s4.watchdog.ms": "0",
        "s4.state.folder": str(folder / "state"),
        "s4.log.folder": str(folder / "log"),
    }
    grade.folder = folder / "state"
    async with lives(settings | grade.settings) as node:
        yield node, address


def clicks_of(first: int, end: int) -> list[Click]:
    return [Click(USERS[n % len(USERS)], n) for n in range(first, end)]


def expected(total: int, without: tuple[int, ...] = ()) -> dict[str, list[int]]:
    """The numbers of each user, but for those whose last digit is in ``without``."""
    return {
        user: [n for n in range(at, total, len(USERS)) if n % 10 not in without]
        for at, user in enumerate(USERS)
    }


async def send(stream: ClientStream, total: int, seed: int) -> None:
    """Send ``total`` clicks of changing users and sizes, in bursts of changing length."""
    chance = random.Random(seed)
    n = 0
    while n < total:
        burst = min(chance.choice([1, 1, 10, 300]), total - n)
        clicks = [
            Click(click.user, click.n, "x" * chance.choice([0, 0, 50, 500]))
            for click in clicks_of(n, n + burst)
        ]
        if burst == 1:
            await stream.send(clicks[0])
        else:
            await stream.send_many(clicks)
        n += burst
        if chance.random() < 0.2:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("grade", SAVED)
async def test_events_without_a_verdict_are_sent_again_when_the_node_has_died(
    tmp_path: Path, grade: str
) -> None:
    stream = GRADES[grade]()
    async with nodes(tmp_path, stream) as (node, address):
        await stream.begin(node)
        async with Client(address, producer="clicker") as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 100))
            assert await clicks.flush() == []
            for end in (200, 300):
                await clicks.send_many(clicks_of(end - 100, end))
                if grade == "durable":  # processed, and in no commit
                    await until(lambda end=end: sum(map(len, stream.app.seen.values())) == end)
                    assert clicks.counts["admitted"] == 100
                await node.crash()
                await stream.begin(node)
            assert await clicks.flush() == []
            assert clicks.counts["admitted"] == 300
        assert await stream.saved(address, 300) == expected(300)


@pytest.mark.parametrize("grade", SAVED)
async def test_a_program_that_dies_sends_all_again_and_only_what_is_new_is_taken(
    tmp_path: Path, grade: str
) -> None:
    stream = GRADES[grade]()
    async with nodes(tmp_path, stream) as (node, address):
        await stream.begin(node)
        for end in (60, 130, 200):
            async with Client(address, producer="clicker") as client:
                clicks = await client.stream("clicks", again=True)
                await clicks.send_many(clicks_of(0, end))
                assert await stream.events(address, end) == expected(end)
                client.abandon()
        async with Client(address, producer="clicker") as client:
            clicks = await client.stream("clicks", again=True)
            await clicks.send_many(clicks_of(0, 200))
            assert await clicks.flush() == []
            assert clicks.counts["admitted"] == 200
        assert await stream.events(address, 200) == expected(200)


@pytest.mark.parametrize("grade", SAVED)
async def test_a_program_goes_on_where_its_last_life_stopped_although_the_node_dies(
    tmp_path: Path, grade: str
) -> None:
    stream = GRADES[grade]()
    async with nodes(tmp_path, stream, partitions=1) as (node, address):
        for _ in range(2):  # of the node
            await stream.begin(node)
            for _ in range(2):  # of the program
                async with Client(address, producer="clicker") as client:
                    clicks = await client.stream("clicks")
                    first = await clicks.resume_at()
                    await clicks.send_many(clicks_of(first, first + 50))
                    assert await clicks.flush() == []
            await node.crash()
        await stream.begin(node)
        async with Client(address, producer="clicker") as client:
            clicks = await client.stream("clicks")
            assert await clicks.resume_at() == 200
            if grade == "durable":
                (rows,) = saved_producers(tmp_path / "state" / "default" / "counting").values()
                assert [row.number for row in rows.values()] == [200]
            await clicks.send_many(clicks_of(200, 207))
            assert await clicks.flush() == []
        assert await stream.events(address, 207) == expected(207)


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(4))
async def test_a_connection_cut_at_random_loses_and_doubles_nothing(
    tmp_path: Path, seed: int, partitions: int, grade: str
) -> None:
    stream = GRADES[grade]()
    async with nodes(tmp_path, stream, partitions) as (node, address):
        await stream.begin(node)
        async with (
            proxy(address, seed=seed, cuts=12) as between,
            Client(between.address) as client,
        ):
            clicks = await client.stream("clicks")
            await send(clicks, 10_000, seed)
            assert await clicks.flush() == []
            assert clicks.counts["admitted"] == 10_000
            assert between.cuts >= 10
        assert await stream.events(address, 10_000) == expected(10_000)


@pytest.mark.parametrize("grade", ["fast", "durable"])  # the log has no function for a key
@pytest.mark.parametrize("seed", range(4))
async def test_refusals_are_known_to_the_sender_however_often_the_connection_is_cut(
    tmp_path: Path, seed: int, grade: str
) -> None:
    def find(event: Click) -> str:
        if event.n % 10 == 3:
            raise ValueError("three")
        return event.user

    stream = GRADES[grade]()
    async with nodes(tmp_path, stream, partitions=1) as (node, address):
        await stream.begin(node, find)
        async with (
            proxy(address, seed=seed, least=100, most=30_000, cuts=20) as between,
            Client(between.address) as client,
        ):
            clicks = await client.stream("clicks")
            await send(clicks, 5000, seed)
            refused = await clicks.flush()
            assert between.cuts >= 15
            assert sorted(one.number for one in refused) == list(range(3, 5000, 10))
            assert clicks.counts == {
                "admitted": 4500,
                "shed": 0,
                "refused": 500,
                "unsent": 0,
                "pending": 0,
            }
        assert await stream.events(address, 4500) == expected(5000, without=(3,))
