"""The benchmarks' own correctness, in runs too short for their figures to mean anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.servers import can_run_kafka
from benchmarks.workload import key_sequence, truth

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_a_benchmark_prints_only_json_and_has_counted_right(name: str) -> None:
    if name == "kafka" and not can_run_kafka():
        pytest.skip("a broker of Kafka is not installed: run tools/install kafka")
    done = benchmark(name, "--json", "--quick")

    assert done.returncode == 0, f"{done.stderr}{done.stdout}"
    found: Any = json.loads(done.stdout)
    rows = found if isinstance(found, list) else [found]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["name"] == name
        assert row["checked"] is True
        assert row["events"] > 0
        assert row.get("requests_per_hour") != 0  # None if they were not counted


def test_without_a_name_the_benchmarks_are_listed() -> None:
    done = benchmark()

    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(BENCHMARKS)


def test_an_unknown_benchmark_is_refused_with_the_known_ones() -> None:
    done = benchmark("keyed-cuont", "--json")

    assert done.returncode == 2
    assert done.stdout == ""
    assert "no benchmark 'keyed-cuont'; known are keyed-count" in done.stderr


def test_the_truth_adds_up_over_whole_and_broken_passes() -> None:
    keys = key_sequence()
    events = len(keys) * 2 + 1000

    counted = truth(keys, events)

    assert sum(count for count, _ in counted.values()) == events
    expected = 2 * sum(i % 1000 for i in range(len(keys))) + sum(range(1000))
    assert sum(total for _, total in counted.values()) == expected


# -- set-up ---------------------------------------------------------------------------------------


SECONDS = 120
FIELDS = {
    "name",
    "events",
    "seconds",
    "events_per_s",
    "limit_events_per_s",
    "ratio",
    "cpu_s_per_million",
    "p50_ms",
    "p99_ms",
    "rss_mb",
    "checked",
}


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark; if it does not end, fail with where each of its processes is."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},  # of its processes as well
        start_new_session=True,
    ) as process:
        try:
            out, told = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            out, told = process.communicate()
            pytest.fail(f"{' '.join(arguments)} has not ended after {SECONDS} s:\n{told}{out}")
    return subprocess.CompletedProcess(command, process.returncode, out, told)
