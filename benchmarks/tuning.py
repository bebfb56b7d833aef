"""The effect of settings on throughput, latency and memory: the table of docs/tuning.md.

Each row is the keyed count with one setting changed, in turn with the defaults, so that a noisy
machine touches all alike. Run it on a quiet one::

    python -m benchmarks.tuning            # about three minutes
    python -m benchmarks.tuning --quick    # does it work? ignore its figures
"""

from __future__ import annotations

import sys

from benchmarks.keyed_count import system
from benchmarks.latency import measure
from benchmarks.runner import middle

CHANGES: list[dict[str, str]] = [
    {},
    {"s4.cluster.partitions": "8"},
    {"s4.cluster.partitions": "64"},
    {"s4.hasher": "s4", "s4.cluster.partitions": "8"},
    {"s4.stream.workQueueSize": "1000"},
    {"s4.stream.workQueueSize": "100000", "s4.deserializer.workQueueSize": "1000000"},
    {"s4.step.maxEvents": "64"},
    {"s4.watchdog.ms": "0"},
]
LATENCY_RATE = 2_000


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    runs, seconds = (1, 0.3) if quick else (3, 2.0)
    found: list[list[dict[str, float]]] = [[] for _ in CHANGES]
    for number in range(runs):
        for change, rows in zip(CHANGES, found, strict=True):
            print(f"run {number + 1} of {runs}: {_name(change)}", file=sys.stderr, flush=True)
            rows.append(_measure(change, seconds))
    base = {key: middle([row[key] for row in found[0]]) for key in found[0][0]}
    print("| setting | events/s | of the default | p50 ms | p99 ms | node MB |")
    print("|---|---|---|---|---|---|")
    for change, rows in zip(CHANGES, found, strict=True):
        row = {key: middle([one[key] for one in rows]) for key in base}
        print(
            f"| {_name(change)} | {row['rate']:,.0f} | {row['rate'] / base['rate']:.2f} | "
            f"{row['p50']:.2f} | {row['p99']:.2f} | {row['mb']:.0f} |"
        )


def _name(change: dict[str, str]) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in change.items()) or "defaults"


def _measure(change: dict[str, str], seconds: float) -> dict[str, float]:
    partitions = int(change.get("s4.cluster.partitions", "1"))
    counted = system(partitions, seconds, settings=change)
    assert counted["checked"], change
    late = measure("delay", LATENCY_RATE, seconds, change)
    return {
        "rate": counted["events"] / counted["seconds"],
        "mb": counted["rss_mb"],
        "p50": late["p50_ms"],
        "p99": late["p99_ms"],
    }


if __name__ == "__main__":
    main()
