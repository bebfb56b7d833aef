"""The promises of broadcast inputs: the setting's syntax, and what it means for real streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import PartitionRange
from s4node.errors import ConfigError
from s4node.offsets.system import SystemStreamPartition as Ssp
from s4node.runtime.inputs.broadcast import partitions_of


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", ()),
        ("log.rules#2", (("log", "rules", 2, 2),)),
        ("log.rules#[0-1]", (("log", "rules", 0, 1),)),
        ("log.rules#[3-3]", (("log", "rules", 3, 3),)),
        ("log.a.b#2", (("log", "a.b", 2, 2),)),
        ("log.a.7.b#[0-12]", (("log", "a.7.b", 0, 12),)),
        ("log.a#b#2", (("log", "a#b", 2, 2),)),
        (
            "sys.one#[0-1],  sys.two#2",
            (("sys", "one", 0, 1), ("sys", "two", 2, 2)),
        ),
    ],
)
def test_the_syntax_by_example(text: str, meant: tuple[tuple[str, str, int, int], ...]) -> None:
    assert ranges(text) == meant


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("log.rules", "has no # with a partition, such as #2 or #[0-1]"),
        ("log.rules#", "does not end with a partition such as #2, or a range such as #[0-1]"),
        ("log.rules#x", "does not end with a partition"),
        ("log.rules#-1", "does not end with a partition"),
        ("log.rules#0-1", "does not end with a partition"),
        ("log.rules#[0]", "does not end with a partition"),
        ("log.rules#[0-]", "does not end with a partition"),
        ("log.rules#[0-1", "does not end with a partition"),
        ("log.rules#²", "does not end with a partition"),
        ("log.rules#[2-1]", "is a range that ends before it begins (2 is above 1)"),
        ("rules#2", "does not begin with system.stream"),
        (".rules#2", "does not begin with system.stream"),
        ("log.#2", "does not begin with system.stream"),
        ("log.a..b#2", "does not begin with system.stream"),
    ],
)
def test_impossible_partitions_are_reported_with_their_text(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ranges(f"log.fine#0, {text}")
    assert f"code: {KEY} = 'log.fine#0, {text}' has {text!r} in it, which {what}" in str(
        caught.value
    )


def test_a_range_is_written_as_it_is_read() -> None:
    text = "log.a.b#[0-1], log.c#2"
    assert ", ".join(map(str, ranges(text))) == text


def test_the_partitions_are_those_of_the_ranges_each_once_in_order() -> None:
    found = partitions_of(
        ranges("log.b#[1-2], log.a.b#0, log.b#2"), {("log", "b"): 3, ("log", "a.b"): 1}
    )
    assert found == (Ssp("log", "a.b", 0), Ssp("log", "b", 1), Ssp("log", "b", 2))


def test_partitions_that_a_stream_has_not_and_streams_that_are_not_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        partitions_of(ranges("log.rules#[1-4], log.none#0, log.rules#3"), {("log", "rules"): 4})
    assert str(caught.value).splitlines() == [
        f"{KEY}: log.rules#[1-4] does not exist: log.rules has 4 partitions; write at most #3",
        f"{KEY}: log.none#0 names a stream that does not exist; create it, or fix its name",
    ]


words = st.from_regex(r"[a-z0-9_#-]{1,6}(\.[a-z0-9_#-]{1,6}){0,2}", fullmatch=True)
some_ranges = st.builds(
    lambda system, stream, first, more: PartitionRange(system, stream, first, first + more),
    st.from_regex(r"[a-z]{1,5}", fullmatch=True),
    words,
    st.integers(0, 50),
    st.integers(0, 9),
)


@given(st.lists(some_ranges, max_size=6, unique=True))
def test_any_list_of_ranges_survives_being_written(given_ranges: list[PartitionRange]) -> None:
    assert ranges(", ".join(map(str, given_ranges))) == tuple(given_ranges)


@given(st.lists(some_ranges, max_size=6, unique=True))
def test_what_is_broadcast_is_what_the_ranges_name_and_nothing_else(
    given_ranges: list[PartitionRange],
) -> None:
    counts = {(r.system, r.stream): 60 for r in given_ranges}
    found = partitions_of(tuple(given_ranges), counts)
    assert len(set(found)) == len(found)
    assert set(found) == {
        Ssp(r.system, r.stream, n)
        for r in given_ranges
        for n in range(60)
        if r.first <= n <= r.last
    }


# -- set-up ---------------------------------------------------------------------------------------


KEY = "task.broadcast.inputs"


def ranges(text: str) -> tuple[PartitionRange, ...]:
    return Config.from_values({KEY: text})[settings.BROADCAST_INPUTS]
