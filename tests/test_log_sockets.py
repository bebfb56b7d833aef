"""The embedded log over real sockets: what was acknowledged is there once, whatever dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import plain_errors, running, until

from s4node import App, Client, Container, Event, GenericEvent, ProcessingElement
from s4node.errors import StartpointError
from s4node.progress.startpoint import Oldest, Specific, Upcoming
from s4node.systems.embedded_log import EmbeddedLog
from s4node.systems.system import SystemStreamPartition


class Click(Event):
    user: str
    n: int = 0


class Ignore(ProcessingElement):
    def on_event(self, event: Event) -> None:
        pass


def some_app() -> App:
    app = App("some")
    app.create_input_stream("live", app.create_pe(Ignore), types=Click, key="user")
    return app


@asynccontextmanager
async def log_node(folder: Path, **more: Any) -> AsyncIterator[Container]:
    settings = {"s4.log.folder": str(folder / "log"), **more.pop("settings", {})}
    async with running(some_app(), settings, **more) as node:
        yield node


@asynccontextmanager
async def log_at(address: str) -> AsyncIterator[EmbeddedLog]:
    log = EmbeddedLog("log", address, timeout=10)
    with plain_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: log.run(task_status=task_status))
            yield log
            nursery.cancel_scope.cancel()


async def read_all(address: str, stream: str, count: int, **more: Any) -> list[Any]:
    async with Client(address) as client, client.subscribe(stream, **more) as events:
        found: list[Any] = []
        with trio.fail_after(10):
            while len(found) < count:
                found.append(await anext(events))
        return found


async def test_what_is_appended_is_read_from_the_oldest_on(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1)
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("joe", n) for n in range(5000)])
            assert await clicks.flush() == []
        found = await read_all(node.address, "clicks", 5000, types=Click, start=Oldest())
        assert found == [Click("joe", n) for n in range(5000)]
        described = await log.describe("clicks")
        assert described["partitions"][0]["upcoming"] == 5000
