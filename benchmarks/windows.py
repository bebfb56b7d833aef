"""windows: a count by key and window over TCP, beside the count by key alone in the same run.

Events are 10,000 a second of their own time, in disorder by up to two seconds; keys are drawn by
Zipf's law. Each kind of windows runs without state and with it. A run is checked: every event is in
one window (of ten, if windows overlap), and none is late. ``many_windows`` has the last rows.

If Bytewax is installed (``pip install bytewax``), its windows run over the same events, too: in one
process, without sockets, encoding or state. Their ratio is to the same count by key alone.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import trio

from benchmarks import many_windows, workload
from benchmarks.process import Role, usage
from benchmarks.result import Result, middle
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.windows import hopping, session, tumbling
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.net.client.client import Client
from s4node.runtime.container.container import Container

ORDERED = "tumbling(10), order='time'"
KINDS: dict[str, Any] = {
    "none": None,
    "tumbling(10)": tumbling(10),
    "hopping(10, every=1)": hopping(10, every=1),
    "session(gap=1)": session(gap=1),
    ORDERED: tumbling(10),
}

PEER = "Bytewax, in process"

_CHUNK = 2048
_FIRST = 1_700_000_000.0
_STEP = 0.0001
DISORDER = 2.0
"""Seconds by which the events may be out of order."""
_PATIENCE = 60.0


class Timed(Event):
    """The event to count, with its time in seconds."""

    key: str
    value: int
    at: float


class Count(ProcessingElement):
    """Counts the events of its key, or of its key and window."""

    closed: ClassVar[list[int]] = [0, 0]  # results, and the events in them
    count: int = 0

    def on_event(self, _event: Timed) -> None:
        """Count one event."""
        self.count += 1

    def merge(self, later: Count) -> None:
        """Add another part of the window."""
        self.count += later.count


class WindowedCount(Count):
    """Notes the counts of windows that have ended."""

    def on_window(self) -> None:
        """Note the count."""
        self.closed[0] += 1
        self.closed[1] += self.count


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each kind of windows, without state and with it."""
    runs, seconds = (1, 0.5) if quick else (3, 5.0)
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(runs):
        for grade in ("fast", "durable"):
            for kind in KINDS:
                say(f"run {number + 1} of {runs}: {kind}, {grade}")
                rows.setdefault((kind, grade), []).append(_system(kind, grade, seconds))
        if importlib.util.find_spec("bytewax") is None:
            say("no rows of Bytewax, which is not installed; pip install bytewax")
            continue
        for kind in sorted(KINDS.keys() - {"none", ORDERED}):
            say(f"run {number + 1} of {runs}: {kind}, {PEER}")
            with Role("bytewax_windows", kind=kind, seconds=seconds) as peer:
                rows.setdefault((kind, PEER), []).append(peer.hear())
    rates = {
        case: middle([one["sent"] / one["seconds"] for one in found])
        for case, found in rows.items()
    }
    by_kind = [
        _row(kind, grade, found, rates["none", "fast" if grade == PEER else grade])
        for (kind, grade), found in rows.items()
    ]
    return by_kind + many_windows.run(quick=quick, say=say)


def _row(kind: str, grade: str, found: list[dict[str, Any]], limit: float) -> Result:
    rate = middle([one["sent"] / one["seconds"] for one in found])
    return Result(
        "windows",
        events=sum(one["sent"] for one in found),
        seconds=sum(one["seconds"] for one in found),
        events_per_s=rate,
        limit_events_per_s=limit,
        ratio=rate / limit,
        cpu_s_per_million=middle([one["cpu_s"] / one["sent"] * 1e6 for one in found]),
        rss_mb=max(one["rss_mb"] for one in found),
        checked=all(one["checked"] for one in found),
        notes={
            "windows": kind,
            "grade": grade,
            "results_per_event": middle([one["results"] / one["sent"] for one in found]),
        },
    )


def _system(kind: str, grade: str, seconds: float) -> dict[str, Any]:
    with (
        TemporaryDirectory() as folder,
        Role("windowed", kind=kind, grade=grade, folder=folder) as node,
    ):
        address = node.hear()["address"]
        with Role("sending_timed", address=address, seconds=seconds) as producer:
            sent = producer.hear()
        node.tell({"sent": sent["sent"]})
        counted = node.hear()
    return {**sent, **counted, "checked": counted["events"] == sent["sent"]}


def windowed(
    task: dict[str, Any], say: Callable[..., None], listen: Callable[[], dict[str, Any]]
) -> None:
    """Run a node with the count; on a message it reports what it has counted."""
    kind = KINDS[task["kind"]]
    app = App("windows")
    count = app.create_pe(WindowedCount if kind is not None else Count)
    if kind is not None:
        count.set_window(kind)
    order = "time" if task["kind"] == ORDERED else ""
    app.create_input_stream("events", count, key="key", time="at", lateness=DISORDER, order=order)
    values = {
        "s4.listener.address": "tcp://127.0.0.1:0",
        "s4.stream.events.grade": task["grade"],
        "s4.state.folder": task["folder"],
    }

    async def main() -> None:
        container = Container(app, Config.from_values(values))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            say(address=container.address)
            sent = (await trio.to_thread.run_sync(listen))["sent"]
            counted = 0
            with trio.move_on_after(_PATIENCE):  # windows that have ended are called part by part
                while counted != sent:  # counting holds up the calls: it may take a tenth
                    began = trio.current_time()
                    counted = _counted(container, kind)
                    await trio.sleep(0.01 + 9 * (trio.current_time() - began))
            say(events=counted, results=Count.closed[0], **usage())
            container.stop()

    trio.run(main)


def _counted(container: Container, kind: Any) -> int:
    """The events that are in windows, ended or open, or held back."""
    events = Count.closed[1]
    overlap = kind.panes // kind.every if kind is not None and kind.every else 1
    for one in container.tasks.values():
        home: Any = next(iter(one.instances.values()))
        for pe in home.values() if kind is None else home.all():
            ends = kind.ends_of(pe._span) if overlap > 1 else ()
            left = sum(end > home.watermark for end in ends) if overlap > 1 else 1
            events += pe.count * left
    return events // overlap + sum(one.statistics().held_back for one in container.tasks.values())


def sending_timed(task: dict[str, Any], say: Callable[..., None]) -> None:
    """Send for some seconds; report how many events, and the time."""

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("events")
            sent, source = 0, chunks()
            began = time.perf_counter()
            while time.perf_counter() - began < task["seconds"]:
                await stream.send_many(next(source))
                sent += _CHUNK
            await stream.flush()
            say(sent=sent, seconds=time.perf_counter() - began)

    trio.run(main)


def chunks() -> Iterator[list[Timed]]:
    """The events, in lists, without end."""
    chance = random.Random(3)
    keys = workload.key_sequence()
    offsets = [n * _STEP - chance.uniform(0, DISORDER * 0.99) for n in range(len(keys))]
    numbers = range(_CHUNK)
    for base in count(_FIRST, len(keys) * _STEP):
        for first in range(0, len(keys), _CHUNK):
            part = slice(first, first + _CHUNK)
            times = map(base.__add__, offsets[part])
            yield list(map(Timed, keys[part], numbers, times))
