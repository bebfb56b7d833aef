"""Nodes for benchmarks: processes that share a place for coordination and a URL for state."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from benchmarks import servers
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.registry import Registry
from s4node.config.config import Config
from s4node.config.settings import CLUSTER_NAME, COORDINATION, COORDINATION_FOLDER
from s4node.deploy.answers import registry_of
from s4node.errors import S4Error
from s4node.events.event import Event
from s4node.events.keys import Partitioner, crc32m
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_log import LOOK
from s4node.state.task_state import TaskState

FOLDER, ZOOKEEPER = "folder", "folder, ZooKeeper"
S3, SLOW_S3, NARROW_S3 = "S3", "S3, 20 ms a request", "S3, 50 MB/s"
"""Where the nodes' state is, and whether they find each other through a ZooKeeper."""

_CLUSTER, _APP = "bench", "counting"
_END_SECONDS = 30
_ENTRIES_SECONDS = 600.0
_SPEEDS = {S3: (0, math.inf), SLOW_S3: (20, math.inf), NARROW_S3: (0, 50_000_000)}
"""By place: how many ms a request takes longer, and the bytes that all get in a second."""

WAIT_SECONDS = 120.0
PAUSE_SECONDS = 0.05
"""Between two probes of a partition."""


class Click(Event):
    key: str


@dataclass(frozen=True)
class Nodes:
    """Nodes of a cluster, each with a folder of its own in ``folder``, with state at ``url``.
    ``where`` are the options of commands that name the coordination."""

    folder: Path
    partitions: int
    url: str
    where: list[str]

    @property
    def of_zookeeper(self) -> bool:
        """Return True if the nodes find each other through a ZooKeeper."""
        return "--coordination" in self.where

    @contextmanager
    def node(self, name: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """A node in a process, and its address."""
        settings = {
            "s4.listener.address": "tcp://127.0.0.1:0",
            "s4.cluster.partitions": str(self.partitions),
            "s4.state.folder": str(self.folder / name),
            "s4.state.url": self.url,
        }
        if self.of_zookeeper:
            settings["s4.session.timeout"] = f"{servers.SESSION_SECONDS * 1000:.0f}"
            settings["s4.coordination.folder"] = str(self.folder / f"machine-of-{name}")
        options = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
        command = _s4("node", _CLUSTER, "--name", name, "--json", *self.where, *options)
        log = self.folder / f"{name}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise S4Error(f"a node ended: {log.read_text()[-1000:]}")
            yield process, json.loads(line)["address"]
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def deploy(self, source: str, *more: str) -> None:
        """Deploy the app in ``source``, which has an input stream ``clicks``, with ``more``
        settings."""
        (self.folder / "counting_app.py").write_text(source)
        settings = ["s4.stream.clicks.grade=durable", *more]
        if self.of_zookeeper:
            settings.append(f"s4.state.url={self.url}")
        options = [word for setting in settings for word in ("-p", setting)]
        named = ("--name", _APP, "--partitions", str(self.partitions))
        self.command("deploy", self.folder / "counting_app.py", *named, *options)

    def command(self, *words: str | Path) -> None:
        line = _s4(*words, "--cluster", _CLUSTER, *self.where)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise S4Error(f"s4 {words[0]} failed: {done.stderr}")

    async def wait_owners(self, enough: Callable[[list[str]], bool] = lambda _: True) -> list[str]:
        """The nodes that own the app's partitions, once they are ``enough``; "" for none. Raises
        S4Error if they do not become so."""
        option, place = self.where
        key = COORDINATION_FOLDER if option == "--folder" else COORDINATION
        config = Config.from_values({key.name: place, CLUSTER_NAME.name: _CLUSTER})
        app, owners = AppId(_CLUSTER, _APP), list[str]()
        async with registry_of(config, "bench") as registry:
            with trio.move_on_after(WAIT_SECONDS):
                while True:
                    seen = await registry.session.change(Registry.path_of_app(app))
                    group = await registry.group(app)
                    nodes = {(one.session, one.value.name): one.value.node for one in group.members}
                    known = group.assignment.value.owners if group.assignment is not None else ()
                    owners = [nodes.get(owner.key, "") for owner in known]
                    if enough(owners):
                        return owners
                    await registry.session.wait_change(Registry.path_of_app(app), seen)
        raise S4Error(f"after {WAIT_SECONDS:g} s the partitions' owners are {owners}")

    def append_by_look(self) -> None:
        """Have owners append as at a store without conditional puts."""
        job = RemoteJob(self.url, Path(_CLUSTER) / _APP)
        job.files.make_folder(f"{job.files.root}/jobs")
        job.files.put(f"{job.files.root}/jobs/{LOOK}", b"")

    async def wait_standbys(self, name: str, count: int) -> None:
        """Return once the node ``name`` follows so many tasks; raises S4Error if it does not."""
        tasks = self.folder / name / _CLUSTER / _APP / "tasks"
        until = trio.current_time() + WAIT_SECONDS
        while (found := len(list(tasks.glob("*/standby/complete")))) < count:
            if trio.current_time() > until:
                raise S4Error(f"node {name} follows {found} of {count} tasks")
            await trio.sleep(PAUSE_SECONDS)

    async def wait_entries(self, count: int, say: Callable[[str], None]) -> None:
        """Return once each task's log at the URL has so many entries; raises S4Error if they take
        too long."""
        job = RemoteJob(self.url, Path(_CLUSTER) / _APP)

        def shortest() -> int:
            logs = (f"{job.files.root}/tasks/{name}/log" for name in job.tasks())
            return min(len(job.files.names(log)) for log in logs)

        until = trio.current_time() + _ENTRIES_SECONDS
        while (found := await trio.to_thread.run_sync(shortest)) < count:
            if trio.current_time() > until:
                raise S4Error(f"after {_ENTRIES_SECONDS:g} s a log has {found} entries")
            say(f"{found} of {count} commits")
            await trio.sleep(5)

    def requests(self) -> int:
        """How many requests the S3 server has had."""
        return servers.s3_requests(self.folder)

    def states(self) -> Iterator[StateReader]:
        """The state of each task at the URL."""
        job = RemoteJob(self.url, Path(_CLUSTER) / _APP)
        for name in job.tasks():
            with tempfile.TemporaryDirectory(dir=self.folder) as own:
                database = job.task(name).restored(Path(own), lambda: None, Database)
                yield StateReader(TaskState(database, crc32m))
                database.close()


@contextmanager
def nodes_at(place: str, partitions: int) -> Iterator[Nodes]:
    """Where nodes find each other and keep their state, for the block."""
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as name:
        folder = Path(name)
        with _store(place, folder) as url, _coordination(place, folder) as where:
            yield Nodes(folder, partitions, url, where)


def keys_of_partitions(partitions: int, prefix: str) -> list[str]:
    """A key of each partition, in their order; the keys begin with ``prefix``."""
    by, number = Partitioner(partitions, crc32m), 0
    found: dict[int, str] = {}
    while len(found) < partitions:
        key = f"{prefix}{number}"
        found.setdefault(by.partition_of(key), key)
        number += 1
    return [found[partition] for partition in range(partitions)]


@contextmanager
def _store(place: str, folder: Path) -> Iterator[str]:
    """The URL of a store."""
    if place not in _SPEEDS:
        yield (folder / "store").as_uri()
        return
    with servers.s3(folder, *_SPEEDS[place]) as url:
        yield url


@contextmanager
def _coordination(place: str, folder: Path) -> Iterator[list[str]]:
    """The options of commands, by which nodes find each other."""
    if place != ZOOKEEPER:
        yield ["--folder", str(folder / "nodes")]
        return
    with servers.zookeeper(folder / "zookeeper") as url:
        yield ["--coordination", url]


def _s4(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "s4node", *map(str, arguments)]
