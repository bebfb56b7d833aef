"""The connection of a command to a node's log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from s4node.cli.output import connecting
from s4node.cli.running_apps import Reach
from s4node.systems.embedded_log import EmbeddedLog


@asynccontextmanager
async def log_at(reach: Reach, timeout: float) -> AsyncIterator[EmbeddedLog]:
    credentials = reach.credentials
    address = reach.addresses[0]
    log = EmbeddedLog("log", address, timeout=timeout, credentials=credentials)
    async with connecting([address], timeout) as connected, trio.open_nursery() as nursery:
        await nursery.start(_run, log)
        nursery.start_soon(_note, log, connected)
        yield log
        nursery.cancel_scope.cancel()


async def _note(log: EmbeddedLog, connected: Callable[[], None]) -> None:
    await log.wait_reachable()
    connected()


async def _run(log: EmbeddedLog, task_status: trio.TaskStatus[None]) -> None:
    await log.run(task_status=task_status)


def with_log(reach: Reach, timeout: float, work: Callable[[EmbeddedLog], Awaitable[int]]) -> int:
    async def run() -> int:
        async with log_at(reach, timeout) as log:
            return await work(log)

    return trio.run(run)
