"""failover: how long partitions commit nothing after a node and its containers are killed.

Two nodes ship state to a URL; each has a state folder of its own. They find each other in a folder,
or, if Spark and kazoo are installed, through a ZooKeeper. A producer sends a probe to each
partition every 50 ms. Another producer measures: it sends a probe to each partition after the kill
-9, and waits until all are committed. ``seconds`` is the worst time of all kills, less the timeout
that ZooKeeper grants (``timeout_s``), after which it notices a death; a folder notices it at once.
``checked`` compares the counts at the URL with what was sent. The place is a folder, and an S3
server in memory if moto and s3fs are installed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import trio

from s4node.bench import servers
from s4node.bench.result import Result, middle
from s4node.errors import S4Error
from s4node.events.event import Event
from s4node.events.keys import Partitioner, crc32m
from s4node.net.client.client import Client
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.remote_job import RemoteJob
from s4node.state.task_state import TaskState

CASES = ((16, 1_000), (16, 1_000_000), (60, 1_000), (60, 1_000_000))
QUICK = ((4, 1_000),)
KILLS = 5
PAUSE_SECONDS = 0.05

_ZOOKEEPER, _S3 = "folder, ZooKeeper", "S3"
_WAIT_SECONDS = 120.0
_CLUSTER, _APP = "bench", "counting"
_SOURCE = """
from s4node import App, Event, ProcessingElement


class Click(Event):
    key: str


class Count(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 1


class Counting(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Count), key="key")
"""


class Click(Event):
    """An event that is counted by its key."""

    key: str


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each number of partitions and keys."""
    results = []
    places = ["folder"]
    if servers.can_run_zookeeper() and not quick:
        places.append(_ZOOKEEPER)
    if servers.can_run_s3() and not quick:
        places.append(_S3)
    for place, (partitions, keys) in product(places, QUICK if quick else CASES):
        say(f"{place}, {partitions} partitions, {keys:,} keys: kill a node and its containers")
        found = [trio.run(_killed, place, partitions, keys) for _ in range(1 if quick else KILLS)]
        timeout = servers.SESSION_SECONDS if place == _ZOOKEEPER else 0.0
        took = [seconds - timeout for seconds, _, _ in found]
        results.append(
            Result(
                "failover",
                events=sum(sent for _, sent, _ in found),
                seconds=max(took),
                checked=all(right for _, _, right in found),
                notes={
                    "place": place,
                    "partitions": partitions,
                    "keys": keys,
                    "middle_s": middle(took),
                    "timeout_s": timeout,
                },
            )
        )
    return results


async def _killed(place: str, partitions: int, keys: int) -> tuple[float, int, bool]:
    """Kill one of two nodes: the seconds, the events sent, and if the counts are right."""
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as name,
        _store(place, Path(name)) as url,
        _coordination(place, Path(name)) as where,
    ):
        folder = Path(name)
        with _node(folder, "one", partitions, url, where) as (_, address):  # noqa: SIM117 - it ends later
            with _node(folder, "other", partitions, url, where) as (other, _):
                await trio.to_thread.run_sync(_deploy, folder, partitions, url, where)
                seconds, sent = await _measured(where, other.pid, address, partitions, keys)
        counted = await trio.to_thread.run_sync(_counted, folder, url)
    return seconds, sent, counted == sent


async def _measured(
    where: list[str], pid: int, address: str, partitions: int, keys: int
) -> tuple[float, int]:
    probes = _keys_of_partitions(partitions)
    sent = 0
    async with Client(address, timeout=_WAIT_SECONDS) as client:
        stream = await client.stream("clicks", types=Click)
        await stream.send_many(Click(f"key-{number}") for number in range(keys))
        await stream.flush()
        sent += keys
        until = trio.current_time() + _WAIT_SECONDS
        while len(set(owners := await trio.to_thread.run_sync(_owners, where))) < 2:
            if trio.current_time() > until:
                raise S4Error(f"after {_WAIT_SECONDS:g} s the partitions' owners are {owners}")
            await trio.sleep(0.2)
        async with Client(address, timeout=_WAIT_SECONDS) as measuring:
            measured = await measuring.stream("clicks", types=Click)
            await measured.send_many(map(Click, probes))
            await measured.flush()
            sent += len(probes)

            async def probe() -> None:
                nonlocal sent
                while True:
                    await stream.send_many(map(Click, probes))
                    sent += len(probes)
                    await trio.sleep(PAUSE_SECONDS)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(probe)
                await trio.sleep(20 * PAUSE_SECONDS)
                for each in (*_children(pid), pid):
                    os.kill(each, signal.SIGKILL)
                began = trio.current_time()
                await measured.send_many(map(Click, probes))
                sent += len(probes)
                await measured.flush()
                seconds = trio.current_time() - began
                nursery.cancel_scope.cancel()
        await stream.flush()
    return seconds, sent


def _keys_of_partitions(partitions: int) -> list[str]:
    """A key of each partition."""
    by, number = Partitioner(partitions, crc32m), 0
    found: dict[int, str] = {}
    while len(found) < partitions:
        key = f"probe-{number}"
        found.setdefault(by.partition_of(key), key)
        number += 1
    return list(found.values())


# --- the nodes -----------------------------------------------------------------------------------


@contextmanager
def _store(place: str, folder: Path) -> Iterator[str]:
    """The URL of a store."""
    if place != _S3:
        yield (folder / "store").as_uri()
        return
    with servers.s3(folder) as url:
        yield url


@contextmanager
def _coordination(place: str, folder: Path) -> Iterator[list[str]]:
    """The options of commands, by which nodes find each other."""
    if place != _ZOOKEEPER:
        yield ["--folder", str(folder / "nodes")]
        return
    with servers.zookeeper(folder / "zookeeper") as url:
        yield ["--coordination", url]


def _s4(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "s4node", *map(str, arguments)]


@contextmanager
def _node(
    folder: Path, name: str, partitions: int, url: str, where: list[str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node in a process, and its address."""
    settings = {
        "s4.listener.address": "tcp://127.0.0.1:0",
        "s4.cluster.partitions": str(partitions),
        "s4.state.folder": str(folder / name),
        "s4.state.url": url,
    }
    if "--coordination" in where:
        settings["s4.session.timeout"] = f"{servers.SESSION_SECONDS * 1000:.0f}"
        settings["s4.coordination.folder"] = str(folder / f"machine-of-{name}")
    options = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    command = _s4("node", _CLUSTER, "--name", name, "--json", *where, *options)
    with (folder / f"{name}.log").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise S4Error(f"a node ended: {(folder / f'{name}.log').read_text()[-1000:]}")
        yield process, json.loads(line)["address"]
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _deploy(folder: Path, partitions: int, url: str, where: list[str]) -> None:
    (folder / "counting_app.py").write_text(_SOURCE)
    command = _s4(
        *("deploy", folder / "counting_app.py", "--cluster", _CLUSTER, "--name", _APP),
        *(*where, "--partitions", str(partitions)),
        *("-p", "s4.stream.clicks.grade=durable"),
        *(("-p", f"s4.state.url={url}") if "--coordination" in where else ()),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise S4Error(f"the app could not be deployed: {done.stderr}")


def _owners(where: list[str]) -> list[str]:
    """The owners of the app's partitions."""
    command = _s4("status", "--cluster", _CLUSTER, *where, "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return [owner for one in found for app in one["apps"] for owner in app["owners"]]


def _children(pid: int) -> list[int]:
    """The processes that a process has started, from any of its threads."""
    found = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(word) for words in found for word in words]


def _counted(folder: Path, url: str) -> int:
    """The counts at the URL."""
    job = RemoteJob(url, Path(_CLUSTER) / _APP)
    clicks = 0
    for name in job.tasks():
        with tempfile.TemporaryDirectory(dir=folder) as own:
            database = job.task(name).restored(Path(own), lambda: None, Database)
            rows = StateReader(TaskState(database, crc32m)).instances("Count")
            clicks += sum(row["clicks"] for _, row in rows)
            database.close()
    return clicks
