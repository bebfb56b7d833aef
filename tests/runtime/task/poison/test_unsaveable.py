"""Events that leave what cannot be saved: they are left out, and nobody else is blamed."""

from __future__ import annotations

import pytest
import trio
from failing import (
    PLACES,
    Click,
    Count,
    counted,
    counts_app,
    fill,
    processed,
    ssp,
    truth,
)
from harness import running, until
from shared_apps import OnePE

from s4node import ProcessingElement
from s4node.errors import NotSaveable
from s4node.events.keys import Partitioner
from s4node.systems.memory import MemorySystem


@pytest.fixture
def settings(settings: dict[str, str]) -> dict[str, str]:
    return {**settings, "s4.stream.clicks.onError": "skip"}


class Spoils(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 2**70 if event.bad else 1  # which only a commit finds


class AsyncSpoils(ProcessingElement):
    clicks: int = 0

    async def on_event(self, event: Click) -> None:
        await trio.lowlevel.checkpoint()
        self.clicks += 2**70 if event.bad else 1


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("pe", "handlers", "cache"),
    [(Spoils, 1, 0), (Spoils, 1, 3), (AsyncSpoils, 1, 0), (Spoils, 4, 0), (AsyncSpoils, 4, 3)],
)
async def test_events_that_leave_unsaveable_state_are_skipped(
    system: MemorySystem,
    settings: dict[str, str],
    pe: type[ProcessingElement],
    handlers: int,
    cache: int,
    where: str,
) -> None:
    clicks = fill(system, 500, PLACES[where])
    settings["task.commit.ms"] = "20"
    async with running(counts_app(pe, handlers, cache), settings, partitions=2) as container:
        assert container.replay is not None
        progress = container.replay.consumers.progress
        ends = [(await system.bounds(ssp(n))).upcoming for n in range(2)]
        await until(lambda: [progress[n][ssp(n)].committed for n in range(2)] == ends)
        assert container.statistics().replay.left_out == {
            "clicks": sum(click.bad for click in clicks)
        }
    async with running(counts_app(pe), settings, partitions=2) as container:
        more = [Click(f"user-{n}") for n in range(17)]  # so that each is in memory
        for click in more:
            system.put("clicks", Partitioner(2).partition_of(click.user), click)
        await processed(container, system)
        assert counted(container) == truth(clicks + more)


async def test_unsaveable_state_stops_an_app_that_may_skip_no_events(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 50, lambda n: n == 20)
    del settings["s4.stream.clicks.onError"]
    with pytest.raises(NotSaveable, match=r"Spoils 'user-3' cannot be saved: .*ints"):
        async with running(counts_app(Spoils), settings | {"task.commit.ms": "20"}, partitions=2):
            await trio.sleep_forever()


class SpoilsInTime(Count):
    def on_time(self) -> None:
        self.clicks = 2**70


async def test_unsaveable_state_that_no_event_caused_stops_the_app_and_skips_none(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    app = OnePE(SpoilsInTime, system="memory")
    app.pe.set_timer_interval(0.05)
    fill(system, 50, lambda _: False, partitions=1)
    settings["task.commit.ms"] = "20"
    with pytest.raises(NotSaveable):
        async with running(app, settings, partitions=1) as container:
            await trio.sleep_forever()
    assert container.statistics().replay.left_out == {}


async def test_a_timer_that_keeps_making_state_unsaveable_stops_the_app(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    app = OnePE(SpoilsInTime, system="memory")
    app.pe.set_timer_interval(0.2)

    async def feed() -> None:
        while True:
            system.put("clicks", 0, Click("joe"))
            await trio.sleep(0.005)

    system.create("clicks", 1)
    settings["task.commit.ms"] = "20"
    with pytest.raises(NotSaveable):
        async with running(app, settings, partitions=1) as container:
            await feed()
    assert container.statistics().replay.left_out == {}


@pytest.mark.long
async def test_many_unsaveable_keys_with_a_small_cache_hold_nobody_up(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    for n in range(300):
        system.put("clicks", 0, Click(f"user-{n}", n, n >= 10))
    settings["task.commit.ms"] = "300"
    app = counts_app(AsyncSpoils, 4, 1)
    async with running(app, settings, partitions=1, deadline=120) as container:
        assert container.replay is not None
        progress = container.replay.consumers.progress
        await until(lambda: progress[0][ssp(0)].committed == 300, seconds=100)
        assert container.statistics().replay.left_out == {"clicks": 290}


class SpoilsAtOnce(Count):
    def on_create(self) -> None:
        self.clicks = 2**70

    def on_event(self, event: Click) -> None: ...


async def test_a_start_that_makes_state_unsaveable_stops_the_app_and_skips_no_event(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    app = OnePE(SpoilsAtOnce, system="memory", key=None)
    app.pe.set_singleton()
    fill(system, 50, lambda _: False, partitions=1)
    settings["task.commit.ms"] = "20"
    with pytest.raises(NotSaveable, match="SpoilsAtOnce None cannot be saved"):
        async with running(app, settings, partitions=1) as container:
            await trio.sleep_forever()
    assert container.statistics().replay.left_out == {}


async def test_harmless_timers_do_not_hinder_the_search(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Ticks(Spoils):
        def on_time(self) -> None: ...

    app = OnePE(Ticks, system="memory")
    app.pe.set_timer_interval(0.005)
    fill(system, 500, lambda n: n == 20, partitions=1)
    settings["task.commit.ms"] = "20"
    async with running(app, settings, partitions=1) as container:
        assert container.replay is not None
        progress = container.replay.consumers.progress
        await until(lambda: progress[0][ssp(0)].committed == 500)
        assert container.statistics().replay.left_out == {"clicks": 1}


class Stack(ProcessingElement):
    numbers: list[int] = []  # noqa: RUF012

    def on_event(self, event: Click) -> None:
        if event.bad:
            self.numbers.append(2**70)
        elif event.number < 0:
            self.numbers.pop(0)
        else:
            self.numbers.append(event.number)


async def test_a_cache_does_not_drop_unsaveable_state_and_only_its_event_is_blamed(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    app = OnePE(Stack, system="memory")
    app.pe.set_pe_cache(1)
    system.create("clicks", 1)
    others = [Click(f"user-{n}", n) for n in range(5000)]
    clicks = [Click("joe", 1), Click("joe", 2, bad=True), *others, Click("joe", -1)]
    for click in clicks:
        system.put("clicks", 0, click)
    settings["task.commit.ms"] = "500"  # by then others have had its place in the cache
    async with running(app, settings, partitions=1) as container:
        assert container.replay is not None
        progress = container.replay.consumers.progress
        await until(lambda: progress[0][ssp(0)].committed == len(clicks))
        assert container.statistics().replay.left_out == {"clicks": 1}


async def test_state_is_saved_before_tasks_hear_of_the_end_of_their_inputs(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    clicks = fill(system, 500, PLACES["some"])
    for partition in range(2):
        system.end_partition("clicks", partition)
    async with running(counts_app(Spoils), settings, partitions=2) as container:
        assert container.replay is not None
        await container._stopping.wait()  # by itself, for all inputs have ended
    progress = container.replay.consumers.progress
    ends = [(await system.bounds(ssp(n))).upcoming for n in range(2)]
    assert [progress[n][ssp(n)].committed for n in range(2)] == ends
    assert counted(container) == truth(clicks)
    assert container.statistics().replay.left_out == {"clicks": sum(c.bad for c in clicks)}
