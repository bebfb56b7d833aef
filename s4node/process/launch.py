"""``s4 run APP --nodes N``: starts nodes in this process, and deploys the app to them.

Rules
- The nodes are those of ``s4 node``, and the app is deployed as by ``s4 deploy``. The nodes find
  each other through a folder that exists as long as the command runs, and so do commands such as
  ``s4 status``. The next command removes the folder of a killed one.
- The first node has the address that clients are given, and the log, if there is one. The others
  listen on free ports.
- All containers drain at the same time. The nodes end afterwards, as containers of one node may
  still append to the log of another.
- An app that cannot start ends the command, with the reason. Otherwise it ends when no app is left
  to run, because all are done, or were undeployed.
- If there are more nodes than partitions, the last ones are spares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from s4node.cluster.node.node import Node
from s4node.cluster.node.own_folder import temporary_coordination
from s4node.cluster.node.package import Package
from s4node.cluster.node.running import RunningEntry, running_entry
from s4node.cluster.node.supervisor_protocol import log_of
from s4node.cluster.tree.coordinations import in_folder
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import check_travels
from s4node.deploy.deploy import deploy, to_deploy
from s4node.deploy.pack import pack
from s4node.errors import S4Error
from s4node.process import log_setup
from s4node.process.exit_status import exit_status
from s4node.process.loading import loaded
from s4node.process.node_process import list_node
from s4node.process.stopping import stop_on_signals, tune_python


@dataclass(frozen=True)
class Launched:
    """A running app. It has the address of the first node, its input streams, its containers by
    node, the folder through which the nodes find each other, and the URL of HTTP, or none."""

    app: str
    address: str
    inputs: tuple[str, ...]
    containers: Mapping[str, str]
    folder: Path
    url: str


def launch(
    target: str, nodes: int, config: Config, on_ready: Callable[[Launched], None], *, http: bool
) -> int:
    """Run until a signal or a failure; returns the exit status. The first node may serve HTTP."""
    loaded()
    log_setup.configure_from(config)
    try:
        check_travels(target)
        with temporary_coordination("s4-run-") as folder:
            package = pack(target, settings=to_deploy(in_folder(config, str(folder)))[0])
            sys.stdout.flush()  # what the app's file has printed
            return trio.run(_Launcher(package, nodes, config, folder, http).run, on_ready)
    except BaseException as error:
        return exit_status(error)


class _Launcher:
    def __init__(
        self, package: Package, count: int, config: Config, folder: Path, http: bool
    ) -> None:
        self._package = package
        self._count = count
        self._config = config
        self._folder = folder
        self._http = http
        self._end_http: Callable[[str], None] = lambda _: None
        self._nodes: list[Node] = []
        self._stopping = trio.Event()
        self._failures: list[Exception] = []
        self._ran = False

    async def run(self, on_ready: Callable[[Launched], None]) -> int:
        with (
            trio.CancelScope() as scope,
            stop_on_signals(self._stopping.set, scope),
            running_entry() as entry,
        ):
            async with trio.open_nursery() as living:
                async with trio.open_nursery() as deploying:
                    deploying.start_soon(self._deploy, living, entry, on_ready)
                    await self._stopping.wait()
                    deploying.cancel_scope.cancel()
                await self._stop()
        if self._failures:
            raise ExceptionGroup("nodes or their app have failed", self._failures)
        if not self._ran:
            print("s4: stopped before it ran", file=sys.stderr)
        return 0 if self._ran and not scope.cancelled_caught else 130

    async def _deploy(
        self, living: trio.Nursery, entry: RunningEntry, on_ready: Callable[[Launched], None]
    ) -> None:
        """Start the nodes, deploy the app, and wait until no app is left to run."""
        try:
            first = await self._start_nodes(living)
            list_node(entry, first)
            url = await self._serve(first, living) if self._http else ""
            partitions = self._config[settings.CLUSTER_PARTITIONS]
            here = in_folder(self._config, str(self._folder))
            done = await deploy(self._package, here, partitions)
            for node in self._nodes:
                node.awaits_app = False
            tune_python()
            self._ran = True
            known = [each.prepared for each in first.supervisor.processes if each.prepared]
            inputs = tuple(known[0].inputs) if known else ()
            containers = {node.name: done.containers[node.name] for node in self._nodes}
            on_ready(Launched(done.app, first.address, inputs, containers, self._folder, url))
            while busy := next((node for node in self._nodes if node.has_apps), None):
                await busy.supervisor.changed.wait()
        except Exception as error:
            self._failures.append(error)
        self._stopping.set()

    async def _start_nodes(self, living: trio.Nursery) -> Node:
        host = self._config[settings.LISTENER_ADDRESS].rpartition(":")[0]
        config, log = self._config, ""
        given = config[settings.HTTP_ADDRESS]
        if self._http and not given:  # with an address containers report their author's metrics
            config = config.with_({settings.HTTP_ADDRESS.name: "tcp://127.0.0.1:0"})
        for number in range(1, self._count + 1):
            node = Node(config, f"node-{number}", folder=str(self._folder), log=log)
            node.awaits_app = True
            self._nodes.append(node)
            living.start_soon(self._live, node)
            await node.ready.wait()
            if number == 1:
                log = log_of(config, node.address)
                others = {
                    settings.LISTENER_ADDRESS.name: f"{host}:0",
                    settings.LOG_FOLDER.name: "",
                    settings.HTTP_ADDRESS.name: given,
                }
                config = config.with_(others)
        return self._nodes[0]

    async def _serve(self, node: Node, living: trio.Nursery) -> str:
        from s4node.http.site import server_of  # late: not every process serves it

        server = server_of(node, self._config)
        await server.listen()
        living.start_soon(server.run)
        self._end_http = server.end_with
        return server.url

    async def _live(self, node: Node) -> None:
        try:
            await node.run()
        except Exception as error:
            self._failures.append(error)
        self._stopping.set()

    async def _stop(self) -> None:
        """Have all containers drain and end, then the nodes."""

        async def drain(node: Node) -> None:
            self._failures += map(S4Error, await node.supervisor.stop())

        async with trio.open_nursery() as nursery:
            for node in self._nodes:
                if node.ready.is_set():
                    nursery.start_soon(drain, node)
        for node in self._nodes:
            node.stop()
        self._end_http("the nodes stop")
