"""The entries of an app's job: its gate, its containers, its start, its state and its savepoints.

Rules
- Containers of one job may belong to different nodes, and see each other only here.
- Startpoints and savepoints belong to a state, by its identity, and so outlive an app's name.

::

    /clusters/<cluster>/apps/<app>/gate          the holder of the job's gate, ephemeral
    /clusters/<cluster>/apps/<app>/running/<id>  a container of the job, by session, ephemeral
    /clusters/<cluster>/apps/<app>/start         the name of the last start of the job
    /clusters/<cluster>/apps/<app>/state         the identity of the state of the job
    /startpoints/<state>                         Requests
    /savepoints/<state>/request                  the number that is asked for, ephemeral
    /savepoints/<state>/cuts/<number>/<task>     CutReport
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

import msgspec
import trio

from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.typed_entries import TypedEntries, below, path_of_app, path_to
from s4node.errors import BadVersion, EntryExists, NoEntry, SessionLost
from s4node.offsets.cuts import CutReport, DrainReport
from s4node.offsets.startpoint_fan_out import Requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

R = TypeVar("R")


class JobRegistry:
    """The entries of jobs, through one session of the coordination."""

    def __init__(self, entries: TypedEntries) -> None:
        self._entries = entries
        self._session = entries.session

    @contextlib.asynccontextmanager
    async def gate(self, app: AppId) -> AsyncIterator[None]:
        """Hold the gate of an app's job; waits while another session holds it."""
        path = path_of_app(app) + "/gate"
        while True:
            seen = await self._session.change(path)
            try:
                await self._session.create(path, self._session.name.encode(), ephemeral=True)
            except EntryExists:
                await self._session.wait_change(path, seen)
            else:
                break
        try:
            yield
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(SessionLost, NoEntry):
                await self._session.delete(path)

    async def add_running(self, app: AppId, state: str) -> None:
        """Record that this session is of a container of the app's job, with this ``state``."""
        with contextlib.suppress(EntryExists):
            path = below(path_of_app(app) + "/running", self._session.id)
            await self._session.create(path, state.encode(), ephemeral=True)

    async def running(self, app: AppId) -> Mapping[str, str]:
        """The sessions of the containers of the app's job, with the identities of their states."""
        path = path_of_app(app) + "/running"
        sessions = await self._entries.names(path)
        return {each: await self._entries.text(below(path, each)) for each in sessions}

    async def start(self, app: AppId) -> str:
        """The name of the last start of the app's job; empty before the first."""
        return await self._entries.text(path_of_app(app) + "/start")

    async def set_start(self, app: AppId, name: str) -> None:
        """Name a new start of the app's job; the caller holds its gate."""
        await self._entries.set_text(path_of_app(app) + "/start", name)

    async def state(self, app: AppId) -> str:
        """The identity of the state of the app's job; empty before it has any."""
        return await self._entries.text(path_of_app(app) + "/state")

    async def set_state(self, app: AppId, identity: str) -> None:
        """Set the identity of the state of the app's job; the caller holds its gate."""
        await self._entries.set_text(path_of_app(app) + "/state", identity)

    async def change_startpoints(
        self, state: str, change: Callable[[Requests], tuple[Requests, R]]
    ) -> R:
        """Replace startpoints by the first result of ``change``; returns the second result. They
        are for the state with this identity. If another was faster, ``change`` is called again."""
        path = path_to("startpoints", state)
        while True:
            found = await self._entries.get(path, Requests)
            before = Requests() if found is None else found.value
            after, result = change(before)
            if after == before:
                return result
            data = msgspec.json.encode(after)
            try:
                if found is None:
                    await self._session.create(path, data)
                else:
                    await self._session.set(path, data, found.version)
            except (EntryExists, BadVersion, NoEntry):
                continue
            return result

    async def request_savepoint(self, state: str, number: int) -> None:
        """Ask the tasks of the job whose state has this identity for their cuts, for as long as
        this session lives; raises EntryExists where another session asks."""
        path = self.path_of_savepoint(state)
        await self._session.create(path + "/request", str(number).encode(), ephemeral=True)
        for what in ("cuts", "drains"):
            for before in await self._entries.names(f"{path}/{what}"):
                if before != str(number):
                    await self._entries.delete_tree(f"{path}/{what}/{before}")

    async def requested_savepoint(self, state: str) -> int:
        """The number of the savepoint that is asked for; 0 for none."""
        return int(await self._entries.text(self.path_of_savepoint(state) + "/request") or 0)

    async def withdraw_savepoint(self, state: str) -> None:
        """Ask for no cuts any more, and remove what was reported."""
        path = self.path_of_savepoint(state)
        with contextlib.suppress(NoEntry):
            await self._session.delete(path + "/request")
        await self._entries.delete_tree(path + "/cuts")
        await self._entries.delete_tree(path + "/drains")

    async def report_cut(self, state: str, number: int, report: CutReport) -> None:
        path = below(f"{self.path_of_savepoint(state)}/cuts/{number}", report.task)
        await self._entries.put(path, report)

    async def cuts(self, state: str, number: int) -> dict[str, CutReport]:
        found = await self._entries.all(f"{self.path_of_savepoint(state)}/cuts/{number}", CutReport)
        return {name: each.value for name, each in found.items()}

    async def report_drain(self, state: str, number: int, report: DrainReport) -> None:
        path = below(f"{self.path_of_savepoint(state)}/drains/{number}", report.tasks[0])
        await self._entries.put(path, report)

    async def drains(self, state: str, number: int) -> list[DrainReport]:
        path = f"{self.path_of_savepoint(state)}/drains/{number}"
        return [each.value for each in (await self._entries.all(path, DrainReport)).values()]

    @staticmethod
    def path_of_savepoint(state: str) -> str:
        """Where there is a change when a savepoint is asked for, or a cut is made."""
        return path_to("savepoints", state)
