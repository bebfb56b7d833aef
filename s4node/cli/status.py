"""``s4 status`` and ``s4 top`` show what is running.

Rules
- This user's processes on this machine are found by their entries, and in the coordination. With
  ``--folder`` or ``--coordination``, only that is read; with ``--cluster``, only that cluster is
  shown.
- If nothing that was asked for is running, that is printed, with status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import trio

from s4node.cli import arguments as kinds
from s4node.cli.arguments import cluster_option, folder_option, json_option, setting_options
from s4node.cli.output import report
from s4node.cli.render import dashboard
from s4node.cli.running_apps import credentials_of, listed
from s4node.cluster.node.running import Running, running_processes
from s4node.cluster.tree.coordinations import in_folder, is_zookeeper, place_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.answers import registry_of
from s4node.deploy.cluster_look import asking, of_cluster, of_process
from s4node.deploy.cluster_snapshot import Snapshot, no_node, with_rates
from s4node.errors import CoordinationError
from s4node.net.certificates.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def status_arguments(parser: argparse.ArgumentParser) -> None:
    seen_options(parser)
    json_option(parser, "print a JSON list, with an object for each cluster")
    parser.set_defaults(function=status)


def top_arguments(parser: argparse.ArgumentParser) -> None:
    seen_options(parser)
    parser.add_argument(
        "--interval",
        dest="seconds",
        type=kinds.seconds,
        default=1.0,
        metavar="SECONDS",
        help="(default %(default)g)",
    )
    parser.add_argument("--count", type=kinds.count, metavar="N", help="end after N displays")
    parser.set_defaults(function=top)


def seen_options(parser: argparse.ArgumentParser) -> None:
    cluster_option(parser, "all")
    folder_option(parser, "~/.s4node, and everything of yours that runs here")
    setting_options(parser)


def status(config: Config, *, as_json: bool) -> int:
    """Print what is running, once; returns 1 if nothing is."""
    seen = trio.run(look, config, "status")
    if as_json:
        print(msgspec.json.encode(seen.shown).decode())
    elif seen.lives:
        _show(seen.shown)
    return _exit_status(seen)


def top(config: Config, *, seconds: float, count: int | None) -> int:
    """Show what is running until Ctrl-C, or ``count`` times; returns 1 if nothing is at first."""
    return trio.run(_top, config, seconds, count)


async def _top(config: Config, seconds: float, count: int | None) -> int:
    seen = await look(config, "top")
    if not seen.lives:
        return _exit_status(seen)
    displays = _displays(config, seen.shown, seconds, count)
    if sys.stdout.isatty():
        from s4node.cli.render import terminal

        await terminal.show_live(displays)
    else:
        async for shown in displays:
            print(dashboard.text_of(shown, live=True), flush=True)
    return 0


async def _displays(
    config: Config, now: list[Snapshot], seconds: float, count: int | None
) -> AsyncIterator[list[Snapshot]]:
    """Look at what is running ``now``, then every ``seconds``, with rates; ``count`` times."""
    while True:
        yield now
        if count is not None:
            count -= 1
            if count <= 0:
                return
        await trio.sleep(seconds)
        before = {each.key: each for each in now}
        now = [
            with_rates(each, before[each.key]) if each.key in before else each
            for each in (await look(config, "top")).shown
        ]


def _show(shown: Sequence[Snapshot]) -> None:
    if sys.stdout.isatty():
        from s4node.cli.render import terminal

        terminal.show(shown)
    else:
        print(dashboard.text_of(shown, live=False))


def _exit_status(seen: Seen) -> int:
    """The exit status, after a message if nothing is running."""
    if seen.lives:
        return 0
    report(seen.nothing)
    return 1


@dataclass(frozen=True)
class Seen:
    """The running processes, and the message to print if ``nothing`` is running."""

    shown: list[Snapshot]
    nothing: str

    @property
    def lives(self) -> bool:
        """Return True if a node or a process lives, rather than only apps that wait for one."""
        return any(each.nodes for each in self.shown)


async def look(config: Config, who: str) -> Seen:
    """Find what is running. Raises ConfigError if a named folder does not exist."""
    cluster = config[settings.CLUSTER_NAME]
    every = config.origin(settings.CLUSTER_NAME) == "default"
    named = any(
        config.origin(each) != "default"
        for each in (settings.COORDINATION, settings.COORDINATION_FOLDER)
    )
    own = place_of(config)
    mine = listed() if named else running_processes()
    processes = [] if named else mine
    shown: list[Snapshot] = []
    living: set[str] = set()
    for place in sorted({own, *(each.place for each in processes if each.place)}):
        if not (named or is_zookeeper(place) or await trio.Path(place).is_dir()):
            continue
        at = _at(config, place)
        try:
            async with registry_of(at, who) as registry:
                there = set(await registry.living_clusters())
                living |= there
                if place == own:
                    there.add(cluster)  # its apps may wait for a node
                for each in sorted(there if every else there & {cluster}):
                    ask = asking(_credentials(config, [p for p in mine if p.place == place]))
                    now = await of_cluster(registry, each, place, ask)
                    if now.nodes or now.apps:
                        shown.append(now)
        except CoordinationError:
            if place == own:
                raise
            continue  # the app has just ended
    for process in processes:
        if not process.place:
            living.add(process.cluster)
            if every or process.cluster == cluster:
                ask = asking(_credentials(config, [process]))
                shown.append(await of_process(process, ask))
    if not every:
        return Seen(shown, no_node(cluster, sorted(living), own if named else ""))
    where = f"no node runs in {own}" if named else "nothing of yours is running here"
    return Seen(shown, f"{where}; start an app with: s4 run APP, or a node with: s4 node CLUSTER")


def _credentials(config: Config, processes: Sequence[Running]) -> Credentials | None:
    """The configured credentials, else those of the first of the processes that has some."""
    own = Credentials.configured(config)
    return credentials_of(processes) if own is None else own


def _at(config: Config, place: str) -> Config:
    if is_zookeeper(place):
        return config.with_({settings.COORDINATION.name: place})
    return in_folder(config, place)
