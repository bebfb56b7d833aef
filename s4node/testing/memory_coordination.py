"""The coordination of a cluster in memory, between the runs of a world.

Rules
- It has the tree of a folder, which belongs to no host. A call takes as long as a message does.
- A session sends heartbeats from its own run. So one whose host stands still, is killed or cannot
  reach the coordination ends after its timeout, and learns it when it gets there again.
- If only its process has died, somebody ends the session at once, as a supervisor does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import trio

from s4node import clocks, failpoints, tokens
from s4node.cluster.tree.session_life import living
from s4node.cluster.tree.tree_database import ENDED, SessionRow, Tree
from s4node.cluster.tree.tree_session import TreeSession
from s4node.errors import CoordinationError, SessionLost
from s4node.testing.runs import Run, Runs

T = TypeVar("T")

_BEATS = 5
"""The heartbeats of a session during its timeout."""

_LOOK_SECONDS = 0.05


class _Tree(Tree):
    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[None]:
        with failpoints.replaced(lambda _: None), super().transaction(write=write):
            yield


class MemoryCoordination:
    """A tree in ``folder``; the sessions of ``lost`` hosts do not reach it."""

    def __init__(
        self, runs: Runs, folder: Path, delay: Callable[[], float], *, session_timeout: float
    ) -> None:
        self.session_timeout = session_timeout
        self.lost: set[str] = set()
        self.sessions: dict[str, MemorySession] = {}
        self.tree = _Tree(folder / "tree.sqlite")
        self.runs = runs
        self.delay = delay

    @asynccontextmanager
    async def session(self, name: str) -> AsyncIterator[MemorySession]:
        run = self.runs.here
        assert run is not None
        session = MemorySession(self, run, name)
        await session.open()
        async with living(session.close, session.beat):
            yield session

    async def end_session(self, key: str) -> None:
        self.remove_session(key)

    def process_died(self, run: Run) -> None:
        """End the sessions of a process at once."""
        for session in list(self.sessions.values()):
            if session.run is run:
                self.remove_session(session.id)

    def remove_session(self, id_: str) -> None:
        self.sessions.pop(id_, None)
        if self.tree.end_session(id_):
            self.announce_change()

    def announce_change(self) -> None:
        """Wake all sessions that wait for changes, when it reaches them."""
        for session in self.sessions.values():
            self.runs.after(self.runs.now + self.delay(), session.run, session.wake)

    def expire(self, session: MemorySession) -> None:
        """End a session that has been silent for its timeout; else look again then."""
        end = session.beaten + session.timeout
        if session.id not in self.sessions:
            return
        if end <= self.runs.now:
            self.remove_session(session.id)
        else:
            self.runs.after(end, None, lambda: self.expire(session))


class MemorySession(TreeSession):
    """A session; see :class:`s4node.cluster.tree.contract.Session`."""

    def __init__(self, home: MemoryCoordination, run: Run, name: str) -> None:
        super().__init__(tokens.fresh(16), home.tree)
        self.key = self.id
        self.name = name
        self.timeout = home.session_timeout
        self.lost = trio.Event()
        self.run = run
        self.beaten = clocks.steady()
        self._home = home

    @property
    def doubtful(self) -> bool:
        return clocks.steady() - self.beaten > self.timeout / 2

    async def open(self) -> None:
        """Make the session; raises CoordinationError if it is not reached in time."""
        with trio.move_on_after(self.timeout) as patience:
            await self._reach()
        if patience.cancelled_caught:
            raise CoordinationError(
                f"the coordination was not reached within {self.timeout:g} s; end the fault"
            )
        self.beaten = clocks.steady()
        self._tree.open_session(SessionRow(self.id, self.name, self.timeout))
        self._home.sessions[self.id] = self
        self._home.expire(self)

    async def beat(self) -> None:
        """Send heartbeats, until the session is lost."""
        while not self.lost.is_set():
            if self.run.name not in self._home.lost:
                if self.id in self._home.sessions:
                    self.beaten = clocks.steady()
                else:
                    self._lose()
            await trio.sleep(self.timeout / _BEATS)

    async def close(self) -> None:
        """End the session, if it can be reached; the others notice at once."""
        if self.run.name not in self._home.lost:
            self._home.remove_session(self.id)
        self._lose()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _in_tree(self, step: Callable[[], T], *, write: bool = False) -> T:
        await self._reach()
        if self.lost.is_set():
            raise SessionLost(f"session {self.name!r} is lost: {ENDED}")
        try:
            result = step()
        except SessionLost:
            self._lose()
            raise
        if write:
            self._home.announce_change()
        return result

    async def _reach(self) -> None:
        await trio.sleep(self._home.delay())
        while (  # noqa: ASYNC110 - the fault ends outside of all runs
            self.run.name in self._home.lost and not self.lost.is_set()
        ):
            await trio.sleep(_LOOK_SECONDS)

    def _lose(self) -> None:
        if not self.lost.is_set():
            self.lost.set()
            self.wake()
