"""keys: what an event and a key cost when ever more keys are alive.

Every key gets an event first, so all instances exist; then events come for keys at random. The
time of an event is the node's CPU time; memory is compared with plain objects of the same
attributes in a dict, made from the same decoded events in a process of their own.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from s4node.bench.process import Role
from s4node.bench.result import Result

LIVE_KEYS = (1_000, 10_000, 100_000, 1_000_000)


def run(*, quick: bool = False) -> list[Result]:
    """A row for each number of live keys; ``ratio`` is the time of an event to that with 1,000."""
    runs, seconds = (1, 0.3) if quick else (3, 5.5)
    sizes = LIVE_KEYS[:2] if quick else LIVE_KEYS
    results: list[Result] = []
    for keys in sizes:
        found = [_measure(keys, seconds) for _ in range(runs)]
        cpu = median(one["cpu_s"] / one["sent"] * 1e6 for one in found)
        first = results[0].cpu_s_per_million if results else cpu
        assert first is not None
        bytes_a_key = median(one["bytes_a_key"] for one in found)
        plain = median(one["plain_bytes_a_key"] for one in found)
        results.append(
            Result(
                "keys",
                events=sum(one["sent"] for one in found),
                seconds=sum(one["seconds"] for one in found),
                events_per_s=median(one["sent"] / one["seconds"] for one in found),
                ratio=cpu / first,
                cpu_s_per_million=cpu,
                rss_mb=max(one["rss_mb"] for one in found),
                checked=all(one["checked"] for one in found),
                notes={
                    "keys": keys,
                    "bytes_a_key": bytes_a_key if keys >= 100_000 else None,
                    "plain_bytes_a_key": plain if keys >= 100_000 else None,
                    "memory_ratio": bytes_a_key / plain if keys >= 100_000 else None,
                },
            )
        )
    return results


def _measure(keys: int, seconds: float) -> dict[str, Any]:
    with Role("plain", keys=keys) as plain:
        plain_mb = plain.hear()["rss_mb"]
    with Role("node", settings={}) as node:
        address = node.hear()["address"]
        with Role("uniform", address=address, keys=keys, seconds=seconds) as producer:
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
        "cpu_s": after["cpu_s"] - full["cpu_s"],
        "rss_mb": counted["rss_mb"],
        "bytes_a_key": (full["rss_mb"] - empty["rss_mb"]) * 1e6 / keys,
        "plain_bytes_a_key": plain_mb * 1e6 / keys,
        "checked": counted["events"] == once + sent["sent"] and counted["keys"] == keys,
    }


def _ask(node: Role) -> dict[str, Any]:
    node.tell({"stop": False})
    return node.hear()
