"""The promises of the graph: every mistake at once, and a plan that does just what it says."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_apps import handler_of, handling, pe_class

from s4node.app.app import AdapterApp, App
from s4node.app.plan.dispatch import (
    Plan,
    TriggerState,
    blame,
    compile_plan,
    is_key_failure,
    make_instances,
)
from s4node.app.plan.graph import check, rule_of
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.errors import EventError, GraphError, KeyFinderError, S4Error
from s4node.events.event import Event, GenericEvent
from s4node.events.routing import failed_at


class Click(Event):
    user: str
    page: str = ""
    weight: float = 0.0


class Order(Event):
    user: str


class Nothing(Event):
    pass


# --- declaring -----------------------------------------------------------------------------------


def test_a_good_graph_has_nothing_to_report() -> None:
    app = App("shop")
    count, timed = app.create_pe(Count), app.create_pe(Timed)
    timed.set_singleton()
    app.create_input_stream("clicks", count, key="user")
    app.create_stream("inner", count, timed, key=["user", "page"])
    app.create_stream("all", timed, types=Click, broadcast=True)
    app.create_output_stream("out")
    check(app)


GIVE_A_KEY = "give an attribute name, several names, a KeyFinder, or a function of the event"
MEND_IT = "give the stream a key or call set_singleton() on the PE"


def test_all_mistakes_are_reported_together() -> None:
    app = App("shop")
    count = app.create_pe(Count)
    app.create_pe(Idle)
    app.create_input_stream("nowhere", key="user", types=Click)
    app.create_stream("unkeyed", count)
    app.create_stream("both", count, key="user", broadcast=True)
    app.create_input_stream("missing", count, key=["user", "city"])
    app.create_output_stream("out", key="nobody", types=(Order, Nothing))
    app.create_output_stream("twins", types=(Order, Purchase))
    app.create_stream("odd", count, key="not a name")
    app.create_stream("worse", count, key=5)  # type: ignore[arg-type]
    # a PE of its own, for which no other stream makes instances
    other = app.create_pe(Count)
    app.create_stream("lonely", other)
    assert problems(app) == [
        "stream 'nowhere' leads to no PE",
        "stream 'both' has a key and broadcast; choose one",
        "stream 'missing' is keyed by 'city', which Click does not have; it has user, page, weight",
        "stream 'out' is keyed by 'nobody', which Order does not have; it has user",
        "stream 'out' is keyed by 'nobody', which Nothing does not have; it has no fields",
        "stream 'twins' has 2 event types named 'Order'; set event_name on one",
        "stream 'odd': key 'not a name' is not an attribute's name",
        f"stream 'worse': 5 is not a key: {GIVE_A_KEY}",
        f"stream 'lonely' has no key, so 'Count#2' would never get an instance; {MEND_IT}",
        "PE 'Idle' has neither on_event nor on_time",
    ]


class Yields(ProcessingElement):
    def on_event(self, event: Click | Order) -> Any:
        yield event

    async def on_event_of_nothing(self, event: Nothing) -> Any:
        yield event

    def on_event_of_any(self, event: GenericEvent) -> None: ...

    def on_trigger(self, event: Click) -> Any:
        yield event

    async def on_time(self) -> Any:
        yield

    def on_create(self) -> Any:
        yield

    def on_remove(self) -> Any:
        yield from ()


class YieldsNoLonger(Yields):
    def on_event(self, event: Click | Order) -> None: ...

    async def on_event_of_nothing(self, event: Nothing) -> None: ...

    def on_trigger(self, event: Click) -> list[Click]:
        return sorted(event for _ in range(2))  # a generator in it does not make it one

    async def on_time(self) -> None: ...

    on_create = on_remove = None


def test_handlers_that_would_never_run_for_their_yield_are_reported() -> None:
    app = App("shop")
    app.create_stream("inner", app.create_pe(Yields), app.create_pe(YieldsNoLonger), key="user")
    app.create_pe(Idle)
    never = (
        "contains yield, so calling it would not run it; remove the yield, and send with "
        "stream.put(event)"
    )
    assert problems(app)[-7:] == [
        f"PE 'Yields': on_event {never}",
        f"PE 'Yields': on_event_of_nothing {never}",
        f"PE 'Yields': on_trigger {never}",
        f"PE 'Yields': on_time {never}",
        f"PE 'Yields': on_create {never}",
        f"PE 'Yields': on_remove {never}",
        "PE 'Idle' has neither on_event nor on_time",
    ]


def test_a_pe_of_an_unkeyed_stream_is_a_singleton_or_keyed_elsewhere() -> None:
    app = App("shop")
    count = app.create_pe(Count)
    app.create_input_stream("clicks", count)
    assert len(problems(app)) == 1
    count.set_singleton()
    check(app)
    count.set_singleton(False)
    app.create_stream("keyed", count, key="user")
    check(app)


@pytest.mark.parametrize(
    "key",
    ["user", ["user", "page"], ("page",), lambda event: event.user],
)
def test_these_keys_fit_a_stream_of_clicks(key: Any) -> None:
    app = App("shop")
    app.create_input_stream("clicks", app.create_pe(Count), key=key)
    check(app)


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize("kind", [float, bool, date, datetime, Decimal, UUID, Color, float | None])
@pytest.mark.parametrize("output", [False, True])
def test_a_field_of_a_type_of_which_no_value_is_a_key_is_refused_at_the_start(
    kind: Any, output: bool
) -> None:
    row = type("Row", (Event,), {"__annotations__": {"user": str, "at": kind}})
    app = App("shop")
    if output:
        app.create_output_stream("rows", key=["user", "at"], types=row)
    else:
        pe = app.create_pe(handling(lambda _, event: None, row))
        app.create_input_stream("rows", pe, key=["user", "at"])
    (problem,) = problems(app)
    assert "stream 'rows' is keyed by 'at', of which no value in Row is a key" in problem


@pytest.mark.parametrize("kind", [str | None, int | float, Any, Literal["a"], tuple[str, int]])
def test_a_field_that_may_hold_keys_is_a_key(kind: Any) -> None:
    row = type("Row", (Event,), {"__annotations__": {"at": kind}})
    app = App("shop")
    app.create_input_stream("rows", app.create_pe(handling(lambda _, event: None, row)), key="at")
    check(app)


def test_a_key_of_generic_events_may_be_any_text() -> None:
    app = App("shop")
    app.create_input_stream("events", app.create_pe(Generic), key="user name")
    check(app)


class Named:
    name = "by:user"

    def get(self, event: Any) -> Any:
        return event.user


def test_a_key_finder_s_name_has_no_colon() -> None:
    app = App("shop")
    app.create_input_stream("clicks", app.create_pe(Count), key=Named())
    (problem,) = problems(app)
    assert problem.startswith("stream 'clicks': KeyFinder name 'by:user' has a ':' in it")


@pytest.mark.parametrize("name", ["", "a b", "-x", ".x", "a/b", "é", "a\n", 5, None])
def test_stream_names_are_letters_digits_and_three_signs(name: Any) -> None:
    app = App("shop")
    with pytest.raises(GraphError) as caught:
        app.create_stream(name)
    assert str(caught.value) == f"{name!r} is not a stream name; use letters, digits and . _ -"
    for good in ("a", "A9", "_x", "9", "a.b-c_d"):
        app.create_output_stream(good)


def test_names_are_given_once() -> None:
    app = App("shop")
    app.create_output_stream("clicks")
    with pytest.raises(GraphError, match="app 'shop' has a stream 'clicks' already"):
        app.create_stream("clicks")


def test_only_pes_of_this_app_can_be_targets() -> None:
    app, other = App("shop"), App("other")
    foreign = other.create_pe(Count)
    with pytest.raises(GraphError, match=r"stream 's': .*Count.* is not from create_pe\(\)"):
        app.create_stream("s", Count)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="stream 's': <Count None> belongs to another app"):
        app.create_stream("s", foreign)


def test_nothing_is_declared_after_the_start() -> None:
    app = App("shop")
    app.freeze()
    for declare in (
        lambda: app.create_pe(Count),
        lambda: app.create_stream("s"),
        lambda: app.create_input_stream("s"),
        lambda: app.create_output_stream("s"),
    ):
        with pytest.raises(GraphError) as caught:
            declare()
        assert str(caught.value) == "app 'shop' has started; declare its graph in on_init"


def test_an_app_is_named_after_its_class_unless_told() -> None:
    class Shop(App):
        pass

    assert Shop().name == "Shop"
    assert Shop("mine").name == "mine"


def test_background_work_starts_with_the_app() -> None:
    async def source() -> None: ...

    with pytest.raises(GraphError, match="app 'shop' has not started; use start_soon in on_start"):
        App("shop").start_soon(source)


def test_an_adapter_needs_an_output_stream() -> None:
    adapter = AdapterApp("feed")
    with pytest.raises(GraphError, match="adapter 'feed' has no output stream"):
        adapter.on_init()
    adapter.output_stream = "clicks"
    adapter.remote_stream_key_finder = "user"
    adapter.on_init()
    assert isinstance(adapter.remote_stream, OutputStream)
    assert (adapter.remote_stream.name, adapter.remote_stream.key) == ("clicks", "user")


# --- event types of streams ----------------------------------------------------------------------


def names(stream: Stream) -> list[str]:
    return [kind.name for kind in stream.types]


def test_a_stream_carries_the_declared_types_or_those_its_pes_name_or_generic_events() -> None:
    app = App("shop")
    count, generic, timed = app.create_pe(Count), app.create_pe(Generic), app.create_pe(Timed)
    assert names(app.create_stream("a", count, generic)) == ["Click", "GenericEvent"]
    assert names(app.create_stream("b", count, types=Order)) == ["Order"]
    assert names(app.create_stream("c", count, types=(Order, Click))) == ["Order", "Click"]
    assert names(app.create_stream("d", timed)) == ["GenericEvent"]
    assert names(app.create_output_stream("e")) == []
    assert type(app.create_input_stream("f", count)) is InputStream


def test_a_stream_refuses_other_types_and_says_which_it_takes() -> None:
    app = App("shop")
    stream = app.create_stream("clicks", app.create_pe(Count))
    with pytest.raises(EventError) as caught:
        stream.put(Order("joe"))
    assert str(caught.value) == (
        "stream 'clicks' takes Click, not Order; declare it with types=(...)"
    )


def test_an_output_stream_without_types_learns_them() -> None:
    stream = App("shop").create_output_stream("out")
    for event in (Order("joe"), GenericEvent(a=1)):
        with pytest.raises(S4Error, match="outside of a handler"):
            stream.put(event)
    assert names(stream) == ["Order", "GenericEvent"]
    declared = App("shop").create_output_stream("out", types=Click)
    with pytest.raises(EventError, match="stream 'out' takes Click, not Order"):
        declared.put(Order("joe"))


def test_put_freezes_generic_events() -> None:
    app = App("shop")
    stream = app.create_stream("events", app.create_pe(Generic))
    event = GenericEvent(a=1)
    with pytest.raises(S4Error, match=r"use 'await stream\.send\(\)'"):
        stream.put(event)
    with pytest.raises(EventError, match="already sent"):
        event.put("b", 2)


def test_a_stream_that_is_used_before_the_start_says_so() -> None:
    stream = App("shop").create_output_stream("out", types=Click)
    with pytest.raises(S4Error, match="stream 'out' is used before its app has started"):
        stream.send_nowait(Click("joe"))
    with pytest.raises(S4Error, match="stream 'out' is used before its app has started"):
        stream.pressure  # noqa: B018


# --- plans ---------------------------------------------------------------------------------------


class Task:
    """One partition of an app, as far as its plans go."""

    def __init__(self, app: App, clock: Any = lambda: 0.0) -> None:
        check(app)
        app.freeze()
        self.app = app
        self.instances = {
            name: make_instances(prototype, 0, clock)
            for name, (prototype, _) in app.prototypes.items()
        }
        self.triggers = {
            name: TriggerState(prototype, clock)
            for name, (prototype, _) in app.prototypes.items()
            if prototype.triggers
        }

    def plan(self, stream: str) -> Plan:
        return compile_plan(self.app.streams[stream], self.instances, self.triggers)

    def run(self, stream: str, *events: Any) -> Any:
        plan = self.plan(stream)
        assert not plan.is_async
        return plan.run(iter(events))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (["user", "page"], ("joe", "x")),
        (["user"], "joe"),
        (lambda event: [event.user, 7], ("joe", 7)),
        (lambda event: (event.page,), "x"),
        (lambda _: 5, 5),
    ],
)
def test_composite_and_computed_keys_are_canonical(key: Any, expected: Any) -> None:
    app = App("shop")
    app.create_input_stream("clicks", app.create_pe(Count), key=key)
    task = Task(app)
    task.run("clicks", Click("joe", "x"))
    assert list(task.instances["Count"]) == [expected]


def test_several_pes_get_each_event_in_the_order_of_their_declaration() -> None:
    log: list[str] = []

    def noting(word: str) -> type[ProcessingElement]:
        return handling(lambda pe, event: log.append(f"{word} {pe.key} {event.page}"), Click)

    app = App("shop")
    second = app.create_pe(noting("second"))
    second.set_singleton()
    app.create_input_stream("clicks", app.create_pe(noting("first")), second, key="user")
    Task(app).run("clicks", Click("a", "1"), Click("b", "2"))
    assert log == ["first a 1", "second None 1", "first b 2", "second None 2"]


def test_handlers_are_chosen_by_type_where_a_stream_carries_several() -> None:
    log: list[Any] = []

    mixed = pe_class(
        on_event_click=handler_of(Click, lambda _pe, event: log.append(("click", event.user))),
        on_event_generic=handler_of(
            GenericEvent, lambda _pe, event: log.append(("generic", event.user))
        ),
    )
    app = App("shop")
    app.create_input_stream("mixed", app.create_pe(mixed), key="user")
    Task(app).run("mixed", Click("a"), GenericEvent(user="b"), Click("c"))
    assert log == [("click", "a"), ("generic", "b"), ("click", "c")]


def test_a_plan_of_one_handler_has_no_choice_left_in_it() -> None:
    app = App("shop")
    app.create_input_stream("clicks", app.create_pe(Count), key="user")
    assert Task(app).plan("clicks").source == (
        "def run(it):\n    for e in it:\n        k = e.user\n        r = _h0(_i0[k], e)\n"
        "        if r is not None: _returned(None, r)"
    )


def test_a_value_that_only_equals_a_key_is_refused_before_and_after_it_was_seen() -> None:
    """True == 1 == 1.0: they would silently share one instance."""
    app = App("shop")
    app.create_input_stream("events", app.create_pe(Generic), key="n")
    task = Task(app)
    for bad in (True, 1.0):
        with pytest.raises(KeyFinderError):
            task.run("events", GenericEvent(n=bad))
    task.run("events", GenericEvent(n=1))
    for bad in (True, 1.0):
        with pytest.raises(KeyFinderError):
            task.run("events", GenericEvent(n=bad))
    found: Any = task.instances["Generic"]
    assert [event.n for event in found[1].seen] == [1]


def test_a_key_field_of_texts_numbers_or_bytes_is_read_without_a_check() -> None:
    app = App("shop")
    plain = app.create_input_stream("plain", app.create_pe(Count), key=["user", "page"])
    loose = app.create_input_stream("loose", app.create_pe(Count), key=["user", "weight"])
    assert rule_of(plain).bindings == {}  # type: ignore[union-attr]
    assert rule_of(loose).bindings != {}  # type: ignore[union-attr]


async def test_async_handlers_are_awaited_one_after_the_other() -> None:
    log: list[str] = []

    class Waiting(ProcessingElement):
        async def on_create(self) -> None:
            log.append(f"create {self.key}")

        async def on_event(self, event: Click) -> None:
            log.append(f"event {self.key} {event.page}")

    plain = handling(lambda _pe, event: log.append(f"plain {event.page}"), Click)
    app = App("shop")
    app.create_input_stream("clicks", app.create_pe(Waiting), app.create_pe(plain), key="user")
    plan = Task(app).plan("clicks")
    assert plan.is_async
    await plan.run(iter([Click("a", "1"), Click("a", "2")]))
    assert log == ["create a", "event a 1", "plain 1", "event a 2", "plain 2"]


# --- failures ------------------------------------------------------------------------------------


def failure(task: Task, stream: str, *events: Any) -> tuple[Exception, int]:
    it = iter(list(events))
    try:
        task.plan(stream).run(it)
    except Exception as error:
        return error, failed_at(it, len(events))
    raise AssertionError("nothing was raised")


class Tricky(Event):
    page: str = ""

    @property
    def user(self) -> str:
        return helper(self)


class Fragile(ProcessingElement):
    def on_event(self, event: Click | GenericEvent | Tricky) -> None:
        if getattr(event, "page", "") == "bad":
            helper(event)
        if getattr(event, "page", "") == "key":
            raise KeyFinderError("not from a KeyFinder at all")

    def on_create(self) -> None:
        if self.key == "uncreatable":
            raise ValueError("no")


def helper(event: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("event", "key_failed", "key"),
    [
        (Click("joe", "bad"), False, "joe"),
        (Click("joe", "key"), False, "joe"),
        (Click("uncreatable"), False, "uncreatable"),
        (Click(None), True, None),  # type: ignore[arg-type]
        (Click(["a", []]), True, None),  # type: ignore[arg-type]
        (Click({}), True, None),  # type: ignore[arg-type]
        (Click(1.5), True, None),  # type: ignore[arg-type]
        (GenericEvent(name="x"), True, None),
        (Tricky(), True, None),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("spec", ["user", lambda event: event.user])
def test_a_failure_is_blamed_on_the_key_or_on_the_instance_and_its_event_is_found(
    event: Any, key_failed: bool, key: Any, spec: Any, cached: bool
) -> None:
    app = App("shop")
    pe = app.create_pe(Fragile)
    if cached:
        pe.set_pe_cache(10, idle_seconds=5)
    app.create_input_stream("clicks", pe, key=spec)
    task = Task(app)
    error, index = failure(task, "clicks", Click("a"), Click("b"), event, Click("c"))
    assert index == 2
    assert is_key_failure(error) == key_failed
    blamed = blame(error)
    if key_failed:
        assert blamed is None
    else:
        assert isinstance(blamed, Fragile)
        assert blamed.key == key


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_after_a_failure_the_same_iterator_goes_on_after_the_one_that_failed(
    bad: list[bool],
) -> None:
    app = App("shop")
    app.create_input_stream(
        "clicks", app.create_pe(Count), key=lambda e: None if e.page else e.user
    )
    task = Task(app)
    events = [Click("a", "no key" if each else "") for each in bad]
    plan = task.plan("clicks")
    it, found = iter(events), []
    while True:
        try:
            plan.run(it)
            break
        except KeyFinderError:
            found.append(failed_at(it, len(events)))
    assert found == [index for index, each in enumerate(bad) if each]
    instances: Any = task.instances["Count"]
    seen = instances["a"].seen if "a" in instances else []
    assert len(seen) == bad.count(False)


# --- triggers ------------------------------------------------------------------------------------


class Triggered(ProcessingElement):
    fired: list[str] = []  # noqa: RUF012

    def on_event(self, event: Click | Order) -> None: ...

    def on_trigger(self, event: Event) -> None:
        self.fired.append(getattr(event, "page", "order"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def triggered(*triggers: tuple[type, int, float]) -> tuple[Task, Clock]:
    app = App("shop")
    pe = app.create_pe(Triggered)
    for event_type, events, seconds in triggers:
        pe.set_trigger(event_type, events=events, seconds=seconds)
    app.create_input_stream("clicks", pe, key="user")
    clock = Clock()
    return Task(app, clock), clock


def clicks(user: str, *pages: int) -> list[Click]:
    return [Click(user, str(page)) for page in pages]


def fired(task: Task, user: str) -> list[str]:
    instances: Any = task.instances["Triggered"]
    return list(instances[user].fired)


def test_a_count_trigger_fires_with_every_nth_event_of_a_key() -> None:
    task, _ = triggered((Click, 3, 0))
    task.run("clicks", *clicks("a", *range(1, 8)), *clicks("b", 1, 2))
    task.run("clicks", *clicks("b", 3), *clicks("a", 8, 9))
    assert fired(task, "a") == ["3", "6", "9"]
    assert fired(task, "b") == ["3"]


def test_a_time_trigger_fires_with_the_first_event_so_long_after_the_last_firing() -> None:
    task, clock = triggered((Click, 0, 10.0))
    for page, wait in [(1, 0.0), (2, 9.9), (3, 0.1), (4, 5.0), (5, 5.0), (6, 100.0)]:
        clock.now += wait
        task.run("clicks", *clicks("a", page))
    assert fired(task, "a") == ["3", "5", "6"]


def test_until_a_trigger_has_fired_its_time_counts_from_the_first_event_of_its_type() -> None:
    task, clock = triggered((Click, 0, 10.0))
    task.run("clicks", Order("a"))  # makes the instance
    clock.now += 60
    task.run("clicks", *clicks("a", 1))
    clock.now += 9.9
    task.run("clicks", *clicks("a", 2))
    assert fired(task, "a") == []
    clock.now += 0.1
    task.run("clicks", *clicks("a", 3))
    assert fired(task, "a") == ["3"]


def test_a_trigger_by_count_and_time_fires_at_the_first_and_starts_both_anew() -> None:
    task, clock = triggered((Click, 3, 10.0))
    task.run("clicks", *clicks("a", 1, 2))
    clock.now += 10
    task.run("clicks", *clicks("a", 3, 4, 5, 6))
    assert fired(task, "a") == ["3", "6"]


def test_a_trigger_counts_the_events_of_its_type_and_its_subclasses_only() -> None:
    task, _ = triggered((Order, 2, 0))
    task.run("clicks", Click("a", "1"), Order("a"), Click("a", "2"), Order("a"), Click("a", "3"))
    assert fired(task, "a") == ["order"]
    task, _ = triggered((Event, 2, 0))
    task.run("clicks", Click("a", "1"), Order("a"), Order("a"), Click("a", "2"))
    assert fired(task, "a") == ["order", "2"]


def test_several_triggers_count_by_themselves_and_an_event_fires_once() -> None:
    task, _ = triggered((Click, 2, 0), (Click, 3, 0))
    task.run("clicks", *clicks("a", *range(1, 13)))
    assert fired(task, "a") == ["2", "3", "4", "6", "8", "9", "10", "12"]


def test_a_key_that_was_forgotten_starts_anew() -> None:
    task, _ = triggered((Click, 3, 0))
    task.run("clicks", *clicks("a", 1, 2))
    task.triggers["Triggered"].remove("a")
    task.run("clicks", *clicks("a", 3, 4, 5))
    assert fired(task, "a") == ["5"]


# -- set-up ---------------------------------------------------------------------------------------


class Purchase(Event):
    event_name = "Order"
    user: str


def note(pe: Any, event: Any) -> None:
    pe.seen.append(event)


Count = pe_class("Count", seen=[], on_event=handler_of(Click, note))
Generic = pe_class("Generic", seen=[], on_event=handler_of(GenericEvent, note))
Timed = pe_class("Timed", on_time=lambda self: None)
Idle = pe_class("Idle")


def problems(app: App) -> list[str]:
    with pytest.raises(GraphError) as caught:
        check(app)
    first, *lines = str(caught.value).split("\n")
    assert first == f"app {app.name!r} cannot run:"
    assert all(line.startswith("  - ") for line in lines)
    return [line.removeprefix("  - ") for line in lines]
