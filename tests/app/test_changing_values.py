"""Events with lists, dicts and the like: who has one can change it, and no one else sees that."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_apps import Click, OnePE, counting, handling

from s4node import App, Event, GenericEvent, OutputStream, ProcessingElement, Stream, TaskApp
from s4node.app.stream import begin_put, emitted, end_put
from s4node.errors import ProcessingError
from s4node.testing import AppTest


class Item(msgspec.Struct):
    name: str
    tags: list[str] = []


class Cart(Event):
    user: str
    items: list[str] = msgspec.field(default_factory=list)


class Nested(Event):
    user: str
    lists: dict[str, list[int]]
    things: list[Item]
    marks: set[int]
    anything: Any = None


class Collect(ProcessingElement):
    """Puts its own list, and goes on to change it."""

    out: OutputStream
    inner: Stream
    words: list[str] = []  # noqa: RUF012 - each instance has its own

    def on_event(self, click: Click) -> None:
        self.words.append(click.text)
        self.out.put(Cart(click.user, self.words))
        self.inner.put(Cart(click.user, self.words))


class Last(ProcessingElement):
    seen: list[list[str]] = []  # noqa: RUF012 - each instance has its own

    def on_event(self, cart: Cart) -> None:
        self.seen.append(list(cart.items))
        cart.items.append("changed by the receiver")


class Shop(App):
    def on_init(self) -> None:
        collect, last = self.create_pe(Collect), self.create_pe(Last)
        collect.out = self.create_output_stream("carts", key="user", types=Cart)
        collect.inner = self.create_stream("inner", last, key="user", types=Cart)
        self.create_input_stream("clicks", collect, key="user", types=Click)


WORDS = [["tea"], ["tea", "cup"], ["tea", "cup", "pot"]]


@pytest.mark.parametrize("grade", ["fast", "durable"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_what_was_put_keeps_its_list_when_its_pe_or_a_receiver_changes_that(
    grade: str, partitions: int
) -> None:
    settings = {"s4.stream.clicks.grade": grade}
    with AppTest(Shop, partitions=partitions, settings=settings) as test:
        test.send("clicks", *(Click("joe", text=word) for word in ("tea", "cup", "pot")))
        assert [cart.items for cart in test.output("carts")] == WORDS
        assert [cart.items for cart in test.output("inner")] == WORDS
        assert test.state(Last, "joe").seen == WORDS


def put_and_change(make: Any, change: Any, types: Any) -> list[Any]:
    """The values in a stream of an event that its PE has changed after the put."""
    app = App("app")
    found: list[Any] = []

    def put(pe: Any, click: Click) -> None:
        event = make()
        pe.out.put(event)
        change(event)

    pe: Any = app.create_pe(handling(put))
    pe.out = app.create_stream(
        "inner", app.create_pe(handling(lambda _, event: found.append(event), types)), key="user"
    )
    app.create_input_stream("clicks", pe, key="user")
    with AppTest(app) as test:
        test.send("clicks", Click("joe"))
    return found


def test_lists_dicts_sets_and_structs_are_copied_at_any_depth() -> None:
    def make() -> Nested:
        return Nested(
            "joe", {"a": [1]}, [Item("x", ["t"])], {1}, {"b": [bytearray(b"c"), (["d"],)]}
        )

    def change(event: Nested) -> None:
        event.lists["a"].append(2)
        event.lists["z"] = []
        event.things[0].tags.append("u")
        event.things[0].name = "y"
        event.marks.add(2)
        event.anything["b"][0].extend(b"e")
        event.anything["b"][1][0].append("f")

    assert put_and_change(make, change, Nested) == [make()]


def test_the_values_of_generic_events_are_copied_and_the_event_itself_is_frozen() -> None:
    kept: list[GenericEvent] = []

    def make() -> GenericEvent:
        kept.append(GenericEvent(user="joe", row={"n": [1]}, flat=1))
        return kept[0]

    def change(event: GenericEvent) -> None:
        event["row"]["n"].append(2)

    (found,) = put_and_change(make, change, GenericEvent)
    assert found.attributes == {"user": "joe", "row": {"n": [1]}, "flat": 1}
    with pytest.raises(Exception, match="already sent"):
        kept[0].put("n", 2)


def test_an_event_that_cannot_change_is_put_as_it_is() -> None:
    class Fixed(Event):
        user: str
        pair: tuple[int, str] = (1, "a")
        few: frozenset[int] = frozenset()
        other: Other | None = None

    event = Fixed("joe", other=Other(1))
    assert put_and_change(lambda: event, lambda _: None, Fixed)[0] is event


class Other(msgspec.Struct, frozen=True):
    n: int
    next: Other | None = None


def changing(seen: list[Any]) -> type[ProcessingElement]:
    def on_event(_pe: Any, cart: Cart) -> None:
        seen.append(list(cart.items))
        cart.items.append("changed")

    return handling(on_event, Cart)


def test_a_pe_does_not_see_what_another_pe_of_the_stream_has_changed() -> None:
    seen: list[Any] = []
    app = App("app")
    pes = [app.create_pe(changing(seen), name=name) for name in ("first", "second", "third")]
    app.create_input_stream("carts", *pes, key="user", types=Cart)
    with AppTest(app) as test:
        test.send("carts", Cart("joe", ["tea"]), Cart("joe", ["cup"]))
    assert sorted(seen) == [["cup"]] * 3 + [["tea"]] * 3


def test_an_instance_does_not_see_what_another_instance_has_changed() -> None:
    seen: list[Any] = []
    app = App("app")
    pe = app.create_pe(changing(seen))
    app.create_input_stream("known", pe, key="user", types=Cart)
    app.create_input_stream("all", pe, types=Cart)
    with AppTest(app) as test:
        test.send("known", Cart("joe"), Cart("ann"))
        test.send("all", Cart("", ["tea"]))
    assert seen == [[], [], ["tea"], ["tea"]]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_task_does_not_see_what_another_task_has_changed_in_a_broadcast_event(
    partitions: int,
) -> None:
    seen: list[Any] = []
    app = App("app")
    pe: Any = app.create_pe(handling(lambda pe, click: pe.out.put(Cart(click.user, ["tea"]))))
    every = app.create_pe(changing(seen))
    every.set_singleton()
    pe.out = app.create_stream("all", every, types=Cart, broadcast=True)
    app.create_input_stream("clicks", pe, key="user")
    with AppTest(app, partitions=partitions) as test:
        test.send("clicks", Click("joe"))
        assert [cart.items for cart in test.output("all")] == [["tea"]]
    assert seen == [["tea"]] * partitions


def test_a_source_may_change_what_it_has_sent() -> None:
    class Sourced(App):
        def on_init(self) -> None:
            self.inner = self.create_stream("inner", self.create_pe(Last), key="user")

        async def on_start(self) -> None:
            self.start_soon(self.source)

        async def source(self) -> None:
            words: list[str] = []
            for word in ("tea", "cup", "pot"):
                words.append(word)
                await self.inner.send(Cart("joe", words))

    with AppTest(Sourced) as test:
        assert test.state(Last, "joe").seen == WORDS
        assert [cart.items for cart in test.output("inner")] == WORDS


def test_a_task_of_samza_s_kind_may_change_what_it_has_sent() -> None:
    class Adding:
        def __init__(self) -> None:
            self.words: list[str] = []

        def process(self, envelope: Any, collector: Any, _coordinator: Any) -> None:
            self.words.append(envelope.message.text)
            collector.send("carts", Cart("joe", self.words))

    app = TaskApp("app", Adding, inputs=["live.clicks"], outputs=["carts"])
    app.create_input_stream("clicks", key="user", types=Click)
    with AppTest(app) as test:
        test.send("clicks", *(Click("joe", text=word) for word in ("tea", "cup", "pot")))
        assert [cart.items for cart in test.output("carts")] == WORDS


def test_a_put_value_that_is_not_of_its_field_s_type_is_refused_where_it_is_put() -> None:
    class Row(Event):
        user: str
        cents: int

    app = OnePE(counting(then=lambda pe, _: pe.out.put(Row("joe", 7.0)), name="Put"))  # type: ignore[arg-type]
    app.pe.out = app.create_output_stream("rows", types=Row)
    with (
        AppTest(app) as test,
        pytest.raises(
            ProcessingError, match=r"Expected `int`, got `float` - at `\$.cents`"
        ) as caught,
    ):
        test.send("clicks", Click("joe"))
    assert "Put" in str(caught.value)


# -- what is put as it is, and what is copied ------------------------------------------------------


class Counts(Event):
    user: str
    counts: dict[str, int]


class Known(Event, gc=True, weakref=True):
    user: str
    items: list[str]


class Shared(Event):
    user: str
    items: list[str] = msgspec.field(default_factory=lambda: COMMON)


class Marked(Event):
    user: str
    items: set[str]


class Words(list[str]):
    """A list to which there can be weak references."""


COMMON: list[str] = []


def put_by(act: Callable[[Callable[[Any], None]], object]) -> list[Any]:
    stream = Stream("inner", 0, types=(Cart, Counts, Known, Shared, Marked, Nested))
    token = begin_put([[]])
    try:
        act(stream.put)
        return list(emitted.get()[0])
    finally:
        end_put(token)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="it does not count what variables refer to")
def test_an_event_that_nothing_else_refers_to_is_put_as_it_is() -> None:
    places = []

    def noted(value: Any) -> Any:
        places.append(id(value))
        return value

    def act(put: Any) -> None:
        put(Cart("joe", noted(["tea"])))
        put(Counts("joe", noted({"tea": 1})))
        events = [Cart("joe", noted(["cup"]))]
        put(events.pop())

    cart, counts, popped = put_by(act)
    assert [id(cart.items), id(counts.counts), id(popped.items)] == places


def variable(put: Any) -> None:
    cart = Cart("joe", ["tea"])
    put(cart)
    cart.items.append("changed")


def name_in_the_call(put: Any) -> None:
    put(cart := Cart("joe", ["tea"]))
    cart.items.append("changed")


def argument(put: Any) -> None:
    def put_and_change(cart: Cart) -> None:
        put(cart)
        cart.items.append("changed")

    put_and_change(Cart("joe", ["tea"]))


def arguments(put: Any) -> None:
    def put_and_change(*carts: Cart) -> None:
        put(*carts)
        carts[0].items.append("changed")

    put_and_change(Cart("joe", ["tea"]))


def loop(put: Any) -> None:
    for cart in [Cart("joe", ["tea"])]:
        put(cart)
        cart.items.append("changed")


def mapped(put: Any) -> None:
    carts = [Cart("joe", ["tea"])]
    list(map(put, carts))
    carts[0].items.append("changed")


def bound(put: Any) -> None:
    call = partial(put, Cart("joe", ["tea"]))
    call()
    call.args[0].items.append("changed")


def generator(put: Any) -> None:
    def steps() -> Any:
        cart = yield
        put(cart)
        cart.items.append("changed")
        yield

    going = steps()
    next(going)
    going.send(Cart("joe", ["tea"]))


def list_in_a_variable(put: Any) -> None:
    words = ["tea"]
    put(Cart("joe", words))
    words.append("changed")


def list_of_another_event(put: Any) -> None:
    other = Cart("ann", ["tea"])
    put(Cart("joe", other.items))
    other.items.append("changed")


def method_of_the_list(put: Any) -> None:
    append = (words := ["tea"]).append
    make = partial(Cart, "joe", words)
    del words
    put(make())
    append("changed")


def list_of_two_events(put: Any) -> None:
    carts = [Cart("joe", ["tea"])]
    carts.append(Cart("joe", carts[0].items))
    put(carts.pop())
    carts[0].items.append("changed")


def default_that_is_shared(put: Any) -> None:
    COMMON[:] = ["tea"]
    put(Shared("joe"))
    COMMON.append("changed")


def dict_in_a_variable(put: Any) -> None:
    counts = {"tea": 1}
    put(Counts("joe", counts))
    counts["cup"] = 2


def weak_reference_to_the_event(put: Any) -> None:
    known = []

    def noted(event: Known) -> Known:
        known.append(weakref.ref(event))
        return event

    put(noted(Known("joe", ["tea"])))
    if event := known[0]():
        event.items.append("changed")


def weak_reference_to_the_list(put: Any) -> None:
    known = []

    def noted(words: Words) -> Words:
        known.append(weakref.ref(words))
        return words

    put(Cart("joe", noted(Words(["tea"]))))
    if words := known[0]():
        words.append("changed")


def weak_reference_to_the_set(put: Any) -> None:
    known = []

    def noted(marks: set[str]) -> set[str]:
        known.append(weakref.ref(marks))
        return marks

    put(Marked("joe", noted({"tea"})))
    if marks := known[0]():
        marks.add("changed")


def list_in_the_list(put: Any) -> None:
    inner = [1]
    put(Nested("joe", {"tea": inner}, [], set()))
    inner.append(2)


def struct_in_the_list(put: Any) -> None:
    item = Item("tea")
    put(Nested("joe", {}, [item], set()))
    item.name = "changed"


@pytest.mark.parametrize(
    "act",
    [
        variable,
        name_in_the_call,
        argument,
        arguments,
        loop,
        mapped,
        bound,
        generator,
        list_in_a_variable,
        list_of_another_event,
        method_of_the_list,
        list_of_two_events,
        default_that_is_shared,
        dict_in_a_variable,
        weak_reference_to_the_event,
        weak_reference_to_the_list,
        weak_reference_to_the_set,
        list_in_the_list,
        struct_in_the_list,
    ],
    ids=lambda act: act.__name__,
)
def test_what_something_else_refers_to_is_copied_when_it_is_put(act: Any) -> None:
    for _ in range(20):  # Python specializes code that has run some times
        found = put_by(act)
        assert "changed" not in repr(found[0])
        assert "2" not in repr(found[0])


STEPS = st.lists(
    st.tuples(st.sampled_from(["new", "fresh", "of", "put", "pop", "made", "add"]), st.integers(0)),
    max_size=40,
)


@given(STEPS)
def test_a_put_event_stays_as_it_was_whatever_is_changed_later(steps: Any) -> None:
    expected = []

    def act(put: Any) -> None:
        lists, carts = [["a"]], [Cart("joe", ["b"])]
        for step, number in steps:
            at, cart = number % len(lists), number % len(carts)
            if step == "new":
                lists.append(["c"])
                carts.append(Cart("joe", lists[-1]))
            elif step == "fresh":
                expected.append(["d"])
                put(Cart("joe", ["d"]))
            elif step == "of":
                expected.append(lists[at].copy())
                put(Cart("joe", lists[at] if number % 2 or not at else lists.pop(at)))
            elif step == "put":
                expected.append(carts[cart].items.copy())
                put(carts[cart])
            elif step == "pop" and cart:
                expected.append(carts[cart].items.copy())
                put(carts.pop(cart))
            elif step == "made":
                carts.append(Cart("joe", carts[cart].items if number % 2 else ["e"]))
            elif step == "add":
                lists[at].append("f")
                carts[cart].items.append("g")

    assert [cart.items for cart in put_by(act)] == expected
