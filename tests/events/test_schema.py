"""The promises of event types: names and fingerprints that last, versions that understand."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Dict, Literal, NamedTuple, Optional, TypedDict, Union  # noqa: UP035

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.errors import EventError
from s4node.events.event import Event, GenericEvent
from s4node.events.schema import (
    EventType,
    JsonText,
    JsonType,
    Refusals,
    TypeReader,
    raws_in,
    reader_of,
)
from s4node.events.type_declaration import TypeDecl, fingerprint_of


class Click(Event):
    user: str
    millis: int = 0


class Named(Event):
    event_name = "shop.click"
    user: str


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct, array_like=True):
    x: int
    y: float = 0.0


@dataclass
class Box:
    width: int


class Options(TypedDict):
    loud: bool


class Pair(NamedTuple):
    left: int
    right: str


class Everything(Event):
    flag: bool
    raw: bytes
    number: float
    anything: Any
    when: datetime
    maybe: int | None
    several: list[int]
    some: set[str]
    pair: tuple[int, str]
    many: tuple[int, ...]
    table: dict[str, list[float]]
    colour: Colour
    mode: Literal["slow", "fast"]
    point: Point
    box: Box
    options: Options
    named: Pair


class Tree(Event):
    name: str
    children: list[Tree] = []  # noqa: RUF012


class Keywords(Event, kw_only=True):
    size: int = 1
    user: str


class Camel(Event, rename="camel"):
    first_name: str
    birth_year: int = 1970


class Checked(Event):
    percent: int

    def __post_init__(self) -> None:
        if self.percent > 100:
            raise ValueError("more than all of it")
        if self.percent < 0:
            raise KeyError("whatever an author raises")


# --- names and fingerprints ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "fingerprint"),
    [
        (GenericEvent, 14470621596547015421),
        (Click, 5031015932648304557),
        (Named, 12049584898752208819),
        (Everything, 7536139444807269071),
        (Tree, 9284095066098149045),
        (Keywords, 8346250748543330357),
        (Camel, 11890104034354004734),
    ],
)
def test_fingerprints_never_change_between_releases(cls: type, fingerprint: int) -> None:
    """Mend the code, not these numbers: programs of other releases know them."""
    assert EventType(cls).fingerprint == fingerprint


def test_a_declaration_lists_name_fields_types_and_what_is_required() -> None:
    assert EventType(Click).declaration == TypeDecl(
        "Click",
        EventType(Click).fingerprint,
        (("user", "str", True), ("millis", "int", False)),
    )
    assert EventType(GenericEvent).declaration.fields == ()
    assert EventType(GenericEvent).name == "GenericEvent"
    assert EventType(Camel).declaration.fields == (
        ("firstName", "str", True),
        ("birthYear", "int", False),
    )


def test_every_field_type_has_a_word() -> None:
    fields = EventType(Everything).declaration.fields
    assert {name: words for name, words, _ in fields} == {
        "flag": "bool",
        "raw": "bytes",
        "number": "float",
        "anything": "any",
        "when": "datetime",
        "maybe": "int|none",
        "several": "[int]",
        "some": "[str]",
        "pair": "[int,str]",
        "many": "[int]",
        "table": "{str:[float]}",
        "colour": "enum(red,blue)",
        "mode": "literal(fast,slow)",
        "point": "(x:int,y:float)",
        "box": "(width:int)",
        "options": "(loud:bool)",
        "named": "(left:int,right:str)",
    }
    assert EventType(Tree).declaration.fields[1] == ("children", "[Tree]", False)


def test_the_fingerprint_is_the_first_8_bytes_of_a_sha_256() -> None:
    fields = [("user", "str", True), ("millis", "int", False)]
    # printf 'Click(user:str,millis:int)' | sha256sum
    assert fingerprint_of("Click", fields) == 0x45D1C255D4D52FAD


@pytest.mark.parametrize(("kind", "default"), [(int, 2**64), (float, 10**25), (str, "\ud800")])
def test_a_default_that_no_event_can_hold_is_refused_by_name(kind: Any, default: Any) -> None:
    body = {"__module__": __name__, "__annotations__": {"user": str, "note": kind}, "note": default}
    cls = type(Event)("Vast", (Event,), body)
    with pytest.raises(EventError, match=r"Vast: field 'note' has the default .* cannot be encod"):
        EventType(cls)


def test_the_fingerprint_depends_on_name_order_and_types_but_not_on_defaults() -> None:
    fields = (("a", "int", True), ("b", "str", True))
    numbers = {
        fingerprint_of("E", fields),
        fingerprint_of("F", fields),
        fingerprint_of("E", fields[::-1]),
        fingerprint_of("E", fields[:1]),
        fingerprint_of("E", (("a", "int", True), ("b", "int", True))),
        fingerprint_of("E", (("a", "int", True), ("c", "str", True))),
        fingerprint_of("E", ()),
    }
    assert len(numbers) == 7
    assert fingerprint_of("E", (("a", "int", False), ("b", "str", False))) in numbers


def test_a_name_is_the_class_s_own_or_the_one_set_on_it() -> None:
    class Special(Named):
        price: int

    assert EventType(Named).name == "shop.click"
    assert EventType(Special).name == "Special"


def test_the_order_in_which_a_union_is_written_does_not_matter() -> None:
    """``typing`` gives back an equal union that some other module wrote before."""

    class One(Event):
        event_name = "E"
        a: int | str | None
        b: Dict[str, Union[int, str]]  # noqa: UP006, UP007
        c: Literal["x", "y"]
        d: Optional[bytes]  # noqa: UP045

    class Other(Event):
        event_name = "E"
        a: None | str | int  # noqa: RUF036
        b: Dict[str, Union[str, int]]  # noqa: UP006, UP007
        c: Literal["y", "x"]
        d: None | bytes  # noqa: RUF036

    assert EventType(One).declaration == EventType(Other).declaration
    assert EventType(One).declaration.fields[0] == ("a", "int|none|str", True)


def test_another_process_with_another_hash_seed_finds_the_same_fingerprint() -> None:
    program = (
        "from typing import *\n"
        "from s4node.events.event import Event\n"
        "from s4node.events.schema import EventType\n"
        "class E(Event):\n"
        "    a: Union[str, int, None]\n"
        "    b: Literal[3, 'x', None, 1]\n"
        "    c: Set[FrozenSet[int]]\n"
        "print(EventType(E).fingerprint)\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert seen == {b"7661945656045522935"}


@pytest.mark.parametrize(
    "bad", [int, "Click", None, msgspec.Struct, Point, Click("joe"), list[Click]]
)
def test_a_class_that_is_not_an_event_is_refused(bad: Any) -> None:
    with pytest.raises(EventError) as caught:
        EventType(bad)
    assert str(caught.value) == (
        f"{bad!r} is not an event type; subclass s4node.Event, or use GenericEvent"
    )


def test_fields_that_cannot_be_told_apart_are_refused_by_name() -> None:
    class Torn(Event):
        items: list[int] | set[int]

    with pytest.raises(EventError, match="event type Torn: Type unions may not contain more than"):
        EventType(Torn)


@pytest.mark.parametrize(("kind", "default"), [(str, None), (int, 0.5), (int, "0"), (bool, 0)])
def test_a_default_that_nobody_could_read_is_refused_by_name(kind: Any, default: Any) -> None:
    body = {"__module__": __name__, "__annotations__": {"user": str, "note": kind}, "note": default}
    cls = type(Event)("Sloppy", (Event,), body)
    with pytest.raises(EventError, match=f"Sloppy: field 'note' has the default {default!r}"):
        EventType(cls)


def test_an_annotation_that_does_not_exist_is_refused_by_name() -> None:
    class Lost(Event):
        item: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(EventError, match="event type Lost: name 'Nowhere' is not defined"):
        EventType(Lost)


# --- versions ------------------------------------------------------------------------------------


def version(name: str, *fields: tuple[Any, ...]) -> EventType:
    """An event type with these fields: ``(name, type)`` or ``(name, type, default)``."""
    body = {field[0]: field[2] for field in fields if len(field) > 2}
    annotations = {field[0]: field[1] for field in fields}
    return EventType(type(Event)(name, (Event,), {"__annotations__": annotations, **body}))


ONE = ("user", str)
TWO = ("millis", int)
TWO_DEFAULT = ("millis", int, 7)
GROWTH = "a reader's type has to take all values of the writer's"
THREE_DEFAULT = ("tag", str | None, None)


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ((ONE, TWO), (ONE, TWO), None),
        ((ONE, TWO_DEFAULT), (ONE,), None),  # we have appended a field with a default
        ((ONE,), (ONE, TWO), None),  # they have appended one; we ignore it
        ((ONE, TWO_DEFAULT, THREE_DEFAULT), (ONE,), None),
        ((ONE, TWO), (ONE, TWO_DEFAULT), None),
        ((), (ONE, TWO), None),
        ((ONE, TWO), (ONE,),
         "E: field millis: int is missing and has no default here; give it one"),
        ((ONE, TWO_DEFAULT), (),
         "E: field user: str is missing and has no default here; give it one"),
        ((ONE, TWO), (ONE, ("millis", float)),
         "E: field millis: float where this side has millis: int; " + GROWTH),
        ((ONE, TWO), (ONE, ("ms", int)),
         "E: field ms: int where this side has millis: int; fields may only be appended"),
        ((ONE, TWO), (TWO, ONE),
         "E: field millis: int where this side has user: str; fields may only be appended"),
        ((ONE, TWO_DEFAULT), (("first", str), ONE),
         "E: field first: str where this side has user: str; fields may only be appended"),
    ],
)  # fmt: skip
def test_versions_understand_each_other_if_one_only_appended(
    ours: tuple[Any, ...], theirs: tuple[Any, ...], reason: str | None
) -> None:
    assert version("E", *ours).refusal_of(version("E", *theirs).declaration) == reason


def test_another_name_is_another_type() -> None:
    reason = version("E", ONE).refusal_of(version("F", ONE).declaration)
    assert reason == "type 'F' is not 'E'"


FIELDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([int, str]), st.booleans()),
    max_size=4,
    unique_by=lambda field: field[0],
)


@given(FIELDS, FIELDS)
def test_an_accepted_version_decodes_and_keeps_the_common_fields(
    ours: list[Any], theirs: list[Any]
) -> None:
    """The compatibility rule, checked against what really decodes."""

    def make(fields: list[Any]) -> EventType:
        optional = False
        declared = []
        for name, kind, has_default in fields:
            optional = optional or has_default  # what follows a default needs one, too
            declared.append((name, kind, kind()) if optional else (name, kind))
        return version("E", *declared)

    mine, its = make(ours), make(theirs)
    if mine.refusal_of(its.declaration) is None:
        sent = [its.cls(*(kind("5") for _, kind, _ in theirs))]
        event = mine.decode(its.encode(sent))[0]
        common = min(len(ours), len(theirs))
        for index, (name, kind, _) in enumerate(ours):
            assert getattr(event, name) == (kind("5") if index < common else kind())


def test_unknown_trailing_fields_are_ignored_and_missing_ones_get_their_defaults() -> None:
    old, new = version("E", ONE), version("E", ONE, TWO_DEFAULT)
    assert old.decode(new.encode([new.cls("joe", 5)])) == [old.cls("joe")]
    assert new.decode(old.encode([old.cls("joe")])) == [new.cls("joe", 7)]


# --- batches as bytes ----------------------------------------------------------------------------


def test_a_batch_is_one_msgpack_array_of_arrays() -> None:
    body = EventType(Click).encode([Click("joe", 1), Click("ann")])
    assert body == b"\x92\x92\xa3joe\x01\x92\xa3ann\x00"
    assert EventType(Click).decode(body) == [Click("joe", 1), Click("ann", 0)]


def test_a_batch_of_generic_events_is_one_msgpack_array_of_maps() -> None:
    kind = EventType(GenericEvent)
    body = kind.encode([GenericEvent(a=1), GenericEvent()])
    assert body == b"\x92\x81\xa1a\x01\x80"
    decoded = kind.decode(body)
    assert decoded == [GenericEvent(a=1), GenericEvent()]
    with pytest.raises(EventError, match="already sent"):
        decoded[0].put("b", 2)


EVERYTHING = Everything(
    True,
    b"\x00",
    1.5,
    {"a": [1, None]},
    datetime(2024, 1, 2, 3, 4, 5),  # noqa: DTZ001
    None,
    [1],
    {"a"},
    (1, "b"),
    (1, 2),
    {"x": [0.5]},
    Colour.BLUE,
    "fast",
    Point(1),
    Box(2),
    {"loud": True},
    Pair(1, "r"),
)


def test_whatever_msgspec_encodes_comes_back_the_same() -> None:
    kind = EventType(Everything)
    assert kind.decode(kind.encode([EVERYTHING, EVERYTHING])) == [EVERYTHING, EVERYTHING]
    tree = Tree("root", [Tree("leaf"), Tree("other", [Tree("deep")])])
    assert EventType(Tree).decode(EventType(Tree).encode([tree])) == [tree]
    assert EventType(Keywords).decode(EventType(Keywords).encode([Keywords(user="a")])) == [
        Keywords(user="a", size=1)
    ]


def slowly(kind: TypeReader, body: bytes | memoryview) -> tuple[list[Any], Refusals]:
    return kind.decode_each(raws_in(body))


def from_json(kind: TypeReader, body: bytes) -> tuple[list[Any], Refusals]:
    return kind.decode_each(raws_in(body, json=True), json=True)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), max_size=5))
def test_generic_events_come_back_the_same(attributes: list[dict[str, Any]]) -> None:
    kind = EventType(GenericEvent)
    events = [GenericEvent(**each) for each in attributes]
    body = kind.encode(events)
    assert kind.decode(body) == events
    assert slowly(kind, memoryview(body)) == (events, [])


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "Encoding objects of type object is unsupported"),
        (2**64, "can't serialize ints"),
        ("\ud800", "surrogates not allowed"),
        (nested(100_000), "maximum recursion depth exceeded"),
    ],
)
def test_a_value_that_msgpack_cannot_hold_is_an_event_error(value: Any, words: str) -> None:
    with pytest.raises(EventError) as caught:
        EventType(GenericEvent).encode([GenericEvent(a=value)])
    assert str(caught.value).startswith("a GenericEvent cannot be encoded: ")
    assert words in str(caught.value)


# --- poison events
# ------------------------------------------------------------------------------------


def array(*events: Any) -> bytes:
    return msgspec.msgpack.encode(list(events))


def test_only_the_events_of_a_batch_that_do_not_decode_are_refused() -> None:
    body = array(["joe", 1], ["ann", "x"], ["eve"], [], [5], "text", {"user": "bob"}, ["zoe", 2, 9])
    with pytest.raises(msgspec.ValidationError):
        EventType(Click).decode(body)
    events, refusals = slowly(EventType(Click), body)
    assert events == [Click("joe", 1), None, Click("eve"), None, None, None, None, Click("zoe", 2)]
    assert refusals == [
        (1, "Click does not decode: Expected `int`, got `str` - at `$.millis`"),
        (3, "Click does not decode: Expected `array` of at least length 1, got 0"),
        (4, "Click does not decode: Expected `str`, got `int` - at `$.user`"),
        (5, "Click does not decode: Expected `array`, got `str`"),
        (6, "Click does not decode: Expected `array`, got `object`"),
    ]


class Inner(Event):
    a: int


class Renamed(Event, rename="camel"):
    my_user: str
    counts: dict[int, int] = {}  # noqa: RUF012 - msgspec copies it
    inner: Inner | None = None


class Odd(Event):
    user: str

    def __post_init__(self) -> None:
        raise ValueError("it has no `$[7]`")


class Tagged(Event, tag="t"):
    user: str


@pytest.mark.parametrize(
    ("cls", "event", "place"),
    [
        (Renamed, [5], "at `$.myUser`"),
        (Renamed, ["ann", {1: "x"}], "at `$.counts[...]`"),
        (Renamed, ["ann", {"x": 1}], "at `key` in `$.counts`"),
        (Renamed, ["ann", {}, ["x"]], "at `$.inner[0]`"),
        (Odd, ["ann"], "it has no `$[7]`"),
        (Tagged, ["t", 5], "at `$.user`"),
        (Tagged, ["other", "ann"], "at `$.type`"),
    ],
)
def test_a_refusal_names_the_field_and_not_its_place_in_the_array(
    cls: type[Event], event: list[Any], place: str
) -> None:
    _, ((_, reason),) = slowly(EventType(cls), array(event))
    assert reason.endswith(f" {place}")


def test_a_text_that_is_not_utf_8_is_refused_like_any_other() -> None:
    events, refusals = slowly(EventType(Click), b"\x92\x91\xa1\xff\x91\xa1a")
    assert events == [None, Click("a")]
    assert [index for index, _ in refusals] == [0]
    generic, refusals = slowly(EventType(GenericEvent), b"\x92\x81\xa1\xff\x01\x81\xa1a\x01")
    assert generic == [None, GenericEvent(a=1)]
    assert [index for index, _ in refusals] == [0]


def test_an_event_that_its_own_class_turns_down_is_refused() -> None:
    events, refusals = slowly(EventType(Checked), array([50], [101], [-1], [0]))
    assert events == [Checked(50), None, None, Checked(0)]
    assert refusals == [
        (1, "Checked does not decode: more than all of it"),
        (2, "Checked does not decode: 'whatever an author raises'"),
    ]


def test_a_generic_event_is_refused_that_is_no_map_of_named_attributes() -> None:
    events, refusals = slowly(EventType(GenericEvent), array({"a": 1}, [1], {1: 2}, {}))
    assert events == [GenericEvent(a=1), None, None, GenericEvent()]
    assert [index for index, _ in refusals] == [1, 2]


@pytest.mark.parametrize("body", [b"", b"\x81\x01\x02", b"\x92\x01", b"\xc1", b"\x90\x90", b"\xff"])
def test_a_body_that_is_no_array_is_no_batch_at_all(body: bytes) -> None:
    for kind in (EventType(Click), EventType(GenericEvent)):
        with pytest.raises(msgspec.DecodeError):
            kind.decode(body)
        with pytest.raises(msgspec.DecodeError):
            slowly(kind, body)


@given(st.lists(st.lists(st.integers(0, 9) | st.text(max_size=2), max_size=3), max_size=6))
def test_the_slow_way_finds_what_the_fast_way_finds_one_by_one(rows: list[list[Any]]) -> None:
    kind = EventType(Click)
    events, refusals = slowly(kind, array(*rows))
    assert len(events) == len(rows)
    bad = {index for index, _ in refusals}
    for index, row in enumerate(rows):
        try:
            alone = kind.decode(array(row))
        except msgspec.ValidationError:
            assert index in bad
            assert events[index] is None
        else:
            assert index not in bad
            assert events[index] == alone[0]


@given(st.binary(max_size=40))
def test_arbitrary_bytes_never_decode_to_an_unexpected_error(body: bytes) -> None:
    for cls in (Click, GenericEvent, Everything):
        kind = EventType(cls)
        for decode in (kind.decode, partial(slowly, kind), partial(from_json, kind)):
            with suppress(msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                decode(body)


# --- JSON ----------------------------------------------------------------------------------------


def test_json_objects_become_typed_events() -> None:
    body = b'[{"user": "joe", "millis": 5}, {"user": "h\\u00e9"}]'
    assert from_json(EventType(Click), body) == ([Click("joe", 5), Click("hé", 0)], [])


def test_json_objects_become_generic_events() -> None:
    events, refusals = from_json(EventType(GenericEvent), b'[{"a": [1, null]}, {}]')
    assert (events, refusals) == ([GenericEvent(a=[1, None]), GenericEvent()], [])
    with pytest.raises(EventError, match="already sent"):
        events[0].put("b", 1)


def test_json_that_does_not_decode_is_refused_by_index_and_reason() -> None:
    body = b'[{"user": "joe"}, {"user": 5}, {}, {"user": "a", "b": 1}, ["joe"], {"user": "z"}]'
    events, refusals = from_json(EventType(Click), body)
    assert events == [Click("joe"), None, None, None, None, Click("z")]
    assert refusals == [
        (1, 'Click does not decode: Expected `str`, got `int` - at `$.user`, in {"user": 5}'),
        (2, "Click does not decode: Object missing required field `user`, in {}"),
        (
            3,
            'Click does not decode: Object contains unknown field `b`, in {"user": "a", "b": 1}',
        ),
        (4, 'Click does not decode: Expected `object`, got `array`, in ["joe"]'),
    ]


def test_the_beginning_of_a_long_json_text_is_quoted() -> None:
    _, refusals = from_json(EventType(Click), b'[{"age": 5, "user": "' + b"a" * 1000 + b'"}]')
    (_, why) = refusals[0]
    (_, shown) = why.split(", in ")
    assert shown.startswith('{"age": 5, "user": "aaaa')
    assert shown.endswith("a...")
    assert len(shown) == 100 + len("...")


def test_json_reads_keyword_only_renamed_and_checked_events() -> None:
    assert from_json(EventType(Keywords), b'[{"user": "a"}]') == ([Keywords(user="a")], [])
    assert from_json(EventType(Camel), b'[{"firstName": "a", "birthYear": 3}]') == (
        [Camel("a", 3)],
        [],
    )
    events, refusals = from_json(EventType(Checked), b'[{"percent": 101}, {"percent": 1}]')
    assert events == [None, Checked(1)]
    assert refusals == [(0, 'Checked does not decode: more than all of it, in {"percent": 101}')]


def test_each_json_event_gets_a_mutable_default_of_its_own() -> None:
    (one, other), _ = from_json(EventType(Tree), b'[{"name": "a"}, {"name": "b"}]')
    assert one.children == other.children == []
    assert one.children is not other.children


@pytest.mark.parametrize("body", [b"", b"{}", b"[", b"[{}", b"5", b"[{},]", b"[] []"])
def test_json_that_is_no_array_is_no_batch_at_all(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(EventType(Click), body)


def test_json_texts_travel_as_one_array_under_the_node_s_type() -> None:
    click = EventType(Click)
    kind = JsonType(click.declaration)
    assert (kind.name, kind.fingerprint, kind.encoding) == ("Click", click.fingerprint, 1)
    body = kind.encode([JsonText(b'{"user":"joe"}'), JsonText(b'{"user":"ann","millis":2}')])
    assert body == b'[{"user":"joe"},{"user":"ann","millis":2}]'
    assert from_json(click, body) == ([Click("joe"), Click("ann", 2)], [])


class Visit(Event):
    user: str
    count: int = 1


GENERIC_DECLARATION = EventType(GenericEvent).declaration


def test_generic_events_are_read_as_the_only_type_by_the_names_of_its_fields() -> None:
    body = EventType(GenericEvent).encode(
        [GenericEvent(count=3, user="joe"), GenericEvent(user="ann")]
    )
    reader = reader_of(GENERIC_DECLARATION, {"Visit": EventType(Visit)}, others=False)
    assert reader.decode(body) == [Visit("joe", 3), Visit("ann", 1)]
    assert from_json(reader, b'[{"user": "bob"}]') == ([Visit("bob", 1)], [])


def test_a_generic_event_that_is_none_of_the_type_is_refused_alone() -> None:
    body = EventType(GenericEvent).encode(
        [GenericEvent(user="joe"), GenericEvent(name="ann"), GenericEvent(user="bob", odd=1)]
    )
    reader = reader_of(GENERIC_DECLARATION, {"Visit": EventType(Visit)}, others=False)
    events, refusals = slowly(reader, body)
    assert events == [Visit("joe", 1), None, None]
    assert [index for index, _ in refusals] == [1, 2]
    assert "unknown field `name`" in refusals[0][1]


def test_no_type_is_guessed_if_there_are_several() -> None:
    known = {"Visit": EventType(Visit), "Click": EventType(Click)}
    reader = reader_of(GENERIC_DECLARATION, known, others=False)
    events, refusals = slowly(reader, EventType(GenericEvent).encode([GenericEvent(user="a")]))
    assert events == [None]
    assert "not among the event types asked for: Visit, Click" in refusals[0][1]
