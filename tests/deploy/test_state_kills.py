"""Commands that change what an app has kept are killed at each step, and run again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from harness import s4_process, until
from test_deploy import click, deploy, node, printed, s4_of, write_app
from test_rollback import BACK, DURABLE, other
from test_savepoints import Shop, counts

from s4node import Client

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROLLBACK = [
    "savepoint.manifest",
    "savepoint.named",
    "restore.begun",
    "restore.written",
    "restore.done",
]
RESET = ["restore.commit", "restore.written"]
"""A restore and a repartition, which do the same, are killed at the other points of ``restore``."""


async def test_an_export_that_is_killed_leaves_no_file_of_its_name_and_is_repeated(
    it: Shop,
) -> None:
    await kept(it)
    await it.s4("savepoint", "take", "counter", "--name", "one")
    words = ("savepoint", "export", "counter", "one", "one.tar")
    await killed(it, "export.written", *words)
    assert not (it.folder / "one.tar").exists()
    await it.s4(*words)
    assert [each.name for each in it.folder.glob("one.tar*")] == ["one.tar"]


@pytest.mark.parametrize("point", ["import.copied", "savepoint.manifest", "savepoint.named"])
async def test_an_import_that_is_killed_is_there_as_a_whole_or_is_repeated(
    it: Shop, point: str
) -> None:
    await kept(it)
    await it.s4("savepoint", "take", "counter", "--name", "one")
    await it.s4("savepoint", "export", "counter", "one", "one.tar")
    words = ("savepoint", "import", "counter", "one.tar", "--name", "two")
    await killed(it, point, *words)
    if point == "savepoint.named":
        again = await it.s4(*words, ends=1)
        assert "has a savepoint 'two' already" in again.errors
    else:
        assert not (it.job / "savepoints" / "two").exists()
        await it.s4(*words)
    await it.s4("savepoint", "show", "counter", "two")
    await it.s4("savepoint", "take", "counter", "--name", "three")  # which removes what is left
    there = sorted(each.name for each in (it.job / "savepoints").iterdir())
    assert there == ["one", "three", "two"]


@pytest.mark.parametrize("point", RESET)
async def test_a_reset_that_is_killed_is_completed_before_the_app_starts(
    it: Shop, point: str
) -> None:
    await kept(it)
    words = ("state", "reset", "counter", "--outputs", "again", "--accept-loss")
    await killed(it, point, *words)
    async with it.totals() as totals:
        refused = await it.s4("run", "counter.py", *it.to(totals), ends=1)
        assert "s4 state reset was cut short; run it again" in refused.errors
        await it.s4(*words)
        assert it.counts("counter") == counts(())
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 100)
        assert it.counts("counter") == counts(range(100))


async def test_a_rollback_that_is_killed_at_any_step_leaves_the_app_as_it_was_or_is_completed(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE, "--version", "v1")
        await click(one.address, "ann", "ann")
        await deploy(folder, other(folder, "v2"), *DURABLE, "--version", "v2")
        place = ("--cluster", "shop", "--folder", str(folder / "shared"))
        words = ("rollback", "counter", *BACK, *place)
        for more, point in enumerate(ROLLBACK):
            async with s4_process(*words, cwd=folder, ready=False, fault=point) as command:
                assert await command.wait() == -signal.SIGKILL, (point, command.errors)
            if point.startswith("savepoint."):
                await click(one.address, "ann")
                await until(lambda more=more: f"v2 ann {more + 3}.5" in printed(one))
            else:
                await until(lambda: "start again with --from before-v2-" in one.errors)
        await s4_of(folder, "rollback", "counter", *BACK)
        await click(one.address, "ann")
        await until(lambda: "v1 ann 3" in printed(one))


# -- set-up ---------------------------------------------------------------------------------------


async def kept(it: Shop) -> None:
    """The app has state, and has stopped."""
    async with (
        it.totals() as totals,
        it.counter(totals) as counter,
        Client(counter.address, producer="p") as client,
    ):
        await it.send(client, 0, 300)
        await it.until_total(300)


async def killed(it: Shop, point: str, *words: str) -> None:
    async with s4_process(*words, *it.place, cwd=it.folder, ready=False, fault=point) as command:
        assert await command.wait() == -signal.SIGKILL, command.errors


@pytest.fixture
def it(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
