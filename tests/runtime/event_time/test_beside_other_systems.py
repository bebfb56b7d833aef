"""Scenarios in which event time differs between systems: what s4node does in each.

docs/windows.md names the test of each, what the others do, and why s4node differs from some.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_windows import Bar, Candle, Market, Trade, a, bars, market

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import count, day, hopping, session, tumbling
from s4node.events.event import Event
from s4node.pes.pairs import Pairs
from s4node.testing.app_test import AppTest

PAGE = Path(__file__).parents[3] / "docs" / "windows.md"


def test_the_page_names_each_scenario() -> None:
    _, _, section = PAGE.read_text().partition("### Scenarios")
    named = re.findall(r"`(test_\w+)`", section.partition("\n## ")[0])
    here = [name for name in globals() if name.startswith("test_")]
    assert sorted(named) == sorted({*here} - {"test_the_page_names_each_scenario"})


# --- windows -------------------------------------------------------------------------------------


def test_windows_begin_at_multiples_since_1970_whatever_the_first_event() -> None:
    with AppTest(market(hopping(10, every=4), lateness=0)) as test:
        test.send("trades", *a(1_700_000_007, 1_700_000_100))
        starts = [start for _, start, *_ in bars(test)]
        assert starts == [1_700_000_000, 1_700_000_004]
        assert all(start % 4 == 0 for start in starts)


def test_an_event_at_the_end_of_a_window_is_in_the_next_one() -> None:
    with AppTest(market(tumbling(60), lateness=0)) as test:
        test.send("trades", *a(0.5, 59.999, 60, 120))
        assert bars(test) == [("a", 0, 2, 0), ("a", 60, 1, 0)]


def test_a_gap_of_exactly_the_length_ends_a_session() -> None:
    with AppTest(market(session(gap=30), lateness=0)) as test:
        test.send("trades", *a(1, 31, 60.9, 200))
        assert bars(test) == [("a", 1, 1, 0), ("a", 31, 2, 0)]


def test_sessions_that_a_late_event_connects_have_one_result_more_and_none_is_retracted() -> None:
    with AppTest(market(session(gap=30), lateness=0, grace=100)) as test:
        test.send("trades", *a(1, 50), Trade("b", 1, 100))
        assert bars(test) == [("a", 1, 1, 0), ("a", 50, 1, 0)]
        test.send("trades", *a(25))
        assert bars(test) == [("a", 1, 3, 1)]


def test_a_count_goes_by_arrival() -> None:
    with AppTest(market(count(2))) as test:
        test.send("trades", *a(500, 10, 499, 11))
        assert [b.count for b in test.output("bars")] == [2, 2]


def test_a_day_has_the_hours_of_its_zone() -> None:
    spring, end = 1_679_785_200.0, 1_679_868_000.0  # 26 March 2023 in Berlin: 23 hours
    with AppTest(market(day("Europe/Berlin"), lateness=0)) as test:
        test.send("trades", *a(spring, end - 1, end))
        assert [(b.start, b.end, b.count) for b in test.output("bars")] == [(spring, end, 2)]


# --- watermarks ----------------------------------------------------------------------------------


class Both(App):
    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", types=Bar)
        candle.set_window(tumbling(60))
        for name in ("fast", "slow"):
            self.create_input_stream(name, candle, key="symbol", time="at", idle=10)


def test_a_window_waits_for_the_slowest_source() -> None:
    with AppTest(Both) as test:
        test.send("slow", *a(1))
        test.send("fast", *a(2, 500))
        assert bars(test) == []
        test.send("slow", *a(3, 60))
        assert bars(test) == [("a", 0, 3, 0)]


def test_a_source_that_is_silent_is_waited_for_until_it_is_idle() -> None:
    with AppTest(Both) as test:
        test.send("slow", *a(1))
        for second in range(12):
            test.send("fast", *a(100 + second))
            test.advance(seconds=1)
        assert bars(test) == [("a", 0, 1, 0)]


def test_once_all_sources_are_idle_windows_before_the_latest_event_end_and_its_own_waits() -> None:
    with AppTest(Both) as test:
        test.send("slow", *a(1))
        test.send("fast", *a(2, 70))
        test.advance(seconds=12)
        assert bars(test) == [("a", 0, 2, 0)]
        test.advance(seconds=1000)
        assert bars(test) == []  # its window is not over at its own time


def test_the_end_of_bounded_inputs_ends_all_windows() -> None:
    class FromLog(App):
        def on_init(self) -> None:
            candle = self.create_pe(Candle)
            candle.bars = self.create_output_stream("bars", types=Bar)
            candle.set_window(tumbling(60))
            self.create_input_stream("trades", candle, key="symbol", time="at", system="log")

    with AppTest(FromLog) as test:
        test.send("trades", *a(1, 70))
        test.end_input("trades")
        test.advance(seconds=1)
        assert bars(test) == [("a", 0, 1, 0), ("a", 60, 1, 0)]


def test_the_events_of_one_key_end_the_windows_of_all() -> None:
    with AppTest(market(tumbling(60), lateness=0)) as test:
        test.send("trades", Trade("quiet", 1, 1), Trade("busy", 1, 60))
        assert bars(test) == [("quiet", 0, 1, 0)]
        test.send("trades", Trade("quiet", 1, 2))
        assert test.late(Candle) == 1


# --- late events ---------------------------------------------------------------------------------


def test_a_late_event_is_counted_and_put_on_a_stream() -> None:
    with AppTest(market(tumbling(60), lateness=0)) as test:
        test.send("trades", *a(1, 60))
        test.send("trades", *a(2))
        assert bars(test) == [("a", 0, 1, 0)]
        assert test.late(Candle) == 1
        assert test.output("late") == a(2)


def test_an_event_behind_the_watermark_counts_while_its_window_is_open() -> None:
    with AppTest(market(tumbling(60), lateness=0)) as test:
        test.send("trades", *a(50, 1, 60))
        assert bars(test) == [("a", 0, 2, 0)]
        assert test.late(Candle) == 0


def test_late_events_that_come_together_within_the_grace_give_one_further_result() -> None:
    with AppTest(market(tumbling(60), lateness=0, grace=30)) as test:
        test.send("trades", *a(1, 60))
        assert bars(test) == [("a", 0, 1, 0)]
        test.send("trades", *a(2, 3, 4))
        assert bars(test) == [("a", 0, 4, 1)]
        test.send("trades", *a(90))
        test.send("trades", *a(5))
        assert bars(test) == []
        assert test.late(Candle) == 1


class Discarding(Candle):
    def on_window(self) -> None:
        super().on_window()
        self.n = 0


class Discards(Market):
    def on_init(self) -> None:
        candle = self.create_pe(Discarding)
        candle.bars = self.create_output_stream("bars", types=Bar)
        candle.set_window(tumbling(60), grace=30)
        self.create_input_stream("trades", candle, key="symbol", time="at")


def test_results_accumulate_unless_on_window_sets_its_attributes_back() -> None:
    for app, further in ((market(tumbling(60), lateness=0, grace=30), 3), (Discards, 2)):
        with AppTest(app) as test:
            test.send("trades", *a(1, 60))
            assert bars(test) == [("a", 0, 1, 0)]
            test.send("trades", *a(2, 3))
            assert bars(test) == [("a", 0, further, 1)]


# --- results before the end ----------------------------------------------------------------------


def test_without_early_the_end_gives_the_only_result() -> None:
    with AppTest(market(tumbling(60), lateness=0)) as test:
        test.send("trades", *a(1, 2, 3))
        test.advance(seconds=29)
        assert bars(test) == []
        test.send("trades", *a(60))
        assert bars(test) == [("a", 0, 3, 0)]


def test_early_results_come_by_the_clock_for_windows_that_have_changed() -> None:
    with AppTest(market(tumbling(60), lateness=0, early=10)) as test:
        test.send("trades", *a(1, 2))
        test.advance(seconds=11)
        assert bars(test) == [("a", 0, 2, 0)]
        test.advance(seconds=11)
        assert bars(test) == []
        test.send("trades", *a(3, 60))
        assert bars(test) == [("a", 0, 3, 1)]


# --- timers --------------------------------------------------------------------------------------


class Timed(ProcessingElement):
    told: OutputStream

    def on_event(self, trade: Trade) -> None:
        self.told.put(Trade(f"event {self.key}", 0.0, trade.at))
        self.at(trade.at + trade.price, f"in {trade.price:g}")

    def on_timer(self, name: str) -> None:
        self.told.put(Trade(f"{self.key} {name}", 0.0, 1.0))


class Timers(App):
    order = ""

    def on_init(self) -> None:
        timed = self.create_pe(Timed)
        timed.told = self.create_output_stream("told", types=Trade)
        self.create_input_stream(
            "trades", timed, key="symbol", types=Trade, time="at", order=self.order, system="log"
        )


class InOrder(Timers):
    order = "time"


def told(test: AppTest[Any]) -> list[str]:
    return [each.symbol for each in test.take_output("told")]


def test_timers_fire_in_the_order_of_their_times_over_all_keys() -> None:
    with AppTest(Timers) as test:
        test.send("trades", Trade("a", 30, 1), Trade("b", 10, 2), Trade("a", 20, 3))
        told(test)
        test.send("trades", Trade("c", 1, 100))
        assert told(test) == ["event c", "b in 10", "a in 20", "a in 30"]


def test_a_timer_of_a_name_that_is_set_again_is_replaced() -> None:
    with AppTest(Timers) as test:
        test.send("trades", Trade("a", 10, 1), Trade("a", 10, 6), Trade("b", 1, 12))
        assert told(test) == ["event a", "event a", "event b"]
        test.send("trades", Trade("c", 1, 16))
        assert told(test) == ["event c", "b in 1", "a in 10"]


def test_a_timer_in_the_past_fires_after_its_handler() -> None:
    with AppTest(Timers) as test:
        test.send("trades", Trade("b", 1000, 100))
        told(test)
        test.send("trades", Trade("a", 1, 5))
        assert told(test) == ["event a", "a in 1"]


@pytest.mark.parametrize("app", [Timers, InOrder])
def test_in_a_replay_timers_come_between_events_in_order_and_else_after_those_that_are_there(
    app: type[App],
) -> None:
    with AppTest(app) as test:
        log = test._runtime.world.inputs.system("log")
        test._runtime.world.call(log.go_away)
        test.send("trades", *(Trade("a", 5, float(at)) for at in (1, 10, 20)))
        test._runtime.world.call(log.come_back)
        test.end_input("trades")
        test.advance(seconds=2)
        events, timer = ["event a"] * 3, "a in 5"
        between = ["event a", timer] * 3
        assert told(test) == (between if app is InOrder else [*events, timer])


# --- order, joins, inputs that run ahead ---------------------------------------------------------


class Last(Candle):
    def on_event(self, trade: Trade) -> None:
        self.n, self.high = self.n + 1, trade.price


class LastApp(App):
    def on_init(self) -> None:
        last = self.create_pe(Last)
        last.bars = self.create_output_stream("bars", types=Bar)
        last.set_window(tumbling(60))
        self.create_input_stream(
            "trades", last, key="symbol", types=Trade, time="at", lateness=20, order="time"
        )


def test_the_last_event_of_a_window_is_that_with_the_latest_time_not_that_which_came_last() -> None:
    with AppTest(LastApp) as test:
        test.send("trades", Trade("a", 7, 50), Trade("a", 3, 40), Trade("a", 0, 90))
        assert [each.high for each in test.output("bars")] == [7]


class Rate(Event):
    symbol: str
    price: float
    at: float


class AsOf(ProcessingElement):
    out: OutputStream
    rate: float = 0.0

    def on_event_rate(self, rate: Rate) -> None:
        self.rate = rate.price

    def on_event_trade(self, trade: Trade) -> None:
        self.out.put(Trade(trade.symbol, trade.price * self.rate, trade.at))


class Near(Pairs, left=Trade, right=Rate, within=(10, 10)):
    out: OutputStream

    def on_pair(self, left: Trade, right: Rate) -> None:
        self.out.put(Trade("pair", right.price, left.at))

    def on_alone(self, left: Trade) -> None:
        self.out.put(Trade("alone", left.price, left.at))


class Joined(App):
    pe: type[Any]

    def on_init(self) -> None:
        joins = self.create_pe(self.pe)
        joins.out = self.create_output_stream("out", types=Trade)
        for name, kind in (("trades", Trade), ("rates", Rate)):
            self.create_input_stream(name, joins, key="symbol", types=kind, time="at", order="time")


def joined(pe: type[Any], trades: list[Trade], rates: list[Rate]) -> list[tuple[str, float]]:
    with AppTest(type("Joined", (Joined,), {"pe": pe})) as test:
        test.send("trades", *trades)
        test.send("rates", *rates)
        for name in ("trades", "rates"):
            test.advance_watermark(name, 1000)
        return [(each.symbol, each.price) for each in test.output("out")]


def test_an_event_is_joined_as_of_its_time_also_with_what_comes_after_it() -> None:
    rates = [Rate("a", 2, 10), Rate("a", 3, 20), Rate("a", 4, 30)]
    assert joined(AsOf, a(25), rates) == [("a", 75)]


def test_an_interval_has_both_its_bounds_and_who_is_alone_is_told_once_nothing_can_come() -> None:
    rates = [Rate("a", 90, 90), Rate("a", 110, 110), Rate("a", 111, 111)]
    assert joined(Near, a(100, 200), rates) == [("pair", 90), ("pair", 110), ("alone", 200)]


def test_an_input_that_runs_ahead_waits_for_the_slowest_one_of_its_task() -> None:
    class Logs(App):
        def on_init(self) -> None:
            candle = self.create_pe(Candle)
            candle.bars = self.create_output_stream("bars", types=Bar)
            candle.set_window(tumbling(60))
            for name in ("fast", "slow"):
                self.create_input_stream(
                    name, candle, key="symbol", types=Trade, time="at", system="log"
                )

    with AppTest(Logs, settings={"s4.stream.workQueueSize": "20"}) as test:
        test.send("slow", *a(61))
        test.send("fast", *(Trade("b", 1, 60.0 * n) for n in range(1, 3000)))
        assert 10 <= len(test.windows(Candle, "b")) < 1500
        test.send("slow", *a(60.0 * 3000))
        test.end_input("slow")
        test.end_input("fast")
        test.advance(seconds=2)
        assert sum(n for key, _, n, _ in bars(test) if key == "b") == 2999
