"""Mistakes in what an author declares, told at the start or at the first event."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from shared_apps import Click, OnePE, handler_of, pe_class

import s4node
from s4node import App, Event, OutputStream, Pairs, ProcessingElement, tumbling
from s4node.app.handlers import may_return
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


def test_code_shows_that_a_function_returns_nothing_but_none() -> None:
    def leaves_early(x: object) -> None:
        if x:
            return
        print(x)

    def returns_in_one_way(x: object) -> object:
        if x:
            return None
        return x

    def yields(x: object) -> Iterator[object]:
        yield x

    def none_or_not(x: object) -> object:
        return x and None

    assert not any(map(may_return, (leaves_early, lambda _: None)))
    others = (
        returns_in_one_way,
        yields,
        none_or_not,
        lambda x: work(x),
        partial(leaves_early),
        print,
    )
    assert all(map(may_return, others))


def test_a_timer_that_returns_a_coroutine_fails() -> None:
    pe = pe_class("Lost", on_event=handler_of(Click), on_time=lambda self: work(self))
    app = OnePE(pe)
    app.pe.set_timer_interval(1)
    with AppTest(app) as test:
        test.send("clicks", Click("joe"))
        with pytest.raises(ProcessingError, match=r"Lost.*returned a coroutine of work"):
            test.advance(2)


class Text(ProcessingElement):
    out: OutputStream  # its text, in this file

    def on_event(self, event: Click) -> None:
        self.out.put(event)


class Inherited(Text):
    inner: s4node.Stream


OUT = pe_class("Class", on_event=handler_of(Click), __annotations__={"out": OutputStream})


@pytest.mark.parametrize(
    ("pe", "names"), [(Text, ["out"]), (Inherited, ["inner", "out"]), (OUT, ["out"])]
)
def test_a_stream_attribute_that_is_not_set_is_told_at_the_start(
    pe: type[ProcessingElement], names: list[str]
) -> None:
    with pytest.raises(GraphError) as told, AppTest(OnePE(pe)):
        pass
    for name in names:
        line = f"'{pe.__name__}': '{name}' is annotated as a stream, and not set; set it on what "
        assert f"{line}create_pe returns, as in pe.{name} = self.create_stream(...)" in str(
            told.value
        )


class Slot(ProcessingElement):
    __slots__ = ("out",)
    out: OutputStream

    def on_create(self) -> None:
        self.out = self.app.streams["out"]

    def on_event(self, event: Click) -> None:
        self.out.put(event)


def test_a_stream_attribute_may_be_set_for_each_instance() -> None:
    class Sends(OnePE):
        def on_init(self) -> None:
            super().on_init()
            self.create_output_stream("out", types=Click)

    with AppTest(Sends(Slot)) as test:
        test.send("clicks", Click("joe"))
        assert test.output("out") == [Click("joe")]
