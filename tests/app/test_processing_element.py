"""The promises of PE classes: the nearest handler is chosen, and mistakes are told at once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_apps import handler_of, pe_class

from s4node.app.app import App
from s4node.app.handlers import HandlerTable
from s4node.app.processing_element import ElementType, ProcessingElement
from s4node.errors import GraphError
from s4node.events.event import Event, GenericEvent

if TYPE_CHECKING:
    from decimal import Decimal


class Animal(Event):
    name: str = ""


class Dog(Animal):
    pass


class Puppy(Dog):
    pass


class Cat(Animal):
    pass


class Flying(Event):
    pass


class Bat(Animal, Flying):
    pass


class Special(GenericEvent):
    pass


T = TypeVar("T")


class Cage(Event, Generic[T]):
    inside: T


class CageOfInt(Cage[int]):
    pass


def table_of(cls: type[ProcessingElement], word: str = "on_event") -> HandlerTable:
    app = App("zoo")
    app.create_pe(cls)
    prototype, _ = app.prototypes[cls.__name__]
    table = getattr(prototype, word)
    assert isinstance(table, HandlerTable)
    return table


def chosen(cls: type[ProcessingElement], event_cls: type) -> str:
    handler = table_of(cls).find(event_cls)
    return "" if handler is None else handler.__name__


# --- choosing ------------------------------------------------------------------------------------


ByType = pe_class(
    "ByType",
    on_event=handler_of(Animal),
    on_event_dog=handler_of(Dog),
    on_event_generic=handler_of(GenericEvent),
)
Anything = pe_class("Anything", on_event=lambda self, event: None, on_event_cat=handler_of(Cat))
AnyTyped = pe_class("AnyTyped", on_event=handler_of(Any))
AnyObject = pe_class("AnyObject", on_event=handler_of(object))
Unions = pe_class(
    "Unions",
    on_event_modern=handler_of(Dog | Flying),
    on_event_old=handler_of(Union[Cat, GenericEvent]),  # noqa: UP007
)
BothSides = pe_class(
    "BothSides", on_event_animal=handler_of(Animal), on_event_flying=handler_of(Flying)
)


@pytest.mark.parametrize(
    ("pe", "event", "handler"),
    [
        (ByType, Animal, "on_event"),
        (ByType, Dog, "on_event_dog"),
        (ByType, Puppy, "on_event_dog"),
        (ByType, Cat, "on_event"),
        (ByType, Bat, "on_event"),
        (ByType, Flying, ""),
        (ByType, GenericEvent, "on_event_generic"),
        (ByType, Special, "on_event_generic"),
        (Anything, Cat, "on_event_cat"),
        (Anything, Dog, "on_event"),
        (Anything, GenericEvent, "on_event"),
        (AnyTyped, Bat, "on_event"),
        (AnyObject, Bat, "on_event"),
        (Unions, Puppy, "on_event_modern"),
        (Unions, Bat, "on_event_modern"),
        (Unions, Cat, "on_event_old"),
        (Unions, Special, "on_event_old"),
        (Unions, Animal, ""),
        (BothSides, Bat, "on_event_animal"),  # Bat(Animal, Flying): the first base comes first
    ],
)
def test_the_handler_of_the_nearest_class_is_chosen(
    pe: type[ProcessingElement], event: type, handler: str
) -> None:
    assert chosen(pe, event) == handler


def test_the_order_of_the_methods_does_not_matter() -> None:
    puppy, animal, dog = (functools.partial(handler_of, cls) for cls in (Puppy, Animal, Dog))
    last = pe_class("CatsLast", on_event_a=puppy(), on_event_b=animal(), on_event_c=dog())
    first = pe_class("CatsFirst", on_event_b=puppy(), on_event_c=animal(), on_event_a=dog())
    for cls, of_dog, of_puppy in (
        (last, "on_event_c", "on_event_a"),
        (first, "on_event_a", "on_event_b"),
    ):
        assert (chosen(cls, Dog), chosen(cls, Puppy)) == (of_dog, of_puppy)


def handler_for(event_cls: type, number: int) -> Any:
    def handler(self: Any, event: Any) -> int:
        return number

    handler.__annotations__ = {"event": event_cls}
    handler.__name__ = f"on_event_{number}"
    return handler


@st.composite
def hierarchies(draw: Any) -> list[type]:
    """Event classes, each deriving from up to three of those before it, diamonds included."""
    classes: list[type] = [Event]
    for number in range(draw(st.integers(1, 10))):
        bases = draw(st.lists(st.sampled_from(classes), min_size=1, max_size=3, unique=True))
        for attempt in (bases, bases[::-1], bases[:1]):
            try:
                made: Any = type(Event)(f"E{number}", tuple(attempt), {})
            except TypeError:  # no method resolution order
                continue
            classes.append(made)
            break
    return classes


@given(hierarchies(), st.data())
def test_in_any_hierarchy_the_nearest_in_the_resolution_order_wins(
    classes: list[type], data: st.DataObject
) -> None:
    declared = data.draw(st.lists(st.sampled_from(classes), min_size=1, unique=True))
    methods = {f"on_event_{n}": handler_for(cls, n) for n, cls in enumerate(declared)}
    pe: Any = ElementType("Anything", (ProcessingElement,), methods)
    table = table_of(pe)
    for cls in classes:
        fitting = [n for n, kind in enumerate(declared) if issubclass(cls, kind)]
        if fitting:
            nearest = min(fitting, key=lambda n: cls.__mro__.index(declared[n]))
            assert table[cls](None, None) == nearest
        else:
            assert table.find(cls) is None


# --- overriding ----------------------------------------------------------------------------------


class Base(ProcessingElement):
    def on_event(self, event: Animal) -> str:
        return "base animal"

    def on_event_dog(self, event: Dog) -> str:
        return "base dog"


class SameName(Base):
    def on_event_dog(self, event: Dog) -> str:
        return "own dog"


class OtherName(Base):
    def on_event_hound(self, event: Dog) -> str:
        return "own dog"


class OtherType(Base):
    def on_event_dog(self, event: Cat) -> str:
        return "own cat"


class Mixin:
    def on_event_cat(self, event: Cat) -> str:
        return "mixed-in cat"


class WithMixin(Mixin, Base):
    pass


@pytest.mark.parametrize(
    ("pe", "event", "said"),
    [
        (Base, Puppy, "base dog"),
        (SameName, Puppy, "own dog"),
        (SameName, Cat, "base animal"),
        (OtherName, Puppy, "own dog"),
        (OtherName, Cat, "base animal"),
        (OtherType, Cat, "own cat"),
        (OtherType, Dog, "base animal"),  # the method of that name is no longer for dogs
        (WithMixin, Cat, "mixed-in cat"),
        (WithMixin, Dog, "base dog"),
    ],
)
def test_a_subclass_overrides_by_name_and_by_type(
    pe: type[ProcessingElement], event: type, said: str
) -> None:
    assert table_of(pe)[event](None, event()) == said


def test_triggers_have_handlers_by_type_too() -> None:
    pe = pe_class(
        "Triggered",
        on_trigger=handler_of(Animal, lambda _pe, _event: "animal"),
        on_trigger_dog=handler_of(Dog, lambda _pe, _event: "dog"),
    )
    table = table_of(pe, "on_trigger")
    assert [table[cls](None, cls()) for cls in (Cat, Dog, Puppy)] == ["animal", "dog", "dog"]


def test_a_wrapped_handler_is_known_by_what_it_wraps() -> None:
    def noisy(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(self: Any, event: Any) -> Any:
            return "noisy " + function(self, event)

        return wrapper

    class Wrapped(ProcessingElement):
        @noisy
        def on_event(self, event: Dog) -> str:
            return "dog"

    table = table_of(Wrapped)
    assert table[Puppy](None, Puppy()) == "noisy dog"
    assert table.find(Cat) is None


# --- annotations as text -------------------------------------------------------------------------


def test_annotations_may_be_text_and_name_local_classes_that_the_method_uses() -> None:
    class Local(Event):
        pass

    class Textual(ProcessingElement):
        def on_event(self, event: "Dog") -> "None": ...  # noqa: UP037
        def on_event_local(self, event: Local) -> Local:
            return Local()

        def on_event_old(self, event: Union["Cat", "GenericEvent"]) -> None: ...  # noqa: UP007, UP037

    table = table_of(Textual)
    assert set(table.declared) == {Dog, Local, Cat, GenericEvent}


def test_other_annotations_of_a_handler_may_be_for_type_checkers_only() -> None:
    class Priced(ProcessingElement):
        def on_event(self, event: Dog) -> Decimal | None: ...

    assert set(table_of(Priced).declared) == {Dog}


# --- what is reported when the PE is made --------------------------------------------------------


class NoSuchAttribute(ProcessingElement):
    def on_event(self, event: functools.Nowhere) -> None: ...  # type: ignore[name-defined]


WRITE_CAGE = (
    f"an event is a Cage whatever it holds: write Cage, or a class of your own: "
    f"class Mine({Cage[int]!r})"
)
UNRESOLVED = (
    "{}.on_event: the annotation {!r} cannot be resolved ({}); define the event type at the top of "
    "the module"
)


@pytest.mark.parametrize(
    ("pe", "message"),
    [
        (
            pe_class("TwoForOne", on_event_a=handler_of(Dog), on_event_b=handler_of(Dog | Cat)),
            "TwoForOne.on_event_a and TwoForOne.on_event_b both take Dog; keep one",
        ),
        (
            pe_class("TwoForAll", on_event=lambda self, event: None, on_event_too=handler_of(Any)),
            "TwoForAll.on_event and TwoForAll.on_event_too both take object; keep one",
        ),
        (
            pe_class("NoSuchType", on_event=handler_of("Nowhere")),
            UNRESOLVED.format("NoSuchType", "Nowhere", "name 'Nowhere' is not defined"),
        ),
        (
            NoSuchAttribute,
            UNRESOLVED.format(
                "NoSuchAttribute",
                "functools.Nowhere",
                "module 'functools' has no attribute 'Nowhere'",
            ),
        ),
        (
            pe_class("NoParameter", on_event=lambda self: None),
            "NoParameter.on_event takes 1 parameters; write (self, event: Type)",
        ),
        (
            pe_class("ManyParameters", on_event=lambda self, event, more: None),
            "ManyParameters.on_event takes 3 parameters; write (self, event: Type)",
        ),
        (
            pe_class("ByName", on_event=lambda self, *, event: None),
            "ByName.on_event takes its event by name only; write (self, event: Type)",
        ),
        (
            pe_class("Number", on_event=handler_of(int)),
            "Number.on_event takes <class 'int'>, which is not an event type",
        ),
        (
            pe_class("Listed", on_event=handler_of(list[Dog])),
            f"Listed.on_event takes {list[Dog]!r}, which is not an event type",
        ),
        (
            pe_class("Of", on_event=handler_of(Dog | Cage[int])),
            f"Of.on_event takes {Cage[int]!r}, which is not an event type; {WRITE_CAGE}",
        ),
        (
            pe_class("Itself", on_event=handler_of(type[Dog])),
            f"Itself.on_event takes {type[Dog]!r}, which is not an event type",
        ),
        (
            pe_class("Maybe", on_event=handler_of(Optional[Dog])),  # noqa: UP045
            "Maybe.on_event takes <class 'NoneType'>, which is not an event type",
        ),
        (pe_class("NotAMethod", on_event=5), "NotAMethod.on_event is not a method"),
        (
            pe_class("StaticHandler", on_event=staticmethod(handler_of(Dog))),
            "StaticHandler.on_event is not a method",
        ),
        (
            pe_class("BadTrigger", on_trigger=handler_of(int)),
            "BadTrigger.on_trigger takes <class 'int'>, which is not an event type",
        ),
        (pe_class("HookIsNoMethod", on_time=5), "HookIsNoMethod.on_time is not a method"),
        (
            pe_class("HookTakesMore", on_time=lambda self, now: None),
            "HookTakesMore.on_time takes 2 parameters; write (self)",
        ),
        (
            pe_class("HookTakesLess", on_create=staticmethod(lambda: None)),
            "HookTakesLess.on_create takes 0 parameters; write (self)",
        ),
        (
            pe_class("RemoveTakesMore", on_remove=lambda self, key, why: None),
            "RemoveTakesMore.on_remove takes 3 parameters; write (self)",
        ),
    ],
)
def test_a_mistake_in_a_pe_class_is_reported_when_the_pe_is_created(
    pe: type[ProcessingElement], message: str
) -> None:
    with pytest.raises(GraphError) as caught:
        App("zoo").create_pe(pe)
    assert str(caught.value) == message


def test_what_is_advised_for_an_event_type_with_parameters_works() -> None:
    pe = pe_class("Keeper", on_event=handler_of(Cage), on_event_of_int=handler_of(CageOfInt))

    assert chosen(pe, type(Cage[int](5))) == "on_event"
    assert chosen(pe, CageOfInt) == "on_event_of_int"


def test_an_annotation_that_is_no_python_is_reported_too() -> None:
    class Misspelt(ProcessingElement):
        def on_event(self, event: "Dog or") -> None: ...  # type: ignore[valid-type]  # noqa: F722

    with pytest.raises(GraphError, match=r"Misspelt\.on_event: the annotation"):
        App("zoo").create_pe(Misspelt)


def test_hooks_may_have_further_parameters_with_defaults() -> None:
    def on_time(self: Any, now: float = 0.0, *more: int, **named: int) -> None: ...

    pe = pe_class("Relaxed", on_event=handler_of(Dog), on_time=on_time)
    assert App("zoo").create_pe(pe)


@pytest.mark.parametrize("bad", [int, App, None, "Count"])
def test_only_pe_classes_can_be_pes(bad: Any) -> None:
    with pytest.raises(GraphError) as caught:
        App("zoo").create_pe(bad)
    assert str(caught.value) == f"{bad!r} is not a ProcessingElement class"


# --- what no handler fits ------------------------------------------------------------------------


def test_an_event_that_no_handler_fits_is_counted_and_reported_once_for_its_type() -> None:
    table = table_of(ByType)
    reported: list[type] = []
    table.on_unhandled = reported.append
    for _ in range(3):
        table[Flying](None, Flying())
    assert table.unhandled == {Flying: 3}
    assert reported == [Flying]
    table[Dog](None, Dog())
    assert table.unhandled == {Flying: 3}


# --- names ---------------------------------------------------------------------------------------


def test_a_pe_is_named_after_its_class_and_numbered_if_there_are_more() -> None:
    app = App("zoo")
    for _ in range(3):
        app.create_pe(ByType)
    app.create_pe(ByType, name="special")
    assert list(app.prototypes) == ["ByType", "ByType#2", "ByType#3", "special"]
    with pytest.raises(GraphError) as caught:
        app.create_pe(ByType, name="special")
    assert str(caught.value) == "app 'zoo' has a PE 'special' already; give it another name"


@pytest.mark.parametrize("name", ["key", "partition", "app", "_state", "_of_key", "_abc_impl"])
def test_an_attribute_with_a_name_of_the_package_is_refused_at_once(name: str) -> None:
    with pytest.raises(GraphError, match=f"{name!r} is taken; give it another name"):
        pe_class("Pe", __annotations__={name: int}, **{name: 0})
