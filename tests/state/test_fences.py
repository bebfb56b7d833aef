"""The judge of a task's log at a URL finds what two owners have written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from judge import wrong_log

from s4node.state.remote_log import Checkpoint, Claim, Commit, Entry, Owner

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
