"""Apps, events and PEs, on running containers with real sockets."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import trio
from harness import free_port, names, plain_errors, running, together, until
from shared_apps import (
    Buy,
    Click,
    Count,
    HoldingApp,
    Ignore,
    NotingApp,
    OnePE,
    Total,
    handler_of,
    handling,
    pe_class,
)
from structlog.testing import capture_logs

from s4node import (
    App,
    Client,
    Config,
    Container,
    Event,
    GenericEvent,
    OfKey,
    ProcessingElement,
    tumbling,
)
from s4node.errors import (
    ConnectionRefused,
    EventError,
    GraphError,
    LifecycleError,
    ProcessingError,
    SourceError,
    WouldBlock,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import trio.testing


# -- apps -----------------------------------------------------------------------------------------


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


# -- events ---------------------------------------------------------------------------------------


async def test_an_older_client_may_leave_out_fields_that_were_appended_since() -> None:
    app = NotingApp("orders", types=Order)
    async with running(app) as node:
        await deliver(node.address, [OldOrder("ann")], "orders")
        await deliver(node.address, [Order("bob", 5, "USD")], "orders")
    assert app.seen == [Order("ann", 0, "EUR"), Order("bob", 5, "USD")]


async def test_a_newer_client_may_send_fields_that_the_app_does_not_know() -> None:
    app = NotingApp("orders", types=OldOrder)
    async with running(app) as node:
        await deliver(node.address, [Order("ann", 5), Order("bob", 7)], "orders")
    assert app.seen == [OldOrder("ann"), OldOrder("bob")]


async def test_a_type_whose_fields_were_changed_is_turned_down_by_name() -> None:
    class Changed(Event):
        event_name = "Click"
        user: int

    app = OnePE(Ignore)
    async with running(app) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="Click: field user: int where this side has"):
            await client.stream("clicks", types=Changed)


async def test_a_type_that_the_stream_does_not_take_is_turned_down_by_name() -> None:
    app = OnePE(Ignore)
    async with running(app) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="takes Click, not 'Buy'"):
            await client.stream("clicks", types=Buy)


async def test_a_stream_of_several_types_keeps_them_apart_and_in_order() -> None:
    app = NotingApp("shop", types=Click | Buy | GenericEvent)
    sent: list[Any] = []
    for n in range(300):
        sent += [Click("ann", n), Buy("ann", n)][: 1 + n % 2]
        sent += [GenericEvent(user="ann", n=n)] * (n % 3)
    async with running(app) as node:
        await deliver(node.address, sent, "shop")
    assert app.seen == sent


async def test_a_stream_declares_types_that_no_handler_names() -> None:
    seen: list[Any] = []

    app = App("shop")
    listen = app.create_pe(handling(lambda _pe, event: seen.append(event), Any))
    app.create_input_stream("shop", listen, key="user", types=[Click, Buy])
    async with running(app) as node:
        await deliver(node.address, [Click("ann", 1), Buy("ann", 2)], "shop")
    assert seen == [Click("ann", 1), Buy("ann", 2)]


async def test_a_generic_event_is_frozen_once_a_client_has_sent_it() -> None:
    seen: list[Any] = []

    def rename(_pe: Any, event: GenericEvent) -> None:
        with pytest.raises(EventError, match="make a new event"):
            event.put("name", "eve")
        seen.append(event["name"])

    app = OnePE(rename, "names", key="name", types=GenericEvent)
    async with running(app) as node, Client(node.address) as client:
        stream = await client.stream("names")
        one, two, three = names("ann", "bob", "cid")
        one.put("age", 7)
        await stream.send(one)
        await stream.send_many([two])
        stream.send_nowait(three)
        for sent in (one, two, three):
            with pytest.raises(EventError, match="already sent"):
                sent.put("name", "eve")
        assert await stream.flush() == []
    assert seen == ["ann", "bob", "cid"]


# -- instances ------------------------------------------------------------------------------------


async def test_each_key_has_an_instance_made_at_its_first_event() -> None:
    story: list[Any] = []

    class Count(ProcessingElement):
        n: int = 0

        def on_create(self) -> None:
            story.append(("made", self.key))

        def on_event(self, event: Click) -> None:
            self.n += 1
            story.append((self.key, self.n))

    app = OnePE(Count)
    async with running(app) as node:
        assert story == []
        await deliver(node.address, [Click("ann"), Click("bob"), Click("ann")])
        await deliver(node.address, [Click("bob")])
        assert node.statistics().tasks[0].instances == {"Count": 2}
    assert story == [
        ("made", "ann"),
        ("ann", 1),
        ("made", "bob"),
        ("bob", 1),
        ("ann", 2),
        ("bob", 2),
    ]


# -- handlers -------------------------------------------------------------------------------------


async def test_handlers_that_nothing_calls_are_reported_once_at_the_start() -> None:
    class Base(ProcessingElement):
        def on_event(self, event: Click) -> None: ...

        def on_time(self) -> None: ...

    class Forgot(Base):
        def on_trigger_click(self, event: Click) -> None: ...

        def on_window(self) -> None: ...

    class Ends(ProcessingElement):
        number: int = 0
        total: OfKey[int] = 0

        def on_event(self, event: Click) -> None: ...

        def on_window(self) -> None: ...

    class Shop(App):
        def on_init(self) -> None:
            every, never = self.create_pe(Base, name="Every"), self.create_pe(Base, name="Never")
            half, whole = self.create_pe(Forgot, name="Half"), self.create_pe(Forgot)
            ends = self.create_pe(Ends)
            self.create_input_stream("clicks", every, never, half, whole, ends, key="user")
            # as an app may do last of all
            every.set_timer_interval(60)
            never.set_timer_interval(0)
            half.set_trigger(Click, events=2)
            ends.set_window(tumbling(60), clock="wall")

    with capture_logs() as logs:
        async with running(Shop(), partitions=3) as node:
            await deliver(node.address, [Click("ann"), Click("bob")], "clicks")
    told = [log for log in logs if "never called" in log["event"]]
    assert [(log["pe"], log["handler"], log["missing"]) for log in told] == [
        ("Half", "on_time", "set_timer_interval"),
        ("Half", "on_window", "set_window"),
        ("Forgot", "on_trigger_click", "set_trigger"),
        ("Forgot", "on_time", "set_timer_interval"),
        ("Forgot", "on_window", "set_window"),
    ]
    assert {(log["log_level"], log["app"]) for log in told} == {("warning", "Shop")}


async def test_a_handler_may_put_only_what_the_stream_takes() -> None:
    app = OnePE(lambda pe, _: pe.app.totals.put(Buy("ann")))
    ignore = app.create_pe(handling(lambda *_: None, Total))
    app.totals = app.create_stream("totals", ignore, key="user")
    with pytest.raises(ProcessingError) as caught:
        await run_until_it_fails(app, [Click("ann")])
    assert isinstance(caught.value.__cause__, EventError)
    assert "stream 'totals' takes Total, not Buy" in str(caught.value)


@pytest.mark.parametrize("kind", ["plain", "async", "on_create", "on_time", "on_trigger"])
async def test_a_pe_that_raises_fails_the_app_and_names_everything(kind: str) -> None:
    class Count(ProcessingElement):
        def on_event(self, event: Click) -> None:
            self.fail("plain", event.n)

        def on_create(self) -> None:
            self.fail("on_create", 3 if self.key == "bob" else 0)

        def on_time(self) -> None:
            self.fail("on_time", 3 if self.key == "bob" else 0)

        def on_trigger(self, event: Click) -> None:
            self.fail("on_trigger", event.n)

        def fail(self, where: str, n: int) -> None:
            if where == kind and n == 3:
                raise ZeroDivisionError("three")

    class AsyncCount(Count):
        async def on_event(self, event: Click) -> None:
            await trio.lowlevel.checkpoint()
            self.fail("async", event.n)

    app = OnePE(AsyncCount if kind == "async" else Count, name="counts")
    app.pe.set_timer_interval(0.01)
    app.pe.set_trigger(Click, events=1)
    with pytest.raises(ProcessingError) as caught:
        await run_until_it_fails(app, [Click("ann", n) for n in range(3)] + [Click("bob", 3)])
    error = caught.value
    position = "on_time in partition 0" if kind == "on_time" else "clicks[0]@web:3"
    assert (error.app, error.pe, error.key) == ("counts", type(app.pe).__name__, "bob")
    assert error.position == position
    assert isinstance(error.__cause__, ZeroDivisionError)
    for part in ("'counts'", type(app.pe).__name__, "'bob'", position, "ZeroDivisionError: three"):
        assert part in str(error)
    assert (".onError" in str(error)) is (kind != "on_time")  # which has no event to leave out
    assert (f"event at {position}" in str(error)) is (kind != "on_time")


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_on_remove_that_raises_fails_the_app_and_names_the_instance(kind: str) -> None:
    class Plain(Ignore):
        def on_remove(self) -> None:
            raise ZeroDivisionError("bye")

    class Async(Ignore):
        async def on_remove(self) -> None:
            await trio.lowlevel.checkpoint()
            raise ZeroDivisionError("bye")

    app = OnePE({"plain": Plain, "async": Async}[kind])
    app.pe.set_pe_cache(max_size=1)
    with pytest.raises(ProcessingError) as caught:
        await run_until_it_fails(app, [Click("ann"), Click("bob")])
    assert (caught.value.pe, caught.value.key) == (kind.title(), "ann")
    assert ".onError" not in str(caught.value)  # there is no event to leave out
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# -- triggers and timers --------------------------------------------------------------------------


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
        for _ in range(50):  # a fiftieth of a second at least
            await trio.sleep(0.0005)
        assert node.parts.loop.turns - turns < 20
        may_end.set()
        await until(lambda: fired)
    assert all(fired)


# -- removing, caches, singletons -----------------------------------------------------------------


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


# -- one at a time --------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
async def test_events_get_a_turn_although_timers_take_longer_than_their_interval(
    waits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    timed: list[Any] = []  # the keys of the calls, in order
    amid = 0  # events that came between two calls of one round

    class Slow(Ignore):
        pass

    if waits:

        async def on_time(self: Any) -> None:
            await trio.sleep(0.01)
            timed.append(self.key)

    else:

        def on_time(self: Any) -> None:  # type: ignore[misc]
            time.sleep(0.01)
            timed.append(self.key)

    Slow.on_time = on_time  # type: ignore[attr-defined]

    def quick(_pe: Any, _buy: Buy) -> None:
        nonlocal amid
        amid += timed[-1] != "user19"

    app = OnePE(Slow)
    app.pe.set_timer_interval(0.05)
    app.create_input_stream("buys", app.create_pe(handling(quick, Buy)), key="user")
    async with running(app) as node:
        await deliver(node.address, [Click(f"user{n}") for n in range(20)])  # a round takes 0.2 s
        await until(lambda: timed.count("user19") > 1)
        async with Client(node.address) as client:
            buys = await client.stream("buys")
            while not amid:
                await buys.send(Buy("ann"))
                assert await buys.flush() == []
        before = len(timed)
        await until(lambda: len(timed) > before + 40)  # they go on, too
    at = before + timed[before:].index("user0")
    assert timed[at : at + 20] == [f"user{n}" for n in range(20)]
    assert capsys.readouterr().err.count("takes longer than the interval of the timer") == 1


async def test_no_two_handlers_run_at_once_for_one_key_while_partitions_go_on_side_by_side() -> (
    None
):
    running_now: Counter[Any] = Counter()
    partitions_now: Counter[int] = Counter()
    most_for_a_key: Counter[Any] = Counter()
    most_at_once = 0

    class Careful(ProcessingElement):
        async def on_event_click(self, event: Click) -> None:
            await self.work()

        async def on_event_buy(self, event: Buy) -> None:
            await self.work()

        async def on_trigger(self, event: Click) -> None:
            await self.work()

        async def on_time(self) -> None:
            await self.work()

        async def work(self) -> None:
            nonlocal most_at_once
            running_now[self.key] += 1
            partitions_now[self.partition] += 1
            most_for_a_key[self.key] = max(most_for_a_key[self.key], running_now[self.key])
            most_at_once = max(most_at_once, sum(running_now.values()))
            assert partitions_now[self.partition] == 1
            await trio.sleep(0.0002)
            running_now[self.key] -= 1
            partitions_now[self.partition] -= 1

    app = OnePE(Careful)
    app.pe.set_timer_interval(0.01)
    app.pe.set_trigger(Click, events=2)
    app.create_input_stream("buys", app.pe, key="user", types=Buy)
    users = [f"user{n}" for n in range(8)]
    async with running(app, partitions=4) as node:
        await together(
            lambda: deliver(node.address, [Click(user) for _ in range(15) for user in users]),
            lambda: deliver(node.address, [Buy(user) for _ in range(15) for user in users], "buys"),
        )
    assert most_for_a_key == dict.fromkeys(users, 1)
    assert most_at_once > 1


async def test_an_async_handler_that_waits_holds_up_its_own_partition_only() -> None:
    may_end = trio.Event()
    seen: list[Any] = []

    async def slowly(pe: Any, click: Click) -> None:
        if click.n:
            await may_end.wait()
        seen.append((pe.partition, click.n))

    app = OnePE(slowly)
    async with running(app, partitions=2) as node:
        home = node.partitioner.partition_of
        here = next(u for u in map(str, range(99)) if home(u) == 0)
        there = next(u for u in map(str, range(99)) if home(u) == 1)
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(here, 1), Click(here, 0)] + [Click(there, 0)] * 5)
            await until(lambda: len(seen) == 5)
            assert seen == [(1, 0)] * 5
            may_end.set()
            assert await clicks.flush() == []
    assert seen == [(1, 0)] * 5 + [(0, 1), (0, 0)]


async def test_errors_come_out_of_run_in_a_group_with_nothing_else_in_it() -> None:
    """What the helper ``plain_errors`` takes off is only trio's groups around one error."""

    container = Container(
        OnePE(lambda *_: 1 / 0), Config.from_values({"s4.listener.address": "tcp://127.0.0.1:0"})
    )

    async def feed() -> None:
        await container.ready.wait()
        async with Client(container.address) as client:
            await (await client.stream("clicks")).send(Click("ann"))
            client.abandon()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        with pytest.raises(ProcessingError), plain_errors():
            await container.run()


class Keyed(Event):
    key: Any
    n: int = 0


KEYS: list[Any] = [1, "x", ["a", "b"]]
WITHOUT_BYTES: list[Any] = ["\ud800", 2**64, ["a", 2**64]]
NO_KEYS: list[Any] = [None, True, 1.0, [], ["a", 1.5], {"a": 1}]


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("by", ["attribute", "function"])
async def test_an_invalid_key_is_refused_for_the_same_reason_with_any_number_of_partitions(
    partitions: int, by: str
) -> None:
    found = [*KEYS, *NO_KEYS] if by == "attribute" else [*KEYS, *NO_KEYS, *WITHOUT_BYTES]
    key: Any = "key" if by == "attribute" else lambda event: found[event.n]
    app = NotingApp("keyed", key=key, types=Keyed, note=lambda pe, _: pe.key)
    reasons = []
    async with running(app, partitions=partitions) as node, Client(node.address) as client:
        stream = await client.stream("keyed")
        for n, given in enumerate(found):
            await stream.send(Keyed(given if by == "attribute" else 0, n))
            reasons.append([refusal.reason for refusal in await stream.flush()])
    assert app.seen == [1, "x", ("a", "b")]
    assert reasons[:3] == [[], [], []]
    for given, (reason,) in zip(found[3:], reasons[3:], strict=True):
        if given in WITHOUT_BYTES:
            told = f"{tuple(given) if isinstance(given, list) else given!r}, which has no bytes"
        else:
            told = f"{given!r} ({type(given).__name__})" if given else "nothing"
        assert reason.startswith(f"the KeyFinder returned {told}")


# -- set-up ---------------------------------------------------------------------------------------


class Order(Event):
    user: str
    cents: int = 0
    currency: str = "EUR"


class OldOrder(Event):
    event_name = "Order"
    user: str


async def deliver(address: str, events: Iterable[Any], stream: str = "clicks") -> None:
    """Send events with a client of their own; return when all have been processed."""
    async with Client(address) as client:
        clicks = await client.stream(stream)
        await clicks.send_many(events)
        assert await clicks.flush() == []


async def run_until_it_fails(app: App, events: Iterable[Any]) -> None:
    """Send events as the producer "web"; raises what stops the app."""
    async with running(app) as node, Client(node.address, producer="web") as client:
        clicks = await client.stream("clicks")
        await clicks.send_many(events)
        await trio.sleep_forever()
