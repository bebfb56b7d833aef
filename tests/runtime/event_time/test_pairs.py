"""The join of two types of events that are close in time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from s4node import Pairs
from s4node.app.app import App
from s4node.app.stream import OutputStream
from s4node.errors import GraphError
from s4node.events.event import Event
from s4node.testing.app_test import AppTest


class Order(Event):
    id: int
    shop: str
    at: float


class Payment(Event):
    id: int
    shop: str
    at: float


class Row(Event):
    order: int
    payment: int


class Paid(Pairs, left=Order, right=Payment, within=(2, 10)):
    rows: OutputStream

    def on_pair(self, left: Order, right: Payment) -> None:
        self.rows.put(Row(left.id, right.id))

    def on_alone(self, left: Order) -> None:
        self.rows.put(Row(left.id, -1))


class Shop(App):
    pairs: type[Paid] = Paid

    def on_init(self) -> None:
        paid = self.create_pe(self.pairs)
        paid.rows = self.create_output_stream("rows", types=Row)
        for name, kind in (("orders", Order), ("payments", Payment)):
            self.create_input_stream(
                name, paid, key="shop", types=kind, time="at", lateness=3, order="time"
            )


def rows(test: AppTest[Any]) -> list[tuple[int, int]]:
    return [(row.order, row.payment) for row in test.take_output("rows")]


def test_events_within_the_bounds_pair_and_a_left_one_without_a_pair_is_alone() -> None:
    with AppTest(Shop) as test:
        test.send("orders", Order(1, "a", 100), Order(2, "a", 101), Order(3, "b", 100))
        test.send("payments", Payment(1, "a", 97.9), Payment(2, "a", 98), Payment(3, "a", 111))
        for name in ("orders", "payments"):
            test.advance_watermark(name, 113.9)
        test.advance(seconds=1)
        assert rows(test) == [(1, 2), (3, -1)]
        for name in ("orders", "payments"):
            test.advance_watermark(name, 130)
        test.advance(seconds=1)
        assert rows(test) == [(2, 3)]
        test.advance(seconds=2)
        assert test.keys(Paid) == []


class PaidLate(Paid, left=Order, right=Payment, within=(2, 10_000)):
    """A left event waits for long, and a right one does not."""


class LateShop(Shop):
    pairs = PaidLate


def test_right_events_go_although_a_left_one_waits_for_long() -> None:
    with AppTest(LateShop) as test:
        test.send("orders", Order(1, "a", 100))
        for n in range(100):
            test.send("payments", Payment(n, "a", 101 + n))
            test.advance_watermark("orders", 101 + n)
        test.advance(seconds=1)
        assert len(test.state(PaidLate, "a")._rights) < 10


class Soon(Paid, left=Order, right=Payment, within=(0, 0.1)):
    pass


class SoonPaid(App):
    def on_init(self) -> None:
        paid = self.create_pe(Soon)
        paid.rows = self.create_output_stream("rows", types=Row)
        for name, kind in (("orders", Order), ("payments", Payment)):
            self.create_input_stream(name, paid, key="id", types=kind, time="at", order="time")


def test_the_bounds_are_included_also_with_tenths_of_a_second() -> None:
    start = 1_700_000_000_000
    with AppTest(SoonPaid) as test:
        test.send("orders", *(Order(n, "a", (start + n * 100) / 1000) for n in range(40)))
        test.send("payments", *(Payment(n, "a", (start + n * 100 + 100) / 1000) for n in range(40)))
        for name in ("orders", "payments"):
            test.advance_watermark(name, start / 1000 + 20)
        test.advance(seconds=1)
        assert rows(test) == [(n, n) for n in range(40)]


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_pairs_are_the_same_for_every_order_number_of_partitions_and_kill(
    partitions: int,
) -> None:
    chance = random.Random(partitions)
    orders = [Order(n, chance.choice("abcd"), 100 + n * 1.7) for n in range(60)]
    payments = [Payment(n, chance.choice("abcd"), 99 + n * 1.3) for n in range(80)]
    expected = {
        (order.id, payment.id)
        for order in orders
        for payment in payments
        if order.shop == payment.shop and -2 <= round(payment.at - order.at, 6) <= 10
    }
    expected |= {(order.id, -1) for order in orders} - {(each, -1) for each, _ in expected}
    for seed in range(3):
        chance.seed(seed)
        events = [*orders, *payments]
        events.sort(key=lambda each: each.at + chance.uniform(0, 2.9))
        kill = chance.randrange(len(events)) if seed else -1
        with AppTest(Shop, partitions=partitions) as test:
            for at, event in enumerate(events):
                test.send("orders" if isinstance(event, Order) else "payments", event)
                if at == kill:
                    test.advance(seconds=2)
                    test.crash()
            for name in ("orders", "payments"):
                test.advance_watermark(name, 1000.0)
            test.advance(seconds=5)
            assert set(rows(test)) == expected
            assert test.keys(Paid) == []


@pytest.mark.parametrize("within", [(-1, 0), 5, (1, 2, 3), (0, float("nan")), ("a", 0)])
def test_the_bounds_are_seconds(within: Any) -> None:
    with pytest.raises(GraphError, match="within="):
        type(Pairs)("Wrong", (Pairs,), {}, left=Order, right=Payment, within=within)


def test_pairs_are_of_two_types() -> None:
    with pytest.raises(GraphError, match="two types"):
        type(Pairs)("Wrong", (Pairs,), {}, left=Order, right=Order, within=(1, 1))
