"""The monitoring of a node: what it answers at which path.

Rules
- ``/livez``: the node's loop turns. ``/readyz``: the node has joined its cluster, and the apps that
  are to run here do so, with their state restored; else status 503, with what is lacking.
- ``/metrics``: the counts of this node and its containers. ``/status``: the whole cluster, as
  ``s4 status --json`` prints it.
- A page is made at most once a second, however many ask, and while it is made all wait for it.
- Containers are not asked: each reports to its node once a second anyway.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import msgspec
import trio

from s4node import threads
from s4node.cluster.coordination.entries import NodeInfo
from s4node.cluster.node.node import Node
from s4node.cluster.node.node_status import NodeStatus
from s4node.config.config import Config
from s4node.deploy.cluster_look import asking, of_cluster
from s4node.errors import S4Error, leaves
from s4node.metrics.process import process_statistics
from s4node.metrics.statistics import ProcessStatistics
from s4node.monitoring.exposition import CONTENT_TYPE, ContainerReport, NodeReport, exposition
from s4node.monitoring.http_server import Answer, HttpServer, Page
from s4node.monitoring.totals import Totals
from s4node.net.certificates.credentials import Credentials
from s4node.version import __version__

_FRESH_SECONDS = 1.0
_STATUS_SECONDS = 5.0
_JSON = "application/json"


class Monitor:
    """The pages of ``node``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ask_other = asking(Credentials.configured(node.config))
        self._totals = Totals()
        self.pages = {
            "/livez": Page(self._live, is_public=True),
            "/readyz": Page(self._ready, is_public=True),
            "/metrics": Page(_CachedPage(self._metrics).answer),
            "/status": Page(_CachedPage(self._status).answer),
        }

    async def _live(self) -> Answer:
        return Answer(200, "alive\n")

    async def _ready(self) -> Answer:
        lacking = self._node.lacking()
        return Answer(503, "\n".join([*lacking, ""])) if lacking else Answer(200, "ready\n")

    async def _metrics(self) -> Answer:
        node = self._node
        found = [
            (each.begin.place, each.status(), each.statistics, each.own_metrics)
            for each in (node.supervisor.processes if node.ready.is_set() else ())
        ]
        is_ready = not node.lacking()

        def text() -> str:
            containers = [
                ContainerReport(place, status, statistics, own, _use(status.pid))
                for place, status, statistics, own in found
            ]
            me = _use(os.getpid())
            report = NodeReport(node.name, node.cluster, __version__, is_ready, me, containers)
            return exposition(report, self._totals)

        return Answer(200, await threads.run_sync(text), CONTENT_TYPE)

    async def _status(self) -> Answer:
        registry, failure = self._node.registry, ""
        if registry is None:
            return Answer(503, "the node has not joined its cluster\n")
        try:
            with trio.move_on_after(_STATUS_SECONDS):
                seen = await of_cluster(registry, self._node.cluster, self._node.place, self._ask)
                return Answer(200, msgspec.json.encode([seen]).decode(), _JSON)
        except* S4Error as group:
            failure = str(leaves(group)[0])
        return Answer(503, f"{failure or 'the coordination does not answer'}\n")

    async def _ask(self, node: NodeInfo) -> NodeStatus:
        """How a node is; this one may not reach its own address."""
        if node.name == self._node.name:
            return self._node.status()
        return await self._ask_other(node)


class _CachedPage:
    """A page that is made again only when it is a second old."""

    def __init__(self, make: Callable[[], Awaitable[Answer]]) -> None:
        self._make = make
        self._page: Answer | None = None
        self._until = 0.0
        self._making = trio.Lock()

    async def answer(self) -> Answer:
        """The page, made by the first who asks."""
        async with self._making:
            if self._page is None or trio.current_time() >= self._until:
                self._page = await self._make()
                self._until = trio.current_time() + _FRESH_SECONDS
            return self._page


def _use(pid: int | None) -> ProcessStatistics | None:
    return process_statistics(pid) if pid is not None else None


def server_of(node: Node, config: Config) -> HttpServer:
    """The HTTP server of a node; raises ConfigError."""
    return HttpServer(config, Monitor(node).pages)
