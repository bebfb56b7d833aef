"""Apps whose handlers fail at the events that say so, and what is true without those."""

from __future__ import annotations

from collections import Counter
from typing import Any

import trio
from harness import until
from shared_apps import OnePE, counting

from s4node import Event, GenericEvent, ProcessingElement, TaskApp
from s4node.events.keys import Partitioner
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.container.container import Container
from s4node.systems.memory import MemorySystem


class Click(Event):
    user: str
    number: int = 0
    bad: bool = False


def ssp(partition: int, stream: str = "clicks") -> SystemStreamPartition:
    return SystemStreamPartition("memory", stream, partition)


def fill(system: MemorySystem, count: int, bad: Any, partitions: int = 2) -> list[Click]:
    """Events, each in the partition of its key."""
    system.create("clicks", partitions)
    home = Partitioner(partitions)
    clicks = [Click(f"user-{n % 17}", n, bad(n)) for n in range(count)]
    for click in clicks:
        system.put("clicks", home.partition_of(click.user), click)
    return clicks


def truth(clicks: list[Click]) -> Counter[str]:
    return Counter(click.user for click in clicks if not click.bad)


async def letters(system: MemorySystem, stream: str = "dead") -> list[GenericEvent]:
    bounds = await system.bounds(ssp(0, stream))
    reader = await system.open(ssp(0, stream), 0, [GenericEvent])
    found: list[GenericEvent] = []
    while len(found) < bounds.upcoming:
        batch = await reader.read()
        assert isinstance(batch, InputBatch)
        batch.load()
        found += batch.events
    return found


async def processed(container: Container, system: MemorySystem, partitions: int = 2) -> None:
    """Return when all that is in the clicks was processed."""
    assert container.replay.keeps
    progress = container.replay.consumers.progress
    for partition in range(partitions):
        end = (await system.bounds(ssp(partition))).upcoming

        def done(partition: int = partition, end: int = end) -> bool:
            mine = progress.get(partition, {}).get(ssp(partition))
            return mine is not None and mine.safe >= end

        await until(done)


def fail_if_bad(_pe: Any, event: Click) -> None:
    """Raise after the event was counted; the count must not stay."""
    if event.bad:
        raise ValueError(f"click {event.number} is bad")


async def fail_later(pe: Any, event: Click) -> None:
    await trio.lowlevel.checkpoint()
    fail_if_bad(pe, event)


Count = counting(Click, fail_if_bad)
AsyncCount = counting(Click, fail_later, name="AsyncCount")


def counts_app(pe: type[ProcessingElement] = Count, handlers: int = 1, cache: int = 0) -> OnePE:
    app = OnePE(pe, name="counts", system="memory")
    app.input.set_parallelism(handlers)
    if cache:
        app.pe.set_pe_cache(cache)
    return app


def counted(container: Container) -> Counter[str]:
    return Counter(
        {
            key: instance.clicks
            for task in container.tasks.values()
            for instances in task.instances.values()
            for key, instance in instances.items()
        }
    )


PLACES = {
    "the first": lambda n: n == 0,
    "the last": lambda n: n == 499,
    "some": lambda n: n % 41 == 7,
    "many in a row": lambda n: 100 <= n < 160,
}


class Store:
    """Counts clicks by user in its store."""

    made = 0

    def init(self, config: Any, context: Any) -> None:
        self.counts = context.store("counts")
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        click = envelope.message
        self.counts.put(click.user, self.counts.get(click.user, 0) + 1)
        collector.send("seen", click)
        if click.bad:
            raise ValueError(f"click {click.number} is bad")


class Stores(TaskApp):
    def on_init(self) -> None:
        self.create_input_stream("clicks", key="user", types=Click, system="memory")
        self.create_output_stream("seen", types=Click)
        self.create_store("counts", key=str, value=int)


def stored(container: Container) -> dict[str, int]:
    return {
        user: count
        for task in container.tasks.values()
        for user, count in task.processor.context.stores["counts"].all()
    }
