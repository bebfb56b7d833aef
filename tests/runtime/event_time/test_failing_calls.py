"""An ``on_window`` or ``on_timer`` that raises: it is left out, told, and made again later."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import WindowKind, hopping, session, tumbling
from s4node.errors import ProcessingError
from s4node.events.event import Event, GenericEvent
from s4node.state.browse import StateReader
from s4node.testing.app_test import AppTest

LETTERS = {"s4.stream.trades.onError": "dead-letter", "task.dead.letter.stream": "dead"}
DURABLE = {"s4.stream.trades.grade": "durable"}
SKIPS = {"s4.stream.trades.onError": "skip"}


class Trade(Event):
    symbol: str
    at: float


class Row(Event):
    symbol: str
    start: float
    count: int


class Counts(ProcessingElement):
    rows: OutputStream
    broken: ClassVar[set[str]] = set()
    n: int = 0

    def on_event(self, _trade: Trade) -> None:
        self.n += 1

    def merge(self, later: Counts) -> None:
        self.n += later.n

    def on_window(self) -> None:
        self.rows.put(Row(str(self.key), self.window.start, self.n))
        self.n += 1000
        if self.key in self.broken:
            raise ValueError("not today")


class CountsApp(App):
    kind: WindowKind = tumbling(60)
    grace = 0.0
    more: tuple[str, ...] = ()

    def on_init(self) -> None:
        counts = self.create_pe(Counts)
        counts.rows = self.create_output_stream("rows", types=Row)
        self.create_output_stream("dead", types=GenericEvent)
        counts.set_window(self.kind, grace=self.grace)
        for name in ("trades", *self.more):
            self.create_input_stream(name, counts, key="symbol", time="at")


def app_of(kind: WindowKind, **options: Any) -> type[CountsApp]:
    return type("CountsApp", (CountsApp,), {"kind": kind, **options})


def a(*times: float, key: str = "a") -> list[Trade]:
    return [Trade(key, t) for t in times]


def rows(test: AppTest[Any]) -> list[tuple[str, float, int]]:
    test.advance(seconds=3)
    return [(r.symbol, r.start, r.count) for r in test.take_output("rows")]


def letters(test: AppTest[Any]) -> list[tuple[Any, ...]]:
    test.advance(seconds=3)
    return [(d.hook, d.of, d.pe, d.key, d.reason) for d in test.take_output("dead")]


@pytest.fixture(autouse=True)
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found = {"a", "z"}
    monkeypatch.setattr(Counts, "broken", found)
    monkeypatch.setattr(Alarm, "broken", found)
    return found


def test_an_on_window_that_raises_is_a_dead_letter_with_key_and_window_and_the_others_go_on() -> (
    None
):
    with AppTest(app_of(tumbling(60)), settings=LETTERS) as test:
        test.send("trades", *a(10, 20), *a(30, key="b"), *a(70), *a(80, key="b"), *a(125, key="b"))
        assert set(rows(test)) == {("b", 0, 1), ("b", 60, 1)}
        assert letters(test) == [
            ("on_window", f"window {at} to {at + 60}", "Counts", "'a'", "ValueError: not today")
            for at in (0, 60)
        ]
        assert test.late(Counts) == 0


def test_a_window_whose_call_has_failed_is_kept_and_has_its_result_at_the_next_start(
    broken: set[str],
) -> None:
    with AppTest(app_of(tumbling(60)), settings=LETTERS) as test:
        test.send("trades", *a(10, 20), *a(70), *a(125, key="b"))
        assert rows(test) == []
        assert len(letters(test)) == 2
        [task] = test._runtime.tasks
        committer = test._runtime.container.replay.committer  # type: ignore[union-attr]
        saved = StateReader(committer._tasks[task.partition].state)
        assert list(saved.instances("Counts (failed)")) == [
            (("a", 0.0), {"n": 2}),
            (("a", 60.0), {"n": 1}),
        ]
        test.crash()  # it is made again, and fails again
        assert rows(test) == []
        assert len(letters(test)) == 2
        broken.clear()
        test.crash()
        assert rows(test) == [("a", 0, 2), ("a", 60, 1)]
        test.crash()
        test.send("trades", *a(181, key="b"))
        assert rows(test) == [("b", 120, 1)]
        assert letters(test) == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (hopping(120, every=60), [("a", -60, 2), ("a", 0, 3)]),
        (session(gap=30), [("a", 10, 2), ("a", 70, 1)]),
    ],
    ids=["hopping", "session"],
)
def test_windows_of_parts_and_sessions_are_kept_too(
    kind: WindowKind, expected: list[Any], broken: set[str]
) -> None:
    with AppTest(app_of(kind), settings=LETTERS) as test:
        test.send("trades", *a(10, 20), *a(70), *a(125, key="b"))
        assert [row for row in rows(test) if row[0] == "a"] == []
        assert len(letters(test)) == 2
        broken.clear()
        test.crash()
        assert sorted(row for row in rows(test) if row[0] == "a") == expected


def test_a_later_result_of_the_window_takes_the_place_of_the_one_that_failed(
    broken: set[str],
) -> None:
    with AppTest(app_of(tumbling(60), grace=100.0), settings=LETTERS) as test:
        test.send("trades", *a(10), *a(61, key="b"))
        assert len(letters(test)) == 1
        broken.clear()
        test.send("trades", *a(20))
        assert rows(test) == [("a", 0, 2)]
        test.crash()
        assert rows(test) == []


def test_with_skip_the_result_is_left_out_for_good(broken: set[str]) -> None:
    with AppTest(app_of(tumbling(60)), settings=SKIPS) as test:
        test.send("trades", *a(10), *a(70, key="b"), *a(125, key="b"))
        assert rows(test) == [("b", 60, 1)]
        broken.clear()
        test.crash()
        test.send("trades", *a(185, key="b"))
        assert rows(test) == [("b", 120, 1)]
        assert test.output("dead") == []


def test_of_several_streams_the_strictest_decides() -> None:
    settings = {**SKIPS, "s4.stream.others.onError": "fail"}
    with (
        pytest.raises(ProcessingError, match=r"'a'.*on_window of window 0 to 60"),
        AppTest(app_of(tumbling(60), more=("others",)), settings=settings) as test,
    ):
        send_both(test)


def send_both(test: AppTest[Any]) -> None:
    test.send("trades", *a(10, 70))
    test.send("others", *a(70))


def test_at_the_end_of_the_inputs_windows_that_fail_are_told_too() -> None:
    class FromLog(App):
        def on_init(self) -> None:
            counts = self.create_pe(Counts)
            counts.rows = self.create_output_stream("rows", types=Row)
            self.create_output_stream("dead", types=GenericEvent)
            counts.set_window(tumbling(60))
            self.create_input_stream("trades", counts, key="symbol", time="at", system="log")

    with AppTest(FromLog, settings=LETTERS) as test:
        test.send("trades", *a(10), *a(10, key="b"), *a(10, key="z"))
        test.end_input("trades")
        assert {(r.symbol, r.count) for r in test.output("rows")} == {("b", 1)}
        assert sorted(d.key for d in test.output("dead")) == ["'a'", "'z'"]


# --- timers --------------------------------------------------------------------------------------


class Alarm(ProcessingElement):
    rows: OutputStream
    broken: ClassVar[set[str]] = set()
    n: int = 0

    def on_event(self, trade: Trade) -> None:
        self.n += 1
        self.at(trade.at + 60, "ring")

    def on_timer(self, name: str) -> None:
        self.rows.put(Row(f"{self.key} {name}", 0.0, self.n))
        if self.key in self.broken:
            raise ValueError("not today")


class AlarmApp(App):
    def on_init(self) -> None:
        alarm = self.create_pe(Alarm)
        alarm.rows = self.create_output_stream("rows", types=Row)
        self.create_output_stream("dead", types=GenericEvent)
        self.create_input_stream("trades", alarm, key="symbol", time="at")


def test_an_on_timer_that_raises_is_a_dead_letter_and_fires_again_at_the_next_start(
    broken: set[str],
) -> None:
    with AppTest(AlarmApp, settings=LETTERS | DURABLE) as test:
        test.send("trades", *a(10), *a(20, key="b"), *a(100, key="c"))
        assert rows(test) == [("b ring", 0, 1)]
        assert letters(test) == [
            ("on_timer", "timer 'ring' at 70", "Alarm", "'a'", "ValueError: not today")
        ]
        broken.clear()
        test.crash()
        assert rows(test) == [("a ring", 0, 1)]
        test.crash()
        assert rows(test) == []


def test_with_skip_a_timer_that_fails_is_gone(broken: set[str]) -> None:
    with AppTest(AlarmApp, settings=SKIPS | DURABLE) as test:
        test.send("trades", *a(10), *a(100, key="c"))
        assert rows(test) == []
        broken.clear()
        test.crash()
        assert rows(test) == []
