"""The promises of timers: once, in order, saved with the state, by either clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from s4node.app.app import App
from s4node.app.pe_timers import PeTimers
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.errors import GraphError, ProcessingError
from s4node.events.event import Event, GenericEvent
from s4node.testing.app_test import AppTest


class Order(Event):
    user: str
    what: str
    at: float


class Cart(ProcessingElement):
    told: OutputStream
    items: int = 0

    def on_event(self, order: Order) -> None:
        if order.what == "pay":
            self.cancel("forgotten")
            self.after(5, "thanks")
        elif order.what == "leave":
            self.remove()
        else:
            self.items += 1
            self.at(order.at + 60, "forgotten")

    def on_timer(self, name: str) -> None:
        self.told.put(GenericEvent(user=self.key, name=name, items=self.items))
        if name == "again":
            self.at(1.0, "again")


class Shop(App):
    cache = 0

    def on_init(self) -> None:
        cart = self.create_pe(Cart)
        if self.cache:
            cart.set_pe_cache(max_size=self.cache)
        cart.told = self.create_output_stream("told", types=GenericEvent)
        self.create_input_stream("orders", cart, key="user", time="at")


DURABLE = {"s4.stream.orders.grade": "durable"}


def told(test: AppTest[Any]) -> list[tuple[str, str, int]]:
    return [(e["user"], e["name"], e["items"]) for e in test.take_output("told")]


def set_clock(test: AppTest[Any], by: float) -> None:
    """Set the clock of the app's machine, by which no time passes."""
    processor: Any = test._runtime.tasks[0].processor
    wall = processor.times._wall
    processor.times._wall = lambda: wall() + by
    for instances in processor.instances.values():
        if instances.timers is not None:
            instances.timers.now = processor.times._wall
        if hasattr(instances, "wall"):
            instances.wall = processor.times._wall


@pytest.mark.parametrize("by", [-7200, -2, 2, 7200])
def test_a_timer_in_so_many_seconds_fires_in_time_if_the_clock_is_set(by: float) -> None:
    with AppTest(Shop, settings=DURABLE) as test:
        test.send("orders", Order("joe", "pay", 10.0))
        test.advance(seconds=1)
        set_clock(test, by)
        test.send("orders", Order("ann", "tea", 10.0))
        test.advance(seconds=3)
        assert told(test) == []
        test.advance(seconds=2)
        assert told(test) == [("joe", "thanks", 0)]


def test_a_timer_at_a_time_of_the_clock_fires_at_that_time_if_the_clock_is_set() -> None:
    class Alarm(Cart):
        def on_event(self, order: Order) -> None:
            self.at(order.at, "alarm", clock="wall")

    class Alarms(App):
        def on_init(self) -> None:
            alarm = self.create_pe(Alarm)
            alarm.told = self.create_output_stream("told", types=GenericEvent)
            self.create_input_stream("orders", alarm, key="user", types=Order)

    with AppTest(Alarms) as test:
        test.send("orders", Order("joe", "", 1_700_000_100.0))
        test.advance(seconds=1)
        set_clock(test, 90)
        test.advance(seconds=8)
        assert told(test) == []
        test.advance(seconds=2)
        assert told(test) == [("joe", "alarm", 0)]


def test_a_timer_that_is_set_after_the_removal_of_its_instance_is_refused() -> None:
    class Left(Cart):
        def on_event(self, order: Order) -> None:
            if order.what == "first":
                self.after(5, "kept")
            self.remove()
            self.cancel("none")
            self.remove()
            if order.what == "set":
                self.after(5, "lost")

    class Leaving(Shop):
        def on_init(self) -> None:
            left = self.create_pe(Left)
            left.told = self.create_output_stream("told", types=GenericEvent)
            self.create_input_stream("orders", left, key="user", types=Order, time="at")

    with AppTest(Leaving) as test:
        test.send("orders", Order("joe", "first", 10.0), Order("joe", "tea", 10.0))
        test.advance(seconds=6)
        assert told(test) == []
        with pytest.raises(ProcessingError, match="was removed, so a timer that is set now"):
            test.send("orders", Order("joe", "set", 10.0))


def test_a_timer_fires_once_when_the_events_up_to_its_time_have_come() -> None:
    with AppTest(Shop) as test:
        test.send("orders", Order("joe", "tea", 10.0), Order("joe", "tea", 20.0))
        test.send("orders", Order("ann", "tea", 79.0))
        assert told(test) == []
        test.send("orders", Order("ann", "tea", 81.0))
        assert told(test) == [("joe", "forgotten", 2)]  # the later one has replaced the first
        test.send("orders", Order("bob", "tea", 1000.0))
        assert told(test) == [("ann", "forgotten", 2)]


def test_a_timer_that_is_cancelled_or_whose_instance_is_removed_does_not_fire() -> None:
    with AppTest(Shop) as test:
        test.send("orders", Order("joe", "tea", 10.0), Order("ann", "tea", 10.0))
        test.send("orders", Order("joe", "pay", 11.0), Order("ann", "leave", 11.0))
        test.send("orders", Order("bob", "tea", 500.0))
        assert told(test) == []
        test.advance(seconds=4)
        assert told(test) == []
        test.advance(seconds=2)
        assert told(test) == [("joe", "thanks", 1)]


def test_timers_survive_a_crash_and_fire_on_instances_that_are_not_in_memory() -> None:
    class Small(Shop):
        cache = 2

    with AppTest(Small, settings=DURABLE) as test:
        users = [f"user-{n:03}" for n in range(200)]
        test.send("orders", *(Order(user, "tea", 10.0 + n / 100) for n, user in enumerate(users)))
        test.send("orders", Order("joe", "pay", 20.0))
        test.advance(seconds=2)
        test.crash()
        assert len(test.keys(Cart)) <= 2
        test.send("orders", Order("end", "tea", 100.0))
        test.advance(seconds=4)
        fired = told(test)
        assert fired[:200] == [(user, "forgotten", 1) for user in users]
        assert fired[200:] == [("joe", "thanks", 0)]
        test.send("orders", Order("end", "pay", 101.0))
        test.advance(seconds=2)  # a commit
        test.crash()
        test.advance(seconds=2)
        assert told(test) == []  # that they have fired is part of the state


def test_a_timer_in_the_past_fires_after_its_handler_and_one_that_sets_itself_stops_nobody() -> (
    None
):
    class Eager(Cart):
        def on_event(self, order: Order) -> None:
            self.at(order.at - 5, "again" if order.user == "loop" else "soon")

    app = App("eager")
    eager = app.create_pe(Eager)
    eager.told = app.create_output_stream("told", types=GenericEvent)
    app.create_input_stream("orders", eager, key="user", time="at")
    timers = PeTimers("Eager", lambda: 0.0, event_time=True)
    timers.watermark = 10
    timers.set_timer("a", "again", 1.0, by_wall=False)
    rounds = ((timer.key, timer.name) for timer in timers.take_due())
    assert next(rounds) == ("a", "again")
    timers.set_timer("a", "again", 1.0, by_wall=False)
    assert list(rounds) == []
    assert timers.next_end <= timers.watermark
    with AppTest(app) as test:
        test.send("orders", Order("joe", "tea", 10.0))
        assert told(test) == [("joe", "soon", 0)]


def test_timers_fire_in_the_order_of_their_times() -> None:
    timers = PeTimers("Cart", lambda: 100.0, event_time=True)
    timers.set_timer("a", "x", 5, by_wall=False)
    timers.set_timer("b", "x", datetime.fromtimestamp(3, UTC), by_wall=False)
    timers.set_timer("c", "x", 4, by_wall=True)
    timers.set_timer("a", "x", 9, by_wall=False)
    timers.watermark = 8
    assert [(each.key, each.name) for each in timers.take_due()] == [("b", "x"), ("c", "x")]
    assert len(timers) == 1
    assert timers.next_at(by_wall=False) == 9


class Step(Event):
    user: str
    at: float


class Chain(ProcessingElement):
    """Ticks every ten seconds until 50, and ends at 55."""

    told: OutputStream

    def on_event(self, step: Step) -> None:
        if step.at == 1:
            self.at(10.0, "10")
            self.at(55.0, "end")

    def on_timer(self, name: str) -> None:
        self.told.put(GenericEvent(user=self.key, name=name, items=0))
        if name != "end" and int(name) < 50:
            self.at(float(name) + 10, str(int(name) + 10))


class Chained(App):
    def on_init(self) -> None:
        chain = self.create_pe(Chain)
        chain.told = self.create_output_stream("told", types=GenericEvent)
        self.create_input_stream("steps", chain, key="user", time="at")


@pytest.mark.parametrize("marks", [[70], [30, 70], [10, 20, 30, 40, 50, 60, 70]])
def test_timers_that_timers_set_fire_in_the_order_of_times_in_however_many_steps(
    marks: list[int],
) -> None:
    with AppTest(Chained) as test:
        test.send("steps", Step("joe", 1.0))
        for mark in marks:
            test.send("steps", Step("ann", float(mark)))
        names = [name for _, name, _ in told(test)]
        assert names == ["10", "20", "30", "40", "50", "end"]


def test_timers_that_timers_set_by_the_clock_fire_in_order_after_a_stop() -> None:
    now = [0.0]
    timers = PeTimers("Chain", lambda: now[0], event_time=False)
    timers.set_timer("joe", "10", 10.0, by_wall=True)
    timers.set_timer("joe", "end", 55.0, by_wall=True)
    now[0] = 70.0
    fired = []
    for timer in timers.take_due():
        fired.append(timer.name)
        if timer.time < 50:
            timers.set_timer(timer.key, str(timer.time + 10), timer.time + 10, by_wall=True)
    assert fired == ["10", "20.0", "30.0", "40.0", "50.0", "end"]


def test_a_timer_that_sets_itself_anew_has_an_end_at_the_end_of_the_inputs() -> None:
    class Forever(Chain):
        def on_timer(self, name: str) -> None:
            self.told.put(GenericEvent(user=self.key, name=name, items=0))
            if name != "end":
                self.at(float(name) + 10, str(int(name) + 10))

    class Ending(App):
        def on_init(self) -> None:
            chain = self.create_pe(Forever)
            chain.told = self.create_output_stream("told", types=GenericEvent)
            self.create_input_stream("steps", chain, key="user", time="at", system="log")

    with AppTest(Ending) as test:
        test.send("steps", Step("joe", 1.0))
        test.end_input("steps")
        test.advance(seconds=2)
        assert [name for _, name, _ in told(test)] == ["10", "20", "30", "40", "50", "end"]


def test_a_timer_that_is_set_again_and_again_takes_the_place_of_one() -> None:
    timers = PeTimers("Idle", lambda: 0.0, event_time=True)
    timers.set_timer("early", "", 1.0, by_wall=False)
    for at in range(10_000):
        timers.set_timer("busy", "", 100.0 + at, by_wall=False)
    assert len(timers) == 2
    assert sum(map(len, timers._heaps)) < 100
    timers.cancel("early", "")
    timers.watermark = 1e6
    assert [(each.key, each.time) for each in timers.take_due()] == [("busy", 10_099.0)]
    assert len(timers) == 0


def test_what_is_no_timer_is_an_error_that_names_the_instance() -> None:
    class Wrong(Cart):
        def on_event(self, order: Order) -> None:
            self.at(float("nan") if order.what == "nan" else datetime(2020, 1, 1))  # noqa: DTZ001

    for what in ("nan", "naive"):
        app = App("wrong")
        pe = app.create_pe(Wrong)
        pe.told = app.create_output_stream("told", types=GenericEvent)
        app.create_input_stream("orders", pe, key="user", time="at")
        with pytest.raises(ProcessingError, match="Wrong 'joe'"), AppTest(app) as test:
            test.send("orders", Order("joe", what, 1.0))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda cart: cart.after("5"), "Wrong 'joe'>: after('5'): give seconds as a number"),
        (lambda cart: cart.at(5.0, 7), "Wrong 'joe': the name 7 is not a text"),
        (lambda cart: cart.at(1.7e12), "Wrong 'joe' at 1700000000000.0 is after the year 9999"),
    ],
)
def test_a_timer_says_what_is_wrong_with_its_time_or_name(
    call: Callable[[ProcessingElement], None], words: str
) -> None:
    class Wrong(Cart):
        def on_event(self, _order: Order) -> None:
            call(self)

    app = App("wrong")
    pe = app.create_pe(Wrong)
    pe.told = app.create_output_stream("told", types=GenericEvent)
    app.create_input_stream("orders", pe, key="user", time="at")
    with pytest.raises(ProcessingError, match=re.escape(words)), AppTest(app) as test:
        test.send("orders", Order("joe", "tea", 1.0))


def test_event_timers_need_a_stream_with_time_and_a_class_with_on_timer() -> None:
    app = App("untimed")
    pe = app.create_pe(Cart)
    pe.told = app.create_output_stream("told", types=GenericEvent)
    app.create_input_stream("orders", pe, key="user")
    with pytest.raises(ProcessingError, match="give the stream a time"), AppTest(app) as test:
        test.send("orders", Order("joe", "tea", 1.0))

    class Bare(ProcessingElement):
        def on_event(self, _order: Order) -> None:
            self.after(1)

    app = App("bare")
    app.create_input_stream("orders", app.create_pe(Bare), key="user")
    with pytest.raises(ProcessingError, match="on_timer"), AppTest(app) as test:
        test.send("orders", Order("joe", "tea", 1.0))

    class Few(ProcessingElement):
        def on_event(self, _order: Order) -> None: ...

        def on_timer(self) -> None: ...

    with pytest.raises(GraphError, match=r"write \(self, name\)"):
        App("few").create_pe(Few)
