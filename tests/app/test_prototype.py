"""The promises of prototypes: configured once, and each instance with state of its own."""

from __future__ import annotations

import inspect
import math
import threading
from collections import deque
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from shared_apps import handler_of, pe_class

from s4node.app.app import App
from s4node.app.plan.dispatch import make_instances
from s4node.app.processing_element import ElementType, ProcessingElement
from s4node.app.prototype import Trigger
from s4node.errors import GraphError
from s4node.events.event import Event, GenericEvent


class Animal(Event):
    name: str = ""


class Dog(Animal):
    pass


# --- configuring a prototype ---------------------------------------------------------------------


Bare = pe_class("Bare", on_event=handler_of(Animal))
Full = pe_class(
    "Full", on_event=handler_of(Animal), on_trigger=handler_of(Animal), on_time=lambda self: None
)


def configure(pe: ProcessingElement, method: str, *arguments: Any, **named: Any) -> None:
    getattr(pe, method)(*arguments, **named)


def test_a_prototype_keeps_what_is_configured() -> None:
    app = App("zoo")
    pe = app.create_pe(Full)
    pe.set_trigger(Dog, events=3)
    pe.set_trigger(Animal, seconds=1.5)
    pe.set_timer_interval(0.5)
    pe.set_singleton()
    pe.set_pe_cache(10, 60)
    prototype, element = app.prototypes["Full"]
    assert element is pe
    assert prototype.triggers == [Trigger(Dog, 3, 0), Trigger(Animal, 0, 1.5)]
    assert prototype.timer_interval == 0.5
    assert (prototype.cache_size, prototype.cache_idle) == (10, 60)
    assert prototype.singleton
    pe.set_timer_interval(0)
    pe.set_singleton(False)
    assert prototype.timer_interval == 0
    assert not prototype.singleton


@pytest.mark.parametrize(
    ("cls", "method", "arguments", "message"),
    [
        (Full, "set_trigger", {"event_type": Dog},
         "Full: a trigger needs events > 0 or seconds > 0"),
        (Full, "set_trigger", {"event_type": Dog, "events": -1},
         "Full: set_trigger(events=-1); give a whole number that is 0 or more"),
        (Full, "set_trigger", {"event_type": Dog, "events": 1.5},
         "Full: set_trigger(events=1.5); give a whole number that is 0 or more"),
        (Full, "set_trigger", {"event_type": Dog, "events": "3"},
         "Full: set_trigger(events='3'); give a whole number that is 0 or more"),
        (Full, "set_trigger", {"event_type": Dog, "events": True},
         "Full: set_trigger(events=True); give a whole number that is 0 or more"),
        (Full, "set_trigger", {"event_type": Dog, "seconds": "3"},
         "Full: set_trigger(seconds='3'); give a number that is 0 or more"),
        (Full, "set_trigger", {"event_type": Dog, "seconds": math.nan},
         "Full: set_trigger(seconds=nan); give a number that is 0 or more"),
        (Full, "set_trigger", {"event_type": Dog, "events": 1, "seconds": -1},
         "Full: set_trigger(seconds=-1); give a number that is 0 or more"),
        (Full, "set_trigger", {"event_type": "Dog", "events": 1},
         "Full: a trigger is for an event type, not 'Dog'"),
        (Bare, "set_trigger", {"event_type": Dog, "events": 1},
         "Bare: a trigger is set but there is no on_trigger method"),
        (Full, "set_timer_interval", {"seconds": -1},
         "Full: set_timer_interval(seconds=-1); give a number that is 0 or more"),
        (Full, "set_timer_interval", {"seconds": "1"},
         "Full: set_timer_interval(seconds='1'); give a number that is 0 or more"),
        (Full, "set_timer_interval", {"seconds": math.inf},
         "Full: set_timer_interval(seconds=inf); give a number that is 0 or more"),
        (Full, "set_singleton", {"singleton": "no"},
         "Full: set_singleton takes True or False, not 'no'"),
        (Bare, "set_timer_interval", {"seconds": 1},
         "Bare: a timer is set but there is no on_time method"),
        (Full, "set_pe_cache", {}, "Full: a PE cache needs max_size > 0 or idle_seconds > 0"),
        (Full, "set_pe_cache", {"max_size": -1},
         "Full: set_pe_cache(max_size=-1); give a whole number that is 0 or more"),
        (Full, "set_pe_cache", {"max_size": 1.5},
         "Full: set_pe_cache(max_size=1.5); give a whole number that is 0 or more"),
        (Full, "set_pe_cache", {"max_size": 5, "idle_seconds": -1},
         "Full: set_pe_cache(idle_seconds=-1); give a number that is 0 or more"),
        (Full, "set_pe_cache", {"idle_seconds": None},
         "Full: set_pe_cache(idle_seconds=None); give a number that is 0 or more"),
    ],
)  # fmt: skip
def test_a_configuration_that_makes_no_sense_is_reported(
    cls: type[ProcessingElement], method: str, arguments: dict[str, Any], message: str
) -> None:
    pe = App("zoo").create_pe(cls)
    with pytest.raises(GraphError) as caught:
        configure(pe, method, **arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("set_trigger", {"event_type": Dog, "events": 1}),
        ("set_timer_interval", {"seconds": 1}),
        ("set_singleton", {}),
        ("set_pe_cache", {"max_size": 1}),
    ],
)
def test_nothing_is_configured_after_the_start(method: str, arguments: dict[str, Any]) -> None:
    app = App("zoo")
    pe = app.create_pe(Full)
    app.freeze()
    with pytest.raises(GraphError) as caught:
        configure(pe, method, **arguments)
    assert str(caught.value) == ("Full is configured after the app has started; do it in on_init")


@pytest.mark.parametrize(
    ("cls", "is_async"), [(Full, False), (type("A", (ProcessingElement,), {}), False)]
)
def test_plain_handlers_make_a_plain_pe(cls: type[ProcessingElement], is_async: bool) -> None:
    app = App("zoo")
    app.create_pe(cls)
    (prototype, _) = next(iter(app.prototypes.values()))
    assert prototype.is_async is is_async


@pytest.mark.parametrize("method", ["on_event", "on_trigger", "on_create", "on_remove"])
def test_one_async_method_that_runs_for_events_makes_an_async_pe(method: str) -> None:
    if method in ("on_event", "on_trigger"):

        async def function(self: Any, event: Any) -> None: ...

    else:

        async def function(self: Any) -> None: ...  # type: ignore[misc]

    cls: Any = ElementType("Waiting", (ProcessingElement,), {method: function})
    app = App("zoo")
    app.create_pe(cls)
    assert app.prototypes["Waiting"][0].is_async


def test_event_types_are_the_concrete_ones_that_handlers_name() -> None:
    app = App("zoo")
    app.create_pe(
        pe_class(
            "Mixed",
            on_event=handler_of(Any),
            on_event_all=handler_of(Event),
            on_event_some=handler_of(Dog | GenericEvent),
        )
    )
    assert set(app.prototypes["Mixed"][0].event_types()) == {Dog, GenericEvent}


# --- instances -----------------------------------------------------------------------------------


def started(cls: type[ProcessingElement], *arguments: Any, **named: Any) -> tuple[Any, Any]:
    """The prototype object and the instances of a PE whose app has started."""
    app = App("zoo")
    pe = app.create_pe(cls, *arguments, **named)
    app.freeze()
    return pe, make_instances(app.prototypes[cls.__name__][0], 3, lambda: 0.0)


class Counting(ProcessingElement):
    count: int = 0
    names: list[str] = []  # noqa: RUF012
    table: dict[str, list[int]] = {"a": [1]}  # noqa: RUF012
    pair: tuple[int, int] = (1, 2)
    seen: ClassVar[list[str]] = []

    def on_event(self, event: Dog) -> None:
        self.count += 1
        self.names.append(event.name)
        self.table["a"].append(self.count)


def test_each_instance_has_a_copy_of_each_mutable_default() -> None:
    _, instances = started(Counting)
    one, other = instances["a"], instances["b"]
    one.on_event(Dog("rex"))
    one.on_event(Dog("fido"))
    assert (one.count, one.names, one.table) == (2, ["rex", "fido"], {"a": [1, 1, 2]})
    assert (other.count, other.names, other.table) == (0, [], {"a": [1]})
    assert instances["c"].names == []
    assert one.pair is other.pair
    assert one.seen is other.seen is Counting.seen


class Remembering:
    seen: dict[str, int] = {}  # noqa: RUF012


def test_a_container_that_all_keys_would_share_is_refused_when_the_pe_is_created() -> None:
    class Plain(ProcessingElement):
        seen = {}  # noqa: RUF012

    class Mixed(Remembering, ProcessingElement): ...

    class Unfinished(ProcessingElement):
        seen: list[int]

    class Finished(Unfinished):
        seen = deque([1])  # type: ignore[assignment]  # noqa: RUF012

    fix = (
        "annotate it in {0}: 'seen: {1} = ...' for a copy for each key, "
        "'seen: ClassVar[{1}]' for one that all keys share"
    )
    for cls, kind, origin in (
        (Plain, "dict", ""),
        (Mixed, "dict", " of its base Remembering"),
        (Finished, "deque", ""),
    ):
        with pytest.raises(GraphError) as caught:
            App("zoo").create_pe(cls)
        assert str(caught.value) == (
            f"PE class {cls.__name__}: all keys would share 'seen', a {kind}{origin}; "
            + fix.format(cls.__name__, kind)
        )


def test_a_container_that_the_constructor_makes_for_all_keys_is_refused() -> None:
    class Made(ProcessingElement):
        given: ClassVar[list[str]]
        names: list[str] = []  # noqa: RUF012

        def __init__(self, name: str) -> None:
            self.given = [name]  # type: ignore[misc]
            self.names = [name]
            self.sizes = (1, 2)

    class Forgetful(Made):
        def __init__(self) -> None:
            super().__init__("x")
            self.seen: dict[str, int] = {}

    _, made = started(Made, "rex")
    assert made["a"].given is made["b"].given
    assert (made["a"].names, made["a"].names is made["b"].names) == (["rex"], False)
    with pytest.raises(GraphError) as caught:
        App("zoo").create_pe(Forgetful)
    assert str(caught.value) == (
        "PE class Forgetful: all keys would share 'seen', a dict, for __init__ runs once, on the "
        "prototype; annotate it in Forgetful: 'seen: dict = ...' for a copy for each key, "
        "'seen: ClassVar[dict]' for one that all keys share"
    )


def test_a_tuple_is_as_fixed_as_what_is_in_it() -> None:
    class Nested(ProcessingElement):
        pair: tuple[list[int], int] = ([], 1)

    class Plain(ProcessingElement):
        pair = ([], 1)

    class Fixed(ProcessingElement):
        pair = ((), 1)
        table = MappingProxyType({"a": 1})

    _, nested = started(Nested)
    assert nested["a"].pair[0] is not nested["b"].pair[0]
    with pytest.raises(GraphError, match="all keys would share 'pair', a tuple;"):
        App("zoo").create_pe(Plain)
    _, fixed = started(Fixed)
    assert fixed["a"].table is fixed["b"].table


def test_declared_and_immutable_values_are_shared_by_all_keys() -> None:
    class Own(Remembering, ProcessingElement):
        seen: dict[str, int] = {}  # noqa: RUF012
        sizes = (1, 2)
        lock = threading.Lock()

    class Said(Remembering, ProcessingElement):
        seen: ClassVar[dict[str, int]]

    class Child(Counting):
        seen = ["all"]  # noqa: RUF012

    _, own = started(Own)
    assert own["a"].seen is not own["b"].seen
    assert own["a"].lock is own["b"].lock
    _, said = started(Said)
    assert said["a"].seen is said["b"].seen is Remembering.seen
    _, child = started(Child)
    assert child["a"].seen is child["b"].seen is Child.seen


def test_a_default_that_cannot_be_copied_for_each_key_is_refused_by_name() -> None:
    class Locked(ProcessingElement):
        lock: Any = threading.Lock()

    class Open(ProcessingElement):
        lock: Any = None

    message = (
        "the default of 'lock' cannot be copied for each key (TypeError: cannot pickle "
        "'_thread.lock' object); make the default None and set it in on_create, or annotate it as "
        "ClassVar for one that all keys share"
    )
    app = App("zoo")
    with pytest.raises(GraphError) as caught:
        app.create_pe(Locked)
    assert str(caught.value) == f"Locked: {message}"
    app.create_pe(Open).lock = threading.Lock()
    with pytest.raises(GraphError) as caught:
        app.freeze()
    assert str(caught.value) == f"Open: {message}"


def test_a_stream_in_a_default_is_the_stream_in_each_instance() -> None:
    class Sending(ProcessingElement):
        out: Any = None
        outs: list[Any] = []  # noqa: RUF012

    app = App("zoo")
    stream = app.create_stream("dogs", types=Dog)
    pe = app.create_pe(Sending)
    pe.out, pe.outs = stream, [stream]
    app.freeze()
    instance: Any = make_instances(app.prototypes["Sending"][0], 0, lambda: 0.0)["a"]
    assert instance.out is stream
    assert instance.outs == [stream]
    assert instance.outs is not pe.outs


def test_an_instance_knows_its_key_its_partition_and_its_app() -> None:
    pe, instances = started(Counting)
    instance = instances["a", 1]
    assert instance.key == ("a", 1)
    assert instance.partition == 3
    assert instance.app is pe.app
    assert isinstance(instance, Counting)
    assert type(instance).__name__ == "Counting"
    assert repr(instance) == "<Counting ('a', 1)>"
    assert pe.key is None
    assert instances["a", 1] is instance


def test_an_undeclared_attribute_cannot_be_set() -> None:
    _, instances = started(Counting)
    with pytest.raises(AttributeError):
        instances["a"].misspelt = 5


def test_the_constructor_runs_once_and_on_create_for_each_instance() -> None:
    log: list[Any] = []

    class Logged(ProcessingElement):
        made: int = 0

        def __init__(self, name: str, *, size: int) -> None:
            log.append(("init", name, size))
            self.name = name
            self.size = size

        def on_event(self, event: Dog) -> None: ...

        def on_create(self) -> None:
            self.made += 1
            log.append(("create", self.key, self.name, self.size, self.made))

    _, instances = started(Logged, "x", size=7)
    for key in ("a", "b", "a"):
        instances[key].on_event(Dog())
    assert log == [("init", "x", 7), ("create", "a", "x", 7, 1), ("create", "b", "x", 7, 1)]


def test_attributes_of_the_prototype_hold_for_all_instances() -> None:
    app = App("zoo")
    pe = app.create_pe(Counting)
    pe.count = 10
    pe.names.append("from the prototype")
    pe.limit = [5]  # type: ignore[attr-defined]
    pe.score = lambda number: number + 1  # type: ignore[attr-defined]
    app.freeze()
    instances: Any = make_instances(app.prototypes["Counting"][0], 0, lambda: 0.0)
    one, other = instances["a"], instances["b"]
    one.on_event(Dog("rex"))
    assert (one.count, other.count) == (11, 10)
    assert (one.names, other.names) == (["from the prototype", "rex"], ["from the prototype"])
    assert one.limit is other.limit is pe.limit  # type: ignore[attr-defined]
    assert one.score(4) == 5  # a function that is set is no method
    assert Counting._state["names"] == []


def test_two_prototypes_of_one_class_share_nothing() -> None:
    app = App("zoo")
    one, other = app.create_pe(Counting), app.create_pe(Counting)
    one.count = 5
    one.names.append("one")
    app.freeze()
    first: Any = make_instances(app.prototypes["Counting"][0], 0, lambda: 0.0)
    second: Any = make_instances(app.prototypes["Counting#2"][0], 0, lambda: 0.0)
    assert (first["a"].count, first["a"].names) == (5, ["one"])
    assert (second["a"].count, second["a"].names) == (0, [])
    assert other.names == []


def test_a_subclass_adds_state_and_changes_defaults_with_or_without_annotation() -> None:
    class Parent(ProcessingElement):
        count: int = 0
        names: list[str] = []  # noqa: RUF012
        mode: str = "slow"

    class Child(Parent):
        extra: dict[str, int] = {}  # noqa: RUF012
        names: list[str] = ["child"]  # noqa: RUF012
        mode = "fast"

        def on_event(self, event: Dog) -> None:
            self.names.append("new")
            self.extra["a"] = 1

    _, instances = started(Child)
    instance = instances["a"]
    instance.on_event(Dog())
    assert (instance.count, instance.mode, instance.names, instance.extra) == (
        0,
        "fast",
        ["child", "new"],
        {"a": 1},
    )
    assert (instances["b"].names, instances["b"].extra) == (["child"], {})
    _, parents = started(Parent)
    assert (parents["a"].names, parents["a"].mode) == ([], "slow")


def test_help_says_what_the_key_of_an_instance_is_and_what_slots_of_one_s_own_are() -> None:
    class Count(ProcessingElement):
        __slots__ = {"connection": "To the database."}
        clicks: int = 0

    assert str(inspect.getdoc(Count.key)).startswith("The instance's key: ")
    assert inspect.getdoc(Count.__dict__["connection"]) == "To the database."
    assert list(Count.__slots__) == ["connection", "clicks"]


def test_two_bases_with_state_are_refused_by_name() -> None:
    left, right = pe_class("Left", left=0), pe_class("Right", right=0)
    with pytest.raises(GraphError) as caught:
        type("Both", (left, right), {})

    assert str(caught.value) == (
        "PE class Both: two of its bases Left, Right have state; let one derive from the other, "
        "or keep the state in one"
    )


@pytest.mark.parametrize("name", ["key", "app", "partition", "_state"])
def test_state_cannot_have_the_name_of_an_attribute_of_every_pe(name: str) -> None:
    body = {"__annotations__": {name: "str"}, name: ""}
    with pytest.raises(GraphError) as caught:
        ElementType("Confused", (ProcessingElement,), body)
    assert str(caught.value) == f"PE class Confused: {name!r} is taken; give it another name"


def test_an_instance_before_the_start_is_a_mistake() -> None:
    app = App("zoo")
    app.create_pe(Counting)
    with pytest.raises(GraphError, match="a PE instance before its app has started"):
        make_instances(app.prototypes["Counting"][0], 0, lambda: 0.0)["a"]
