"""A cluster on machines that die and are cut off; and that its judges find what is wrong.

``make cluster-test`` does it for longer, with all faults and pairs of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from torture import machines, machines_run
from torture.exact import Order, order
from torture.exact_run import STEPS, wrong, wrong_counts
from torture.machines_run import SHORT

pytestmark = pytest.mark.long

SENT = {"call-1": 100}


@pytest.mark.slow
@pytest.mark.spark  # whose jars have ZooKeeper
def test_a_cluster_over_zookeeper_gets_well_and_counts_exactly(tmp_path: Path) -> None:
    if why := machines.impossible():
        pytest.skip(f"no machines can be made here: {why}")
    assert machines_run.main(1, 0, tmp_path, SHORT)


# -- the judges find what is broken on purpose ----------------------------------------------------


def came() -> list[Order]:
    return [order("call-1", number) for number in range(SENT["call-1"])]


def lost(done: list[Order]) -> None:
    del done[40]


def doubled(done: list[Order]) -> None:
    done.append(done[40])


def disordered(done: list[Order]) -> None:
    same = [n for n, one in enumerate(done) if one.user == done[0].user]
    done[same[0]], done[same[1]] = done[same[1]], done[same[0]]


@pytest.mark.parametrize("broken", [lost, doubled, disordered])
def test_what_came_out_wrongly_is_found(broken: Callable[[list[Order]], None]) -> None:
    assert wrong(SENT, came()) == []
    done = came()
    broken(done)
    assert len(wrong(SENT, done)) == 1


@pytest.mark.parametrize("change", [-1, 1, 7])
def test_a_count_that_is_not_what_producers_were_told_is_found(change: int) -> None:
    users = Counter(one.user for one in came())
    kept = {step: {f"{u}{end}": n for u, n in users.items()} for step, end in STEPS.items()}
    assert wrong_counts(SENT, kept) == []
    kept["Second"][next(iter(kept["Second"]))] += change
    (found,) = wrong_counts(SENT, kept)
    assert found.startswith("Second call-1-")
