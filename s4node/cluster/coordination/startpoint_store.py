"""The startpoints of a job, where all who can reach its state see them.

Rules
- They are one entry of a coordination, named by the identity of the job's state: two copies of an
  app with a state each have startpoints each. It is separate from progress: a request touches no
  checkpoint, and waits whether the job runs or not.
- State at a URL can be reached by all nodes: then it is their coordination. Otherwise only those
  who have the job's folder can reach it, and the coordination is a folder in there.
- A job without any request has no such folder.
- A session is opened for each call: there is one for each start, and a few after a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from s4node import threads
from s4node.cluster.coordination.folder import FolderCoordination
from s4node.cluster.coordination.registry import AppId, Registry
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import full_path
from s4node.errors import CoordinationError, StartpointError
from s4node.offsets.startpoint_fan_out import Requests

R = TypeVar("R")

FOLDER = "coordination"


class StartpointStore:
    """Those of the job in ``folder`` with these settings."""

    def __init__(self, folder: Path, config: Config) -> None:
        setting = settings.COORDINATION_FOLDER
        shared = bool(config[settings.STATE_URL])
        self.folder = full_path(config[setting], setting.name) if shared else folder / FOLDER
        self._timeout = config[settings.SESSION_TIMEOUT]

    @property
    def exists(self) -> bool:
        """Whether anything may have been asked for."""
        return self.folder.exists()

    async def named(self, app: AppId, identify: Callable[[], str]) -> str:
        """The identity of the state of ``app``, which may be made now: no container enters
        meanwhile."""
        async with self._registry() as registry, registry.gate(app):
            return await threads.run_sync(identify)

    async def read(self, state: str) -> Requests:
        """The startpoints of the state of this identity."""
        return await self.change(state, lambda them: (them, them))

    async def change(self, state: str, change: Callable[[Requests], tuple[Requests, R]]) -> R:
        """Write what ``change`` makes of them, all of it or nothing; returns what else it returns.

        Raises StartpointError where they cannot be read or written.
        """
        async with self._registry() as registry:
            return await registry.change_startpoints(state, change)

    @asynccontextmanager
    async def _registry(self) -> AsyncIterator[Registry]:
        coordination = FolderCoordination(self.folder, session_timeout=self._timeout)
        try:
            async with coordination.session("startpoints") as session:
                yield Registry(session)
        except CoordinationError as error:
            raise StartpointError(
                f"the startpoints in {self.folder} cannot be read or written: {error}"
            ) from error
