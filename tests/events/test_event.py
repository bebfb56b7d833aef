"""The promises of events: they never change once sent, and say plainly what they lack."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest
from harness import running
from hypothesis import given
from hypothesis import strategies as st
from shared_apps import NotingApp

from s4node import Client
from s4node.errors import EventError, ProcessingError, S4Error, leaves
from s4node.events.event import Event, EventBatch, GenericEvent
from s4node.events.schema import EventType

# --- typed events --------------------------------------------------------------------------------


def test_a_typed_event_is_a_frozen_value() -> None:
    click = Click("joe", 7)
    with pytest.raises(AttributeError):
        click.user = "ann"  # type: ignore[misc]
    assert click == Click(user="joe", millis=7)
    assert hash(click) == hash(Click("joe", 7))
    assert repr(click) == "Click(user='joe', millis=7)"
    assert Click("joe") != Click("joe", 1)


def test_a_typed_event_survives_pickling_and_copying() -> None:
    click = Click("joe", 7)
    assert pickle.loads(pickle.dumps(click)) == click
    assert copy.deepcopy(click) == click


# --- events with dynamic attributes --------------------------------------------------------------


def test_attributes_are_read_by_name_in_both_ways() -> None:
    event = GenericEvent(name="joe", count=3)
    event.put("city", "Rome")
    assert (event.name, event["count"], event.city) == ("joe", 3, "Rome")
    assert event.get("name") == "joe"
    assert event.get("nothing") is None
    assert event.get("nothing", 5) == 5
    assert "count" in event
    assert "nothing" not in event
    assert list(event) == ["name", "count", "city"]
    assert event.attributes == {"name": "joe", "count": 3, "city": "Rome"}
    assert repr(event) == "GenericEvent(name='joe', count=3, city='Rome')"


def test_any_name_can_be_an_attribute_even_self() -> None:
    event = GenericEvent(**{"self": 1, "put": 2, "a b": 3, "_frozen_": 4})
    assert (event["self"], event["put"], event["a b"], event["_frozen_"]) == (1, 2, 3, 4)


def test_put_overwrites_until_the_event_is_sent() -> None:
    event = GenericEvent(name="joe")
    event.put("name", "ann")
    event.freeze()
    event.freeze()
    with pytest.raises(EventError) as caught:
        event.put("name", "eve")
    assert str(caught.value) == (
        "attribute 'name' put on an event that was already sent; make a new event"
    )
    assert event.name == "ann"


def test_an_event_that_came_in_is_frozen_and_takes_its_attributes_over() -> None:
    attributes = {"name": "joe"}
    event = GenericEvent.from_attributes(attributes)
    assert event._attributes is attributes
    with pytest.raises(EventError, match="already sent"):
        event.put("name", "ann")


@pytest.mark.parametrize("frozen", [False, True])
def test_changing_the_attributes_that_were_read_does_not_change_the_event(frozen: bool) -> None:
    event = GenericEvent(name="joe")
    if frozen:
        event.freeze()
    mine: Any = event.attributes
    mine["name"] = "eve"
    mine.clear()
    assert event.attributes == {"name": "joe"}
    assert msgspec.json.encode(event.attributes) == b'{"name":"joe"}'


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (GenericEvent(name="joe", city="Rome"), "no attribute 'user'; the event has: name, city"),
        (GenericEvent(), "no attribute 'user'; the event has: none"),
    ],
)
def test_a_missing_attribute_is_an_attribute_error_that_lists_the_others(
    event: GenericEvent, message: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        event.user  # noqa: B018
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (GenericEvent(name="joe", city="Rome"), "'user': the event has name, city attributes"),
        (GenericEvent(), "'user': the event has no attributes"),
    ],
)
def test_a_missing_item_is_a_key_error_that_lists_the_others(
    event: GenericEvent, message: str
) -> None:
    with pytest.raises(KeyError) as caught:
        event["user"]
    assert caught.value.args == (message,)


def test_attributes_cannot_be_set_as_such() -> None:
    event = GenericEvent(name="joe")
    with pytest.raises(AttributeError):
        event.name = "ann"  # type: ignore[misc]
    assert event.name == "joe"


def test_generic_events_are_compared_by_their_attributes_and_have_no_hash() -> None:
    frozen = GenericEvent(name="joe")
    frozen.freeze()
    assert frozen == GenericEvent(name="joe")
    assert frozen != GenericEvent(name="ann")
    assert frozen != {"name": "joe"}
    with pytest.raises(TypeError, match="unhashable"):
        hash(frozen)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=5))
def test_generic_events_survive_pickling_and_copying(attributes: dict[str, Any]) -> None:
    for event in (GenericEvent(**attributes), GenericEvent.from_attributes(attributes)):
        for twin in (pickle.loads(pickle.dumps(event)), copy.deepcopy(event), copy.copy(event)):
            assert twin == event
            assert list(twin) == list(event)


# --- batches -------------------------------------------------------------------------------------


def test_positions_count_from_the_first_number() -> None:
    batch = EventBatch("clicks", 3, ["a", "b", "c"], Address(), first=40)
    assert batch.size == 3
    assert [batch.number(index) for index in range(3)] == [40, 41, 42]
    assert batch.position(2) == "clicks[3]@spark-1:42"


def test_a_batch_with_holes_knows_each_number() -> None:
    batch = EventBatch("clicks", 0, ["a", "c"], Address(), first=40, numbers=[40, 42])
    assert [batch.number(index) for index in range(2)] == [40, 42]
    assert batch.position(1) == "clicks[0]@spark-1:42"


def test_a_batch_from_inside_the_process_says_so() -> None:
    batch = EventBatch("counts", 1, ["a"])
    assert batch.position(0) == "counts[1] (emitted in this process)"


# --- errors that carry a place -------------------------------------------------------------------


def test_a_processing_error_names_app_pe_key_position_and_cause() -> None:
    cause = ZeroDivisionError("division by zero")
    error = ProcessingError("shop", "Count", "joe", "clicks[0]@spark-1:42", cause)
    assert isinstance(error, S4Error)
    assert (error.app, error.pe, error.key) == ("shop", "Count", "joe")
    assert error.position == "clicks[0]@spark-1:42"
    assert error.__cause__ is cause
    assert str(error).startswith(
        "Count of app 'shop' raised ZeroDivisionError: division by zero; "
        "key 'joe', event at clicks[0]@spark-1:42."
    )


def test_leaves_are_the_exceptions_inside_nested_groups_in_order() -> None:
    one, two, three = ValueError("1"), KeyError("2"), OSError("3")
    nested = ExceptionGroup("outer", [one, ExceptionGroup("inner", [two]), three])
    assert leaves(nested) == [one, two, three]
    assert leaves(one) == [one]


# -- set-up ---------------------------------------------------------------------------------------


class Click(Event):
    user: str
    millis: int = 0


class Address:
    """A receipt that only knows where it came from."""

    by_event = True

    def done(self) -> None:
        raise AssertionError("nobody processed anything")

    def complete(self, first: int, end: int) -> None:
        raise AssertionError("nobody processed anything")

    def refuse(self, number: int, reason: str) -> None:
        raise AssertionError("nobody refused anything")

    def describe(self, number: int) -> str:
        return f"spark-1:{number}"


class Hit(Event):
    user: str
    event_name: str = ""  # as web analytics call it


async def test_a_field_may_be_called_event_name() -> None:
    app = NotingApp("hits", types=Hit)
    async with running(app) as node, Client(node.address) as client:
        hits = await client.stream("hits")
        await hits.send(Hit("joe", "page_view"))
        assert await hits.flush() == []
    assert app.seen == [Hit("joe", "page_view")]
    assert EventType(Hit).name == "Hit"
