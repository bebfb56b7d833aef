"""The deployments to a node: it prepares new versions of apps, and answers what it is asked.

Rules
- A new version is loaded and checked beside the old one, and held for as long as the command asks.
  The node takes it over once the registry has it.
- Requests come through the tree (:mod:`s4node.cluster.coordination.node_requests`). They end with
  the node's session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from s4node.cluster.coordination.node_requests import Conversation, answer_requests
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node import deploy_protocol as protocol
from s4node.cluster.node import package as archive
from s4node.cluster.node.supervisor import ContainerProcess, Supervisor
from s4node.cluster.node.supervisor_protocol import Begin
from s4node.errors import ContainerFailed, CoordinationError, SessionLost
from s4node.logger import get_logger
from s4node.savepoints.manifest import StateCheck

log = get_logger("s4node.cluster")


class Host(Protocol):
    cluster: str
    name: str
    packages: archive.Store
    supervisor: Supervisor

    def settings_of(self, deployed: dict[str, str], partitions: int) -> dict[str, str]:
        """The settings of a container of an app that was deployed with some."""

    def to_begin(
        self,
        manifest: archive.Manifest,
        digest: str,
        partitions: int,
        expected: int,
        *,
        check: StateCheck | None = None,
    ) -> Begin:
        """The description of a package in the store, for a container process."""

    def runs(self, process: ContainerProcess) -> bool:
        """Return True if an app's place on this node has the process."""


class Deployments:
    """The deployments to ``node``; ``prepared`` has the held processes, by digest."""

    def __init__(self, node: Host) -> None:
        self.prepared: dict[str, ContainerProcess] = {}
        self._node = node

    @asynccontextmanager
    async def served(self, registry: Registry) -> AsyncIterator[None]:
        """Answer requests during the block, whose error comes out as it is."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, registry)
            try:
                yield
            except Exception as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _serve(self, registry: Registry) -> None:
        try:
            await answer_requests(registry, self._node.cluster, self._node.name, self._answer)
        except* SessionLost:  # it comes out of a nursery; the node notices it, too
            pass

    async def _answer(self, data: bytes, conversation: Conversation) -> None:
        try:
            await protocol.answer_with(self._asked, data, conversation.say)
        except CoordinationError as error:
            log.warning("a request cannot be answered", reason=str(error))

    async def _asked(self, ask: protocol.Ask, say: protocol.Say) -> None:
        match ask:
            case protocol.AskSettings():
                await say(protocol.Settings(self._node.settings_of(ask.deployed, 1)))
            case protocol.AskDeploy():
                await self._prepare(ask, say)

    async def _prepare(self, ask: protocol.AskDeploy, say: protocol.Say) -> None:
        """Prepare a new version beside the old one, for as long as the request lasts."""
        data = await trio.to_thread.run_sync(self._node.packages.get, ask.digest)
        package = archive.decode(data)
        package.check_python()
        begin = self._node.to_begin(
            package.manifest,
            ask.digest,
            ask.partitions,
            ask.expected,
            check=ask.check,
        )
        process = self._node.supervisor.start(begin)
        try:
            await self._see_through(process, ask.digest, say)
            await trio.sleep_forever()
        finally:
            if self.prepared.get(ask.digest) is process:
                del self.prepared[ask.digest]
            if not self._node.runs(process):
                process.stop_soon()

    async def _see_through(self, process: ContainerProcess, digest: str, say: protocol.Say) -> None:
        """Report how a new version starts, until it is ready or has failed."""
        try:
            prepared = await process.wait_prepared()
            self.prepared[digest] = process
            await say(protocol.Prepared(prepared.inputs, prepared.outputs))
            await say(protocol.Ready(await process.wait_ready()))
        except ContainerFailed as error:
            log.info(
                "a new version does not run",
                app=process.begin.app,
                version=process.begin.version,
                reason=error.reason,
            )
            await say(protocol.Failed(error.reason, error.trace, error.status))
