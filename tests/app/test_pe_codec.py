"""The state of PE instances as bytes, before and after their class has changed."""

from __future__ import annotations

import enum
import math
from collections import Counter, OrderedDict, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from shared_apps import handler_of, pe_class

from s4node import App, GenericEvent, ProcessingElement
from s4node.app.pe_codec import ElementCodec, Fields
from s4node.errors import GraphError, NotSaveable, StateError


@dataclass
class Place:
    city: str
    seen: set[int]


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(st.text(), st.builds(Place, st.text(), st.sets(st.integers(0, 99)))),
    st.floats(allow_nan=False),
)
def test_state_comes_back_as_it_was(count: int, places: dict[str, Place], mean: float) -> None:
    codec = ElementCodec(Visits)
    saved = instance(Visits, count=count, places=places, mean=mean)
    other = instance(Visits)
    codec.restore(other, codec.encode(saved))
    assert (other.count, other.places, other.names, other.mean) == (count, places, [], mean)


def test_the_bytes_on_disk_never_change() -> None:
    codec = ElementCodec(Visits)
    data = codec.encode(instance(Visits, count=3, names=["a"], places={"x": Place("Y", {1})}))
    assert data == (
        b"\x95\x00\x03\x81\xa1x\x82\xa4city\xa1Y\xa4seen\x91\x01\x91\xa1a\xcb" + bytes(8)
    )


class Dated(ProcessingElement):
    at: datetime | None = None
    visits: dict[str, list[datetime]] = {}  # noqa: RUF012

    def on_event(self, event: GenericEvent) -> None: ...


BERLIN = timezone(timedelta(hours=2))


@pytest.mark.parametrize("zone", [BERLIN, UTC, None])
def test_a_time_keeps_its_zone(zone: timezone | None) -> None:
    noon, codec, restored = (
        datetime(2026, 7, 1, 12, tzinfo=zone),
        ElementCodec(Dated),
        instance(Dated),
    )
    codec.restore(restored, codec.encode(instance(Dated, at=noon, visits={"a": [noon]})))
    assert [restored.at.isoformat(), restored.visits["a"][0].isoformat()] == [noon.isoformat()] * 2


class Told(enum.Enum):
    YES = "yes"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({1, 2}, "[1, 2]"),
        ((1, 2), "[1, 2]"),
        (date(2026, 7, 1), "'2026-07-01'"),
        (Decimal("1.10"), "'1.10'"),
        (Told.YES, "'yes'"),
        (datetime(2026, 7, 1, 12, tzinfo=BERLIN), "datetime.datetime(2026, 7, 1, 10, 0"),
    ],
)
def test_a_value_in_a_plain_dict_that_would_come_back_as_another_is_refused_when_it_is_saved(
    value: Any, read: str
) -> None:
    codec = ElementCodec(Loose)
    saved = instance(Loose, named={"nan": math.nan, "deep": [{"here": value}]})
    for encode in (codec.encode, lambda each: codec.encode_all([each])):
        with pytest.raises(NotSaveable) as refused:
            encode(saved)
        assert "attribute 'named'" in str(refused.value)
        assert f"would come back as {read}" in str(refused.value)


class Loose(ProcessingElement):
    some: list = []  # type: ignore[type-arg]  # noqa: RUF012
    named: dict = {}  # type: ignore[type-arg]  # noqa: RUF012
    parts: tuple = ()  # type: ignore[type-arg]
    thing: Any = None
    pairs: list[tuple[str, int]] = []  # noqa: RUF012
    places: dict[str, Place] = {}  # noqa: RUF012

    def on_event(self, event: GenericEvent) -> None: ...


def test_values_in_containers_come_back_as_annotated() -> None:
    place = Place("Y", {1})
    saved = instance(
        Loose,
        some=[["a", 1], {"b": None}],
        named={"a": [math.inf, b"x"], 5: True},
        parts=("a", [1]),
        thing={"c": 3},
        pairs=[("a", 1)],
        places={"x": place},
    )
    other = instance(Loose)
    codec = ElementCodec(Loose)
    codec.restore(other, codec.encode(saved))

    for name in ("some", "named", "parts", "thing", "pairs", "places"):
        assert getattr(other, name) == getattr(saved, name)


class Text(str):
    __slots__ = ()


TEXT, NUMBER = Text("a"), HTTPStatus.OK
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text()
    | st.binary() | st.dates() | st.decimals() | st.sets(st.integers())
    | st.sampled_from((TEXT, NUMBER, Told.YES)),
    lambda each: st.lists(each) | st.tuples(each, each)
    | st.dictionaries(st.text() | st.integers() | st.booleans() | st.dates(), each),
)  # fmt: skip


@given(ANYTHING, ANYTHING)
def test_a_value_that_is_declared_as_anything_comes_back_as_it_was_or_is_refused(
    thing: Any, value: Any
) -> None:
    codec = ElementCodec(Loose)
    saved = instance(Loose, thing=thing, named={"a": value}, some=[value])
    other = instance(Loose)
    with suppress(NotSaveable):
        codec.restore(other, codec.encode(saved))
        for name in ("thing", "named", "some"):
            assert repr(getattr(other, name)) == repr(getattr(saved, name))


OLD = (("count", "int"), ("name", "str"))


def test_a_new_attribute_gets_its_default() -> None:
    new = state_class("New", count=0, best=7.5, name="?")

    data = ElementCodec(Old).encode(instance(Old, count=5, name="joe"))
    codec = ElementCodec(new, [OLD])
    restored = instance(new)
    codec.restore(restored, data)
    assert (restored.count, restored.name, restored.best) == (5, "joe", 7.5)
    assert codec.versions == (OLD, (("count", "int"), ("best", "float"), ("name", "str")))
    assert codec.encode(restored)[1] == 1


def test_a_class_that_has_not_changed_needs_no_new_version() -> None:
    assert ElementCodec(Old, [OLD]).versions == (OLD,)


def test_an_attribute_of_another_type_is_refused_by_name() -> None:
    new = state_class("New", count="", name="?")

    with pytest.raises(StateError, match="PE class New: attribute count is str, but was saved as"):
        ElementCodec(new, [OLD])


@dataclass
class Town(Place):
    people: int = 0


class Home(ProcessingElement):
    place: Place | None = None
    count: int = 0

    def on_event(self, event: GenericEvent) -> None: ...


class LaterHome(ProcessingElement):
    place: Town | None = None
    count: int | None = None

    def on_event(self, event: GenericEvent) -> None: ...


def test_an_attribute_whose_type_has_all_values_that_were_saved_is_read() -> None:
    old, restored = ElementCodec(Home), instance(LaterHome)
    data = old.encode(instance(Home, place=Place("Y", {1}), count=5))
    ElementCodec(LaterHome, [old.fields]).restore(restored, data)
    assert (restored.place, restored.count) == (Town("Y", {1}, 0), 5)
    with pytest.raises(StateError, match=r"count is int, but was saved as int\|none"):
        ElementCodec(Home, [ElementCodec(LaterHome).fields])


def test_an_attribute_that_is_gone_is_refused_by_name() -> None:
    new = state_class("New", count=0)

    with pytest.raises(StateError, match="has an attribute name: str, which it no longer has"):
        ElementCodec(new, [OLD])


def test_migrate_turns_saved_state_into_that_of_the_new_version() -> None:
    migrate = staticmethod(lambda saved: {"total": float(saved["count"])})
    new = state_class("New", total=0.0, migrate=migrate)

    data = ElementCodec(Old).encode(instance(Old, count=5))
    restored = instance(new)
    ElementCodec(new, [OLD]).restore(restored, data)
    assert restored.total == 5.0


def test_a_migrate_that_returns_nonsense_is_reported() -> None:
    new = state_class("New", total=0.0, migrate=staticmethod(lambda _saved: {"sum": 1.0}))

    data = ElementCodec(Old).encode(instance(Old))
    told = "migrate of New 'joe' returned an attribute 'sum', which it does not have; fix migrate"
    with pytest.raises(StateError, match=f"^{told}$"):
        ElementCodec(new, [OLD]).restore(instance(new), data)


@pytest.mark.parametrize("data", [b"", b"\x91\x09", b"\x93\x00\x01", b"\x93\x00\xa1x\x01", b"\xc1"])
def test_damaged_bytes_are_reported(data: bytes) -> None:
    with pytest.raises(StateError, match="saved state of Old 'joe' cannot be read"):
        ElementCodec(Old).restore(instance(Old), data)


@pytest.mark.parametrize("value", [None, True, 0.5, -1, 2**64 - 1])
@pytest.mark.parametrize("version", [OLD, (("more", "int"), *OLD)])
def test_plain_values_of_another_type_than_annotated_come_back_as_they_were(
    value: Any, version: Fields
) -> None:
    new = state_class("New", more=0, count=0, name="?")

    if version is OLD:
        data = ElementCodec(Old).encode(instance(Old, count=value, name=value))
    else:
        data = ElementCodec(new, [OLD]).encode(instance(new, count=value, name=value))
    restored = instance(new)
    ElementCodec(new, [OLD, version]).restore(restored, data)
    assert (restored.count, restored.name) == (value, value)
    assert (type(restored.count), type(restored.name)) == (type(value), type(value))


class Corner(Struct, frozen=True):
    x: int


def test_dict_keys_of_a_struct_type_come_back_beside_a_new_attribute() -> None:
    class Before(ProcessingElement):
        seen: dict[Corner, int] = {}  # noqa: RUF012

        def on_event(self, event: GenericEvent) -> None: ...

    class After(Before):
        name: str = "?"

    data = ElementCodec(Before).encode(instance(Before, seen={Corner(1): 2}))
    restored = instance(After)
    ElementCodec(After, [ElementCodec(Before).fields]).restore(restored, data)
    assert (restored.seen, restored.name) == ({Corner(1): 2}, "?")


@pytest.mark.parametrize("value", ["5", b"5", [5], {"a": 5}])
def test_other_values_that_are_not_as_declared_are_refused_by_name(value: Any) -> None:
    data = ElementCodec(Old).encode(instance(Old, count=value))
    with pytest.raises(StateError, match="Old 'joe' cannot be read: attribute 'count' is declared"):
        ElementCodec(Old).restore(instance(Old), data)


def test_a_value_that_cannot_be_saved_names_the_instance() -> None:
    with pytest.raises(StateError, match="Old 'joe' cannot be saved"):
        ElementCodec(Old).encode(instance(Old, name=object()))


def test_a_type_that_cannot_be_saved_is_refused_at_the_start() -> None:
    with pytest.raises(GraphError, match=r"attribute lock is <class 'complex'>"):
        ElementCodec(state_class("Bad", lock=0j))


@pytest.mark.parametrize(
    ("kind", "default", "plain"),
    [
        (dict[str, int], defaultdict(int), "dict"),
        (dict[str, int], Counter(), "dict"),
        (dict[str, int], OrderedDict(), "dict"),
        (list[int], type("Stack", (list,), {})(), "list"),
        (set[int], type("Bag", (set,), {})(), "set"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_default_that_would_come_back_as_another_type_is_refused_at_the_start(
    kind: Any, default: Any, plain: str
) -> None:
    body = {
        "__module__": __name__,
        "__annotations__": {"seen": kind},
        "seen": default,
        "on_event": Old.on_event,
    }
    cls = type(ProcessingElement)("Lossy", (ProcessingElement,), body)
    name = type(default).__name__
    said = f"PE class Lossy: attribute seen is a {name}, but would be restored as a plain {plain};"
    with pytest.raises(GraphError, match=f"{said} give it a {plain} as its default"):
        ElementCodec(cls)


@pytest.mark.parametrize("name", ["version", "_version", "row", "i", "encode", "at_0", "at_1"])
def test_an_attribute_may_have_any_name(name: str) -> None:
    cls = state_class("Named", **{name: 0, "total": 0})
    codec = ElementCodec(cls)
    saved, restored = instance(cls, **{name: 7, "total": 99}), instance(cls)
    codec.restore(restored, codec.encode(saved))
    assert (getattr(restored, name), restored.total) == (7, 99)


# -- set-up ---------------------------------------------------------------------------------------


def state_class(name: str, /, **state: Any) -> Any:
    """A PE class with this state, that takes any event."""
    return pe_class(name, on_event=handler_of(GenericEvent), **state)


Old = state_class("Old", count=0, name="?")


def instance(cls: type[ProcessingElement], **state: Any) -> Any:
    app = App()
    element = app.create_pe(cls)
    app.create_input_stream("s", element, key="k")
    app.freeze()
    made = element._prototype.make("joe", None)
    for name, value in state.items():
        setattr(made, name, value)
    return made


class Visits(ProcessingElement):
    count: int = 0
    places: dict[str, Place] = {}  # noqa: RUF012 - an instance gets a copy
    names: list[str] = []  # noqa: RUF012
    mean: float = 0.0

    def on_event(self, event: GenericEvent) -> None: ...
