"""json-lines: lines of JSON through ``s4 send`` over TCP to per-key counts.

The limit is a bare loop over the same lines in one process: msgspec's ``decode_lines``, look up,
call.
Lines come to ``s4 send`` through a pipe. The clock runs from when it takes the first line until all
lines have their verdict and it has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import msgspec

from benchmarks import workload
from benchmarks.process import Role
from benchmarks.result import Result, middle

CHUNK = 2048

PIPE_BYTES = 1 << 16
"""The capacity of a pipe: once more is written, the reader has begun."""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1, 8 and 64 partitions."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    rows: dict[int, list[dict[str, Any]]] = {1: [], 8: [], 64: []}
    limits = []
    for number in range(runs):
        say(f"run {number + 1} of {runs}: the limit, then {', '.join(map(str, rows))} partitions")
        with Role("lines_limit", seconds=seconds) as limit:
            limits.append(limit.hear())
        for partitions, found in rows.items():
            found.append(system(partitions, seconds))
    limit_rate = middle([one["events"] / one["seconds"] for one in limits])
    results = []
    for partitions, found in rows.items():
        rate = middle([one["sent"] / one["seconds"] for one in found])
        results.append(
            Result(
                "json-lines",
                events=sum(one["sent"] for one in found),
                seconds=sum(one["seconds"] for one in found),
                events_per_s=rate,
                limit_events_per_s=limit_rate,
                ratio=rate / limit_rate,
                cpu_s_per_million=middle([_cpu(one, "node", "send") for one in found]),
                rss_mb=max(one["rss_mb"] for one in found),
                checked=all(one["checked"] for one in found),
                notes={
                    "partitions": partitions,
                    "node_cpu_s_per_million": middle([_cpu(one, "node") for one in found]),
                },
            )
        )
    return results


def _cpu(one: dict[str, Any], *processes: str) -> float:
    seconds: float = sum(one[f"{process}_cpu_s"] for process in processes)
    return seconds / int(one["sent"]) * 1e6


def system(partitions: int, seconds: float) -> dict[str, Any]:
    """One run of a node and ``s4 send``: the events sent, the speed, and a check of the counts."""
    with Role("node", settings={"s4.cluster.partitions": str(partitions)}) as node:
        address = node.hear()["address"]
        node.tell({"stop": False})
        before = node.hear()["cpu_s"]
        sent = _sent(address, seconds)
        node.tell({})
        counted = node.hear()
    expected = workload.truth(workload.key_sequence(), sent["sent"])
    digest = workload.digest((key, count, total) for key, (count, total) in expected.items())
    return {
        **sent,
        "node_cpu_s": counted["cpu_s"] - before,
        "rss_mb": counted["rss_mb"],
        "checked": counted["events"] == sent["admitted"] == sent["sent"]
        and counted["digest"] == digest,
    }


def _sent(address: str, seconds: float) -> dict[str, Any]:
    """Pipe lines into ``s4 send`` for ``seconds``."""
    command = [sys.executable, "-m", "s4node", "send", "readings", "--to", address, "--json"]
    source, chunks = cycle(texts()), 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        written = 0
        while written <= PIPE_BYTES:
            written += process.stdin.write(next(source))
            process.stdin.flush()
            chunks += 1
        began, begun = time.perf_counter(), _cpu_seconds(process.pid)
        while time.perf_counter() - began < seconds:
            process.stdin.write(next(source))
            chunks += 1
        process.stdin.close()
        said = json.loads(process.stdout.read())
        _, _, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = 0
    return {
        "sent": chunks * CHUNK,
        "admitted": said["admitted"],
        "seconds": seconds,
        "send_cpu_s": used.ru_utime + used.ru_stime - begun,
    }


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - not a file of ours
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def texts() -> list[bytes]:
    """One pass over the events as texts of CHUNK lines of JSON."""
    encode = msgspec.json.Encoder().encode_lines
    keys = workload.key_sequence()
    source = workload.batches(keys, CHUNK)
    return [
        encode([{"key": e.key, "value": e.value, "ts": e.ts} for e in next(source)])
        for _ in range(len(keys) // CHUNK)
    ]
