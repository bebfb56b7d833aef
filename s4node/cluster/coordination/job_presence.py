"""The presence of a job in a cluster: whether its containers run, on any node.

Rules
- Each container of a job has an ephemeral entry for as long as its session lives. All nodes see it,
  whatever folders they keep state in.
- A job starts with the first of its containers, which gives the start a name; facts that hold for
  one start only are saved with that name.
- The state of a job has an identity: that of the first container with state. Only a start with
  ``adopt`` replaces it.
- A container that enters, and a process that needs the job to be stopped, hold the job's gate
  meanwhile; others wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from s4node import tokens
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.registry import Registry
from s4node.errors import JobRuns

_NAME_BYTES = 6


class Entered(NamedTuple):
    """The name of the job's ``start``, the identity of the container's ``own`` state, and that of
    the job's ``state``."""

    start: str
    own: str
    state: str


class JobPresence:
    """The presence of the job of ``app``, through the session of ``registry``."""

    def __init__(self, registry: Registry, app: AppId) -> None:
        self._registry = registry
        self._app = app

    async def enter(
        self,
        identify: Callable[[], Awaitable[str]],
        at_start: Callable[[], Awaitable[None]],
        *,
        adopt: bool = False,
    ) -> Entered:
        """Enter the job, until the session ends, with the state that ``identify`` names. With
        ``adopt`` a start makes it the state of the job. Calls ``at_start`` first if no other
        container with this state is there."""
        async with self._registry.job.gate(self._app):
            own = await identify()
            state = await self._registry.job.state(self._app)
            start = ""
            running = await self._registry.job.running(self._app)
            if running:
                start = await self._registry.job.start(self._app)
            elif adopt:
                state = ""
            if not state:
                state = own
                await self._registry.job.set_state(self._app, state)
            if not start:
                start = tokens.fresh(_NAME_BYTES)
                await self._registry.job.set_start(self._app, start)
            if own not in running.values():
                await at_start()
            await self._registry.job.add_running(self._app, own)
        return Entered(start, own, state)

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[str]:
        """Keep the job from starting; gives the identity of its state, empty before the first
        start. Raises JobRuns if the job is running."""
        async with self._registry.job.gate(self._app):
            if await self._registry.job.running(self._app):
                members = ", ".join(sorted(await self._registry.members(self._app)))
                raise JobRuns(
                    f"the job {str(self._app)!r} is running"
                    f"{f', in {members}' if members else ''}; stop all of its containers first"
                )
            yield await self._registry.job.state(self._app)
