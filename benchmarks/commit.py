"""commit: the cost of keeping state, in a keyed count from the log with a commit every second.

It is compared with the same count that saves only its offsets. One log is filled for both; they
read it in turns, each from the beginning, in its own process.
Rates begin when every key exists. ``pause_ms`` is the longest time between two turns of the loop
that processed events; ``bytes_an_event`` is what commits wrote, and ``disk_bytes_an_event`` what
the system wrote to the disk for it, compactions included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.counting import CHUNK
from benchmarks.process import Role
from benchmarks.result import Result, middle

PARTITIONS = 4
KINDS = (("zipf", 10_000, 20_000_000), ("uniform", 1_000_000, 6_000_000))
QUICK = (("zipf", 1_000, 60_000), ("uniform", 10_000, 60_000))


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 10,000 keys by Zipf's law, and one for 1,000,000 evenly drawn keys."""
    return [
        _row(law, keys, events // CHUNK * CHUNK, 1 if quick else 3, say)
        for law, keys, events in (QUICK if quick else KINDS)
    ]


def _row(law: str, keys: int, events: int, runs: int, say: Callable[[str], None]) -> Result:
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("replayed", folder=folder, partitions=PARTITIONS) as node,
    ):
        address = node.hear()["address"]
        say(f"{keys:,} keys, drawn {law}: fill the log")
        task = {"address": address, "keys": keys, "law": law, "events": events}
        with Role("filling", **task) as producer:
            filled = producer.hear()
        for number in range(runs):
            say(f"run {number + 1} of {runs}: without state, then with")
            for state in (False, True):
                place = Path(folder) / f"state-{number}-{state}"
                settings = {"task.commit.ms": "1000" if events > 1_000_000 else "50"}
                with Role(
                    "counting",
                    address=address,
                    folder=str(place),
                    state=state,
                    events=filled["sent"],
                    skip=keys,
                    settings=settings,
                ) as role:
                    found[state].append(role.hear())
    with_state = found[True]
    rate, limit = (middle([o["events"] / o["seconds"] for o in found[s]]) for s in (True, False))
    return Result(
        "commit",
        events=sum(one["events"] for one in with_state),
        seconds=sum(one["seconds"] for one in with_state),
        events_per_s=rate,
        limit_events_per_s=limit,
        ratio=rate / limit,
        cpu_s_per_million=middle([one["cpu_s"] / one["events"] * 1e6 for one in with_state]),
        rss_mb=max(one["rss_mb"] for one in with_state),
        checked=all(
            one["digest"] == filled["digest"] and one["processed"] == filled["sent"]
            for ones in found.values()
            for one in ones
        ),
        notes={
            "law": law,
            "keys": keys,
            "commits": min(one["commits"] for one in with_state),
            "pause_ms": max(one["pause_ms"] for one in with_state),
            "limit_pause_ms": max(one["pause_ms"] for one in found[False]),
            "bytes_an_event": middle([o["committed_bytes"] / o["events"] for o in with_state]),
            "disk_bytes_an_event": middle([o["disk_bytes"] / o["events"] for o in with_state]),
        },
    )
