"""``s4 drain``: empties a node, whose containers hand over their partitions one after the other.

Rules
- A drained node runs on without partitions. It gets its share again when it is started again.
- Only apps that keep state hand partitions over. Those of other apps stay with their owner while it
  lives, and the command names such apps.
"""

from __future__ import annotations

import argparse
from functools import partial

import trio

from s4node.cli.arguments import cluster_option, folder_option, setting_options, timeout_option
from s4node.cli.arguments import utf8 as text
from s4node.cli.output import report
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.more_sessions import in_sessions
from s4node.cluster.coordination.registry import Registry
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.answers import no_node_in, registry_of
from s4node.errors import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", type=text, metavar="NODE", help="as s4 status shows it")
    cluster_option(parser)
    folder_option(parser)
    timeout_option(parser, "the last partition to be handed over", 60.0)
    setting_options(parser)
    parser.set_defaults(function=drain)


def drain(node: str, config: Config, *, timeout: float) -> int:
    """Empty a node; returns the exit status, 1 if it still has partitions."""
    left = trio.run(_drained, node, config, timeout)
    if not left:
        report(f"node {node} has no partitions")
        return 0
    apps = ", ".join(f"{count} of {app}" for app, count in left.items())
    report(
        f"node {node} still has partitions after {timeout:g} s: {apps}. They stay until it ends if "
        f"the app keeps no state, or if no other node runs it"
    )
    return 1


async def _drained(node: str, config: Config, timeout: float) -> dict[str, int]:
    cluster = config[settings.CLUSTER_NAME]
    until = trio.current_time() + timeout

    async def work(registry: Registry) -> dict[str, int]:
        nodes = await registry.nodes(cluster)
        if not nodes:
            raise ConfigError(await no_node_in(registry, config))
        if node not in nodes:
            known = ", ".join(sorted(nodes))
            raise ConfigError(f"cluster {cluster!r} has no node {node!r}; its nodes: {known}")
        for app in await registry.apps(cluster):
            await registry.add_drained(AppId(cluster, app), node)
        path = Registry.path_of_apps(cluster)
        seen = await registry.session.change(path)
        left = await _left(registry, cluster, node)
        with trio.move_on_at(until):
            while left:
                seen = await registry.session.wait_change(path, seen)
                left = await _left(registry, cluster, node)
        return left

    opened = partial(registry_of, config, f"drain {node}")
    return await in_sessions(opened, work, f"drain of {node}", report)


async def _left(registry: Registry, cluster: str, node: str) -> dict[str, int]:
    left = {}
    for app in await registry.apps(cluster):
        group = await registry.group(AppId(cluster, app))
        keys = {(m.session, m.value.name) for m in group.members if m.value.node == node}
        owners = group.assignment.value.owners if group.assignment is not None else ()
        if count := sum(owner.key in keys for owner in owners):
            left[app] = count
    return left
