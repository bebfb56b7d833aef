"""An app is made, initialised, started, fed by its sources, and closed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from harness import deliver, running, until
from shared_apps import Click, HoldingApp, Ignore, NotingApp, handling

from s4node import App
from s4node.errors import GraphError, LifecycleError, SourceError, WouldBlock


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_an_app_is_initialised_started_and_closed_in_this_order(kind: str) -> None:
    story: list[str] = []

    class Plain(App):
        def on_init(self) -> None:
            story.append("on_init")
            listen = self.create_pe(handling(lambda *_: story.append("event")))
            self.create_input_stream("clicks", listen, key="user")

        def on_start(self) -> None:
            story.append("on_start")

        def on_close(self) -> None:
            story.append("on_close")

    class Async(App):
        async def on_init(self) -> None:
            await trio.lowlevel.checkpoint()
            Plain.on_init(self)

        async def on_start(self) -> None:
            await trio.lowlevel.checkpoint()
            Plain.on_start(self)

        async def on_close(self) -> None:
            await trio.lowlevel.checkpoint()
            Plain.on_close(self)

    app = {"plain": Plain, "async": Async}[kind]()
    assert app.name == kind.title()
    async with running(app) as node:
        await deliver(node.address, [Click("ann")])
    assert story == ["on_init", "on_start", "event", "on_close"]


async def test_an_app_s_own_constructor_may_declare_and_need_not_call_the_inherited_one() -> None:
    seen: list[Any] = []

    def note(pe: Any, click: Click) -> None:
        seen.append((pe.app.name, click.user, pe.app.greeting))

    class Forgetful(App):
        def __init__(self) -> None:
            self.greeting = "hello"
            self.create_input_stream("clicks", self.create_pe(handling(note)), key="user")

    class Late(Forgetful):
        def __init__(self) -> None:
            super().__init__()
            App.__init__(self, "late")

    for app in (Forgetful(), Late()):
        async with running(app) as node:
            await deliver(node.address, [Click("ann")])
    assert seen == [("Forgetful", "ann", "hello"), ("late", "ann", "hello")]


async def test_on_init_sees_the_parameters_and_the_number_of_partitions() -> None:
    seen: list[Any] = []

    class Configured(App):
        def on_init(self) -> None:
            seen.append((dict(self.parameters), self.partitions))
            self.create_input_stream("clicks", self.create_pe(Ignore), key="user")

    settings = {"s4.app.threshold": "42", "s4.app.greeting": "good day"}
    async with running(Configured(), settings, partitions=3):
        pass
    assert seen == [({"threshold": "42", "greeting": "good day"}, 3)]


@pytest.mark.parametrize("hook", ["on_init", "on_start", "on_close"])
async def test_what_an_apps_hook_raises_stops_the_app_naming_app_and_hook(hook: str) -> None:
    class Broken(App):
        def on_init(self) -> None:
            self.create_input_stream("clicks", self.create_pe(Ignore), key="user")
            self.fail("on_init")

        def on_start(self) -> None:
            self.fail("on_start")

        def on_close(self) -> None:
            self.fail("on_close")

        def fail(self, where: str) -> None:
            if where == hook:
                raise ZeroDivisionError(where)

    words = f"{hook} of app 'Broken' raised ZeroDivisionError: {hook}; "
    after = "the rest of the app has ended" if hook == "on_close" else "the app cannot run"
    kind = LifecycleError if hook == "on_close" else GraphError
    with pytest.raises(kind, match=words + after) as told:
        async with running(Broken()):
            assert hook == "on_close"
    assert isinstance(told.value.__cause__, ZeroDivisionError)


async def test_a_source_feeds_the_app_and_is_cancelled_when_the_app_begins_to_stop() -> None:
    story: list[str] = []

    class Ticking(NotingApp):
        def on_init(self) -> None:
            self.ticks = self.create_stream("ticks", self.pe, key="user")

        def on_start(self) -> None:
            self.start_soon(self.tick, 1000)

        async def tick(self, count: int) -> None:
            try:
                await self.ticks.send(Click("ann", 0))
                await self.ticks.send_many([Click("ann", n) for n in range(1, count)])
                await trio.sleep_forever()
            finally:
                story.append("source ended")

        def on_close(self) -> None:
            story.append("on_close")

    app = Ticking()
    async with running(app):
        await until(lambda: len(app.seen) == 1000)
    assert app.numbers == list(range(1000))
    assert story == ["source ended", "on_close"]


async def test_an_exception_that_leaves_a_source_stops_the_app() -> None:
    class Broken(App):
        def on_init(self) -> None:
            self.create_stream("clicks", self.create_pe(Ignore), key="user")

        def on_start(self) -> None:
            self.start_soon(self.read)

        async def read(self) -> None:
            raise FileNotFoundError("lines.txt")

    with pytest.raises(
        SourceError, match=r"source read of app 'Broken' raised .*lines\.txt"
    ) as told:
        async with running(Broken()):
            await trio.sleep_forever()
    assert isinstance(told.value.__cause__, FileNotFoundError)


async def test_a_source_waits_while_the_stream_is_full_and_sees_the_pressure() -> None:
    story: list[Any] = []

    class Feeding(HoldingApp):
        def on_init(self) -> None:
            self.clicks = self.create_stream("inner", self.pe, key="user")

        def on_start(self) -> None:
            self.start_soon(self.feed)

        async def feed(self) -> None:
            for n in range(10):
                await self.clicks.send(Click("ann", n))
            story.append(self.clicks.pressure)
            with pytest.raises(WouldBlock):
                self.clicks.send_nowait(Click("ann", 99))
            self.may_go_on.set()
            await self.clicks.send(Click("ann", 10))
            story.append("went on")

    app = Feeding()
    async with running(app, {"s4.stream.workQueueSize": "10"}):
        await until(lambda: len(app.seen) == 11)
    assert [click.n for click in app.seen] == list(range(11))
    assert story == [1.0, "went on"]
