"""Results of a window before its end, and declared aggregates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from test_pe_timers import set_clock

from apps.candles.app import Trade
from s4node import Aggregates, Count, Fold, Max, Mean, Min, Sum, Top
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import WindowKind, count, hopping, session, tumbling
from s4node.errors import GraphError
from s4node.events.event import Event
from s4node.testing.app_test import AppTest


class Row(Event):
    symbol: str
    start: float
    n: int
    round: int
    final: bool


class Counts(ProcessingElement):
    rows: OutputStream
    n: int = 0

    def on_event(self, _trade: Trade) -> None:
        self.n += 1

    def on_window(self) -> None:
        window = self.window
        self.rows.put(Row(str(self.key), window.start, self.n, window.round, window.final))

    def merge(self, later: Counts) -> None:
        self.n += later.n


class Early(App):
    kind: WindowKind = tumbling(60)
    grace = 0.0

    def on_init(self) -> None:
        counts = self.create_pe(Counts)
        counts.rows = self.create_output_stream("rows", types=Row)
        counts.set_window(self.kind, early=10, grace=self.grace)
        self.create_input_stream("trades", counts, key="symbol", time="at")


def a(*times: float, key: str = "a") -> list[Trade]:
    return [Trade(key, t, t) for t in times]


def rows(test: AppTest[Any]) -> list[tuple[Any, ...]]:
    return [(r.symbol, r.start, r.n, r.round, r.final) for r in test.take_output("rows")]


@pytest.mark.parametrize("kind", [tumbling(60), session(gap=60)], ids=["tumbling", "session"])
def test_results_come_before_the_end_while_there_are_changes(kind: WindowKind) -> None:
    with AppTest(type("Early", (Early,), {"kind": kind})) as test:
        test.send("trades", *a(0.5, 1), *a(2, key="b"))
        start = {"a": 0.0, "b": 0.0} if kind.span else {"a": 0.5, "b": 2.0}
        test.advance(seconds=9)
        assert rows(test) == []
        test.advance(seconds=2)
        assert rows(test) == [
            ("a", start["a"], 2, 0, False),
            ("b", start["b"], 1, 0, False),
        ]
        test.advance(seconds=30)
        assert rows(test) == []
        test.send("trades", *a(3))
        test.advance(seconds=11)
        assert rows(test) == [("a", start["a"], 3, 1, False)]
        test.send("trades", *a(200))
        found = rows(test)
        assert found == [("a", start["a"], 3, 2, True), ("b", start["b"], 1, 1, True)]


def test_after_its_end_a_window_has_no_early_results_but_those_of_its_grace() -> None:
    with AppTest(type("Early", (Early,), {"grace": 100.0})) as test:
        test.send("trades", *a(1, 70))
        assert rows(test) == [("a", 0, 1, 0, True)]
        test.send("trades", *a(2))
        assert rows(test) == [("a", 0, 2, 1, True)]
        test.advance(seconds=11)
        assert rows(test) == [("a", 60, 1, 0, False)]


@pytest.mark.parametrize("kind", [tumbling(60), session(gap=60)], ids=["tumbling", "session"])
def test_after_a_crash_there_is_no_early_result_of_what_has_not_changed_since_the_last_one(
    kind: WindowKind,
) -> None:
    with AppTest(type("Early", (Early,), {"kind": kind})) as test:
        test.send("trades", *a(1), *a(2, key="b"))
        test.advance(seconds=12)
        assert [row[0] for row in rows(test)] == ["a", "b"]
        test.send("trades", *a(3))
        test.advance(seconds=2)
        test.crash()
        test.advance(seconds=30)
        assert [(key, n, final) for key, _, n, _, final in rows(test)] == [("a", 2, False)]


@pytest.mark.parametrize("by", [-7200, 7200])
def test_early_results_come_in_time_if_the_clock_is_set(by: float) -> None:
    with AppTest(Early) as test:
        test.send("trades", *a(1))
        set_clock(test, by)
        test.advance(seconds=9)
        assert rows(test) == []
        test.advance(seconds=2)
        assert rows(test) == [("a", 0, 1, 0, False)]


@pytest.mark.parametrize("kind", [tumbling(60), session(gap=60)], ids=["tumbling", "session"])
def test_after_a_crash_early_results_go_on(kind: WindowKind) -> None:
    with AppTest(type("Early", (Early,), {"kind": kind})) as test:
        test.send("trades", *a(1))
        test.advance(seconds=2)
        test.crash()
        test.advance(seconds=11)
        assert rows(test) == [("a", 0 if kind.span else 1, 1, 0, False)]


@pytest.mark.parametrize(
    ("kind", "early", "words"),
    [
        (hopping(60, every=30), 10, "have no results before their end"),
        (count(5), 10, "have no results before their end"),
        (tumbling(60), 0.01, "at least 0.1"),
        (tumbling(60), -1, "early=-1"),
        (tumbling(60), float("nan"), "early=nan"),
    ],
)
def test_a_mistake_about_early_results_is_an_error_at_once(
    kind: WindowKind, early: float, words: str
) -> None:
    with pytest.raises(GraphError, match=words):
        App("a").create_pe(Counts).set_window(kind, early=early)


# --- aggregates ----------------------------------------------------------------------------------


class Result(Event):
    key: str
    n: int
    total: float
    least: float | None
    most: float | None
    mean: float | None
    best: list[float]
    names: list[Any]
    last: float


def later(_before: float, trade: Trade) -> float:
    return trade.price


class Stats(Aggregates, of=Trade):
    out: OutputStream
    n = Count()
    total = Sum("price")
    least = Min("price")
    most = Max("price")
    mean = Mean("price")
    best = Top(2, "price")
    names = Top(2, "price", of="symbol")
    last = Fold(0.0, later, merge=lambda _, other: other, kind=float)

    def on_window(self) -> None:
        self.out.put(
            Result(
                str(self.key), self.n, self.total, self.least, self.most, self.mean, self.best,
                self.names, self.last,
            )
        )  # fmt: skip


class StatsApp(App):
    kind: WindowKind = tumbling(60)

    def on_init(self) -> None:
        stats = self.create_pe(Stats)
        stats.out = self.create_output_stream("out", types=Result)
        stats.set_window(self.kind)
        self.create_input_stream("trades", stats, key="symbol", time="at")


@pytest.mark.parametrize(
    "kind",
    [tumbling(60), hopping(60, every=60), session(gap=50), count(3)],
    ids=lambda kind: kind.text,
)
def test_aggregates_are_declared_and_work_in_windows_of_all_kinds(kind: WindowKind) -> None:
    with AppTest(type("StatsApp", (StatsApp,), {"kind": kind})) as test:
        test.send("trades", *(Trade("a", price, price) for price in (3.0, 2.0)))
        test.advance(seconds=2)
        test.crash()
        test.send("trades", Trade("a", 7.0, 41.0), Trade("b", 7.0, 200.0))
        [found] = test.output("out")
        expected = Result("a", 3, 12.0, 2.0, 7.0, 4.0, [7.0, 3.0], [(7.0, "a"), (3.0, "a")], 7.0)
        assert found.names in (expected.names, [list(each) for each in expected.names])
        found = msgspec.structs.replace(found, names=expected.names)
        assert found == expected


def test_aggregates_of_a_subclass_are_added_and_parts_are_merged() -> None:
    class More(Stats):
        second = Max("at")

        def on_window(self) -> None:
            assert self.second is not None
            self.out.put(Result("", self.n, self.second, None, None, None, [], [], 0.0))

    class MoreApp(App):
        def on_init(self) -> None:
            more = self.create_pe(More)
            more.out = self.create_output_stream("out", types=Result)
            more.set_window(hopping(20, every=10))
            self.create_input_stream("trades", more, key="symbol", time="at")

    with AppTest(MoreApp) as test:
        test.send("trades", *a(1, 11, 21, 31))
        assert [(r.n, r.total) for r in test.output("out")] == [(1, 1), (2, 11), (2, 21)]


def test_a_fold_without_merge_cannot_have_windows_of_parts() -> None:
    class One(Aggregates, of=Trade):
        last = Fold(0.0, later)

        def on_window(self) -> None: ...

    with pytest.raises(GraphError, match=r"merge\(self, later\)"):
        App("a").create_pe(One).set_window(session(gap=5))


@pytest.mark.parametrize(
    "wrong",
    [lambda: Sum(5), lambda: Max("a b"), lambda: Top(0, "price"), lambda: Top(2, "")],  # type: ignore[arg-type]
)
def test_an_aggregate_names_a_field(wrong: Any) -> None:
    with pytest.raises(GraphError):
        wrong()
