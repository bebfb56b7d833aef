"""The promises of the assignment: owners stay, orphans are shared out evenly, epochs fence."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.cluster.coordination.assignment import (
    Assignment,
    Member,
    Owner,
    assign,
    handed_over,
    has_living_owner,
    moves,
    pack,
    unpack,
)

A = Member("a", "tcp://a", "session-a")
B = Member("b", "tcp://b", "session-b")
C = Member("c", "tcp://c", "session-c")


@pytest.mark.parametrize(
    ("partitions", "steps", "owners", "expected_epochs"),
    [
        (4, [[A]], "aaaa", [1, 1, 1, 1]),
        (4, [[A, B]], "abab", [1, 1, 1, 1]),
        (4, [[B, A]], "baba", [1, 1, 1, 1]),
        (5, [[A, B, C]], "abcab", [1, 1, 1, 1, 1]),
        (2, [[A, B, C]], "ab", [1, 1]),
        (2, [[A, B, C], [B, C]], "cb", [2, 1]),
        (4, [[A], [A, B]], "aaaa", [1, 1, 1, 1]),
        (4, [[A], [A, B], [B]], "bbbb", [2, 2, 2, 2]),
        (4, [[A, B], [A]], "aaaa", [1, 2, 1, 2]),
        (4, [[A, B], [A], [A, C]], "aaaa", [1, 2, 1, 2]),
        (6, [[A, B], [A, C]], "acacac", [1, 2, 1, 2, 1, 2]),
        (3, [[A, B], [A, B, C], [A, C]], "aca", [1, 2, 1]),
        (2, [[A, B], []], "..", [2, 2]),
        (2, [[A, B], [], []], "..", [2, 2]),
        (2, [[A, B], [], [B]], "bb", [3, 3]),
        (2, [[]], "..", [1, 1]),
    ],
)
def test_the_rules_by_example(
    partitions: int, steps: list[list[Member]], owners: str, expected_epochs: list[int]
) -> None:
    assignment = after(partitions, *steps)
    assert names(assignment) == owners
    assert epochs(assignment) == expected_epochs


def test_without_an_assignment_before_it_is_the_first() -> None:
    assert assign(3, [A, B], None) == assign(3, [A, B], Assignment())
    assert assign(3, [A, B], None).epoch == 1


def test_where_nothing_changes_the_same_assignment_comes_back() -> None:
    before = assign(4, [A, B], None)
    assert assign(4, [A, B], before) is before
    assert assign(4, [B, A, C], before) is before


def test_a_member_that_comes_back_under_its_name_is_another_one() -> None:
    before = assign(4, [A, B], None)
    now = assign(4, [B, A_AGAIN], before)
    assert names(now) == "abab"
    assert epochs(now) == [2, 1, 2, 1]
    assert now.owners[0].session == "session-a-again"


def test_what_is_awaited_stays_with_its_name_until_that_returns() -> None:
    before = assign(4, [A, B], None)
    assert assign(4, [B, C], before, awaited={"a"}) is before
    assert names(assign(4, [B, C], before)) == "cbcb"
    assert names(assign(4, [B, C, A_AGAIN], before, awaited={"a"})) == "abab"
    assert assign(4, [], before, awaited={"a", "b"}) is before


def test_a_drained_member_gets_nothing_and_owes_everything() -> None:
    before = assign(4, [A, B], None)
    assert assign(4, [A, B, C], before, drained={A.key}) is before
    owed = moves(before, [A, B, C], drained={A.key})
    assert {partition: heir.name for partition, heir in owed.items()} == {0: "c", 2: "c"}
    after_death = assign(4, [A, C], before, drained={A.key})
    assert names(after_death) == "acac"
    assert moves(before, [A, B], drained={A.key, B.key}) == {}  # nobody else could take it


def test_an_assignment_is_packed_and_unpacked_as_it_was() -> None:
    before = assign(4, [A, B], None)
    for assignment in (Assignment(), before, handed_over(before, {0: C}), assign(4, [], before)):
        assert unpack(pack(assignment)) == assignment
    for damaged in (b"", b"rubbish", pack(before)[:-1]):
        with pytest.raises(ValueError, match=r"."):
            unpack(damaged)


@pytest.mark.long
def test_of_1000_members_with_4096_partitions_the_entry_is_small_and_a_join_moves_few() -> None:
    random = Random(1)
    members = [
        Member(
            f"node-{number:04}", f"tcp://10.0.{number // 250}.{number % 250}:12001", fresh(random)
        )
        for number in range(1000)
    ]
    assignment = assign(4096, members, None)
    for _ in range(200):  # later epochs differ from partition to partition
        heir = random.choice(members)
        assignment = handed_over(assignment, {random.randrange(4096): heir})
    assert len(pack(assignment)) < 64_000
    even = assign(4096, members, None)
    joined = moves(even, [*members, Member("new", "tcp://new", "new")])
    assert 0 < len(joined) <= 5
    gone = assign(4096, members[1:], even)
    assert sum(a != b for a, b in zip(even.owners, gone.owners, strict=True)) <= 5


def fresh(random: Random) -> str:
    """A session's id."""
    return f"{random.getrandbits(64):016x}"


def test_two_members_of_one_session_are_two() -> None:
    one = Member("one", "tcp://one", "same")
    two = Member("two", "tcp://two", "same")
    before = assign(4, [one, two], None)
    assert [owner.member for owner in before.owners] == ["one", "two", "one", "two"]
    assert [o.member for o in assign(4, [two], before).owners] == ["two", "two", "two", "two"]


def test_another_number_of_partitions_starts_anew_with_higher_epochs() -> None:
    before = assign(4, [A, B], None)
    now = assign(3, [A, B], before)
    assert names(now) == "aba"
    assert epochs(now) == [2, 2, 2]


def test_an_owner_lives_if_one_of_the_members_is_it() -> None:
    assignment = assign(2, [A], None)
    assert has_living_owner(assignment, [B, A])
    assert not has_living_owner(assignment, [B])
    assert not has_living_owner(assignment, [A_AGAIN])
    assert not has_living_owner(assignment, [])
    assert not has_living_owner(None, [A])
    assert not has_living_owner(assign(2, [], None), [A])


@pytest.mark.parametrize(
    ("owners", "members", "containers", "expected"),
    [
        ("aaaa", [A], 0, {}),
        ("aaaa", [A, B], 0, {3: "b", 2: "b"}),
        ("aaaa", [A, B, C], 0, {2: "b", 3: "c"}),
        ("aaab", [A, B], 0, {2: "b"}),
        ("aaabb", [A, B], 0, {}),
        ("aabb", [A, B, C], 0, {1: "c"}),
        ("aaabbb", [A, B, C], 0, {2: "c", 5: "c"}),
        ("aaabbb", [A, B, C], 2, {}),
        ("aabbcc", [A, B, C], 2, {4: "a", 5: "b"}),
        ("aaaa", [A, B, C], 2, {3: "b", 2: "b"}),
    ],
)
def test_a_member_with_too_many_tasks_should_hand_over_as_few_as_possible(
    owners: str, members: list[Member], containers: int, expected: dict[int, str]
) -> None:
    by_name = {member.name: member for member in members}
    each = (by_name[name] for name in owners)
    before = Assignment(3, tuple(Owner(m.name, m.address, m.session, 2) for m in each))
    found = moves(before, members, containers)
    assert {partition: heir.name for partition, heir in found.items()} == expected
    now = handed_over(before, found)
    assert now.epoch == 4
    assert moves(now, members, containers) == {}
    assert [owner.epoch for owner in now.owners] == [
        4 if partition in expected else 2 for partition in range(len(owners))
    ]


def test_before_all_partitions_have_living_owners_nothing_is_to_be_handed_over() -> None:
    assert moves(assign(4, [A, B], None), [A], 0) == {}


@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(1, 5), st.integers(0, 5))
def test_after_what_is_owed_was_handed_over_all_share_evenly(
    owners: list[int], count: int, containers: int
) -> None:
    members = [Member(f"m{n}", f"tcp://{n}", f"s{n}") for n in range(max(count, max(owners) + 1))]
    each = [members[n] for n in owners]
    before = Assignment(1, tuple(Owner(m.name, m.address, m.session, 1) for m in each))
    found = moves(before, members, containers)
    now = handed_over(before, found)
    loads = Counter(owner.member for owner in now.owners)
    sharing = min(containers or len(members), len(members))
    assert len(loads) <= sharing
    even = [len(owners) // sharing, -(-len(owners) // sharing)]
    assert all(load in even for load in loads.values())
    assert all(now.owners[p].member != before.owners[p].member for p in found)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=24),
    st.integers(1, 6),
    st.integers(0, 6),
    st.sets(st.integers(0, 5), max_size=3),
    st.randoms(use_true_random=False),
)
def test_a_partition_keeps_its_next_owner_in_whatever_order_the_others_move(
    owners: list[int], count: int, containers: int, leaving: set[int], order: Random
) -> None:
    members = [Member(f"m{n}", f"tcp://{n}", f"s{n}") for n in range(max(count, max(owners) + 1))]
    each = [members[n] for n in owners]
    drained = {one.key for one in members if int(one.name[1:]) in leaving}
    now = Assignment(1, tuple(Owner(m.name, m.address, m.session, 1) for m in each))
    planned = moves(now, members, containers, drained)
    while planned:
        partition = order.choice(sorted(planned))
        now = handed_over(now, {partition: planned.pop(partition)})
        assert moves(now, members, containers, drained) == planned


def test_an_assignment_survives_json_and_newer_fields_do_no_harm() -> None:
    assignment = assign(3, [A, B], None)
    text = msgspec.json.encode(assignment)
    assert msgspec.json.decode(text, type=Assignment) == assignment
    newer = b'{"epoch":7,"owners":[{"member":"a","later":1}],"also":"this"}'
    assert msgspec.json.decode(newer, type=Assignment) == Assignment(7, (Owner("a"),))


# --- whatever happens ----------------------------------------------------------------------------

members = st.lists(st.integers(0, 7), unique=True, max_size=8).map(
    lambda numbers: [Member(f"m{n}", f"tcp://m{n}", f"s{n}") for n in numbers]
)
histories = st.lists(members, min_size=1, max_size=12)


def loads(assignment: Assignment, living: list[Member]) -> dict[tuple[str, str], int]:
    counts = {member.key: 0 for member in living}
    for owner in assignment.owners:
        counts[owner.key] += 1
    return counts


@given(st.integers(1, 40), histories)
def test_every_partition_has_a_living_owner_while_anybody_lives(
    partitions: int, history: list[list[Member]]
) -> None:
    now = Assignment()
    for living in history:
        now = assign(partitions, living, now)
        assert len(now.owners) == partitions
        keys = {member.key for member in living} or {("", "")}
        assert {owner.key for owner in now.owners} <= keys
        for owner in now.owners:
            assert owner.member == "" or owner.address == f"tcp://{owner.member}"


@given(st.integers(1, 40), histories)
def test_only_orphans_move_and_only_what_moves_gets_a_new_epoch(
    partitions: int, history: list[list[Member]]
) -> None:
    before = assign(partitions, history[0], None)
    for living in history[1:]:
        now = assign(partitions, living, before)
        alive = {member.key for member in living}
        for old, new in zip(before.owners, now.owners, strict=True):
            if old.key in alive:
                assert new == old
            elif new != old:
                assert new.epoch == now.epoch == before.epoch + 1
                assert new.key != old.key
        assert (now is before) == (now.owners == before.owners)
        before = now


@given(st.integers(1, 40), histories)
def test_an_orphan_never_goes_to_who_has_two_more_than_another(
    partitions: int, history: list[list[Member]]
) -> None:
    before = assign(partitions, history[0], None)
    for living in history[1:]:
        now = assign(partitions, living, before)
        counts = loads(now, living) if living else {}
        for old, new in zip(before.owners, now.owners, strict=True):
            if new != old and new.member:
                assert counts[new.key] <= min(counts.values()) + 1
        before = now


@given(st.integers(1, 60), members.filter(bool))
def test_where_nothing_stays_shares_differ_by_one_at_most(
    partitions: int, living: list[Member]
) -> None:
    counts = loads(assign(partitions, living, None), living).values()
    assert max(counts) - min(counts) <= 1
    assert sum(1 for count in counts if count == 0) == max(0, len(living) - partitions)


# -- set-up ---------------------------------------------------------------------------------------


A_AGAIN = Member("a", "tcp://a", "session-a-again")


def names(assignment: Assignment) -> str:
    """The owners by partition in one text; a dot for nobody."""
    return "".join(owner.member or "." for owner in assignment.owners)


def epochs(assignment: Assignment) -> list[int]:
    return [owner.epoch for owner in assignment.owners]


def after(partitions: int, *steps: list[Member]) -> Assignment:
    assignment = Assignment()
    for members in steps:
        assignment = assign(partitions, members, assignment)
    return assignment
