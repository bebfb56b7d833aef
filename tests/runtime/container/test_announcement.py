"""The partition that a member is ready for: one at a time, in turn, and none while it is busy."""

from __future__ import annotations

import math

import pytest

from s4node.runtime.container.announcement import PATIENCE_SECONDS, Announcement


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
