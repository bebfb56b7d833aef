"""keyed-count: from a producer process over TCP through every stage to ``on_event``.

The limit is the bare loop (decode, look up, call) over the same frames in its own process, run in
turn with the system. Besides a key that is an attribute, there are rows for the KeyFinders of an
adapter and an app: with the same name, with two names, and one against an attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import workload
from benchmarks.process import Role
from benchmarks.result import Result, middle

CASES = {
    "attribute, 1 partition": (1, "", ""),
    "attribute": (64, "", ""),
    "the same KeyFinder": (64, "own", "own"),
    "a KeyFinder for an attribute": (64, "", "own"),
    "a KeyFinder of another name": (64, "own", "other"),
}
"""Partitions, and the KeyFinders of input and producer; empty means the attribute."""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1 partition, one for 64, and one for each of the KeyFinders."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    rows: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    limits = []
    for number in range(runs):
        say(f"run {number + 1} of {runs}: the limit, 1 and 64 partitions, KeyFinders")
        with Role("limit", seconds=seconds) as limit:
            limits.append(limit.hear())
        for case, (partitions, ours, theirs) in CASES.items():
            rows[case].append(system(partitions, seconds, node_finder=ours, finder=theirs))
    limit_rate = middle([one["events"] / one["seconds"] for one in limits])
    results = []
    for case, found in rows.items():
        rate = middle([one["sent"] / one["seconds"] for one in found])
        results.append(
            Result(
                "keyed-count",
                events=sum(one["sent"] for one in found),
                seconds=sum(one["seconds"] for one in found),
                events_per_s=rate,
                limit_events_per_s=limit_rate,
                ratio=rate / limit_rate,
                cpu_s_per_million=middle([one["cpu_s"] / one["sent"] * 1e6 for one in found]),
                rss_mb=max(one["rss_mb"] for one in found),
                checked=all(one["checked"] for one in found),
                notes={"partitions": CASES[case][0], "key": case},
            )
        )
    one, attribute, *finders = (result.events_per_s or 0.0 for result in results)
    results[1].notes["ratio_to_1_partition"] = attribute / one
    for result, rate in zip(results[2:], finders, strict=True):
        result.notes["ratio_to_attribute"] = rate / attribute
    return results


def system(
    partitions: int,
    seconds: float,
    role: str = "producer",
    settings: dict[str, str] | None = None,
    node_finder: str = "",
    **task: Any,
) -> dict[str, Any]:
    """One run of a node and a producer: the events sent, the speed, and a check of the counts."""
    wanted = {"s4.cluster.partitions": str(partitions), **(settings or {})}
    with Role("node", settings=wanted, finder=node_finder) as node:
        address = node.hear()["address"]
        with Role(role, address=address, seconds=seconds, **task) as producer:
            sent = producer.hear()
        node.tell({})
        counted = node.hear()
    expected = workload.truth(workload.key_sequence(), sent["sent"])
    digest = workload.digest((key, count, total) for key, (count, total) in expected.items())
    return {
        **sent,
        "cpu_s": sent["cpu_s"] + counted["cpu_s"],
        "rss_mb": counted["rss_mb"],
        "checked": counted["events"] == sent["sent"] and counted["digest"] == digest,
    }
