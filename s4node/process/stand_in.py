"""Stands in for nodes, so that ``s4 status`` and the like find an app of ``s4 run --nodes``.

Rules
- Each container is shown on a node of its own; the launcher answers for all of them.
- Deploying and undeploying there is refused, with the name of the owner.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import trio

from s4node.cluster.coordination.entries import RUNNING, AppInfo, NodeInfo
from s4node.cluster.coordination.node_requests import answer_requests
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node import admin
from s4node.cluster.node.package import python_here
from s4node.cluster.node.supervisor import ContainerProcess
from s4node.cluster.tree.contract import Session
from s4node.cluster.tree.folder import FolderCoordination
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.deploy import LOCK
from s4node.errors import CoordinationError, DeployFailed, EntryExists, S4Error

_AGAIN_SECONDS = 1.0
"""The pause before a lost session is replaced."""


class StandIn:
    """Answers for the nodes of an app's containers, in the containers' own folder.

    Outside programs reach the containers at ``address``.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        app: str,
        address: str,
        processes: Sequence[ContainerProcess],
    ) -> None:
        self._config = config
        self._cluster = config[settings.CLUSTER_NAME]
        self._folder = folder
        self._app = app
        self._address = address
        self._processes = processes
        self._holder = f"'s4 run' of {app}, process {os.getpid()} on {socket.gethostname()},"

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Register and answer, until cancelled; started once it is registered."""
        coordination = FolderCoordination(
            self._folder, session_timeout=self._config[settings.SESSION_TIMEOUT]
        )
        known = False
        while True:
            try:
                async with (
                    coordination.session(f"launcher of {self._app}") as session,
                    trio.open_nursery() as nursery,
                ):
                    await self._enter(session)
                    for process in self._processes:
                        nursery.start_soon(self._serve, Registry(session), process)
                    if not known:
                        known = True
                        task_status.started()
                    await session.lost.wait()
                    nursery.cancel_scope.cancel()
            except* S4Error:
                if not known:
                    raise
            await trio.sleep(_AGAIN_SECONDS)  # the app itself continues without

    async def _serve(self, registry: Registry, process: ContainerProcess) -> None:
        handle = partial(admin.answer_with, partial(self._answer, process))
        with suppress(CoordinationError):  # the session is lost
            await answer_requests(registry, self._cluster, process.begin.member, handle)

    async def _enter(self, session: Session) -> None:
        registry = Registry(session)
        with suppress(EntryExists):  # from a former session
            await registry.lock(self._cluster, LOCK, self._holder)
        with suppress(EntryExists):
            partitions = self._config[settings.CLUSTER_PARTITIONS]
            await registry.create_app(
                AppInfo(self._app, self._cluster, "", partitions, state=RUNNING)
            )
        for process in self._processes:
            node = NodeInfo(
                name=process.begin.member,
                host=socket.gethostname(),
                pid=os.getpid(),
                python=python_here(),
                address=self._address,
            )
            await registry.join_node(self._cluster, node)

    async def _answer(self, process: ContainerProcess, ask: admin.Ask, way: admin.Says) -> None:
        if not isinstance(ask, admin.AskStatus):
            raise DeployFailed(f"{self._holder} takes no other apps; start a node: s4 node CLUSTER")
        container = msgspec.structs.replace(process.status(), app=self._app)
        counted = [process.statistics] if process.statistics is not None else []
        me = process.begin.member, self._cluster, os.getpid(), self._address
        await way.say(admin.NodeStatus(*me, [container], counted))
