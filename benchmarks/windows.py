"""windows: a count by key and window over TCP, beside the count by key alone in the same run.

Events are 10,000 a second of their own time, in disorder by up to two seconds; keys are drawn by
Zipf's law. Each kind of windows runs without state and with it. A run is checked: every event is in
one window (of ten, if windows overlap), and none is late. A count and a sum are made by hand and
by ``Aggregates``; ``of_by_hand`` has the ratio of their CPU time. ``many_windows`` has the last
rows.

If Bytewax is installed (``pip install bytewax``), its windows run over the same events, too: in one
process, without sockets, encoding or state. Their ratio is to the same count by key alone.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import trio

from benchmarks import many_windows, workload
from benchmarks.runner import (
    Result,
    Role,
    Run,
    answer,
    container_of,
    in_turn,
    listen,
    measured,
    middle,
    rate_of,
    running,
    send_for,
    usage,
)
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.windows import WindowKind, hopping, session, tumbling
from s4node.events.event import Event
from s4node.net.client.client import Client
from s4node.pes import aggregates
from s4node.pes.aggregates import Aggregates, Sum
from s4node.runtime.container.container import Container

ORDERED = "tumbling(10), order='time'"
BY_HAND, BY_AGGREGATES = "a sum by hand", "a sum by Aggregates"
KINDS: dict[str, Any] = {
    "none": None,
    "tumbling(10)": tumbling(10),
    "hopping(10, every=1)": hopping(10, every=1),
    "session(gap=1)": session(gap=1),
    ORDERED: tumbling(10),
}
SUMMED = ("tumbling(10)", "hopping(10, every=1)")
KINDS |= {f"{kind}, {how}": KINDS[kind] for how in (BY_HAND, BY_AGGREGATES) for kind in SUMMED}

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
        self.count += 1

    def merge(self, later: Count) -> None:
        """Add another part of the window."""
        self.count += later.count


class WindowedCount(Count):
    """Notes the counts of windows that have ended."""

    def on_window(self) -> None:
        self.closed[0] += 1
        self.closed[1] += self.count


class Summed(WindowedCount):
    """Counts and adds up by hand."""

    total: int = 0

    def on_event(self, event: Timed) -> None:
        self.count += 1
        self.total += event.value


class Aggregated(Aggregates, of=Timed):
    """Counts and adds up by aggregates."""

    count = aggregates.Count()
    total = Sum("value")

    def on_window(self) -> None:
        Count.closed[0] += 1
        Count.closed[1] += self.count


_PES: dict[str, type[ProcessingElement]] = {
    "none": Count,
    BY_HAND: Summed,
    BY_AGGREGATES: Aggregated,
}


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each kind of windows, without state and with it."""
    runs, seconds = (1, 0.5) if quick else (3, 5.0)
    cases: dict[tuple[str, str], Callable[[], Run]] = {
        (kind, grade): partial(_system, kind, grade, seconds)
        for grade in ("fast", "durable")
        for kind in KINDS
    }
    if importlib.util.find_spec("bytewax") is None:
        say("no rows of Bytewax, which is not installed; pip install bytewax")
    else:
        for kind in (*SUMMED, "session(gap=1)"):
            cases[kind, PEER] = partial(
                measured, "windows.bytewax_windows", kind=kind, seconds=seconds
            )
    found = in_turn(cases, runs, say)
    results = []
    for (kind, grade), ones in found.items():
        limit = rate_of(found["none", "fast" if grade == PEER else grade])
        result = Result.of("windows", ones, limit, windows=kind, grade=grade)
        results_per_event = middle([one["results"] / one["events"] for one in ones])
        result.notes["results_per_event"] = results_per_event
        if kind.endswith(BY_AGGREGATES):
            by_hand = found[kind.replace(BY_AGGREGATES, BY_HAND), grade]
            result.notes["of_by_hand"] = _cpu(ones) / _cpu(by_hand)
        results.append(result)
    return results + many_windows.run(quick=quick, say=say)


def _cpu(ones: Sequence[Run]) -> float:
    """The CPU time of the node for an event."""
    return middle([one["cpu_s"] / one["events"] for one in ones])


def _system(kind: str, grade: str, seconds: float) -> Run:
    with (
        TemporaryDirectory() as folder,
        Role("windows.windowed", kind=kind, grade=grade, folder=folder) as node,
    ):
        address = node.hear()["address"]
        sent = measured("windows.sending_timed", address=address, seconds=seconds)
        node.tell({"sent": sent["events"]})
        counted = node.hear()
    return {**sent, **counted, "checked": counted["events"] == sent["events"]}


# -- the roles -------------------------------------------------------------------------------------


def windowed(task: dict[str, Any]) -> None:
    """Run a node with the count; on a message it reports what it has counted."""
    kind = KINDS[task["kind"]]
    app = App("windows")
    how = task["kind"].rpartition(", ")[2]
    count = app.create_pe(_PES.get(how, WindowedCount))
    if kind is not None:
        count.set_window(kind)
    order = "time" if task["kind"] == ORDERED else ""
    app.create_input_stream("events", count, key="key", time="at", lateness=DISORDER, order=order)
    values = {
        "s4.stream.events.grade": task["grade"],
        "s4.state.folder": task["folder"],
    }

    async def main() -> None:
        async with running(container_of(app, values)) as container:
            answer(address=container.address)
            sent = (await trio.to_thread.run_sync(listen))["sent"]
            counted = 0
            with trio.move_on_after(_PATIENCE):  # windows that have ended are called part by part
                while counted != sent:  # counting holds up the calls: it may take a tenth
                    began = trio.current_time()
                    counted = _counted(container, kind)
                    await trio.sleep(0.01 + 9 * (trio.current_time() - began))
            answer(events=counted, results=Count.closed[0], **usage())

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


def sending_timed(task: dict[str, Any]) -> None:
    """Send for some seconds; report how many events, and the time."""

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("events")
            answer(**await send_for(task["seconds"], stream, chunks()))

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


# -- Bytewax --------------------------------------------------------------------------------------


def bytewax_windows(task: dict[str, Any]) -> None:
    """Count by key and window for some seconds; report how many events, and the time."""
    from bytewax import inputs, operators, outputs, testing
    from bytewax.dataflow import Dataflow
    from bytewax.operators import windowing

    found = {"events": 0, "results": 0, "counted": 0, "late": 0}
    began = time.perf_counter()

    class Events(inputs.StatelessSourcePartition[Timed]):
        def __init__(self) -> None:
            self.source = chunks()

        def next_batch(self) -> list[Timed]:
            if time.perf_counter() - began > task["seconds"]:
                raise StopIteration
            events = next(self.source)
            found["events"] += len(events)
            return events

    class Source(inputs.DynamicSource[Timed]):
        def build(self, *_: Any) -> Events:
            return Events()

    class Results(outputs.StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            found["results"] += len(items)
            found["counted"] += sum(number for _key, (_window, number) in items)

    class Late(outputs.StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            found["late"] += len(items)

    class Sink(outputs.DynamicSink[Any]):
        def __init__(self, part: type[outputs.StatelessSinkPartition[Any]]) -> None:
            self.part = part

        def build(self, *_: Any) -> outputs.StatelessSinkPartition[Any]:
            return self.part()

    clock: Any = windowing.EventClock(
        ts_getter=lambda event: datetime.fromtimestamp(event.at, UTC),
        wait_for_system_duration=timedelta(seconds=DISORDER),
    )
    kind = KINDS[task["kind"]]
    flow = Dataflow("windows")
    events = operators.input("events", flow, Source())
    counted = windowing.count_window(
        "count", events, clock, _windower(kind, windowing), lambda event: event.key
    )
    operators.output("results", counted.down, Sink(Results))
    operators.output("late", counted.late, Sink(Late))
    run_main: Any = testing.run_main
    run_main(flow)
    overlap = kind.panes // kind.every if kind.every else 1
    answer(
        events=found["events"],
        seconds=time.perf_counter() - began,
        results=found["results"],
        checked=found["counted"] == found["events"] * overlap and not found["late"],
        **usage(),
    )


def _windower(kind: WindowKind, windowing: Any) -> Any:
    """Bytewax's object for a kind of windows."""
    if kind.gap:
        return windowing.SessionWindower(gap=timedelta(seconds=kind.gap))
    assert kind.edges is not None
    pane = kind.edges.size / kind.edges.parts
    begin = datetime.fromtimestamp(0, UTC)
    length = timedelta(seconds=pane * kind.panes)
    if kind.every:
        every = timedelta(seconds=pane * kind.every)
        return windowing.SlidingWindower(length=length, offset=every, align_to=begin)
    return windowing.TumblingWindower(length=length, align_to=begin)
