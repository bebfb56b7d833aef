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
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import environment, free_port, until

from apps.nexmark.app import LATENESS, Bid
from s4node import Client

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.slow

EVENTS = int(os.environ.get("NEXMARK_EVENTS", "8000"))
SECONDS = 60 + EVENTS / 1000
"""For all of it; a busy machine processes a few thousand events a second."""

A_SECOND = 16
PRODUCERS = 4
KILLS = 4

SQL = {
    "HotItems": """
        with ends as (
            select auction, unnest(generate_series(0, 8, 2)) + floor("at" / 2) * 2 + 2 as ends
            from bids),
        counts as (select auction, count(*) as n, ends from ends group by auction, ends),
        most as (select ends, max(n) as n from counts group by ends)
        select auction, n, ends from counts join most using (ends, n)""",
    "HighestBids": """
        with most as (
            select floor("at" / 10) as number, max(price) as price from bids group by number)
        select auction, b.price, bidder, "at" from bids b
        join most m on m.number = floor("at" / 10) and m.price = b.price""",
    "Sessions": """
        with marked as (
            select bidder, "at", case when "at" - lag("at") over w < 10 then 0 else 1 end as begins
            from bids window w as (partition by bidder order by "at")),
        numbered as (
            select bidder, "at", sum(begins) over (partition by bidder order by "at", begins desc
                rows unbounded preceding) as number from marked)
        select bidder, count(*), min("at"), max("at") + 10 from numbered
        group by bidder, number""",
}

# the query, with its rows in a file of each process; a killed container may be back late
APP = """
import json
import os
from apps.nexmark import app as nexmark
from s4node import ProcessingElement

OUT = open(os.path.join({folder!r}, f"rows-{{os.getpid()}}"), "a", buffering=1)

class Noted(ProcessingElement):
    def on_event(self, row: nexmark.Row) -> None:
        OUT.write(json.dumps(row.values) + "\\n")

class Query(nexmark.{query}):
    def create_output_stream(self, name, **options):
        noted = self.create_pe(Noted)
        return self.create_stream(name, noted, key=lambda row: str(row.values[0]), **options)

    def create_stream(self, name, *pes, **options):
        idle = {{"idle": 600}} if "time" in options else {{}}
        return super().create_stream(name, *pes, **options, **idle)

    def create_input_stream(self, name, *pes, **options):
        return super().create_input_stream(name, *pes, **options, idle=600)

app = Query("query")
"""


def bids(count: int, seed: int) -> Iterator[Bid]:
    """Bids in the order of their times: a few auctions at a time, and bidders that come back."""
    chance = random.Random(seed)
    for n in range(count):
        at = 100 + n / A_SECOND
        auction = int(at / 3) * 7 + chance.randrange(12)
        bidder = chance.randrange(400)
        yield Bid(auction, bidder, chance.randrange(1, 9_999), at)


def in_database(query: str, events: list[Bid]) -> set[str]:
    """The rows of a query over the same events."""
    columns = {name: [getattr(each, name) for each in events] for name in Bid.__struct_fields__}
    with duckdb.connect() as database:
        database.register("bids", pyarrow.table(columns))
        return {_text(row) for row in database.execute(SQL[query]).fetchall()}


def _text(row: Any) -> str:
    return json.dumps([float(value) for value in row])


class Run:
    """Two containers of a query, in processes of their own."""

    def __init__(self, folder: Path, query: str) -> None:
        self.folder = folder
        (folder / "query.py").write_text(APP.format(folder=str(folder), query=query))
        self.ports = {name: free_port() for name in ("one", "two")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lives = 0
        self._read: dict[Path, int] = {}
        self.rows: set[str] = set()

    @property
    def addresses(self) -> list[str]:
        return [f"tcp://127.0.0.1:{port}" for port in self.ports.values()]

    def start(self, name: str) -> None:
        """Start a container, or start it again as another member."""
        self._lives += 1
        settings = {
            "s4.listener.address": f"tcp://127.0.0.1:{self.ports[name]}",
            "s4.cluster.partitions": "4",
            "s4.state.folder": str(self.folder / "state"),
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
        """End a container at once."""
        self.processes[name].kill()
        self.processes[name].wait()

    def end(self) -> None:
        """End both."""
        for name in self.processes:
            self.kill(name)

    def look(self) -> set[str]:
        """The rows so far; the last line of a process may be a part."""
        for path in self.folder.glob("rows-*"):
            with path.open() as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind("\n") + 1
            self._read[path] = self._read.get(path, 0) + len(text[:whole].encode())
            self.rows |= {_text(json.loads(line)) for line in text[:whole].splitlines()}
        return self.rows


@pytest.mark.parametrize("query", SQL)
async def test_the_rows_of_many_events_are_those_of_a_database(query: str, tmp_path: Path) -> None:
    events = list(bids(EVENTS, seed=7))
    expected = in_database(query, events)
    chance = random.Random(7)
    shuffled = sorted(events, key=lambda bid: bid.at + chance.uniform(0, LATENESS * 0.99))
    mine: list[list[Bid]] = [[] for _ in range(PRODUCERS)]
    for bid in shuffled:
        mine[chance.randrange(PRODUCERS)].append(bid)
    last = events[-1].at + 100
    opened = [trio.Event() for _ in range(PRODUCERS)]
    sent = [0] * PRODUCERS
    run = Run(tmp_path, query)

    async def produce(number: int) -> None:
        async with Client(run.addresses, producer=f"p{number}", timeout=120) as client:
            stream = await client.stream("bids", types=Bid)
            stops = len(mine[number]) // 2 if number == 0 else -1
            for partition in range(stream.partitions):
                assert await stream.resume_at(partition) == 0
            opened[number].set()
            for each in opened:  # who comes later is not waited for
                await each.wait()
            for at in range(0, len(mine[number]), 500):
                if at <= stops < at + 500:
                    await trio.sleep(5)  # less than the others wait for it
                await stream.send_many(mine[number][at : at + 500])
                sent[number] = at + 500
            assert await stream.flush() == []
            stream.watermark(last)
            await until(lambda: expected <= run.look(), "all rows", SECONDS)

    async def kill_now_and_then() -> None:
        for kill in range(KILLS):
            await until(lambda kill=kill: sum(sent) > EVENTS * kill // KILLS, "sent", SECONDS)
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
    assert run.rows == expected
