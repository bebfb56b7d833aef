"""The startpoint store of a job, for everyone who can reach the job's state.

Rules
- The startpoints are one entry of a coordination, named by the identity of the job's state: two
  copies of an app with separate states have separate startpoints. They are separate from progress:
  a request touches no checkpoint, and waits whether the job runs or not.
- Each call opens a session: there is one at each start, and a few after a request. A call whose
  session is lost goes on in another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from s4node import threads
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.more_sessions import in_sessions
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.state_coordination import StateCoordination
from s4node.config.config import Config
from s4node.errors import CoordinationError, StartpointError
from s4node.logger import get_logger
from s4node.offsets.startpoint_fan_out import Requests

R = TypeVar("R")

log = get_logger("s4node.cluster")


class StartpointStore:
    def __init__(self, folder: Path, config: Config) -> None:
        self._coordination = StateCoordination(folder, config)

    @property
    def exists(self) -> bool:
        return self._coordination.exists

    async def named(self, app: AppId, identify: Callable[[], str]) -> str:
        """The identity of the state of ``app``. ``identify`` may create it, as no container can
        enter meanwhile."""

        async def work(registry: Registry) -> str:
            async with registry.job.gate(app):
                return await threads.run_sync(identify)

        return await self._in_sessions(work)

    async def requests(self, state: str) -> Requests:
        return await self.change(state, lambda them: (them, them))

    async def change(self, state: str, change: Callable[[Requests], tuple[Requests, R]]) -> R:
        """Replace the startpoints by the first result of ``change``; returns the second one.

        Raises StartpointError if they cannot be read or written.
        """
        changed: list[tuple[Requests, R]] = []

        def change_once(them: Requests) -> tuple[Requests, R]:
            if changed and them == changed[-1][0]:  # written by a session that was lost since
                return changed[-1]
            changed.append(change(them))
            return changed[-1]

        return await self._in_sessions(
            lambda registry: registry.job.change_startpoints(state, change_once)
        )

    async def _in_sessions(self, work: Callable[[Registry], Awaitable[R]]) -> R:
        opened = partial(self._coordination.registry, "startpoints")
        try:
            return await in_sessions(opened, work, "change of startpoints", log.warning)
        except CoordinationError as error:
            raise StartpointError(
                f"the startpoints in {self._coordination.place} cannot be read or written: {error}"
            ) from error
