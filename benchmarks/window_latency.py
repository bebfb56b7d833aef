"""window-latency: from when the watermark allows it to a window's result, by live events.

A hundred producers, each with its own connection, send to 64 partitions of a durable app; the time
of an event is that of its sending. Windows are of a second. The watermark allows their results as
soon as each producer has sent an event of a later window. A result has come when a PE of another
stream gets it, so its time has the report of the watermark, the call, and a commit. In the second
row one producer stops sending and stays connected. So the windows after that wait for ``idle``
seconds; then it is waited for no longer.

A run is checked: each event of a window that ended in time is in a result, or was late, as on a
machine so busy that producers seem to be silent.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import trio

from benchmarks.runner import Result, Role, answer, container_of, listen, running, usage
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import Stream
from s4node.app.windows import tumbling
from s4node.events.event import Event
from s4node.net.client.client import Client

PARTITIONS = 64
PRODUCERS = 100

_KEYS = 200
_PAUSE = 0.3
"""Seconds between the events of a producer."""
_FIRST, _LAST = 1 / 5, 2.0
"""Windows are left out that end in this part of the sending, while connections are opened and
outboxes made, or so many seconds before its end."""
_PATIENCE = 30.0


class Live(Event):
    """An event with the time of its sending."""

    key: int
    at: float


class Ended(Event):
    """The result of a key and a window."""

    key: int
    end: float
    count: int


class Counting(ProcessingElement):
    ended: Stream
    count: int = 0

    def on_event(self, _event: Live) -> None:
        self.count += 1

    def on_window(self) -> None:
        self.ended.put(Ended(int(str(self.key)), self.window.end, self.count))


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row with all producers, and one in which one of them stops."""
    seconds, idle = (5.0, 1.0) if quick else (30.0, 5.0)
    return [_row("all send", seconds, idle, say), _row("one stops", seconds, idle, say)]


def _row(case: str, seconds: float, idle: float, say: Callable[[str], None]) -> Result:
    say(f"{PRODUCERS} producers, {PARTITIONS} partitions: {case}")
    stops = case == "one stops"
    with TemporaryDirectory(prefix="s4-bench-") as folder:
        waited = idle if stops else 60.0  # a busy machine makes no producer idle
        with Role("window_latency.ending", folder=folder, idle=waited) as node:
            address = node.hear()["address"]
            say("the node runs; the producers connect, send and flush")
            with Role(
                "window_latency.sending_live", address=address, seconds=seconds, stops=stops
            ) as producers:
                sent = producers.hear()
            say("all is sent; the last results are waited for")
            node.tell(sent)
            found = node.hear()
    delays = sorted(found["delays"])
    bound = 1.0 + idle * stops
    return Result(
        "window-latency",
        events=sum(sent["windows"].values()),
        seconds=seconds,
        p50_ms=delays[len(delays) // 2] * 1000 if delays else None,
        p99_ms=delays[len(delays) * 99 // 100] * 1000 if delays else None,
        rss_mb=found["rss_mb"],
        checked=found["exact"] and bool(delays),
        notes={
            "case": case,
            "partitions": PARTITIONS,
            "producers": PRODUCERS,
            "results": len(delays),
            "late": found["late"],
            "cores": found["cpu_s"] / seconds,
            "max_ms": delays[-1] * 1000 if delays else None,
            "after_the_end_p99_ms": found["after_the_end_p99"] * 1000,
            "bound_ms": bound * 1000,
            "idle_s": idle if stops else None,
        },
    )


# --- the processes -------------------------------------------------------------------------------


def ending(task: dict[str, Any]) -> None:
    """Run the app; on a message with what was sent report the delays of the results."""
    counts: Counter[float] = Counter()
    late: Counter[float] = Counter()
    arrived: list[tuple[float, float]] = []

    class Arriving(ProcessingElement):
        def on_event(self, result: Ended) -> None:
            counts[result.end] += result.count
            arrived.append((result.end, time.time()))

    class ComingLate(ProcessingElement):
        def on_event(self, event: Live) -> None:
            late[math.floor(event.at) + 1.0] += 1

    app = App("window-latency")
    counting = app.create_pe(Counting)
    behind = app.create_stream("late", app.create_pe(ComingLate), key="key", types=Live)
    counting.set_window(tumbling(1), late=behind)
    counting.ended = app.create_stream("ended", app.create_pe(Arriving), key="key", types=Ended)
    app.create_input_stream("live", counting, key="key", types=Live, time="at", idle=task["idle"])
    values = {
        "s4.cluster.partitions": str(PARTITIONS),
        "s4.state.folder": task["folder"],
    }

    async def main() -> None:
        async with running(container_of(app, values)) as container:
            answer(address=container.address)
            sent = await trio.to_thread.run_sync(listen)
            first, last = sent["due"]
            ended = ((float(end), n) for end, n in sent["windows"].items())
            due = {end: n for end, n in ended if first <= end <= last}
            with trio.move_on_after(_PATIENCE):
                while any(counts[end] + late[end] < n for end, n in due.items()):  # noqa: ASYNC110 - it measures
                    await trio.sleep(0.05)
            allowed = {float(end): at for end, at in sent["allowed"].items()}
            mine = [(end, at) for end, at in arrived if end in due]
            after = sorted(at - end for end, at in mine)
            answer(
                delays=[at - allowed[end] for end, at in mine],
                after_the_end_p99=after[len(after) * 99 // 100] if after else 0.0,
                exact={end: counts[end] + late[end] for end in due} == due,
                late=late.total(),
                **usage(),
            )

    trio.run(main)


def sending_live(task: dict[str, Any]) -> None:
    """Send from all producers for some seconds.

    Report the number of events in each window, and when the watermark allowed its end: when the
    last producer, but for one that had stopped, had sent a later event.
    """
    windows: Counter[float] = Counter()
    allowed: dict[float, float] = {}
    until = time.time() + task["seconds"]

    async def produce(number: int) -> None:
        chance = random.Random(number)
        stop = until - task["seconds"] * 2 / 3 if task["stops"] and number == 0 else until
        async with Client(task["address"], producer=f"producer-{number}") as client:
            stream = await client.stream("live", types=Live)
            await trio.sleep(chance.uniform(0, _PAUSE))
            end = 0.0
            while (now := time.time()) < until:
                if now < stop:
                    await stream.send(Live(chance.randrange(_KEYS), now))
                    first = math.floor(now)
                    if first > end and stop == until:
                        allowed[first] = now
                    end = first
                    windows[end + 1.0] += 1
                await trio.sleep(_PAUSE)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(PRODUCERS):
                nursery.start_soon(produce, number)
        begin = until - task["seconds"] * (1 - _FIRST)
        answer(windows=windows, allowed=allowed, due=[begin, until - _LAST])

    trio.run(main)
