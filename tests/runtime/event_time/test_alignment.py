"""The promises of inputs that run ahead in time: they wait for slower ones, and for nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from test_windows import Bar, Candle, Trade, a, bars

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import Stream
from s4node.app.windows import tumbling
from s4node.errors import ConfigError
from s4node.systems.memory import BATCH_EVENTS
from s4node.testing.app_test import AppTest


class Both(App):
    """Windows of a minute over two logs."""

    slow = "log"

    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", types=Bar)
        candle.set_window(tumbling(60))
        for name, system in (("fast", "log"), ("slow", self.slow)):
            self.create_input_stream(
                name, candle, key="symbol", time="at", idle=30, system=system, types=Trade
            )


class Passing(ProcessingElement):
    out: Stream

    def on_event(self, trade: Trade) -> None:
        self.out.put(trade)


class HopLater(App):
    """The same after another hop."""

    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", types=Bar)
        candle.set_window(tumbling(60))
        passed = self.create_stream("passed", candle, key="symbol", types=Trade, time="at")
        for name in ("fast", "slow"):
            passing = self.create_pe(Passing, name=f"Passing {name}")
            passing.out = passed
            self.create_input_stream(
                name, passing, key="symbol", time="at", idle=30, system="log", types=Trade
            )


SETTINGS = {"s4.stream.workQueueSize": "20"}
MINUTES, EACH = 200, 40
EVENTS = [Trade("b", 1, 60.0 + 60 * n / EACH) for n in range(MINUTES * EACH)]
MOST = 11 + 2 + BATCH_EVENTS // EACH  # the drift, and what is read beyond it at a time


def run_ahead(test: AppTest[Any]) -> None:
    test.send("slow", *a(61))
    test.send("fast", *EVENTS)


def processed(test: AppTest[Any]) -> int:
    [task] = test._runtime.tasks
    return task.processed


def open_windows(test: AppTest[Any]) -> int:
    [task] = test._runtime.tasks
    return task.statistics().windows


@pytest.mark.parametrize("app", [Both, HopLater])
def test_a_log_that_runs_ahead_waits_for_a_slower_one(app: type[App]) -> None:
    with AppTest(app, settings=SETTINGS) as test:
        run_ahead(test)
        assert 10 < open_windows(test) <= MOST
        [task] = test._runtime.tasks
        assert task.statistics().waiting == ["log.fast[0]"]
        for minute in range(10, MINUTES, 10):
            test.send("slow", *a(60.0 * minute))
            test.advance(seconds=1)
            assert open_windows(test) <= MOST
        for name in ("fast", "slow"):
            test.end_input(name)
        test.advance(seconds=2)
        counts: dict[str, int] = {}
        for key, _, n, _ in bars(test):
            counts[key] = counts.get(key, 0) + n
        assert counts == {"b": len(EVENTS), "a": MINUTES // 10}
        assert test.late(Candle) == 0


@pytest.mark.parametrize("reason", ["idle", "ended", "not begun"])
def test_a_source_that_is_idle_has_ended_or_not_begun_holds_no_other(reason: str) -> None:
    with AppTest(Both, settings=SETTINGS) as test:
        if reason == "not begun":
            test.send("fast", *EVENTS)
        else:
            run_ahead(test)
            assert processed(test) < len(EVENTS) // 2
        if reason == "ended":
            test.end_input("slow")
        if reason == "idle":
            test.advance(seconds=28)
            assert processed(test) < len(EVENTS) // 2
            test.advance(seconds=3)
        assert processed(test) >= len(EVENTS)


def test_an_input_whose_first_events_wait_to_be_read_holds_the_others() -> None:
    class TwoLogs(Both):
        slow = "slow-log"

    with AppTest(TwoLogs, settings=SETTINGS) as test:
        slow = test._runtime.world.inputs.system("slow-log")
        test._runtime.world.call(slow.go_away)
        test.send("slow", *a(61, 62, 63))
        test.send("fast", *EVENTS)
        assert open_windows(test) <= MOST
        test._runtime.world.call(slow.come_back)
        for name in ("slow", "fast"):
            test.end_input(name)
        test.advance(seconds=2)
        assert sum(n for _, _, n, _ in bars(test)) == 3 + len(EVENTS)
        assert test.late(Candle) == 0


def test_an_input_that_waits_is_not_idle_and_loses_no_event() -> None:
    with AppTest(Both, settings=SETTINGS) as test:
        run_ahead(test)
        for second in range(100):  # longer than idle; the slow log is at 61 s
            test.send("slow", *a(61 + second / 100))
            test.advance(seconds=1)
        for name in ("slow", "fast"):
            test.end_input(name)
        test.advance(seconds=2)
        assert test.late(Candle) == 0
        assert sum(n for _, _, n, _ in bars(test)) == 101 + len(EVENTS)


def test_inputs_whose_events_do_not_meet_do_not_wait_for_each_other() -> None:
    class Apart(App):
        def on_init(self) -> None:
            for name in ("fast", "slow"):
                candle = self.create_pe(Candle, name=name)
                candle.bars = self.create_output_stream(f"bars-{name}", types=Bar)
                candle.set_window(tumbling(60))
                self.create_input_stream(name, candle, key="symbol", time="at", system="log")

    with AppTest(Apart, settings=SETTINGS) as test:
        run_ahead(test)
        assert processed(test) == 1 + len(EVENTS)


def test_how_far_an_input_may_run_ahead_is_a_setting() -> None:
    settings = {**SETTINGS, "s4.stream.fast.maxDrift": "3000"}
    with AppTest(Both, settings=settings) as test:
        run_ahead(test)
        assert 50 < open_windows(test) <= 40 + MOST
    with pytest.raises(ConfigError, match=r"maxDrift: app 'Both' reads these inputs .*fast, slow"):
        AppTest(Both, settings={"s4.stream.other.maxDrift": "1"}).__enter__()
