"""Mistakes in what an author declares, told at the start or at the first event."""

from __future__ import annotations

from typing import Any

import pytest
from shared_apps import Click, OnePE, handler_of, pe_class

from s4node import App, Event, Pairs, tumbling
from s4node.errors import GraphError, ProcessingError
from s4node.testing import AppTest


class Order(Event):
    user: str
    at: float
    name: str


class Payment(Event):
    user: str
    at: float


@pytest.mark.parametrize("time", ["name", "when"])
def test_the_time_of_pairs_is_a_field_of_both_types_that_is_a_time(time: str) -> None:
    with pytest.raises(GraphError, match=rf"Paid: time='{time}' is (str|not there) in Order; name"):
        type(Pairs)("Paid", (Pairs,), {}, left=Order, right=Payment, within=(1, 1), time=time)


@pytest.mark.parametrize("handlers", [0, 1025, 2.0, True])
def test_a_parallelism_has_the_bounds_of_the_setting(handlers: Any) -> None:
    app = App("app")
    stream = app.create_stream("inner", key="user")
    with pytest.raises(GraphError, match="not a whole number from 1 to 1024"):
        stream.set_parallelism(handlers)


async def work(*_: Any) -> None: ...


@pytest.mark.parametrize("windows", [False, True])
def test_a_handler_that_returns_a_coroutine_fails(windows: bool) -> None:
    on_event = handler_of(Click, lambda pe, event: work(pe, event))
    app = OnePE(pe_class("Lost", on_event=on_event, on_window=lambda self: None))
    if windows:
        app.pe.set_window(tumbling(60), clock="wall")
    told = r"returned a coroutine of work, which is not awaited; write 'async def'"
    with AppTest(app) as test, pytest.raises(ProcessingError, match=told):
        test.send("clicks", Click("joe"))


def test_a_timer_that_returns_a_coroutine_fails() -> None:
    pe = pe_class("Lost", on_event=handler_of(Click), on_time=lambda self: work(self))
    app = OnePE(pe)
    app.pe.set_timer_interval(1)
    with AppTest(app) as test:
        test.send("clicks", Click("joe"))
        with pytest.raises(ProcessingError, match=r"Lost.*returned a coroutine of work"):
            test.advance(2)
