"""latency: one-by-one sends on a fixed schedule, from the intended send time to ``on_event``.

Open loop: a late send does not move later ones. For comparison the same frames are sent, in turn,
with pynng's plain blocking send and receive, one way, at the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.process import Role
from benchmarks.result import Result

RATES = (1_000, 5_000, 10_000)


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each rate; percentiles are medians over runs that together last 30 s."""
    runs, seconds = (1, 0.5) if quick else (5, 6.0)
    results = []
    for rate in RATES:
        say(f"{runs} runs at {rate:,} events a second, and as many bare ones")
        system, bare = [], []
        for _ in range(runs):
            bare.append(measure("bare", rate, seconds))
            system.append(measure("delay", rate, seconds))
        p99, bare_p99 = (median(one["p99_ms"] for one in side) for side in (system, bare))
        results.append(
            Result(
                "latency",
                events=sum(one["events"] for one in system),
                seconds=runs * seconds,
                events_per_s=rate,
                limit_events_per_s=rate,
                ratio=p99 / bare_p99,
                p50_ms=median(one["p50_ms"] for one in system),
                p99_ms=p99,
                cpu_s_per_million=median(one["cpu_s"] / one["events"] * 1e6 for one in system),
                checked=all(one["events"] == int(rate * seconds) for one in (*system, *bare)),
                notes={
                    "bare_p50_ms": median(one["p50_ms"] for one in bare),
                    "bare_p99_ms": bare_p99,
                    "max_ms": max(one["max_ms"] for one in system),
                },
            )
        )
    return results


def measure(
    receiver: str,
    rate: int,
    seconds: float,
    settings: Mapping[str, str] = MappingProxyType({}),
    **task: Any,
) -> dict[str, Any]:
    """One run; the receiver ``delay`` is our node, ``bare`` a plain pynng socket. ``settings`` are
    the node's, and ``task`` is more for the sender."""
    count = int(rate * seconds)
    with Role(receiver, count=count, settings=dict(settings)) as receiving:
        address = receiving.hear()["address"]
        sender = "timed" if receiver == "delay" else "bare_timed"
        with Role(sender, address=address, rate=rate, count=count, **task) as sending:
            cpu = sending.hear()["cpu_s"]
            measured = receiving.hear()
    measured["cpu_s"] += cpu
    return measured
