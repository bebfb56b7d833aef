"""Nodes that share nothing but a real ZooKeeper and a URL, in real processes that are killed."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from certificates import Issuer
from harness import DEADLINE, QUICK, NodeProcess, children, run_s4, s4_process, until, until_told
from judge import entries_in, wrong_log
from shared_apps import COUNTER, Click
from zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer, zookeeper_server

from s4node import Client

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.long]  # whose jars have ZooKeeper
USERS = [f"user{number}" for number in range(24)]
PARTITIONS = 8


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path / "zookeeper") as server:
        yield server


@dataclass
class Cluster:
    """Nodes below ``place``, each in a folder of its own; what was sent, and what they printed."""

    place: Path
    zookeeper: ZooKeeperServer | ZooKeeperEnsemble
    sent: Counter[str]

    def where(self) -> list[str]:
        return ["--cluster", "shop", "--coordination", self.zookeeper.url("s4")]

    @asynccontextmanager
    async def node(
        self, name: str, timeout: int = 2000, ready: bool = True, **more: str
    ) -> AsyncIterator[NodeProcess]:
        folder = self.place / name
        folder.mkdir(exist_ok=True)
        settings = QUICK | {
            "s4.session.timeout": str(timeout),
            "s4.state.folder": str(folder / "state"),
            "s4.state.url": f"file://{self.place}/remote_job",
            "s4.stream.clicks.grade": "durable",
            "task.commit.ms": "200",
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        options = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
        command = ("node", "shop", "--name", name, "--folder", folder / "s4", *options)
        async with s4_process(*command, *self.where()[2:], cwd=folder, ready=ready) as process:
            yield process

    def keep_state(self) -> list[str]:
        """The machines that have state of the app on their disks."""
        return sorted(path.parts[-4] for path in self.place.glob("*/state/shop/counter"))

    async def s4(self, *arguments: str, stdin: bytes = b"", ok: bool = True) -> str:
        other = self.place / "elsewhere"
        other.mkdir(exist_ok=True)
        nowhere = ("--folder", other / "s4", "-p", f"s4.state.folder={other / 'state'}")
        where = (*self.where(), *nowhere)
        done = await run_s4(*arguments, *where, cwd=other, stdin=stdin, deadline=3 * DEADLINE)
        assert (done.returncode == 0) == ok, done.stderr
        return done.stdout

    async def deploy(self, version: str) -> None:
        (self.place / "elsewhere").mkdir(exist_ok=True)
        file = self.place / "elsewhere" / "app.py"
        file.write_text(COUNTER.replace("os.getpid()", f'"{version}"'))
        await self.s4("deploy", "app.py", "--partitions", str(PARTITIONS), "--version", version)

    async def status(self) -> dict[str, Any]:
        (cluster,) = json.loads(await self.s4("status", "--json"))
        found: dict[str, Any] = cluster
        return found

    async def owners(self) -> list[str]:
        """The owner of each partition, empty if there is none."""
        apps = (await self.status())["apps"]
        return list(apps[0]["owners"]) if apps else []

    async def owned_by(self, *nodes: str) -> list[str]:
        """The owners, once these nodes and no others own all partitions."""
        return await until_told(
            self.owners, lambda told: len(told) == PARTITIONS and set(told) == set(nodes)
        )

    def fences(self) -> dict[str, int]:
        """The highest fence of each task at the URL, whose log nobody else has written to."""
        found = {}
        for task in (self.place / "remote_job" / "shop" / "counter" / "tasks").iterdir():
            entries = entries_in(task / "log")
            assert wrong_log(entries) == []
            found[task.name] = max(entry.owner.fence for entry in entries.values())
        assert len(found) == PARTITIONS
        return found

    async def click(self, address: str, rounds: int = 1) -> None:
        """One click of each user a round; returns once all are committed."""
        async with Client(address, timeout=3 * DEADLINE) as client:
            clicks = await client.stream("clicks")
            for _ in range(rounds):
                for user in USERS:
                    await clicks.send(Click(user))
                    self.sent[user] += 1
            assert await clicks.flush() == []

    async def check(self, address: str, *nodes: NodeProcess, version: str = "v1") -> None:
        """Each user was counted exactly once per click."""
        await self.click(address)
        wanted = {f"{version} {user} {self.sent[user]}" for user in USERS}
        lines = lambda: {line for node in nodes for line in node.stdout}  # noqa: E731
        await until(lambda: wanted <= lines(), "all clicks are counted once")
        too_many = {f"{version} {user} {self.sent[user] + 1}" for user in USERS}
        assert not too_many & lines()


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> Cluster:
    return Cluster(tmp_path, zookeeper, Counter())


def container_of(node: NodeProcess) -> int:
    (pid,) = children(node.pid)
    return pid


async def test_an_app_is_deployed_from_elsewhere_and_a_lost_machine_loses_no_event(
    cluster: Cluster,
) -> None:
    async with cluster.node("one") as one, cluster.node("two") as two:
        await cluster.deploy("v1")
        await cluster.owned_by("one", "two")
        status = await cluster.status()
        assert [(node["name"], node["problem"]) for node in status["nodes"]] == [
            ("one", ""),
            ("two", ""),
        ]
        await cluster.click(one.address, 3)
        for pid in (container_of(one), one.pid):
            os.kill(pid, signal.SIGKILL)
        await cluster.check(two.address, one, two)
        await cluster.owned_by("two")
        async with cluster.node("three") as three:  # it fetches the package, and the state
            await cluster.owned_by("two", "three")
            await cluster.check(three.address, one, two, three)
            assert "state is fetched, to be followed" in three.errors
        assert cluster.keep_state() == ["one", "three", "two"]
        assert (await cluster.status())["apps"][0]["version"] == "v1"


async def test_a_machine_with_nothing_but_an_operators_certificate_does_everything(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer(tmp_path / "authority")
    keys = {key.replace(".", "_"): text for key, text in issuer.node("shop", "one").items()}
    ops = issuer.files("s4://shop/operator/ops")
    given = [word for key, text in ops.items() for word in ("-p", f"{key}={text}")]
    async with cluster.node("one", **keys):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no process of this machine is known
        await cluster.deploy("v1")
        await cluster.s4("send", "clicks", *given, stdin=b'{"user": "joe"}\n{"user": "joe"}\n')
        (seen,) = json.loads(await cluster.s4("status", "--json", *given))
        assert [node["problem"] for node in seen["nodes"]] == [""]
        assert ("counter", "running") in [(app["name"], app["state"]) for app in seen["apps"]]
        (without,) = json.loads(await cluster.s4("status", "--json"))
        assert "needs a certificate; give an operator's" in without["nodes"][0]["problem"]
        await cluster.s4("savepoint", "take", "counter", "--name", "first")
        row = json.loads(await cluster.s4("state", "get", "counter", "joe", "--json"))
        assert row["value"] == {"clicks": 2}
        await cluster.s4("drain", "one", "--timeout", "0.1", ok=False)
        await cluster.s4("undeploy", "counter")


async def test_a_dead_container_is_noticed_long_before_its_timeout(cluster: Cluster) -> None:
    timeout = 60_000  # longer than everything here waits
    async with cluster.node("one", timeout) as one, cluster.node("two", timeout) as two:
        await cluster.deploy("v1")
        await cluster.owned_by("one", "two")
        await cluster.click(one.address)
        killed = container_of(one)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: children(one.pid) not in ([], [killed]), "it is started again")
        await cluster.check(two.address, one, two)
        await cluster.owned_by("one", "two")


async def test_after_zookeeper_was_wiped_an_app_that_is_deployed_again_goes_on_from_the_url(
    cluster: Cluster, zookeeper: ZooKeeperServer
) -> None:
    async with cluster.node("one") as one:
        await cluster.deploy("v1")
        await cluster.click(one.address, 2)
    before = cluster.fences()
    zookeeper.kill()
    zookeeper.wipe()
    await trio.to_thread.run_sync(zookeeper.start)
    async with cluster.node("two") as two:
        await cluster.deploy("v1")
        await cluster.check(two.address, two)
    after = cluster.fences()
    assert all(after[task] > fence for task, fence in before.items())


async def test_nodes_that_would_not_fit_together_do_not_join(cluster: Cluster) -> None:
    async with cluster.node("one"):
        other = cluster.node("two", ready=False, s4_state_url=f"file://{cluster.place}/other")
        async with other as two:
            assert await two.wait() == 1
            assert "has its packages and state at file://" in two.errors
            assert "give all nodes the same one" in two.errors


async def test_without_a_url_for_packages_a_node_says_what_to_set(cluster: Cluster) -> None:
    command = ("node", "shop", "-p", "s4.listener.address=tcp://127.0.0.1:0")
    done = await run_s4(*command, *cluster.where()[2:], cwd=cluster.place)
    assert done.returncode == 2
    assert "s4.state.url is not set" in done.stderr


@pytest.mark.parametrize("command", ["state scan counter", "savepoint list counter", "drain one"])
async def test_a_command_about_a_cluster_that_zookeeper_does_not_know_says_which_it_knows(
    cluster: Cluster, command: str
) -> None:
    async with cluster.node("one"):
        where = ("--cluster", "sohp", *cluster.where()[2:])
        state = ("-p", f"s4.state.folder={cluster.place / 'state'}")
        done = await run_s4(*command.split(), *where, *state, cwd=cluster.place)
    assert done.returncode == 2
    assert done.stderr == (
        f"s4: no node of cluster 'sohp' is running in {cluster.zookeeper.url('s4')}; nodes of shop "
        f"are: name it with --cluster; or start one with: s4 node sohp\n"
    )
