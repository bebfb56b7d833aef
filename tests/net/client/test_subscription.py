"""Programs outside read what an app puts on its streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from harness import running, until
from several_containers import USERS, nodes
from shared_apps import Click, OnePE, Total

from s4node import App, Client, Event, GenericEvent, OutputStream, ProcessingElement
from s4node.errors import ConnectionRefused


async def test_a_subscriber_gets_what_comes_from_its_hello_on() -> None:
    async with running(sums()) as node, Client(node.address) as client:
        clicks_ = await client.stream("clicks")
        await clicks_.send(Click("before"))
        await clicks_.flush()
        async with client.subscribe("totals", types=[Total]) as totals:
            await clicks_.send_many([Click("joe")] * 4)
            await clicks_.flush()
            found: list[Any] = []
            async for event in totals:
                found.append(event)
                if len(found) == 5:
                    break
        assert found[:3] == [Total("joe", 1), Total("joe", 2), Total("joe", 3)]
        assert isinstance(found[3], GenericEvent)
        assert dict(found[3].attributes) == {"user": "joe"}
        assert found[4] == Total("joe", 4)
        assert totals.missed == 0
        await until(lambda: not node.parts.readers.subscribers, "the node forgets who is gone")


async def test_a_slow_subscriber_misses_events_and_is_told_how_many() -> None:
    async with (
        running(sums(), {"s4.remoteSender.workQueueSize": "100"}) as node,
        Client(node.address) as client,
        client.subscribe("totals", types=[Total], queue_size=50) as totals,
    ):
        clicks_ = await client.stream("clicks")
        await clicks_.send_many([Click("joe")] * 5000)
        assert await clicks_.flush() == []
        await until(lambda: totals.missed)
        read = 0
        async for _ in totals:
            read += 1
            if read + totals.missed == 5001:
                break
        assert 50 <= read <= 300


async def test_a_stream_that_is_not_put_on_cannot_be_read() -> None:
    async with running(sums()) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="its streams are: totals"):
            async with client.subscribe("clicks"):
                pass


async def test_every_container_of_the_app_is_read_from(tmp_path: Path) -> None:
    async with nodes(tmp_path, sums, 3) as (all_nodes, _):
        async with Client(all_nodes.containers["n0"].address) as client:
            clicks_ = await client.stream("clicks")
            async with client.subscribe("totals", types=[Total]) as totals:
                await until(
                    lambda: all(c.parts.readers.subscribers for c in all_nodes.containers.values()),
                    "all three are asked",
                )
                await clicks_.send_many([Click(user) for user in USERS])
                found = []
                async for total in totals:
                    found.append(total.user)
                    if len(found) == len(USERS):
                        break
        assert sorted(found) == sorted(USERS)


async def test_a_subscriber_that_reads_nothing_costs_the_app_nothing() -> None:
    async with (
        running(sums(), {"s4.remoteSender.workQueueSize": "100"}) as node,
        Client(node.address) as client,
        client.subscribe("totals", queue_size=10),
    ):
        clicks_ = await client.stream("clicks")
        with trio.fail_after(20):
            await clicks_.send_many([Click(f"user-{n % 9}") for n in range(20_000)])
            assert await clicks_.flush() == []
        assert node.processed == 20_000


# -- set-up ---------------------------------------------------------------------------------------


class Alarm(Event):
    user: str


class Sum(ProcessingElement):
    n: int = 0
    totals: OutputStream

    def on_event(self, click: Click) -> None:
        self.n += 1
        self.totals.put(Total(click.user, self.n))
        if self.n == 3:
            self.totals.put(Alarm(click.user))


def sums() -> App:
    app = OnePE(Sum)
    app.pe.totals = app.create_output_stream("totals", types=[Total, Alarm])
    return app
