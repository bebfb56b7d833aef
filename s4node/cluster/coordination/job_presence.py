"""Whether containers of a job run, on whichever node, and which start of the job they belong to.

Rules
- Each container of a job has an ephemeral entry for as long as its session lives. All nodes see it,
  whatever folders they keep state in.
- A job starts with the first of its containers, which gives the start a name: what holds for one
  start only is kept with that name.
- The state of a job has an identity, which is that of the first container that keeps any. Another
  one takes its place only at a start that is told to.
- Who comes, and who needs the job not to run, holds the job's gate meanwhile; the others wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from s4node import tokens
from s4node.cluster.coordination.registry import AppId, Registry
from s4node.errors import JobRuns

_NAME_BYTES = 6


class Entered(NamedTuple):
    """The name of the job's start, the identity of the container's own state, and that of the
    job's."""

    start: str
    own: str
    state: str


class JobPresence:
    """Who runs the job of ``app``, as the session of ``registry`` sees it."""

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
        """Be there for as long as the session lives, with the state that ``identify`` names; with
        ``adopt`` a start makes that one the job's. Calls ``at_start`` first if no other container
        with that state is there."""
        async with self._registry.gate(self._app):
            own = await identify()
            state = await self._registry.state(self._app)
            start = ""
            running = await self._registry.running(self._app)
            if running:
                start = await self._registry.start(self._app)
            elif adopt:
                state = ""
            if not state:
                state = own
                await self._registry.set_state(self._app, state)
            if not start:
                start = tokens.fresh(_NAME_BYTES)
                await self._registry.set_start(self._app, start)
            if own not in running.values():
                await at_start()
            await self._registry.add_running(self._app, own)
        return Entered(start, own, state)

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[str]:
        """Keep the job from starting, and give the identity of its state, empty before the first
        start; raises JobRuns where it runs."""
        async with self._registry.gate(self._app):
            if await self._registry.running(self._app):
                members = ", ".join(sorted(await self._registry.members(self._app)))
                raise JobRuns(
                    f"the job {str(self._app)!r} is running"
                    f"{f', in {members}' if members else ''}; stop all of its containers first"
                )
            yield await self._registry.state(self._app)
