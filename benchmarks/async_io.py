"""async-io: events that each await a simulated remote call of 1 to 200 ms, in one container.

Ten tasks have 1, 10 and 100 events in flight each. The limit is Little's law: the events in flight,
divided by the mean latency of the calls. The figure counts calls that end between the first and the
last tenth of the run.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import trio

from benchmarks.result import Result
from s4node.app.stream_task import Collector, Coordinator, Envelope, TaskApp
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.events.keys import Partitioner, hasher_named
from s4node.process import log_setup
from s4node.runtime.container.container import Container
from s4node.systems.memory import MemorySystem

TASKS = 10
KEYS = 100_000
SHORTEST, LONGEST = 0.001, 0.2
MARK = 0.9


class Request(Event):
    user: int
    seconds: float


class Requests(MemorySystem):
    """A system with a stream of requests; its address is their number."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address)
        self.create("requests", TASKS)
        for partition, requests in enumerate(_requests(int(address))):
            self.put("requests", partition, *requests)


def _requests(events: int) -> list[list[Request]]:
    """The requests of each partition: the same at each call, equally many, of its own users."""
    draw = random.Random(events)
    home = Partitioner(TASKS, hasher_named("crc32m")).partition_of
    users: list[list[int]] = [[] for _ in range(TASKS)]
    for user in range(KEYS):
        users[home(user)].append(user)
    return [
        [
            Request(draw.choice(mine), draw.uniform(SHORTEST, LONGEST))
            for _ in range(events // TASKS)
        ]
        for mine in users
    ]


class Remote:
    """Awaits each request's answer."""

    def __init__(self, ended: list[float]) -> None:
        self._ended = ended

    async def process(self, envelope: Envelope, _to: Collector, _of: Coordinator) -> None:
        await trio.sleep(envelope.message.seconds)
        self._ended.append(time.perf_counter())


class Calls(TaskApp):
    """Tasks that call; ``ended`` has the time when each call returned."""

    def __init__(self) -> None:
        super().__init__("async-io", lambda: Remote(self.ended), inputs=["memory.requests"])
        self.ended: list[float] = []

    def on_init(self) -> None:
        """Declare the input, keyed by user for key order."""
        self.create_input_stream("requests", types=Request, key="user")


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each number in flight and order."""
    log_setup.configure("warning", "auto")
    seconds = 1.5 if quick else 12.0
    results = []
    for order in ("arrival", "key"):
        for outstanding in (10, 100, 1000):
            say(f"{outstanding} in flight, order by {order}")
            results.append(_measured(outstanding, order, seconds))
    return results


def _measured(outstanding: int, order: str, seconds: float) -> Result:
    mean = (SHORTEST + LONGEST) / 2
    events = int(outstanding / mean * seconds) // TASKS * TASKS
    drawn = [request.seconds for requests in _requests(events) for request in requests]
    mean = sum(drawn) / len(drawn)
    cpu = time.process_time()
    ended = trio.run(_run, events, outstanding, order)
    cpu = time.process_time() - cpu
    first, last = events // 10, events - events // 10
    taken = ended[last - 1] - ended[first - 1]
    rate, limit = (last - first) / taken, outstanding / mean
    return Result(
        "async-io",
        events=events,
        seconds=taken,
        events_per_s=rate,
        limit_events_per_s=limit,
        ratio=rate / limit,
        cpu_s_per_million=cpu / events * 1e6,
        checked=len(ended) == events,
        notes={"outstanding": outstanding, "order": order, "mark": MARK},
    )


async def _run(events: int, outstanding: int, order: str) -> list[float]:
    app = Calls()
    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = {
            "s4.listener.address": "tcp://127.0.0.1:0",
            "s4.state.folder": folder,
            "systems.memory.type": "benchmarks.async_io:Requests",
            "systems.memory.address": str(events),
            "streams.requests.samza.offset.default": "oldest",
            "task.max.concurrency": str(outstanding // TASKS),
            "task.order": order,
        }
        container = Container(app, Config.from_values(values))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            while len(app.ended) < events:  # noqa: ASYNC110 - it polls rarely
                await trio.sleep(0.05)
            container.stop()
    return app.ended
