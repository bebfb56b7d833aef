"""The state of a key beside its windows, and state that ends some time after the last event."""

from __future__ import annotations

from typing import Any

import pytest

from s4node.app.app import App
from s4node.app.processing_element import OfKey, ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import WindowKind, count, hopping, session, tumbling
from s4node.errors import GraphError
from s4node.events.event import Event
from s4node.state.browse import StateReader
from s4node.testing.app_test import AppTest


class Trade(Event):
    symbol: str
    at: float


class Row(Event):
    symbol: str
    n: int
    total: int
    windows: int


class Both(ProcessingElement):
    rows: OutputStream
    n: int = 0
    total: OfKey[int] = 0
    ends: OfKey[list[float]] = []  # noqa: RUF012

    def on_event(self, _trade: Trade) -> None:
        self.n += 1
        self.total += 1

    def on_window(self) -> None:
        self.ends.append(self.window.end)
        self.rows.put(Row(str(self.key), self.n, self.total, len(self.ends)))

    def merge(self, later: Both) -> None:
        self.n += later.n


class BothApp(App):
    kind: WindowKind = tumbling(60)
    ttl = 0.0

    def on_init(self) -> None:
        both = self.create_pe(Both)
        both.rows = self.create_output_stream("rows", types=Row)
        both.set_window(self.kind)
        if self.ttl:
            both.set_ttl(self.ttl)
        self.create_input_stream("trades", both, key="symbol", time="at")


def a(*times: float, key: str = "a") -> list[Trade]:
    return [Trade(key, t) for t in times]


def rows(test: AppTest[Any]) -> list[tuple[Any, ...]]:
    return [(r.symbol, r.n, r.total, r.windows) for r in test.take_output("rows")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (tumbling(60), [("a", 2, 3, 1), ("b", 1, 1, 1), ("a", 1, 4, 2)]),
        (hopping(60, every=60), [("a", 2, 3, 1), ("b", 1, 1, 1), ("a", 1, 4, 2)]),
        (session(gap=30), [("a", 2, 3, 1), ("b", 1, 1, 1), ("a", 1, 4, 2)]),
        (count(2), [("a", 2, 2, 1), ("a", 2, 4, 2)]),
    ],
    ids=lambda kind: kind.text if isinstance(kind, WindowKind) else "",
)
def test_all_windows_of_a_key_share_its_own_state(kind: WindowKind, expected: list[Any]) -> None:
    with AppTest(type("BothApp", (BothApp,), {"kind": kind})) as test:
        test.send("trades", *a(10, 20), *a(20.5, key="b"), *a(70))
        test.send("trades", *a(130))
        assert rows(test) == expected


def test_the_state_of_a_key_survives_a_crash_and_is_there_when_its_windows_are_gone() -> None:
    with AppTest(BothApp) as test:
        test.send("trades", *a(10), *a(70, key="b"), *a(130, key="b"))
        assert rows(test) == [("a", 1, 1, 1), ("b", 1, 2, 1)]
        test.advance(seconds=2)
        test.crash()
        assert test.state("Both (key)", "a").total == 1
        test.send("trades", *a(140), *a(190, key="b"))
        assert test.state("Both (key)", "a").ends == [60, 180]


def test_the_state_of_keys_ends_with_a_time_to_live() -> None:
    with AppTest(type("BothApp", (BothApp,), {"ttl": 100.0})) as test:
        test.send("trades", *a(10))
        test.advance(seconds=101)
        assert test.keys("Both (key)") == []


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "1", 1e12])
def test_a_time_to_live_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(GraphError, match="set_ttl"):
        App("a").create_pe(Plain).set_ttl(wrong)


# --- state that ends -----------------------------------------------------------------------------


class Plain(ProcessingElement):
    rows: OutputStream
    n: int = 0

    def on_event(self, trade: Trade) -> None:
        self.n += 1
        if trade.at == 1:
            self.after(1000, "later")

    def on_timer(self, name: str) -> None:
        self.rows.put(Row(f"{self.key} {name}", self.n, 0, 0))


class PlainApp(App):
    size = 0

    def on_init(self) -> None:
        plain = self.create_pe(Plain)
        plain.rows = self.create_output_stream("rows", types=Row)
        plain.set_ttl(100)
        if self.size:
            plain.set_pe_cache(max_size=self.size)
        self.create_input_stream("trades", plain, key="symbol")


DURABLE = {"s4.stream.trades.grade": "durable"}


@pytest.mark.parametrize("settings", [{}, DURABLE], ids=["fast", "durable"])
def test_the_state_of_a_key_ends_some_time_after_its_last_event(settings: dict[str, str]) -> None:
    with AppTest(PlainApp, settings=settings) as test:
        test.send("trades", *a(2, 2), *a(2, key="b"))
        test.advance(seconds=60)
        test.send("trades", *a(2))
        test.advance(seconds=60)
        assert test.keys(Plain) == ["a"]
        test.send("trades", *a(2, key="b"))
        assert (test.state(Plain, "a").n, test.state(Plain, "b").n) == (3, 1)


def test_state_ends_on_disk_too_without_an_event_of_its_key() -> None:
    with AppTest(type("PlainApp", (PlainApp,), {"size": 1}), settings=DURABLE) as test:
        test.send("trades", *a(1), *a(2, key="b"), *a(2, key="c"))
        test.advance(seconds=2)
        assert test.keys(Plain) == ["c"]
        assert test.state(Plain, "a").n == 1
        test.advance(seconds=60)
        test.crash()
        assert test.state(Plain, "a").n == 1
        test.advance(seconds=60)
        with pytest.raises(LookupError):
            test.state(Plain, "a")
        for _ in range(70):  # each commit looks at a part of the rows
            test.send("trades", *a(2, key="d"))
            test.advance(seconds=2)
        [task] = test._runtime.tasks
        committer = test._runtime.container.replay.committer  # type: ignore[union-attr]
        state = committer._tasks[task.partition].state
        assert [key for key, _ in StateReader(state).instances("Plain")] == ["d"]
        test.advance(seconds=1000)
        assert test.output("rows") == []  # the timer has ended with the state of its key


def problem(prepare: Any) -> str:
    class Wrong(App):
        def on_init(self) -> None:
            prepare(self)

    with pytest.raises(GraphError) as raised, AppTest(Wrong):
        pass
    return str(raised.value)


def test_what_does_not_go_with_a_time_to_live_is_named() -> None:
    class Removes(Plain):
        def on_remove(self) -> None: ...

    def prepare(app: App) -> None:
        removes = app.create_pe(Removes)
        removes.set_ttl(5)
        removes.set_pe_cache(idle_seconds=3)
        single = app.create_pe(Plain)
        single.set_singleton()
        single.set_ttl(5)
        app.create_input_stream("trades", removes, single, key="symbol")

    text = problem(prepare)
    for words in ("on_remove", "idle_seconds", "is a singleton"):
        assert words in text


def test_state_of_a_key_without_windows_is_a_mistake() -> None:
    class NoWindows(ProcessingElement):
        total: OfKey[int] = 0

        def on_event(self, _trade: Trade) -> None: ...

    def prepare(app: App) -> None:
        app.create_input_stream("trades", app.create_pe(NoWindows), key="symbol")

    assert "leave OfKey out of the annotation of 'total'" in problem(prepare)


def test_windows_alone_have_no_time_to_live() -> None:
    class Windows(ProcessingElement):
        def on_event(self, _trade: Trade) -> None: ...

        def on_window(self) -> None: ...

    def prepare(app: App) -> None:
        windows = app.create_pe(Windows)
        windows.set_window(tumbling(60))
        windows.set_ttl(5)
        app.create_input_stream("trades", windows, key="symbol", time="at")

    assert "with which its state ends anyway" in problem(prepare)
