"""Real processes that share no folder, only a URL: killed, stopped, and gone on from elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from counting_flow import Flow, check_counts, counting, deploy_to_shop, flowing, shipped, shop_node
from harness import NodeProcess, children, s4_process, until
from log_bench import Bench
from saved_state import saved_instances, saved_positions

from s4node.failpoints import POINTS

pytestmark = [pytest.mark.slow, pytest.mark.long]


STEPS = [name for name in POINTS if name.startswith("ship.")]


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_any_step_of_shipping_another_node_counts_on_exactly(
    tmp_path: Path, step: str
) -> None:
    often = ("-p", "s4.state.checkpointInterval=30")
    async with flowing(tmp_path) as (it, flow):
        async with s4_process(*on_node(it, "node-a", *often), cwd=tmp_path) as process:
            await goes_on(it, "node-a")
            await process.kill()
        for name, passing in (("node-b", 1), ("node-c", 4), ("node-a", 2)):
            fault = f"{step}:{1 if step == 'ship.claimed' else passing}"
            arguments = on_node(it, name, *often)
            async with s4_process(*arguments, cwd=tmp_path, ready=False, fault=fault) as process:
                assert await process.wait() == -signal.SIGKILL
        async with s4_process(*on_node(it, "node-b", *often), cwd=tmp_path) as process:
            await all_is_counted(it, flow, "node-b", process)


async def test_an_owner_that_slept_while_another_node_took_over_ends_when_it_wakes_up(
    tmp_path: Path,
) -> None:
    async with (
        flowing(tmp_path) as (it, flow),
        s4_process(*on_node(it, "node-a"), cwd=tmp_path) as asleep,
    ):
        await goes_on(it, "node-a")
        asleep.signal(signal.SIGSTOP)
        async with s4_process(*on_node(it, "node-b"), cwd=tmp_path) as owner:
            await goes_on(it, "node-b")
            asleep.signal(signal.SIGCONT)
            assert await asleep.wait() == 1
            assert "another container has taken" in asleep.errors
            assert "Traceback" not in asleep.errors
            await goes_on(it, "node-b")
            await all_is_counted(it, flow, "node-b", owner)


async def test_a_place_that_is_gone_for_a_while_holds_commits_up_and_nothing_else(
    tmp_path: Path,
) -> None:
    async with flowing(tmp_path) as (it, flow):
        async with s4_process(*on_node(it, "node-a"), cwd=tmp_path) as process:
            await goes_on(it, "node-a")
            (tmp_path / "remote_job").rename(tmp_path / "away")
            await until(lambda: "progress could not be written" in process.errors)
            held = done(it, "node-a")
            (tmp_path / "away").rename(tmp_path / "remote_job")
            await until(lambda: done(it, "node-a") > held)
            await until(lambda: "progress is written again" in process.errors)
            await process.kill()
        async with s4_process(*on_node(it, "node-b"), cwd=tmp_path) as process:
            await all_is_counted(it, flow, "node-b", process)


async def test_partitions_move_between_nodes_of_a_cluster_that_share_no_folder(
    tmp_path: Path,
) -> None:
    async with flowing(tmp_path) as (it, flow):
        counting(it)

        def events() -> int:
            return shipped(it)[0]

        async with s4_process(*shop_node(it, "node-a"), cwd=tmp_path) as first:
            async with s4_process(*shop_node(it, "node-b"), cwd=tmp_path) as second:
                await deploy_to_shop(it)
                await until(lambda: events() > 400)
                for pid in (*children(second.pid), second.pid):  # with its container
                    os.kill(pid, signal.SIGKILL)
                await second.process.wait()
                before = events()
                await until(lambda: events() > before + 800, "the other has all")
            async with s4_process(*shop_node(it, "node-b"), cwd=tmp_path):
                (container,) = children(first.pid)
                os.kill(container, signal.SIGKILL)
                before = events()
                await until(lambda: events() > before + 800, "it has some again")
                await flow.end()
                await until(lambda: events() == flow.total)
    check_counts(flow, shipped(it)[1])


# -- set-up ---------------------------------------------------------------------------------------


def on_node(it: Bench, name: str, *more: str) -> list[str]:
    """The app, on a node whose folder nobody else has."""
    return [
        *counting(it),
        *("-p", f"s4.state.folder={it.folder / name}"),
        *("-p", f"s4.state.url=file://{it.folder / 'remote_job'}"),
        *more,
    ]


def done(it: Bench, name: str) -> int:
    found = saved_positions(it.folder / name / "default" / "counting")
    return sum(sum(positions.values()) for positions in found.values())


async def goes_on(it: Bench, name: str, more: int = 400) -> None:
    before = max(done(it, one.name) for one in it.folder.glob("node-*"))
    await until(lambda: done(it, name) >= before + more, "it commits")


async def all_is_counted(it: Bench, flow: Flow, name: str, process: NodeProcess) -> None:
    await flow.end()
    await until(lambda: done(it, name) == flow.total, "all is committed")
    process.signal(signal.SIGTERM)
    assert await process.wait() == 0, process.errors
    check_counts(flow, saved_instances(it.folder / name / "default" / "counting"))
