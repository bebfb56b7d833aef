"""durable-latency: how long an event takes over one durable hop, from task to task of a container.

Events come from a log, a few at a time; a PE puts each on a keyed stream of the app, and one in
another task looks at the clock. So the time includes the commit of the task that sends: between
nothing and an interval of commits, if the events come evenly.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.bench.process import Role, usage
from s4node.bench.result import Result
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.net.client.client import Client
from s4node.process.serve import tune_gc
from s4node.runtime.container.container import Container

INTERVALS_MS = (10, 100, 1000)
PARTITIONS = 4
RATE = 500
"""Events a second."""


class Spark(Event):
    """What starts it."""

    key: str
    number: int


class Hop(Event):
    """What goes from task to task: where and when it was put."""

    key: str
    task: int
    at: float


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each interval of commits; events are those that went to another task."""
    return [_row(interval, 1.0 if quick else 20.0, say) for interval in INTERVALS_MS]


def _row(interval: int, seconds: float, say: Callable[[str], None]) -> Result:
    say(f"a commit every {interval} ms")
    count = int(RATE * seconds)
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("replayed", folder=folder, partitions=PARTITIONS, stream="sparks") as node,
    ):
        address = node.hear()["address"]
        with Role("hopping", address=address, folder=folder, interval=interval, count=count) as app:
            app.hear()
            with Role("sparking", address=address, count=count) as producer:
                producer.hear()
            found = app.hear()
    return Result(
        "durable-latency",
        events=found["events"],
        seconds=seconds,
        cpu_s_per_million=found["cpu_s"] / count * 1e6,
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        rss_mb=found["rss_mb"],
        checked=found["arrived"] == count and found["events"] > 0,
        notes={
            "commit_ms": interval,
            "max_ms": found["max_ms"],
            "commits": found["commits"],
        },
    )


# --- the processes -------------------------------------------------------------------------------


def sparking(task: dict[str, Any], say: Callable[..., None]) -> None:
    """Sends ``count`` events, evenly over time."""

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("sparks", types=Spark)
            began = trio.current_time()
            for number in range(task["count"]):
                await trio.sleep_until(began + number / RATE)
                await stream.send(Spark(f"key-{number % 97}", number))
            await stream.flush()
        say(sent=task["count"])

    trio.run(main)


def hopping(task: dict[str, Any], say: Callable[..., None]) -> None:
    """The app; says when it is ready, and how late events were once all have arrived."""
    late: list[float] = []
    arrived = 0
    clock = time.monotonic

    class Watch(ProcessingElement):
        def on_event(self, event: Hop) -> None:
            nonlocal arrived
            arrived += 1
            if event.task != self.partition:
                late.append(clock() - event.at)

    class Send(ProcessingElement):
        def on_event(self, event: Spark) -> None:
            hops.put(Hop(f"hop-{event.number % 89}", self.partition, clock()))

    app = App("hopping")
    hops = app.create_stream("hops", app.create_pe(Watch), key="key")
    app.create_input_stream("sparks", app.create_pe(Send), key="key", system="log")
    settings = {
        "s4.listener.address": "tcp://127.0.0.1:0",
        "s4.cluster.partitions": str(PARTITIONS),
        "s4.state.folder": str(Path(task["folder"]) / "state"),
        "systems.log.type": "log",
        "systems.log.address": task["address"],
        "systems.log.samza.offset.default": "oldest",
        "task.commit.ms": str(task["interval"]),
    }

    async def main() -> None:
        container = Container(app, Config.of(settings))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            tune_gc(container.config)
            before = usage()["cpu_s"]
            say(ready=True)
            while arrived < task["count"]:  # noqa: ASYNC110 - it measures
                await trio.sleep(0.02)
            cpu_s = usage()["cpu_s"] - before
            container.stop()
        assert container.replay is not None
        ordered = sorted(late)
        say(
            arrived=arrived,
            events=len(ordered),
            p50_ms=ordered[len(ordered) // 2] * 1000,
            p99_ms=ordered[int(len(ordered) * 0.99)] * 1000,
            max_ms=ordered[-1] * 1000,
            commits=container.replay.committer.commits,
            **{**usage(), "cpu_s": cpu_s},
        )

    trio.run(main)
