"""``s4 status`` and ``s4 top``: what the nodes of a cluster do.

Rules
- Who lives and who owns what is read from the registry, all else is asked of the nodes. A node that
  does not answer is shown as one, and holds nobody up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from s4node import config as settings
from s4node.cluster import admin
from s4node.cluster.registry import AppId, NodeInfo, Registry
from s4node.config import Config
from s4node.errors import S4Error
from s4node.ops.deploy import registry_of
from s4node.ops.snapshot import (
    AppRow,
    Container,
    NodeRow,
    Row,
    Snapshot,
    bottleneck_of,
    outboxes_of,
    ranges,
    rows_of,
    with_rates,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_ANSWER_SECONDS = 2.0
_WIDTH = 240


async def status(config: Config, *, as_json: bool) -> int:
    """Print the cluster's state once; 1 if no node of it lives."""
    async with registry_of(config, "status") as registry:
        snapshot = await look(registry, config[settings.CLUSTER_NAME])
    if as_json:
        print(msgspec.json.encode(snapshot).decode())
    else:
        _print(_console(), snapshot)
    return 0 if snapshot.nodes else 1


async def top(config: Config, *, seconds: float, count: int | None) -> int:
    """Show the cluster's state again and again, until Ctrl-C or ``count`` times."""
    from rich.live import Live

    console = _console()
    async with registry_of(config, "top") as registry:
        before: Snapshot | None = None
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while count is None or count > 0:
                now = with_rates(await look(registry, config[settings.CLUSTER_NAME]), before)
                if console.is_terminal:
                    live.update(_rendered(now), refresh=True)
                else:
                    _print(console, now)
                    sys.stdout.flush()
                before = now
                if count is not None:
                    count -= 1
                if count != 0:
                    await trio.sleep(seconds)
    return 0


async def look(registry: Registry, cluster: str) -> Snapshot:
    """The cluster as it is now."""
    nodes = await registry.nodes(cluster)
    answers: dict[str, admin.NodeStatus | str] = {}
    async with trio.open_nursery() as nursery:
        for name, node in nodes.items():
            nursery.start_soon(_ask, name, node, answers)
    apps = []
    for name, found in sorted((await registry.apps(cluster)).items()):
        group = await registry.group(AppId(cluster, name))
        living = {member.key: member.name for member in group.candidates}
        owners = group.assignment.value.owners if group.assignment else ()
        info = found.value
        apps.append(
            AppRow(
                name,
                info.version,
                info.state,
                info.partitions,
                [living.get(owner.key, "") for owner in owners],
                sorted(living.values()),
            )
        )
    told = [
        (container.app, container.levels, container.statistics)
        for answer in answers.values()
        if isinstance(answer, admin.NodeStatus)
        for container in answer.containers
    ]
    rows = rows_of(told)
    return Snapshot(
        cluster,
        trio.current_time(),
        [_node(node, answers[name]) for name, node in sorted(nodes.items())],
        apps,
        rows,
        bottleneck_of(rows),
        outboxes_of(told),
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
            )
            for each in answer.containers
        ]
    return NodeRow(node.name, node.address, node.pid, node.host, containers, problem)


# -- for people -----------------------------------------------------------------------------------


def _console() -> Console:
    """Where tables go; lines are not folded where no terminal says how long they may be."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def _print(console: Console, snapshot: Snapshot) -> None:
    console.print(_rendered(snapshot))


def _rendered(snapshot: Snapshot) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not snapshot.nodes:
        return Text(
            f"no node of cluster {snapshot.cluster!r} lives; start one with: "
            f"s4 node {snapshot.cluster}"
        )
    parts: list[RenderableType] = [
        Text(f"cluster {snapshot.cluster}", style="bold"),
        _table(
            ("node", "address", "process", ""),
            [(n.name, n.address, f"{n.pid} on {n.host}", n.problem) for n in snapshot.nodes],
        ),
    ]
    if snapshot.apps:
        parts.append(
            _table(
                ("app", "version", "state", "partitions"),
                [(a.name, a.version, a.state, _owned(a)) for a in snapshot.apps],
            )
        )
    containers = [each for node in snapshot.nodes for each in node.containers]
    if containers:
        parts.append(
            _table(
                ("container", "node", "phase", "process", "address", "starts", "ended because"),
                [
                    (c.app, c.node, c.phase, str(c.pid or ""), c.address, str(c.starts), c.failure)
                    for c in containers
                ],
            )
        )
    if snapshot.stages:
        parts.append(_stages(snapshot.stages))
    if snapshot.outboxes:
        parts.append(
            _table(
                ("app", "outbox", "to", "waiting", "bytes"),
                [
                    (o.app, o.stream, o.consumer or "its own tasks", str(o.depth), f"{o.bytes:,}")
                    for o in snapshot.outboxes
                ],
            )
        )
    if snapshot.bottleneck:
        parts.append(Text(f"bottleneck: {snapshot.bottleneck}", style="bold red"))
    return Group(*parts)


def _owned(app: AppRow) -> str:
    """Which members own which partitions."""
    if not any(app.owners):
        return f"{app.partitions}, nobody owns them"
    by: dict[str, list[int]] = {}
    for partition, owner in enumerate(app.owners):
        by.setdefault(owner, []).append(partition)
    parts = [f"{owner or 'nobody'}: {ranges(numbers)}" for owner, numbers in sorted(by.items())]
    spares = [member for member in app.members if member not in by]
    return "; ".join(parts) + (f"; spare: {', '.join(spares)}" if spares else "")


def _stages(rows: Sequence[Row]) -> RenderableType:
    left_out = any(row.left_out for row in rows)
    lines = []
    for row in rows:
        shed = ", ".join(f"{count} {reason}" for reason, count in sorted(row.shed.items()))
        lines.append(
            (
                row.app,
                row.stage,
                row.stream,
                row.grade,
                f"{row.depth}/{row.capacity}",
                f"{row.fullest:.0%}",
                str(row.admitted),
                "" if row.rate is None else f"{row.rate:,.0f}/s",
                f"{row.waited * 1000:.1f} ms",
                shed,
                *((str(row.left_out or ""),) if left_out else ()),
            )
        )
    titles = (
        "app", "stage", "stream", "grade", "waiting", "full", "admitted", "rate", "waited", "shed",
        *(("left out",) if left_out else ()),
    )  # fmt: skip
    return _table(titles, lines)


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True)
    for title in titles:
        table.add_column(title, overflow="fold", header_style="dim")
    for line in lines:
        table.add_row(*map(escape, line))
    return table
