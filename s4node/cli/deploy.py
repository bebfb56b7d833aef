"""``s4 deploy``, ``s4 undeploy`` and ``s4 rollback`` change what a cluster runs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial

import trio

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
from s4node.cli.output import give, report
from s4node.config import settings
from s4node.config.config import COMMAND_LINE, Config
from s4node.deploy import deploy as deploying
from s4node.deploy.pack import pack
from s4node.deploy.state_change import GoBack
from s4node.savepoints.manifest import StateCheck


def deploy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="APP", help="FILE.py or package.module")
    cluster_option(parser)
    folder_option(parser)
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
    _app_and_cluster(parser)
    agreement_options(parser)
    setting_options(parser)
    json_option(parser, "print the outcome as a JSON object")
    parser.set_defaults(function=rollback)


def undeploy_arguments(parser: argparse.ArgumentParser) -> None:
    _app_and_cluster(parser)
    setting_options(parser)
    parser.set_defaults(function=undeploy)


def _app_and_cluster(parser: argparse.ArgumentParser) -> None:
    shown = "the app's name, as s4 status shows it"
    parser.add_argument("name", type=utf8, metavar="NAME", help=shown)
    cluster_option(parser)
    folder_option(parser)


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
    given, nodes = deploying.to_deploy(config)
    package = pack(target, name=name, version=version, settings=given)
    for each in nodes:
        if config.origin(each) == COMMAND_LINE:
            report(f"{each} is not deployed, because each node has its own")
    set_here = config.origin(settings.CLUSTER_PARTITIONS) != "default"
    partitions = config[settings.CLUSTER_PARTITIONS] if set_here else None
    back = GoBack(savepoint, bool(outputs), accept_loss) if savepoint is not None else None
    agreed = StateCheck(unused=tuple(unused), same_keys=same_keys)
    done = trio.run(deploying.deploy, package, config, partitions, back, agreed)
    return _report_deployed(done, as_json=as_json)


def rollback(name: str, config: Config, *, outputs: str, accept_loss: bool, as_json: bool) -> int:
    agreed = {"outputs_again": bool(outputs), "accept_loss": accept_loss}
    done = trio.run(partial(deploying.roll_back, name, config, **agreed))
    return _report_deployed(done, as_json=as_json)


def _report_deployed(done: deploying.Deployed, *, as_json: bool) -> int:
    places = ", ".join(f"{node} ({at})" for node, at in sorted(done.containers.items()))
    give(asdict(done), f"{done.app} {done.version} runs on {places}", as_json=as_json)
    return 0


def undeploy(name: str, config: Config) -> int:
    gone = trio.run(deploying.undeploy, name, config)
    report(f"{gone.name} {gone.version} is removed from {gone.cluster}")
    return 0
