"""``s4 status``, ``s4 top`` and ``s4 apps``: what the nodes of a cluster do.

Rules
- Who lives and who owns what is read from the registry, all else is asked of the nodes. A node that
  does not answer is shown as one, and holds nobody up.
- A cluster of which no node lives is told as such, with status 1.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import msgspec
import trio

from s4node.cli.render import dashboard
from s4node.cluster.coordination.registry import AppId, NodeInfo, Registry
from s4node.cluster.node import admin
from s4node.config import settings
from s4node.config.settings import Config
from s4node.deploy.cluster_snapshot import (
    AppRow,
    Container,
    NodeRow,
    Snapshot,
    bottleneck_of,
    no_node,
    outboxes_of,
    rows_of,
    state_of,
    with_rates,
)
from s4node.deploy.deploy import registry_of
from s4node.errors import S4Error, on_one_line

_ANSWER_SECONDS = 2.0


async def status(config: Config, *, as_json: bool) -> int:
    """Print the cluster's state once; 1 if no node of it lives."""
    async with registry_of(config, "status") as registry:
        snapshot = await look(registry, config[settings.CLUSTER_NAME])
    if as_json:
        print(msgspec.json.encode(snapshot).decode())
    elif snapshot.nodes:
        dashboard.show(dashboard.console(), snapshot)
    return _told(snapshot)


async def top(config: Config, *, seconds: float, count: int | None) -> int:
    """Show the cluster's state again and again, until Ctrl-C or ``count`` times; 1 if no node of it
    lives at the beginning."""
    from rich.live import Live

    console = dashboard.console()
    async with registry_of(config, "top") as registry:
        now = await look(registry, config[settings.CLUSTER_NAME])
        if not now.nodes:
            return _told(now)
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                if console.is_terminal:
                    live.update(dashboard.rendered(now, console.width, live=True), refresh=True)
                else:
                    dashboard.show(console, now, live=True)
                    sys.stdout.flush()
                if count is not None:
                    count -= 1
                    if count <= 0:
                        return 0
                await trio.sleep(seconds)
                now = with_rates(await look(registry, config[settings.CLUSTER_NAME]), now)


@dataclass(frozen=True)
class Listed:
    """An app as ``s4 apps`` shows it; ``containers`` are its members' addresses by node."""

    app: str
    cluster: str
    version: str
    state: str
    partitions: int
    containers: dict[str, str]


async def apps(config: Config, *, as_json: bool) -> int:
    """Print the apps of the cluster; 1 if no node of it lives."""
    cluster = config[settings.CLUSTER_NAME]
    async with registry_of(config, "apps") as registry:
        snapshot = await look(registry, cluster)
    found = [
        Listed(app.name, cluster, app.version, app.state, app.partitions, app.containers)
        for app in snapshot.apps
    ]
    if as_json:
        print(msgspec.json.encode(found).decode())
        return _told(snapshot)
    for app in found:
        nodes = f", on {', '.join(sorted(app.containers))}" if app.containers else ""
        named = f"{app.app} {app.version}".strip()
        print(on_one_line(f"{named} {app.state}, {_partitions(app.partitions)}{nodes}"))
    if snapshot.nodes and not found:
        print("no apps", file=sys.stderr)
    return _told(snapshot)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _told(snapshot: Snapshot) -> int:
    """The exit status, after a word where nobody lives."""
    if snapshot.nodes:
        return 0
    print(no_node(snapshot.cluster, snapshot.others), file=sys.stderr)
    return 1


async def look(registry: Registry, cluster: str) -> Snapshot:
    """The cluster as it is now."""
    nodes = await registry.nodes(cluster)
    answers: dict[str, admin.NodeStatus | str] = {}
    async with trio.open_nursery() as nursery:
        for name, node in nodes.items():
            nursery.start_soon(_ask, name, node, answers)
    containers = [
        container
        for answer in answers.values()
        if isinstance(answer, admin.NodeStatus)
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
    told = [(each.app, each.levels, each.statistics) for each in containers]
    rows = rows_of(told)
    return Snapshot(
        cluster,
        trio.current_time(),
        [_node(node, answers[name]) for name, node in sorted(nodes.items())],
        apps,
        rows,
        bottleneck_of(rows),
        outboxes_of(told),
        [] if nodes else await registry.other_clusters(cluster),
    )


async def _ask(name: str, node: NodeInfo, answers: dict[str, admin.NodeStatus | str]) -> None:
    answers[name] = f"gave no answer within {_ANSWER_SECONDS:g} s; is it stopped?"
    with trio.move_on_after(_ANSWER_SECONDS):
        try:
            async with admin.asking(name, node.admin, admin.AskStatus()) as caller:
                answers[name] = await caller.answer(admin.NodeStatus)
        except S4Error as error:
            answers[name] = str(error)


def _node(node: NodeInfo, answer: admin.NodeStatus | str) -> NodeRow:
    containers = []
    problem = answer if isinstance(answer, str) else ""
    if isinstance(answer, admin.NodeStatus):
        containers = [
            Container(
                each.app,
                node.name,
                each.version,
                each.phase,
                each.pid,
                each.address,
                each.starts,
                each.failure,
                each.failed_ms,
            )
            for each in answer.containers
        ]
    return NodeRow(node.name, node.address, node.pid, node.host, containers, problem)
