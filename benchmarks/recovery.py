"""recovery: the time until a restarted container is as fast as it was before.

A keyed count reads half of a log and stops in order; then the page cache of its files is dropped,
and it resumes with the other half. ``seconds`` is the time from the start of the process until it
has processed events at 0.9 of its former rate for a fifth of a second; ``ratio`` is relative to
1,000 keys of state. ``checked`` also says that nothing was replayed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commit import PARTITIONS
from benchmarks.counting import CHUNK, forget_pages, saved_counts
from benchmarks.process import Role
from benchmarks.result import Result, middle

CASES = (("zipf", 1_000), ("zipf", 1_000_000), ("uniform", 1_000_000))
QUICK = (("zipf", 1_000), ("uniform", 10_000))
EVENTS = 16_000_000
QUICK_EVENTS = 100_000
WINDOW_SECONDS = 0.2
PART = 0.9
Samples = Sequence[tuple[float, int]]


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1,000 keys, and two for 1,000,000: drawn by Zipf's law, and evenly."""
    results: list[Result] = []
    for law, keys in QUICK if quick else CASES:
        events = (QUICK_EVENTS if quick else EVENTS) // CHUNK * CHUNK
        say(f"{keys:,} keys, drawn {law}: fill the log, count one half, and start again")
        window = WINDOW_SECONDS / (100 if quick else 1)
        found = [_recovered(law, keys, events, window) for _ in range(1 if quick else 3)]
        seconds = middle([one["seconds"] for one in found])
        base = results[0].seconds if results else seconds
        assert base is not None
        results.append(
            Result(
                "recovery",
                events=sum(one["events"] for one in found),
                seconds=seconds,
                events_per_s=middle([one["after"] for one in found]),
                limit_events_per_s=middle([one["before"] for one in found]),
                ratio=seconds / base,
                rss_mb=max(one["rss_mb"] for one in found),
                checked=all(one["checked"] for one in found),
                notes={
                    "law": law,
                    "keys": keys,
                    "reached": all(one["reached"] for one in found),
                    "first_event_s": middle([one["first"] for one in found]),
                },
            )
        )
    return results


def _recovered(law: str, keys: int, events: int, window: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("replayed", folder=folder, partitions=PARTITIONS) as node,
    ):
        state = Path(folder) / "state"
        task = {
            "address": node.hear()["address"],
            "folder": str(state),
            "state": True,
            "skip": 0,
            "settings": {"task.commit.ms": "1000"},
        }
        with Role("filling", address=task["address"], keys=keys, law=law, events=events) as role:
            sent = role.hear()["sent"]
        with Role("counting", **task, events=keys + events // 2) as role:
            before = role.hear()
        forget_pages(state)
        began = time.monotonic()
        with Role("counting", **task, events=sent - before["processed"]) as role:
            after = role.hear()
        counted = saved_counts(state)
    former = _rate(before["samples"][len(before["samples"]) * 2 // 3 - 1 :])
    reached, rate = _reached(after["samples"], former * PART, window)
    return {
        "seconds": reached - began,
        "reached": rate >= former * PART,
        "first": after["samples"][0][0] - began,
        "before": former,
        "after": rate,
        "events": after["processed"],
        "rss_mb": after["rss_mb"],
        "checked": before["processed"] + after["processed"] == sent and counted == (keys, sent),
    }


def _rate(samples: Samples) -> float:
    (began, first), (ended, last) = samples[0], samples[-1]
    return (last - first) / (ended - began)


def _reached(samples: Samples, wanted: float, window: float) -> tuple[float, float]:
    """When a window first has the wanted rate, and its rate; else the end of the last window."""
    start = 0
    for end in range(1, len(samples)):
        while samples[end][0] - samples[start + 1][0] >= window:
            start += 1
        if samples[end][0] - samples[start][0] >= window:
            rate = _rate(samples[start : end + 1])
            if rate >= wanted:
                return samples[end][0], rate
    return samples[-1][0], _rate(samples[start:])
