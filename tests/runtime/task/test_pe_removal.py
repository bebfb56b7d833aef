"""PE instances are removed, and singletons are made, each once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from harness import deliver, free_port, running, until
from shared_apps import Click, Count, Ignore, NotingApp, OnePE, Total

from s4node import ProcessingElement


async def test_on_remove_is_called_on_a_removed_instance_and_the_next_event_makes_another() -> None:
    story: list[Any] = []

    class Session(ProcessingElement):
        n: int = 0

        def on_create(self) -> None:
            story.append(("created", self.key))

        def on_event(self, event: Click) -> None:
            self.n += 1
            if event.n == 0:
                self.remove()
            story.append((self.key, self.n))

        def on_remove(self) -> None:
            story.append(("removed", self.key))

    app = OnePE(Session)
    async with running(app) as node:
        await deliver(node.address, [Click("ann", 1), Click("ann", 0), Click("ann", 1)])
    assert story == [
        ("created", "ann"),
        ("ann", 1),
        ("removed", "ann"),
        ("ann", 2),
        ("created", "ann"),
        ("ann", 1),
    ]


async def test_every_hook_may_be_async() -> None:
    story: list[Any] = []

    class Session(ProcessingElement):
        async def on_create(self) -> None:
            await trio.lowlevel.checkpoint()
            story.append(("created", self.key))

        async def on_event(self, event: Click) -> None:
            await trio.lowlevel.checkpoint()
            story.append((self.key, event.n))

        async def on_trigger(self, event: Click) -> None:
            await trio.lowlevel.checkpoint()
            story.append(("triggered", self.key))
            self.remove()

        async def on_remove(self) -> None:
            await trio.lowlevel.checkpoint()
            story.append(("removed", self.key))

    app = OnePE(Session)
    app.pe.set_trigger(Click, events=2)
    async with running(app) as node:
        await deliver(node.address, [Click("ann", 1), Click("ann", 2)])
        assert node.statistics().tasks[0].instances == {"Session": 0}
    assert story == [
        ("created", "ann"),
        ("ann", 1),
        ("ann", 2),
        ("triggered", "ann"),
        ("removed", "ann"),
    ]


async def test_a_singleton_is_one_for_each_partition_and_made_before_the_first_event() -> None:
    made: list[int] = []
    counts: Counter[int] = Counter()

    class Board(ProcessingElement):
        def on_create(self) -> None:
            assert self.key is None
            made.append(self.partition)

        def on_event(self, event: Click) -> None:
            assert self.key is None
            counts[self.partition] += 1

    app = OnePE(Board)
    app.pe.set_singleton()
    async with running(app, partitions=3) as node:
        assert made == [0, 1, 2]
        await deliver(node.address, [Click(f"user{n}") for n in range(300)])
    assert made == [0, 1, 2]
    assert sum(counts.values()) == 300
    assert set(counts) == {0, 1, 2}


async def test_a_container_listens_once_its_singletons_are_made() -> None:
    port = free_port()
    listening: list[bool] = []

    class Board(Ignore):
        async def on_create(self) -> None:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            except OSError:
                listening.append(False)
            else:
                listening.append(True)

    app = OnePE(Board, key=None)
    app.pe.set_singleton()
    async with running(app, partitions=2, address=f"tcp://127.0.0.1:{port}") as node:
        await deliver(node.address, [Click("ann")])
    assert listening == [False, False]


async def test_an_unkeyed_stream_reaches_a_singleton_and_every_instance_made_by_another() -> None:
    app = NotingApp(types=Click | Total, note=lambda pe, event: (pe.key, event.n))
    app.create_input_stream("everyone", app.pe, types=Total)
    async with running(app) as node:
        await deliver(node.address, [Click("ann"), Click("bob")])
        await deliver(node.address, [Total("-", 7)], "everyone")
    assert app.seen == [("ann", 0), ("bob", 0), ("ann", 7), ("bob", 7)]


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_on_remove_may_put_what_the_instance_has_gathered(kind: str) -> None:
    class Plain(Count):
        def on_remove(self) -> None:
            self.app.totals.put(Total(self.key, self.n))

    class Async(Plain):
        async def on_remove(self) -> None:
            await trio.lowlevel.checkpoint()
            super().on_remove()

    app = NotingApp("others", types=Total)
    app.totals = app.create_stream("totals", app.pe, key="user")
    count = app.create_pe({"plain": Plain, "async": Async}[kind])
    count.set_pe_cache(max_size=1)
    app.create_input_stream("clicks", count, key="user")
    async with running(app) as node:
        await deliver(node.address, [Click("ann"), Click("ann"), Click("bob")])
        await until(lambda: app.seen)
    assert app.seen == [Total("ann", 2)]
