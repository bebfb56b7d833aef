"""The judge finds what is not true of events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from judge import MOST_FILES, too_many, too_much_memory, wrong_events, wrong_log, wrong_state

from s4node.state import remote_log, remote_task
from s4node.state.remote_log import Checkpoint, Claim, Commit, Entry, Owner, encoded
from s4node.testing.cluster_test import Usage

ALL = {"joe": range(4)}


@pytest.mark.parametrize(
    ("came", "lines"),
    [
        ([0, 1, 2, 3], []),
        ([0, 1, 3], ["lost (1): ('joe', 2)"]),
        ([0, 1, 1, 2, 3, 0], ["more than once (2): ('joe', 1), ('joe', 0)"]),
        ([0, 2, 1, 3], ["out of order (1): ('joe', 1)"]),
        ([0, 1, 2, 3, 4], ["never sent (1): ('joe', 4)"]),
        ([], ["lost (4): ('joe', 0), ('joe', 1), ('joe', 2), ('joe', 3)"]),
    ],
)
def test_events_that_are_lost_doubled_out_of_order_or_unknown_are_told(
    came: list[int], lines: list[str]
) -> None:
    assert wrong_events({"joe": came}, ALL, ALL) == lines


def test_events_of_an_unknown_key_were_never_sent() -> None:
    assert wrong_events({"joe": range(4), "ann": [0]}, ALL, ALL) == ["never sent (1): ('ann', 0)"]


def test_state_that_differs_is_told_by_key() -> None:
    assert wrong_state({"ann": 1, "joe": 2}, {"joe": 3, "kim": 4}) == [
        "ann is None, and not 1",
        "joe is 3, and not 2",
        "kim is 4, and not None",
    ]


def test_waiting_events_connections_and_tasks_that_nobody_needs_are_told() -> None:
    usage = Usage(0, 0, 0, 0, 0, 0, tasks=100, connections=20, waiting=0)
    assert too_much_memory(usage, 3) == []
    assert too_much_memory(usage._replace(tasks=900, connections=73, waiting=2), 3) == [
        "2 events wait in memory",
        "73 connections, and not at most 54",
        "900 tasks, and not at most 216",
    ]


OWNER = Owner(1, "ann")


def too_many_entries(commits: int, *bases: int) -> list[str]:
    """Of a log with so many commits, and checkpoints with these bases after them."""
    entries: list[Entry] = [Commit(OWNER, (1, n, n), []) for n in range(commits)]
    entries += [Checkpoint(OWNER, base, (1, base, base), {}, {}, 0) for base in bases]
    names = (remote_log.entry_name(number, None) for number in range(1, len(entries) + 1))
    return too_many(
        [], {f"task/log/{name}": encoded(e) for name, e in zip(names, entries, strict=True)}
    )


def test_entries_of_a_log_are_too_many_once_checkpoints_replace_them() -> None:
    assert too_many_entries(1000) == []
    assert too_many_entries(1000, 900) == []
    assert too_many_entries(1000, MOST_FILES, 900) == []
    assert too_many_entries(1000, MOST_FILES + 1, 900) == [
        f"too many files (1): ('task/log at the URL, replaced by checkpoints', {MOST_FILES + 1})"
    ]


def test_a_log_gets_checkpoints() -> None:
    most = MOST_FILES + 3 * remote_task.MOST_COMMITS
    assert too_many_entries(most) == []
    assert too_many_entries(most + 1) == [f"logs without checkpoints (1): ('task/log', {most + 1})"]


ONE, TWO = Owner(1, "a" * 16), Owner(2, "b" * 16)


def written() -> dict[int, Entry]:
    """A log of two owners, the first commits of which a checkpoint has replaced."""
    return {
        1: Claim(ONE, None),
        3: Checkpoint(ONE, 2, (1, 1, 1), {}, {}, 0),
        4: Commit(ONE, (1, 2, 1), []),
        5: Claim(TWO, ONE),
        6: Commit(TWO, (2, 3, 1), []),
        7: Commit(TWO, (2, 4, 1), []),
    }


def two_owners_of_a_fence(log: dict[int, Entry]) -> None:
    log[8] = Commit(Owner(2, "c" * 16), (2, 5, 1), [])


def a_former_owner_that_writes(log: dict[int, Entry]) -> None:
    log[8] = Commit(ONE, (2, 5, 1), [])


def a_claim_under_a_former_fence(log: dict[int, Entry]) -> None:
    log[8] = Claim(ONE, TWO)


def a_hole(log: dict[int, Entry]) -> None:
    del log[6]


def a_commit_that_came_twice(log: dict[int, Entry]) -> None:
    log[8] = log[7]


@pytest.mark.parametrize(
    "broken",
    [
        two_owners_of_a_fence,
        a_former_owner_that_writes,
        a_claim_under_a_former_fence,
        a_hole,
        a_commit_that_came_twice,
    ],
)
def test_a_log_that_two_owners_wrote_is_found(broken: Callable[[dict[int, Entry]], None]) -> None:
    assert wrong_log(written()) == []
    log = written()
    broken(log)
    assert wrong_log(log)
