"""The promises of standbys: never the owner, in another zone, even, few changes, and the heirs."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from s4node.cluster.coordination.assignment import (
    Assignment,
    Member,
    assign,
    handed_over,
    moves,
    pack,
    unpack,
)


def member(name: str, zone: str = "") -> Member:
    return Member(name, f"tcp://{name}", f"session-{name}", zone, follows=True)


def shown(assignment: Assignment) -> tuple[str, str]:
    """The owners and their standbys, by partition."""
    return (
        "".join(owner.member or "." for owner in assignment.owners),
        "".join(name or "." for name in assignment.standbys),
    )


A, B, C, D = map(member, "abcd")


def test_each_partition_has_a_standby_that_takes_it_over() -> None:
    first = assign(6, [A, B, C], None)
    assert shown(first) == ("abcabc", "baaccb")
    assert shown(assign(6, [B, C], first)) == ("bbccbc", "ccbbcb")
    assert shown(assign(6, [A, B], first)) == ("abaabb", "babbaa")


def test_a_member_that_does_not_follow_is_no_standby() -> None:
    none = [msgspec.structs.replace(each, follows=False) for each in (A, B)]
    assert assign(4, none, None).standbys == ()
    assert shown(assign(4, [A, none[1]], None)) == ("abab", ".a.a")
    assert shown(assign(4, [A], None)) == ("aaaa", "....")


def test_a_standby_is_in_another_zone_if_there_is_one() -> None:
    here = [member("a", "one"), member("b", "one"), member("c", "two")]
    assert shown(assign(6, here, None)) == ("abcabc", "ccaccb")
    one_zone = [member("a", "one"), member("b", "one")]
    assert shown(assign(4, one_zone, None)) == ("abab", "baba")
    unknown = [member("a", "one"), member("b"), member("c", "two")]
    assert shown(assign(9, unknown, None)) == ("abcabcabc", "caaccacaa")


def test_a_drained_member_hands_over_to_its_standbys_and_follows_nothing() -> None:
    first = assign(6, [A, B, C], None)
    drained = assign(6, [A, B, C], first, drained={A.key})
    assert shown(drained)[0] == "abcabc"
    assert "a" not in drained.standbys
    owed = moves(drained, [A, B, C], drained={A.key})
    assert {p: heir.name for p, heir in owed.items()} == {0: "b", 3: "c"}
    assert [drained.standbys[p] for p in (0, 3)] == ["b", "c"]


def test_a_new_owner_changes_places_with_the_former_one() -> None:
    first = assign(2, [A, B], None)
    assert shown(first) == ("ab", "ba")
    assert shown(handed_over(first, {0: B})) == ("bb", "aa")
    assert shown(handed_over(first, {0: C})) == ("cb", "ba")


def test_a_standby_that_is_awaited_stays() -> None:
    first = assign(4, [A, B, C], None)
    assert shown(first) == ("abca", "baac")
    away = assign(4, [A, B], first, awaited={"c"})
    assert shown(away) == ("abca", "baac")
    assert "c" not in assign(4, [A, B], away).standbys


def test_an_assignment_with_standbys_is_packed_and_small() -> None:
    random = Random(1)
    members = [
        Member(
            f"node-{n:04}",
            f"tcp://10.0.{n // 250}.{n % 250}:12001",
            f"{random.getrandbits(64):016x}",
            f"zone-{n % 3}",
            follows=True,
        )
        for n in range(100)
    ]
    assignment = assign(1024, members, None)
    assert unpack(pack(assignment)) == assignment
    many = msgspec.structs.replace(
        assignment,
        owners=assignment.owners * 4,
        standbys=tuple(random.choice(members).name for _ in range(4096)),
    )
    assert unpack(pack(many)) == many
    assert len(pack(many)) < 64_000


Step = tuple[list[str], bool]


@given(
    st.integers(1, 24),
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True), max_size=8),
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", "x", "y"]), max_size=6),
)
def test_whoever_comes_and_goes_the_promises_hold(
    partitions: int, steps: list[list[str]], zones: dict[str, str]
) -> None:
    before: Assignment | None = None
    for names in steps:
        members = [member(name, zones.get(name, "")) for name in names]
        now = assign(partitions, members, before)
        check(now, members)
        assert assign(partitions, members, now) is now
        if before is not None:
            check_heirs(before, now, members)
        while owed := moves(now, members):
            partition = min(owed)
            now = handed_over(now, {partition: owed[partition]})
            now = assign(partitions, members, now)
            check(now, members)
        if not any(each.zone for each in members):
            check_even(now, members)
        before = now


def check(now: Assignment, members: list[Member]) -> None:
    zone = {each.name: each.zone for each in members}
    for owner, standby in zip(now.owners, now.standbys, strict=True):
        assert standby != owner.member
        assert bool(standby) == (len(members) > 1)
        if standby and (mine := zone[owner.member]):
            others = {z for z in zone.values() if z not in ("", mine)}
            assert not others or zone[standby] in others


def check_even(now: Assignment, members: list[Member]) -> None:
    """No member is the standby of two more than another, unless the other owns all of them."""
    load = {each.name: now.standbys.count(each.name) for each in members}
    richest, poorest = max(load, key=load.__getitem__), min(load, key=load.__getitem__)
    pairs = zip(now.owners, now.standbys, strict=True)
    led = {owner.member for owner, standby in pairs if standby == richest}
    assert load[richest] - load[poorest] < 2 or led == {poorest}


def check_heirs(before: Assignment, now: Assignment, members: list[Member]) -> None:
    alive = {each.name for each in members}
    for old, standby, new in zip(before.owners, before.standbys, now.owners, strict=True):
        if old.member not in alive and standby in alive:
            assert new.member == standby


def test_a_join_moves_few_standbys() -> None:
    members = [member(f"n{n:02}") for n in range(9)]
    before = assign(90, members, None)
    after = assign(90, [*members, member("new")], before)
    changed = sum(a != b for a, b in zip(before.standbys, after.standbys, strict=True))
    assert changed == 9
    assert Counter(after.standbys)["new"] == 9
