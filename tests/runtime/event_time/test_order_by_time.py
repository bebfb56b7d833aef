"""``order="time"``: the events of a key in the order of their times, however they come."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from apps.candles.app import Trade
from s4node.app.app import App
from s4node.app.processing_element import OfKey, ProcessingElement
from s4node.app.stream import OutputStream, Stream
from s4node.app.windows import WindowKind, day, hopping, session, tumbling
from s4node.errors import (
    ConfigError,
    GraphError,
    ProcessingError,
    StateError,
)
from s4node.events.event import Event, GenericEvent
from s4node.metrics.table import samples
from s4node.testing.any_order import rows_in_any_order
from s4node.testing.app_test import AppTest


class Quote(Event):
    symbol: str
    at: float


class Seen(Event):
    symbol: str
    price: float
    at: float


class Sees(ProcessingElement):
    seen: OutputStream
    before: float = 0.0
    n: int = 0

    def on_event(self, trade: Trade) -> None:
        self.n += 1
        if trade.price == 666:
            raise ValueError("beast")
        self.seen.put(Seen(str(self.key), trade.price * 1000 + self.before, trade.at))
        self.before = trade.price

    def on_event_quote(self, quote: Quote) -> None:
        self.seen.put(Seen(str(self.key), -1.0, quote.at))


class Ordered(App):
    def on_init(self) -> None:
        sees = self.create_pe(Sees)
        sees.seen = self.create_output_stream("seen", types=Seen)
        self.create_output_stream("dead", types=GenericEvent)
        self.create_input_stream("trades", sees, key="symbol", time="at", lateness=5, order="time")


def a(*times: float) -> list[Trade]:
    return [Trade("a", t, t) for t in times]


def times(test: AppTest[Any]) -> list[float]:
    return [each.at for each in test.take_output("seen")]


def test_the_events_of_a_key_come_in_the_order_of_their_times_once_the_watermark_has_passed() -> (
    None
):
    with AppTest(Ordered) as test:
        test.send("trades", *a(104, 101, 103, 102.5), Quote("a", 102))
        assert times(test) == []
        test.send("trades", *a(107.25))
        assert times(test) == [101, 102]
        test.send("trades", *a(115))
        assert times(test) == [102.5, 103, 104, 107.25]


def test_of_events_of_one_time_the_order_is_that_of_their_bytes() -> None:
    events = [Trade("a", float(price), 100.0) for price in range(1, 20)]
    found = set()
    for seed in range(5):
        random.Random(seed).shuffle(events)
        with AppTest(Ordered) as test:
            test.send("trades", *events)
            test.send("trades", *a(110))
            found.add(tuple(each.price for each in test.output("seen")))
    assert len(found) == 1


def test_the_rows_are_the_same_for_every_order_number_of_partitions_and_kill() -> None:
    chance = random.Random(3)
    events = [Trade(chance.choice("abcdef"), float(n), 100 + n * 0.37) for n in range(400)]
    rows = rows_in_any_order(Ordered, "trades", events, output="seen", until=600)
    assert len(rows) == 400


def test_windows_over_events_in_order_have_the_first_and_the_last_of_them() -> None:
    class Edges(ProcessingElement):
        seen: OutputStream
        first: float = 0.0
        last: float = 0.0

        def on_event(self, trade: Trade) -> None:
            self.first = self.first or trade.price
            self.last = trade.price

        def on_window(self) -> None:
            self.seen.put(Seen(str(self.key), self.first * 1000 + self.last, self.window.start))

    class EdgesApp(App):
        def on_init(self) -> None:
            edges = self.create_pe(Edges)
            edges.seen = self.create_output_stream("seen", types=Seen)
            edges.set_window(tumbling(10))
            self.create_input_stream(
                "trades", edges, key="symbol", time="at", lateness=5, order="time"
            )

    events = [Trade("abc"[n % 3], float(n + 1), 100 + n * 0.37) for n in range(300)]
    assert len(rows_in_any_order(EdgesApp, "trades", events, output="seen", until=600)) == 35


def test_held_back_events_survive_a_crash_although_their_producer_keeps_none_of_them() -> None:
    with AppTest(Ordered) as test:
        test.send("trades", *a(104, 101, 103))
        test.advance(seconds=2)
        test.crash()
        assert times(test) == []
        test.send("trades", *a(102, 115))
        assert times(test) == [101, 102, 103, 104]


@pytest.mark.parametrize("grade", [{}, {"s4.stream.trades.grade": "durable"}])
@pytest.mark.parametrize("held", [True, False])
def test_the_order_cannot_be_taken_away_while_events_are_held_back(
    held: bool, grade: dict[str, str]
) -> None:
    class Changing(App):
        order = "time"

        def on_init(self) -> None:
            sees = self.create_pe(Sees)
            sees.seen = self.create_output_stream("seen", types=Seen)
            self.create_input_stream(
                "trades", sees, key="symbol", time="at", lateness=5, order=self.order
            )

    with AppTest(Changing, settings=grade) as test:
        test.send("trades", *a(104, 101))
        if not held:
            test.advance_watermark("trades", 200)
        test.advance(seconds=2)
        Changing.order = ""
        if not held:
            test.crash()
            assert times(test) == [101, 104]
            return
        with pytest.raises(StateError, match="'trades' had order='time', and events of it are"):
            test.crash()


def test_a_late_event_is_handed_on_at_once_and_counted() -> None:
    with AppTest(Ordered) as test:
        test.send("trades", *a(101, 110))
        assert times(test) == [101]
        test.send("trades", *a(102))
        assert times(test) == [102]
        assert test.late("trades-in-order") == 1


def test_what_is_handed_on_in_parts_is_saved_until_it_leaves_and_a_small_span_is_one_part() -> None:
    first = [101 + n / 50 for n in range(10)]
    with AppTest(Ordered) as test:
        test.send("trades", *a(104, *first, 103), Trade("b", 1.0, 101.1))
        [task] = test._runtime.tasks
        held: Any = task.instances["trades-in-order"]
        held.watermark = 103.75
        parts, saved = [], []
        for due in held.calls(lambda: 1):
            [one] = due.instances
            parts.append([each[0] for each in one.held])
            saved.append(sorted(each[0] for span in held.all() for each in span.held))
        assert parts == [sorted([*first, 101.1]), [103]]
        assert saved == [[103, 104], [104]]


def of_a_minute() -> list[Trade]:
    """Events of one time, in no order: most of one key, three of each other."""
    keys = [*["hot"] * 3000, *(f"k{n}" for n in range(500) for _ in range(3))]
    random.Random(3).shuffle(keys)
    return [Trade(key, float(n % 600), 101.0) for n, key in enumerate(keys)]


@pytest.mark.parametrize("gathered", [True, False])
def test_many_events_of_one_time_are_handed_on_in_parts_and_each_is_saved_until_it_leaves(
    gathered: bool,
) -> None:
    events = of_a_minute()
    with AppTest(Ordered) as test:
        test.send("trades", *events, *a(101.3, 104))
        [task] = test._runtime.tasks
        held: Any = task.instances["trades-in-order"]
        held.watermark = 103.75
        if gathered:
            assert sum(len(span.held) for span in held.all()) == len(events) + 2
        parts, gone, sizes = held.calls(lambda: 1), list[Any](), list[int]()
        while due := next(parts, None):
            [one] = due.instances
            gone += one.held
            sizes.append(len(one.held))
            saved = [each for span in held.all() for each in span.held]
            assert len(gone) + len(saved) == len(events) + 2
            assert not saved or gone[-1] <= min(saved)
        assert gone == sorted(gone)
        assert [each[0] for each in gone] == [101.0] * len(events) + [101.3]
        assert max(sizes) <= 2048 + 8


def test_a_commit_between_the_parts_of_a_span_keeps_the_rest_in_order() -> None:
    events = of_a_minute()
    with AppTest(Ordered, settings={"s4.stream.trades.grade": "durable"}) as test:
        test.send("trades", *events, *a(104))
        test.advance(seconds=2)  # a commit
        container: Any = test._runtime.container
        [task] = container.replay.committer._tasks.values()
        [processor] = [each.processor for each in test._runtime.tasks]
        held = processor.instances["trades-in-order"]
        held.watermark = 103.75
        names, parts, left = held.prototype.cls.names, held.calls(lambda: 1), Counter(events)
        for _ in range(2):
            for _, name, raw in next(parts).instances[0].held:
                left[names[name].decode(raw)[0]] -= 1
        processor.times.save(task.state)
        task.state.begin_commit({})
        while task.state.encode(64):
            pass
        task.state.write_commit()
        task.state.end_commit(written=True)
        test.crash()
        test.send("trades", *a(115))
        rows = test.output("seen")
        prices = {
            key: [each.price // 1000 for each in rows if each.symbol == key and each.at == 101.0]
            for key in {each.symbol for each in events}
        }
        assert 0 < left.total() < len(events)
        assert prices == {
            key: sorted(each.price for each in left.elements() if each.symbol == key)
            for key in prices
        }
        test.send("trades", Trade("k1", 1.0, 101.1))
        assert test.late("trades-in-order") == 1


@pytest.mark.parametrize("bad", [0.0, -1.0, -math.inf, math.nan])
def test_an_event_without_a_good_time_is_refused_also_after_a_good_one(bad: float) -> None:
    with AppTest(Ordered) as test:
        test.send("trades", *a(104))
        test.send("trades", *a(bad))
        test.send("trades", *a(115))
        assert times(test) == [104]
        assert len(test.refused) == 1


def test_an_event_of_a_wrong_type_fails_alone_and_no_event_of_another_key_is_lost() -> None:
    class Spoils(ProcessingElement):
        trades: Stream

        def on_event(self, trade: Trade) -> None:
            price: Any = None if trade.price == 666 else trade.price
            self.trades.put(Trade(trade.symbol, price, trade.at))

    class Spoiled(App):
        def on_init(self) -> None:
            sees, spoils = self.create_pe(Sees), self.create_pe(Spoils)
            sees.seen = self.create_output_stream("seen", types=Seen)
            self.create_output_stream("dead", types=GenericEvent)
            spoils.trades = self.create_stream(
                "inner", sees, key="symbol", types=Trade, time="at", lateness=5, order="time"
            )
            self.create_input_stream("trades", spoils, key="symbol", types=Trade)

    settings = {
        "s4.stream.trades.grade": "durable",
        "s4.stream.trades.onError": "dead-letter",
        "task.dead.letter.stream": "dead",
    }
    with AppTest(Spoiled, settings=settings) as test:
        test.send("trades", *a(101), Trade("b", 666.0, 101.1), Trade("c", 3.0, 101.1))
        test.send("trades", *a(115))
        test.advance(seconds=5)
        assert times(test) == [101, 101.1]
        [letter] = test.output("dead")
        assert "price" in letter.reason


def test_an_event_before_the_watermark_is_late_although_nothing_was_held_back_before_it() -> None:
    with AppTest(Ordered) as test:
        test.send("trades", *a(104))
        test.advance_watermark("trades", 108)
        test.send("trades", *a(101), *a(110))
        assert times(test) == [101, 104]
        assert test.late("trades-in-order") == 1


def test_handlers_of_a_stream_in_order_are_called_one_by_one_whatever_the_settings_say() -> None:
    with AppTest(Ordered, settings={"s4.stream.parallelism": "4"}) as test:
        [task] = test._runtime.tasks
        held: Any = task.instances["trades-in-order"]
        test.send("trades", *(Trade(str(n), 1.0, 101 + n % 3) for n in range(3000)))
        test.send("trades", *a(115))
        assert len(test.output("seen")) == 3000
        assert len(held) == 1


def test_the_metrics_show_what_is_held_back() -> None:
    with AppTest(Ordered) as test:
        test.send("trades", *a(101, 102, 103))
        [task] = test._runtime.tasks
        assert task.statistics().held_back == 3
        (held,) = [s for s in samples(task.statistics()) if s.name == "s4_task_held_back"]
        assert held.value == 3
        test.crash()
        test.send("trades", *a(115))
        [task] = test._runtime.tasks
        assert task.statistics().held_back == 1


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_beyond_the_bound_the_app_stops_and_says_what_holds_the_events_back(on_error: str) -> None:
    settings = {"s4.stream.trades.heldBack": "3", "s4.stream.trades.onError": on_error}
    with (
        pytest.raises(ProcessingError, match=r"holds back 3 events.*s4\.stream\.trades\.heldBack"),
        AppTest(Ordered, settings=settings) as test,
    ):
        test.send("trades", *a(101, 102, 103, 104))


def test_the_bound_of_a_stream_without_order_is_a_mistake() -> None:
    with (
        pytest.raises(ConfigError, match=r"s4\.stream\.quotes: nothing is held back.*trades"),
        AppTest(Ordered, settings={"s4.stream.quotes.heldBack": "3"}),
    ):
        pass


def test_an_event_in_order_at_which_a_handler_raises_is_a_dead_letter() -> None:
    settings = {"s4.stream.trades.onError": "dead-letter", "task.dead.letter.stream": "dead"}
    with AppTest(Ordered, settings=settings) as test:
        test.send("trades", *a(103, 101), Trade("a", 666, 102), *a(115))
        test.advance(seconds=3)
        assert times(test) == [101, 103]
        [letter] = test.output("dead")
        assert (letter.pe, letter.key, letter.stream) == ("Sees", "'a'", "trades-by-time")
        assert test.state(Sees, "a").n == 2


def test_a_singleton_gets_all_events_of_its_partition_in_order() -> None:
    app = App("one")
    sees = app.create_pe(Sees)
    sees.set_singleton()
    sees.seen = app.create_output_stream("seen", types=Seen)
    app.create_input_stream("trades", sees, time="at", lateness=5, order="time")
    with AppTest(app) as test:
        test.send("trades", *a(103, 101), Trade("b", 1, 102), *a(115))
        assert times(test) == [101, 102, 103]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "time", "time": ""}, "order='time' but no time"),
        ({"order": "key"}, "leave it out, or give 'time'"),
    ],
)
def test_a_mistake_about_the_order_is_an_error_at_once(options: dict[str, Any], words: str) -> None:
    class Wrong(App):
        def on_init(self) -> None:
            sees = self.create_pe(Sees)
            self.create_input_stream("trades", sees, **{"key": "symbol", "time": "at", **options})

    with pytest.raises(GraphError) as raised, AppTest(Wrong):
        pass
    assert words in str(raised.value)


def test_handlers_side_by_side_are_refused() -> None:
    class Wrong(App):
        def on_init(self) -> None:
            stream = self.create_input_stream(
                "trades", self.create_pe(Sees), key="symbol", time="at", order="time"
            )
            stream.set_parallelism(2)

    with pytest.raises(GraphError, match="order='time' and a parallelism"), AppTest(Wrong):
        pass


# --- timers and windows in the order of events ---------------------------------------------------


class Once(ProcessingElement):
    """Lets the first trade of an hour pass, as in docs/joins.md."""

    seen: OutputStream
    passed: bool = False

    def on_event(self, trade: Trade) -> None:
        if not self.passed:
            self.passed = True
            self.at(trade.at + 3600)
            self.seen.put(Seen(str(self.key), trade.price, trade.at))

    def on_timer(self, _name: str) -> None:
        self.remove()


class Later(ProcessingElement):
    """Has timers at, before and after the time of its event, one of which sets another one."""

    seen: OutputStream
    fired: int = 0

    def on_event(self, trade: Trade) -> None:
        self.seen.put(Seen(str(self.key), float(self.fired), trade.at))
        for seconds in (-1, 0, 2, 3):
            self.at(trade.at + seconds, f"{trade.at} {seconds}")

    def on_timer(self, name: str) -> None:
        self.fired += 1
        if name.endswith(" 2"):
            self.at(float(name.split()[0]) + 2.5, f"{name} 1/2")


class AwaitsTimers(Later):
    async def on_timer(self, name: str) -> None:  # type: ignore[override]
        super().on_timer(name)


class Ended(ProcessingElement):
    """Counts how many windows of its key have ended before each event."""

    seen: OutputStream
    n: int = 0
    ended: OfKey[int] = 0

    def on_event(self, trade: Trade) -> None:
        self.n += 1
        self.seen.put(Seen(str(self.key), float(self.ended), trade.at))

    def on_window(self) -> None:
        assert self.window.final
        self.ended += self.n
        self.seen.put(Seen(str(self.key), -float(self.ended), self.window.end))

    def merge(self, later: Ended) -> None:
        self.n += later.n


class AwaitsWindows(Ended):
    async def on_window(self) -> None:  # type: ignore[override]
        super().on_window()


def in_order(cls: type[ProcessingElement], kind: WindowKind | None = None) -> type[App]:
    class InOrderApp(App):
        def on_init(self) -> None:
            pe: Any = self.create_pe(cls)
            pe.seen = self.create_output_stream("seen", types=Seen)
            if kind is not None:
                pe.set_window(kind)
            self.create_output_stream("dead", types=GenericEvent)
            self.create_input_stream(
                "trades", pe, key="symbol", types=Trade, time="at", lateness=5, order="time"
            )

    return InOrderApp


IN_ORDER: list[tuple[type[ProcessingElement], WindowKind | None]] = [
    (Once, None),
    (Later, None),
    (AwaitsTimers, None),
    (Ended, tumbling(10)),
    (Ended, tumbling(0.1)),
    (Ended, hopping(30, every=10)),
    (Ended, hopping(25, every=10)),
    (Ended, session(gap=4)),
    (Ended, day("Europe/Berlin")),
    (AwaitsWindows, tumbling(10)),
]


@pytest.mark.parametrize(("cls", "kind"), IN_ORDER)
def test_calls_that_are_due_before_an_event_come_before_it_live_and_in_a_replay(
    cls: type[ProcessingElement], kind: WindowKind | None
) -> None:
    app = in_order(cls, kind)
    chance = random.Random(5)
    events = [Trade(chance.choice("abc"), float(n), 100 + n * 1.25) for n in range(120)]
    events += [Trade("a", 120.0, 9000.0), Trade("b", 121.0, 20000.0), Trade("c", 122.0, 20000.0)]
    found = []
    for live in (True, False):
        with AppTest(app) as test:
            if live:
                for event in events:
                    test.send("trades", event)
                    test.advance(seconds=0.3)
            else:
                test.send("trades", *events)
            test.advance_watermark("trades", 200_000.0)
            test.advance(seconds=1)
            seen = test.output("seen")
            found.append({key: [row for row in seen if row.symbol == key] for key in "abc"})
    assert all(found[0].values())
    assert found[0] == found[1]


@pytest.mark.parametrize("cls", [Once, Later])
def test_rows_with_timers_are_the_same_for_every_order_number_of_partitions_and_kill(
    cls: type[ProcessingElement],
) -> None:
    events = [Trade(f"k{n % 7}", float(n), 100.0 + n * 37.0) for n in range(300)]
    rows_in_any_order(in_order(cls), "trades", events, output="seen", until=40_000, runs=4)


def test_an_event_at_the_time_of_a_timer_or_at_the_end_of_a_window_comes_first() -> None:
    for cls, kind in ((Once, None), (Ended, tumbling(3600, offset=100))):
        with AppTest(in_order(cls, kind)) as test:
            test.send("trades", Trade("a", 1, 100.0), Trade("a", 2, 3700.0), Trade("a", 3, 3700.5))
            test.advance_watermark("trades", 3706.0)
            passed = [row.price for row in test.output("seen") if row.at != 3700.0]
            assert passed == ([1, 3] if cls is Once else [0, 1])


def test_a_timer_waits_for_a_stream_without_order_that_leads_to_its_pe_too() -> None:
    class Also(in_order(Once)):  # type: ignore[misc]
        def on_init(self) -> None:
            super().on_init()
            once = self.prototypes["Once"][1]
            self.create_input_stream("more", once, key="symbol", types=Trade, time="at")

    with AppTest(Also) as test:
        test.send("more", Trade("a", 1, 100.0))
        test.send("trades", Trade("a", 2, 5000.0))
        test.advance_watermark("trades", 6000.0)
        test.send("more", Trade("a", 3, 3000.0))
        assert [row.price for row in test.output("seen")] == [1]
        test.advance_watermark("more", 6000.0)
        test.send("more", Trade("a", 4, 6000.0))
        assert [row.price for row in test.output("seen")] == [1, 4]


def test_a_timer_comes_before_an_event_of_a_key_whose_instance_is_only_on_disk() -> None:
    class Small(in_order(Once)):  # type: ignore[misc]
        def on_init(self) -> None:
            super().on_init()
            self.prototypes["Once"][1].set_pe_cache(max_size=1)

    first = [Trade(key, 1.0, 100.0 + n) for n, key in enumerate("abcd")]
    again = [Trade(key, 2.0, 3500.0 + n) for n, key in enumerate("abcd")]
    later = [Trade(key, 3.0, 4000.0 + n) for n, key in enumerate("abcd")]
    with AppTest(Small) as test:
        test.send("trades", *first)
        test.advance_watermark("trades", 200.0)
        test.advance(seconds=2)
        test.crash()
        test.send("trades", *again, *later)
        test.advance_watermark("trades", 5000.0)
        test.advance(seconds=2)
        assert sorted((e.symbol, e.price) for e in test.output("seen") if e.price != 1) == [
            (key, 3.0) for key in "abcd"
        ]


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_a_timer_that_raises_before_an_event_is_left_out_and_the_event_goes_on(
    on_error: str,
) -> None:
    class Fails(Once):
        def on_timer(self, name: str) -> None:
            if self.key == "a":
                raise ValueError("beast")
            super().on_timer(name)

    settings = {"s4.stream.trades.onError": on_error, "task.dead.letter.stream": "dead"}
    with AppTest(in_order(Fails), settings=settings) as test:
        test.send("trades", *(Trade(key, 1.0, at) for at in (100.0, 5000.0) for key in "ab"))
        test.advance_watermark("trades", 6000.0)
        test.advance(seconds=3)
        assert {(e.symbol, e.at) for e in test.output("seen")} == {
            ("a", 100.0), ("b", 100.0), ("b", 5000.0)
        }  # fmt: skip
        letters = {(e["hook"], e["key"], e["of"]) for e in test.output("dead")}
        dead = {("on_timer", "'a'", "timer '' at 3700")}
        assert letters == (dead if on_error == "dead-letter" else set())


def test_a_singleton_gets_the_events_of_all_keys_in_one_order_with_its_timers() -> None:
    class One(Later):
        pass

    class Alone(in_order(One)):  # type: ignore[misc]
        def on_init(self) -> None:
            super().on_init()
            self.prototypes["One"][1].set_singleton()

    events = [Trade("abc"[n % 3], float(n), 100 + n * 0.07) for n in range(200)]
    found = []
    for part in (1, 7, 200):
        with AppTest(Alone) as test:
            for at in range(0, 200, part):
                test.send("trades", *events[at : at + part])
            test.advance_watermark("trades", 1000.0)
            found.append([(e.at, e.price) for e in test.output("seen")])
    assert found[0] == found[1] == found[2]
    assert [at for at, _ in found[0]] == [e.at for e in events]


# --- several streams in one order ----------------------------------------------------------------


class Rate(Event):
    currency: str
    rate: float
    at: float


class Order(Event):
    id: int
    currency: str
    amount: float
    at: float


class Priced(Event):
    id: int
    amount: float


class Other(Event):
    currency: str
    at: float


class AsOf(ProcessingElement):
    """Each order with the latest rate before it."""

    priced: OutputStream
    rate: Rate | None = None

    def on_event_rate(self, rate: Rate) -> None:
        self.rate = rate

    def on_event_order(self, order: Order) -> None:
        rate = self.rate.rate if self.rate is not None else 0.0
        self.priced.put(Priced(order.id, order.amount * rate))


class Prices(App):
    def on_init(self) -> None:
        as_of = self.create_pe(AsOf)
        as_of.priced = self.create_output_stream("priced", types=Priced)
        for name, kind, lateness in (("rates", Rate, 2), ("orders", Order, 5)):
            self.create_input_stream(
                name, as_of, key="currency", types=kind, time="at", lateness=lateness, order="time"
            )


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.long), 2])
def test_streams_that_lead_to_the_same_pe_have_one_order(partitions: int) -> None:
    chance = random.Random(9)
    rates = [Rate(chance.choice("EUX"), float(n + 1), 100.0 + n) for n in range(60)]
    orders = [Order(n, chance.choice("EUX"), 1.0, 100.5 + n * 0.31) for n in range(190)]
    expected = []
    for order in orders:
        before = [each for each in rates if each.currency == order.currency and each.at < order.at]
        expected.append((order.id, before[-1].rate if before else 0.0))
    for seed in range(3):
        chance.seed(seed)
        events: list[Any] = [*rates, *orders]
        slack = {Rate: 1.9, Order: 4.9}
        events.sort(key=lambda each: each.at + chance.uniform(0, slack[type(each)]))
        with AppTest(Prices, partitions=partitions) as test:
            for event in events:
                test.send("rates" if isinstance(event, Rate) else "orders", event)
            if seed:
                test.advance(seconds=2)
                test.crash()
            for name in ("rates", "orders"):
                test.advance_watermark(name, 1000.0)
            test.advance(seconds=2)
            found = {(each.id, each.amount) for each in test.output("priced")}
            assert sorted(found) == expected
            assert test.late("rates-in-order") == 0


class Counts(ProcessingElement):
    """Counts the orders of its key, in windows: rates are nothing to it."""

    counts: OutputStream
    n: int = 0

    def on_event(self, _order: Order) -> None:
        self.n += 1

    def on_window(self) -> None:
        self.counts.put(Priced(self.n, self.window.start))


class Partly(App):
    """Streams that have only some of their PEs in common; the last one connects them."""

    lead: tuple[tuple[str, type, str], ...] = (
        ("orders", Order, "AsOf Counts"), ("rates", Rate, "AsOf"),
    )  # fmt: skip

    def on_init(self) -> None:
        as_of, counts, quotes = (self.create_pe(cls) for cls in (AsOf, Counts, Sees))
        as_of.priced = self.create_output_stream("priced", types=Priced)
        counts.counts = self.create_output_stream("counts", types=Priced)
        quotes.seen = self.create_output_stream("seen", types=Seen)
        counts.set_window(tumbling(10))
        pes = {"AsOf": as_of, "Counts": counts, "Sees": quotes}
        for name, kind, to in self.lead:
            self.create_input_stream(
                name, *(pes[each] for each in to.split()), key="currency", types=kind, time="at",
                lateness=5, order="time", system="log",
            )  # fmt: skip


class Connected(Partly):
    lead = ("rates", Rate, "AsOf"), ("others", Other, "Sees"), ("orders", Order, "AsOf Counts Sees")


@pytest.mark.parametrize("app", [Partly, Connected])
@pytest.mark.parametrize("first", ["orders", "rates"])
def test_logs_that_lead_to_some_of_the_same_pes_have_one_order_whichever_is_read_first(
    app: type[App], first: str
) -> None:
    rates = [Rate("EUX"[n % 3], float(n + 1), 100.0 + n) for n in range(60)]
    orders = [Order(n, "EUX"[n // 3 % 3], 1.0, 100.5 + n * 0.31) for n in range(190)]
    expected = []
    for order in orders:
        before = [each for each in rates if each.currency == order.currency and each.at < order.at]
        expected.append((order.id, before[-1].rate if before else 0.0))
    logs: dict[str, list[Any]] = {"rates": rates, "orders": orders}
    with AppTest(app) as test:
        for name in sorted(logs, key=lambda name: name != first):
            test.send(name, *logs[name])
        for name in test.app.streams.keys() & {"rates", "orders", "others"}:
            test.end_input(name)
        test.advance(seconds=2)
        assert sorted((each.id, each.amount) for each in test.output("priced")) == expected
        assert sum(each.id for each in test.output("counts")) == len(orders)
        assert [name for name in test.app.streams if name.endswith("-by-time")] == [
            f"{'orders' if app is Partly else 'rates'}-by-time"
        ]


def test_one_type_on_streams_in_one_order_that_lead_to_other_pes_is_a_mistake() -> None:
    class Wrong(Partly):
        lead = ("rates", Rate, "AsOf"), ("more-rates", Rate, "AsOf Sees")

    with pytest.raises(GraphError, match="carry Rate, but not to all of the same PEs"):
        AppTest(Wrong).__enter__()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"types": Order, "key": "currency", "time": "id"}, "field of the same name"),
        ({"types": Order, "key": None}, "both need a key"),
        ({"types": Rate, "key": "rate"}, "carry Rate under different keys"),
    ],
)
def test_streams_without_a_common_order_are_a_mistake(other: dict[str, Any], words: str) -> None:
    class Wrong(App):
        def on_init(self) -> None:
            as_of = self.create_pe(AsOf)
            self.create_input_stream(
                "rates", as_of, key="currency", types=Rate, time="at", order="time"
            )
            self.create_input_stream("others", as_of, **{"time": "at", "order": "time", **other})

    with pytest.raises(GraphError, match=words), AppTest(Wrong):
        pass
