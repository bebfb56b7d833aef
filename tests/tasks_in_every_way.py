"""Tasks that process in every way, and apps of them, on inputs in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
from harness import running

from s4node import Event
from s4node.app.stream_task import Callback, Collector, Coordinator, Envelope, TaskApp
from s4node.events.keys import KeySpec
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.container.container import Container
from s4node.systems.memory import MemorySystem


class Click(Event):
    user: str
    number: int = 0


Body = Callable[[Any, Envelope, Collector, Coordinator], None]


class Plain:
    """Processes at once."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.body(self, envelope, collector, coordinator)


class Awaiting:
    """Waits a little first, less for later events, so that they overtake each other."""

    def __init__(self, body: Body) -> None:
        self.body = body

    async def process(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator
    ) -> None:
        await trio.sleep((3 - envelope.offset % 4) / 1000)
        self.body(self, envelope, collector, coordinator)


POOL = ThreadPoolExecutor(8)


class Calling:
    """Has its events processed by threads, which call back."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def process_async(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        def run() -> None:
            time.sleep((3 - envelope.offset % 4) / 1000)
            try:
                self.body(self, envelope, collector, coordinator)
            except Exception as error:
                callback.failure(error)
            else:
                callback.complete()

        POOL.submit(run)


TOGETHER = {"task.max.concurrency": "8"}
BY_KEY = {**TOGETHER, "task.order": "key"}
THREADS = {"job.container.thread.pool.size": "4"}
MODES: dict[str, tuple[Callable[[Body], Any], dict[str, str]]] = {
    "plain": (Plain, {}),
    "threads": (Plain, THREADS),
    "threads, with a timeout": (Plain, THREADS | {"task.callback.timeout.ms": "20000"}),
    "threads, together": (Plain, THREADS | TOGETHER),
    "threads, by key": (Plain, THREADS | BY_KEY),
    "async": (Awaiting, {}),
    "async, with a timeout": (Awaiting, {"task.callback.timeout.ms": "20000"}),
    "async, together": (Awaiting, TOGETHER),
    "async, by key": (Awaiting, BY_KEY),
    "callbacks": (Calling, {}),
    "callbacks, together": (Calling, TOGETHER),
    "callbacks, by key": (Calling, BY_KEY),
}
IN_ORDER = [name for name, (_, values) in MODES.items() if "task.max.concurrency" not in values]


BOTH = ("memory.clicks", "memory.views")
every_mode = pytest.mark.parametrize("mode", MODES)


class Job(TaskApp):
    """An app of the tasks that ``factory`` makes; ``tasks`` are those that it has made."""

    def __init__(
        self,
        factory: Callable[[], Any],
        *inputs: str,
        key: KeySpec | None = None,
        outputs: tuple[str, ...] = (),
    ) -> None:
        super().__init__("job", self._make, inputs=inputs or ("memory.clicks",), outputs=outputs)
        self.tasks: list[Any] = []
        self._factory = factory
        self._key = key

    def on_init(self) -> None:
        for name in self.inputs:
            self.create_input_stream(name.split(".")[1], types=Click, key=self._key)

    def _make(self) -> Any:
        self.tasks.append(self._factory())
        return self.tasks[-1]


def ssp(partition: int = 0, stream: str = "clicks") -> SystemStreamPartition:
    return SystemStreamPartition("memory", stream, partition)


def fill(system: MemorySystem, partitions: int, events: int, stream: str = "clicks") -> None:
    """Events numbered by their offset; offset n is of user n % 5."""
    system.create(stream, partitions)
    for partition in range(partitions):
        clicks = [Click(f"user{n % 5}", n) for n in range(events)]
        system.put(stream, partition, *clicks)


def committed(container: Container, partition: int = 0, stream: str = "clicks") -> int | None:
    """The offset that a restart would go on at."""
    assert container.replay.keeps
    return container.replay.consumers.progress[partition][ssp(partition, stream)].committed


def nothing(*_: Any) -> None:
    """The body of a task that does nothing."""


async def run_to_end(app: TaskApp, settings: Mapping[str, str]) -> None:
    async with running(app, settings) as container:
        with trio.fail_after(20):
            await container._stopping.wait()
