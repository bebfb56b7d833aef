"""Which requested startpoint holds for which task."""

from __future__ import annotations

from typing import get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from s4node.offsets.startpoint import Oldest, Specific, Startpoint, Timestamp, Upcoming, describe
from s4node.offsets.startpoint_fan_out import EXPIRY_MS, Fanned, Place, Request, fan_out

A: Place = ("log", "clicks", 0)
B: Place = ("log", "a.7.b", 0)
NOW = 1_000_000_000


def request(
    name: str, place: Place, startpoint: Startpoint, created: int = NOW, task: str = ""
) -> Request:
    return Request(name, *place, startpoint, created, task)


def test_a_request_for_a_partition_goes_to_every_task_that_reads_it() -> None:
    fanned = fan_out({"t0": [A], "t1": [A, B]}, [request("1", A, Oldest())], {}, NOW)
    assert {task: [r.id for r in waiting] for task, waiting in fanned.pending.items()} == {
        "t0": ["1"],
        "t1": ["1"],
    }
    assert fanned.spent == {"1"}


def test_a_startpoint_for_the_task_wins_over_another_of_the_same_moment() -> None:
    wide, own = request("1", A, Oldest()), request("2", A, Upcoming(), task="t0")
    assert fan_out({"t0": [A]}, [own, wide], {}, NOW).pending == {"t0": (own,)}


def test_a_request_for_an_unread_partition_stays() -> None:
    assert fan_out({"t0": [A]}, [request("1", B, Oldest())], {}, NOW) == Fanned({}, frozenset())


def test_a_request_is_one_json_object() -> None:
    made = request("1", B, Timestamp(5), task="t 0")
    text = msgspec.json.encode(made)
    assert b'"startpoint":{"kind":"timestamp","millis":5}' in text
    assert msgspec.json.decode(text, type=Request) == made


def test_every_kind_of_startpoint_has_its_words() -> None:
    kinds = Oldest(), Upcoming(), Specific(9), Timestamp(3)
    assert {type(kind) for kind in kinds} == set(get_args(Startpoint))
    words = ["oldest", "upcoming", "offset 9", "timestamp 3"]
    assert [describe(kind) for kind in kinds] == words


places = st.sampled_from([A, B, ("live", "x", 3)])
tasks = st.sampled_from(["t0", "t1", "t2"])
requests = st.lists(
    st.builds(
        lambda n, place, age, task: request(str(n), place, Oldest(), NOW - age, task),
        st.integers(),
        places,
        st.sampled_from([0, 1, 1000, EXPIRY_MS - 1, EXPIRY_MS, EXPIRY_MS + 1]),
        st.one_of(st.just(""), tasks),
    ),
    max_size=8,
    unique_by=lambda r: r.id,
)


@given(st.dictionaries(tasks, st.lists(places, unique=True)), requests, requests)
def test_each_partition_of_a_task_gets_the_latest_that_fits(
    model: dict[str, list[Place]], first: list[Request], second: list[Request]
) -> None:
    before = fan_out(model, first, {}, NOW)
    after = fan_out(model, second, before.pending, NOW)
    for task, read in model.items():
        for place in read:
            fitting = [
                r
                for r in (*first, *second)
                if r.place == place and r.task in ("", task) and NOW - r.created_ms < EXPIRY_MS
            ]
            held = [r for r in after.pending.get(task, ()) if r.place == place]
            assert [r.rank for r in held] == [max(r.rank for r in fitting)] if fitting else not held
    assert not any(NOW - r.created_ms >= EXPIRY_MS for w in after.pending.values() for r in w)


@given(st.dictionaries(tasks, st.lists(places, unique=True)), requests)
def test_a_second_start_changes_nothing(model: dict[str, list[Place]], made: list[Request]) -> None:
    once = fan_out(model, made, {}, NOW)
    left = [r for r in made if r.id not in once.spent]
    assert fan_out(model, left, once.pending, NOW).pending == once.pending
