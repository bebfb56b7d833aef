"""A node with an embedded log, for tests that append and read over its sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from harness import plain_errors, running
from shared_apps import Ignore, OnePE

from s4node import Client, Container, Event
from s4node.systems.embedded_log import EmbeddedLog


class Tap(Event):
    name: str


@asynccontextmanager
async def log_node(folder: Path, **more: Any) -> AsyncIterator[Container]:
    settings = {"s4.log.folder": str(folder / "log"), **more.pop("settings", {})}
    async with running(OnePE(Ignore, "live", name="some"), settings, **more) as node:
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
