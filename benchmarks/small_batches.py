"""small-batches: what a step, a hop and a commit cost that have 1, 10 or 100 events.

Batches come one by one from a source in the app's own process, so no socket is counted. A row is
the processor time of a batch in µs: ``step`` is one turn of the loop with one step of a PE; ``hop``
one stream more, which is a put and a step; ``commit`` a commit after each batch, for which the next
one waits. With the grade ``durable`` the app keeps state. There is no limit to compare with;
``ratio`` is relative to a batch of one event.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from benchmarks.flows import Baton, Count, Relay
from benchmarks.runner import (
    Result,
    Run,
    answer,
    container_of,
    in_turn,
    measured,
    middle,
    running,
    usage,
)
from s4node.app.app import App
from s4node.app.stream import Stream
from s4node.runtime.container.container import Container
from s4node.runtime.container.durable_parts import DurableParts

HOPS = 4
SIZES = (1, 10, 100)
KEYS = 2000
ROWS = {
    ("step", "fast"): ("fast", None),
    ("hop", "fast"): ("fast, hops", "fast"),
    ("step", "durable"): ("durable", None),
    ("hop", "durable"): ("durable, hops", "durable"),
    ("commit", "durable"): ("durable, commits", "durable"),
}
"""For each row the case that is measured, and the one that it is more than."""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each kind, grade and size."""
    runs, batches = (1, 40) if quick else (5, 2000)
    kinds = {case for row in ROWS.values() for case in row if case is not None}
    cases = {
        (kind, str(size)): partial(measured, "small_batches.node", kind=kind, size=size, n=batches)
        for kind in sorted(kinds)
        for size in SIZES
    }
    found = in_turn(cases, runs, say)
    results = []
    for (what, grade), (case, less) in ROWS.items():
        first = 0.0
        for size in SIZES:
            ones = found[case, str(size)]
            others = [0.0] * runs if less is None else [_us(o) for o in found[less, str(size)]]
            parts = HOPS if what == "hop" else 1
            cost = middle([(_us(o) - x) / parts for o, x in zip(ones, others, strict=True)])
            first = first or cost
            result = Result.of("small-batches", ones, what=what, grade=grade, batch=size)
            result.notes["us_a_batch"] = cost
            result.ratio = cost / first
            results.append(result)
    return results


def _us(one: Run) -> float:
    return float(one["cpu_s"] / one["batches"] * 1e6)


def chain(hops: int, *, durable: bool) -> tuple[App, Stream]:
    """A chain of PEs, and the stream that leads to it."""
    app = App("small-batches")
    pe: Any = app.create_pe(Count, name="last")
    onward = app.create_stream(f"hop{hops}", pe, key="here", types=Baton)
    for number in range(hops):
        pe = app.create_pe(Relay, name=f"pe{number}")
        pe.onward = onward
        onward = app.create_stream(f"hop{number}", pe, key="here", types=Baton)
    if durable:  # which makes the app keep state
        app.create_input_stream("asked", app.create_pe(Count), key="here", types=Baton)
    return app, onward


def node(task: dict[str, Any]) -> None:
    """Run batches through a chain; report the time."""
    size, durable = task["size"], task["kind"].startswith("durable")
    hops = HOPS if task["kind"].endswith("hops") else 0
    app, stream = chain(hops, durable=durable)
    batons = [Baton(f"key-{n}", "") for n in range(KEYS)]
    batches = [batons[at : at + size] for at in range(0, KEYS, size)]

    async def main(folder: str) -> None:
        values = {"s4.cluster.partitions": "1", "s4.state.folder": folder}
        values |= {"s4.stream.asked.grade": "durable"} if durable else {}
        async with running(container_of(app, values)) as container:
            await stream.send_many(batons)  # so that all instances exist
            await _processed(container, KEYS * (hops + 1))
            before = usage()["cpu_s"], trio.current_time()
            for number in range(task["n"]):
                await stream.send_many(batches[number % len(batches)])
                if task["kind"].endswith("commits"):
                    await _processed(container, KEYS + size * (number + 1))
                    await _committed(container)
            events = task["n"] * size
            await _processed(container, (KEYS + events) * (hops + 1))
            answer(
                batches=task["n"],
                events=events,
                cpu_s=usage()["cpu_s"] - before[0],
                seconds=trio.current_time() - before[1],
                rss_mb=usage()["rss_mb"],
                checked=_counted(container) == KEYS + events,
            )

    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        trio.run(main, folder)


def _counted(container: Container) -> int:
    instances: Any = container.tasks[0].instances["last"]
    return sum(each.n for each in instances.values())


async def _processed(container: Container, events: int) -> None:
    while container.processed < events:
        await trio.lowlevel.checkpoint()


async def _committed(container: Container) -> None:
    assert isinstance(container.replay, DurableParts)
    committer = container.replay.committer
    commits = committer.commits
    container.parts.partitions.commit_soon(0)
    while committer.commits == commits:
        await committer._quiet.park()
