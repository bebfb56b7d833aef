"""failover: how long partitions commit nothing after a node or its container is killed.

Two nodes ship state to a URL; each has a state folder of its own. They find each other in a folder,
or, if Spark and kazoo are installed, through a ZooKeeper. A producer sends a probe to each
partition every 50 ms. Another producer measures: it sends a probe to each partition after the kill
-9, and waits until all are committed. ``seconds`` is the worst time of all kills, less the timeout
that ZooKeeper grants (``timeout_s``), after which it notices a death; a folder notices it at once,
and a node that of its container. ``checked`` compares the counts at the URL with what was sent. The
place is a folder, and an S3 server in memory if moto and s3fs are installed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path

import trio

from s4node.bench import servers
from s4node.bench.nodes import (
    PAUSE_SECONDS,
    S3,
    WAIT_SECONDS,
    ZOOKEEPER,
    Click,
    Nodes,
    keys_of_partitions,
    nodes_at,
)
from s4node.bench.result import Result, middle
from s4node.net.client.client import Client

NODE, CONTAINER = "node and container", "container"
CASES = (
    (16, 1_000, NODE),
    (16, 1_000, CONTAINER),
    (16, 1_000_000, NODE),
    (60, 1_000, NODE),
    (60, 1_000_000, NODE),
)
QUICK = ((4, 1_000, NODE), (4, 1_000, CONTAINER))
KILLS = 5

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


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each number of partitions and keys."""
    results = []
    places = ["folder"]
    if servers.can_run_zookeeper() and not quick:
        places.append(ZOOKEEPER)
    if servers.can_run_s3() and not quick:
        places.append(S3)
    for place, (partitions, keys, killed) in product(places, QUICK if quick else CASES):
        say(f"{place}, {partitions} partitions, {keys:,} keys: kill {killed}")
        whole = killed == NODE
        found = [
            trio.run(_killed, place, partitions, keys, whole) for _ in range(1 if quick else KILLS)
        ]
        timeout = servers.SESSION_SECONDS if place == ZOOKEEPER and whole else 0.0
        took = [seconds - timeout for seconds, _, _ in found]
        results.append(
            Result(
                "failover",
                events=sum(sent for _, sent, _ in found),
                seconds=max(took),
                checked=all(right for _, _, right in found),
                notes={
                    "place": place,
                    "killed": killed,
                    "partitions": partitions,
                    "keys": keys,
                    "middle_s": middle(took),
                    "timeout_s": timeout,
                },
            )
        )
    return results


async def _killed(place: str, partitions: int, keys: int, whole: bool) -> tuple[float, int, bool]:
    """Kill one of two nodes, or its container only: the seconds, the events sent, and if the counts
    are right."""
    with nodes_at(place, partitions) as nodes:
        with nodes.node("one") as (_, address), nodes.node("other") as (other, _):
            await trio.to_thread.run_sync(nodes.deploy, _SOURCE)
            seconds, sent = await _measured(nodes, other.pid, address, keys, whole)
        counted = await trio.to_thread.run_sync(_counted, nodes)
    return seconds, sent, counted == sent


async def _measured(
    nodes: Nodes, pid: int, address: str, keys: int, whole: bool
) -> tuple[float, int]:
    probes = keys_of_partitions(nodes.partitions, "probe-")
    sent = 0
    async with Client(address, timeout=WAIT_SECONDS) as client:
        stream = await client.stream("clicks", types=Click)
        await stream.send_many(Click(f"key-{number}") for number in range(keys))
        await stream.flush()
        sent += keys
        await nodes.wait_owners(lambda owners: len(set(owners)) == 2)
        async with Client(address, timeout=WAIT_SECONDS) as measuring:
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
                for each in (*_children(pid), *((pid,) if whole else ())):
                    os.kill(each, signal.SIGKILL)
                began = trio.current_time()
                await measured.send_many(map(Click, probes))
                sent += len(probes)
                await measured.flush()
                seconds = trio.current_time() - began
                nursery.cancel_scope.cancel()
        await stream.flush()
    return seconds, sent


def _children(pid: int) -> list[int]:
    """The processes that a process has started, from any of its threads."""
    found = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(word) for words in found for word in words]


def _counted(nodes: Nodes) -> int:
    """The counts at the URL."""
    rows = (row for state in nodes.states() for _, row in state.instances("Count"))
    return sum(row["clicks"] for row in rows)
