"""The promises of watermarks between programs and tasks: nobody waits for a quiet partition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from harness import running, until

from s4node import Client, clocks
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream, Stream
from s4node.app.windows import tumbling
from s4node.events.event import Event
from s4node.offsets.watermarks import Watermarks
from s4node.runtime.event_time.held_streams import HeldStream, HeldStreams
from s4node.testing.any_order import rows_in_any_order
from s4node.testing.app_test import AppTest


class Bid(Event):
    auction: int
    price: int
    at: float


class Best(Event):
    auction: int
    price: int
    at: float


class Auction(ProcessingElement):
    best: Stream
    price: int = 0

    def on_event(self, bid: Bid) -> None:
        self.price = max(self.price, bid.price)

    def on_window(self) -> None:
        assert isinstance(self.key, int)
        self.best.put(Best(self.key, self.price, self.window.last))


class Highest(ProcessingElement):
    """The highest of all auctions' bids in each window: another hop, by the same windows."""

    results: OutputStream
    price: int = 0
    auctions: int = 0

    def on_event(self, best: Best) -> None:
        self.price = max(self.price, best.price)
        self.auctions += 1

    def on_window(self) -> None:
        self.results.put(Best(self.auctions, self.price, self.window.start))


class Auctions(App):
    def on_init(self) -> None:
        auction, highest = self.create_pe(Auction), self.create_pe(Highest)
        for pe in (auction, highest):
            pe.set_window(tumbling(10))
        highest.results = self.create_output_stream("results", types=Best)
        auction.best = self.create_stream("best", highest, key=lambda _: "all", time="at")
        self.create_input_stream("bids", auction, key="auction", time="at", lateness=1, idle=20)


def results(test: AppTest[Any]) -> list[tuple[float, int, int]]:
    """Start, auctions and price of each window's result."""
    return sorted((each.at, each.auction, each.price) for each in test.output("results"))


BIDS = [Bid(n % 7, n, 100 + n / 10) for n in range(500)]
EXPECTED = [(100.0 + 10 * n, 7, 99 + 100 * n) for n in range(4)]


@pytest.mark.parametrize("partitions", [1, 3])
def test_two_hops_have_the_same_results_for_any_number_of_partitions(partitions: int) -> None:
    with AppTest(Auctions, partitions=partitions) as test:
        for at in range(0, len(BIDS), 50):
            test.send("bids", *BIDS[at : at + 50])
        test.advance(seconds=5)  # commits, with which watermarks go on
        assert results(test) == EXPECTED
        assert test.late("Auction") == test.late("Highest") == 0


@pytest.mark.parametrize("at", [0, 130, 260, 499])
def test_a_kill_at_any_moment_changes_no_result_of_two_hops(at: int) -> None:
    with AppTest(Auctions, partitions=2) as test:
        test.send("bids", *BIDS[:at])
        test.advance(seconds=1.7)
        test.crash()
        test.send("bids", *BIDS[at:])
        test.advance(seconds=10)
        assert sorted(set(results(test))) == EXPECTED
        assert test.late("Auction") == test.late("Highest") == 0


class Passed(Event):
    car: str
    road: str
    at: float


class Car(ProcessingElement):
    seen: Stream

    def on_event(self, passed: Passed) -> None:
        self.seen.put(passed)


class Road(ProcessingElement):
    counts: OutputStream
    cars: int = 0

    def on_event(self, passed: Passed) -> None:
        self.cars += 1

    def on_window(self) -> None:
        self.counts.put(Passed(str(self.cars), str(self.key), self.window.start))


def roads(order: str = "", system: str = "live", **passed: Any) -> type[App]:
    class Roads(App):
        def on_init(self) -> None:
            car, road = self.create_pe(Car), self.create_pe(Road)
            road.set_window(tumbling(60))
            road.counts = self.create_output_stream("counts", types=Passed)
            car.seen = self.create_stream(
                "seen", road, key="road", types=Passed, time="at", lateness=5, order=order
            )
            self.create_input_stream(
                "passed", car, key="car", types=Passed, system=system, **passed
            )

    return Roads


def counts(test: AppTest[Any]) -> list[tuple[str, float, str]]:
    return sorted((each.road, each.at, each.car) for each in test.output("counts"))


@pytest.mark.parametrize("system", ["live", "log"])
@pytest.mark.parametrize("order", ["", "time"])
def test_a_stream_that_is_put_from_one_without_a_time_has_the_same_windows_in_all_layouts(
    system: str, order: str
) -> None:
    for partitions in (1, 4):
        with AppTest(roads(order, system), partitions=partitions) as test:
            for at in range(60, 260, 20):
                test.send("passed", *(Passed(f"c{at}", road, at) for road in ("A1", "A2", "A3")))
                test.advance(seconds=1)
            test.advance(seconds=30)  # some tasks have sent nothing, and are waited for
            expected = [(road, at, "3") for road in ("A1", "A2", "A3") for at in (60.0, 120.0)]
            assert counts(test) == expected
            assert test.late(Road) == 0
            if not order:
                assert test.watermark("seen") == (235.0, "")


def test_tasks_that_put_from_a_log_without_a_time_may_be_far_apart() -> None:
    with AppTest(roads(system="log"), partitions=2) as test:
        for car, first in (("b", 600.0), ("a", 60.0)):  # each in a partition of its own
            test.send("passed", *(Passed(car, "A1", first + n) for n in range(0, 300, 20)))
            test.advance(seconds=1)
        for partition, car in enumerate("ba"):
            assert test.state(Car, car, partition=partition)
        test.advance(seconds=32)
        assert [at for _, at, _ in counts(test)] == [60.0 * n for n in (1, 2, 3, 4, 5)] + [
            60.0 * n for n in (10, 11, 12, 13)
        ]
        assert test.late(Road) == 0


def test_a_watermark_says_which_source_holds_it_back() -> None:
    with AppTest(Auctions) as test:
        assert test.watermark("bids") == (-math.inf, "")
        test.send("bids", Bid(1, 1, 100))
        assert test.watermark("bids") == (99.0, "bids[0]@test")
    with AppTest(roads(), partitions=4) as test:
        test.send("passed", Passed("c", "A1", 100))
        test.advance(seconds=1)
        time, held_back_by = test.watermark("seen")
        assert time == -math.inf
        assert held_back_by.startswith("seen[")
        with pytest.raises(LookupError, match="stream 'passed' has no time"):
            test.watermark("passed")


def test_a_stream_whose_watermark_does_not_rise_is_told_once_with_what_holds_it_back() -> None:
    marks = Watermarks(lateness=5)
    held = HeldStreams({"trades": marks})
    held.note({"trades"}, now=0)
    assert held.take_due(now=59) == []
    assert held.take_due(now=60) == [HeldStream("trades", -math.inf, "")]
    assert held.take_due(now=61) == []
    marks.reach("fast", 100)
    marks.reach("slow", 50)
    marks.advance()
    held.note({"trades"}, now=70)
    assert held.take_due(now=129) == []
    assert held.take_due(now=130) == [HeldStream("trades", 45.0, "slow")]
    held.note(set(), now=140)  # no window waits any more
    held.note({"trades"}, now=150)
    assert held.take_due(now=209) == []


def test_a_stream_that_is_as_far_as_its_events_is_not_told() -> None:
    marks = Watermarks(lateness=5)
    held = HeldStreams({"trades": marks})
    marks.reach("only", 100)
    marks.advance()
    held.note({"trades"}, now=0)
    assert held.take_due(now=1000) == []


def test_the_rows_are_the_same_for_every_order_number_of_partitions_and_kill() -> None:
    rows = rows_in_any_order(Auctions, "bids", BIDS, output="results", until=600.0)
    assert len(rows) == 5
    assert repr(Best(7, 99, 100.0)) in rows


def test_the_check_of_orders_finds_an_app_that_depends_on_the_order() -> None:
    class First(Auction):
        def on_event(self, bid: Bid) -> None:
            self.price = self.price or bid.price

    class Wrong(App):
        def on_init(self) -> None:
            first = self.create_pe(First)
            first.set_window(tumbling(10))
            first.best = self.create_output_stream("results", types=Best)
            self.create_input_stream("bids", first, key="auction", time="at", lateness=5)

    with pytest.raises(AssertionError, match=r"rows are missing \['Best"):
        rows_in_any_order(Wrong, "bids", BIDS, output="results", until=600.0)


def test_a_partition_that_gets_no_events_does_not_hold_the_others() -> None:
    with AppTest(Auctions, partitions=4) as test:
        test.send("bids", Bid(3, 7, 100.0), Bid(3, 8, 115.0))  # all of one partition
        test.advance(seconds=3)
        assert results(test) == [(100.0, 1, 7)]


def test_a_program_without_events_tells_its_time() -> None:
    with AppTest(Auctions, partitions=2) as test:
        test.send("bids", Bid(3, 7, 100.0))
        test.advance(seconds=3)
        assert results(test) == []
        test.advance_watermark("bids", 112)
        test.advance(seconds=3)
        assert results(test) == [(100.0, 1, 7)]


def test_what_is_told_holds_after_a_crash_without_being_told_again() -> None:
    with AppTest(Auctions) as test:
        test.send("bids", Bid(3, 7, 100.0))
        test.advance_watermark("bids", 112)
        test.advance(seconds=2)
        test.crash()
        test.send("bids", Bid(3, 9, 101.0))
        assert test.late("Auction") == 1


def test_another_task_that_is_stuck_is_not_idle_until_it_says_so() -> None:
    with AppTest(Auctions, partitions=3) as test:
        test.send("bids", *BIDS)
        test.advance(seconds=2)
        home = test._runtime.tasks[0]
        times: Any = home.processor.times
        others = [each for each in times._streams["best"].sources.states() if each.reports]
        assert len(others) == 3
        assert all(each.blocked for each in others)  # connected, whatever they do
        test.advance(seconds=25)  # the program has no news any more
        idle = times._streams["best"].watermarks.is_idle
        assert all(idle(each.name) for each in others)


class Passes(ProcessingElement):
    onward: OutputStream

    def on_event(self, bid: Bid) -> None:
        self.onward.put(bid)

    def on_window(self) -> None:
        pass


class Relay(App):
    def on_init(self) -> None:
        passes = self.create_pe(Passes)
        passes.set_window(tumbling(10))
        passes.onward = self.create_output_stream("onward", key="auction", types=Bid)
        self.create_input_stream("bids", passes, key="auction", types=Bid, time="at")


class Counted(App):
    def on_init(self) -> None:
        auction = self.create_pe(Auction)
        auction.best = self.create_output_stream("best", types=Best)  # type: ignore[assignment]
        auction.set_window(tumbling(10))
        self.create_input_stream("onward", auction, key="auction", types=Bid, idle=0.5)


async def test_an_app_that_is_ahead_of_the_clock_makes_nothing_late_that_has_the_time_of_sending(
    tmp_path: Path,
) -> None:
    began = clocks.wall()
    async with running(Counted("counted"), {"s4.state.folder": str(tmp_path / "c")}) as counted:
        settings = {
            "s4.state.folder": str(tmp_path / "r"),
            "s4.stream.onward.consumers": "counted",
            "s4.cluster.counted.address": counted.address,
        }

        def watermark() -> float:
            times: Any = counted.tasks[0].processor.times  # type: ignore[attr-defined]
            return float(times._streams["onward"].watermarks.value)

        async with (
            running(Relay("relay"), settings) as relay,
            Client(relay.address, producer="p") as client,
        ):
            bids = await client.stream("bids", types=Bid)
            while watermark() < began + 1:
                await bids.send(Bid(3, 7, began + 1800))
                await bids.flush()
            assert watermark() <= clocks.wall()
            assert counted.tasks[0].statistics().late["Auction"] == 0


async def test_own_events_that_wait_at_a_commit_hold_no_watermark_after_it(tmp_path: Path) -> None:
    settings = {
        "s4.state.folder": str(tmp_path),
        "s4.stream.passed.grade": "durable",
        "task.commit.ms": "1",  # so events that are put wait for one of the commits
    }
    app = roads("time", time="at")("roads")
    async with (
        running(app, settings) as container,
        Client(container.address, producer="p") as client,
    ):
        passed = await client.stream("passed", types=Passed)
        await passed.send_many([Passed("car", "road", 1000 + n / 1000) for n in range(20_000)])
        await passed.flush()
        times = container.tasks[0].processor.times  # type: ignore[attr-defined]
        await until(lambda: times.watermark_of("seen").watermark > 1014, seconds=5)
