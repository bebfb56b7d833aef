"""failover: how long partitions commit nothing after a node or its container is killed.

Two nodes ship state to a URL; each has a state folder of its own, so the one that is left has to
fetch the state. A producer sends a probe to each partition every 50 ms. Another producer measures:
it sends a probe to each partition after the kill -9, and waits until all are committed. ``seconds``
is the worst time of all kills, less the timeout that ZooKeeper grants (``timeout_s``), after which
it notices a death; a folder notices it at once, and a node that of its container. ``steady_s`` is
what the same takes while all is well. ``checked`` compares the counts at the URL with what was
sent.

The URL is that of a folder, and then of an S3 server if there is one (see ``servers``). With a
folder the nodes find each other through a ZooKeeper if Spark and kazoo are installed. Rows with a
*standby* kill once it follows all tasks. A row with *look* has no conditional puts. In the slow row
each request takes 20 ms longer, and each task has 900 commits after its last checkpoint. In the
rows with a *gigabyte* of state, half of it at each node, the server gives 50 MB/s to both nodes
together; ``requests_per_hour`` are all that it gets before the kill, while each task gets probes:
what a standby costs is the difference between the two rows. Other rows have none.

All rows take about an hour. One of them takes some minutes:
``python -m benchmarks.failover ROW KILLS``; without a row it lists them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from benchmarks import servers
from benchmarks.nodes import (
    FOLDER,
    NARROW_S3,
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
from benchmarks.runner import Result, middle
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream

NODE, CONTAINER = "node and container", "container"
KILLS = 5
COUNTED_SECONDS = 20.0
"""For so long requests are counted."""

_MANY_COMMITS = ("task.commit.ms=100", "s4.state.restoreTime=60000")


@dataclass(frozen=True)
class Case:
    """A row: where and what is killed, how many commits each task has after a checkpoint, whether
    there are standbys, whether owners append by *look*, and how many bytes are kept by key."""

    place: str
    partitions: int
    keys: int
    killed: str = NODE
    commits: int = 0
    standby: bool = False
    look: bool = False
    value_bytes: int = 0


QUICK = [
    Case(FOLDER, 4, 1_000),
    Case(FOLDER, 4, 1_000, CONTAINER),
    Case(FOLDER, 4, 1_000, standby=True),
]


def cases() -> dict[str, Case]:
    """All rows that can be measured here, by name."""
    places = {"zk": ZOOKEEPER} if servers.can_run_zookeeper() else {"folder": FOLDER}
    if servers.can_run_s3():
        places["s3"] = S3
    found: dict[str, Case] = {}
    for name, place in places.items():
        for partitions in (16, 60):
            found[f"{name}-{partitions}"] = Case(place, partitions, 1_000)
            found[f"{name}-{partitions}-million"] = Case(place, partitions, 1_000_000)
        found[f"{name}-16-container"] = Case(place, 16, 1_000, CONTAINER)
        found[f"{name}-60-million-container"] = Case(place, 60, 1_000_000, CONTAINER)
        found[f"{name}-60-million-standby"] = Case(place, 60, 1_000_000, standby=True)
    if servers.can_run_s3():
        found["s3-16-look"] = Case(S3, 16, 1_000, look=True)
        found["slow"] = Case(SLOW_S3, 8, 1_000, commits=900)
        gigabyte = Case(NARROW_S3, 16, 1 << 16, value_bytes=1 << 14)
        found["s3-16-gigabyte"] = gigabyte
        found["s3-16-gigabyte-standby"] = replace(gigabyte, standby=True)
    return found


_SOURCE = """
import os

from s4node import App, Event, ProcessingElement


class Click(Event):
    key: str


class Count(ProcessingElement):
    clicks: int = 0
    value: bytes = b""

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        self.value = self.value or os.urandom(VALUE_BYTES)


VALUE_BYTES = {value_bytes}


class Counting(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Count), key="key")
"""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    if quick:
        return [measured(case, 1, say) for case in QUICK]
    return [measured(case, KILLS, say) for case in cases().values()]


def measured(case: Case, kills: int, say: Callable[[str], None]) -> Result:
    """The worst of so many kills."""
    say(f"{case.place}, {case.partitions} partitions, {case.keys:,} keys: kill {case.killed}")
    found = [trio.run(_Failover(case, say).run) for _ in range(kills)]
    noticed = case.place == ZOOKEEPER and case.killed == NODE
    timeout = servers.SESSION_SECONDS if noticed else 0.0
    took = [each.seconds - timeout for each in found]
    requests = [each.requests for each in found if each.requests is not None]
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
            "standby": case.standby,
            "look": case.look,
            "value_bytes": case.value_bytes,
            "middle_s": middle(took),
            "steady_s": max(each.steady for each in found),
            "timeout_s": timeout,
            "requests_per_hour": max(requests) * 3600 / COUNTED_SECONDS if requests else None,
        },
    )


class _Failover:
    """One kill: how long it took (``seconds``), what was ``sent`` and ``counted``, and the
    ``requests`` of some seconds before it, if there is much state."""

    def __init__(self, case: Case, say: Callable[[str], None]) -> None:
        self.seconds = self.steady = 0.0
        self.sent = self.counted = 0
        self.requests: int | None = None
        self._case = case
        self._say = say

    async def run(self) -> _Failover:
        case = self._case
        source = _SOURCE.format(value_bytes=case.value_bytes)
        more = list(_MANY_COMMITS) if case.commits else []
        if case.standby:
            more.append("s4.state.standby=1")
        with nodes_at(case.place, case.partitions) as nodes:
            if case.look:
                nodes.append_by_look()
            with nodes.node("one") as (_, address), nodes.node("other") as (other, _):
                await trio.to_thread.run_sync(nodes.deploy, source, *more)
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
        owners = await nodes.wait_owners(lambda owners: len(set(owners)) == 2)

        async def probe() -> None:
            while True:
                await self._send_keys(stream, probes)
                await trio.sleep(PAUSE_SECONDS)

        async with Client(address, timeout=WAIT_SECONDS) as measuring:
            measured = await measuring.stream("clicks", types=Click)
            await self._committed(measured, probes)  # so that its lanes are open
            async with trio.open_nursery() as nursery:
                nursery.start_soon(probe)
                await nodes.wait_entries(case.commits, self._say)
                if case.standby:
                    await nodes.wait_standbys("one", owners.count("other"))
                await trio.sleep(20 * PAUSE_SECONDS)
                if case.value_bytes:
                    before = nodes.requests()
                    await trio.sleep(COUNTED_SECONDS)
                    self.requests = nodes.requests() - before
                self.steady = await self._committed(measured, probes)
                for each in (*_children(pid), *((pid,) if case.killed == NODE else ())):
                    os.kill(each, signal.SIGKILL)
                self.seconds = await self._committed(measured, probes)
                self._say(f"killed: {self.seconds:.2f} s; before {self.steady:.2f} s")
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
    rows = (row for state in nodes.states() for _, row in state.instances("Count"))
    return sum(row["clicks"] for row in rows)


def _main(name: str = "", kills: str = "1") -> None:
    found = cases()
    if name not in found:
        sys.exit("\n".join(["a row is one of:", *found]))
    print(measured(found[name], int(kills), partial(print, flush=True)).row())


if __name__ == "__main__":
    _main(*sys.argv[1:])
