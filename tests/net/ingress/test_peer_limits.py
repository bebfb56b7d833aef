"""Budgets that peers share, beyond which the largest goes, and rates."""

from __future__ import annotations

import pytest

from s4node.net.ingress.peer_limits import Budget, Rate


def test_beyond_a_budget_the_owner_that_takes_most_is_the_one_to_end() -> None:
    budget: Budget[str] = Budget(100)
    budget.set("a", 60)
    budget.set("b", 40)
    assert budget.largest() is None
    budget.set("b", 50)
    assert budget.largest() == "a"
    budget.set("a", 0)
    assert budget.largest() is None


def test_what_is_beyond_a_rate_waits() -> None:
    rate = Rate(10)
    for _ in range(40):
        rate.count(100.0)
    assert rate.seconds_until_next(100.0) == 0
    rate.count(100.0)
    assert rate.seconds_until_next(100.0) == pytest.approx(0.1)
    assert rate.seconds_until_next(101.0) == 0


def test_what_has_happened_lately_is_known_as_of_the_last_count() -> None:
    rate = Rate(10, 0.5)
    for _ in range(3):
        rate.count(100.0)
    assert rate.spent == 3
    rate.count(200.0)
    assert rate.spent == 1
