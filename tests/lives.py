"""Containers of one address, one after the other, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from s4node import App, Config, Container


class Lives:
    """Containers of one address, one after the other; each ends at once, without a last commit."""

    def __init__(self, nursery: trio.Nursery, settings: dict[str, str]) -> None:
        self._nursery = nursery
        self._settings = settings
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.container: Container

    async def begin(self, app: App, **settings: str) -> Container:
        self.container = Container(app, Config.from_values(self._settings | settings))
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._run, self.container)
        await self.container.ready.wait()
        return self.container

    async def _run(self, container: Container) -> None:
        with self._scope:
            await container.run()
        self._ended.set()

    async def crash(self) -> None:
        self._scope.cancel()
        await self._ended.wait()

    def commit(self) -> None:
        for task in self.container.tasks.values():
            task.want_commit()
            self.container.parts.loop.wake(task)


@asynccontextmanager
async def lives(settings: dict[str, str]) -> AsyncIterator[Lives]:
    """Where containers live; what runs at the end is ended."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            yield Lives(nursery, settings)
            nursery.cancel_scope.cancel()
