"""Declared aggregates: of which type they are, beyond 64 bits, and NaN."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from s4node import Aggregates, App, Event, Max, Mean, Min, ProcessingElement, Sum, Top
from s4node.errors import ProcessingError
from s4node.testing import AppTest

DAY = datetime(2026, 1, 2, tzinfo=UTC)


class Sale(Event):
    shop: str
    cents: int = 0
    price: float = 0.0
    exact: Decimal = Decimal(0)
    took: timedelta = timedelta(0)
    at: datetime = DAY
    tip: int | None = 0


class Totals(Aggregates, of=Sale):
    cents = Sum("cents")
    price = Sum("price")
    exact = Sum("exact")
    took = Sum("took")
    tip = Sum("tip")
    least = Min("cents")
    last = Max("at")
    most = Top(2, "cents")
    whens = Top(1, "cents", of="at")
    mean_exact = Mean("exact")
    mean_took = Mean("took")


class Number(Event):
    shop: str
    value: float


class Numbers(Aggregates, of=Number):
    least = Min("value")
    most = Max("value")
    best = Top(2, "value")
    total = Sum("value")
    mean = Mean("value")


def selling(pe: type[ProcessingElement]) -> type[App]:
    class Selling(App):
        def on_init(self) -> None:
            self.create_input_stream("sales", self.create_pe(pe), key="shop")

    return Selling


def shown(state: Any) -> list[Any]:
    return [
        state.cents, state.price, state.exact, state.took, state.tip, state.least, state.last,
        state.most, state.whens, state.mean_exact, state.mean_took,
    ]  # fmt: skip


def test_an_aggregate_is_of_its_field_s_type_also_after_a_restart() -> None:
    with AppTest(selling(Totals), settings={"s4.stream.sales.grade": "durable"}) as test:
        for cents in (700, 800):
            test.send("sales", Sale("a", cents, 1.5, Decimal("0.10"), timedelta(1), DAY, 2))
        test.advance(seconds=2)
        before = shown(test.state(Totals, "a"))
        test.crash()
        after = shown(test.state(Totals, "a"))
    expected: list[Any] = [
        1500, 3.0, Decimal("0.20"), timedelta(2), 4, 700, DAY, [800, 700], [(800, DAY)],
        Decimal("0.10"), timedelta(1),
    ]  # fmt: skip
    for found in (before, after):
        assert found == expected
        assert list(map(type, found)) == list(map(type, expected))


def test_a_sum_begins_at_the_zero_of_its_field() -> None:
    totals = App("app").create_pe(Totals)
    assert (totals.cents, totals.exact, totals.took) == (0, Decimal(0), timedelta(0))
    assert type(totals.cents) is int
    assert type(totals.price) is float


def test_a_sum_of_ints_without_the_type_of_events_is_an_int() -> None:
    class Untyped(Aggregates):
        cents = Sum("cents")
        price = Sum("price")

    def on_init(app: App) -> None:
        app.create_input_stream("sales", app.create_pe(Untyped), key="shop", types=Sale)

    with AppTest(type("Selling", (App,), {"on_init": on_init})) as test:
        test.send("sales", Sale("a", 2, 0.5))
        found: Any = test.state(Untyped, "a")
        assert (found.cents, type(found.cents), found.price) == (2, int, 0.5)


def test_a_sum_of_ints_beyond_64_bits_is_an_error_of_the_event() -> None:
    with (
        AppTest(selling(Totals)) as test,
        pytest.raises(ProcessingError, match=r"Totals.*the sum is 18446744073709551617, beyond 64"),
    ):
        test.send("sales", Sale("a", 2**64 - 1), Sale("a", 2))


def test_nan_is_left_out_of_the_least_and_the_greatest_and_counted_and_sums_show_it() -> None:
    with AppTest(selling(Numbers)) as test:
        test.send("sales", *(Number("a", value) for value in (math.nan, 2.0, math.nan, 3.0, 1.0)))
        found: Any = test.state(Numbers, "a")
        assert (found.least, found.most, found.best) == (1.0, 3.0, [3.0, 2.0])
        assert math.isnan(found.total)
        assert math.isnan(found.mean)
        assert test.app.metrics.counter("Numbers-nan").value == 6
