"""keys: the cost of an event and of a key, with more and more live keys.

Every key gets an event first, so all instances exist; then events come for keys drawn by Zipf's
law, as in keyed-count, and evenly, so that caches do not help. The time of an event is the node's
CPU time; ``limit_events_per_s`` is the bare loop over the same keys. Memory is compared with plain
objects of the same attributes in a dict, made from the same decoded events.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.process import Role
from benchmarks.result import Result

LIVE_KEYS = (1_000, 10_000, 100_000, 1_000_000)
LAWS = ("zipf", "uniform")
_MEASURABLE_KEYS = 100_000
"""The memory of fewer keys is too small to measure."""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each law and number of keys; ``ratio`` is relative to 1,000 keys."""
    runs, seconds = (1, 0.3) if quick else (3, 5.5)
    results: list[Result] = []
    for law in LAWS:
        first: float | None = None
        for keys in LIVE_KEYS[:2] if quick else LIVE_KEYS:
            say(f"{keys:,} keys, drawn {law}")
            result = _row(law, keys, runs, seconds)
            cpu = result.cpu_s_per_million
            assert cpu is not None
            first = first or cpu
            result.ratio = cpu / first
            results.append(result)
    return results


def _row(law: str, keys: int, runs: int, seconds: float) -> Result:
    found = [_measure(law, keys, seconds) for _ in range(runs)]
    bytes_a_key = median(one["bytes_a_key"] for one in found)
    plain = median(one["plain_bytes_a_key"] for one in found)
    measurable = keys >= _MEASURABLE_KEYS
    return Result(
        "keys",
        events=sum(one["sent"] for one in found),
        seconds=sum(one["seconds"] for one in found),
        events_per_s=median(one["sent"] / one["seconds"] for one in found),
        limit_events_per_s=median(one["limit"] for one in found),
        cpu_s_per_million=median(one["cpu_s"] / one["sent"] * 1e6 for one in found),
        rss_mb=max(one["rss_mb"] for one in found),
        checked=all(one["checked"] for one in found),
        notes={
            "law": law,
            "keys": keys,
            "bytes_a_key": bytes_a_key if measurable else None,
            "memory_ratio": bytes_a_key / plain if measurable else None,
        },
    )


def _measure(law: str, keys: int, seconds: float) -> dict[str, Any]:
    with Role("plain", keys=keys) as plain:
        plain_mb = plain.hear()["rss_mb"]
    with Role("plain_loop", keys=keys, law=law, seconds=seconds / 2) as loop:
        limit = loop.hear()
    with Role("node", settings={}) as node:
        address = node.hear()["address"]
        task = {"address": address, "keys": keys, "law": law, "seconds": seconds}
        with Role("live_keys", **task) as producer:
            producer.hear()
            empty = _ask(node)
            producer.tell({})
            once = producer.hear()["sent"]
            full = _ask(node)
            producer.tell({})
            sent = producer.hear()
            after = _ask(node)
        node.tell({})
        counted = node.hear()
    return {
        **sent,
        "limit": limit["events"] / limit["cpu_s"],
        "cpu_s": after["cpu_s"] - full["cpu_s"],
        "rss_mb": counted["rss_mb"],
        "bytes_a_key": (full["rss_mb"] - empty["rss_mb"]) * 1e6 / keys,
        "plain_bytes_a_key": plain_mb * 1e6 / keys,
        "checked": counted["events"] == once + sent["sent"] and counted["keys"] == keys,
    }


def _ask(node: Role) -> dict[str, Any]:
    node.tell({"stop": False})
    return node.hear()
