"""Events that wait for an executor's allowance leave by themselves, and before an orderly stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from harness import running, until
from shared_apps import Click, NotingApp

from s4node import AdapterApp, App, Client, Container, Executor, OutputStream, ProcessingElement


class Paced(Executor):
    """Lets up to ten events leave every hundredth of a second, and does not say when to ask."""

    waits_from = 1.0
    _again_at = 0.0

    def allowance(self, now: float) -> int:
        return 10 if now >= self._again_at else 0

    def left(self, events: int) -> None:
        self._again_at = trio.current_time() + 0.01


THROTTLES = {"s4.remoteSender.executor": "throttle"}
OWN = {"s4.remoteSender.executor": f"{__name__}:Paced"}
AT_1000 = {**THROTTLES, "s4.remoteSender.maxRate": "1000"}
FULL = {
    **THROTTLES,
    "s4.remoteSender.maxRate": "20000",
    "s4.remoteSender.workQueueSize": "100",  # less than may leave at a time
}


@pytest.mark.parametrize("settings", [AT_1000, OWN], ids=["throttle", "own"])
async def test_events_of_a_source_that_wait_for_an_allowance_leave_by_themselves(
    settings: dict[str, str],
) -> None:
    class Adapter(AdapterApp):
        remote_stream_types = (Click,)
        output_stream = "clicks"

        def on_start(self) -> None:
            self.start_soon(self.feed)

        async def feed(self) -> None:
            for n in range(120):
                await self.remote_stream.send(Click("joe", n))

    async with consumed_by_noting(Adapter(), settings) as (app, _):
        await until(lambda: app.numbers == list(range(120)))


@pytest.mark.parametrize(
    ("settings", "count"),
    [(FULL, 6000), (AT_1000, 300), (OWN, 100)],
    ids=["full", "throttle", "own"],
)
async def test_a_burst_of_a_handler_beyond_the_allowance_leaves_by_itself(
    settings: dict[str, str], count: int
) -> None:
    async with consumed_by_noting(Bursts(), settings) as (app, bursts):
        async with Client(bursts.address) as client:
            await (await client.stream("bursts")).send(Click("joe", count))
        await until(lambda: app.numbers == list(range(count)))


@pytest.mark.parametrize("settings", [AT_1000, OWN], ids=["throttle", "own"])
async def test_an_orderly_stop_waits_for_what_waits_for_an_allowance(
    settings: dict[str, str],
) -> None:
    async with consumed_by_noting(Bursts(), settings) as (app, bursts):
        async with Client(bursts.address) as client:
            stream = await client.stream("bursts")
            await stream.send(Click("joe", 300))
            await stream.flush()
        bursts.stop()
    assert app.numbers == list(range(300))


async def test_events_of_an_input_that_wait_for_an_allowance_are_processed_by_themselves() -> None:
    app = NotingApp()
    async with running(app, {"s4.stream.executor": OWN["s4.remoteSender.executor"]}) as node:
        async with Client(node.address) as client:
            await (await client.stream("clicks")).send_many([Click("joe", n) for n in range(30)])
        await until(lambda: app.numbers == list(range(30)))


# -- set-up ---------------------------------------------------------------------------------------


class Burst(ProcessingElement):
    out: OutputStream

    def on_event(self, event: Click) -> None:
        for n in range(event.n):
            self.out.put(Click(event.user, n))


class Bursts(App):
    """Puts as many clicks on its output stream as a click says."""

    def __init__(self) -> None:
        super().__init__("bursts")
        burst = self.create_pe(Burst)
        self.create_input_stream("bursts", burst, key="user")
        burst.out = self.create_output_stream("clicks", key="user", types=Click)


@asynccontextmanager
async def consumed_by_noting(
    app: App, settings: dict[str, str]
) -> AsyncIterator[tuple[NotingApp, Container]]:
    """Run an app whose output stream a noting app consumes."""
    noting = NotingApp()
    async with running(noting) as consumer:
        wiring = {"s4.stream.clicks.consumers": "c", "s4.cluster.c.address": consumer.address}
        async with running(app, {**wiring, **settings}) as container:
            yield noting, container
