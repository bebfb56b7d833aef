"""tls: the keyed count and the latency with certificates, in turn with the same without.

The limit is the speed without TLS, on the same machine at the same time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import keyed_count, latency
from benchmarks.result import Result, middle
from s4node.config.config import Config
from s4node.net.certificates.authority import Authority

_RATE = 5_000
_TLS = {"s4.listener.address": "tls+tcp://127.0.0.1:0"}


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for the keyed count over 64 partitions, and one for the latency."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.in_folder(Path(folder))
        node = _settings(authority, "s4://default/node/node")
        producer = _settings(authority, "s4://default/producer/producer")
        counted: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        timed: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for number in range(runs):
            say(f"run {number + 1} of {runs}: the count and the latency, without and with TLS")
            for secured in (False, True):
                settings, task = (node | _TLS, producer) if secured else ({}, {})
                counted[secured].append(keyed_count.system(64, seconds, settings=settings, **task))
                timed[secured].append(latency.measure("delay", _RATE, seconds, settings, **task))
    rates = {
        secured: middle([one["sent"] / one["seconds"] for one in found])
        for secured, found in counted.items()
    }
    delays = {
        secured: {key: median(one[key] for one in found) for key in ("p50_ms", "p99_ms")}
        for secured, found in timed.items()
    }
    every = [one for found in counted.values() for one in found]
    return [
        Result(
            "tls",
            events=sum(one["sent"] for one in every),
            seconds=sum(one["seconds"] for one in every),
            events_per_s=rates[True],
            limit_events_per_s=rates[False],
            ratio=rates[True] / rates[False],
            cpu_s_per_million=middle([one["cpu_s"] / one["sent"] * 1e6 for one in counted[True]]),
            rss_mb=max(one["rss_mb"] for one in counted[True]),
            checked=all(one["checked"] for one in every),
            notes={"partitions": 64},
        ),
        Result(
            "tls",
            events=sum(one["events"] for found in timed.values() for one in found),
            seconds=2 * runs * seconds,
            events_per_s=_RATE,
            p50_ms=delays[True]["p50_ms"],
            p99_ms=delays[True]["p99_ms"],
            checked=all(
                one["events"] == int(_RATE * seconds) for found in timed.values() for one in found
            ),
            notes={
                "plain_p50_ms": delays[False]["p50_ms"],
                "plain_p99_ms": delays[False]["p99_ms"],
                "p99_ms_more": delays[True]["p99_ms"] - delays[False]["p99_ms"],
            },
        ),
    ]


def _settings(authority: Authority, identity: str) -> dict[str, str]:
    """The settings of a holder of a new certificate."""
    holder = authority.issue([identity], 1)
    config = Config.load([authority.folder / holder.name / "tls.properties"], {})
    return {entry.name: entry.text for entry in config.items() if entry.origin != "default"}
