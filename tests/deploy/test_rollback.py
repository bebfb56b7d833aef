"""Deployments save the state of the version that they replace, and go back to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from harness import run_s4, s4_process, until, until_told
from lost_sessions import end_sessions
from test_deploy import apps, click, containers, deploy, node, printed, s4_of, write_app

from s4node import Config
from s4node.cluster.coordination.entries import STOPPING, AppId
from s4node.deploy.answers import registry_of

pytestmark = [pytest.mark.slow, pytest.mark.long]

DURABLE = ("-p", "s4.stream.clicks.grade=durable")
BACK = ("--outputs", "again", "--accept-loss")

# an app whose end waits for a file
SLOW_END = """\
    async def on_close(self):
        import pathlib, trio
        while not pathlib.Path("FILE").exists():
            await trio.sleep(0.01)
"""


async def test_a_rollback_goes_back_to_the_former_version_and_to_its_state(folder: Path) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE, "--version", "v1")
        await click(one.address, "ann", "ann")
        await deploy(folder, other(folder, "v2"), *DURABLE, "--version", "v2")
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2", "v2 ann 3.5"])
        (first,) = await savepoints(folder)
        assert first["name"].startswith("before-v2-")
        assert first["why"] == "v2 replaced v1"
        before = await containers(folder)
        refused = await s4_of(folder, "rollback", "counter", ok=False)
        assert ": 1 events that were acknowledged since are lost" in refused.stderr
        assert "add --accept-loss" in refused.stderr
        assert await containers(folder) == before
        done = json.loads((await s4_of(folder, "rollback", "counter", *BACK, "--json")).stdout)
        assert (done["version"], done["before"]) == ("v1", "v2")
        await click(one.address, "ann")
        await until(lambda: len(printed(one)) == 4)
        assert printed(one)[:3] == ["v1 ann 1", "v1 ann 2", "v1 ann 3"]
        assert [each["why"] for each in await savepoints(folder)][1].startswith(
            "v1 replaced v2, fr"
        )
        again = await s4_of(folder, "rollback", "counter", *BACK, ok=False)
        assert "no savepoint from the time before v1" in again.stderr


async def test_a_rollback_whose_session_is_lost_goes_on_in_another_one(folder: Path) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE, "--version", "v1")
        await click(one.address, "ann", "ann")
        await deploy(folder, other(folder, "v2"), *DURABLE, "--version", "v2")
        await click(one.address, "ann")
        command = ("rollback", "counter", *BACK)
        async with s4_process(*command, *where(folder), cwd=folder, ready=False) as back:
            await until(lambda: "goes on from the savepoint" in back.errors)
            assert end_sessions(folder / "shared", "rollback counter") == 1
            assert await back.wait() == 0, back.errors
        assert "the rollback of 'counter' goes on in another one" in back.errors
        await click(one.address, "ann")
        await until(lambda: len(printed(one)) == 4)
        assert printed(one) == ["v1 ann 1", "v1 ann 2", "v1 ann 3", "v2 ann 3.5"]


async def test_a_deployment_whose_session_is_lost_goes_on_in_another_one(folder: Path) -> None:
    ends = folder / "ends"
    before = write_app(folder, "counter", "v1", more=SLOW_END.replace("FILE", str(ends)))
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, before, *DURABLE, "--version", "v1")
        await click(one.address, "ann", "ann")
        command = ("deploy", write_app(folder, "counter", "v2"), *DURABLE, "--version", "v2")
        async with s4_process(*command, *where(folder), cwd=folder, ready=False) as deployment:
            await until(lambda: "loaded and checked on" in deployment.errors)
            assert end_sessions(folder / "shared", "deploy counter") == 1
            ends.touch()
            assert await deployment.wait() == 0, deployment.errors
        assert "goes on in another one" in deployment.errors
        await click(one.address, "ann")
        await until(lambda: len(printed(one)) == 3)
        assert printed(one) == ["v1 ann 1", "v1 ann 2", "v2 ann 3"]


async def test_a_removal_whose_session_is_lost_goes_on_in_another_one(folder: Path) -> None:
    ends = folder / "ends"
    app = write_app(folder, "counter", "v1", more=SLOW_END.replace("FILE", str(ends)))
    async with node(folder, "one"):
        await deploy(folder, app)
        command = ("undeploy", "counter")
        async with (
            registry_of(of_nodes(folder), "test") as registry,
            s4_process(*command, *where(folder), cwd=folder, ready=False) as removal,
        ):
            await until_told(
                lambda: registry.app("shop", "counter"),
                lambda found: found is not None and found.value.state == STOPPING,
            )
            assert end_sessions(folder / "shared", "undeploy counter") == 1
            await until(lambda: "the removal of 'counter' goes on in another" in removal.errors)
            ends.touch()
            assert await removal.wait() == 0, removal.errors
        assert await apps(folder) == []


async def test_an_app_is_deployed_from_a_savepoint_and_one_that_it_cannot_read_is_refused(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        file = write_app(folder, "counter", "v1")
        await deploy(folder, file, *DURABLE, "--version", "v1")
        await click(one.address, "ann", "ann")
        await saved(folder, "savepoint", "take", "counter", "--name", "two")
        await click(one.address, "ann")
        before = await containers(folder)
        gone = folder / write_app(folder, "counter", "v2")
        gone.write_text(gone.read_text().replace("Count", "Tally"))
        named = ("--from", "two", *BACK, "--version")
        refused = await s4_of(folder, "deploy", gone.name, *DURABLE, *named, "v2", ok=False)
        assert "has no place for: pe Count" in refused.stderr
        refused = await s4_of(
            folder, "deploy", file, *DURABLE, "-p", "s4.hasher=s4", *named, "v2", ok=False
        )
        assert "the savepoint 'two' does not fit this job" in refused.stderr
        refused = await s4_of(folder, "deploy", file, *DURABLE, "--from", "nix", ok=False)
        assert "there is no savepoint 'nix'" in refused.stderr
        assert await containers(folder) == before
        await deploy(folder, file, *DURABLE, *named, "v1")
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2", "v1 ann 3", "v1 ann 3"])


async def test_a_pe_with_rows_is_dropped_only_by_name_and_a_rollback_still_goes_back(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE)
        await click(one.address, "ann")
        renamed = {}
        for version in ("v2", "v3"):
            file = folder / write_app(folder, "counter", version)
            file.write_text(file.read_text().replace("Count", "Tally"))
            renamed[version] = (file.name, *DURABLE, "--version", version)
        refused = await s4_of(folder, "deploy", *renamed["v2"], ok=False)
        assert "no place for: pe Count; keep their names, or leave it unused" in refused.stderr
        await deploy(folder, *renamed["v2"], "--unused", "Count")
        await click(one.address, "ann")
        await deploy(folder, *renamed["v3"])
        newest = (await savepoints(folder))[-1]["name"]
        shown = json.loads(await saved(folder, "savepoint", "show", "counter", newest, "--json"))
        assert (shown["used"], shown["unused"]) == (["Tally"], ["Count"])
        await click(one.address, "ann")
        await s4_of(folder, "rollback", "counter", *BACK)
        await click(one.address, "ann")
        await until(lambda: len(printed(one)) == 4)
        assert printed(one) == ["v1 ann 1", "v2 ann 1", "v2 ann 2", "v3 ann 2"]


@pytest.mark.short
async def test_a_version_that_does_not_start_leaves_the_old_one_with_its_state(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        file = write_app(folder, "counter", "v1")
        await deploy(folder, file, *DURABLE, "--version", "v1")
        await click(one.address, "ann")
        await saved(folder, "savepoint", "take", "counter", "--name", "one")
        await click(one.address, "ann")
        bad = folder / write_app(folder, "counter", "v2")
        fails = "    def on_start(self): raise ValueError('no')\n    def on_init"
        bad.write_text(bad.read_text().replace("    def on_init", fails))
        named = ("--from", "one", *BACK, "--version", "v2")
        await s4_of(folder, "deploy", bad.name, *DURABLE, *named, ok=False)
        assert await apps(folder) == [("counter", "running", ["one"])]
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2", "v1 ann 3"])


async def test_a_deployment_that_is_killed_while_the_app_is_paused_leaves_it_running(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        file = write_app(folder, "counter", "v1")
        await deploy(folder, file, *DURABLE, "--version", "v1")
        await click(one.address, "ann")
        await saved(folder, "savepoint", "take", "counter", "--name", "one")
        await click(one.address, "ann")
        place = ("--cluster", "shop", "--folder", str(folder / "shared"))
        later = ("deploy", write_app(folder, "counter", "v2"), *DURABLE, "--version", "v2", *place)
        async with s4_process(*later, cwd=folder, ready=False) as command:
            await until(lambda: "drains and ends" in command.errors)
            await command.kill()
        await click(one.address, "ann")
        await until(lambda: len(printed(one)) == 3)
        assert printed(one)[2].endswith(" ann 3")
        back = (*later, "--from", "one", *BACK)
        async with s4_process(*back, cwd=folder, ready=False, fault="restore.task") as command:
            assert await command.wait() == -9
        await until(lambda: "start again with --from one" in one.errors)
        await deploy(folder, later[1], *DURABLE, "--version", "v2", "--from", "one", *BACK)
        await click(one.address, "ann")
        await until(lambda: "v2 ann 2" in printed(one))


async def test_a_node_that_starts_while_an_app_is_paused_refuses_no_client_of_it(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE, "--version", "v1")
        async with (
            registry_of(of_nodes(folder), "test") as registry,
            registry.pause(AppId("shop", "counter"), "test"),
            node(folder, "two", s4_state_folder=str(folder / "state")) as two,
        ):
            with trio.move_on_after(1) as waits:  # a refusal would raise
                await click(two.address, "ann")
            assert waits.cancelled_caught
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1"])


async def test_three_savepoints_of_deployments_are_kept(folder: Path) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        for version in ("v1", "v2", "v3", "v4", "v5"):
            file = write_app(folder, "counter", version)
            await deploy(folder, file, *DURABLE, "--version", version)
            await click(one.address, "ann")
        found = await savepoints(folder)
        assert [each["why"] for each in found] == [f"v{n + 1} replaced v{n}" for n in range(2, 5)]
        assert len(list((folder / "shared" / "packages").iterdir())) == 4


# -- set-up ---------------------------------------------------------------------------------------


def other(folder: Path, version: str) -> str:
    file = folder / write_app(folder, "counter", version)
    text = file.read_text().replace("clicks: int = 0", MIGRATED)
    file.write_text(text)
    return file.name


MIGRATED = """\
clicks: float = 0.5
    @staticmethod
    def migrate(saved):
        return {"clicks": saved["clicks"] + 0.5}"""


async def saved(folder: Path, *words: str) -> str:
    place = ("--cluster", "shop", "-p", f"s4.state.folder={folder / 'state'}")
    done = await run_s4(*words, *place, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def savepoints(folder: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(
        await saved(folder, "savepoint", "list", "counter", "--json")
    )
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def of_nodes(folder: Path) -> Config:
    return Config.from_values(
        {"s4.cluster.name": "shop", "s4.coordination.folder": str(folder / "shared")}
    )


def where(folder: Path) -> tuple[str, ...]:
    """The options that say to a command where the nodes are."""
    return "--cluster", "shop", "--folder", str(folder / "shared")
