"""Bytewax's windows over the events of the benchmark of windows, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.process import usage
from benchmarks.windows import DISORDER, KINDS, Timed, chunks
from s4node.app.windows import WindowKind


def bytewax_windows(task: dict[str, Any], say: Callable[..., None]) -> None:
    """Count by key and window for some seconds; report how many events, and the time."""
    from bytewax import inputs, operators, outputs, testing
    from bytewax.dataflow import Dataflow
    from bytewax.operators import windowing

    found = {"sent": 0, "results": 0, "counted": 0, "late": 0}
    began = time.perf_counter()

    class Events(inputs.StatelessSourcePartition[Timed]):
        def __init__(self) -> None:
            self.source = chunks()

        def next_batch(self) -> list[Timed]:
            if time.perf_counter() - began > task["seconds"]:
                raise StopIteration
            events = next(self.source)
            found["sent"] += len(events)
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
    say(
        sent=found["sent"],
        seconds=time.perf_counter() - began,
        results=found["results"],
        checked=found["counted"] == found["sent"] * overlap and not found["late"],
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
