"""Windows over a log that is read, read again, and over another number of partitions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from harness import running, until

from s4node import Client
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import Stream
from s4node.app.windows import tumbling
from s4node.cli.main import main
from s4node.events.event import Event
from s4node.events.keys import Partitioner
from s4node.systems.memory import MemorySystem
from s4node.testing.app_test import AppTest

Row = tuple[str, float, int]


class Trade(Event):
    symbol: str
    at: float


class Count(ProcessingElement):
    seen: ClassVar[list[Row]] = []
    n: int = 0

    def on_event(self, _trade: Trade) -> None:
        self.n += 1

    def on_window(self) -> None:
        self.seen.append((str(self.key), self.window.start, self.n))


class Counts(App):
    system = "memory"

    def on_init(self) -> None:
        count = self.create_pe(Count)
        late = self.create_output_stream("late", types=Trade)
        count.set_window(tumbling(10), late=late)
        self.create_input_stream(
            "trades", count, key="symbol", time="at", lateness=5, system=self.system
        )


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    found: list[Row] = []
    monkeypatch.setattr(Count, "seen", found)
    return found


EVENTS = [Trade("abcdefg"[n % 7], 100 + n / 10) for n in range(300)]


def expected(events: list[Trade], until_time: float) -> set[Row]:
    """The rows of all windows that end by then."""
    counts: dict[tuple[str, float], int] = {}
    for trade in events:
        place = trade.symbol, trade.at // 10 * 10
        counts[place] = counts.get(place, 0) + 1
    return {(k, start, n) for (k, start), n in counts.items() if start + 10 <= until_time}


class FromLog(Counts):
    system = "log"


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_rows_over_a_log_are_the_same_for_every_order_and_kill(
    partitions: int, seen: list[Row]
) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        events = sorted(EVENTS, key=lambda trade: trade.at + chance.uniform(0, 4.9))
        seen.clear()
        with AppTest(FromLog, partitions=partitions) as test:
            kill = chance.randrange(len(events)) if seed % 2 else -1
            for at in range(0, len(events), 29):
                test.send("trades", *events[at : at + 29])
                test.advance(seconds=chance.uniform(0, 2))
                if at <= kill < at + 29:
                    test.crash()
            for partition in range(partitions):
                test.end_input("trades", partition=partition)
            test.advance(seconds=2)
            assert set(seen) == expected(EVENTS, 1000)
            assert test.output("late") == []


class Total(ProcessingElement):
    seen: ClassVar[list[tuple[float, int]]] = []
    n: int = 0

    def on_event(self, _trade: Trade) -> None:
        self.n += 1

    def on_window(self) -> None:
        self.seen.append((self.window.start, self.n))


class Forwarding(Count):
    trades: Stream

    def on_window(self) -> None:
        self.trades.put(Trade("all", self.window.last))


class TwoHops(App):
    """Counts the windows of 10 s of all keys in windows of 60 s."""

    def on_init(self) -> None:
        first, total = self.create_pe(Forwarding), self.create_pe(Total)
        first.set_window(tumbling(10))
        total.set_window(tumbling(60))
        first.trades = self.create_stream("ends", total, key="symbol", types=Trade, time="at")
        self.create_input_stream(
            "trades", first, key="symbol", time="at", lateness=5, system="log", order="time"
        )


@pytest.mark.parametrize("partitions", [1, 3])
def test_at_the_end_of_the_inputs_windows_of_results_end_when_all_of_these_have_come(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Total, "seen", [])
    with AppTest(TwoHops, partitions=partitions) as test:
        test.send("trades", *EVENTS)  # from 100 to 130 s: 3 windows of each of 7 keys
        test.end_input("trades")
        test.advance(seconds=2)
        assert sorted(Total.seen) == [(60, 14), (120, 7)]


def test_a_quiet_partition_of_a_log_is_waited_for_until_it_is_idle(seen: list[Row]) -> None:
    with AppTest(FromLog, partitions=2) as test:
        home = Partitioner(2)
        one, other = (
            next(key for key in "abcdefg" if home.partition_of(key) == p) for p in range(2)
        )
        test.send("trades", Trade(one, 100), Trade(other, 100), Trade(one, 120))
        test.advance(seconds=20)
        test.send("trades", Trade(one, 121))
        assert seen == []  # the quiet partition may get older events of any key
        test.advance(seconds=15)
        assert set(seen) == {(one, 100, 1), (other, 100, 1)}


async def test_a_task_waits_for_no_partition_that_has_only_keys_of_others(
    system: MemorySystem, settings: dict[str, str], seen: list[Row]
) -> None:
    home = Partitioner(2)
    one, other = (next(key for key in "abcdefg" if home.partition_of(key) == p) for p in range(2))
    system.create("trades", 2)
    system.routed("trades", "crc32m:symbol")
    system.put("trades", 0, Trade(one, 100), Trade(one, 120))
    system.put("trades", 1, Trade(other, 100))
    async with running(Counts("counts"), settings, partitions=2):
        await until(lambda: seen == [(one, 100, 1)])


async def test_a_log_that_is_read_again_has_late_events_and_no_second_result(
    system: MemorySystem, settings: dict[str, str], seen: list[Row]
) -> None:
    system.create("trades", 1)
    system.put("trades", 0, *EVENTS)
    async with running(Counts("counts"), settings) as container:
        await until(lambda: set(seen) == expected(EVENTS, 124))
        first = list(seen)
        late = container.tasks[0].statistics().late
        assert late == {"Count": 0}
    again = {**settings, "streams.trades.samza.reset.offset": "true"}
    async with running(Counts("counts"), again) as container:
        closed = sum(count for _, _, count in first)
        await until(lambda: container.tasks[0].processed == len(EVENTS))
        assert container.tasks[0].statistics().late == {"Count": closed}
        assert seen == first


def test_windows_and_watermarks_go_on_in_other_partitions(tmp_path: Path, seen: list[Row]) -> None:
    settings = {"s4.state.folder": str(tmp_path / "state")}
    half = len(EVENTS) // 2

    async def run(partitions: int, events: list[Trade], told: float) -> None:
        app = Counts("counts")
        app.system = "live"
        async with running(app, settings, partitions=partitions) as container:
            async with Client(container.address, producer="p") as client:
                trades = await client.stream("trades", types=Trade)
                await trades.send_many(events)
                trades.watermark(told)
                assert await trades.flush() == []
                await until(lambda: expected(EVENTS, told - 5) <= set(seen))
            late = [task.statistics().late["Count"] for task in container.tasks.values()]
            assert sum(late) == 0

    def repartition(number: int) -> None:
        place = ("-p", f"s4.state.folder={tmp_path / 'state'}")
        assert main(["repartition", "counts", str(number), *place]) == 0

    trio.run(run, 2, EVENTS[:half], EVENTS[half].at)
    assert {row[1] for row in seen} == {100.0}
    repartition(3)
    trio.run(run, 3, EVENTS[half : half + 50], EVENTS[half + 50].at)
    repartition(1)
    trio.run(run, 1, EVENTS[half + 50 :], 200.0)
    assert sorted(seen) == sorted(expected(EVENTS, 1000))


def test_an_event_that_was_late_in_its_partition_is_late_in_another_layout_too(
    tmp_path: Path, seen: list[Row]
) -> None:
    settings = {"s4.state.folder": str(tmp_path / "state")}

    async def run(partitions: int, *events: Trade, late: int) -> None:
        app = Counts("counts")
        app.system = "live"
        async with running(app, settings, partitions=partitions) as container:
            async with Client(container.address, producer="p") as client:
                trades = await client.stream("trades", types=Trade)
                for event in events:
                    await trades.send(event)
                    assert await trades.flush() == []
            found: Any = lambda: sum(  # noqa: E731
                task.statistics().late["Count"] for task in container.tasks.values()
            )
            await until(lambda: found() == late and len(seen) == 7)

    trio.run(lambda: run(2, *(Trade(key, at) for at in (100, 130) for key in "abcdefg"), late=0))
    place = ("-p", f"s4.state.folder={tmp_path / 'state'}")
    assert main(["repartition", "counts", "3", *place]) == 0
    trio.run(lambda: run(3, Trade("a", 101), late=1))
