"""Nodes with standbys that are killed, at any step of following or at any time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from counting_flow import check_counts, counting, deploy_to_shop, flowing, shipped, shop_node
from harness import NodeProcess, children, run_s4, s4_process, until

pytestmark = [pytest.mark.slow, pytest.mark.long]

WITH = {"s4.state.standby": "1", "s4.state.checkpointInterval": "3000"}


async def test_a_partition_moves_once_its_next_owner_has_followed_it(tmp_path: Path) -> None:
    async with flowing(tmp_path) as (it, flow):
        counting(it)
        async with s4_process(*shop_node(it, "node-a", **WITH), cwd=tmp_path) as first:
            await deploy_to_shop(it)
            await until(lambda: shipped(it)[0] > 400)
            async with s4_process(*shop_node(it, "node-b", **WITH), cwd=tmp_path) as second:
                await until(lambda: "owns partitions" in second.errors, "it has its share")
                await until(lambda: any(tmp_path.glob("node-b/*/*/tasks/*/standby/complete")))
                await until(lambda: any(tmp_path.glob("node-a/*/*/tasks/*/standby/complete")))
                kill(first)
                await first.process.wait()
                before = shipped(it)[0]
                await until(lambda: shipped(it)[0] > before + 800, "it has all")
                await flow.end()
                await until(lambda: shipped(it)[0] == flow.total)
                assert "state is fetched, to be followed" in second.errors
                assert "state is being fetched" not in second.errors
                await until(lambda: not any(tmp_path.glob("node-b/*/*/tasks/*/standby")))
    check_counts(flow, shipped(it)[1])


async def test_a_next_owner_follows_a_partition_before_it_moves_and_may_die_meanwhile(
    tmp_path: Path,
) -> None:
    async with flowing(tmp_path) as (it, flow):
        counting(it)
        dying = f"standby.filled@{tmp_path / 'died'}"
        async with s4_process(*shop_node(it, "node-a"), cwd=tmp_path) as first:
            await deploy_to_shop(it)
            await until(lambda: shipped(it)[0] > 400)
            async with s4_process(
                *shop_node(it, "node-b"), cwd=tmp_path, fault=dying
            ) as second:  # it has no standbys, but is to get a partition
                await until((tmp_path / "died").exists, "its container dies")
                await until(lambda: "owns partitions" in second.errors, "it has its share")
                where = ("--cluster", "shop", "--folder", it.folder / "shared")
                done = await run_s4("drain", "node-a", *where, cwd=it.folder, deadline=90)
                assert done.returncode == 0, done.stderr
                before = shipped(it)[0]
                await until(lambda: shipped(it)[0] > before + 400, "it has all")
                await flow.end()
                await until(lambda: shipped(it)[0] == flow.total)
                assert second.errors.count("state is fetched, to be followed") > 1
                assert "state is being fetched" not in second.errors
                await until(lambda: not any(tmp_path.glob("node-?/*/*/tasks/*/standby")))
        assert "two owners" not in first.errors
    check_counts(flow, shipped(it)[1])


def kill(node: NodeProcess) -> None:
    """Kill a node with its containers."""
    for pid in (*children(node.pid), node.pid):
        os.kill(pid, signal.SIGKILL)
