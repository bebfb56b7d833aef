"""The flights adapter on a log: rows that a Spark job has put there become flights, each once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from spark_nodes import ROOT, running_node

from apps.flights.events import Flight, Row
from s4node import Oldest, SyncClient
from s4node.spark.connection import ask

ROWS = [Row("UA", f"N{n}", "JFK", f"D{n % 5}", n, None if n % 9 == 0 else n, n) for n in range(300)]


@pytest.mark.long
@pytest.mark.slow
def test_an_adapter_makes_other_events_of_a_stream_each_once_though_it_is_killed(
    tmp_path: Path,
) -> None:
    with running_node(tmp_path) as node:
        node.create("rows", 2)
        node.create("flights", 2, key="route")
        command = [sys.executable, "-m", "s4node", "run", "apps.flights.adapter", "--json"]
        for each in (
            "s4.listener.address=tcp://127.0.0.1:0",
            f"s4.state.folder={tmp_path / 'adapter'}",
            "task.inputs=log.rows",
            f"systems.log.address={node.address}",
            "systems.log.samza.offset.default=oldest",
            "s4.adapter.output.stream=flights",
            "s4.stream.flights.consumers=archive",
            f"s4.cluster.archive.address={node.address}",
        ):
            command += ["-p", each]
        node.append("rows", ROWS[:200])
        first = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert first.stdout is not None
        assert first.stdout.readline()
        first.kill()
        first.wait()
        first.stdout.close()
        second = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert second.stdout is not None
        node.append("rows", ROWS[200:])
        found = []
        with (
            SyncClient(node.address) as client,
            client.subscribe("flights", types=Flight, start=Oldest()) as flights,
        ):
            for flight in flights:
                found.append((flight.route, flight.tailnum, flight.time))
                if len(found) == len(ROWS):
                    break
        second.terminate()
        second.wait(20)
        second.stdout.close()
        described = ask([node.address], 10, "describe", stream="flights")
        assert sum(each["upcoming"] for each in described["partitions"]) == len(ROWS)
    assert sorted(found) == sorted((f"JFK-{r.dest}", r.tailnum, r.time) for r in ROWS)
