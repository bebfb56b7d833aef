"""failover: how long partitions commit nothing after a node or its container is killed.

Two nodes ship state to a URL; each has a state folder of its own, so the one that is left has to
fetch the state. A producer sends a probe to each partition every 50 ms. Another producer measures:
it sends a probe to each partition after the kill -9, and waits until all are committed. ``seconds``
is the worst time of all kills, less the timeout that ZooKeeper grants (``timeout_s``), after which
it notices a death; a folder notices it at once, and a node that of its container. ``steady_s`` is
what the same takes while all is well. ``checked`` compares the counts at the URL with what was
sent.

The URL is that of a folder, and then of an S3 server if there is one (see ``servers``), in the end
one that takes 20 ms longer for each request and has 900 commits of each task after its last
checkpoint. With a folder the nodes find each other through a ZooKeeper if Spark and kazoo are
installed. All rows take about half an hour.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import trio

from s4node.bench import servers
from s4node.bench.nodes import (
    FOLDER,
    PAUSE_SECONDS,
    S3,
    SLOW_S3,
    WAIT_SECONDS,
    ZOOKEEPER,
    Click,
    Nodes,
    keys_of_partitions,
    nodes_at,
)
from s4node.bench.result import Result, middle
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream

NODE, CONTAINER = "node and container", "container"
KILLS = 5

_COMMIT_MS = 100  # of tasks that are to have many commits


@dataclass(frozen=True)
class Case:
    """A row: where and what is killed, and how many commits each task has after a checkpoint."""

    place: str
    partitions: int
    keys: int
    killed: str = NODE
    commits: int = 0


QUICK = [Case(FOLDER, 4, 1_000), Case(FOLDER, 4, 1_000, CONTAINER)]


def cases() -> Iterator[Case]:
    """All rows that can be measured here."""
    places = [ZOOKEEPER if servers.can_run_zookeeper() else FOLDER]
    if servers.can_run_s3():
        places.append(S3)
    for place in places:
        for partitions in (16, 60):
            yield from (Case(place, partitions, keys) for keys in (1_000, 1_000_000))
        yield from (Case(place, *size, CONTAINER) for size in ((16, 1_000), (60, 1_000_000)))
    if servers.can_run_s3():
        yield Case(SLOW_S3, 8, 1_000, NODE, 900)


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
    """A row for each case."""
    return [measured(case, 1 if quick else KILLS, say) for case in (QUICK if quick else cases())]


def measured(case: Case, kills: int, say: Callable[[str], None]) -> Result:
    """The worst of so many kills."""
    say(f"{case.place}, {case.partitions} partitions, {case.keys:,} keys: kill {case.killed}")
    found = [trio.run(_Failover(case).run) for _ in range(kills)]
    noticed = case.place == ZOOKEEPER and case.killed == NODE
    timeout = servers.SESSION_SECONDS if noticed else 0.0
    took = [each.seconds - timeout for each in found]
    return Result(
        "failover",
        events=sum(each.sent for each in found),
        seconds=max(took),
        checked=all(each.counted == each.sent for each in found),
        notes={
            "place": case.place,
            "killed": case.killed,
            "partitions": case.partitions,
            "keys": case.keys,
            "commits": case.commits,
            "middle_s": middle(took),
            "steady_s": max(each.steady for each in found),
            "timeout_s": timeout,
        },
    )


class _Failover:
    """One kill: how long it took (``seconds``), and what was ``sent`` and ``counted``."""

    def __init__(self, case: Case) -> None:
        self.seconds = self.steady = 0.0
        self.sent = self.counted = 0
        self._case = case

    async def run(self) -> _Failover:
        """Kill one of two nodes, or its container only."""
        case = self._case
        more = [f"task.commit.ms={_COMMIT_MS}"] if case.commits else []
        with nodes_at(case.place, case.partitions) as nodes:
            with nodes.node("one") as (_, address), nodes.node("other") as (other, _):
                await trio.to_thread.run_sync(nodes.deploy, _SOURCE, *more)
                async with Client(address, timeout=WAIT_SECONDS) as client:
                    await self._measure(nodes, client, address, other.pid)
            self.counted = await trio.to_thread.run_sync(_counted, nodes)
        return self

    async def _measure(self, nodes: Nodes, client: Client, address: str, pid: int) -> None:
        case = self._case
        probes = keys_of_partitions(case.partitions, "probe-")
        stream = await client.stream("clicks", types=Click)
        await self._send_keys(stream, [f"key-{number}" for number in range(case.keys)])
        await stream.flush()
        await nodes.wait_owners(lambda owners: len(set(owners)) == 2)

        async def probe() -> None:
            while True:
                await self._send_keys(stream, probes)
                await trio.sleep(PAUSE_SECONDS)

        async with Client(address, timeout=WAIT_SECONDS) as measuring:
            measured = await measuring.stream("clicks", types=Click)
            await self._committed(measured, probes)  # so that its lanes are open
            async with trio.open_nursery() as nursery:
                nursery.start_soon(probe)
                await nodes.wait_entries(case.commits)
                await trio.sleep(20 * PAUSE_SECONDS)
                self.steady = await self._committed(measured, probes)
                for each in (*_children(pid), *((pid,) if case.killed == NODE else ())):
                    os.kill(each, signal.SIGKILL)
                self.seconds = await self._committed(measured, probes)
                nursery.cancel_scope.cancel()
        await stream.flush()

    async def _committed(self, stream: ClientStream, keys: list[str]) -> float:
        """The seconds until events with these keys are committed."""
        began = trio.current_time()
        await self._send_keys(stream, keys)
        await stream.flush()
        return trio.current_time() - began

    async def _send_keys(self, stream: ClientStream, keys: list[str]) -> None:
        with trio.CancelScope(shield=True):  # so that what was sent is known
            await stream.send_many(map(Click, keys))
            self.sent += len(keys)


def _children(pid: int) -> list[int]:
    """The processes that a process has started, from any of its threads."""
    found = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(word) for words in found for word in words]


def _counted(nodes: Nodes) -> int:
    """The counts at the URL."""
    rows = (row for state in nodes.states() for _, row in state.instances("Count"))
    return sum(row["clicks"] for row in rows)
