"""Gives a deployed app another number of partitions: its nodes end it, and start it again.

Rules
- The app is paused meanwhile: it has drained and ended on all nodes, and producers keep their
  events. If it cannot have that number, the pause ends, and it goes on as it was.
- If the command ends after the state has changed, containers are refused until it is repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import trio

from s4node.cluster.coordination.entries import AppId, AppInfo, Found
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node.restart_policy import END_SECONDS
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.answers import changing, registry_of, report
from s4node.deploy.deploy import wait_running
from s4node.deploy.state_change import StateChange
from s4node.errors import ConfigError, DeployFailed
from s4node.failpoints import passing


async def partitions_of(app: str, config: Config) -> int | None:
    try:
        async with registry_of(config, f"partitions of {app}") as registry:
            found = await registry.app(config[settings.CLUSTER_NAME], app)
    except ConfigError:  # no node has ever lived
        return None
    return None if found is None else found.value.partitions


async def repartition(app: str, config: Config, partitions: int, change: Callable[[], int]) -> int:
    """Call ``change`` in a thread while ``app`` is ended on all nodes, and have them start it with
    so many ``partitions``; returns the result. Raises S4Error with the reason."""
    moved: list[int] = []  # by a session that was lost since

    def change_once() -> int:
        if not moved:
            moved.append(change())
        return moved[0]

    async def work(registry: Registry) -> int:
        found = await registry.app(config[settings.CLUSTER_NAME], app)
        if found is None:
            raise DeployFailed(f"app {app!r} was removed meanwhile; see s4 status, and try again")
        if moved and found.value.partitions == partitions:
            await _wait_running(registry, config, found.value)
            return moved[0]
        return await _repartition(registry, config, found, partitions, change_once)

    return await changing(config, f"repartition {app}", f"repartition of {app!r}", work)


async def _repartition(
    registry: Registry,
    config: Config,
    found: Found[AppInfo],
    partitions: int,
    change: Callable[[], int],
) -> int:
    info = msgspec.structs.replace(found.value, partitions=partitions)
    app = AppId(info.cluster, info.name)
    state = StateChange(app, config, found.value, info.version, None, report)
    ending = config[settings.TASK_SHUTDOWN_MS] + END_SECONDS
    report(f"{info.name} {info.version} drains and ends")
    async with registry.pause(app, f"repartition by process {os.getpid()}"):
        moved = await state.change_ended(registry, ending, change)
        passing("deploy.repartitioned")
        await registry.set_app(info, found.version)
    await _wait_running(registry, config, info)
    return moved


async def _wait_running(registry: Registry, config: Config, info: AppInfo) -> None:
    seconds = config[settings.CONTAINER_START_TIMEOUT] + config[settings.CLUSTER_GATHER_TIMEOUT]
    with trio.move_on_after(seconds) as limit:
        await wait_running(registry, info, len(await registry.nodes(info.cluster)))
    if limit.cancelled_caught:
        raise DeployFailed(
            f"{info.name} has {info.partitions} partitions now, and does not run on all nodes "
            f"after {seconds:g} s; s4 status says why"
        )
