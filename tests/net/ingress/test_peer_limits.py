"""Budgets that peers share: beyond one, the largest goes, in the process that has most."""

from __future__ import annotations

import pytest

from s4node.net.ingress import node_totals
from s4node.net.ingress.peer_limits import Budget, Rate


def test_beyond_a_budget_the_owner_that_takes_most_is_the_one_to_end() -> None:
    budget: Budget[str] = Budget(100, [[0]], 0, 0)
    assert budget.set("a", 60) is None
    assert budget.set("b", 40) is None
    assert budget.set("b", 50) == "a"
    assert budget.set("a", 0) is None
    assert budget.total == 50


def test_of_several_processes_the_one_that_takes_most_ends_an_owner() -> None:
    rows = [[0, 0]]
    here: Budget[str] = Budget(100, rows, 0, 0)
    there: Budget[str] = Budget(100, rows, 0, 1)
    assert there.set("c", 70) is None
    assert here.set("a", 40) is None
    assert there.largest() == "c"
    assert there.set("c", 0) is None
    assert here.set("a", 90) is None


def test_processes_of_a_node_share_their_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_totals, "_rows", [[0] for _ in range(4)])
    monkeypatch.setattr(node_totals, "_own", 0)
    before = node_totals.budget(0, 100)
    before.set("a", 60)
    with node_totals.shared() as path:
        node_totals.join(path, 3)  # as another process does
        other = node_totals.budget(0, 100)
        assert other.set("b", 30) is None
        assert before.set("a", 80) == "a"
        assert other.largest() is None
        node_totals.clear(3)
        assert before.largest() is None


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
