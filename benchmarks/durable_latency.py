"""durable-latency: the time of an event over one durable hop, and until its verdict.

A producer sends 1,000 events a second on a durable stream. A PE puts each on a stream that leads to
another task of the container, or to another app with as many partitions in the same process; a PE
there reads the clock. So the time of a hop includes a commit of the sending task. Another producer
sends one event at a time, on its own stream, and waits until it is committed (``verdict``).
``cores`` counts the CPU time of the apps' process while events came; ``task.commit.ms`` has its
default. A row with state at a URL uses a store in a folder; ``round_trip_ms`` is the time that the
store adds to a commit at least.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import trio

from benchmarks.runner import Result, Role, answer, container_of, measured, middle, running, usage
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.events.event import Event
from s4node.net.client.client import Client
from s4node.runtime.container.container import Container
from s4node.state.remote_files import RemoteFiles

RATE = 1000
"""Events a second."""

PROBING_SECONDS = 0.047
"""The pause between a verdict and the next event of the producer that waits for it."""

_TRIPS = 20

ROWS = (("app", 1, False), ("app", 16, False), ("task", 16, False), ("app", 1, True))
"""The target of a hop, the partitions, and True if state is shipped to a URL."""


class Spark(Event):
    """The event that starts a hop."""

    key: str
    number: int


class Probe(Event):
    """An event whose verdict is measured."""

    key: str


class Hop(Event):
    """The event that goes from task to task, with the place and time of its put."""

    key: str
    task: int
    at: float


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each kind of hop."""
    return [_row(to, partitions, url, 1.0 if quick else 15.0, say) for to, partitions, url in ROWS]


def _row(to: str, partitions: int, url: bool, seconds: float, say: Callable[[str], None]) -> Result:
    place = ", state at a URL" if url else ""
    say(f"to another {to}, partitions: {partitions}{place}")
    events = int(RATE * seconds)
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        task = {"folder": folder, "to": to, "partitions": partitions, "url": url}
        with Role("durable_latency.hopping", count=events, **task) as app:
            address = app.hear()["address"]
            sent = measured("durable_latency.sparking", address=address, count=events)
            found = app.hear()
    notes = {
        "to": to,
        "partitions": partitions,
        "max_ms": found["max_ms"],
        "verdict_p50_ms": sent["p50_ms"],
        "cores": found["cpu_s"] / found["seconds"],
        "commits_per_s": found["commits"] / found["seconds"],
    }
    if url:
        notes["round_trip_ms"] = found["round_trip_ms"]
    return Result(
        "durable-latency",
        events=found["events"],
        seconds=seconds,
        cpu_s_per_million=found["cpu_s"] / events * 1e6,
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        rss_mb=found["rss_mb"],
        checked=found["arrived"] == events and found["events"] > 0,
        notes=notes,
    )


# --- the processes -------------------------------------------------------------------------------


def sparking(task: dict[str, Any]) -> None:
    """Send ``count`` events, evenly over time; report how long verdicts took."""
    waited: list[float] = []

    async def main() -> None:
        async with Client(task["address"]) as client, trio.open_nursery() as nursery:
            stream = await client.stream("sparks", types=Spark)

            probes = await client.stream("probes", types=Probe)

            async def probe() -> None:
                for number in count():
                    await trio.sleep(PROBING_SECONDS)
                    began = trio.current_time()
                    await probes.send(Probe(f"key-{number % 97}"))
                    await probes.flush()
                    waited.append(trio.current_time() - began)

            nursery.start_soon(probe)
            began = trio.current_time()
            for number in range(task["count"]):
                await trio.sleep_until(began + number / RATE)
                await stream.send(Spark(f"key-{number % 97}", number))
            await stream.flush()
            nursery.cancel_scope.cancel()
        answer(sent=task["count"], p50_ms=middle(waited) * 1000)

    trio.run(main)


def hopping(task: dict[str, Any]) -> None:
    """Run the apps; report when they are ready, and the delays once all events have arrived."""
    late: list[float] = []
    arrived = 0
    clock = time.monotonic
    to_app = task["to"] == "app"

    class Watch(ProcessingElement):
        def on_event(self, event: Hop) -> None:
            nonlocal arrived
            arrived += 1
            if to_app or event.task != self.partition:
                late.append(clock() - event.at)

    class Send(ProcessingElement):
        def on_event(self, event: Spark) -> None:
            hops.put(Hop(f"hop-{event.number % 89}", self.partition, clock()))

    class Ignore(ProcessingElement):
        def on_event(self, event: Probe) -> None: ...

    app, end = App("hopping"), App("end")
    if to_app:
        hops: Any = app.create_output_stream("hops", key="key", types=Hop)
        end.create_input_stream("hops", end.create_pe(Watch), key="key")
    else:
        hops = app.create_stream("hops", app.create_pe(Watch), key="key")
    app.create_input_stream("sparks", app.create_pe(Send), key="key")
    app.create_input_stream("probes", app.create_pe(Ignore), key="key")
    settings = {
        "s4.cluster.partitions": str(task["partitions"]),
        "s4.state.folder": str(Path(task["folder"]) / "state"),
    }
    if task["url"]:
        settings["s4.state.url"] = (Path(task["folder"]) / "store").as_uri()

    async def started(stack: AsyncExitStack, app: App, **more: str) -> Container:
        container = container_of(app, {**settings, **more})
        return await stack.enter_async_context(running(container))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            containers = []
            ways = {}
            if to_app:
                containers.append(await started(stack, end, **{"s4.stream.hops.grade": "durable"}))
                ways = {
                    "s4.stream.hops.consumers": "end",
                    "s4.cluster.end.address": containers[0].address,
                }
            ways |= {f"s4.stream.{each}.grade": "durable" for each in ("sparks", "probes")}
            containers.append(await started(stack, app, **ways))
            answer(address=containers[-1].address)
            while not arrived:  # noqa: ASYNC110 - it measures
                await trio.sleep(0.001)
            before, began = usage()["cpu_s"], clock()
            while arrived < task["count"]:  # noqa: ASYNC110 - it measures
                await trio.sleep(0.02)
            cpu_s, seconds = usage()["cpu_s"] - before, clock() - began
            commits = sum(each.replay.statistics().commits for each in containers)
        ordered = sorted(late)
        answer(
            arrived=arrived,
            events=len(ordered),
            seconds=seconds,
            p50_ms=ordered[len(ordered) // 2] * 1000,
            p99_ms=ordered[int(len(ordered) * 0.99)] * 1000,
            max_ms=ordered[-1] * 1000,
            commits=commits,
            round_trip_ms=_round_trip_ms(settings["s4.state.url"]) if task["url"] else 0,
            **{**usage(), "cpu_s": cpu_s},
        )

    trio.run(main)


def _round_trip_ms(url: str) -> float:
    """The minimum time of a commit at a store: create an object."""
    files = RemoteFiles(url, Path("bench") / "round-trip")
    files.make_folder(files.root)
    took = []
    for number in range(_TRIPS):
        began = time.monotonic()
        files.put_new(f"{files.root}/{number}", b"x" * 1000)
        took.append(time.monotonic() - began)
    return middle(took) * 1000
