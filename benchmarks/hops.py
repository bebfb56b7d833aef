"""hops: the cost of one more stream hop: in a partition, between tasks, between nodes.

Each figure is the difference between a chain of streams and no chain, per hop: total time, and CPU
time of all processes. There is no limit to compare with; ``ratio`` is relative to the hop within a
partition.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.process import Role
from benchmarks.result import Result, middle
from benchmarks.word_count import LOSSLESS, ask, wait_counted

HOPS = 4
WAYS = {
    "within a partition": {"alternate": False, "nodes": 0, "partitions": 1},
    "between tasks of a process": {"alternate": True, "nodes": 0, "partitions": 2},
    "between nodes": {"alternate": True, "nodes": 2, "partitions": 2},
}


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each kind of hop."""
    runs, events = (1, 20_000) if quick else (5, 1_500_000)
    found: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {way: [] for way in WAYS}
    for number in range(runs):
        for way in WAYS:
            say(f"run {number + 1} of {runs}: {way}")
            found[way].append((system(way, 0, events), system(way, HOPS, events)))
    results = []
    for way, pairs in found.items():
        cost = middle([(b["seconds"] - a["seconds"]) / events / HOPS for a, b in pairs])
        cpu = middle([(b["cpu_s"] - a["cpu_s"]) / events / HOPS * 1e6 for a, b in pairs])
        results.append(
            Result(
                "hops",
                events=sum(events * (HOPS + 1) for _ in pairs),
                seconds=sum(b["seconds"] for _, b in pairs),
                events_per_s=events * (HOPS + 1) / middle([b["seconds"] for _, b in pairs]),
                cpu_s_per_million=cpu,
                rss_mb=max(b["rss_mb"] for _, b in pairs),
                checked=all(a["checked"] and b["checked"] for a, b in pairs),
                notes={"way": way, "us_a_hop": cost * 1e6},
            )
        )
    first = results[0].notes["us_a_hop"]
    for result in results:
        result.ratio = result.notes["us_a_hop"] / first if first > 0 else None
    return results


def system(way: str, hops: int, events: int) -> dict[str, Any]:
    """One run: ``events`` events through a chain of ``hops`` hops."""
    kind = WAYS[way]
    values = {**LOSSLESS, "s4.cluster.partitions": str(kind["partitions"])}
    task: dict[str, Any] = {"app": "hops", "hops": hops, "alternate": kind["alternate"]}
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as stack:
        if kind["nodes"]:
            task |= {"folder": folder, "expected": kind["nodes"]}
        members = [
            stack.enter_context(Role("member", member=f"n{n}", settings=values, **task))
            for n in range(kind["nodes"] or 1)
        ]
        addresses = [member.hear()["address"] for member in members]
        before = sum(ask(member)["cpu_s"] for member in members)
        with Role("batons", address=addresses[0], events=events) as producer:
            sent = producer.hear()
            began = time.perf_counter()
            total = wait_counted(members, events)
            rest = time.perf_counter() - began
        after = [ask(member) for member in members]
        for member in members:
            member.tell({})
    return {
        "seconds": sent["seconds"] + rest,
        "cpu_s": sum(one["cpu_s"] for one in after) - before + sent["cpu_s"],
        "rss_mb": max(one["rss_mb"] for one in after),
        "checked": total == events,
    }
