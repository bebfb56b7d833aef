"""The requests of commands to a cluster: their sessions, and the answers of nodes.

Rules
- A cluster has one deployment or removal at a time; the error for a second one names the first.
- A command whose session is lost opens another one, looks at what it has begun, and goes on.
- Nodes are asked at the same time. The first failure ends the others' answers.
- Progress is printed on standard error.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from s4node.cluster.coordination.entries import NodeInfo
from s4node.cluster.coordination.more_sessions import in_sessions
from s4node.cluster.coordination.node_requests import Requested, requesting
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node import deploy_protocol as protocol
from s4node.cluster.node.running import START_SECONDS
from s4node.cluster.tree.coordinations import (
    coordination_of,
    is_zookeeper,
    machine_folder,
    place_of,
)
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import is_folder
from s4node.deploy.cluster_snapshot import no_node
from s4node.errors import ConfigError, DeployFailed, EntryExists

R = TypeVar("R")

LOCK = "deploying"
_LOOK_SECONDS = 0.1
_FIX = "fix its permissions, or name the nodes' folder with --folder"
_PATIENCE_SECONDS = 3.0
"""The time after which nodes that have not answered are named."""


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def living_nodes(registry: Registry, config: Config) -> dict[str, NodeInfo]:
    """The nodes of the configured cluster by name; raises DeployFailed if there is none."""
    cluster = config[settings.CLUSTER_NAME]
    living = partial(registry.nodes, cluster)
    nodes = await living() or await in_time(living, f"no node of cluster {cluster!r} runs yet")
    if not nodes:
        raise DeployFailed(await no_node_in(registry, config))
    return nodes


async def no_node_in(registry: Registry, config: Config) -> str:
    """The message if no node of the configured cluster lives."""
    others = await registry.living_clusters()
    return no_node(config[settings.CLUSTER_NAME], others, place_of(config))


async def settings_of(
    registry: Registry, cluster: str, nodes: Collection[str], deployed: dict[str, str], limit: float
) -> Config:
    """The settings of a container of an app that was deployed with some, as the first of the nodes
    says within ``limit`` seconds."""
    ask = protocol.AskSettings(deployed)
    name = min(nodes)
    async with requesting(registry, cluster, [name], ask, protocol.decode_answer) as request:
        answers = await from_all(request, 0, protocol.Settings, limit, "load and check it")
    return Config.from_values(answers[name].settings)


async def from_all(
    request: Requested[protocol.Answer],
    number: int,
    kind: type[protocol.M],
    seconds: float,
    todo: str,
) -> dict[str, protocol.M]:
    """The answers with this number of all nodes within ``seconds``; raises the first failure.

    ``todo`` describes what they are asked to do.
    """
    answers: dict[str, protocol.M] = {}
    failures: list[Exception] = []

    async def ask(node: str, scope: trio.CancelScope) -> None:
        try:
            answer = await request.wait_answer(node, number)
            answers[node] = protocol.of_kind(node, answer, kind)
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async def report_late() -> None:
        await trio.sleep(_PATIENCE_SECONDS)
        late = [node for node in request.nodes if node not in answers]
        report(
            f"waiting for {named(late)}, at most {seconds:g} s, to {todo}; "
            f"{'their logs say' if len(late) > 1 else 'its log says'} more"
        )

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as outer:
            outer.start_soon(report_late)
            async with trio.open_nursery() as nursery:
                for node in request.nodes:
                    nursery.start_soon(ask, node, nursery.cancel_scope)
            outer.cancel_scope.cancel()
    if failures:
        raise failures[0]
    for node in request.nodes:
        if node not in answers:
            raise DeployFailed(
                f"node {node!r} did not answer within {seconds:g} s; it may be stopped: see "
                f"its log, or end it and deploy again"
            )
    return answers


def named(nodes: Collection[str]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(sorted(nodes))}"


# -- the session of a command ----------------------------------------------------------------------


@asynccontextmanager
async def registry_of(config: Config, who: str) -> AsyncIterator[Registry]:
    """The nodes' registry; raises ConfigError if it is in a folder that no node has ever used."""
    cluster = config[settings.CLUSTER_NAME]
    if not is_zookeeper(place_of(config)):
        folder = machine_folder(config)
        if not await trio.to_thread.run_sync(is_folder, folder, _FIX):
            raise ConfigError(
                f"no node of cluster {cluster!r} is running: the folder {folder} does not exist; "
                f"start one with: s4 node {cluster}, or name the nodes' folder with --folder, or "
                f"their ZooKeeper with --coordination"
            )
    async with coordination_of(config).session(who) as session:
        yield Registry(session)


async def wait_folder(config: Config) -> None:
    """Wait some seconds for the nodes' folder, which the first node makes."""
    folder = machine_folder(config)
    here = partial(trio.to_thread.run_sync, is_folder, folder, _FIX)
    if not is_zookeeper(place_of(config)) and not await here():
        await in_time(here, f"the folder {folder} does not exist yet")


async def in_time(look: Callable[[], Awaitable[R]], why: str) -> R:
    """The result of ``look``, or its last answer: a node that is being started has some seconds."""
    report(f"{why}; waiting {START_SECONDS:g} s for one that starts")
    for _ in range(int(START_SECONDS / _LOOK_SECONDS)):
        await trio.sleep(_LOOK_SECONDS)
        if found := await look():
            break
    return found


async def changing(
    config: Config, who: str, what: str, work: Callable[[Registry], Awaitable[R]]
) -> R:
    """The result of ``work``, which holds the cluster's lock for changing apps.

    If its session is lost, ``work`` is called again with another one, and finds what it has begun.
    """
    cluster = config[settings.CLUSTER_NAME]
    await wait_folder(config)

    @asynccontextmanager
    async def locked() -> AsyncIterator[Registry]:
        async with registry_of(config, who) as registry, _deploying(registry, cluster, what):
            yield registry

    return await in_sessions(locked, work, what, report)


@asynccontextmanager
async def _deploying(registry: Registry, cluster: str, what: str) -> AsyncIterator[None]:
    """Hold the cluster's lock for changing apps; raises DeployFailed if it is taken."""
    mine = f"the {what} by process {os.getpid()} on {socket.gethostname()}"
    try:
        await registry.lock(cluster, LOCK, mine)
    except EntryExists:
        other = (
            await registry.locked_by(cluster, LOCK) or "another deployment, which has just ended"
        )
        raise DeployFailed(
            f"{other} is in progress in cluster {cluster!r}, and only one is possible at a time; "
            f"try again when it is done"
        ) from None
    try:
        yield
    finally:
        with trio.move_on_after(1, shield=True):
            await registry.unlock(cluster, LOCK)
