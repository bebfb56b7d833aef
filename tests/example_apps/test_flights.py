"""The flights demo: Spark's side, the nodes' side, that both agree, and how the demo ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from harness import ROOT, environment, running, until

from apps.flights.adapter import FlightsAdapter
from apps.flights.app import FlightsApp
from apps.flights.board import Board, differences
from apps.flights.events import Figures, Row
from s4node import Config

pytest.importorskip("pyspark")
from pyspark.errors import PythonException

from apps.flights.spark_job import batch_aggregates, read_flights, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour\n"
)
CSV = (
    HEADER
    + """\
2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,1,554,600,-6,812,837,-25,UA,461,N24211,EWR,IAH,116,1400,6,0,2013-01-01T11:00:00Z
2013,1,1,614,600,14,853,837,16,UA,462,N14228,EWR,IAH,116,1400,6,0,2013-01-01T11:00:00Z
2013,1,1,542,540,2,905,850,15,AA,1141,N619AA,JFK,MIA,160,1089,5,40,2013-01-01T10:00:00Z
2013,1,2,538,540,-2,848,850,-2,AA,1141,N619AA,JFK,MIA,160,1089,5,40,2013-01-02T10:00:00Z
2013,1,3,NA,540,NA,NA,850,NA,AA,1141,N3GMAA,JFK,MIA,NA,1089,5,40,2013-01-03T10:00:00Z
2013,1,4,NA,540,NA,NA,850,NA,AA,1141,NA,JFK,MIA,NA,1089,5,40,2013-01-04T10:00:00Z
2013,1,5,555,545,10,1107,1026,NA,B6,725,N504JB,JFK,BQN,NA,1576,5,45,2013-01-05T10:00:00Z
2013,1,6,628,545,43,1106,1026,40,B6,725,N504JB,JFK,BQN,190,1576,5,45,2013-01-06T10:00:00Z
2013,1,6,NA,1630,NA,NA,1815,NA,EV,4308,NA,LGA,ORD,NA,733,16,30,2013-01-06T21:00:00Z
2013,1,9,641,900,1301,1242,1530,1272,DL,51,N668DN,JFK,MIA,640,1089,9,0,2013-01-09T14:00:00Z
2013,12,31,2351,2359,-8,151,317,-86,DL,461,N668DN,LGA,ATL,116,762,23,59,2014-01-01T04:00:00Z
"""
)


# -- Spark's side ---------------------------------------------------------------------------------


def test_reading_gives_a_row_for_each_flight(flights: DataFrame) -> None:
    assert [Row(*row) for row in flights.select(*Row.__struct_fields__).collect()] == ROWS


def test_a_route_names_both_airports(flights: DataFrame) -> None:
    routes = [row.route for row in flights.select("route").distinct().collect()]

    assert sorted(routes) == ["EWR-IAH", "JFK-BQN", "JFK-MIA", "LGA-ATL", "LGA-ORD"]


def test_one_batch_gives_the_figures_of_every_carrier_route_and_aircraft(
    flights: DataFrame,
) -> None:
    assert batch_aggregates(flights) == FIGURES


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(CSV.replace("819,11,", "819,eleven,"), "eleven", id="a word for a number"),
        pytest.param(CSV.replace("dep_delay,", "delay,"), "dep_delay", id="another header"),
    ],
)
def test_a_file_that_does_not_fit_is_not_read(
    text: str, told: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "flights.csv").write_text(text)
    unfit = read_flights(spark, tmp_path / "flights.csv")

    with pytest.raises(Exception, match=told):
        unfit.collect()
    unfit.unpersist()


# -- both sides -----------------------------------------------------------------------------------


@asynccontextmanager
async def nodes() -> AsyncIterator[tuple[Board, str]]:
    """A board, and the address of the adapter whose rows end up on it."""

    def settings(name: str, **addresses: str) -> dict[str, str]:
        config = Config.load([ROOT / "config" / f"{name}.properties"])
        given = {entry.name: entry.text for entry in config.items() if entry.origin != "default"}
        return given | {f"s4.cluster.{key}.address": at for key, at in addresses.items()}

    board = Board()
    async with (
        running(board, deadline=60) as shown,
        running(
            FlightsApp(), settings("flights", board=shown.address), partitions=4, deadline=60
        ) as main,
        running(
            FlightsAdapter(), settings("flights-adapter", flights=main.address), deadline=60
        ) as adapter,
    ):
        yield board, adapter.address


async def test_what_spark_sends_is_counted_live_as_spark_counts_it(flights: DataFrame) -> None:
    told: list[int] = []
    async with nodes() as (board, address):
        sent = await trio.to_thread.run_sync(partial(send, flights, address, progress=told.append))
        await until(lambda: board.complete_to >= len(ROWS), f"all are counted: {board.figures}")

    assert sent == len(ROWS)
    assert board.figures == FIGURES
    assert told[-1] == len(ROWS)
    assert told == sorted(told)


@pytest.mark.slow
async def test_thousands_of_flights_from_four_tasks_at_once_give_equal_figures(
    flights: DataFrame, spark: SparkSession
) -> None:
    copies = spark.range(0, 2000, numPartitions=4).crossJoin(flights)
    many = copies.selectExpr(
        "carrier",
        "concat(tailnum, id % 301) AS tailnum",
        "concat(origin, id % 17) AS origin",
        "dest",
        "concat(origin, id % 17, '-', dest) AS route",
        "dep_delay",
        "arr_delay + CAST(id % 91 AS INT) AS arr_delay",
        "time + id AS time",
    )
    async with nodes() as (board, address):
        sent = await trio.to_thread.run_sync(send, many, address)
        await until(lambda: board.complete_to >= 24_000, "all are counted")
    figures = await trio.to_thread.run_sync(batch_aggregates, many)

    assert sent == sum(each.flights for each in figures["route"].values()) == 24_000
    assert {kind: len(keys) for kind, keys in figures.items()} == {
        "carrier": 5,
        "route": 5 * 17,
        "aircraft": 7 * 301,
    }
    assert differences(board.figures, figures) == []


async def test_rows_that_the_adapter_refuses_raise_and_the_others_are_counted(
    flights: DataFrame,
) -> None:
    unfit = flights.selectExpr(
        "nullif(carrier, 'EV') AS carrier",
        "tailnum",
        "origin",
        "dest",
        "dep_delay",
        "arr_delay",
        "time",
    )
    async with nodes() as (board, address):
        with pytest.raises(RuntimeError, match="refused 1 of 12 rows on stream 'rows'") as caught:
            await trio.to_thread.run_sync(send, unfit, address)
        await until(lambda: board.complete_to >= len(ROWS) - 1, "the others are counted")

    assert address in str(caught.value)
    assert board.figures["carrier"] == {
        carrier: figures for carrier, figures in FIGURES["carrier"].items() if carrier != "EV"
    }


@pytest.mark.slow
def test_sending_to_an_address_where_nobody_listens_raises(flights: DataFrame) -> None:
    with socket.socket() as held:  # bound, so that nobody else takes the port, but not listening
        held.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(PythonException) as caught:
            send(flights, address)

    assert str(caught.value).splitlines()[-1] == (
        f"s4node.errors.ConnectionRefused: stream 'rows' at {address}: no answer within 10 s; "
        f"is the node running?"
    )


# -- how the demo ends ----------------------------------------------------------------------------


class Demo:
    """The demo as a process; everything that it starts carries its mark in the environment."""

    def __init__(self, folder: Path) -> None:
        self.temporary = folder / "temporary files"
        self.temporary.mkdir()
        self._output = folder / "output"
        self._mark = f"FLIGHTS_TEST={uuid.uuid4()}"
        name, value = self._mark.split("=")
        # Java logs on standard output, where the Spark program talks to the demo.
        more = {name: value, "TMPDIR": str(self.temporary), "JDK_JAVA_OPTIONS": "-Xlog:gc+init"}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "apps.flights.demo"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment(**more),
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def pids(self) -> dict[int, str]:
        """The processes that are left, by id, with their command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = command.decode()
            except OSError:  # it has ended meanwhile, or is somebody else's
                continue
        return found

    def pid_of(self, command: str) -> int:
        return next((pid for pid, line in self.pids.items() if command in line), 0)

    @property
    def java(self) -> int:
        """Spark's Java, and not the one before it that only composes its command; 0 before that."""
        for pid, line in self.pids.items():
            if "java " in line and "SparkSubmit" in line and "launcher.Main" not in line:
                return pid
        return 0

    async def until(self, condition: Callable[[], object], why: str) -> None:
        found: object = None

        def found_or_ended() -> bool:
            nonlocal found
            found = condition()  # a process that is found may have ended when asked for again
            return bool(found) or self._process.poll() is not None

        await until(found_or_ended, f"{why}: {self.output}", 120)
        assert found or condition(), f"it ended before {why}: {self.output}"

    async def until_said(self, words: str) -> None:
        await self.until(lambda: words in self.output, f"it says {words!r}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def wait(self, seconds: float) -> int:
        """The exit status; the demo may take ``seconds`` for ending, and leaves nothing behind."""
        await until(lambda: self._process.poll() is not None, f"it ends: {self.output}", seconds)
        await until(lambda: not self.pids, f"no process is left: {self.pids}", 5)
        assert list(self.temporary.iterdir()) == []
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    started = Demo(tmp_path)
    yield started
    started.kill()


INTERRUPTED = "interrupted; all processes have been stopped"


async def test_the_demo_can_be_interrupted_as_soon_as_it_says_anything(demo: Demo) -> None:
    await demo.until_said("Flights that left")
    demo.signal(signal.SIGHUP)

    assert await demo.wait(seconds=15) == 130
    assert demo.output.splitlines()[-1] == INTERRUPTED
    assert "Traceback" not in demo.output


@pytest.mark.slow
async def test_the_demo_can_be_interrupted_while_spark_runs(demo: Demo) -> None:
    await demo.until_said("reading and cleaning")
    demo.signal(signal.SIGINT)

    assert await demo.wait(seconds=15) == 130
    assert demo.output.splitlines()[-1] == INTERRUPTED
    assert "Traceback" not in demo.output


@pytest.mark.slow
async def test_the_demo_fails_when_a_node_dies_while_spark_sends(demo: Demo) -> None:
    await demo.until_said(" counted, ")
    os.kill(demo.pid_of("s4node node flights"), signal.SIGKILL)

    assert await demo.wait(seconds=25) == 1
    assert demo.output.splitlines()[-1].startswith(
        "FAILED: the flights node was killed by SIGKILL;"
    )


@pytest.mark.slow
async def test_the_demo_fails_when_the_spark_program_does(demo: Demo) -> None:
    await demo.until(lambda: demo.java, "Java runs")
    os.kill(demo.java, signal.SIGKILL)

    assert await demo.wait(seconds=15) == 1
    assert "Java gateway process exited" in demo.output
    assert demo.output.splitlines()[-1].startswith("FAILED: the Spark program ended with status 1;")


# -- set-up ---------------------------------------------------------------------------------------


ROWS = [
    Row("UA", "N14228", "EWR", "IAH", 2, 11, 1_357_035_300_000),
    Row("UA", "N24211", "EWR", "IAH", -6, -25, 1_357_038_000_000),
    Row("UA", "N14228", "EWR", "IAH", 14, 16, 1_357_038_000_000),
    Row("AA", "N619AA", "JFK", "MIA", 2, 15, 1_357_036_800_000),
    Row("AA", "N619AA", "JFK", "MIA", -2, -2, 1_357_123_200_000),
    Row("AA", "N3GMAA", "JFK", "MIA", None, None, 1_357_209_600_000),
    Row("AA", "unknown", "JFK", "MIA", None, None, 1_357_296_000_000),
    Row("B6", "N504JB", "JFK", "BQN", 10, None, 1_357_382_700_000),
    Row("B6", "N504JB", "JFK", "BQN", 43, 40, 1_357_469_100_000),
    Row("EV", "unknown", "LGA", "ORD", None, None, 1_357_507_800_000),
    Row("DL", "N668DN", "JFK", "MIA", 1301, 1272, 1_357_740_000_000),
    Row("DL", "N668DN", "LGA", "ATL", -8, -86, 1_388_552_340_000),
]

FIGURES = {  # flights, cancelled, delay_count, delay_sum, delay_max, delay_min, late
    "carrier": {
        "UA": Figures(3, 0, 3, 2, 16, -25, 1),
        "AA": Figures(4, 2, 2, 13, 15, -2, 0),
        "B6": Figures(2, 0, 1, 40, 40, 40, 1),
        "EV": Figures(1, 1, 0, 0, None, None, 0),
        "DL": Figures(2, 0, 2, 1186, 1272, -86, 1),
    },
    "route": {
        "EWR-IAH": Figures(3, 0, 3, 2, 16, -25, 1),
        "JFK-MIA": Figures(5, 2, 3, 1285, 1272, -2, 1),
        "JFK-BQN": Figures(2, 0, 1, 40, 40, 40, 1),
        "LGA-ORD": Figures(1, 1, 0, 0, None, None, 0),
        "LGA-ATL": Figures(1, 0, 1, -86, -86, -86, 0),
    },
    "aircraft": {
        "N14228": Figures(2, 0, 2, 27, 16, 11, 1),
        "N24211": Figures(1, 0, 1, -25, -25, -25, 0),
        "N619AA": Figures(2, 0, 2, 13, 15, -2, 0),
        "N3GMAA": Figures(1, 1, 0, 0, None, None, 0),
        "unknown": Figures(2, 2, 0, 0, None, None, 0),
        "N504JB": Figures(2, 0, 1, 40, 40, 40, 1),
        "N668DN": Figures(2, 0, 2, 1186, 1272, -86, 1),
    },
}


@pytest.fixture(scope="session")
def flights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFrame]:
    path = tmp_path_factory.mktemp("flights") / "flights.csv"
    path.write_text(CSV)
    cached = read_flights(spark, path)
    yield cached
    cached.unpersist()
