"""Which events are looked at for one that leaves what cannot be saved; when none is to blame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s4node.container.examination import Examination


def successor(before: Examination) -> Examination:
    after = Examination()
    after.succeeds(before)
    return after


def test_nothing_is_looked_at_before_a_commit_fails() -> None:
    examination = Examination()
    examination.did(1000)
    examination.taken()
    assert not examination.looks
    assert not successor(examination).looks


def test_behind_a_commit_that_fails_all_is_looked_at_that_is_done_again() -> None:
    examination = Examination()
    examination.did(10)
    examination.taken()
    examination.did(5)
    assert examination.begins()
    examination.did(3)  # which were under way
    after = successor(examination)
    looked = 0
    while after.looks:
        after.did(1)
        looked += 1
    assert looked >= 15


def test_where_all_was_looked_at_no_event_is_to_blame() -> None:
    examination = Examination()
    examination.did(10)
    examination.taken()
    assert examination.begins()
    after = successor(examination)
    after.did(10)
    after.taken()
    assert not after.begins()


def test_a_commit_of_no_events_has_none_to_blame() -> None:
    examination = Examination()
    examination.did(10)
    examination.taken()
    examination.taken()
    assert not examination.begins()


def test_behind_an_event_that_was_found_the_search_goes_on_and_comes_to_its_end() -> None:
    examination = Examination()
    examination.did(10)
    examination.taken()
    assert examination.begins()
    finds = successor(examination)
    finds.did(3)
    after = successor(finds)  # of the one that went back for it
    assert after.looks
    after.did(1000)
    assert not after.looks
    assert not successor(after).looks


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 400))
def test_a_search_finds_the_event_or_says_that_there_is_none(
    slices: list[int], culprit: int
) -> None:
    """A task commits where it likes; the event at ``culprit`` (none if that is beyond the end)
    spoils what is saved from then on."""
    examination, at, goings_back = Examination(), 0, 0
    while True:
        spoiled = found = False
        position = at
        for count in slices:
            for _ in range(count):
                here = position == culprit
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
            assert culprit >= sum(slices) or culprit < at
            return
        assert examination.begins()
        examination = successor(examination)
        goings_back += 1
        assert goings_back <= 2
