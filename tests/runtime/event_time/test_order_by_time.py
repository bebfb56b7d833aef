"""``order="time"``: the events of a key in the order of their times, however they come."""

from __future__ import annotations

import random
from typing import Any

import pytest

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import tumbling
from s4node.errors import ConfigError, GraphError, ProcessingError, StateError
from s4node.events.event import Event, GenericEvent
from s4node.runtime.container.metrics import _task
from s4node.testing.any_order import rows_in_any_order
from s4node.testing.app_test import AppTest


class Trade(Event):
    symbol: str
    price: float
    at: float


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


def test_the_metrics_show_what_is_held_back() -> None:
    with AppTest(Ordered) as test:
        test.send("trades", *a(101, 102, 103))
        [task] = test._runtime.tasks
        assert task.statistics().held_back == 3
        assert _task(task.statistics(), (), ())["held-back-messages"] == 3
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


def test_beyond_the_bound_events_may_be_handed_on_at_once() -> None:
    settings = {"s4.stream.trades.heldBack": "3", "s4.stream.trades.heldBackBeyond": "pass"}
    with AppTest(Ordered, settings=settings) as test:
        test.send("trades", *a(103, 102, 101, 104))
        assert times(test) == [104]
        assert test.late("trades-in-order") == 1
        test.send("trades", *a(115))
        assert times(test)[-3:] == [101, 102, 103]


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


@pytest.mark.parametrize("partitions", [1, 2])
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
