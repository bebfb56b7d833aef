"""``make bench NAME= ARGS=``: lists, runs and prints the benchmarks.

Rules
- With ``--json`` standard output holds one JSON value and nothing else; progress goes to standard
  error.
- The exit status is 1 when a benchmark's own correctness check failed. Speed never fails a run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.runner import Result
from s4node.errors import S4Error
from s4node.process.exit_status import exit_status

BENCHMARKS = {
    "keyed-count": "a producer process over TCP to per-key counts, beside the bare loop",
    "single-events": "send(event) one at a time, trio and synchronous client",
    "json-lines": "lines of JSON through `s4 send` to per-key counts, beside msgspec's bare decode",
    "latency": "one-by-one sends from intended time to on_event, beside bare pynng",
    "tls": "the keyed count and the latency with certificates, beside the same without",
    "word-count": "sentences to words across two nodes to counts, beside one bare loop",
    "hops": "what one more stream hop costs: in a partition, between tasks, between nodes",
    "small-batches": "a step, a hop and a commit of 1, 10 and 100 events, fast and durable",
    "graph": "an app of nine PEs with windows and a join, durable, beside plain loops",
    "overload": "ten times what a slow PE can take, with each policy: memory, and what is lost",
    "log-append": "1 and 16 producer processes append to the log, beside bare SQLite inserts",
    "log-replay": "a keyed count from the embedded log, oldest to newest, beside the bare loop",
    "kafka": "a keyed count of a topic, beside a bare loop of the client; latencies in and out",
    "spark-sink": "a DataFrame into the log, staged and published, beside a writer that discards",
    "commit": "a keyed count with a commit every second, beside the same without state",
    "savepoint": "savepoints amid a keyed count: how long they take, and the pauses meanwhile",
    "repartition": "another number of partitions, beside plain reading and writing of the rows",
    "recovery": "from the start of a process to its former rate, with 1,000 and 1,000,000 keys",
    "failover": "kill -9 a node: until each partition commits again, with state at a URL",
    "scale": "3 to 4 to 3 nodes: how many partitions move, and how long they and others pause",
    "state": "stores beside bare rocksdict, and a count of 10,000,000 keys in 512 MB",
    "durable-latency": "a hop that counts once, to another app or task, and the wait for verdicts",
    "loop": "the event loop's own cost an event and a batch, with 1, 10 and 100 tasks",
    "async-io": "tasks that await calls of 1-200 ms: 10, 100, 1,000 in flight, in both orders",
    "spark-source": "a stream of the log as a DataFrame, beside the same rows from Parquet",
    "bootstrap": "a keyed count over history on Spark, beside an identity after the same sort",
    "windows": "a count by key and window, by event time in disorder, beside the count by key",
    "window-latency": "from the end of a window to its result, 100 producers, one of them silent",
    "keys": "1,000 to 1,000,000 live keys: time an event and bytes a key",
}

_FUNCTIONS = {
    "single-events": "keyed_count.run_single",
    "tls": "latency.run_tls",
    "word-count": "flows.run_words",
    "hops": "flows.run_hops",
    "small-batches": "small_batches.run",
    "log-append": "log.run_append",
    "log-replay": "log.run_replay",
    "spark-sink": "spark.run_sink",
    "recovery": "commit.run_recovery",
    "async-io": "loop.run_async",
    "spark-source": "spark.run_source",
    "bootstrap": "spark.run_bootstrap",
    "keys": "keyed_count.run_keys",
}
"""Those that are not the function ``run`` of the module with their name."""

BLOCKING = "all block; no rate is set"
STAGES = {"overload": "each policy in turn"}
"""The executors of the stages, if not all block; shown in each row."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to measure, or all")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short run that checks correctness; ignore its figures",
    )
    given = parser.parse_args()
    if given.name is None:
        if given.json:
            print(json.dumps(BENCHMARKS, indent=2))
        else:
            for known, what in BENCHMARKS.items():
                print(f"{known:<15} {what}")
        return 0
    if given.name not in {"all", *BENCHMARKS}:
        known = ", ".join(BENCHMARKS)
        parser.error(f"no benchmark {given.name!r}; known are {known}, and all of them as all")
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    results: list[Result] = []
    try:
        for each in BENCHMARKS if given.name == "all" else [given.name]:
            results += _measure(each, quick=given.quick)
    except (S4Error, BaseExceptionGroup) as error:
        return exit_status(error)
    except KeyboardInterrupt:
        return 130
    if given.json:
        rows = [result.row() for result in results]
        print(json.dumps(rows[0] if len(rows) == 1 else rows, indent=2))
    else:
        _print_table(results)
    return 1 if any(result.checked is False for result in results) else 0


def _measure(name: str, *, quick: bool) -> list[Result]:
    print(f"{name}: {BENCHMARKS[name]} ...", file=sys.stderr, flush=True)
    stages = STAGES.get(name, BLOCKING)
    _say(f"stages: {stages}")
    place = _FUNCTIONS.get(name, f"{name.replace('-', '_')}.run")
    module, _, function = place.partition(".")
    run = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    found: list[Result] = run(quick=quick, say=_say)
    for result in found:
        result.notes["stages"] = stages
    return found


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


_FIGURES = {
    "events/s": "events_per_s",
    "limit/s": "limit_events_per_s",
    "ratio": "ratio",
    "CPU s/M": "cpu_s_per_million",
    "p50 ms": "p50_ms",
    "p99 ms": "p99_ms",
    "MB": "rss_mb",
}
"""The columns of figures, and what each is called in a result."""


def _print_table(results: Sequence[Result]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("benchmark", *_FIGURES, "checked", "also"):
        table.add_column(head, justify="left" if head in ("benchmark", "also") else "right")
    for result in results:
        row = result.row()
        also = ", ".join(
            f"{key}={row[key]}" for key in result.notes if key != "stages" and row[key] is not None
        )
        table.add_row(
            result.name,
            *(_cell(row[key]) for key in _FIGURES.values()),
            {True: "yes", False: "NO", None: "-"}[result.checked],
            also,
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file has no edge to wrap at
    console.print(table)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
