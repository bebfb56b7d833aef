"""single-events: a producer calls ``send(event)`` for one event at a time, as fast as it can."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.keyed_count import system
from benchmarks.result import Result, middle


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for the trio client and one for the synchronous client."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    results = []
    for client in ("trio", "sync"):
        say(f"{runs} runs of the {client} client")
        found = [system(1, seconds, role="single", client=client) for _ in range(runs)]
        results.append(
            Result(
                "single-events",
                events=sum(one["sent"] for one in found),
                seconds=sum(one["seconds"] for one in found),
                events_per_s=middle([one["sent"] / one["seconds"] for one in found]),
                cpu_s_per_million=middle([one["cpu_s"] / one["sent"] * 1e6 for one in found]),
                rss_mb=max(one["rss_mb"] for one in found),
                checked=all(one["checked"] for one in found),
                notes={"client": client},
            )
        )
    return results
