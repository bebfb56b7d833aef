"""Nexmark at length: two containers that are killed, four producers, one of which stops a while.

``make nexmark EVENTS=`` says how many events there are. They may be five seconds out of order. The
rows are compared with a database's, one by one; rows that come again after a kill count once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import environment, free_port, until
from nexmark_database import INPUTS, SQL, events, in_database, results

from apps.nexmark.app import LATENESS, Auction, Bid, Person
from s4node import Client

pytestmark = [pytest.mark.slow, pytest.mark.long]

EVENTS = int(os.environ.get("NEXMARK_EVENTS", "8000"))
SECONDS = 60 + EVENTS / 1000
"""For all of it; a busy machine processes a few thousand events a second."""

PRODUCERS = 4
PARTS = max(4, EVENTS // 2000)  # in which a producer sends
KILLS = 4

QUERIES = list(SQL) if EVENTS > 8000 else ["Averages", "HotItems", "HighestBids", "Sessions"]

# the query, with its rows in a file of each process; a killed container may be back late
APP = """
import json
import os
from apps.nexmark import app as nexmark
from s4node import ProcessingElement

OUT = open(os.path.join({folder!r}, f"rows-{{os.getpid()}}"), "a", buffering=1)

class RecordingApp(ProcessingElement):
    def on_event(self, row: nexmark.Row) -> None:
        OUT.write(json.dumps(row.values) + "\\n")

class Query(nexmark.{query}):
    def create_output_stream(self, name, **options):
        noted = self.create_pe(RecordingApp)
        return self.create_stream(name, noted, key=lambda row: str(row.values[0]), **options)

    def create_stream(self, name, *pes, **options):
        idle = {{"idle": 600}} if "time" in options else {{}}
        return super().create_stream(name, *pes, **options, **idle)

    def create_input_stream(self, name, *pes, **options):
        return super().create_input_stream(name, *pes, **options, idle=600)

app = Query("query")
"""


class Run:
    """Two containers of a query, in processes of their own."""

    def __init__(self, folder: Path, query: str) -> None:
        self.folder = folder
        self.query = query
        (folder / "query.py").write_text(APP.format(folder=str(folder), query=query))
        self.ports = {name: free_port() for name in ("one", "two")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lives = 0
        self._read: dict[Path, int] = {}
        self.rows: set[tuple[Any, ...]] = set()

    @property
    def addresses(self) -> list[str]:
        return [f"tcp://127.0.0.1:{port}" for port in self.ports.values()]

    def start(self, name: str) -> None:
        self._lives += 1
        settings = {
            "s4.listener.address": f"tcp://127.0.0.1:{self.ports[name]}",
            "s4.cluster.partitions": "4",
            "s4.state.folder": str(self.folder / "state"),
            **{f"s4.stream.{name}.grade": "durable" for name in INPUTS[self.query]},
        }
        with (self.folder / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable, str(Path(__file__).parent.parent / "container_process.py"),
                    str(self.folder / "cluster"), f"{name}-{self._lives}", "2",
                    str(self.folder / "query.py"),
                    *(f"{key}={value}" for key, value in settings.items()),
                ],
                env=environment(), stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def end(self) -> None:
        for name in self.processes:
            self.kill(name)

    def look(self) -> set[tuple[Any, ...]]:
        """The rows so far; the last line of a process may be a part."""
        for path in self.folder.glob("rows-*"):
            with path.open() as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind("\n") + 1
            self._read[path] = self._read.get(path, 0) + len(text[:whole].encode())
            self.rows |= {tuple(json.loads(line)) for line in text[:whole].splitlines()}
        return self.rows


@pytest.mark.parametrize("query", QUERIES)
async def test_the_rows_of_many_events_are_those_of_a_database(query: str, tmp_path: Path) -> None:
    found = events(EVENTS, seed=7, bidders=400)
    expected = in_database(query, found)
    chance = random.Random(7)
    mine: list[dict[str, list[Any]]] = [
        {name: [] for name in INPUTS[query]} for _ in range(PRODUCERS)
    ]
    for name in INPUTS[query]:
        for event in sorted(found[name], key=lambda e: e.at + chance.uniform(0, LATENESS * 0.99)):
            mine[chance.randrange(PRODUCERS)][name].append(event)
    total = sum(len(found[name]) for name in INPUTS[query])
    last = 100 + EVENTS / 16 + 100
    opened, ended = ([trio.Event() for _ in range(PRODUCERS)] for _ in range(2))
    complete = trio.Event()
    sent = [0] * PRODUCERS
    run = Run(tmp_path, query)

    async def produce(number: int) -> None:
        async with Client(run.addresses, producer=f"p{number}", timeout=120) as client:
            types = {"persons": Person, "auctions": Auction, "bids": Bid}
            streams = {name: await client.stream(name, types=types[name]) for name in mine[number]}
            for stream in streams.values():
                for partition in range(stream.partitions):
                    assert await stream.resume_at(partition) == 0
            opened[number].set()
            for each in opened:  # who comes later is not waited for
                await each.wait()
            for part in range(PARTS):
                if number == 0 and part == PARTS // 2:
                    await trio.sleep(5)  # less than the others wait for it
                for name, stream in streams.items():
                    whole = mine[number][name]
                    first, end = (len(whole) * n // PARTS for n in (part, part + 1))
                    await stream.send_many(whole[first:end])
                    sent[number] += end - first
            assert await client.flush() == []
            for stream in streams.values():
                stream.watermark(last)
            ended[number].set()
            await complete.wait()

    async def wait_for_rows() -> None:
        for each in ended:
            await each.wait()
        await until(lambda: expected <= results(query, run.look()), "all rows", SECONDS)
        complete.set()

    async def kill_now_and_then() -> None:
        for kill in range(KILLS):
            await until(lambda kill=kill: sum(sent) > total * kill // KILLS, "sent", SECONDS)
            name = chance.choice(sorted(run.ports))
            run.kill(name)
            run.start(name)

    with ExitStack() as stack:
        stack.callback(run.end)
        for name in run.ports:
            run.start(name)
        with trio.fail_after(2 * SECONDS):
            async with trio.open_nursery() as nursery:
                for number in range(PRODUCERS):
                    nursery.start_soon(produce, number)
                nursery.start_soon(kill_now_and_then)
                nursery.start_soon(wait_for_rows)
    assert results(query, run.rows) == expected
