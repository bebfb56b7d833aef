"""The partition that a member is ready for: one at a time, in turn, and none while it is busy."""

from __future__ import annotations

import math

import pytest

from s4node.runtime.container.announcement import (
    FOLLOWED_AT_ONCE,
    PATIENCE_SECONDS,
    Announcement,
    HandOvers,
    to_follow,
)


def test_a_member_is_ready_for_the_lowest_and_stays_so_until_it_has_it() -> None:
    ready = Announcement()
    assert (ready.partitions, ready.until) == ((), math.inf)
    ready.choose({5, 3}, 100.0)
    assert ready.partitions == (3,)
    ready.choose({5, 3, 1}, 101.0)  # one that is to come now, too
    assert ready.partitions == (3,)
    ready.choose({5, 1}, 102.0)
    assert ready.partitions == (5,)
    ready.choose({1}, 103.0)
    assert ready.partitions == (1,)
    ready.choose(set(), 104.0)
    assert (ready.partitions, ready.until) == ((), math.inf)


def test_a_partition_that_does_not_come_waits_while_the_others_have_their_turns() -> None:
    ready, now, said = Announcement(), 0.0, []
    for _ in range(7):
        ready.choose({1, 4, 6}, now)
        assert ready.until == now + PATIENCE_SECONDS
        said += ready.partitions
        now = ready.until
    assert said == [1, 4, 6, 1, 4, 6, 1]


def test_the_only_one_is_waited_for() -> None:
    ready = Announcement()
    for turn in range(3):
        ready.choose({2}, turn * PATIENCE_SECONDS)
        assert ready.partitions == (2,)


@pytest.mark.parametrize(
    ("given", "followed", "stuck", "expected"),
    [
        ({9, 8, 7}, set(), set(), {7, 8, 9}),
        ({3, 4, 5, 6, 7, 8}, set(), set(), {3, 4, 5, 6}),
        ({3, 4, 5, 6, 7, 8}, {5, 6, 7, 8}, set(), {5, 6, 7, 8}),
        ({4, 5, 6, 7, 8}, {3, 6, 7, 8}, set(), {4, 6, 7, 8}),
        ({3, 4, 5, 6, 7, 8}, {3, 4, 5, 6}, {3, 5}, {3, 4, 5, 6, 7, 8}),
        (set(), {1, 2}, {2}, set()),
    ],
    ids=["all", "the lowest", "those before", "the next", "beside stuck ones", "none"],
)
def test_a_member_follows_a_few_of_those_that_are_to_come(
    given: set[int], followed: set[int], stuck: set[int], expected: set[int]
) -> None:
    assert FOLLOWED_AT_ONCE == 4
    assert to_follow(given, followed, stuck) == expected


@pytest.mark.parametrize(
    ("gained", "after"),
    [((), (3,)), ((3,), (3,)), ((7,), ()), ((3, 7), ())],
    ids=["nothing", "this one", "another", "both"],
)
def test_a_member_that_is_given_others_is_ready_for_none(
    gained: tuple[int, ...], after: tuple[int, ...]
) -> None:
    ready = Announcement()
    ready.choose({3, 5}, 0.0)
    ready.gain(gained)
    assert ready.partitions == after
    assert (ready.until == math.inf) == (after == ())
    ready.choose({3, 5}, 1.0)  # once those take events
    assert ready.partitions == (3,)


def test_partitions_are_handed_over_one_after_the_other() -> None:
    going = HandOvers()
    assert going.begin_one(set(), 0.0) is None
    assert going.until == math.inf
    assert going.begin_one({3, 5}, 1.0) == 3
    assert going.begin_one({3, 5}, 2.0) is None
    going.end_one(3)
    assert going.begin_one({5}, 2.0) == 5
    assert going.begin_one({5}, 3.0) is None
    assert going.until == math.inf


def test_none_is_handed_over_before_it_is_seen_who_has_the_last_one() -> None:
    going = HandOvers()
    assert going.begin_one({3, 5}, 1.0) == 3
    going.end_one(3)
    assert going.begin_one({5}, 2.0, unseen={3}) is None
    assert going.until == math.inf  # the next view comes in any case
    assert going.begin_one({5}, 3.0) == 5


def test_a_hand_over_that_does_not_end_holds_up_the_next_one_for_a_time() -> None:
    going = HandOvers()
    assert going.begin_one({3}, 1.0) == 3
    assert going.begin_one({3, 5, 7}, 2.0) is None
    assert going.until == 1.0 + PATIENCE_SECONDS
    now = going.until
    assert going.begin_one({3, 5, 7}, now) == 5
    assert going.until == now + PATIENCE_SECONDS
    going.end_one(5)
    assert going.begin_one({3, 7}, now + 1) == 7
