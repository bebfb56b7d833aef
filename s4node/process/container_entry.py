"""The entry of a container, by which commands find it, and its answers to them.

Rules
- A container without a supervisor says itself how it is, at its own address. For others, their node
  does.
- The entry has the settings with which a command sees the same state: an absolute path of the state
  folder, and the address of the log.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.cluster.node.container_status import ContainerStatus
from s4node.cluster.node.history import History
from s4node.cluster.node.node_status import NodeStatus, StatusAnswers
from s4node.cluster.node.restart_policy import Phase
from s4node.cluster.node.running import Running, running_entry, settings_for_commands
from s4node.cluster.node.supervisor_protocol import Begin
from s4node.config import settings
from s4node.config.paths import full_path
from s4node.errors import ConfigError
from s4node.metrics.table import finite
from s4node.runtime.container.container import Container


def streams_of(app: App) -> tuple[list[str], list[str]]:
    """The names of an app's live input streams, and of its output streams."""
    inputs = [s.name for s in app.streams.values() if isinstance(s, InputStream) and s.is_live]
    outputs = [s.name for s in app.streams.values() if isinstance(s, OutputStream) and s.is_live]
    return inputs, outputs


@asynccontextmanager
async def listed(container: Container, begin: Begin | None = None) -> AsyncIterator[None]:
    """List the container during the block; without ``begin`` it has no supervisor."""
    if begin is None:
        container.router.status = StatusAnswers(container.node, partial(_status, container))
    with running_entry() as entry:
        entry.write(running_of(container, begin))

        async def write_again() -> None:
            await container.ready.wait()
            entry.write(running_of(container, begin))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_again)
            yield
            nursery.cancel_scope.cancel()


def running_of(container: Container, begin: Begin | None = None) -> Running:
    """Where a container is, for commands; without ``begin`` it has no supervisor."""
    app, config = container.app, container.config
    ready = container.ready.is_set()
    address = begin.redirector if begin is not None else container.address
    inputs, _ = streams_of(app)
    given = settings_for_commands(config, address)
    with suppress(ConfigError):  # an app without state needs no such folder
        folder = full_path(config[settings.STATE_FOLDER], settings.STATE_FOLDER.name)
        given[settings.STATE_FOLDER.name] = str(folder)
    return Running(
        pid=os.getpid(),
        cluster=config[settings.CLUSTER_NAME],
        node=container.node,
        app=begin.app if begin is not None else app.name,
        place=begin.coordination if begin is not None else "",
        address=address if ready else "",
        log=container.log is not None,
        inputs=inputs,
        streams=[s.name for s in app.streams.values() if not isinstance(s, InputStream)],
        partitions=container.partitioner.partitions if ready else 0,
        settings=given,
    )


def _status(container: Container) -> NodeStatus:
    app, cluster = container.app, container.config[settings.CLUSTER_NAME]
    ready = container.ready.is_set()
    died, died_ms = container.died
    one = ContainerStatus(
        app=app.name,
        node=container.node,
        version="",
        phase=(Phase.RUNNING if ready else Phase.STARTING).value,
        pid=os.getpid(),
        address=container.address if ready else "",
        starts=1,
        failure=died,
        failed_ms=died_ms,
    )
    waits = container.replay.failing or container.replay.away
    counted = [container.statistics()] if ready or waits else []
    history = History()
    history.failed_once(one)
    own = finite(container.own_metrics())
    node = container.node, cluster, os.getpid(), one.address
    return NodeStatus(*node, [one], counted, list(history.last), own)
