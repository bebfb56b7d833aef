"""Stands in for nodes, so that ``s4 status`` and the like find an app of ``s4 run --nodes``.

Rules
- Each container is shown on a node of its own, at the address of the launcher's redirector.
- Deploying and undeploying there is refused, with the name of the owner: it holds that lock.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio

from s4node.cluster.coordination.entries import RUNNING, AppInfo, NodeInfo
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node.package import python_here
from s4node.cluster.node.supervisor import ContainerProcess
from s4node.cluster.tree.contract import Session
from s4node.cluster.tree.folder import FolderCoordination
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.answers import LOCK
from s4node.errors import EntryExists, S4Error

_AGAIN_SECONDS = 1.0
"""The pause before a lost session is replaced."""


class StandIn:
    """Registers the nodes of an app's containers, which are at ``address``, in the containers' own
    folder."""

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
        """Stay registered until cancelled; started once it is registered."""
        coordination = FolderCoordination(
            self._folder, session_timeout=self._config[settings.SESSION_TIMEOUT]
        )
        known = False
        while True:
            try:
                async with coordination.session(f"launcher of {self._app}") as session:
                    await self._enter(session)
                    if not known:
                        known = True
                        task_status.started()
                    await session.lost.wait()
            except S4Error:
                if not known:
                    raise
            await trio.sleep(_AGAIN_SECONDS)  # the app itself continues without

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
