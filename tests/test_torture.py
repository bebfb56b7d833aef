"""Whatever is done to nodes, logs and tasks: nothing is lost, doubled, stuck or out of order.

``make torture`` does it for longer, and with other seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torture.exact_run import torture_exact
from torture.log_run import torture_log
from torture.power_run import torture_power
from torture.repartition_run import torture_repartitions
from torture.run import torture
from torture.savepoint_run import torture_savepoints

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("deaths", [False, True], ids=["in-order", "deaths"])
async def test_a_cluster_under_an_adversary_keeps_its_promises(
    tmp_path: Path, seed: int, deaths: bool
) -> None:
    run = await torture(tmp_path, seed, seconds=5, deaths=deaths, say=print)
    assert all(one.number > 100 for one in run.sent.values())
    assert run.complaints == []


async def test_a_node_that_slept_through_its_session_s_end_takes_nothing_more(
    tmp_path: Path,
) -> None:
    run = await torture(tmp_path, 4, seconds=8, deaths=True, say=print, deeds=["freeze"])
    assert run.done["freeze"] > 0
    assert run.complaints == []


@pytest.mark.parametrize("seed", [1, 11])
async def test_what_is_copied_from_a_log_under_an_adversary_skips_nothing(
    tmp_path: Path, seed: int
) -> None:
    run = await torture_log(tmp_path, seed, seconds=5, say=print)
    assert run.complaints == []
    assert run.total > 300


async def test_counts_are_exact_after_kills_at_any_step(tmp_path: Path) -> None:
    run = await torture_exact(tmp_path, 3, kills=8, hits=0, say=print)
    assert run.complaints == []
    assert run.killed.total() >= 8
    assert run.total > 1000


async def test_counts_are_exact_after_power_cuts(tmp_path: Path) -> None:
    run = await torture_power(tmp_path, 3, cuts=1, say=print)
    assert run.complaints == []
    assert run.killed["power"] == 1
    assert run.total > 500


async def test_savepoints_amid_deaths_are_gone_back_to_exactly(tmp_path: Path) -> None:
    run = await torture_savepoints(tmp_path, 3, rounds=2, say=print)
    assert run.complaints == []
    assert run.done["restored"] == 2
    assert run.total > 300


async def test_partitions_amid_deaths_and_programs_that_go_on_count_exactly(tmp_path: Path) -> None:
    run = await torture_repartitions(tmp_path, 3, rounds=3, say=print)
    assert run.complaints == []
    assert all(run.done[f"{partitions} partitions"] == 1 for partitions in (6, 3, 4))
    assert run.total > 300
