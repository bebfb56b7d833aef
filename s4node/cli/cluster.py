"""``s4 deploy`` and ``s4 undeploy`` change what a cluster runs; ``s4 status``, ``top`` and ``apps``
show what is running.

Rules
- This user's processes on this machine are found by their entries, and in the coordination. With
  ``--folder`` or ``--coordination``, only that is read; with ``--cluster``, only that cluster is
  shown.
- If nothing that was asked for is running, that is printed, with status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import msgspec
import trio

from s4node.cli import arguments as kinds
from s4node.cli.arguments import (
    PARTITIONS,
    agreement_options,
    cluster_option,
    folder_option,
    from_options,
    json_option,
    setting_options,
    utf8,
)
from s4node.cli.output import counted, give, tell
from s4node.cli.render import dashboard
from s4node.cli.running_apps import credentials_of, listed
from s4node.cluster.node import deploy_protocol as protocol
from s4node.cluster.node.running import Running, running_processes
from s4node.cluster.tree.coordinations import is_zookeeper, place_of
from s4node.config import settings
from s4node.config.config import COMMAND_LINE, Config
from s4node.deploy import deploy as deploying
from s4node.deploy.answers import registry_of
from s4node.deploy.cluster_look import asking, of_cluster, of_process
from s4node.deploy.cluster_snapshot import Snapshot, no_node, with_rates
from s4node.deploy.pack import pack
from s4node.deploy.state_change import GoBack
from s4node.errors import CoordinationError, on_one_line
from s4node.net.certificates.credentials import Credentials
from s4node.savepoints.manifest import StateCheck


def deploy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="APP", help="as for s4 run")
    _cluster_options(parser)
    parser.add_argument(
        "--name", type=utf8, metavar="NAME", default="", help="(default: the app's own name)"
    )
    parser.add_argument(
        "--version",
        type=utf8,
        metavar="VERSION",
        default="",
        help="(default: a hash of the sources and settings)",
    )
    parser.add_argument(
        "--partitions", dest=PARTITIONS, metavar="N", help="(default: that of the cluster)"
    )
    setting_options(
        parser, file="property file to deploy with it", setting="one setting to deploy with it"
    )
    from_options(parser)
    unused = "a PE or store whose saved rows this version does not use; may be given several times"
    parser.add_argument("--unused", action="append", metavar="PE", default=[], help=unused)
    same = "a stream's key with another name gives the same keys as before"
    parser.add_argument("--same-keys", action="store_true", help=same)
    json_option(parser, "print the outcome as a JSON object")
    parser.set_defaults(function=deploy)


def rollback_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", type=utf8, metavar="NAME", help="the app's name, as s4 apps shows it"
    )
    _cluster_options(parser)
    agreement_options(parser)
    setting_options(parser)
    json_option(parser, "print the outcome as a JSON object")
    parser.set_defaults(function=rollback)


def apps_arguments(parser: argparse.ArgumentParser) -> None:
    _seen_options(parser)
    json_option(parser, "print a JSON list")
    parser.set_defaults(function=apps)


def undeploy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", type=utf8, metavar="NAME", help="the app's name, as s4 apps shows it"
    )
    _cluster_options(parser)
    setting_options(parser)
    parser.set_defaults(function=undeploy)


def status_arguments(parser: argparse.ArgumentParser) -> None:
    _seen_options(parser)
    json_option(parser, "print a JSON list, with an object for each cluster")
    parser.set_defaults(function=status)


def top_arguments(parser: argparse.ArgumentParser) -> None:
    _seen_options(parser)
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


def _cluster_options(parser: argparse.ArgumentParser) -> None:
    cluster_option(parser)
    folder_option(parser)


def _seen_options(parser: argparse.ArgumentParser) -> None:
    cluster_option(parser, "all")
    folder_option(parser, "~/.s4node, and everything of yours that runs here")
    setting_options(parser)


def deploy(
    target: str,
    name: str,
    version: str,
    config: Config,
    *,
    savepoint: str | None,
    outputs: str,
    accept_loss: bool,
    unused: list[str],
    same_keys: bool,
    as_json: bool,
) -> int:
    """Make the nodes of a cluster run an app; returns the exit status."""
    given, nodes = deploying.to_deploy(config)
    package = pack(target, name=name, version=version, settings=given)
    for each in nodes:
        if config.origin(each) == COMMAND_LINE:
            tell(f"{each} is not deployed, because each node has its own")
    set_here = config.origin(settings.CLUSTER_PARTITIONS) != "default"
    partitions = config[settings.CLUSTER_PARTITIONS] if set_here else None
    back = GoBack(savepoint, bool(outputs), accept_loss) if savepoint is not None else None
    agreed = StateCheck(unused=tuple(unused), same_keys=same_keys)
    done = _deployed(partial(deploying.deploy, package, config, partitions, back, agreed))
    return _tell_deployed(done, as_json=as_json)


def rollback(name: str, config: Config, *, outputs: str, accept_loss: bool, as_json: bool) -> int:
    """Go back to the former version of an app; returns the exit status."""
    again = bool(outputs)
    roll_back = partial(deploying.roll_back, outputs_again=again, accept_loss=accept_loss)
    return _tell_deployed(_deployed(partial(roll_back, name, config)), as_json=as_json)


def _deployed(deploys: Callable[[], Awaitable[deploying.Deployed]]) -> deploying.Deployed:
    try:
        return trio.run(deploys)
    except protocol.NodeRefused as error:
        if error.failed.trace:
            print(error.failed.trace, end="", file=sys.stderr)
        raise


def _tell_deployed(done: deploying.Deployed, *, as_json: bool) -> int:
    places = ", ".join(f"{node} ({at})" for node, at in sorted(done.containers.items()))
    give(asdict(done), f"{done.app} {done.version} runs on {places}", as_json=as_json)
    return 0


def undeploy(name: str, config: Config) -> int:
    """Stop an app on all nodes of its cluster; returns the exit status."""
    gone = trio.run(deploying.undeploy, name, config)
    tell(f"{gone.name} {gone.version} is removed from {gone.cluster}")
    return 0


def status(config: Config, *, as_json: bool) -> int:
    """Print what is running, once; returns 1 if nothing is."""
    seen = trio.run(look, config, "status")
    if as_json:
        print(msgspec.json.encode(seen.shown).decode())
    elif seen.lives:
        dashboard.show(dashboard.console(), seen.shown)
    return _told(seen)


def top(config: Config, *, seconds: float, count: int | None) -> int:
    """Show what is running until Ctrl-C, or ``count`` times; returns 1 if nothing is at first."""
    return trio.run(_top, config, seconds, count)


async def _top(config: Config, seconds: float, count: int | None) -> int:
    from rich.live import Live

    console = dashboard.console()
    seen = await look(config, "top")
    if not seen.lives:
        return _told(seen)
    now = seen.shown
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
            before = {each.key: each for each in now}
            now = [
                with_rates(each, before[each.key]) if each.key in before else each
                for each in (await look(config, "top")).shown
            ]


@dataclass(frozen=True)
class Listed:
    """An app as ``s4 apps`` shows it; ``containers`` are its addresses by node."""

    app: str
    cluster: str
    version: str
    state: str
    partitions: int
    containers: dict[str, str]


def apps(config: Config, *, as_json: bool) -> int:
    """Print the apps that run or are deployed; returns 1 if no node is running."""
    seen = trio.run(look, config, "apps")
    found = [
        Listed(app.name, each.cluster, app.version, app.state, app.partitions, app.containers)
        for each in seen.shown
        for app in each.apps
    ]
    if as_json:
        print(msgspec.json.encode(found).decode())
        return _told(seen)
    for app in found:
        nodes = f", on {', '.join(sorted(app.containers))}" if app.containers else ""
        named = f"{app.app} {app.version}".strip()
        print(on_one_line(f"{named} {app.state}, {counted(app.partitions, 'partition')}{nodes}"))
    if seen.lives and not found:
        tell("no apps")
    return _told(seen)


def _told(seen: Seen) -> int:
    """The exit status, after a message if nothing is running."""
    if seen.lives:
        return 0
    tell(seen.nothing)
    return 1


@dataclass(frozen=True)
class Seen:
    """What is running, and the message to print if ``nothing`` is."""

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
    where = f"no node lives in {own}" if named else "nothing of yours is running here"
    return Seen(shown, f"{where}; start an app with: s4 run APP, or a node with: s4 node CLUSTER")


def _credentials(config: Config, processes: Sequence[Running]) -> Credentials | None:
    """The configured credentials, else those of the first of the processes that has some."""
    own = Credentials.configured(config)
    return credentials_of(processes) if own is None else own


def _at(config: Config, place: str) -> Config:
    if is_zookeeper(place):
        return config.with_({settings.COORDINATION.name: place})
    return config.with_({settings.COORDINATION.name: "", settings.COORDINATION_FOLDER.name: place})
