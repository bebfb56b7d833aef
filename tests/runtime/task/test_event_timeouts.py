"""Events that take longer than ``task.callback.timeout.ms``: as such at which a handler raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import trio
from failing import (
    Click,
    Store,
    Stores,
    counted,
    counts_app,
    fill,
    letters,
    processed,
    ssp,
    stored,
    truth,
)
from harness import running, until
from shared_apps import counting

from s4node.errors import EventTimeout, S4Error, StateError
from s4node.events.keys import Partitioner
from s4node.systems.memory import MemorySystem


@pytest.mark.parametrize(
    "way",
    [
        "in a thread",
        "waiting for a thread",
        "async",
        "several async",
        "async, not to be cancelled",
        "callback",
        "several callbacks",
    ],
)
async def test_stores_of_tasks_are_exact_without_the_events_that_take_too_long(
    system: MemorySystem, settings: dict[str, str], way: str
) -> None:
    task, more = WAYS[way]
    clicks = fill(system, 100, lambda n: n in (7, 8, 60))
    async with running(Stores("stores", task), settings | more, partitions=2) as container:
        await processed(container, system)
        assert stored(container) == truth(clicks)
        assert container.statistics().replay.left_out == {"clicks": 3}
    async with running(Stores("stores", task), settings | more, partitions=2) as container:
        assert stored(container) == truth(clicks)


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_handler_of_a_parallel_stream_that_takes_too_long_leaves_nothing_behind(
    system: MemorySystem, settings: dict[str, str], gate: threading.Event, awaits: bool
) -> None:
    def wait_in_thread(_pe: Any, event: Click) -> None:
        if event.bad:
            gate.wait(60)

    async def wait_forever(_pe: Any, event: Click) -> None:
        if event.bad:
            await trio.sleep_forever()

    clicks = fill(system, 100, lambda n: n in (7, 8, 60))
    counts = counts_app(counting(Click, wait_forever if awaits else wait_in_thread), 2)
    settings["task.callback.timeout.ms"] = "600"  # a good one needs a thread, which may take long
    async with running(counts, settings, partitions=2) as container:
        await processed(container, system)
        more = [Click(f"user-{n}") for n in range(17)]  # so that each is in memory
        for click in more:
            system.put("clicks", Partitioner(2).partition_of(click.user), click)
        await processed(container, system)
        assert counted(container) == truth(clicks + more)


async def test_the_dead_letter_of_an_event_that_takes_too_long_says_so(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 3, lambda n: n == 1, partitions=1)
    system.create("dead", 1)
    settings["s4.stream.clicks.onError"] = "dead-letter"
    settings["task.dead.letter.stream"] = "memory.dead"
    async with running(Stores("stores", Awaited), settings) as container:
        await processed(container, system, partitions=1)
    [letter] = await letters(system)
    assert (letter.stream, letter.offset, letter.type) == ("clicks", 1, "Click")
    told = "the event was not ended within 0.15 s (task.callback.timeout.ms)"
    assert (letter.reason, letter.trace) == (told, "")


def completes(_store: Any, _collector: Any, callback: Any) -> None:
    callback.complete()
    callback.complete()


def sends(_store: Any, collector: Any, _callback: Any) -> None:
    with pytest.raises(S4Error, match="had ended"):
        collector.send("seen", Click("late"))


def writes(store: Any, _collector: Any, _callback: Any) -> None:
    with pytest.raises(StateError, match=r"had taken too long.*task\.callback\.timeout\.ms"):
        store.put("late", 1)


@pytest.mark.parametrize("late", [completes, sends, writes])
async def test_results_after_the_timeout_of_their_event_are_ignored(
    system: MemorySystem, settings: dict[str, str], late: Callable[..., None]
) -> None:
    clicks = fill(system, 3, lambda n: n == 1, partitions=1)
    async with running(Stores("stores", NeverCalled), settings) as container:
        await processed(container, system, partitions=1)
        [hung] = Hangs.late
        await trio.to_thread.run_sync(late, *hung)
        system.put("clicks", 0, Click("joe", 3))
        await until(lambda: container.replay.consumers.progress[0][ssp(0)].safe == 4)
        assert stored(container) == truth([*clicks, Click("joe", 3)])


async def test_without_on_error_an_event_that_takes_too_long_stops_the_container(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 3, lambda n: n == 1, partitions=1)
    del settings["s4.stream.clicks.onError"]
    told = r"the event at .*clicks.*1 was not ended within 0.15 s.*onError"
    with pytest.raises(EventTimeout, match=told) as caught:
        async with running(Stores("stores", Awaited), settings):
            await trio.sleep_forever()
    assert caught.value.position == "clicks[0]@1"


# -- set-up ---------------------------------------------------------------------------------------


TIMEOUT = {"task.callback.timeout.ms": "150"}


@pytest.fixture
def settings(settings: dict[str, str]) -> dict[str, str]:
    return {**settings, **TIMEOUT, "s4.stream.clicks.onError": "skip"}


@pytest.fixture(autouse=True)
def gate() -> Iterator[threading.Event]:
    """Threads that hang wait for this."""
    Hangs.gate = threading.Event()
    Hangs.late = []
    yield Hangs.gate
    Hangs.gate.set()


class Hangs(Store):
    """Counts clicks by user, and never comes to an end at a bad one."""

    gate: threading.Event
    late: ClassVar[
        list[tuple[Any, Any, Any]]
    ]  # what was hung with: the store, the collector, the callback

    def count(self, click: Click, collector: Any, callback: Any = None) -> bool:
        self.counts.put(click.user, self.counts.get(click.user, 0) + 1)
        collector.send("seen", click)
        if click.bad:
            self.late.append((self.counts, collector, callback))
        return click.bad


class InThread(Hangs):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if self.count(envelope.message, collector):
            self.gate.wait(60)


class Awaited(Hangs):
    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        if self.count(envelope.message, collector):
            await trio.sleep_forever()


class Stubborn(Hangs):
    """Does not heed that it is cancelled, for a while."""

    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        if self.count(envelope.message, collector):
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.1)
                raise ValueError("which nobody hears")


class NeverCalled(Hangs):
    def process_async(self, envelope: Any, collector: Any, coordinator: Any, callback: Any) -> None:
        if not self.count(envelope.message, collector, callback):
            callback.complete()


TOGETHER = {"task.max.concurrency": "5", "task.order": "key"}
ONE_THREAD = {"job.container.thread.pool.size": "1"}
WAYS: dict[str, tuple[type[Hangs], dict[str, str]]] = {
    "in a thread": (InThread, ONE_THREAD),
    "waiting for a thread": (InThread, ONE_THREAD | TOGETHER),
    "async": (Awaited, {}),
    "several async": (Awaited, TOGETHER),
    "async, not to be cancelled": (Stubborn, TOGETHER),
    "callback": (NeverCalled, {}),
    "several callbacks": (NeverCalled, TOGETHER),
}
