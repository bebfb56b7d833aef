"""Triggers and the timers of PEs: when they fire, for which instances, and what they put."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from harness import deliver, running, until
from shared_apps import Click, Count, Ignore, NotingApp, OnePE, Total, handler_of, pe_class

from s4node import App, Client, ProcessingElement


async def test_a_trigger_counts_from_zero_for_a_new_instance() -> None:
    fired: list[Any] = []

    app = OnePE(
        pe_class(
            on_event=handler_of(Click, lambda pe, event: event.n or pe.remove()),
            on_trigger=handler_of(Click, lambda _pe, event: fired.append(event.n)),
        )
    )
    app.pe.set_trigger(Click, events=2)
    async with running(app) as node:
        await deliver(node.address, [Click("ann", n) for n in (1, 0, 2, 3, 4, 0, 5, 6)])
    assert fired == [3, 6]


async def test_a_pe_fed_by_its_timer_alone_needs_no_on_event() -> None:
    fired: list[Any] = []

    app = App("timers")
    beat = app.create_pe(pe_class("Beat", on_time=lambda self: fired.append(self.partition)))
    beat.set_singleton()
    beat.set_timer_interval(0.01)
    app.create_input_stream("clicks", app.create_pe(Ignore), beat, key="user")
    async with running(app, partitions=3) as node:
        await deliver(node.address, [Click(str(n)) for n in range(50)])
        await until(lambda: set(fired) == {0, 1, 2})


async def test_an_instance_that_an_on_time_removes_gets_no_on_time_itself() -> None:
    story: list[Any] = []
    alive: dict[Any, ProcessingElement] = {}

    class Watch(Ignore):
        def on_create(self) -> None:
            alive[self.key] = self

        def on_time(self) -> None:
            story.append(("time", self.key))
            for other in list(alive):
                if other != self.key:
                    alive[other].remove()

        def on_remove(self) -> None:
            del alive[self.key]
            story.append(("removed", self.key))

    app = OnePE(Watch)
    app.pe.set_timer_interval(0.2)
    async with running(app) as node:
        await deliver(node.address, [Click("ann"), Click("bob"), Click("cid")])
        await until(lambda: len(story) >= 4)
    assert story[:4] == [("time", "ann"), ("removed", "bob"), ("removed", "cid"), ("time", "ann")]


async def test_what_on_time_puts_is_handed_on() -> None:
    class Tell(Count):
        async def on_time(self) -> None:
            await trio.lowlevel.checkpoint()
            self.app.totals.put(Total(self.key, self.n))

    app = NotingApp("others", types=Total)
    app.totals = app.create_stream("totals", app.pe, key="user")
    tell = app.create_pe(Tell)
    tell.set_timer_interval(0.02)
    app.create_input_stream("clicks", tell, key="user")
    async with running(app) as node:
        await deliver(node.address, [Click("ann"), Click("ann"), Click("bob")])
        await until(lambda: Total("ann", 2) in app.seen and Total("bob", 1) in app.seen)


async def test_a_busy_handler_with_a_timer_due_does_not_keep_the_loop_spinning() -> None:
    began, may_end = trio.Event(), trio.Event()
    fired: list[Any] = []

    class Slow(ProcessingElement):
        async def on_event(self, event: Click) -> None:
            began.set()
            await may_end.wait()

        def on_time(self) -> None:
            fired.append(may_end.is_set())

    app = OnePE(Slow)
    app.pe.set_timer_interval(0.01)
    app.create_input_stream("others", app.create_pe(Ignore), key="user")
    async with running(app) as node, Client(node.address) as client:
        await (await client.stream("clicks")).send(Click("ann"))
        await began.wait()
        turns = node.parts.loop.turns
        await trio.testing.wait_all_tasks_blocked(0.02)  # twice the interval, nothing has run
        assert node.parts.loop.turns - turns < 20
        may_end.set()
        await until(lambda: fired)
    assert all(fired)
