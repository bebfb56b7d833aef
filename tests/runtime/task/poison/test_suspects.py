"""Who has killed a process: known with the second death, convicted with the third."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.task.poison.suspects import ALL, MOST_KILLS, Suspect, Suspects, after_death


@given(
    slices=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    killer=st.integers(0, 199),
    committed=st.integers(0, 199),
)
def test_an_event_that_always_kills_is_blamed_at_the_third_death(
    slices: list[int], killer: int, committed: int
) -> None:
    committed = min(committed, killer)
    known: list[Suspect] = []
    for _ in range(3):
        suspects, at, turn = Suspects(known), committed, 0
        assert not any(one.convicted for one in known)
        while True:  # a life: slices, until the one with the killer
            size = slices[turn % len(slices)]
            turn += 1
            size = suspects.alone("log.clicks[0]", range(at, at + size))
            if at <= killer < at + size:
                break
            at += size
        known = after_death(
            known, [Suspect("log.clicks[0]", at, at + size - 1)], {"log.clicks[0]": committed}
        )
    assert [one for one in known if one.convicted] == [Suspect("log.clicks[0]", killer, killer, 3)]


def test_deaths_at_other_events_skip_no_event() -> None:
    known: list[Suspect] = []
    for number in (4, 5, 6, 7):
        known = after_death(known, [Suspect("log.clicks[0]", number, number)], {})
    assert {one.deaths for one in known} == {1}


def test_a_kill_by_an_unknown_sender_blames_no_event() -> None:
    known: list[Suspect] = []
    for number in range(MOST_KILLS):
        assert not any(one.only_killed for one in known)
        known = after_death(known, [Suspect("log.clicks[0]", 4, 4)], {}, at_fault=False)
        assert known == [Suspect("log.clicks[0]", 4, 4, 0, number + 1)]
    assert known[0].only_killed
    assert not known[0].convicted


def test_committed_events_are_no_longer_suspects() -> None:
    known = [Suspect("log.clicks[0]", 4, 4, 2), Suspect("log.views[0]", 4, 4, 2)]
    assert after_death(known, [], {"log.clicks[0]": 5}) == [Suspect("log.views[0]", 4, 4, 2)]

    suspects = Suspects(known)
    suspects.processed("log.clicks[0]", 4)
    suspects.taken(waits=False)
    suspects.processed("log.views[0]", 7)
    assert suspects.left == known  # for that commit may fail
    assert suspects.written() == [Suspect("log.clicks[0]", 4, 4, 2)]
    assert suspects.left == [Suspect("log.views[0]", 4, 4, 2)]
    suspects.taken(waits=False)
    suspects.written()
    assert suspects.left == []


def test_suspects_are_processed_one_by_one_and_the_others_together() -> None:
    suspects = Suspects([Suspect("log.clicks[0]", 10, 12)])
    assert suspects.alone("log.clicks[0]", range(5, 20)) == 5
    assert suspects.alone("log.clicks[0]", range(10, 20)) == 1
    assert suspects.alone("log.clicks[0]", range(13, 20)) == 7
    assert suspects.alone("log.views[0]", range(5, 20)) == 15


HOPS = "hops (put by the task itself)"


def test_all_of_the_task_s_own_events_are_suspected_until_the_next_commit() -> None:
    suspects = Suspects([Suspect(HOPS, 0, ALL)])
    assert suspects.alone(HOPS, (0,)) == 1
    suspects.taken(waits=False)  # of where inputs begin
    assert suspects.written() == []
    suspects.processed(HOPS, 3)
    suspects.taken(waits=True)
    assert suspects.written() == [Suspect(HOPS, 0, ALL)]
    assert suspects.left == []


def test_a_tasks_own_event_is_no_suspect_after_its_commit() -> None:
    seven, nine = Suspect(HOPS, 7, 7), Suspect(HOPS, 9, 9)
    suspects = Suspects([seven, nine])
    suspects.processed(HOPS, 9)  # which says nothing of the other
    suspects.taken(waits=True)
    assert suspects.written() == [nine]
    suspects.processed(HOPS, 8)
    suspects.taken(waits=True)
    assert suspects.written() == []
    suspects.taken(waits=False)  # it was put anew, as another one
    assert suspects.written() == [seven]
    assert suspects.left == []
