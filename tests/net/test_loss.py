"""Nothing is lost and nothing doubled: slow peers and connections cut at random moments."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from harness import in_thread, proxy, running, until
from shared_apps import Click, ForwardingApp, NotingApp, OnePE
from test_grades import USERS, expected, send

from s4node import AdapterApp, Client, SyncClient

# -- connections that are cut ---------------------------------------------------------------------


async def test_the_sync_client_with_cut_connections_loses_and_doubles_nothing() -> None:
    app = NotingApp()
    async with (
        running(app, partitions=2) as node,
        proxy(node.address, seed=3, most=8000, cuts=10) as between,
    ):

        def work() -> None:
            with SyncClient(between.address) as client:
                stream = client.stream("clicks")
                for n in range(10_000):
                    stream.send(Click(USERS[n % 7], n))

        await in_thread(work)
        assert between.cuts == 10
    assert app.by_user == expected(10_000)


# -- slow peers -----------------------------------------------------------------------------------


async def test_a_node_ten_times_too_slow_holds_its_sender_back_and_loses_nothing() -> None:
    seen: list[int] = []
    deepest = 0

    async def slowly(_pe: Any, event: Click) -> None:
        seen.append(event.n)
        if event.n % 100 == 0:
            await trio.sleep(0.01)  # 100 events take ten times what sending them takes

    app, settings = OnePE(slowly), {"s4.stream.workQueueSize": "400"}
    async with running(app, settings) as node, Client(node.address, queue_size=400) as client:
        stream = await client.stream("clicks")
        for n in range(5000):
            await stream.send(Click("ann", n))
            deepest = max(deepest, n - len(seen))
        assert await stream.flush() == []
        (stage,) = (one for one in node.statistics().stages if one.stage == "stream")
        assert stage.highest <= 400
    assert seen == list(range(5000))
    assert deepest <= 400 + 400 + 256  # the node's queue, the client's, and its breath


async def test_one_slow_partition_does_not_hold_up_the_others() -> None:
    release = trio.Event()
    seen: tuple[list[int], list[int]] = ([], [])

    async def slow_at_0(pe: Any, event: Click) -> None:
        if pe.partition == 0:
            await release.wait()
        seen[pe.partition].append(event.n)

    app, settings = OnePE(slow_at_0), {"s4.stream.workQueueSize": "100"}
    async with running(app, settings, partitions=2) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        home = node.partitioner.partition_of
        users = [
            next(u for u in map(str, range(99)) if home(u) == partition) for partition in (0, 1)
        ]
        await stream.send_many([Click(users[n % 2], n) for n in range(10_000)])
        await until(lambda: len(seen[1]) == 5000)
        assert seen[0] == []
        release.set()
        assert await stream.flush() == []
    assert seen == (list(range(0, 10_000, 2)), list(range(1, 10_000, 2)))


async def test_a_slow_consumer_holds_back_the_tasks_that_feed_it_and_then_their_source() -> None:
    seen: list[int] = []

    async def slowly(_pe: Any, event: Click) -> None:
        seen.append(event.n)
        if event.n % 100 == 0:
            await trio.sleep(0.005)

    small = {"s4.stream.workQueueSize": "200", "s4.remoteSender.workQueueSize": "200"}
    deepest = 0
    async with running(OnePE(slowly, "onward"), small) as end:
        settings = {
            **small,
            "s4.stream.onward.consumers": "end",
            "s4.cluster.end.address": end.address,
            "s4.step.maxEvents": "100",
        }
        async with (
            running(ForwardingApp(), settings) as node,
            Client(node.address, queue_size=200) as client,
        ):
            stream = await client.stream("clicks")
            for n in range(4000):
                await stream.send(Click("ann", n))
                deepest = max(deepest, n - len(seen))
            assert await stream.flush() == []
            await until(lambda: len(seen) == 4000)
    assert seen == list(range(4000))
    assert deepest <= 1500  # two nodes' queues of 200, two senders' of 200, frames and steps


async def test_a_source_that_sends_too_fast_waits_and_loses_nothing() -> None:
    seen: list[int] = []
    most = 0.0
    full = trio.Event()

    async def slowly(_pe: Any, event: Click) -> None:
        await full.wait()  # nothing moves before the source has put all that it may
        seen.append(event.n)
        if event.n % 100 == 0:
            await trio.sleep(0.005)

    class Source(AdapterApp):
        output_stream = "clicks"

        def on_start(self) -> None:
            self.start_soon(self.feed)

        async def feed(self) -> None:
            nonlocal most
            for n in range(5000):
                await self.remote_stream.send(Click("ann", n))
                most = max(most, self.remote_stream.pressure)
                if most >= 1.0:
                    full.set()

    async with running(OnePE(slowly), {"s4.stream.workQueueSize": "200"}) as end:
        settings = {
            "s4.stream.clicks.consumers": "end",
            "s4.cluster.end.address": end.address,
            "s4.remoteSender.workQueueSize": "300",
        }
        async with running(Source(), settings):
            await until(lambda: len(seen) == 5000)
    assert seen == list(range(5000))
    assert most == 1.0


@pytest.mark.parametrize("side", ["verdicts", "events"])
async def test_a_connection_that_stalls_without_an_end_costs_nothing_but_time(side: str) -> None:
    app = NotingApp()
    async with (
        running(app, {"s4.stream.workQueueSize": "500"}) as node,
        proxy(node.address) as between,
        Client(between.address, queue_size=500) as client,
    ):
        stream = await client.stream("clicks")
        await send(stream, 1000, 1)
        await stream.flush()
        between.stall(side)
        with trio.move_on_after(0.3) as patience:
            await send(stream, 100_000, 1)
        assert patience.cancelled_caught
        assert len(app.seen) < 3000
        sent = stream.counts["admitted"] + stream.counts["pending"]
        between.go_on()
        assert await stream.flush() == []
        assert stream.counts["admitted"] == sent
    assert len(app.seen) == sent
