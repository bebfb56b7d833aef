"""Whatever is done to nodes, logs and programs: nothing is lost, doubled, stuck or out of order.

``make torture`` does it for longer, with other seeds and with all kinds of faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from torture import cluster, machines
from torture.cluster import STEPS, torture, wrong_counts, wrong_output
from torture.exact import Order, order

SENT = {"call-1": 100}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("scene", "faults"),
    [
        ("folder", ["die at commit.write", "savepoint", "kill a program", "go back dies"]),
        ("folder", ["freeze", "fill disk", "program wakes up", "die at log.append"]),
        ("url", ["lose disk", "die at ship.put", "savepoint dies", "repartition dies"]),
        ("power", ["cut power", "kill both"]),
    ],
    ids=" ".join,
)
async def test_counts_are_exact_whatever_is_killed(
    tmp_path: Path, scene: str, faults: list[str]
) -> None:
    run = await torture(tmp_path, scene, 3, faults=faults)
    assert run.complaints == []
    assert run.total > 1000


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark  # whose jars have ZooKeeper
def test_a_cluster_over_zookeeper_gets_well_and_counts_exactly(tmp_path: Path) -> None:
    if why := machines.impossible():
        pytest.skip(f"no machines can be made here: {why}")
    faults = ["kill both", "freeze", "cut from ZooKeeper"]
    assert cluster.main(tmp_path, "machines", 1, 0, faults)


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
    assert wrong_output(SENT, came(), lives=1) == []
    done = came()
    broken(done)
    assert len(wrong_output(SENT, done, lives=1)) == 1


def test_what_comes_again_after_the_app_has_gone_back_is_right_once_for_each_time() -> None:
    again = [*came(), *came()[30:]]
    assert wrong_output(SENT, again, lives=2) == []
    assert len(wrong_output(SENT, again, lives=1)) == 1
    del again[-40]
    assert len(wrong_output(SENT, again, lives=2)) == 1


@pytest.mark.parametrize("change", [-1, 1, 7])
def test_a_count_that_is_not_what_programs_were_told_is_found(change: int) -> None:
    users = Counter(one.user for one in came())
    kept = {step: {f"{u}{end}": n for u, n in users.items()} for step, end in STEPS.items()}
    assert wrong_counts(SENT, kept) == []
    kept["Second"][next(iter(kept["Second"]))] += change
    (found,) = wrong_counts(SENT, kept)
    assert found.startswith("Second call-1-")
