"""State that cannot be saved stops the app at the commit, whatever ``onError`` says."""

from __future__ import annotations

import pytest
import trio
from failing import Click, Count, counts_app, fill
from harness import running
from shared_apps import OnePE

from s4node import App, ProcessingElement
from s4node.errors import NotSaveable
from s4node.systems.memory import MemorySystem


class Spoils(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 2**70 if event.bad else 1  # which only a commit finds


class AsyncSpoils(ProcessingElement):
    clicks: int = 0

    async def on_event(self, event: Click) -> None:
        await trio.lowlevel.checkpoint()
        self.clicks += 2**70 if event.bad else 1


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("pe", "handlers", "cache"),
    [(Spoils, 1, 0), (Spoils, 1, 3), (AsyncSpoils, 1, 0), (Spoils, 4, 0), (AsyncSpoils, 4, 3)],
)
async def test_unsaveable_state_stops_the_app_and_pe_key_and_attribute_are_named(
    system: MemorySystem,
    settings: dict[str, str],
    on_error: str,
    pe: type[ProcessingElement],
    handlers: int,
    cache: int,
) -> None:
    fill(system, 500, lambda n: n == 20)
    settings["s4.stream.clicks.onError"] = on_error
    await stops(
        counts_app(pe, handlers, cache), settings, rf"{pe.__name__} 'user-3' .*attribute 'clicks'"
    )


class SpoilsInTime(Count):
    def on_time(self) -> None:
        self.clicks = 2**70


async def test_unsaveable_state_of_a_timer_stops_an_app_that_skips_events(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    app = OnePE(SpoilsInTime, system="memory")
    app.pe.set_timer_interval(0.05)
    fill(system, 50, lambda _: False, partitions=1)
    settings["s4.stream.clicks.onError"] = "skip"
    await stops(app, settings, "SpoilsInTime .*attribute 'clicks'", partitions=1)


class SpoilsAtOnce(Count):
    def on_create(self) -> None:
        self.clicks = 2**70

    def on_event(self, event: Click) -> None: ...


async def test_unsaveable_state_of_a_start_stops_an_app_that_skips_events(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    app = OnePE(SpoilsAtOnce, system="memory", key=None)
    app.pe.set_singleton()
    fill(system, 50, lambda _: False, partitions=1)
    settings["s4.stream.clicks.onError"] = "skip"
    await stops(app, settings, "SpoilsAtOnce None cannot be saved", partitions=1)


class Stack(ProcessingElement):
    numbers: list[int] = []  # noqa: RUF012

    def on_event(self, event: Click) -> None:
        if event.bad:
            self.numbers.append(2**70)
        elif event.number < 0:
            self.numbers.pop(0)
        else:
            self.numbers.append(event.number)


async def test_a_cache_does_not_drop_unsaveable_state(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    app = OnePE(Stack, system="memory")
    app.pe.set_pe_cache(1)
    system.create("clicks", 1)
    others = [Click(f"user-{n}", n) for n in range(5000)]
    for click in (Click("joe", 1), Click("joe", 2, bad=True), *others, Click("joe", -1)):
        system.put("clicks", 0, click)
    settings["task.commit.ms"] = "500"  # by then others have had its place in the cache
    await stops(app, settings, "Stack 'joe' .*attribute 'numbers'", partitions=1)


class SpoilsOrFails(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        if event.bad and event.number > 20:
            raise ValueError("it fails")
        self.clicks += 2**70 if event.bad else 1


async def test_unsaveable_state_stops_an_app_that_skips_another_event_first(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 500, lambda n: n in (20, 30))
    settings["s4.stream.clicks.onError"] = "skip"
    await stops(counts_app(SpoilsOrFails), settings, "SpoilsOrFails 'user-3'")


# -- set-up ---------------------------------------------------------------------------------------


async def stops(app: App, settings: dict[str, str], error: str, *, partitions: int = 2) -> None:
    """Run an app until it stops because of state that cannot be saved."""
    settings.setdefault("task.commit.ms", "20")
    with pytest.raises(NotSaveable, match=error):
        async with running(app, settings, partitions=partitions):
            await trio.sleep_forever()
