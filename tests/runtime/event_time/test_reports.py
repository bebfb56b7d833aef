"""The promises of reports of time: many of them cost little, and none of them is heard late."""

from __future__ import annotations

from typing import Any

import pytest
from test_silent_sources import Sources, times_of
from test_windows import Bar, Candle, a, bars, market

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import tumbling
from s4node.runtime.event_time.sources import SourceState
from s4node.testing.app_test import AppTest


def is_due(times: Any) -> bool:
    """Return True if a step is due at once."""
    return times.next_due is not None and times.next_due <= times._clock()


def test_only_the_report_by_which_a_window_ends_needs_a_step_at_once() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(70))
        times = times_of(test)
        producers = [SourceState(f"producer {n}") for n in range(100)]
        times.watch("trades", Sources(*producers))
        times.step()
        for each in producers:
            times.reported("trades", each.name, 80)
        times.reported("trades", times._streams["trades"].watermarks.holding, 200)
        times.step()
        for time in (90, 100, 124, 126):  # the window ends at 120, and the lateness is 5
            for number, each in enumerate(producers):
                times.reported("trades", each.name, time)
                assert is_due(times) is (time == 126 and number == 99)


def test_the_watermark_follows_soon_though_nothing_is_due_by_it() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(70))
        test.send("trades", *a(80))
        test.advance(seconds=0.1)
        assert test._runtime.tasks[0].processor.times._streams["trades"].watermarks.value == 75


def test_an_event_is_late_by_a_report_that_came_just_before_it() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(310))
        test.send("trades", *a(10))
        assert (bars(test), test.late(Candle)) == ([], 1)


class Longer(ProcessingElement):
    bars: OutputStream
    n: int = 0

    def on_event(self, bar: Bar) -> None:
        self.n += bar.count

    def on_window(self) -> None:
        self.bars.put(Bar(str(self.key), self.window.start, self.window.end, self.n, 0))


class TwoHops(App):
    def on_init(self) -> None:
        candle, later = self.create_pe(Candle), self.create_pe(Longer)
        candle.set_window(tumbling(60))
        later.set_window(tumbling(200))
        later.bars = self.create_output_stream("bars", key="symbol", types=Bar)
        candle.bars = self.create_stream("inner", later, key="symbol", types=Bar, time="start")
        self.create_input_stream("trades", candle, key="symbol", time="at")


def test_a_window_over_results_ends_at_once_with_the_report_that_allows_it() -> None:
    with AppTest(TwoHops) as test:
        test.send("trades", *a(70, 121, 181, 199))
        assert bars(test) == []
        test.send("trades", *a(201))  # ends no window of the first hop
        assert bars(test) == [("a", 0, 2, 0)]


@pytest.mark.parametrize("partitions", [64])
def test_all_tasks_have_their_steps_for_time_in_one_turn(partitions: int) -> None:
    with AppTest(market(tumbling(60)), partitions=partitions) as test:
        test.send("trades", *a(70))
        loop = test._runtime.container.parts.loop
        for _ in range(20):  # they have learned by then how little such a step takes
            for task in test._runtime.tasks:
                task.processor.times._news = True
            before = loop.turns
            test._runtime.world.call(loop.nudge)
            test._runtime.wait_idle()
            turns = loop.turns - before
        assert turns <= 4
