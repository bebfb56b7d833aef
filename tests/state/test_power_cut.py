"""A job whose machine has lost its power: what is lost of acknowledged commits is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from durable_lives import Lives
from harness import until
from power import Power

from s4node import Client, Event

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize("point", ["disk.synced", "commit.write"], ids=["all", "the last"])
async def test_acknowledged_commits_that_a_power_cut_takes_are_told_were_it_only_one(
    tmp_path: Path, point: str
) -> None:
    lives = Lives(tmp_path, {"s4.cluster.partitions": "1"})
    power = Power(lives.state / "default" / "counting" / "tasks", point)
    await lose_power_after_three_commits(lives, power)
    async with lives.node() as process:
        await until(lambda: "commits of a task are missing" in process.errors)
        assert "acknowledged to producers may be lost" in process.errors


async def test_with_full_a_power_cut_takes_no_acknowledged_commit(tmp_path: Path) -> None:
    lives = Lives(tmp_path, {"s4.cluster.partitions": "1", "s4.state.sync": "full"})
    power = Power(lives.state)
    await lose_power_after_three_commits(lives, power)
    async with lives.node() as process:
        async with Client(lives.address, producer="one") as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("joe", 3))
            assert await clicks.flush() == []
        assert "missing" not in process.errors


# -- set-up ---------------------------------------------------------------------------------------


class Click(Event):
    user: str
    number: int


async def lose_power_after_three_commits(lives: Lives, power: Power) -> None:
    async with (
        lives.node(fault=power.fault) as process,
        Client(lives.address, producer="one") as client,
    ):
        clicks = await client.stream("clicks")
        for number in range(3):
            await clicks.send(Click("joe", number))
            assert await clicks.flush() == []
        await process.kill()  # and no commit follows
    power.cut()
