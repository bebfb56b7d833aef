"""A look at a cluster: asks the nodes how they are, for ``s4 status`` and for monitoring.

Rules
- Membership and ownership are read from the registry, everything else from the nodes, which are
  asked at their addresses.
- A process that does not answer in time is shown as such, and does not delay the others.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from s4node.cluster.coordination.entries import AppId, NodeInfo
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node.app_details import history_of
from s4node.cluster.node.container_status import ContainerStatus
from s4node.cluster.node.node_status import NodeStatus, ask_status
from s4node.cluster.node.restart_policy import Phase
from s4node.cluster.node.running import Running
from s4node.deploy.cluster_snapshot import (
    OF_APPS,
    OF_NODES,
    AppRow,
    NodeRow,
    Snapshot,
    StreamRow,
    bottleneck_of,
    state_of,
)
from s4node.errors import NodeUnreachable
from s4node.net.certificates.credentials import Credentials

_ANSWER_SECONDS = 2.0


Ask = Callable[[NodeInfo], Awaitable[NodeStatus]]
"""Asks a node how it is; raises NodeUnreachable."""


def asking(credentials: Credentials | None) -> Ask:
    return partial(ask_status, credentials=credentials, seconds=_ANSWER_SECONDS)


async def of_cluster(registry: Registry, cluster: str, place: str, ask: Ask) -> Snapshot:
    nodes = await registry.nodes(cluster)
    answers: dict[str, NodeStatus | str] = {}
    async with trio.open_nursery() as nursery:
        for node in nodes.values():
            nursery.start_soon(_answer, node, ask, answers)
    containers = [
        container
        for answer in answers.values()
        if isinstance(answer, NodeStatus)
        for container in answer.containers
    ]
    apps = []
    for name, found in sorted((await registry.apps(cluster)).items()):
        group = await registry.group(AppId(cluster, name))
        living = {member.key: member.name for member in group.candidates}
        phases = {each.phase for each in containers if each.app == name}
        owners = group.assignment.value.owners if group.assignment else ()
        info = found.value
        apps.append(
            AppRow(
                name,
                info.version,
                state_of(info.state, phases, living.values()),
                info.partitions,
                [living.get(owner.key, "") for owner in owners],
                sorted(living.values()),
                {member.value.node: member.value.address for member in group.members},
            )
        )
    streams = []  # that apps of the cluster take, or put events on
    for stream in await registry.streams():
        producers = await registry.stream_users(stream, "producers")
        consumers = await registry.stream_users(stream, "consumers")
        if any(app.cluster == cluster for app in (*producers, *consumers)):
            streams.append(StreamRow(stream, [*map(str, producers)], [*map(str, consumers)]))
    return _snapshot(cluster, place, nodes, answers, apps, streams)


def _snapshot(
    cluster: str,
    folder: str,
    nodes: dict[str, NodeInfo],
    answers: dict[str, NodeStatus | str],
    apps: list[AppRow],
    streams: list[StreamRow],
) -> Snapshot:
    answered = {name: each for name, each in answers.items() if isinstance(each, NodeStatus)}
    statistics = [each for answer in answered.values() for each in answer.statistics]
    rows = {kind: of(statistics) for kind, of in OF_APPS.items()}
    for kind, of_node in OF_NODES.items():
        found = [of_node(name, answer.statistics) for name, answer in sorted(answered.items())]
        rows[kind] = [row for each in found for row in each]
    return Snapshot(
        cluster,
        folder,
        trio.current_time(),
        [_node(node, answers[name]) for name, node in sorted(nodes.items())],
        apps,
        bottleneck=bottleneck_of(rows["stages"]),
        streams=streams,
        history=history_of(each.history for each in answered.values()),
        **rows,
    )


async def _answer(node: NodeInfo, ask: Ask, answers: dict[str, NodeStatus | str]) -> None:
    try:
        answers[node.name] = await ask(node)
    except NodeUnreachable as error:
        answers[node.name] = str(error)


def _node(node: NodeInfo, answer: NodeStatus | str) -> NodeRow:
    result = (answer, []) if isinstance(answer, str) else ("", answer.containers)
    problem, containers = result
    return NodeRow(node.name, node.address, node.pid, node.host, containers, problem)


async def of_process(running: Running, ask: Ask) -> Snapshot:
    node = NodeInfo(running.node, socket.gethostname(), running.pid, "", running.address)
    answers: dict[str, NodeStatus | str] = {}
    if running.address:
        await _answer(node, ask, answers)
    else:
        phase = Phase.STARTING.value
        one = ContainerStatus(running.app, node.name, "", phase, running.pid, "", 1)
        answers[node.name] = NodeStatus(node.name, running.cluster, running.pid, "", [one], [])
    members = [node.name] if running.address else []
    app = AppRow(
        running.app,
        "",
        "running" if running.address else "starting",
        running.partitions,
        members * running.partitions,
        members,
        {node.name: running.address} if running.address else {},
    )
    return _snapshot(running.cluster, "", {node.name: node}, answers, [app], [])
