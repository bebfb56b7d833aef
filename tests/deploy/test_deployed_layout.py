"""Other numbers of partitions for deployed apps: the nodes end them, and start them again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import run_s4, s4_process
from test_deploy import Click, containers, deploy, node, write_app

from s4node import Client
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.task_state import TaskState

pytestmark = [pytest.mark.slow, pytest.mark.long]

DURABLE = ("-p", "s4.stream.clicks.grade=durable")
POINTS = ("repartition.decided", "deploy.repartitioned")
"""A repartition of an app that is not deployed is killed at the other points."""


@pytest.mark.parametrize("point", ["", *POINTS])
async def test_a_deployed_app_gets_other_partitions_while_a_program_sends(
    folder: Path, point: str
) -> None:
    state = str(folder / "state")
    async with (
        node(folder, "one", s4_state_folder=state) as one,
        node(folder, "two", s4_state_folder=state),
        Client(one.address, producer="p", timeout=120) as client,
    ):
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE, "--partitions", "4")
        sent: Counter[str] = Counter()
        clicks = await client.stream("clicks", types=Click)

        async def keep_sending() -> None:
            while True:
                users = [f"user-{number}" for number in range(37)]
                with trio.CancelScope(shield=True):
                    await clicks.send_many([Click(user) for user in users])
                sent.update(users)
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_sending)
            if point:
                await repartitioned(folder, 6, fault=point)
            done = await repartitioned(folder, 6)
            assert (done["app"], done["partitions"]) == ("counter", 6)
            nursery.cancel_scope.cancel()
        assert await clicks.flush() == []
        assert sorted(await containers(folder)) == ["one", "two"]
        assert counts(folder) == sent


@pytest.mark.short
async def test_a_deployed_app_that_cannot_have_other_partitions_goes_on_as_it_was(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        file = folder / write_app(folder, "counter", "v1")
        single = "single = self.create_pe(Count)\n        single.set_singleton(True)\n        self."
        text = file.read_text().replace("self.create_input", f"{single}create_input")
        text = text.replace("self.create_pe(Count), key", "single, key")
        file.write_text(text)
        await deploy(folder, file.name, *DURABLE, "--partitions", "4")
        before = await containers(folder)
        async with Client(one.address, producer="p", timeout=120) as client:
            clicks = await client.stream("clicks", types=Click)
            await clicks.send_many([Click("ann"), Click("bob")])
            assert await clicks.flush() == []
            assert "it has 4 partitions already" in await command(folder, 4, ok=False)
            assert await containers(folder) == before
            assert "PE Count is a singleton" in await command(folder, 6, ok=False)
            await clicks.send(Click("ann"))
            assert await clicks.flush() == []


# -- set-up ---------------------------------------------------------------------------------------


def words(folder: Path, partitions: int) -> tuple[str, ...]:
    state, place = (
        f"s4.state.folder={folder / 'state'}",
        f"s4.coordination.folder={folder / 'shared'}",
    )
    return (
        *("repartition", "counter", str(partitions), "--cluster", "shop", "--json"),
        *("-p", state, "-p", place),
    )


async def repartitioned(folder: Path, partitions: int, fault: str = "") -> dict[str, Any]:
    """The output of the command; with ``fault`` it dies there, and prints nothing."""
    line = words(folder, partitions)
    async with s4_process(*line, cwd=folder, ready=False, fault=fault) as process:
        with trio.fail_after(120):
            status = await process.wait()
        assert status == (-9 if fault else 0), process.errors
    return {} if fault else dict(json.loads(process.stdout[-1]))


async def command(folder: Path, partitions: int, *, ok: bool) -> str:
    done = await run_s4(*words(folder, partitions), cwd=folder)
    assert (done.returncode == 0) == ok, done.stderr
    return done.stderr


def counts(folder: Path) -> Counter[str]:
    """The clicks of each user, as of the last commits."""
    found: Counter[str] = Counter()
    for task in sorted((folder / "state" / "shop" / "counter").glob("tasks/*")):
        with epochs.copied(task) as database:
            reader = StateReader(TaskState(database, crc32m))
            for key, saved in reader.instances("Count") if "Count" in reader.elements else ():
                found[str(key)] += saved["clicks"]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
