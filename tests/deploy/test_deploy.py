"""Deploying apps to nodes while they run: real nodes, real containers, the real command line."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import zipfile
import zlib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
from harness import (
    ANY_PORT,
    DEADLINE,
    QUICK,
    NodeProcess,
    free_port,
    run_s4,
    s4_process,
    together,
    until,
    until_told,
)
from shared_apps import Click

from s4node import Client, Config
from s4node.cluster.coordination.entries import AppId, AppInfo, NodeInfo
from s4node.cluster.coordination.node_requests import requesting
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node import deploy_protocol as protocol
from s4node.cluster.node.node import Node
from s4node.cluster.node.package import MANIFEST, Manifest, Package, Store, python_here
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import CoordinationError, NameTaken, S4Error, SessionLost
from s4node.version import __version__

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.slow, pytest.mark.long]


# -- deploying ------------------------------------------------------------------------------------


async def test_an_app_is_deployed_to_running_nodes_and_takes_events_at_the_address_of_each(
    folder: Path,
) -> None:
    async with node(folder, "one") as one, node(folder, "two") as two:
        assert await apps(folder) == []
        done = await deploy(folder, write_app(folder, "counter", "v1"), "--partitions", "4")
        assert (done["app"], done["partitions"], done["before"]) == ("counter", 4, "")
        assert sorted(done["containers"]) == ["one", "two"]
        assert await apps(folder) == [("counter", "running", ["one", "two"])]
        for redirector in (one, two):
            await click(redirector.address, "ann", "bob", "joe", "eve", "kim", "lee")
        await until(lambda: len(printed(one, two)) == 12)
        users = ("ann", "bob", "eve", "joe", "kim", "lee")
        assert printed(one, two) == sorted(f"v1 {user} {n}" for user in users for n in (1, 2))


async def test_what_an_app_puts_out_is_read_through_any_redirector(folder: Path) -> None:
    (folder / "relay.py").write_text(RELAY)
    counter = write_app(folder, "counter", "v1", "taps")
    async with node(folder, "one") as one, node(folder, "two") as two:
        await deploy(folder, "relay.py", "--partitions", "4")
        await deploy(folder, counter)
        async with Client(two.address) as client, client.subscribe("copies") as copies:
            seen: list[str] = []

            async def read() -> None:
                async for event in copies:
                    seen.append(event.user)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                with trio.fail_after(DEADLINE):
                    while not {"ann", "bob", "joe"} <= set(seen):
                        await click(one.address, "ann", "bob", "joe")
                nursery.cancel_scope.cancel()

        async def read_what_nobody_puts_out() -> None:
            async with Client(one.address) as client, client.subscribe("taps") as taps:
                async for _ in taps:
                    pass

        with pytest.raises(S4Error, match="has an output stream 'taps'; its output streams: copie"):
            await read_what_nobody_puts_out()


async def test_a_new_version_takes_over_while_a_sender_goes_on_and_loses_nothing(
    folder: Path,
) -> None:
    sent = 0
    deployed = trio.Event()

    async def send() -> None:
        nonlocal sent
        async with Client(one.address) as client:
            clicks = await client.stream("clicks")
            last = 0
            with trio.fail_after(2 * DEADLINE):
                while not deployed.is_set() or last < 100:
                    last += deployed.is_set()
                    await clicks.send(Click(f"u{sent % 50}"))
                    sent += 1
                    await trio.sleep(0.002)
            assert await clicks.flush() == []

    async def change() -> None:
        await until(lambda: sent > 100)
        await deploy(folder, write_app(folder, "counter", "v2"))
        deployed.set()

    async with node(folder, "one") as one, node(folder, "two") as two:
        await deploy(folder, write_app(folder, "counter", "v1"), "--partitions", "4")
        await together(send, change)
        await until(lambda: len(printed(one, two)) == sent)
        by = {
            word: [line for line in printed(one, two) if line.startswith(word)]
            for word in ("v1", "v2")
        }
        assert len(by["v1"]) >= 100
        assert len(by["v2"]) >= 100
        assert len(set(printed(one, two))) == sent  # each count of each version came once


async def test_settings_go_along_with_the_app(folder: Path) -> None:
    more = "    def on_start(self): print('greeting', self.parameters['word'], flush=True)\n"
    async with node(folder, "one") as one:
        file = write_app(folder, "counter", "v1", more=more)
        first = await deploy(folder, file, "-p", "s4.app.word=hello")
        await until(lambda: printed(one) == ["greeting hello"])
        second = await deploy(folder, file, "-p", "s4.app.word=world")
        await until(lambda: printed(one) == ["greeting hello", "greeting world"])
        assert second["before"] == first["version"] != second["version"]
        again = await s4_of(folder, "deploy", file, "-p", "s4.app.word=world")
        assert f"counter {second['version']} is already deployed to shop" in again.stderr


async def test_what_is_a_node_s_own_does_not_go_along(folder: Path) -> None:
    (folder / "mine.properties").write_text(
        "s4.node.zone = elsewhere\ns4.listener.maxConnections = 1\ns4.app.word = hello\n"
    )
    more = "    def on_start(self): print('greeting', self.parameters['word'], flush=True)\n"
    file = write_app(folder, "counter", "v1", more=more)
    async with (
        node(folder, "one", s4_node_zone="north") as one,
        node(folder, "two", s4_node_zone="south") as two,
        FolderCoordination(folder / "shared", session_timeout=5).session("spectator") as session,
    ):
        given = ("--config", "mine.properties", "-p", "s4.listener.maxConnections=1")
        done = await s4_of(folder, "deploy", file, *given)
        members = await Registry(session).members(AppId("shop", "counter"))
        zones = {member.value.node: member.value.zone for member in members.values()}
        assert zones == {"one": "north", "two": "south"}
        await until(lambda: printed(one, two) == ["greeting hello"] * 2)
        assert "s4.listener.maxConnections is not deployed, because each node has" in done.stderr
        assert "s4.node.zone" not in done.stderr  # nodes may have the same file


async def test_an_app_creates_the_stream_that_the_log_of_its_node_lacks(folder: Path) -> None:
    (folder / "keeper.py").write_text(KEEPER)
    logged = {"s4_log_folder": str(folder / "log"), "s4_state_folder": str(folder / "state")}
    async with node(folder, "one", **logged) as one:
        await deploy(folder, "keeper.py", "--partitions", "4", "--name", "keeper")
        described = await run_s4("log", "describe", "clicks", "--to", one.address, cwd=folder)
        assert described.stdout.startswith("clicks: 4 partitions, key user\n"), described.stderr
        await click(one.address, "ann", "bob", "ann")
        await until(lambda: len(one.stdout) == 3)
        assert printed(one) == ["ann 1", "ann 2", "bob 1"]


async def test_other_sources_or_settings_under_the_version_that_runs_are_refused(
    folder: Path,
) -> None:
    async with node(folder, "one"):
        file = write_app(folder, "counter", "v1")
        await deploy(folder, file, "--version", "1")
        again = await s4_of(folder, "deploy", file, "--version", "1")
        assert "counter 1 is already deployed to shop" in again.stderr
        told = "version 1 of counter is already running with other sources or settings; give"
        for others in ((file, "-p", "s4.app.word=x"), (write_app(folder, "counter", "v2"),)):
            refused = await s4_of(folder, "deploy", *others, "--version", "1", ok=False)
            assert told in refused.stderr


async def test_several_apps_run_beside_each_other_and_one_is_removed(folder: Path) -> None:
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        await deploy(folder, write_app(folder, "shoes", "v1", stream="shoes"))
        await click(one.address, "ann")
        await click(one.address, "bob", stream="shoes")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 bob 1"])
        assert len(await containers(folder)) == 1  # by node
        nodes = folder / "shared" / "nodes"
        assert len(list(nodes.glob("*/*/"))) == 2  # the sources of both
        gone = await s4_of(folder, "undeploy", "shoes")
        assert len(list(nodes.glob("*/*/"))) == 1
        assert "shoes" in gone.stderr
        assert await apps(folder) == [("counter", "running", ["one"])]
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2", "v1 bob 1"])
        assert len(list((folder / "shared" / "packages").iterdir())) == 1


async def test_a_sender_goes_on_when_the_app_was_removed_and_is_deployed_again(
    folder: Path,
) -> None:
    first, second = (write_app(folder, "counter", version) for version in ("v1", "v2"))
    async with node(folder, "one") as one:
        await deploy(folder, first)
        async with Client(one.address) as client:
            clicks = await client.stream("clicks")
            await deploy(folder, second)
            await clicks.send(Click("ann"))
            await clicks.flush()
            await s4_of(folder, "undeploy", "counter")
            await clicks.send(Click("ann"))
            await deploy(folder, second)
            with trio.fail_after(20):
                await clicks.flush()
        await until(lambda: printed(one) == ["v2 ann 1", "v2 ann 1"])


async def test_a_node_that_comes_later_runs_what_is_deployed(folder: Path) -> None:
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"), "--partitions", "2")
        async with node(folder, "two") as two:
            await run_on(folder, "one", "two")
            one.process.kill()
            await one.process.wait()
            await click(two.address, "ann", "bob")
            await until(lambda: printed(two) == ["v1 ann 1", "v1 bob 1"])


async def test_a_stopped_node_leaves_nothing_behind(folder: Path) -> None:
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        (pid,) = (await containers(folder)).values()
        one.signal(signal.SIGTERM)
        assert await one.wait() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list((folder / "shared" / "nodes").iterdir()) == []


async def test_a_deployment_tells_which_node_it_waits_for_and_goes_on_when_that_one_does(
    folder: Path,
) -> None:
    more = f'\nLONG = "{os.urandom(500_000).hex()}"\n'  # more than a socket takes at once
    app = write_app(folder, "counter", "v1", more=more)
    async with node(folder, "one"), node(folder, "two") as two:
        two.signal(signal.SIGSTOP)
        where = ("--cluster", "shop", "--folder", folder / "shared")
        async with s4_process("deploy", app, *where, cwd=folder, ready=False) as deploying:
            waits = r"waiting for node(s one,)? two, at most 70 s, to load and check it"
            await until(lambda: re.search(waits, deploying.errors))
            two.signal(signal.SIGCONT)
            assert await deploying.wait() == 0
            assert "loaded and checked on nodes one, two" in deploying.errors


# -- what does not run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words", "line"),
    [
        ("1 / 0\n", "ZeroDivisionError: division by zero", "1 / 0"),
        (
            "class Broken(Counter):\n    def on_init(self): self.nothing()\ndel Counter\n",
            "on_init of app 'counter' raised AttributeError",
            "self.nothing()",
        ),
        (
            "        self.create_input_stream('more')\n",
            "stream 'more' leads to no PE",
            None,
        ),
        (
            "    def on_start(self): open('/nowhere')\n",
            "on_start of app 'counter' raised FileNotFoundError",
            "open('/nowhere')",
        ),
    ],
    ids=["import", "on_init", "graph", "on_start"],
)
async def test_a_broken_version_is_reported_and_the_old_one_and_other_apps_run_on(
    folder: Path, more: str, words: str, line: str | None
) -> None:
    async with node(folder, "one") as one, node(folder, "two") as two:
        await deploy(folder, write_app(folder, "counter", "v1"))
        await deploy(folder, write_app(folder, "shoes", "v1", stream="shoes"))
        before = await shown_apps(folder)
        await click(one.address, "ann", stream="shoes")
        await click(one.address, "ann")
        file = write_app(folder, "counter", "v2", more=more)
        done = await s4_of(folder, "deploy", file, "--name", "counter", ok=False)
        assert done.returncode == 2
        assert words in done.stderr
        if line is not None:
            assert line in done.stderr
        assert "s4node/" not in done.stderr
        versions = [(app["name"], app["version"]) for app in before]
        after = await shown_apps(folder)
        assert [(app["name"], app["version"]) for app in after] == versions
        await click(two.address, "ann")
        await click(two.address, "ann", stream="shoes")
        started = "on_start" in words  # it was in the old one's place, which has begun anew
        assert ("what was only in its memory, and not saved, is lost" in done.stderr) == started
        counted = ["v1 ann 1", "v1 ann 1", "v1 ann 1" if started else "v1 ann 2", "v1 ann 2"]
        await until(lambda: printed(one, two) == counted)
        assert len(list((folder / "shared" / "packages").iterdir())) == 2


async def test_a_broken_first_version_leaves_nothing(folder: Path) -> None:
    more = "    def on_start(self): 1 / 0\n"
    async with node(folder, "one"):
        file = write_app(folder, "counter", "v1", more=more)
        done = await s4_of(folder, "deploy", file, ok=False)
        assert "on_start of app 'counter' raised ZeroDivisionError" in done.stderr
        assert await apps(folder) == []
        assert list((folder / "shared" / "packages").iterdir()) == []
        await deploy(folder, write_app(folder, "counter", "v2"))


async def test_an_object_that_is_not_an_app_is_reported_before_a_node_is_asked(
    folder: Path,
) -> None:
    (folder / "nothing.py").write_text("x = 1\n")
    done = await s4_of(folder, "deploy", "nothing.py", ok=False)
    assert "nothing.py has no App object and no App class" in done.stderr
    assert not (folder / "shared").exists()


@pytest.mark.parametrize(
    "given", [("--name", "../../../esc"), ("--name", "x" * 300), ("--version", "1\n2")]
)
async def test_a_bad_name_or_version_is_reported_before_a_node_is_asked(
    folder: Path, given: tuple[str, str]
) -> None:
    file = write_app(folder, "counter", "v1")
    done = await s4_of(folder, "deploy", file, *given, ok=False)
    assert " is not a name for an app" in done.stderr or "is not a version of app" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "shared").exists()


async def test_an_app_that_is_deployed_before_its_node_runs_waits_for_it(folder: Path) -> None:
    file = write_app(folder, "counter", "v1")
    shared = ("--cluster", "shop", "--folder", folder / "shared")
    async with s4_process("deploy", file, *shared, cwd=folder, ready=False) as deploying:
        await until(lambda: deploying.stderr)
        async with node(folder, "one"):
            assert await deploying.wait() == 0, deploying.stderr
    assert deploying.stderr[0] == (
        f"the folder {folder / 'shared'} does not exist yet; waiting 5 s for one that starts"
    )


async def test_without_a_node_nothing_is_deployed(folder: Path) -> None:
    done = await s4_of(folder, "deploy", write_app(folder, "counter", "v1"), ok=False)
    assert "no node of cluster 'shop' is running: the folder" in done.stderr
    assert " does not exist; start one with: s4 node shop" in done.stderr
    async with node(folder, "one"):
        pass
    done = await s4_of(folder, "deploy", write_app(folder, "counter", "v1"), ok=False)
    assert (
        f"no node of cluster 'shop' is running in {folder / 'shared'}; start one with: s4 node"
        in done.stderr
    )


async def test_a_stream_s_name_is_one_app_s_in_a_cluster(folder: Path) -> None:
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        done = await s4_of(folder, "deploy", write_app(folder, "other", "v1"), ok=False)
        assert "app 'counter' of cluster 'shop' already has an input stream 'clicks'" in done.stderr
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1"])


async def test_the_partitions_of_a_deployed_app_stay(folder: Path) -> None:
    async with node(folder, "one"):
        await deploy(folder, write_app(folder, "counter", "v1"), "--partitions", "2")
        file = write_app(folder, "counter", "v2")
        done = await s4_of(folder, "deploy", file, "--partitions", "3", ok=False)
        assert "app 'counter' has 2 partitions, which cannot become 3" in done.stderr
        assert (await deploy(folder, file))["partitions"] == 2
        three = ("-p", "s4.cluster.partitions=3")
        done = await s4_of(folder, "deploy", file, *three, ok=False)
        assert "app 'counter' has 2 partitions, which cannot become 3" in done.stderr
        address = ("-p", "s4.listener.address=tcp://127.0.0.1:1234")
        done = await s4_of(folder, "deploy", file, *address)
        assert "s4.listener.address is not deployed" in done.stderr


async def test_a_node_with_another_python_is_reported_before_anything_is_sent(folder: Path) -> None:
    async with node(folder, "one"):
        old = NodeInfo(name="old", host="h", pid=1, python="3.9")
        async with FolderCoordination(folder / "shared").session("test") as session:
            await Registry(session).join_node("shop", old)
            done = await s4_of(folder, "deploy", write_app(folder, "counter", "v1"), ok=False)
        assert "node 'old' runs Python 3.9, which cannot load it: deploy with" in done.stderr


async def test_one_of_two_deployments_at_once_wins_and_the_other_is_told(folder: Path) -> None:
    slow = "    def on_start(self):\n        import time; time.sleep(1)\n"
    first = write_app(folder, "counter", "v1", more=slow)
    second = write_app(folder, "counter", "v2", more=slow)
    done: list[subprocess.CompletedProcess[str]] = []

    async def start(file: str) -> None:
        where = ("--cluster", "shop", "--folder", str(folder / "shared"))
        done.append(await run_s4("deploy", file, *where, cwd=folder))

    async with node(folder, "one") as one:
        await together(lambda: start(first), lambda: start(second))
        won, lost = sorted(done, key=lambda each: each.returncode)
        assert (won.returncode, lost.returncode) == (0, 1)
        assert "the deployment of 'counter' by process" in lost.stderr
        assert "is in progress in cluster 'shop'" in lost.stderr
        await click(one.address, "ann")
        version = "v1" if "v1" in "".join(map(str, won.args)) else "v2"
        await until(lambda: printed(one) == [f"{version} ann 1"])


async def test_a_deployment_that_is_killed_is_no_hindrance(folder: Path) -> None:
    (folder / "stuck.py").write_text(
        "import os, time\nfrom s4node import App\nclass Stuck(App):\n"
        "    def on_init(self): print('init', os.getpid(), flush=True); time.sleep(3600)\n"
    )
    async with node(folder, "one") as one:
        where = ("--cluster", "shop", "--folder", str(folder / "shared"))
        async with s4_process("deploy", "stuck.py", *where, cwd=folder, ready=False) as first:
            await until(lambda: any("init" in line for line in printed(one)))
            await first.kill()
        await deploy(folder, write_app(folder, "counter", "v2"))
        await click(one.address, "ann")
        await until(lambda: "v2 ann 1" in printed(one))
        assert [app for app, _, _ in await apps(folder)] == ["counter"]
        (pid,) = [int(line.split()[1]) for line in printed(one) if line.startswith("init")]
        await one.kill()
        await until(lambda: not Path(f"/proc/{pid}").exists(), "what never got ready ends, too")


async def test_an_app_that_is_not_there_cannot_be_removed(folder: Path) -> None:
    async with node(folder, "one"):
        file = write_app(folder, "counter", "v1")
        await deploy(folder, file)
        done = await s4_of(folder, "undeploy", "carts", ok=False)
        assert "cluster 'shop' has no app 'carts'; its apps: counter" in done.stderr
        where = ("--cluster", "shops", "--folder", str(folder / "shared"))
        for command in (("undeploy", "counter"), ("status",), ("deploy", file)):
            done = await run_s4(*command, *where, cwd=folder)
            assert done.returncode == 1
            assert (
                f"no node of cluster 'shops' is running in {folder / 'shared'}; nodes of shop are"
                in done.stderr
            )


@pytest.mark.parametrize("name", ["a\nb", " ", "\x1b[31mred", "..", "a,b"])
async def test_a_node_s_name_is_one_word_that_can_be_printed(folder: Path, name: str) -> None:
    where = ("--folder", folder / "shared", "-p", f"s4.listener.address={ANY_PORT}")
    done = await run_s4("node", "shop", "--name", name, *where, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{name!r} is not a node name; use printable characters" in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_an_app_is_a_line_whatever_its_name_is(folder: Path) -> None:
    async with node(folder, "one"):
        await put_into_the_folder(folder, "a\n\x1b[31mb", b"no package")
        done = await s4_of(folder, "status")
        (line,) = [line for line in done.stdout.splitlines() if r"a\n\x1b[31mb" in line]
        assert "not running" in line


# -- nodes and containers that die ----------------------------------------------------------------


async def test_the_second_of_two_nodes_with_one_name_is_refused(folder: Path) -> None:
    async with node(folder, "one"):
        where = ("--folder", folder / "shared", "-p", f"s4.listener.address={ANY_PORT}")
        quick = ("-p", "s4.session.timeout=1000")
        done = await run_s4("node", "shop", "--name", "one", *where, *quick, cwd=folder)
        assert done.returncode == 1
        assert "cluster 'shop' already has a node 'one': process" in done.stderr
        assert "Traceback" not in done.stderr


async def test_a_node_waits_at_its_start_for_the_session_of_a_killed_one_and_says_so(
    folder: Path,
) -> None:
    where = ("--folder", folder / "shared", "-p", f"s4.listener.address={ANY_PORT}")
    start = ("node", "shop", "--name", "one", *where)
    ends = trio.Event()

    async def hold_name(task_status: trio.TaskStatus[None]) -> None:
        async with FolderCoordination(folder / "shared").session("killed") as session:
            killed = NodeInfo("one", "here", 815, python_here())
            await Registry(session).join_node("shop", killed)
            task_status.started()
            await ends.wait()

    async with trio.open_nursery() as nursery:
        await nursery.start(hold_name)
        async with s4_process(*start, cwd=folder, ready=False) as process:
            await until(lambda: "waits for a session with this node's name" in process.errors)
            assert "a node 'one': process 815 on here" in process.errors
            ends.set()
            await until(lambda: process.readiness)


async def test_a_node_does_not_take_for_its_own_at_its_start_one_that_looks_like_it(
    folder: Path,
) -> None:
    """Containers with one host name have the same process id and address."""
    address = f"tcp://127.0.0.1:{free_port()}"
    place = {
        "s4.coordination.folder": str(folder / "shared"),
        "s4.listener.address": address,
        "s4.session.timeout": "1000",
    }
    config = Config.from_values({"s4.cluster.name": "shop", **place})
    me = NodeInfo("one", socket.gethostname(), os.getpid(), python_here(), address, __version__)
    async with FolderCoordination(folder / "shared").session("other") as session:
        await Registry(session).join_node("shop", me)
        with (
            trio.fail_after(DEADLINE),
            pytest.RaisesGroup(NameTaken, flatten_subgroups=True, allow_unwrapped=True),
        ):
            await Node(config, "one").run()


async def test_clients_of_a_killed_node_go_on_when_it_has_come_back(folder: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    (folder / "relay.py").write_text(RELAY)
    async with node(folder, "one", s4_listener_address=address) as one:
        await deploy(folder, "relay.py")
        async with (
            Client(address) as client,
            Client(address) as reader,
            reader.subscribe("copies") as copies,
        ):
            clicks = await client.stream("clicks")
            await clicks.send(Click("ann"))
            assert await clicks.flush() == []
            await one.kill()
            await clicks.send(Click("bob"))
            await until(lambda: not client._emitter.connected and copies.interruptions)
            async with node(folder, "one", s4_listener_address=address):
                assert await clicks.flush() == []
                with trio.fail_after(DEADLINE):
                    seen = ""
                    while seen != "joe":
                        await clicks.send(Click("joe"))
                        assert await clicks.flush() == []
                        with trio.move_on_after(0.5):
                            seen = (await anext(copies)).user
                await flat_refusal(address)


async def flat_refusal(address: str) -> None:
    """A stream that no app has is turned down at once, where all is known."""
    async with Client(address) as client:
        with pytest.raises(S4Error, match="has an input stream 'taps'; its input streams: clicks"):
            await client.stream("taps")


async def test_packages_that_have_disappeared_are_told_and_can_be_deployed_anew(
    folder: Path,
) -> None:
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        shutil.rmtree(folder / "shared" / "packages")
        before = await containers(folder)
        os.kill(before["one"], signal.SIGKILL)
        await until(lambda: "is missing; deploy the app again" in one.errors)
        await deploy(folder, write_app(folder, "counter", "v2"))
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v2 ann 1"])


async def test_a_node_whose_folder_has_disappeared_says_so_and_stops(folder: Path) -> None:
    async with node(folder, "one", s4_session_timeout="1000") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        (pid,) = (await containers(folder)).values()
        shutil.rmtree(folder / "shared")
        assert await one.wait() == 1
        assert str(folder / "shared") in one.errors
        assert "Traceback" not in one.errors
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))


async def set_app_entry(folder: Path, data: bytes) -> bytes:
    """Write what the registry has of the counter; what it was before."""
    async with FolderCoordination(folder / "shared").session("test") as session:
        path = f"{Registry.path_of_apps('shop')}/counter"
        entry = await session.get(path)
        assert entry is not None
        await session.set(path, data)
        return entry.data


async def test_running_apps_go_on_while_the_deployed_ones_are_unknown(folder: Path) -> None:
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        before = await set_app_entry(folder, b"{")
        await until(
            lambda: "cannot learn what is deployed; running containers continue" in one.errors
        )
        await set_app_entry(folder, b"{")
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1"])
        await set_app_entry(folder, before)
        await until(lambda: "can learn what is deployed again" in one.errors)
        assert one.errors.count("cannot learn what is deployed") == 1
        assert "another version of s4node may have written it" in one.errors
        await deploy(folder, write_app(folder, "counter", "v2"))
        await click(one.address, "bob")
        await until(lambda: printed(one) == ["v1 ann 1", "v2 bob 1"])


@asynccontextmanager
async def asleep_until_ended(one: NodeProcess, folder: Path) -> AsyncIterator[None]:
    """The block begins when the others have ended the session of a stopped node, and it goes on
    when the block ends."""
    async with FolderCoordination(folder).session("test") as session:
        one.signal(signal.SIGSTOP)
        await until_told(lambda: Registry(session).nodes("shop"), lambda nodes: not nodes)
    yield
    one.signal(signal.SIGCONT)


async def test_a_node_whose_lost_session_is_there_again_waits_for_its_end(folder: Path) -> None:
    async with node(folder, "one", s4_session_timeout="1000") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        before = await containers(folder)
        async with FolderCoordination(folder / "shared").session("former") as session:
            registry = Registry(session)
            me = (await registry.nodes("shop"))["one"]
            async with asleep_until_ended(one, folder / "shared"):
                await registry.join_node("shop", me)  # as a ZooKeeper does that now leads
            with trio.move_on_after(3):
                await one.wait()
            assert one.process.returncode is None, one.errors
            assert "the node has joined again" not in one.errors
        await until(lambda: "the node has joined again" in one.errors)
        assert await containers(folder) == before


async def test_running_apps_go_on_while_a_node_cannot_reach_its_folder(folder: Path) -> None:
    real, link = folder / "real", folder / "shared"
    real.mkdir(mode=0o700)
    link.symlink_to(real)
    async with node(folder, "one", s4_session_timeout="1000") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        before = await containers(folder)
        async with asleep_until_ended(one, real):
            (folder / "loop").symlink_to("shared")
            (folder / "loop").replace(link)  # it leads to itself
        await until(lambda: "cannot join again; running containers continue" in one.errors)
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1"])
        (folder / "way").symlink_to(real)
        (folder / "way").replace(link)
        await until(lambda: "the node has joined again" in one.errors)
        assert await containers(folder) == before
        assert one.errors.count("cannot join again") == 1
        assert "a container ended" not in one.errors
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2"])


async def test_a_node_that_finds_its_folder_in_another_format_says_so_and_stops(
    folder: Path,
) -> None:
    async with node(folder, "one", s4_session_timeout="1000") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        async with asleep_until_ended(one, folder / "shared"):
            database = sqlite3.connect(folder / "shared" / "tree.sqlite", isolation_level=None)
            database.execute("PRAGMA user_version = 9")
            database.close()
        assert await one.wait() == 1
        assert "has format 9, and this s4node reads format 1" in one.errors
        assert "Traceback" not in one.errors


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ExceptionGroup("", [SessionLost("its session has ended")]), []),
        (ExceptionGroup("", [S4Error("out of order")]), ["out of order"]),
        (OSError("no room"), ["the node could not do this: OSError: no room; see its log"]),
    ],
    ids=["asker gone", "refused", "unforeseen"],
)
async def test_no_request_ends_the_node(error: Exception, told: list[str]) -> None:
    answers: list[str] = []

    async def say(answer: msgspec.Struct) -> None:
        assert isinstance(answer, protocol.Failed)
        answers.append(answer.error)

    async def answer(ask: protocol.Ask, say: protocol.Say) -> None:
        raise error

    await protocol.answer_with(answer, b'{"ask": "settings", "deployed": {}}', say)
    assert answers == told


async def test_an_app_waits_while_it_cannot_be_known_whether_another_version_runs(
    folder: Path,
) -> None:
    class Unreadable:
        async def members(self, app: object) -> None:
            raise CoordinationError("the disk is gone")

    config = Config.from_values({"s4.coordination.folder": str(folder), **QUICK})
    node = Node(config)
    node._registry = Unreadable()  # type: ignore[assignment]
    assert await node._others_run(AppInfo("counter", "shop", "v1", 1))


# -- rubbish --------------------------------------------------------------------------------------


async def test_rubbish_among_the_requests_in_the_tree_is_answered_and_harms_nobody(
    folder: Path,
) -> None:
    async with node(folder, "one") as one:
        async with FolderCoordination(folder / "shared").session("test") as session:
            registry = Registry(session)
            for number, data in enumerate((b"", b"rubbish", zlib.compress(b"[1]"))):
                path = Registry.path_of_request("shop", f"r{number}")
                await session.create(path, data, ephemeral=True)
            for digest in ("../../etc/passwd", "0" * 64):
                ask = protocol.AskDeploy(digest, 1, 1)
                async with requesting(
                    registry, "shop", ["one"], ask, protocol.decode_answer
                ) as request:
                    with trio.fail_after(DEADLINE):
                        answer = await request.wait_answer("one", 0)
                assert isinstance(answer, protocol.Failed)
        await deploy(folder, write_app(folder, "counter", "v1"))
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1"])


def package_named(name: str) -> bytes:
    """A package that was not made by ``s4 deploy``: nothing has checked its app's name."""
    manifest = Manifest(
        name=name, version="1", kind="source", entry="m:app", python=python_here(), s4node="0"
    )
    source = b"from s4node import App\napp = App('fine')\n"
    return Package(manifest, {"sources/m.py": source}).encode()


async def put_into_the_folder(folder: Path, app: str, data: bytes) -> None:
    """Have the cluster run what nobody has checked."""
    digest = Store(folder / "shared" / "packages").put(data)
    async with FolderCoordination(folder / "shared").session("test") as session:
        info = AppInfo(name=app, cluster="shop", version="1", partitions=1, package=digest)
        await Registry(session).create_app(info)


def escaped(folder: Path) -> list[Path]:
    """The files written outside of the folder."""
    return list(folder.rglob("*escaped*"))


async def test_a_package_whose_name_leads_elsewhere_is_not_unpacked_wherever_it_comes_from(
    folder: Path,
) -> None:
    async with node(folder, "one") as one:
        for name in (f"../../../../../../../../..{folder}/escaped", "x" * 300):
            digest = Store(folder / "shared" / "packages").put(package_named(name))
            ask = protocol.AskDeploy(digest, 1, 1)
            async with (
                FolderCoordination(folder / "shared").session("test") as session,
                requesting(
                    Registry(session), "shop", ["one"], ask, protocol.decode_answer
                ) as request,
            ):
                with trio.fail_after(DEADLINE):
                    answer = await request.wait_answer("one", 0)
            assert isinstance(answer, protocol.Failed)
            assert "is not a name for an app" in answer.error
        await put_into_the_folder(folder, "fine", package_named("../escaped"))
        await until(lambda: "'../escaped' is not a name for an app" in one.errors)
        assert escaped(folder) == []


async def test_a_node_that_finds_what_is_no_package_in_its_folder_says_so_and_serves_the_others(
    folder: Path,
) -> None:
    encrypted = bytearray(package_named("fine"))
    encrypted[encrypted.find(b"PK\x01\x02") + 8] = 1
    deep = io.BytesIO()
    with zipfile.ZipFile(deep, "w") as archive:
        archive.writestr(MANIFEST, b'{"x": ' + b"[" * 100_000)
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        await put_into_the_folder(folder, "encrypted", bytes(encrypted))
        await put_into_the_folder(folder, "deep", deep.getvalue())
        await until(lambda: "is encrypted" in one.errors)
        await until(lambda: "cannot be read: maximum recursion depth exceeded" in one.errors)
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1"])
        assert sorted(name for name, _, nodes in await apps(folder) if nodes) == ["counter"]
        assert "Traceback" not in one.errors


async def test_a_node_listens_on_loopback_only_unless_told_otherwise(folder: Path) -> None:
    async with node(folder, "one") as one:
        await deploy(folder, write_app(folder, "counter", "v1"))
        pids = [one.pid, *(await containers(folder)).values()]
        listening = [address for pid in pids for address in listening_at(pid)]
        loopback = socket.inet_aton("127.0.0.1")[::-1].hex().upper()
        assert [address.split(":")[0] for address in listening] == [loopback, loopback]


def listening_at(pid: int) -> list[str]:
    """Where a process listens on TCP, as the kernel writes it."""
    open_files = [link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {name[8:-1] for name in open_files if name.startswith("socket:[")}
    rows = []
    for table in ("tcp", "tcp6"):
        rows += [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


# -- seeing it ------------------------------------------------------------------------------------


async def test_status_shows_nodes_apps_owners_and_stages(folder: Path) -> None:
    async with node(folder, "one") as one, node(folder, "two") as two:
        await deploy(folder, write_app(folder, "counter", "v1"), "--partitions", "4")
        await click(one.address, "ann", "bob", "joe", "eve")
        await until(lambda: len(printed(one, two)) == 4)
        status = await until_told(  # pulses bring the counts within a second
            lambda: status_of(folder), lambda told: admitted(told).get("stream") == 4
        )
        counts = admitted(status)
        assert counts["deserializer"] == 4  # also those that one has passed on to the other
        assert [each["name"] for each in status["nodes"]] == ["one", "two"]
        (app,) = status["apps"]
        assert (app["name"], app["partitions"], app["members"]) == ("counter", 4, ["one", "two"])
        assert sorted(app["owners"]) == ["one", "one", "two", "two"]
        told = (await s4_of(folder, "status")).stdout
        for words in ("cluster shop", one.address, "counter", "one: ", "two: ", "clicks"):
            assert words in told
        assert "rate" not in told  # which takes two looks
        seen = (await s4_of(folder, "top", "--count", "2", "--interval", "0.2")).stdout
        assert seen.count("cluster shop") == 2
        assert "0/s" in seen


async def test_status_says_when_no_node_lives_and_when_one_does_not_answer(folder: Path) -> None:
    none = await s4_of(folder, "status", ok=False)
    assert "no node of cluster 'shop' is running: the folder" in none.stderr
    assert " does not exist; start one with: s4 node shop" in none.stderr
    async with node(folder, "one"):
        pass
    none = await s4_of(folder, "status", ok=False)
    for command in (["status"], ["top"]):
        none = await s4_of(folder, *command, ok=False)
        assert none.returncode == 1
        assert (
            f"no node of cluster 'shop' is running in {folder / 'shared'}; start one with: s4 node"
            in none.stderr
        )
    async with node(folder, "one") as one, node(folder, "two"):
        one.signal(signal.SIGSTOP)
        told = (await s4_of(folder, "status")).stdout
        one.signal(signal.SIGCONT)
        assert "did not answer within 2 s; it may be stopped" in told
        assert "two" in told


# Fails at a user, and puts the others' clicks on a stream for an app that never comes.
FAILING = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Copy(ProcessingElement):
    def on_event(self, click: Click):
        if click.user == "bad":
            raise ValueError("a bad one")
        self.app.streams["copies"].put(click)
app = App("failing")
app.create_output_stream("copies", key="user", types=Click)
app.create_input_stream("clicks", app.create_pe(Copy), key="user")
"""


async def test_an_app_that_has_failed_is_not_told_to_run(folder: Path) -> None:
    (folder / "failing.py").write_text(FAILING)
    async with node(folder, "one", s4_container_restartDelay="600000") as one:
        await deploy(folder, "failing.py")
        async with Client(one.address) as client:
            client.abandon()
            clicks = await client.stream("clicks")
            await clicks.send(Click("bad"))
            await until(lambda: "a container ended" in one.errors)
        told = (await s4_of(folder, "status")).stdout
        assert "waiting to restart  1, owned by nobody" in told
        assert re.search(r"failing on one ended at [-\d: ]+ because: ", told)
        again = await s4_of(folder, "deploy", "failing.py", ok=False)
        assert "is already deployed to shop, but none of its containers runs; s4" in (again.stderr)


async def test_status_shows_skipped_and_untaken_events_if_there_are_any(
    folder: Path,
) -> None:
    (folder / "failing.py").write_text(FAILING)
    state = {"s4.state.folder": str(folder / "state")}
    async with node(folder, "one", **state, task_shutdown_ms="100") as one:
        await deploy(
            folder,
            "failing.py",
            "--partitions",
            "2",
            "-p",
            "s4.stream.clicks.grade=durable",
            "-p",
            "s4.stream.clicks.onError=skip",
            "-p",
            "s4.stream.copies.consumers=nobody",
            "-p",
            "s4.cluster.nobody.address=tcp://127.0.0.1:9",
        )
        told = (await s4_of(folder, "status")).stdout
        assert "left out" not in told
        assert "outbox" not in told
        await click(one.address, "ann", "bad", "joe", "bad", "eve")
        status = await until_told(  # pulses bring the counts within a second
            lambda: status_of(folder),
            lambda told: told["outboxes"] and sum(row["left_out"] for row in told["stages"]) == 2,
        )
        (outbox,) = status["outboxes"]
        del outbox["bytes"]
        assert outbox == {"app": "failing", "stream": "copies", "consumer": "nobody", "depth": 3}
        told = (await s4_of(folder, "status")).stdout
        for words in ("left out", "outbox", "nobody"):
            assert words in told


# A stream whose events take far longer than they come.
SLOW = """\
import trio
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Slow(ProcessingElement):
    async def on_event(self, click: Click):
        await trio.sleep_forever()
app = App("slow")
app.create_input_stream("clicks", app.create_pe(Slow), key="user")
"""


async def test_status_names_the_bottleneck(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW)
    async with node(folder, "one", task_shutdown_ms="100") as one:
        await deploy(folder, "slow.py", "-p", "s4.stream.workQueueSize=50")
        async with Client(one.address) as client:
            client.abandon()
            clicks = await client.stream("clicks")
            await clicks.send_many(Click("ann") for _ in range(2000))
            status = await until_told(lambda: status_of(folder), lambda told: told["bottleneck"])
        assert "stream 'clicks' of app 'slow' is " in status["bottleneck"]


# -- set-up ---------------------------------------------------------------------------------------


# Each user's clicks so far, with the version that counted them.
COUNTER = """\
import os
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
        print("VERSION", self.key, self.clicks)
class Counter(App):
    def __init__(self):
        super().__init__("counter")
    def on_init(self):
        self.create_input_stream("STREAM", self.create_pe(Count), key="user")
"""

# The same, of clicks that a log keeps.
KEEPER = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Keep(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
        print(self.key, self.clicks)
class Keeper(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Keep), key="user", system="log")
"""

# Puts each click on the output stream "copies".
RELAY = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Relay(ProcessingElement):
    def on_event(self, click: Click):
        self.copies.put(click)
class Relaying(App):
    def on_init(self):
        relay = self.create_pe(Relay)
        relay.copies = self.create_output_stream("copies", types=Click)
        self.create_input_stream("clicks", relay, key="user")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write_app(folder: Path, name: str, version: str, stream: str = "clicks", more: str = "") -> str:
    """A counter's file, which prints ``version`` with each count; its name."""
    text = COUNTER.replace("VERSION", version).replace("STREAM", stream) + more
    if name != "counter":
        text = text.replace('"counter"', f'"{name}"')
    file = folder / f"{name}_{version}.py"
    file.write_text(text)
    return file.name


@asynccontextmanager
async def node(folder: Path, name: str, **settings: str) -> AsyncIterator[NodeProcess]:
    given = QUICK | {key.replace("_", "."): value for key, value in settings.items()}
    options = [word for key, value in given.items() for word in ("-p", f"{key}={value}")]
    command = ("node", "shop", "--name", name, "--folder", folder / "shared", *options)
    async with s4_process(*command, cwd=folder) as process:
        yield process


async def s4_of(folder: Path, *arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """An ``s4`` command about the cluster, to its end."""
    where = ("--cluster", "shop", "--folder", str(folder / "shared"))
    done = await run_s4(*arguments, *where, cwd=folder)
    assert (done.returncode == 0) == ok, done.stderr
    return done


async def deploy(folder: Path, *arguments: str) -> dict[str, Any]:
    done = await s4_of(folder, "deploy", *arguments, "--json")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


async def apps(folder: Path) -> list[tuple[str, str, list[str]]]:
    """Name, state and nodes of each app."""
    listed = await shown_apps(folder)
    return [(app["name"], app["state"], sorted(app["containers"])) for app in listed]


async def shown_apps(folder: Path) -> list[dict[str, Any]]:
    """The apps as ``s4 status`` shows them."""
    clusters = json.loads((await s4_of(folder, "status", "--json")).stdout)
    return [app for cluster in clusters for app in cluster["apps"]]


async def run_on(folder: Path, *nodes: str) -> None:
    """Return when these nodes, and no others, run the counter."""
    await until_told(lambda: apps(folder), lambda told: told == [("counter", "running", [*nodes])])


async def status_of(folder: Path) -> dict[str, Any]:
    told: list[dict[str, Any]] = json.loads((await s4_of(folder, "status", "--json")).stdout)
    (cluster,) = told
    return cluster


def admitted(status: dict[str, Any]) -> dict[str, int]:
    """Events that a stage has admitted, by the kind of stage; each has one here."""
    return {row["stage"]: row["admitted"] for row in status["stages"]}


async def click(address: str, *users: str, stream: str = "clicks") -> None:
    async with Client(address) as client:
        clicks = await client.stream(stream)
        for user in users:
            await clicks.send(Click(user))
        await clicks.flush()


def printed(*nodes: NodeProcess) -> list[str]:
    """The lines that the apps have printed, sorted; logs go to stderr."""
    return sorted(line for each in nodes for line in each.stdout)


async def containers(folder: Path) -> dict[str, int]:
    """The pids of the containers that run, by node."""
    status = await status_of(folder)
    return {
        each["name"]: container["pid"]
        for each in status["nodes"]
        for container in each["containers"]
    }
