"""Handlers of PEs: an instance for each key, one handler at a time, and what they raise."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
import trio
from harness import deliver, plain_errors, run_until_it_fails, running, together, until
from shared_apps import Buy, Click, Ignore, NotingApp, OnePE, Total, handling
from structlog.testing import capture_logs

from s4node import App, Client, Config, Container, Event, OfKey, ProcessingElement, tumbling
from s4node.errors import EventError, ProcessingError


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
    """The helper ``plain_errors`` takes off only trio's groups around one error."""

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
