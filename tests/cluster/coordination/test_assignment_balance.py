"""The promises of sharing out: even to within one, few moves, spares, and nobody living loses."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.cluster.coordination.assignment import Assignment, Key, Member, assign, balance

# --- the number of containers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "living", "containers", "owners"),
    [
        (6, "abc", 0, "abcabc"),
        (6, "abc", 2, "ababab"),
        (6, "abc", 1, "aaaaaa"),
        (6, "abc", 9, "abcabc"),
        (2, "abc", 3, "ab"),
    ],
)
def test_no_more_members_than_wanted_get_tasks_and_the_others_are_spares(
    tasks: int, living: str, containers: int, owners: str
) -> None:
    assert names(assign(tasks, crew(living), None, containers)) == owners


def test_a_spare_takes_over_what_a_dead_container_had() -> None:
    before = assign(6, crew("abc"), None, 2)
    assert names(assign(6, crew("ac"), before, 2)) == "acacac"
    assert names(assign(6, crew("bc"), before, 2)) == "cbcbcb"


def test_a_container_that_comes_back_is_a_spare_while_there_are_enough() -> None:
    before = assign(6, crew("abc"), None, 2)
    taken = assign(6, crew("ac"), before, 2)
    assert assign(6, [*crew("ac"), member("b", 2)], taken, 2) is taken


def test_nobody_living_loses_tasks_when_fewer_containers_are_wanted() -> None:
    before = assign(6, crew("abc"), None)
    assert assign(6, crew("abc"), before, 2) is before
    assert names(assign(6, crew("bc"), before, 1)) == "bbccbc"  # both have some, so both take over


# --- another number of containers after a restart ------------------------------------------------


@pytest.mark.parametrize(
    ("before", "count", "now", "recount", "owners"),
    [
        ("ab", 0, "ab", 0, "ababab"),
        ("ab", 0, "ba", 0, "ababab"),
        ("ab", 0, "abc", 0, "ababcc"),
        ("ab", 0, "cab", 0, "ababcc"),
        ("abc", 0, "ab", 0, "abaabb"),
        ("abc", 0, "cb", 0, "cbcbbc"),
        ("abc", 0, "abc", 2, "abaabb"),
        ("abc", 2, "abc", 3, "ababcc"),
        ("bc", 2, "abc", 2, "bcbcbc"),  # files of their tasks' state are with b and c
        ("a", 0, "abcdef", 0, "abcdef"),
        ("abcdef", 0, "f", 0, "ffffff"),
    ],
)
def test_after_a_restart_shares_are_even_and_what_can_stays_where_it_was(
    before: str, count: int, now: str, recount: int, owners: str
) -> None:
    first = assign(6, crew(before), None, count)
    then = assign(6, crew(now, life=2), first, recount)
    assert names(then) == owners
    assert {owner.epoch for owner in then.owners} == {2}
    assert all(owner.session.endswith("-2") for owner in then.owners)


# --- whatever happens ----------------------------------------------------------------------------

letters = st.lists(st.sampled_from("abcdefg"), unique=True, max_size=7).map("".join)
some = letters.filter(bool)


@given(st.integers(1, 60), some, some, st.integers(0, 8), st.integers(0, 8))
def test_after_a_restart_the_shares_differ_by_one_at_most(
    tasks: int, before: str, now: str, count: int, recount: int
) -> None:
    first = assign(tasks, crew(before), None, count)
    then = assign(tasks, crew(now, life=2), first, recount)
    loads = Counter(names(then))
    active = min(len(now), recount or len(now))
    assert len(loads) == min(active, tasks)
    shares = [*loads.values(), *[0] * (active - len(loads))]
    assert max(shares) - min(shares) <= 1


def fewest_moves(homes: str, living: str) -> int:
    """By trying everything: the fewest tasks that change their name in an even sharing out."""
    fewest = len(homes)
    for owners in product(living, repeat=len(homes)):
        shares = [owners.count(name) for name in living]
        if max(shares) - min(shares) <= 1:
            moves = sum(home != owner for home, owner in zip(homes, owners, strict=True))
            fewest = min(fewest, moves)
    return fewest


@given(
    st.lists(st.sampled_from("abcd."), min_size=1, max_size=6).map("".join),
    st.lists(st.sampled_from("abcd"), unique=True, min_size=1, max_size=4).map("".join),
)
def test_as_few_tasks_move_as_an_even_sharing_out_allows(homes: str, living: str) -> None:
    keys: dict[Key, str] = {(f"{name}-2", name): name for name in living}
    heirs = balance([home.replace(".", "") for home in homes], keys)
    owners = "".join(heir[1] for heir in heirs if heir is not None)
    assert len(owners) == len(homes)
    shares = [owners.count(name) for name in living]
    assert max(shares) - min(shares) <= 1
    moves = sum(home != owner for home, owner in zip(homes, owners, strict=True))
    assert moves == fewest_moves(homes, living)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=1, max_size=6),
    st.lists(st.sampled_from("abcd"), unique=True, min_size=1, max_size=4),
)
def test_with_living_owners_it_is_as_even_as_can_be_and_moves_no_more_than_that_needs(
    before: list[tuple[str, bool]], living: list[str]
) -> None:
    """A home is a name and whether it still lives there, which it must do in the same life."""
    keys: dict[Key, str] = {(name, name): name for name in living}
    homes: list[Key | str] = [
        (name, name) if lives and name in living else name for name, lives in before
    ]
    heirs = [heir[1] for heir in balance(homes, keys) if heir is not None]
    fixed = [isinstance(home, tuple) for home in homes]
    assert all(
        owner == name for owner, (name, _), stays in zip(heirs, before, fixed, strict=True) if stays
    )

    def cost(owners: tuple[str, ...] | list[str]) -> tuple[list[int], int]:
        shares = sorted((owners.count(name) for name in living), reverse=True)
        return shares, sum(name != owner for owner, (name, _) in zip(owners, before, strict=True))

    choices = [[name] if stays else living for (name, _), stays in zip(before, fixed, strict=True)]
    assert cost(heirs) == min(map(cost, product(*choices)))


@given(st.integers(1, 30), some, some, st.integers(0, 8))
def test_who_computes_it_makes_no_difference(
    tasks: int, before: str, now: str, containers: int
) -> None:
    first = assign(tasks, crew(before), None, containers)
    then = assign(tasks, crew(now), first, containers)
    assert then == assign(tasks, crew(now), first, containers)
    assert assign(tasks, crew(now), then, containers) is then


# -- set-up ---------------------------------------------------------------------------------------


def member(name: str, life: int = 1) -> Member:
    """A member in one of the lives of its name."""
    return Member(name, f"tcp://{name}", f"{name}-{life}")


def crew(names: str, life: int = 1) -> list[Member]:
    return [member(name, life) for name in names]


def names(assignment: Assignment) -> str:
    return "".join(owner.member or "." for owner in assignment.owners)
