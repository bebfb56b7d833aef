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
from functools import partial
from itertools import cycle
from typing import Any

import msgspec

from benchmarks import workload
from benchmarks.keyed_count import BareLoop
from benchmarks.runner import Result, Role, Run, answer, in_turn, measured, middle, rate_of

CHUNK = 2048

PIPE_BYTES = 1 << 16
"""The capacity of a pipe: once more is written, the reader has begun."""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1, 8 and 64 partitions."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    cases = {f"{number} partitions": partial(system, number, seconds) for number in (1, 8, 64)}
    limit = partial(measured, "json_lines.lines_limit", seconds=seconds)
    found = in_turn({**cases, "limit": limit}, runs, say)
    results = []
    for case in cases:
        result = Result.of("json-lines", found[case], rate_of(found["limit"]))
        result.notes = {
            "partitions": int(case.split()[0]),
            "node_cpu_s_per_million": middle([_node_cpu(one) for one in found[case]]),
        }
        results.append(result)
    return results


def _node_cpu(one: Run) -> float:
    return float(one["node_cpu_s"]) / int(one["events"]) * 1e6


def system(partitions: int, seconds: float) -> Run:
    """One run of a node and ``s4 send``: the events sent, the speed, and a check of the counts."""
    with Role("keyed_count.node", settings={"s4.cluster.partitions": str(partitions)}) as node:
        address = node.hear()["address"]
        before = node.ask()["cpu_s"]
        sent = _sent(address, seconds)
        node.tell({})
        counted = node.hear()
    node_cpu_s = counted["cpu_s"] - before
    return {
        **sent,
        "cpu_s": node_cpu_s + sent["send_cpu_s"],
        "node_cpu_s": node_cpu_s,
        "rss_mb": counted["rss_mb"],
        "checked": counted["events"] == sent["admitted"] == sent["events"]
        and counted["digest"] == workload.digest_of(sent["events"]),
    }


def _sent(address: str, seconds: float) -> dict[str, Any]:
    """Pipe lines into ``s4 send`` for ``seconds``."""
    command = [sys.executable, "-m", "s4node", "send", "readings", "--to", address, "--json"]
    source, chunks = cycle(workload.lines(CHUNK)), 0
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
        "events": chunks * CHUNK,
        "admitted": said["admitted"],
        "seconds": seconds,
        "send_cpu_s": used.ru_utime + used.ru_stime - begun,
    }


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - not a file of ours
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines_limit(task: dict[str, Any]) -> None:
    """The bare loop over lines of JSON, with events of the same fields."""
    fields = [(one.name, one.type) for one in msgspec.structs.fields(workload.Reading)]
    line = msgspec.defstruct("Line", fields, frozen=True, gc=False)  # an object, not an array
    loop = BareLoop(msgspec.json.Decoder(line).decode_lines)
    texts = workload.lines(CHUNK)
    passes, began = 0, time.perf_counter()
    while time.perf_counter() - began < task["seconds"]:
        loop.count(texts)
        passes += 1
    events = passes * len(texts) * CHUNK
    answer(events=events, seconds=time.perf_counter() - began)
