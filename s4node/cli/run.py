"""``s4 run`` and ``s4 node``: run apps and nodes."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from s4node.cli.arguments import (
    CLUSTER,
    DEFAULT_ADDRESS,
    LISTENER,
    PARTITIONS,
    cluster_option,
    count,
    folder_option,
    from_options,
    json_option,
    setting_options,
    utf8,
)
from s4node.cli.output import report
from s4node.config.config import Config
from s4node.config.settings import (
    CLUSTER_NAME,
    CLUSTER_PARTITIONS,
    CONTAINER_COUNT,
    COORDINATION_FOLDER,
    HTTP_ADDRESS,
    LISTENER_ADDRESS,
)
from s4node.errors import ConfigError
from s4node.process.loading import interruptible, loaded

if TYPE_CHECKING:
    from s4node.cluster.node.node import Node
    from s4node.process.launch import Launched
    from s4node.runtime.container.container import Container

_APP = "FILE.py or package.module, then :name if several"


def run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="APP", help=_APP)
    cluster_option(parser)
    parser.add_argument(
        "--listen", dest=LISTENER, metavar="ADDRESS", help=f"default {DEFAULT_ADDRESS}"
    )
    parts = "partition tasks of the app (default: as many as nodes)"
    parser.add_argument("--partitions", dest=PARTITIONS, metavar="N", help=parts)
    nodes = (
        "start N nodes on this machine and deploy the app to them, for as long as this runs; those "
        "without partitions are spares (default: job.container.count)"
    )
    parser.add_argument("--nodes", type=count, metavar="N", help=nodes)
    from_options(parser)
    _serving_options(parser)
    parser.set_defaults(function=run)


def node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        CLUSTER, type=utf8, metavar="CLUSTER", help="the cluster that the node belongs to"
    )
    name = "unique in the cluster (default: machine and process)"
    parser.add_argument("--name", type=utf8, metavar="NAME", default="", help=name)
    app = (
        "run this one app (see s4 run) in the node's own process; such a node is alone, and takes "
        "no other apps"
    )
    parser.add_argument("--app", metavar="APP", help=app)
    folder_option(parser, dest="folder")
    _serving_options(parser)
    parser.set_defaults(function=node)


def _serving_options(parser: argparse.ArgumentParser) -> None:
    json_option(parser, "when ready, print the address as a JSON line")
    setting_options(parser)


def run(
    target: str,
    config: Config,
    *,
    nodes: int | None,
    savepoint: str | None,
    outputs: str,
    accept_loss: bool,
    as_json: bool,
) -> int:
    if nodes:
        config = config.with_({CONTAINER_COUNT.name: "0"})  # partitions for all containers
        if config.origin(CLUSTER_PARTITIONS) == "default":
            config = config.with_({CLUSTER_PARTITIONS.name: str(nodes)})
    if savepoint is not None:
        from s4node.cli.savepoint import go_back

        go_back(target, config, savepoint, outputs=outputs, accept_loss=accept_loss)
    containers = nodes or config[CONTAINER_COUNT]
    if not containers:
        return _serve(target, config, as_json=as_json, http=_serves_http(config))
    with interruptible():
        from s4node.process.launch import launch

    def announce(done: Launched) -> None:
        if as_json:
            outcome = {
                "app": done.app,
                "address": done.address,
                "nodes": dict(done.containers),
                "folder": str(done.folder),
                "http": done.url,
            }
            print(json.dumps(outcome), flush=True)
            return
        _report_running(done.app, done.address, done.inputs, done.url)
        for name, address in done.containers.items():
            report(f"  {name} at {address}")
        named = config.origin(CLUSTER_NAME) != "default"
        cluster = f" --cluster {config[CLUSTER_NAME]}" if named else ""
        report(f"  see it:  s4 top --folder {done.folder}{cluster}")

    return launch(target, containers, config, announce, http=_serves_http(config))


def node(app: str | None, name: str, folder: str | None, config: Config, *, as_json: bool) -> int:
    from s4node.cluster.node.node import check_name

    if app is not None:
        if folder is not None:
            places = (config[CLUSTER_NAME], folder, app)
            cluster, folder, app = map(shlex.quote, places)
            raise ConfigError(
                f"--folder is for nodes of a cluster, and a node with --app is alone; run "
                f"'s4 node {cluster} --folder {folder}' instead, and then 's4 deploy {app} "
                f"--cluster {cluster} --folder {folder}'"
            )
        if name:
            check_name(name)
        http = bool(config[HTTP_ADDRESS])
        return _serve(app, config, as_json=as_json, node=name, http=http)
    with interruptible():
        from s4node.process.node_process import run_node

    if folder is not None:
        config = config.with_({COORDINATION_FOLDER.name: folder})

    def announce(node: Node) -> None:
        if as_json:
            print(json.dumps({"node": node.name, "address": node.address}), flush=True)
            return
        where = f"node {node.name} of cluster {node.cluster} runs at {node.address}"
        report(f"{where} (Ctrl-C stops it)")

    return run_node(config, name, announce)


def _serve(target: str, config: Config, *, as_json: bool, http: bool, node: str = "") -> int:
    with interruptible():
        from s4node.deploy.load_app import load_app
        from s4node.process.serve import serve
    loaded()  # an app's file may need the collector
    app = load_app(target)

    def announce(container: Container, url: str) -> None:
        if as_json:
            outcome = {"app": app.name, "address": container.address, "http": url}
            print(json.dumps(outcome), flush=True)
            return
        _report_running(app.name, container.address, container.ports, url)

    return serve(app, config, announce, node, http=http)


def _serves_http(config: Config) -> bool:
    """Return True unless HTTP is left out: by name, or as it would go round certificates."""
    if config.origin(HTTP_ADDRESS) != "default":
        return bool(config[HTTP_ADDRESS])
    return not config[LISTENER_ADDRESS].startswith("tls+")


def _report_running(app: str, address: str, streams: Iterable[str], url: str) -> None:
    to = "" if address == DEFAULT_ADDRESS else f" --to {address}"
    sends = [f"  send events:  s4 send {name}{to}" for name in streams]
    watch = [f"  watch it:     {url}"] if url else []
    lines = [f"{app} runs at {address} (Ctrl-C stops it)", *watch, *sends]
    report("\n".join(lines))
