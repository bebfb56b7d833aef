"""The promises of routing: one rule for a key, the same on both ends, and no event is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.errors import GraphError, KeyFinderError
from s4node.events.event import Event, GenericEvent
from s4node.events.keys import Partitioner
from s4node.events.routing import KeyRule, Router, failed_at, is_generic, key_failure


class Click(Event):
    user: Any
    page: Any = ""


class Finder:
    name = "finder"

    def get(self, event: Any) -> Any:
        return event.user


class Nameless:
    def get(self, event: Any) -> Any:
        return event.user


@pytest.mark.parametrize(
    ("spec", "name", "attributes"),
    [
        ("user", "user", ("user",)),
        (["user", "page"], "user+page", ("user", "page")),
        (("page", "user"), "page+user", ("page", "user")),
        (Finder(), "@finder", ()),
        (Nameless(), "", ()),
        (lambda event: event.user, "", ()),
    ],
)
def test_a_rule_has_a_name_if_both_ends_can_have_the_same(
    spec: Any, name: str, attributes: tuple[str, ...]
) -> None:
    rule = KeyRule(spec)
    assert (rule.name, rule.attributes) == (name, attributes)


@pytest.mark.parametrize(
    ("spec", "event", "key"),
    [
        ("user", Click("joe"), "joe"),
        ("user", GenericEvent(user="joe"), "joe"),
        (["user", "page"], Click("joe", 7), ("joe", 7)),
        (Finder(), Click("joe"), "joe"),
        (Finder(), Click(["joe", 7]), ("joe", 7)),
        (Nameless(), Click(("joe",)), "joe"),
        (lambda event: event.page, Click("joe", b"x"), b"x"),
    ],
)
def test_a_rule_finds_the_key(spec: Any, event: Any, key: Any) -> None:
    assert KeyRule(spec).finder()(event) == key


@pytest.mark.parametrize("name", ["user", "user name", "class", "1", "", "a'b", 'a"b\\', "e"])
def test_a_generic_event_s_key_may_have_any_name(name: str) -> None:
    rule = KeyRule(name, generic=True)
    assert rule.finder()(GenericEvent.from_attributes({name: "joe"})) == "joe"
    pair = KeyRule([name, "other"], generic=True)
    assert pair.finder()(GenericEvent.from_attributes({name: "joe", "other": 1})) == ("joe", 1)


@pytest.mark.parametrize("name", ["user name", "class", "1", "", "a.b", "a;b", "x)"])
def test_a_typed_event_s_key_is_the_name_of_an_attribute(name: str) -> None:
    for spec in (name, ["user", name]):
        with pytest.raises(GraphError) as caught:
            KeyRule(spec)
        assert str(caught.value) == f"key {name!r} is not an attribute's name"


@pytest.mark.parametrize("spec", [5, [], (), ["user", 5], None])
def test_an_invalid_key_says_what_a_key_may_be(spec: Any) -> None:
    with pytest.raises(GraphError) as caught:
        KeyRule(spec)
    assert str(caught.value) == (
        f"{spec!r} is not a key: give an attribute name, several names, a KeyFinder, or a function "
        f"of the event"
    )


@pytest.mark.parametrize("value", [True, 1.0, None, [], {}, ("a", None)])
def test_a_checked_rule_and_a_function_refuse_invalid_keys(value: Any) -> None:
    for rule in (KeyRule("user", checked=True), KeyRule(lambda event: event.user)):
        with pytest.raises(KeyFinderError):
            rule.finder()(Click(value))


def test_a_stream_is_generic_if_it_carries_generic_events_only() -> None:
    assert is_generic([GenericEvent])
    assert not is_generic([GenericEvent, Click])
    assert not is_generic([Click])
    assert not is_generic([])


def test_an_iterator_tells_which_event_it_handed_out_last() -> None:
    it = iter(["a", "b", "c"])
    found = []
    for _ in it:
        found.append(failed_at(it, 3))
    assert found == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyFinderError("no key"), "no key"),
        (
            AttributeError("no attribute 'user'"),
            "the KeyFinder raised AttributeError: no attribute 'user'",
        ),
        (KeyError("user"), "the KeyFinder raised KeyError: 'user'"),
    ],
)
def test_why_no_key_was_found_is_said_in_words(error: Exception, words: str) -> None:
    assert key_failure(error) == words


USERS = st.text(max_size=3) | st.integers(0, 50) | st.none() | st.floats() | st.booleans()


@given(st.lists(USERS, max_size=40), st.integers(1, 9), st.booleans())
def test_every_event_is_in_its_partition_in_order_or_among_the_failures(
    users: list[Any], partitions: int, function: bool
) -> None:
    rule = KeyRule((lambda event: event.user) if function else "user", checked=True)
    partitioner = Partitioner(partitions)
    events = [Click(user, number) for number, user in enumerate(users)]
    lanes, failures = Router(rule, partitioner).shares(events)
    good = [e for e in events if type(e.user) in (str, int)]
    assert lanes == [
        [e for e in good if partitioner.partition_of(e.user) == partition]
        for partition in range(partitions)
    ]
    assert [index for index, _ in failures] == [
        e.page for e in events if type(e.user) not in (str, int)
    ]
    assert all(reason.startswith("the KeyFinder returned ") for _, reason in failures)


def test_a_key_finder_that_raises_costs_only_its_own_event() -> None:
    def find(event: Any) -> Any:
        return 10 // event.user

    events = [Click(1), Click(0), Click(2), Click("x"), Click(0)]
    lanes, failures = Router(KeyRule(find), Partitioner(1)).shares(events)
    assert lanes == [[Click(1), Click(2)]]
    assert [index for index, _ in failures] == [1, 3, 4]
    assert failures[0][1].startswith("the KeyFinder raised ZeroDivisionError: ")


@given(st.lists(st.sampled_from(["ann", "joe", None]), max_size=30), st.integers(1, 40))
def test_places_and_failures_are_those_of_their_events(users: list[Any], most: int) -> None:
    router = Router(KeyRule("user", checked=True), Partitioner(8))
    places, failures = router.places([Click(user) for user in users], most)
    bad = [index for index, user in enumerate(users) if user is None][:most]
    assert [index for index, _ in failures] == bad
    seen = len(users) if len(bad) < most else bad[-1] + 1
    expected = [-1 if user is None else Partitioner(8).partition_of(user) for user in users]
    assert places == expected[:seen]
