"""The dataflow of an app, found without running it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from shared_apps import handler_of, pe_class

from s4node import AdapterApp, App, Event, ProcessingElement, Stream
from s4node.app.plan.dataflow import edges, levels, puts


class Word(Event):
    text: str


Target = pe_class("Target", on_event=handler_of(Word))


def app_with(cls: type[ProcessingElement], configure: Callable[[Any, Stream], None]) -> App:
    """An app whose stream "in" leads to ``cls``; ``configure(pe, stream "out")`` wires it."""
    app = App("flow")
    out = app.create_stream("out", app.create_pe(Target), key="text")
    app.create_stream("unused", app.create_pe(Target), key="text")
    pe = app.create_pe(cls)
    app.create_input_stream("in", pe, key="text")
    configure(pe, out)
    return app


# --- where a stream may be held ------------------------------------------------------------------


class Holder(ProcessingElement):
    out: Any = None

    def on_event(self, word: Word) -> None: ...


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


class SlottedBox:
    __slots__ = ("inside", "more")

    def __init__(self, inside: Any) -> None:
        self.inside = inside


def putting(out: Stream) -> Callable[[Any], None]:
    return lambda event: out.put(event)


@pytest.mark.parametrize("cls", [Holder, Target], ids=["declared", "undeclared"])
@pytest.mark.parametrize(
    "held",
    [
        pytest.param(lambda out: out, id="itself"),
        pytest.param(lambda out: [out], id="list"),
        pytest.param(lambda out: (1, (2, out)), id="nested tuples"),
        pytest.param(lambda out: {"a": out}, id="dict"),
        pytest.param(lambda out: out.put, id="bound method"),
        pytest.param(lambda out: functools.partial(out.put, Word("a")), id="partial"),
        pytest.param(putting, id="closure"),
        pytest.param(Box, id="object"),
        pytest.param(SlottedBox, id="object with slots"),
    ],
)
def test_a_stream_on_the_prototype_is_found(
    cls: type[ProcessingElement], held: Callable[[Stream], Any]
) -> None:
    app = app_with(cls, lambda pe, out: setattr(pe, "out", held(out)))

    assert edges(app) == {"in": {"out"}, "out": set(), "unused": set()}


def test_a_stream_given_to_the_constructor_is_found() -> None:
    class Given(ProcessingElement):
        def __init__(self, out: Stream) -> None:
            self.out = out

        def on_event(self, word: Word) -> None:
            self.out.put(word)

    app = App("flow")
    out = app.create_output_stream("out", types=Word)
    app.create_input_stream("in", app.create_pe(Given, out), key="text")

    assert edges(app) == {"out": set(), "in": {"out"}}


def test_values_that_hold_each_other_are_walked_once() -> None:
    def configure(pe: Any, out: Stream) -> None:
        pe.out = box = Box([out])
        box.inside.append(box)

    assert edges(app_with(Holder, configure))["in"] == {"out"}


class Closed:
    """Does not let itself be looked into."""

    __slots__ = ("inside",)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no request at hand")


def test_opaque_values_are_left_alone_and_much_data_costs_little() -> None:
    def configure(pe: Any, out: Stream) -> None:
        pe.closed = Closed()
        pe.data = {number: str(number) for number in range(300_000)}
        pe.out = out

    assert edges(app_with(Target, configure))["in"] == {"out"}


# --- what the handlers' code reads ---------------------------------------------------------------


def by_attribute_of_the_app(self: Any, word: Word) -> None:
    self.app.results.put(word)


def by_name_of_the_stream(self: Any, word: Word) -> None:
    self.app.streams["out"].put(word)


def by_a_method_of_the_app(self: Any, word: Word) -> None:
    self.app.publish(word)


def inside_a_comprehension(self: Any, word: Word) -> None:
    [self.app.results.put(w) for w in (word,)]


def inside_an_inner_function(self: Any, word: Word) -> None:
    def emit() -> None:
        self.app.results.put(word)

    emit()


def by_a_function_of_the_module(self: Any, word: Word) -> None:
    publish(self, word)


def by_a_method_of_the_pe(self: Any, word: Word) -> None:
    self.pass_on(word)


async def by_an_async_handler(self: Any, word: Word) -> None:
    self.app.results.put(word)


def not_at_all(self: Any, word: Word) -> None:
    self.app.parameters.get("out")


def publish(pe: Any, word: Word) -> None:
    pe.app.results.put(word)


class WithResults(App):
    results: Stream

    def publish(self, word: Word) -> None:
        self._publish(word)

    def _publish(self, word: Word) -> None:
        self.results.put(word)


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        (by_attribute_of_the_app, {"out"}),
        (by_name_of_the_stream, {"out"}),
        (by_a_method_of_the_app, {"out"}),
        (inside_a_comprehension, {"out"}),
        (inside_an_inner_function, {"out"}),
        (by_a_function_of_the_module, {"out"}),
        (by_a_method_of_the_pe, {"out"}),
        (by_an_async_handler, {"out"}),
        (not_at_all, set()),
    ],
)
def test_a_stream_that_a_handler_reads_from_its_app_is_found(handler: Any, found: set[str]) -> None:
    class Reader(ProcessingElement):
        on_event = handler

        def pass_on(self, word: Word) -> None:
            self.app.results.put(word)

    app = WithResults("flow")
    app.results = app.create_output_stream("out", types=Word)
    app.create_stream("unused", app.create_pe(Target), key="text")
    app.create_input_stream("in", app.create_pe(Reader), key="text")

    assert edges(app)["in"] == found


@pytest.mark.parametrize("hook", ["on_trigger", "on_time", "on_create", "on_remove"])
def test_every_hook_counts_not_only_on_event(hook: str) -> None:
    def put(self: Any) -> None:
        self.app.results.put(Word("a"))

    def put_too(self: Any, word: Word) -> None:
        self.app.results.put(word)

    body = {"on_event": lambda self, word: None, hook: put_too if hook == "on_trigger" else put}
    app = WithResults("flow")
    app.results = app.create_output_stream("out", types=Word)
    app.create_input_stream(
        "in", app.create_pe(type("Hooked", (ProcessingElement,), body)), key="k"
    )

    assert edges(app)["in"] == {"out"}


def test_a_stream_in_a_closure_of_the_handler_is_found() -> None:
    app = App("flow")
    out = app.create_output_stream("out", types=Word)

    class Enclosed(ProcessingElement):
        def on_event(self, word: Word) -> None:
            out.put(word)

    app.create_input_stream("in", app.create_pe(Enclosed), key="text")

    assert edges(app)["in"] == {"out"}


app_at_the_top = App("top")
top_results = app_at_the_top.create_output_stream("out", types=Word)


class ByGlobalStream(ProcessingElement):
    def on_event(self, word: Word) -> None:
        top_results.put(word)


class ByGlobalApp(ProcessingElement):
    def on_event(self, word: Word) -> None:
        app_at_the_top.streams["out"].put(word)


app_at_the_top.create_input_stream("a", app_at_the_top.create_pe(ByGlobalStream), key="text")
app_at_the_top.create_input_stream("b", app_at_the_top.create_pe(ByGlobalApp), key="text")


def test_streams_of_an_app_at_the_top_of_a_module_are_found() -> None:
    assert edges(app_at_the_top) == {"out": set(), "a": {"out"}, "b": {"out"}}


def test_what_an_inherited_handler_puts_on_is_found_through_super() -> None:
    class Base(ProcessingElement):
        def on_event(self, word: Word) -> None:
            self.app.results.put(word)

    class Sub(Base):
        def on_event(self, word: Word) -> None:
            super().on_event(word)

    class Deaf(Base):
        def on_event(self, word: Word) -> None: ...

    app = WithResults("flow")
    app.results = app.create_output_stream("out", types=Word)
    app.create_input_stream("in", app.create_pe(Sub), key="text")
    app.create_input_stream("deaf", app.create_pe(Deaf), key="text")

    assert edges(app) == {"out": set(), "in": {"out"}, "deaf": set()}


def test_another_app_s_stream_is_not_ours() -> None:
    other = App("other").create_output_stream("out", types=Word)

    assert edges(app_with(Holder, lambda pe, _: setattr(pe, "out", other)))["in"] == set()


def test_an_adapter_s_remote_stream_is_found() -> None:
    class Convert(ProcessingElement):
        def on_event(self, word: Word) -> None:
            assert isinstance(self.app, AdapterApp)
            self.app.remote_stream.put(word)

    class Adapter(AdapterApp):
        output_stream = "words"

        def on_init(self) -> None:
            self.create_input_stream("lines", self.create_pe(Convert), key="text")
            super().on_init()

    adapter = Adapter()
    adapter.on_init()

    assert edges(adapter) == {"lines": {"words"}, "words": set()}


def test_edges_are_found_after_the_app_has_started_too() -> None:
    app = app_with(Holder, lambda pe, out: setattr(pe, "out", out))
    app.freeze()

    assert edges(app)["in"] == {"out"}


def test_a_pe_that_no_stream_leads_to_puts_as_well() -> None:
    app = App("flow")
    clock = app.create_pe(pe_class("Clock", on_time=lambda self: self.ticks.put(Word("tick"))))
    clock.ticks = app.create_output_stream("ticks", types=Word)

    assert puts(app) == {"Clock": {"ticks"}}
    assert edges(app) == {"ticks": set()}


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"in": set()}, {"in": 0}),
        ({"in": {"a"}, "a": {"b"}, "b": set()}, {"in": 0, "a": 1, "b": 2}),
        ({"in": {"a", "b"}, "a": {"b"}, "b": set()}, {"in": 0, "a": 1, "b": 1}),
        ({"in": {"a"}, "a": {"in", "a"}}, {"in": 0, "a": 1}),
        ({"in": {"a"}, "a": set(), "alone": {"a"}}, {"in": 0, "a": 1, "alone": 0}),
    ],
)
def test_a_stream_s_level_is_how_many_streams_lie_before_it(
    graph: dict[str, set[str]], found: dict[str, int]
) -> None:
    assert levels(graph, ["in"]) == found
