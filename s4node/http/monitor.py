"""The monitoring of a node: what it answers about itself and its cluster.

Rules
- ``live``: the process that serves lives. ``ready``: the node has joined its cluster, and the apps
  that are to run here do so, with their state restored; else status 503, with what is lacking.
- ``metrics``: the counts of this node and its containers. ``status``: the whole cluster, with rates
  if it was seen before. ``why``: what holds its apps up, over some seconds.
- An answer is made at most once a second, however many ask, and while it is made all wait for it.
- Containers are not asked: each reports to its node more than once a second. A process of one app
  is asked at its own address; while it does not answer, that is shown.
- A node that was seen and is gone is shown as such for ten minutes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import msgspec
import trio

from s4node import threads
from s4node.cluster.coordination.entries import AppId, NodeInfo
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node.node import Node
from s4node.cluster.node.node_status import NodeStatus, ask_status
from s4node.cluster.node.running import Running
from s4node.deploy.cluster_look import asking, of_cluster, of_process
from s4node.deploy.cluster_snapshot import NodeRow, Snapshot, with_rates
from s4node.errors import CoordinationError, NodeUnreachable, S4Error, leaves
from s4node.http.messages import JSON, Answer, Request
from s4node.metrics.process import process_statistics
from s4node.metrics.statistics import ProcessStatistics
from s4node.monitoring.exposition import (
    CONTENT_TYPE,
    ContainerReport,
    NodeReport,
    Totals,
    exposition,
)
from s4node.monitoring.why import of_apps
from s4node.net.certificates.credentials import Credentials
from s4node.version import __version__

_FRESH_SECONDS = 1.0
_STATUS_SECONDS = 5.0
_WHY_SECONDS = 2.0
_LONGEST_SECONDS = 10.0
"""The shortest time in which reasons are seen, and the longest in which rates are."""
_LOOKS = 4
_GONE_SECONDS = 600.0


class Owner(NamedTuple):
    """The owner of a partition; its ``address`` is empty while there is none."""

    node: str
    address: str


class UnknownApp(S4Error):  # noqa: N818
    def __init__(self, app: str, apps: Iterable[str]) -> None:
        super().__init__(f"there is no app {app!r}; there is {', '.join(sorted(apps)) or 'none'}")


class WatchedNode:
    def __init__(self, node: Node) -> None:
        self.name, self.cluster = node.name, node.cluster
        self._node = node
        self._ask_other = asking(Credentials.configured(node.config))
        self.lacking = node.lacking
        """The things that it lacks to be ready."""

    async def snapshot(self) -> Snapshot:
        """Its cluster; raises S4Error."""
        return await of_cluster(self._registry(), self.cluster, self._node.place, self._ask)

    async def reports(self) -> list[ContainerReport]:
        """The counts of its containers; raises NodeUnreachable."""
        node = self._node
        return [
            ContainerReport(
                each.begin.place, each.status(), each.statistics, each.own_metrics, None
            )
            for each in (node.supervisor.processes if node.ready.is_set() else ())
        ]

    async def owners(self, app: str) -> list[Owner]:
        """The owners of an app's partitions. Raises UnknownApp, or another S4Error."""
        registry = self._registry()
        apps = await registry.apps(self.cluster)
        if app not in apps:
            raise UnknownApp(app, apps)
        group = await registry.group(AppId(self.cluster, app))
        names = {each.address: each.name for each in group.candidates}
        return [Owner(names.get(address, ""), address) for address in group.owners]

    def _registry(self) -> Registry:
        if self._node.registry is None:
            raise CoordinationError("the node has not joined its cluster")
        return self._node.registry

    async def _ask(self, node: NodeInfo) -> NodeStatus:
        """How a node is; this one may not reach its own address."""
        return self._node.status() if node.name == self.name else await self._ask_other(node)


class WatchedProcess:
    """A process of one app; ``running`` says where it is, called in another thread than its own."""

    def __init__(
        self,
        cluster: str,
        running: Callable[[], Running | None],
        credentials: Credentials | None,
    ) -> None:
        self.name, self.cluster = "", cluster
        self._running = running
        self._credentials = credentials
        self._ask = asking(credentials)

    def lacking(self) -> list[str]:
        running = self._running()
        return [] if running is not None and running.address else ["the app is starting"]

    async def snapshot(self) -> Snapshot:
        return await of_process(self._known(), self._ask)

    async def reports(self) -> list[ContainerReport]:
        running = self._known()
        node = NodeInfo(running.node, "", running.pid, "", running.address)
        status = await ask_status(node, self._credentials, _STATUS_SECONDS)
        (one,), counted = status.containers, status.statistics
        return [ContainerReport(1, one, counted[0] if counted else None, status.own, None)]

    async def owners(self, app: str) -> list[Owner]:
        running = self._known()
        if app != running.app:
            raise UnknownApp(app, [running.app])
        return [Owner(running.node, running.address)] * running.partitions

    def _known(self) -> Running:
        running = self._running()
        if running is None:
            raise NodeUnreachable("the app is starting")
        self.name = running.node
        return running


Watched: TypeAlias = WatchedNode | WatchedProcess


class Monitor:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._totals = Totals()
        self._looks: deque[Snapshot] = deque(maxlen=_LOOKS)
        self._gone: dict[str, NodeRow] = {}
        self._seen: dict[str, float] = {}
        self._look = _Cached(self._look_anew)
        self._metrics = _Cached(self._metrics_anew)

    async def live(self, _: Request) -> Answer:
        return Answer(200, "alive\n")

    async def ready(self, _: Request) -> Answer:
        lacking = self._watched.lacking()
        return Answer(503, "\n".join([*lacking, ""])) if lacking else Answer(200, "ready\n")

    async def metrics(self, _: Request) -> Answer:
        return await self._metrics()

    async def status(self, _: Request) -> Answer:
        answer = await self._look()
        if answer.status != 200:
            return answer
        now = self._looks[-1]
        return Answer(200, msgspec.json.encode([with_rates(now, self._looks[0])]), JSON)

    async def why(self, _: Request) -> Answer:
        answer = await self._look()
        while answer.status == 200 and self._looks[-1].time < self._looks[0].time + _WHY_SECONDS:
            await trio.sleep(_FRESH_SECONDS)
            answer = await self._look()
        if answer.status != 200:
            return answer
        return Answer(200, msgspec.json.encode(of_apps(self._looks[-1], self._looks[0])), JSON)

    async def _look_anew(self) -> Answer:
        failure = ""
        try:
            with trio.move_on_after(_STATUS_SECONDS):
                now = self._with_gone(await self._watched.snapshot())
                while self._looks and self._looks[0].time < now.time - _LONGEST_SECONDS:
                    self._looks.popleft()
                self._looks.append(now)
                return Answer(200, "")
        except* S4Error as group:
            failure = str(leaves(group)[0])
        return Answer(503, f"{failure or 'the coordination does not answer'}\n")

    def _with_gone(self, now: Snapshot) -> Snapshot:
        living = {node.name for node in now.nodes}
        for node in now.nodes:
            self._gone[node.name] = node
            self._seen[node.name] = now.time
        for name, at in list(self._seen.items()):
            if at < now.time - _GONE_SECONDS:
                del self._gone[name], self._seen[name]
        gone = [
            msgspec.structs.replace(
                node,
                containers=[],
                problem=f"is away since {now.time - self._seen[name]:.0f} s: it has no session",
            )
            for name, node in self._gone.items()
            if name not in living
        ]
        return msgspec.structs.replace(now, nodes=[*now.nodes, *gone])

    async def _metrics_anew(self) -> Answer:
        watched = self._watched
        try:
            found = await watched.reports()
        except NodeUnreachable as error:
            return Answer(503, f"{error}\n")
        is_ready = not watched.lacking()

        def text() -> str:
            me = os.getpid()
            containers = [replace(each, process=_use(each.status.pid, me)) for each in found]
            own = process_statistics(me)
            names = watched.name, watched.cluster, __version__
            return exposition(NodeReport(*names, is_ready, own, containers), self._totals)

        return Answer(200, await threads.run_sync(text), CONTENT_TYPE)


class _Cached:
    """An answer that is made again only when it is a second old."""

    def __init__(self, make: Callable[[], Awaitable[Answer]]) -> None:
        self._make = make
        self._answer: Answer | None = None
        self._until = 0.0
        self._making = trio.Lock()

    async def __call__(self) -> Answer:
        """The answer, made by the first who asks."""
        async with self._making:
            if self._answer is None or trio.current_time() >= self._until:
                self._answer = await self._make()
                self._until = trio.current_time() + _FRESH_SECONDS
            return self._answer


def _use(pid: int | None, me: int) -> ProcessStatistics | None:
    return process_statistics(pid) if pid not in (None, me) else None
