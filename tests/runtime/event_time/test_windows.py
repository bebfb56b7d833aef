"""The promises of windows: an instance for each key and window, and one result at its end."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apps.candles.app import Trade
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import WindowKind, count, hopping, session, tumbling
from s4node.errors import GraphError, ProcessingError, S4Error, StateError
from s4node.events.event import Event, GenericEvent
from s4node.metrics.table import samples
from s4node.testing.app_test import AppTest


class Reading(Event, rename={"at": "created-at"}):
    symbol: str
    at: int


class Bar(Event):
    symbol: str
    start: float
    end: float
    count: int
    high: float
    round: int = 0


class Candle(ProcessingElement):
    bars: OutputStream
    n: int = 0
    high: float = 0.0

    def on_event(self, trade: Trade) -> None:
        self.n += 1
        self.high = max(self.high, trade.price)

    def on_window(self) -> None:
        if self.high == 666:
            raise ValueError("beast")
        start, end, again = self.window
        self.bars.put(Bar(str(self.key), start, end, self.n, self.high, again))

    def merge(self, later: Candle) -> None:
        self.n += later.n
        self.high = max(self.high, later.high)


class Market(App):
    kind: WindowKind
    options: dict[str, Any]
    lateness: float

    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", key="symbol", types=Bar)
        late = self.create_output_stream("late", types=Trade)
        event_time = self.kind.events == 0 and self.options.get("clock") != "wall"
        candle.set_window(self.kind, **({"late": late} if event_time else {}), **self.options)
        self.create_input_stream("trades", candle, key="symbol", time="at", lateness=self.lateness)


def market(kind: WindowKind, lateness: float = 5, **options: Any) -> type[Market]:
    return type("Market", (Market,), {"kind": kind, "options": options, "lateness": lateness})


def a(*times: float) -> list[Trade]:
    return [Trade("a", t, t) for t in times]


def bars(test: AppTest[Any]) -> list[tuple[Any, ...]]:
    return [(b.symbol, b.start, b.count, b.round) for b in test.take_output("bars")]


class Sent(App):
    system = "live"

    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", key="symbol", types=Bar)
        candle.set_window(tumbling(60))
        self.create_input_stream("trades", candle, key="symbol", system=self.system)


@pytest.mark.parametrize("system", ["live", "log"])
@pytest.mark.parametrize("partition", [0, 1])
def test_without_a_field_the_time_of_an_event_is_when_it_was_sent(
    system: str, partition: int
) -> None:
    with AppTest(type("Sent", (Sent,), {"system": system}), partitions=2) as test:
        test.advance(seconds=41)  # the clock of a test begins 20 s after a minute
        test.send("trades", *a(1, 2), partition=partition)  # one of these is not that of the key
        test.advance(seconds=50)
        test.send("trades", *a(3), partition=partition)
        test.advance(seconds=5)
        assert bars(test) == []
        test.advance(seconds=10)
        test.send("trades", *a(4), partition=partition)
        test.advance(seconds=5)
        [(key, start, n, _)] = bars(test)
        assert (key, start % 60, n) == ("a", 0, 3)
        assert test.late(Candle) == 0


def test_windows_over_a_stream_of_the_app_need_a_field_with_the_time() -> None:
    class Inner(Sent):
        def on_init(self) -> None:
            candle = self.create_pe(Candle)
            candle.set_window(tumbling(60))
            self.create_stream("trades", candle, key="symbol")

    with pytest.raises(GraphError, match="does not say which field has it"), AppTest(Inner):
        pass


def test_the_field_with_the_time_may_have_another_name_on_the_wire() -> None:
    class Count(ProcessingElement):
        bars: OutputStream
        n: int = 0

        def on_event(self, event: Reading) -> None:
            self.n += 1

        def on_window(self) -> None:
            self.bars.put(Bar(self.key, self.window.start, self.window.end, self.n, 0))

    class Renamed(App):
        def on_init(self) -> None:
            count = self.create_pe(Count)
            count.bars = self.create_output_stream("bars", key="symbol", types=Bar)
            count.set_window(tumbling(60))
            self.create_input_stream("readings", count, key="symbol", time="at")

    start = 1_700_000_040
    with AppTest(Renamed) as test:
        test.send("readings", *(Reading("a", (start + n) * 1000) for n in (1, 59, 60, 180)))
        assert bars(test) == [("a", start, 2, 0), ("a", start + 60, 1, 0)]


# --- the life of a window ------------------------------------------------------------------------


def test_each_key_and_window_has_an_instance_with_a_result_at_its_end() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(10, 59, 60), Trade("b", 1, 30))
        assert [pe.n for pe in test.windows(Candle, "a")] == [2, 1]
        assert bars(test) == []
        test.send("trades", *a(64.9))
        assert bars(test) == []  # events may be out of order by 5 s
        test.send("trades", *a(65))
        assert bars(test) == [("a", 0, 2, 0), ("b", 0, 1, 0)]
        assert [pe.window.start for pe in test.windows(Candle, "a")] == [60]
        assert test.keys(Candle) == ["a"]


def test_an_event_after_the_end_is_late_counted_and_put_on_the_stream_of_late_events() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(10, 70))
        test.send("trades", *a(59, 61))
        assert test.output("late") == a(59)
        assert test.late(Candle) == 1
        assert bars(test) == [("a", 0, 1, 0)]


def test_the_sender_of_a_late_event_may_be_told_by_how_much_it_is_late() -> None:
    with AppTest(market(tumbling(60), report_late=True)) as test:
        test.send("trades", *a(10, 70))
        test.send("trades", *a(61, 59, 62))
        [refused] = test.refused
        assert refused.event == Trade("a", 59, 59)
        assert refused.reason == "late by 6.000 s for Candle 'a'"
        assert test.output("late") == a(59)
        assert test.windows(Candle, "a")[0].n == 3


def test_within_the_grace_a_late_event_counts_and_there_is_another_result() -> None:
    with AppTest(market(tumbling(60), grace=20)) as test:
        test.send("trades", *a(10, 70))
        assert bars(test) == [("a", 0, 1, 0)]
        test.send("trades", *a(59, 58), Trade("b", 1, 59))
        assert bars(test) == [("a", 0, 3, 1), ("b", 0, 1, 0)]
        test.send("trades", *a(85))
        assert bars(test) == []
        test.send("trades", *a(59))
        assert test.output("late") == a(59)


def test_overlapping_windows_count_each_event_in_all_of_them() -> None:
    with AppTest(market(hopping(120, every=60))) as test:
        test.send("trades", *a(10, 70, 130, 135, 200, 400))
        assert bars(test) == [
            ("a", -60, 1, 0),
            ("a", 0, 2, 0),
            ("a", 60, 3, 0),
            ("a", 120, 3, 0),
            ("a", 180, 1, 0),
        ]


def test_overlapping_windows_of_tenths_of_a_second_lack_no_pane() -> None:
    start = 1_700_000_000.0
    with AppTest(market(hopping(0.6, every=0.2))) as test:
        test.send("trades", *a(*(start + n / 100 for n in range(100)), start + 20))
        found = {round(at - start, 3): n for _, at, n, _ in bars(test)}
    assert found == {-0.4: 20, -0.2: 40, 0: 60, 0.2: 60, 0.4: 60, 0.6: 40, 0.8: 20}


def test_a_late_event_in_a_part_without_others_makes_a_further_result_not_a_first_one() -> None:
    with AppTest(market(hopping(120, every=60), grace=100)) as test:
        test.send("trades", *a(10, 130))
        assert bars(test) == [("a", -60, 1, 0), ("a", 0, 1, 0)]
        test.send("trades", *a(70))
        assert bars(test) == [("a", 0, 2, 1)]


def test_a_session_ends_when_nothing_has_come_for_its_gap_and_is_joined_by_events_between() -> None:
    with AppTest(market(session(gap=30), grace=500)) as test:
        test.send("trades", *a(10, 100, 105), Trade("b", 1, 40))
        assert bars(test) == [("a", 10, 1, 0), ("b", 40, 1, 0)]
        test.send("trades", *a(39))
        assert [pe.window[:2] for pe in test.windows(Candle, "a")] == [(10, 69), (100, 135)]
        assert bars(test) == [("a", 10, 2, 1)]
        test.send("trades", *a(70.5))  # it touches the later session only
        assert [pe.window[:2] for pe in test.windows(Candle, "a")] == [(10, 69), (70.5, 135)]
        test.send("trades", *a(68))
        assert [(pe.window[:2], pe.n) for pe in test.windows(Candle, "a")] == [((10, 135), 6)]
        test.send("trades", *a(200))
        assert bars(test) == [("a", 10, 6, 2)]


def test_a_count_ends_with_its_last_event() -> None:
    with AppTest(market(count(3))) as test:
        test.send("trades", *a(1, 2), Trade("b", 1, 1))
        assert bars(test) == []
        test.send("trades", *a(3, 4))
        assert [row[:3] for row in bars(test)] == [("a", 0, 3)]
        assert test.windows(Candle, "a")[0].n == 1


def test_windows_by_the_wall_clock_end_without_events() -> None:
    with AppTest(market(tumbling(60), clock="wall")) as test:
        test.send("trades", *a(10))
        test.advance(seconds=61)
        assert [row[2] for row in bars(test)] == [1]
        assert test.keys(Candle) == []


@pytest.mark.parametrize("kind", [tumbling(60), session(gap=60)])
def test_a_clock_that_is_set_back_makes_no_event_late(kind: WindowKind) -> None:
    with AppTest(market(kind, clock="wall")) as test:
        test.send("trades", *a(10))
        test.advance(seconds=121)
        assert [row[2] for row in bars(test)] == [1]
        task: Any = test._runtime.tasks[0]
        instances, times, world = (
            task.instances["Candle"],
            task.processor.times,
            test._runtime.world,
        )
        instances.wall = times._wall = lambda: world._wall() - 1000
        test.send("trades", *a(11, 12))
        assert test.late(Candle) == 0
        test.advance(seconds=900)
        assert bars(test) == []  # until the clock is where it was
        test.advance(seconds=300)
        assert [row[2] for row in bars(test)] == [2]


def test_a_singleton_has_a_window_in_each_partition() -> None:
    app = App("one")
    candle = app.create_pe(Candle)
    candle.set_singleton()
    candle.bars = app.create_output_stream("bars", types=Bar)
    candle.set_window(tumbling(60))
    app.create_input_stream("trades", candle, time="at")
    with AppTest(app) as test:
        test.send("trades", *a(10, 20, 60))
        assert bars(test) == [("None", 0, 2, 0)]


class Created(Candle):
    def on_create(self) -> None:
        self.n += 100


@pytest.mark.parametrize("kind", [tumbling(10), session(gap=5), count(2)])
def test_each_window_of_a_singleton_is_created_once_at_its_first_event(kind: WindowKind) -> None:
    app = App("one")
    candle = app.create_pe(Created)
    candle.set_singleton()
    candle.bars = app.create_output_stream("bars", types=Bar)
    candle.set_window(kind)
    app.create_input_stream("trades", candle, time="at")
    with AppTest(app) as test:
        assert test.windows(Created) == []
        test.send("trades", *a(1, 2, 30))
        assert [bar[2] for bar in bars(test)] == [102]
        assert [each.n for each in test.windows(Created)] == [101]


def test_windows_of_generic_events_and_of_an_async_pe() -> None:
    class Slow(ProcessingElement):
        out: OutputStream
        n: int = 0

        async def on_event(self, _event: GenericEvent) -> None:
            self.n += 1

        async def on_window(self) -> None:
            self.out.put(GenericEvent(key=self.key, n=self.n))

    app = App("slow")
    slow = app.create_pe(Slow)
    slow.out = app.create_output_stream("out", types=GenericEvent)
    slow.set_window(tumbling(60))
    app.create_input_stream("in", slow, key="k", time="at")
    with AppTest(app) as test:
        test.send("in", *(GenericEvent(k="a", at=t) for t in (1.0, 2.0, 60.0)), GenericEvent(k="a"))
        assert test.output("out") == [GenericEvent(key="a", n=2)]
        assert "at=None is not a valid time" in test.refused[0].reason


def test_the_metrics_show_open_windows_late_events_and_the_watermark() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(10, 70, 130))
        test.send("trades", *a(59))
        [task] = test._runtime.tasks
        found = task.statistics()
        assert (found.windows, found.late) == (1, {"Candle": 1})
        assert found.watermarks == {"trades": (125.0, "trades[0]@test")}
        values = {(s.name, *s.labels.values()): s.value for s in samples(found)}
        assert values["s4_task_windows", "Partition 0"] == 1
        assert values["s4_task_late_total", "Partition 0", "Candle"] == 1
        assert values["s4_task_watermarks", "Partition 0", "trades"] == 125
        assert values["s4_task_behind", "Partition 0", "trades"] == 5


def test_a_producer_whose_clock_is_ahead_is_named() -> None:
    with AppTest(market(tumbling(60), clock="wall")) as test:
        [task] = test._runtime.tasks
        now = test._runtime.world._wall()
        task.processor.times._wall = lambda: now  # type: ignore[attr-defined]
        test.send("trades", *a(now + 30))
        [(stream, (by, source))] = task.statistics().ahead.items()
        assert (stream, round(by), source) == ("trades", 30, "trades[0]@test")


# --- times ---------------------------------------------------------------------------------------


def test_an_event_in_the_far_future_is_refused_and_ends_no_window() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(10, 4e9, 20))
        assert "ahead of the clock" in test.refused[0].reason
        assert bars(test) == []
        assert test.windows(Candle, "a")[0].n == 2


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (float, 1.7e12, "; are these milliseconds in a field of seconds, or does the sender's"),
        (int, 10**17, "; are these microseconds in a field of milliseconds, or does the sender's"),
        (datetime, datetime(9000, 1, 1, tzinfo=UTC), "ahead of the clock here; does the sender's"),
    ],
)
def test_a_refusal_says_which_unit_a_far_time_may_have(
    field: type, value: object, words: str
) -> None:
    class Minute(ProcessingElement):
        def on_event(self, _event: Event) -> None: ...

        def on_window(self) -> None: ...

    timed: Any = type("Timed", (Event,), {"__annotations__": {"key": str, "at": field}})
    app = App("units")
    minute = app.create_pe(Minute)
    minute.set_window(tumbling(60))
    app.create_input_stream("in", minute, key="key", types=timed, time="at")
    with AppTest(app) as test:
        test.send("in", timed("a", value))
        assert words in test.refused[0].reason


@pytest.mark.parametrize(
    "kind", [tumbling(60), hopping(120, every=60), session(gap=20)], ids=lambda kind: kind.text
)
def test_of_many_windows_that_are_over_each_is_dropped_on_its_own(kind: WindowKind) -> None:
    with AppTest(market(kind, grace=100)) as test:
        test.send("trades", *(Trade(str(key), 1, 10 + key / 10) for key in range(100)))
        windows: Any = test._runtime.tasks[0].instances["Candle"]
        left, windows.watermark = len(windows), 1000.0
        for due in windows.calls(lambda: 1):
            assert left - len(windows) <= 1
            left = len(windows)
            made(due)
        assert left <= 1
        assert len(windows) == 0


@pytest.mark.parametrize(
    "kind", [tumbling(60), hopping(120, every=60), session(gap=20)], ids=lambda kind: kind.text
)
def test_no_window_goes_without_its_call_if_the_watermark_rises_while_others_go(
    kind: WindowKind,
) -> None:
    events = [Trade(str(n % 7), 1, 10 + n * 30.0) for n in range(40)]
    with AppTest(market(kind, grace=10)) as test:
        test.send("trades", *events)
        test.advance_watermark("trades", 9000.0)
        expected = len(bars(test))
    with AppTest(market(kind, lateness=5000, grace=10)) as test:
        test.send("trades", *events)
        windows: Any = test._runtime.tasks[0].instances["Candle"]
        called, windows.watermark = 0, 200.0
        while len(windows):
            for due in windows.calls(lambda: 1):
                called += len(made(due))
                if not due.instances:
                    windows.watermark += 500.0
        assert called == expected


def test_an_event_of_the_grace_takes_no_call_from_windows_that_have_yet_to_end() -> None:
    with AppTest(market(hopping(30, every=10), lateness=5000, grace=10)) as test:
        test.send("trades", Trade("b", 1, 12), Trade("a", 1, 72), Trade("a", 1, 1000))
        windows: Any = test._runtime.tasks[0].instances["Candle"]
        windows.watermark, called = 45.0, []
        for _ in range(2):
            for due in windows.calls(lambda: 1):
                called += [each._span for each in made(due)]
                if windows.watermark == 45:
                    windows.watermark = 105.0  # between two calls, and an event comes
                    windows.table_of(None, 73.0)[0]["a"].n += 1
        assert [start for start, end in called if end > 45] == [50, 60, 70]


def test_a_call_that_was_made_before_its_turn_is_made_again_for_an_event_of_the_grace() -> None:
    with AppTest(market(hopping(30, every=10), lateness=5000, grace=10)) as test:
        test.send("trades", Trade("a", 1, 12), Trade("b", 1, 12), Trade("a", 1, 1000))
        windows: Any = test._runtime.tasks[0].instances["Candle"]
        early = [each for due in windows.calls_before("a", 45.0) for each in made(due)]
        assert [each._span[1] for each in early] == [20, 30, 40]
        windows.watermark = 40.0
        windows.table_of(None, 12.0)[0]["a"].n += 1
        found = [each for due in windows.calls(lambda: 1) for each in made(due)]
        assert [(each.key, each._span[1], each.n, each._round) for each in found] == [
            ("b", 20, 1, 0),
            ("b", 30, 1, 0),
            ("b", 40, 1, 0),
            ("a", 40, 2, 1),
        ]


def made(due: Any) -> Any:
    if due.done is not None:
        due.done(due.instances)
    return due.instances


def test_a_session_that_goes_on_after_its_end_is_called_at_the_new_end() -> None:
    with AppTest(market(session(gap=10), grace=100)) as test:
        test.send("trades", Trade("a", 1, 50), Trade("b", 1, 70))
        assert bars(test) == [("a", 50, 1, 0)]
        test.send("trades", Trade("a", 1, 50), Trade("a", 1, 59))  # until 69; the watermark is 65
        test.send("trades", Trade("a", 1, 58))
        test.send("trades", Trade("b", 1, 74.5))
        assert bars(test) == [("a", 50, 4, 1)]


# --- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [tumbling(60), hopping(120, every=60), session(gap=20), count(3)],
    ids=lambda kind: kind.text,
)
def test_windows_and_watermarks_survive_a_crash_with_the_same_results(kind: WindowKind) -> None:
    events = [Trade(key, t, float(t)) for t in range(1, 400, 7) for key in "ab"]
    with AppTest(market(kind)) as test:
        test.send("trades", *events)
        expected = sorted(bars(test))
    for at in (1, 30, 60, 90):
        with AppTest(market(kind)) as test:
            test.send("trades", *events[:at])
            test.advance(seconds=2)  # a commit
            test.crash()
            test.send("trades", *events[at:])
            assert sorted(bars(test)) == expected
            assert test.output("late") == []


def test_what_was_late_before_a_crash_is_late_after_it() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(10, 70))
        test.advance(seconds=2)
        test.crash()
        test.send("trades", *a(59))
        assert test.output("late") == a(59)
        assert test.late(Candle) == 1


def test_the_results_are_the_same_for_every_order_within_the_lateness() -> None:
    order = random.Random(5)
    events = [Trade(key, t / 10, t / 10) for t in range(10, 3000, 3) for key in "abc"]
    expected = None
    for _ in range(5):
        shuffled = sorted(events, key=lambda trade: trade.at + order.uniform(0, 4.9))
        with AppTest(market(hopping(30, every=10))) as test:
            for at in range(0, len(shuffled), 37):
                test.send("trades", *shuffled[at : at + 37])
            found = sorted(bars(test))
            assert test.output("late") == []
        expected = expected or found
        assert found == expected


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (tumbling(60), tumbling(30), "saved tumbling(60) windows, which cannot go on as tumbling("),
        (tumbling(604_800), tumbling(604_800.5), "cannot go on as tumbling(604800.5) windows"),
        (tumbling(60), session(gap=60), "cannot go on as session(gap=60) windows"),
        (tumbling(60), None, "cannot go on as state of keys; keep the kind"),
        (None, tumbling(60), "saved state of keys, which cannot go on as tumbling(60) windows"),
    ],
)
def test_windows_of_another_kind_cannot_go_on_as_those_that_are_saved(
    before: WindowKind | None, after: WindowKind | None, words: str
) -> None:
    class Changing(App):
        kind: WindowKind | None = before

        def on_init(self) -> None:
            candle = self.create_pe(Candle)
            if self.kind is not None:
                candle.set_window(self.kind)
            candle.bars = self.create_output_stream("bars", key="symbol", types=Bar)
            self.create_input_stream("trades", candle, key="symbol", time="at")

    durable = {"s4.stream.trades.grade": "durable"}
    with AppTest(Changing, settings=durable) as test:
        test.send("trades", *a(10))
        test.advance(seconds=2)
        Changing.kind = after
        with pytest.raises(StateError) as refused:
            test.crash()
        assert words in str(refused.value)


# --- mistakes ------------------------------------------------------------------------------------


def test_an_on_window_that_raises_names_the_key_and_the_window() -> None:
    with (
        pytest.raises(ProcessingError, match=r"'a'.*on_window of window 0 to 60"),
        AppTest(market(tumbling(60))) as test,
    ):
        test.send("trades", Trade("a", 666, 10), *a(70))


class Plain(ProcessingElement):
    def on_event(self, _trade: Trade) -> None: ...


class Ends(Plain):
    def on_window(self) -> None: ...


class Named(Ends):
    window: int = 0  # type: ignore[assignment]


def graph_error(prepare: Any, **stream: Any) -> str:
    class Wrong(App):
        def on_init(self) -> None:
            prepare(self, stream)

    with pytest.raises(GraphError) as raised, AppTest(Wrong):
        pass
    return str(raised.value)


def windowed(cls: type[ProcessingElement], *more: Any, **options: Any) -> Any:
    def prepare(app: App, stream: dict[str, Any]) -> None:
        pe = app.create_pe(cls)
        pe.set_window(*(more or (tumbling(60),)), **options)
        app.create_input_stream("trades", pe, **{"key": "symbol", "time": "at", **stream})

    return prepare


@pytest.mark.parametrize(
    ("prepare", "stream", "words"),
    [
        (windowed(Plain), {}, "no on_window method"),
        (windowed(Ends, hopping(60, every=30)), {}, "merge(self, later)"),
        (windowed(Ends, session(gap=30)), {}, "merge(self, later)"),
        (windowed(Ends, 60), {}, "give tumbling(60)"),
        (windowed(Ends, clock="sun"), {}, "'event' or 'wall'"),
        (windowed(Ends, grace=-1), {}, "grace=-1"),
        (windowed(Ends, grace=float("inf")), {}, "grace=inf"),
        (
            windowed(Ends, grace=1e9),
            {},
            "(grace=1000000000.0) is more than a year; give at most 31622400 s",
        ),
        (windowed(Ends, grace=1, clock="wall"), {}, "only windows by the time of events"),
        (windowed(Ends, late="trades"), {}, "give a stream of this app"),
        (windowed(Ends, report_late=1), {}, "give True or False"),
        (windowed(Ends, report_late=True, clock="wall"), {}, "only windows by the time of events"),
        (windowed(Named), {}, "'window' is taken"),
        (windowed(Ends), {"time": "when"}, "is not there in Trade"),
        (windowed(Ends), {"time": "symbol"}, "is str in Trade"),
        (windowed(Ends), {"time": "a b"}, "not the name of a field"),
        (windowed(Ends), {"key": None}, "has no key that finds them"),
        (windowed(Ends), {"lateness": -1}, "lateness=-1"),
        (windowed(Ends), {"idle": 0}, "idle=0"),
        (windowed(Ends, clock="wall"), {"time": "", "lateness": 3}, "a lateness but no time"),
    ],
)
def test_a_mistake_about_windows_is_an_error_before_anything_runs(
    prepare: Any, stream: dict[str, Any], words: str
) -> None:
    assert words in graph_error(prepare, **stream)


def test_what_does_not_go_with_windows_is_named() -> None:
    class Much(Ends):
        def on_time(self) -> None: ...

        def on_remove(self) -> None: ...

    def prepare(app: App, _stream: Any) -> None:
        pe = app.create_pe(Much)
        pe.set_window(tumbling(60))
        pe.set_timer_interval(1)
        pe.set_pe_cache(max_size=5)
        app.create_input_stream("trades", pe, key="symbol", time="at").set_parallelism(2)

    text = graph_error(prepare)
    for words in ("set_timer_interval", "set_pe_cache", "on_remove", "cannot have a parallelism"):
        assert words in text


def test_an_instance_without_windows_has_no_window() -> None:
    class Curious(ProcessingElement):
        def on_event(self, _trade: Trade) -> None:
            assert self.window is None

    app = App("curious")
    app.create_input_stream("trades", app.create_pe(Curious), key="symbol")
    with pytest.raises(ProcessingError) as raised, AppTest(app) as test:
        test.send("trades", *a(1))
    assert isinstance(raised.value.__cause__, S4Error)
    assert "call set_window" in str(raised.value.__cause__)


# --- turns ---------------------------------------------------------------------------------------


def test_events_come_between_the_calls_of_a_round_for_a_second_and_then_wait() -> None:
    with AppTest(market(tumbling(60), lateness=5000)) as test:
        test.send("trades", *(Trade(str(key), 1, 10) for key in range(10)))
        [task] = test._runtime.tasks
        processor: Any = task.processor
        processor.instances["Candle"].watermark, now = 1000.0, 50.0
        processor._calls._clock = processor.times._clock = lambda: now
        for calls in processor._calls.take(3):
            made(calls)
        assert not processor.calls_first
        now = 51.5
        assert processor.calls_first
        for calls in processor._calls.take(100):
            made(calls)
        assert not processor.calls_first
