"""Which tasks there are and which input goes next, in containers that read from memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import pytest
import trio
from harness import running, until
from shared_apps import handling

from s4node import App, Client, Event, ProcessingElement
from s4node.app.stream_task import Collector, Coordinator, Envelope, TaskApp
from s4node.errors import ConfigError
from s4node.events.event import EventBatch
from s4node.runtime.container.container import Container
from s4node.systems.memory import MemorySystem


async def test_a_bootstrap_input_is_read_to_its_newest_event_before_others(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    for stream in ("rules", "clicks"):
        system.create(stream, 2)
    for partition in (0, 1):
        fill(system, "rules", 300, partition=partition)
        fill(system, "clicks", 50, partition=partition)
    app = Notes("memory.rules", "memory.clicks")
    async with running(app, settings | {"streams.rules.samza.bootstrap": "true"}):
        await until(lambda: len(app.seen) == 700)
        system.put("rules", 0, Rule(300))  # what comes later is nothing that others wait for
        system.put("clicks", 0, Rule(50))
        await until(lambda: len(app.seen) == 702)
    for task in ("Partition 0", "Partition 1"):
        mine = [(stream, offset) for name, stream, offset in app.seen if name == task][:350]
        assert mine[:300] == [("rules", number) for number in range(300)]
        assert mine[300:] == [("clicks", number) for number in range(50)]


async def test_an_empty_input_that_bootstraps_holds_nothing_up(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    for stream in ("rules", "clicks"):
        system.create(stream, 1)
    fill(system, "clicks", 5)
    app = Notes("memory.rules", "memory.clicks")
    async with running(app, settings | {"streams.rules.samza.bootstrap": "true"}):
        await until(lambda: app.streams_seen == "ccccc")


async def test_after_a_restart_only_new_events_bootstrap(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    settings |= {"streams.rules.samza.bootstrap": "true"}
    for stream in ("rules", "clicks"):
        system.create(stream, 1)
    fill(system, "rules", 20)
    fill(system, "clicks", 5)
    app = Notes("memory.rules", "memory.clicks")
    async with running(app, settings):
        await until(lambda: len(app.seen) == 25)
    fill(system, "clicks", 5)
    fill(system, "rules", 10)
    again = Notes("memory.rules", "memory.clicks")
    async with running(again, settings):
        await until(lambda: len(again.seen) == 15)
    assert again.streams_seen == "r" * 10 + "c" * 5


Last = handling(lambda pe, event: pe.app.seen.append(type(event).__name__), Event)


class Mixed(App):
    """Rules from the system, clicks from producers."""

    def __init__(self) -> None:
        super().__init__("mixed")
        self.seen: list[str] = []

    def on_init(self) -> None:
        last = self.create_pe(Last)
        last.set_singleton()
        self.create_input_stream("rules", last, types=Rule, system="memory")
        self.create_input_stream("clicks", last, types=Click)


async def test_live_events_wait_for_a_bootstrap_even_while_its_system_is_away(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("rules", 1)
    fill(system, "rules", 100)
    app = Mixed()
    async with running(app, settings | {"streams.rules.samza.bootstrap": "true"}) as container:
        system.go_away()
        async with Client(container.address) as client:
            clicks = await client.stream("clicks")
            for number in range(5):
                await clicks.send(Click(number))
            await until(
                lambda: container.tasks[0].backlog.stages["clicks"].depth == 5 or len(app.seen) > 99
            )
            system.come_back()
            assert await clicks.flush() == []
    assert app.seen == ["Rule"] * 100 + ["Click"] * 5


async def full(container: Container, **depths: int) -> None:
    """Wait until so many events wait in the stages of these streams."""

    def there() -> bool:
        stages = container.tasks[0].backlog.stages.values()
        found = {stage.settings.stream: stage.depth for stage in stages if stage.depth}
        return all(found.get(stream) == depth for stream, depth in depths.items())

    await until(there)


def turns(seen: str) -> str:
    """Which input had how many events in a row: a15 b15 a5."""
    return " ".join(f"{stream}{len(list(row))}" for stream, row in groupby(seen))


def taking_turns(streams: str, times: int) -> str:
    return " ".join(f"{stream}1" for stream in streams * times)


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ({}, f"{taking_turns('abc', 20)} a20"),
        ({"streams.b.samza.priority": "1"}, f"b20 {taking_turns('ac', 20)} a20"),
        ({"streams.b.samza.priority": "1", "streams.c.samza.priority": "2"}, "c20 b20 a40"),
        ({"task.consumer.batch.size": "20"}, "a20 b20 c20 a20"),
        ({"task.consumer.batch.size": "15"}, "a15 b15 c15 a15 b5 c5 a10"),
        ({"task.consumer.batch.size": "1000"}, "a40 b20 c20"),
        ({"task.chooser.class": f"{__name__}:LastFirst"}, "c20 b20 a40"),
    ],
)
@pytest.mark.parametrize("size", [10, 20])
async def test_the_settings_decide_which_input_goes_next(
    system: MemorySystem, settings: dict[str, str], values: dict[str, str], order: str, size: int
) -> None:
    """Batches of 10 or 20 events wait behind an event of an input that has to come first; a step
    is one event."""
    for stream in ("gate", "a", "b", "c"):
        system.create(stream, 1)
    app = Notes("memory.gate", "memory.a", "memory.b", "memory.c")
    first = {"streams.gate.samza.bootstrap": "true", "s4.step.maxEvents": "1"}
    system.put("gate", 0, Rule(0))
    async with running(app, settings | first | values) as container:
        await until(lambda: container.tasks[0].gate.in_flight == 1)
        for stream, events in (("a", 40), ("b", 20), ("c", 20)):
            for there in range(size, events + size, size):  # what is there at once is one batch
                fill(system, stream, size, size)
                await full(container, **{stream: there})
        app.go.set()
        await until(lambda: len(app.seen) == 81)
    assert turns(app.streams_seen[1:]) == order
    for stream in "abc":
        offsets = [offset for _, name, offset in app.seen if name == stream]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("concurrency", ["1", "3"])
async def test_an_input_has_its_turn_for_as_many_events_as_the_batch_size_says(
    system: MemorySystem, settings: dict[str, str], concurrency: str
) -> None:
    """However many a step takes, or may be outstanding."""
    for stream in ("gate", "a", "b"):
        system.create(stream, 1)
    app = Notes("memory.gate", "memory.a", "memory.b")
    values = {"streams.gate.samza.bootstrap": "true", "task.consumer.batch.size": "15"}
    values["task.max.concurrency"] = concurrency
    system.put("gate", 0, Rule(0))
    async with running(app, settings | values) as container:
        await until(lambda: container.tasks[0].gate.in_flight == 1)
        for stream in "ab":
            fill(system, stream, 40, 40)
            await full(container, **{stream: 40})
        app.go.set()
        await until(lambda: len(app.seen) == 81)
    assert turns(app.streams_seen[1:]) == "a15 b15 a15 b15 a10 b10"


class Watching(App):
    """Counts the events of low priority that begin while one of high priority waits."""

    def __init__(self, outstanding: int) -> None:
        super().__init__("watching")
        self.outstanding = outstanding
        self.begun = 0
        self.overtaken = 0
        self.high = 0
        self.waits: Callable[[], bool] = lambda: False
        self.on_first: Callable[[], object] = lambda: None

    def on_init(self) -> None:
        pe = self.create_pe(Overtaken if self.outstanding == 1 else OvertakenTogether)
        self.create_input_stream("high", pe, types=Rule, key="number", system="memory")
        low = self.create_input_stream("low", pe, types=Click, key="number", system="memory")
        if self.outstanding > 1:
            low.set_parallelism(self.outstanding)

    def low(self) -> None:
        if not self.begun:
            self.on_first()
        self.begun += 1
        self.overtaken += self.waits()


class Overtaken(ProcessingElement):
    app: Watching

    def on_event(self, event: Event) -> None:
        if isinstance(event, Rule):
            self.app.high += 1
        else:
            self.app.low()


class OvertakenTogether(ProcessingElement):
    app: Watching

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Rule):
            self.app.high += 1
        else:
            self.app.low()
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(("outstanding", "most"), [(1, 20), (4, 5 * 4)])
async def test_an_event_of_higher_priority_waits_for_one_step_of_a_large_batch_at_most(
    system: MemorySystem, settings: dict[str, str], outstanding: int, most: int
) -> None:
    """Where events are outstanding together: for those that were looked at, to find other keys."""
    for stream in ("high", "low"):
        system.create(stream, 1)
    app = Watching(outstanding)
    values = {"streams.high.samza.priority": "9", "s4.step.maxEvents": "20"}
    async with running(app, settings | values) as container:
        stages = container.tasks[0].backlog.stages.values()
        high = [stage for stage in stages if stage.settings.stream == "high"]
        app.waits = lambda: any(stage.depth for stage in high) and not app.high
        app.on_first = lambda: system.put("high", 0, Rule(1))
        system.put("low", 0, *(Click(number) for number in range(2_000)))
        await until(lambda: app.begun == 2_000 and app.high == 1)
    assert app.overtaken <= most


async def test_a_setting_of_a_stream_that_is_not_an_input_is_refused(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("rules", 1)
    with pytest.raises(ConfigError, match="the app has no such input; its inputs: clicks, rules"):
        async with running(Mixed(), settings | {"streams.rulse.samza.bootstrap": "true"}):
            pass


GROUPER = "job.systemstreampartition.grouper.factory"


async def test_a_grouper_that_does_not_fit_the_app_stops_it_before_it_starts(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("rules", 1)
    with pytest.raises(ConfigError, match=r"live inputs \(clicks\): their producers choose the"):
        async with running(Mixed(), settings | {GROUPER: "by-ssp"}):
            pass


async def test_more_containers_than_tasks_are_refused(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 3)
    app = Notes("memory.clicks")
    async with running(app, settings | {"job.container.count": "3"}) as container:
        assert len(container.tasks) == 3
    with pytest.raises(ConfigError, match="= 4, but the app has 3 tasks"):
        async with running(Notes("memory.clicks"), settings | {"job.container.count": "4"}):
            pass


# -- set-up ---------------------------------------------------------------------------------------


class Rule(Event):
    number: int = 0


class Click(Event):
    number: int = 0


class Noting:
    """Notes the streams and numbers of its events; waits for ``go`` at the first of ``gate``."""

    def __init__(self, app: Notes) -> None:
        self._app = app
        self._name = ""

    def init(self, config: Any, context: Any) -> None:
        self._name = context.task_name

    async def process(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator
    ) -> None:
        if envelope.stream == "gate":
            await self._app.go.wait()
        self._app.seen.append((self._name, envelope.stream, envelope.offset))


class LastFirst:
    """A chooser of the app's own: who waits last goes first."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        pass

    def choose(self, waiting: Mapping[Any, EventBatch], may: Callable[[Any], bool]) -> Any:
        return next((source for source in reversed(list(waiting)) if may(source)), None)


class Notes(TaskApp):
    def __init__(self, *inputs: str) -> None:
        super().__init__("notes", lambda: Noting(self), inputs=inputs)
        self.go = trio.Event()
        self.seen: list[tuple[str, str, int]] = []

    @property
    def streams_seen(self) -> str:
        return "".join(stream[0] for _, stream, _ in self.seen)


def fill(
    system: MemorySystem, stream: str, events: int, batch: int = 10, partition: int = 0
) -> None:
    for first in range(0, events, batch):
        numbers = range(first, min(first + batch, events))
        system.put(stream, partition, *(Rule(number) for number in numbers))
