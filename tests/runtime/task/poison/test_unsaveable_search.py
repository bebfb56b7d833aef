"""Which events are looked at for one that leaves what cannot be saved; when none is to blame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.task.poison.unsaveable_search import UnsaveableSearch


def test_nothing_is_looked_at_before_a_commit_fails() -> None:
    examination = UnsaveableSearch()
    examination.did(1000)
    examination.taken()
    assert not examination.looks
    assert not successor(examination).looks


def test_after_a_commit_that_fails_all_replayed_events_are_looked_at() -> None:
    examination = UnsaveableSearch()
    examination.did(10)
    examination.taken()
    examination.did(5)
    assert examination.begins(of_commit=True)
    examination.did(3)  # which were under way
    after = successor(examination)
    looked = 0
    while after.looks:
        after.did(1)
        looked += 1
    assert looked >= 15


def test_if_every_event_was_checked_none_is_blamed() -> None:
    examination = UnsaveableSearch()
    examination.did(10)
    examination.taken()
    assert examination.begins(of_commit=True)
    after = successor(examination)
    after.did(10)
    after.taken()
    assert not after.begins(of_commit=True)


def test_a_commit_of_no_events_has_none_to_blame() -> None:
    examination = UnsaveableSearch()
    examination.did(10)
    examination.taken()
    examination.taken()
    assert not examination.begins(of_commit=True)


def test_after_an_event_was_found_the_search_goes_on_to_its_end() -> None:
    examination = UnsaveableSearch()
    examination.did(10)
    examination.taken()
    assert examination.begins(of_commit=True)
    finds = successor(examination)
    finds.did(3)
    after = successor(finds)  # of the one that went back for it
    assert after.looks
    after.did(1000)
    assert not after.looks
    assert not successor(after).looks


def test_failures_by_time_are_searched_for_longer_each_time_until_none_is_blamed() -> None:
    """Something spoils what is saved each 1,000 events, whatever they are; commits are of 10."""
    examination, goings_back = UnsaveableSearch(), 0
    while True:
        for at in range(10, 1001, 10):
            examination.did(10)
            if at < 1000:
                examination.taken()
        examination.taken()
        if not examination.begins(of_commit=True):
            return
        examination = successor(examination)
        goings_back += 1
        assert goings_back < 10


def test_state_that_fails_outside_a_commit_is_searched_among_events_since_the_last_one() -> None:
    examination = UnsaveableSearch()
    examination.did(5)
    assert not examination.begins(of_commit=True)
    assert examination.begins(of_commit=False)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 400))
def test_a_search_finds_the_event_or_says_that_there_is_none(
    slices: list[int], poison: int
) -> None:
    """A task commits where it likes; the event at ``poison`` (none if that is beyond the end)
    spoils what is saved from then on."""
    examination, at, goings_back = UnsaveableSearch(), 0, 0
    while True:
        spoiled = found = False
        position = at
        for count in slices:
            for _ in range(count):
                here = position == poison
                found |= here and examination.looks
                spoiled |= here
                examination.did(1)
                position += 1
                if found:
                    return
            examination.taken()
            if spoiled:
                break
            at = position
        if not spoiled:
            assert poison >= sum(slices) or poison < at
            return
        assert examination.begins(of_commit=True)
        examination = successor(examination)
        goings_back += 1
        assert goings_back <= 2


# -- set-up ---------------------------------------------------------------------------------------


def successor(before: UnsaveableSearch) -> UnsaveableSearch:
    after = UnsaveableSearch()
    after.succeeds(before)
    return after
