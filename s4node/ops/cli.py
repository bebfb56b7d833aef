"""The ``s4`` command.

Rules
- This module imports nothing heavy: each command loads what it needs, so ``--help`` is quick.
- Every command has an example in its help, says what it is doing on standard error, and puts only
  its results on standard output.
- Exit status: 0 done, 1 something was refused or failed, 2 the command or configuration is wrong,
  130 interrupted.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from s4node import __version__
from s4node.errors import ConfigError, GraphError, LoadError, S4Error
from s4node.ops.arguments import DEFAULT_ADDRESS, command, count, seconds, text
from s4node.ops.config_command import config_commands
from s4node.ops.job_commands import (
    checkpoint_commands,
    dead_letter_commands,
    startpoint_commands,
    state_commands,
)
from s4node.ops.log_command import log_commands

if TYPE_CHECKING:
    from s4node.config import Config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    command: Callable[[argparse.Namespace], int] = parsed.function
    _allow_files()
    try:
        return command(parsed)
    except LoadError as error:
        print(f"{error.trace}s4: {error}", file=sys.stderr)
        return 2
    except (ConfigError, GraphError) as error:
        print(f"s4: {error}", file=sys.stderr)
        return 2
    except S4Error as error:
        print(f"s4: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone
        return 1
    except KeyboardInterrupt:  # maybe within an import, which cannot be done again
        return 130
    except BaseExceptionGroup as error:
        from s4node.ops.serve import exit_status

        return exit_status(error)


def _allow_files() -> None:
    """Have as many files open as the system lets us; connections and tables of state are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s4",
        description="Run event-processing apps on nodes, and send events to them.",
        epilog="example: s4 run hello.py, then in another terminal: "
        """echo '{"name": "joe"}' | s4 send names""",
    )
    parser.add_argument("--version", action="version", version=f"s4node {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    run = command(
        commands,
        "run",
        _run,
        "run an app, in this process or in several",
        "s4 run hello.py --nodes 3",
    )
    run.add_argument("app", metavar="APP", help="FILE.py or package.module, then :name if several")
    run.add_argument("--listen", metavar="ADDRESS", help=f"default {DEFAULT_ADDRESS}")
    run.add_argument("--partitions", metavar="N",
                     help="partition tasks of the app (default: as many as nodes)")  # fmt: skip
    run.add_argument("--nodes", type=count, metavar="N",
                     help="share the partitions among N container processes; those that get "
                          "none are spares (default: job.container.count)")  # fmt: skip
    _serving_options(run)

    node = command(
        commands,
        "node",
        _node,
        "run a cluster's node; apps are deployed to it while it runs",
        "s4 node flights --name east, then s4 deploy apps.flights.app --cluster flights",
    )
    node.add_argument("cluster", metavar="CLUSTER", help="the cluster that the node belongs to")
    node.add_argument("--name", metavar="NAME", default="",
                      help="unique in the cluster (default: machine and process)")  # fmt: skip
    node.add_argument("--app", metavar="APP", help="run this one app in the node's own process, "
                      "as for s4 run; nothing can be deployed to such a node")  # fmt: skip
    _folder_option(node)
    _serving_options(node)

    adapter = command(
        commands,
        "adapter",
        _adapter,
        "run an adapter: an app that feeds other clusters",
        "s4 adapter lines --app apps.lines.adapter -p s4.adapter.output.stream=names "
        "-p s4.stream.names.consumers=hello -p s4.cluster.hello.address=tcp://127.0.0.1:12000",
    )
    adapter.add_argument("cluster", metavar="CLUSTER", help="the adapter's own cluster")
    adapter.add_argument("--app", required=True, metavar="APP", help="as for s4 run")
    _serving_options(adapter)

    deploy = command(
        commands, "deploy", _deploy, "package an app, and have the nodes of a cluster run it",
        "s4 deploy apps.flights.app --cluster flights -p s4.app.threshold=42",
    )  # fmt: skip
    deploy.add_argument("app", metavar="APP", help="as for s4 run")
    _cluster_options(deploy)
    deploy.add_argument("--name", metavar="NAME", default="", help="the app's, if not its own")
    deploy.add_argument("--version", metavar="VERSION", default="",
                        help="(default: a hash of the sources and settings)")  # fmt: skip
    deploy.add_argument("--partitions", metavar="N", help="(default: as the cluster has)")
    deploy.add_argument("--config", action="append", default=[], metavar="FILE",
                        help="property file that goes along; later ones win")  # fmt: skip
    deploy.add_argument("-p", dest="settings", action="append", default=[], metavar="KEY=VALUE",
                        help="one setting that goes along; wins over files")  # fmt: skip
    deploy.add_argument("--json", action="store_true", help="print the outcome as a JSON object")

    apps = command(
        commands, "apps", _apps, "list the apps that are deployed to a cluster",
        "s4 apps --cluster flights",
    )  # fmt: skip
    _cluster_options(apps)
    apps.add_argument("--json", action="store_true", help="print a JSON list")

    undeploy = command(
        commands, "undeploy", _undeploy, "stop an app on all nodes of a cluster, and forget it",
        "s4 undeploy flights --cluster flights",
    )  # fmt: skip
    undeploy.add_argument("app", metavar="NAME", help="the app's name, as s4 apps shows it")
    _cluster_options(undeploy)

    status = command(
        commands, "status", _status, "show a cluster: nodes, apps, containers, stages",
        "s4 status --cluster flights",
    )  # fmt: skip
    _cluster_options(status)
    status.add_argument("--json", action="store_true", help="print a JSON object")

    top = command(
        commands, "top", _top, "show a cluster live: depth, rate and waiting time of each stage",
        "s4 top --cluster flights",
    )  # fmt: skip
    _cluster_options(top)
    top.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS",
                     help="(default %(default)g)")  # fmt: skip
    top.add_argument("--count", type=int, metavar="N", help="end after N times")

    send = command(
        commands,
        "send",
        _send,
        "send events from standard input, one JSON object a line",
        """echo '{"name": "joe"}' | s4 send names""",
    )
    send.add_argument("stream", metavar="STREAM", help="an input stream of the app")
    send.add_argument(
        "--to", default=DEFAULT_ADDRESS, metavar="ADDRESS", help="(default %(default)s)"
    )
    send.add_argument("--type", default="", help="event type, where the stream takes several")
    send.add_argument("--timeout", type=seconds, default=10.0, metavar="SECONDS",
                      help="for connecting (default %(default)g)")  # fmt: skip
    send.add_argument("--json", action="store_true", help="print the outcome as a JSON object")

    tail = command(
        commands,
        "tail",
        _tail,
        "print what an app puts on a stream from now on, as JSON lines",
        "s4 tail totals --count 10",
    )
    tail.add_argument("stream", metavar="STREAM", help="an output or internal stream of the app")
    tail.add_argument(
        "--to", default=DEFAULT_ADDRESS, metavar="ADDRESS", help="(default %(default)s)"
    )
    tail.add_argument("--count", type=count, default=0, metavar="N", help="end after N events")
    tail.add_argument("--timeout", type=seconds, default=10.0, metavar="SECONDS",
                      help="for connecting (default %(default)g)")  # fmt: skip

    log_commands(commands)
    startpoint_commands(commands, _load)
    checkpoint_commands(commands, _load)
    state_commands(commands, _load)
    dead_letter_commands(commands, _load)

    new_app = command(
        commands, "new-app", _new_app, "make the folder of a new app, with a test",
        "s4 new-app clicks",
    )  # fmt: skip
    new_app.add_argument("name", metavar="NAME", help="small letters, digits, - and _")
    new_app.add_argument("--folder", metavar="DIR", help="where; must not exist (default ./NAME)")

    graph = command(
        commands, "graph", _graph, "draw an app's streams and PEs", "s4 graph apps.flights.app",
    )  # fmt: skip
    graph.add_argument("app", metavar="APP", help="as for s4 run; its on_init is called")
    form = graph.add_mutually_exclusive_group()
    form.add_argument("--mermaid", action="store_true", help="print a Mermaid flowchart")
    form.add_argument("--json", action="store_true", help="print JSON")
    _setting_options(graph)

    health = command(
        commands, "health", _health, "ask whether a node answers; for health checks",
        "s4 health tcp://127.0.0.1:12000",
    )  # fmt: skip
    health.add_argument("address", nargs="?", default=DEFAULT_ADDRESS, metavar="ADDRESS",
                        help="where the node listens (default %(default)s)")  # fmt: skip
    health.add_argument("--timeout", type=seconds, default=3.0, metavar="SECONDS",
                        help="for its answer (default %(default)g)")  # fmt: skip

    bench = command(
        commands, "bench", _bench, "measure; without a name, list what can be measured",
        "s4 bench keyed-count --json",
    )  # fmt: skip
    bench.add_argument("name", nargs="?", metavar="NAME", help="what to measure")
    bench.add_argument("--all", action="store_true", help="measure everything")
    bench.add_argument("--json", action="store_true", help="print JSON and nothing else")
    bench.add_argument("--quick", action="store_true",
                       help="a short run that checks correctness; ignore its figures")  # fmt: skip

    config_commands(commands, _load)
    return parser


def _cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", metavar="CLUSTER", help="(default: default)")
    _folder_option(parser)


def _folder_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=text, metavar="FOLDER",
                        help="where the nodes find each other (default ~/.s4node)")  # fmt: skip


def _serving_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true",
                        help="when ready, print the address as a JSON line")  # fmt: skip
    _setting_options(parser)


def _setting_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", action="append", default=[], metavar="FILE",
                        help="property file; later ones win")  # fmt: skip
    parser.add_argument("-p", dest="settings", action="append", default=[], metavar="KEY=VALUE",
                        help="one setting; wins over files")  # fmt: skip


def _load(files: Sequence[str], settings: Sequence[str], **extra: str | None) -> Config:
    from pathlib import Path

    from s4node.config import Config

    overrides = {
        name.replace("_", "."): value for name, value in extra.items() if value is not None
    }
    return Config.load([Path(file) for file in files], overrides, settings=settings)


def _run(parsed: argparse.Namespace) -> int:
    from s4node.config import CONTAINER_COUNT

    config = _load(
        parsed.config,
        parsed.settings,
        s4_listener_address=parsed.listen,
        s4_cluster_partitions=parsed.partitions,
        job_container_count=parsed.nodes and "0",  # all that there are
    )
    count = parsed.nodes or config[CONTAINER_COUNT]
    if not count:
        return _serve(parsed.app, config, as_json=parsed.json)
    return _launch(parsed, config, count)


def _launch(parsed: argparse.Namespace, config: Config, count: int) -> int:
    from s4node.config import CLUSTER_NAME, CLUSTER_PARTITIONS
    from s4node.ops.launch import Launched, launch

    if config.origin(CLUSTER_PARTITIONS) == "default":
        config = config.with_({CLUSTER_PARTITIONS.name: str(count)})

    def announce(done: Launched) -> None:
        if parsed.json:
            import json

            told = {
                "app": done.app, "address": done.address, "nodes": dict(done.containers),
                "folder": str(done.folder),
            }  # fmt: skip
            print(json.dumps(told), flush=True)
            return
        _tell_running(done.app, done.address, done.inputs)
        for name, address in done.containers.items():
            print(f"  {name} at {address}", file=sys.stderr, flush=True)
        named = config.origin(CLUSTER_NAME) != "default"
        cluster = f" --cluster {config[CLUSTER_NAME]}" if named else ""
        print(f"  see it:  s4 top --folder {done.folder}{cluster}", file=sys.stderr, flush=True)

    return launch(parsed.app, count, config, announce)


def _node(parsed: argparse.Namespace) -> int:
    config = _load(
        parsed.config,
        parsed.settings,
        s4_cluster_name=parsed.cluster,
        s4_coordination_folder=parsed.folder,
    )
    if parsed.app is not None:
        return _serve(parsed.app, config, as_json=parsed.json)
    from s4node.cluster.node import Node
    from s4node.ops.node import run_node

    def announce(node: Node) -> None:
        if parsed.json:
            import json

            print(json.dumps({"node": node.name, "address": node.address}), flush=True)
            return
        print(f"node {node.name} of cluster {node.cluster} runs at {node.address} (Ctrl-C stops "
              f"it)", file=sys.stderr, flush=True)  # fmt: skip

    return run_node(config, parsed.name, announce)


def _adapter(parsed: argparse.Namespace) -> int:
    config = _load(parsed.config, parsed.settings, s4_cluster_name=parsed.cluster)
    return _serve(parsed.app, config, adapter=True, as_json=parsed.json)


def _serve(target: str, config: Config, *, as_json: bool, adapter: bool = False) -> int:
    from s4node.app import AdapterApp
    from s4node.container.container import Container
    from s4node.ops.load import load_app
    from s4node.ops.serve import serve

    app = load_app(target)
    if adapter and not isinstance(app, AdapterApp):
        raise ConfigError(f"{target} is no AdapterApp; run it with 's4 run' or 's4 node'")

    def announce(container: Container) -> None:
        if as_json:
            import json

            print(json.dumps({"app": app.name, "address": container.address}), flush=True)
            return
        _tell_running(app.name, container.address, container.ports)

    return serve(app, config, announce)


def _tell_running(app: str, address: str, streams: Iterable[str]) -> None:
    to = "" if address == DEFAULT_ADDRESS else f" --to {address}"
    sends = [f"  send events:  s4 send {name}{to}" for name in streams]
    lines = [f"{app} runs at {address} (Ctrl-C stops it)", *sends]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _deploy(parsed: argparse.Namespace) -> int:
    import dataclasses

    import trio

    from s4node.cluster.admin import NodeRefused
    from s4node.ops.deploy import OWN_KEYS, deploy, tell
    from s4node.ops.pack import pack

    config = _load(
        parsed.config,
        parsed.settings,
        s4_cluster_name=parsed.cluster,
        s4_coordination_folder=parsed.folder,
        s4_cluster_partitions=parsed.partitions,
    )
    given = [e for e in config.items() if e.origin != "default" and e.name not in OWN_KEYS]
    settings = {entry.name: entry.text for entry in given}
    package = pack(parsed.app, name=parsed.name, version=parsed.version, settings=settings)
    from s4node.config import CLUSTER_PARTITIONS

    partitions = config[CLUSTER_PARTITIONS] if parsed.partitions else None
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


def _apps(parsed: argparse.Namespace) -> int:
    import trio

    from s4node.ops.status import apps

    return trio.run(partial(apps, _cluster_config(parsed), as_json=parsed.json))


def _undeploy(parsed: argparse.Namespace) -> int:
    import trio

    from s4node.ops.deploy import tell, undeploy

    gone = trio.run(undeploy, parsed.app, _cluster_config(parsed))
    tell(f"{gone.name} {gone.version} is gone from {gone.cluster}")
    return 0


def _status(parsed: argparse.Namespace) -> int:
    import trio

    from s4node.ops.status import status

    return trio.run(partial(status, _cluster_config(parsed), as_json=parsed.json))


def _top(parsed: argparse.Namespace) -> int:
    import trio

    from s4node.ops.status import top

    config = _cluster_config(parsed)
    return trio.run(partial(top, config, seconds=parsed.interval, count=parsed.count))


def _cluster_config(parsed: argparse.Namespace) -> Config:
    return _load(
        (), (), s4_cluster_name=parsed.cluster, s4_coordination_folder=parsed.folder
    )  # fmt: skip


def _send(parsed: argparse.Namespace) -> int:
    from s4node.ops.send import send

    return send(parsed.stream, parsed.to, parsed.type, parsed.timeout, as_json=parsed.json)


def _tail(parsed: argparse.Namespace) -> int:
    from s4node.ops.tail import tail

    return tail(parsed.stream, parsed.to, parsed.count, parsed.timeout)


def _health(parsed: argparse.Namespace) -> int:
    from s4node.ops.health import check

    check(parsed.address, parsed.timeout)
    print(f"{parsed.address} answers", file=sys.stderr)
    return 0


def _new_app(parsed: argparse.Namespace) -> int:
    from pathlib import Path

    from s4node.ops.new_app import new_app

    return new_app(parsed.name, Path(parsed.folder) if parsed.folder else None)


def _graph(parsed: argparse.Namespace) -> int:
    from s4node.ops.graph import draw
    from s4node.ops.load import load_app

    config = _load(parsed.config, parsed.settings)
    app = load_app(parsed.app)
    return draw(app, config, as_mermaid=parsed.mermaid, as_json=parsed.json)


def _bench(parsed: argparse.Namespace) -> int:
    from s4node.bench import command

    return command.bench(
        parsed.name, everything=parsed.all, as_json=parsed.json, quick=parsed.quick
    )
