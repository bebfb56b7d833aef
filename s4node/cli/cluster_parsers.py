"""The commands that are about a cluster, as :mod:`s4node.cli.main` has the others: ``s4 deploy``,
``s4 apps``, ``s4 undeploy``, ``s4 status`` and ``s4 top``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from s4node.cli.arguments import (
    cluster_option,
    command,
    count,
    folder_option,
    seconds,
    setting_options,
    utf8,
)

if TYPE_CHECKING:
    from s4node.config.config import Config

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]
    Load = Callable[..., Config]  # makes it of property files and settings


def cluster_commands(commands: Parsers, load: Load) -> None:
    """All of them."""
    deploy = command(
        commands, "deploy", partial(_deploy, load),
        "package an app, and have the nodes of a cluster run it",
        "s4 deploy apps.flights.app --cluster flights -p s4.app.threshold=42",
    )  # fmt: skip
    deploy.add_argument("app", metavar="APP", help="as for s4 run")
    _cluster_options(deploy)
    deploy.add_argument(
        "--name", type=utf8, metavar="NAME", default="", help="the app's, if not its own"
    )
    deploy.add_argument("--version", type=utf8, metavar="VERSION", default="",
                        help="(default: a hash of the sources and settings)")  # fmt: skip
    deploy.add_argument("--partitions", metavar="N", help="(default: as the cluster has)")
    setting_options(
        deploy, file="property file that goes along", setting="one setting that goes along"
    )
    deploy.add_argument("--json", action="store_true", help="print the outcome as a JSON object")

    apps = command(
        commands, "apps", partial(_apps, load),
        "list the apps that run, or are deployed to a cluster",
        "s4 apps",
    )  # fmt: skip
    _seen_options(apps)
    apps.add_argument("--json", action="store_true", help="print a JSON list")

    undeploy = command(
        commands, "undeploy", partial(_undeploy, load),
        "stop an app on all nodes of a cluster, and forget it",
        "s4 undeploy flights --cluster flights",
    )  # fmt: skip
    undeploy.add_argument(
        "app", type=utf8, metavar="NAME", help="the app's name, as s4 apps shows it"
    )
    _cluster_options(undeploy)
    setting_options(undeploy)

    status = command(
        commands, "status", partial(_status, load),
        "show what runs: nodes, apps, containers, stages",
        "s4 status --cluster flights",
    )  # fmt: skip
    _seen_options(status)
    status.add_argument(
        "--json", action="store_true", help="print a JSON list, an object a cluster"
    )

    top = command(
        commands, "top", partial(_top, load),
        "show what runs, live: depth, rate and waiting time of each stage",
        "s4 top --cluster flights",
    )  # fmt: skip
    _seen_options(top)
    top.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS",
                     help="(default %(default)g)")  # fmt: skip
    top.add_argument("--count", type=count, metavar="N", help="end after N times")


def _cluster_options(parser: argparse.ArgumentParser) -> None:
    cluster_option(parser)
    folder_option(parser)


def _seen_options(parser: argparse.ArgumentParser) -> None:
    cluster_option(parser, "all")
    folder_option(parser, "~/.s4node, and all that runs here of this user")
    setting_options(parser)


# -- what they do ---------------------------------------------------------------------------------


def _deploy(load: Load, parsed: argparse.Namespace) -> int:
    import dataclasses

    import trio

    from s4node.cluster.node.admin import NodeRefused
    from s4node.config.config import COMMAND_LINE
    from s4node.config.settings import CLUSTER_PARTITIONS, LISTENER_ADDRESS
    from s4node.deploy.deploy import OWN_KEYS, deploy, tell
    from s4node.deploy.pack import pack

    config = load(
        parsed.config,
        parsed.settings,
        s4_cluster_name=parsed.cluster,
        s4_coordination_folder=parsed.folder,
        s4_cluster_partitions=parsed.partitions,
    )
    given = [e for e in config.items() if e.origin != "default" and e.name not in OWN_KEYS]
    settings = {entry.name: entry.text for entry in given}
    package = pack(parsed.app, name=parsed.name, version=parsed.version, settings=settings)
    if config.origin(LISTENER_ADDRESS) == COMMAND_LINE:
        tell(f"{LISTENER_ADDRESS.name} is not taken along: containers listen where their node "
             f"does, at ports that are free")  # fmt: skip
    set_here = config.origin(CLUSTER_PARTITIONS) != "default"
    partitions = config[CLUSTER_PARTITIONS] if set_here else None
    try:
        done = trio.run(deploy, package, config, partitions)
    except NodeRefused as error:
        if error.failed.trace:
            print(error.failed.trace, end="", file=sys.stderr)
        raise
    if parsed.json:
        import json

        print(json.dumps(dataclasses.asdict(done)))
        return 0
    places = ", ".join(f"{node} ({at})" for node, at in sorted(done.containers.items()))
    tell(f"{done.app} {done.version} runs on {places}")
    return 0


def _apps(load: Load, parsed: argparse.Namespace) -> int:
    import trio

    from s4node.cli.status import apps

    return trio.run(partial(apps, _cluster_config(load, parsed), as_json=parsed.json))


def _undeploy(load: Load, parsed: argparse.Namespace) -> int:
    import trio

    from s4node.deploy.deploy import tell, undeploy

    gone = trio.run(undeploy, parsed.app, _cluster_config(load, parsed))
    tell(f"{gone.name} {gone.version} is gone from {gone.cluster}")
    return 0


def _status(load: Load, parsed: argparse.Namespace) -> int:
    import trio

    from s4node.cli.status import status

    return trio.run(partial(status, _cluster_config(load, parsed), as_json=parsed.json))


def _top(load: Load, parsed: argparse.Namespace) -> int:
    import trio

    from s4node.cli.status import top

    config = _cluster_config(load, parsed)
    return trio.run(partial(top, config, seconds=parsed.interval, count=parsed.count))


def _cluster_config(load: Load, parsed: argparse.Namespace) -> Config:
    return load(
        parsed.config,
        parsed.settings,
        s4_cluster_name=parsed.cluster,
        s4_coordination_folder=parsed.folder,
    )
