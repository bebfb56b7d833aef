"""The ``s4`` command.

Rules
- This module imports nothing heavy: each command loads what it needs, so ``--help`` is quick.
- Every command has an example in its help, says what it is doing on standard error, and puts only
  its results on standard output.
- Exit status: 0 done, 1 something was refused or failed, 2 the command or configuration is wrong,
  130 interrupted.
- A command whose reader has gone, or whose output was closed, ends quietly with 1 once it has
  something to print; one whose results cannot be written says so. Those that serve go on where
  their output was closed. See :mod:`s4node.process.stdio`.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from s4node.cli.arguments import (
    DEFAULT_ADDRESS,
    command,
    count,
    folder_option,
    setting_options,
    timeout_option,
    to_option,
    utf8,
)
from s4node.cli.cluster_parsers import cluster_commands
from s4node.cli.config_command import config_commands
from s4node.cli.job_parsers import (
    checkpoint_commands,
    dead_letter_commands,
    startpoint_commands,
    state_commands,
)
from s4node.cli.log_parsers import log_commands
from s4node.errors import ConfigError, GraphError, LoadError, S4Error
from s4node.process import stdio
from s4node.version import __version__

if TYPE_CHECKING:
    from s4node.config.config import Config

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


_SERVING = ("run", "node", "adapter")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    closed = stdio.provide()
    try:
        try:
            return _done(arguments, closed)
        finally:  # at the interpreter's own end nobody could tell that it fails
            sys.stdout.flush()
    except (OSError, BaseExceptionGroup) as error:
        from s4node.process.serve import exit_status

        return exit_status(error)


def _done(arguments: Sequence[str] | None, closed: bool) -> int:
    """Run the command that is asked for; returns the exit status."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    if closed and parsed.command in _SERVING:
        stdio.discard()
    _allow_files()
    command: Callable[[argparse.Namespace], int] = parsed.function
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
    except KeyboardInterrupt:  # maybe within an import, which cannot be done again
        return 130


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
    _running_commands(commands)
    cluster_commands(commands, _load)
    _stream_commands(commands)
    log_commands(commands)
    startpoint_commands(commands, _load)
    checkpoint_commands(commands, _load)
    state_commands(commands, _load)
    dead_letter_commands(commands, _load)
    _other_commands(commands)
    config_commands(commands, _load)
    return parser


def _running_commands(commands: Parsers) -> None:
    """Those that run apps and nodes in their own process."""
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
    node.add_argument(
        "cluster", type=utf8, metavar="CLUSTER", help="the cluster that the node belongs to"
    )
    node.add_argument("--name", type=utf8, metavar="NAME", default="",
                      help="unique in the cluster (default: machine and process)")  # fmt: skip
    node.add_argument("--app", metavar="APP", help="run this one app in the node's own process, "
                      "as for s4 run; such a node is alone, and takes no other")  # fmt: skip
    folder_option(node)
    _serving_options(node)

    adapter = command(
        commands,
        "adapter",
        _adapter,
        "run an adapter: an app that feeds other clusters",
        "s4 adapter lines --app apps.lines.adapter -p s4.adapter.output.stream=names "
        "-p s4.stream.names.consumers=hello -p s4.cluster.hello.address=tcp://127.0.0.1:12000",
    )
    adapter.add_argument("cluster", type=utf8, metavar="CLUSTER", help="the adapter's own cluster")
    adapter.add_argument("--app", required=True, metavar="APP", help="as for s4 run")
    _serving_options(adapter)


def _stream_commands(commands: Parsers) -> None:
    """Those that send events to an app, and show what it makes of them."""
    send = command(
        commands,
        "send",
        _send,
        "send events from standard input, one JSON object a line",
        """echo '{"name": "joe"}' | s4 send names""",
    )
    send.add_argument("stream", type=utf8, metavar="STREAM", help="an input stream of the app")
    to_option(send, "where the app listens", "that of your running app which takes the stream")
    send.add_argument("--type", default="", help="event type, where the stream takes several")
    timeout_option(send, "connecting, and each time that it has to wait for a node that has gone")
    send.add_argument("--json", action="store_true", help="print the outcome as a JSON object")

    tail = command(
        commands,
        "tail",
        _tail,
        "print what an app puts on a stream from now on, as JSON lines",
        "s4 tail totals --count 10",
    )
    tail.add_argument(
        "stream", type=utf8, metavar="STREAM", help="an output or internal stream of the app"
    )
    to_option(tail, "where the app listens", "that of your running app which has the stream")
    tail.add_argument("--count", type=count, default=0, metavar="N", help="end after N events")
    timeout_option(tail, "connecting")


def _other_commands(commands: Parsers) -> None:
    """Those that make, draw, ask and measure."""
    new_app = command(
        commands, "new-app", _new_app, "make the project of a new app, with a test",
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
    setting_options(graph)

    health = command(
        commands, "health", _health, "ask whether a node answers; for health checks",
        "s4 health tcp://127.0.0.1:12000",
    )  # fmt: skip
    health.add_argument("address", nargs="?", default=DEFAULT_ADDRESS, metavar="ADDRESS",
                        help="where the node listens (default %(default)s)")  # fmt: skip
    timeout_option(health, "its answer", 3.0)

    bench = command(
        commands, "bench", _bench, "measure; without a name, list what can be measured",
        "s4 bench keyed-count --json",
    )  # fmt: skip
    bench.add_argument("name", nargs="?", metavar="NAME", help="what to measure")
    bench.add_argument("--all", action="store_true", help="measure everything")
    bench.add_argument("--json", action="store_true", help="print JSON and nothing else")
    bench.add_argument("--quick", action="store_true",
                       help="a short run that checks correctness; ignore its figures")  # fmt: skip


def _serving_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true",
                        help="when ready, print the address as a JSON line")  # fmt: skip
    setting_options(parser)


def _load(files: Sequence[str], settings: Sequence[str], **extra: str | None) -> Config:
    from pathlib import Path

    from s4node.config.config import Config

    overrides = {
        name.replace("_", "."): value for name, value in extra.items() if value is not None
    }
    return Config.load([Path(file) for file in files], overrides, settings=settings)


def _run(parsed: argparse.Namespace) -> int:
    from s4node.config.settings import CONTAINER_COUNT

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
    from s4node.config.settings import CLUSTER_NAME, CLUSTER_PARTITIONS
    from s4node.process.launch import Launched, launch

    if parsed.nodes and config.origin(CLUSTER_PARTITIONS) == "default":
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
    from s4node.cluster.node.node import Node, check_name

    if parsed.app is not None:
        if parsed.folder is not None:
            import shlex

            words = (parsed.cluster, parsed.folder, parsed.app)
            cluster, folder, app = map(shlex.quote, words)
            raise ConfigError(
                f"--folder is for nodes that find each other, and one with --app is alone; start "
                f"'s4 node {cluster} --folder {folder}' instead, and then 's4 deploy {app} "
                f"--cluster {cluster} --folder {folder}'"
            )
        if parsed.name:
            check_name(parsed.name)
        return _serve(parsed.app, config, as_json=parsed.json, node=parsed.name)
    from s4node.process.node_process import run_node

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


def _serve(
    target: str, config: Config, *, as_json: bool, adapter: bool = False, node: str = ""
) -> int:
    from s4node.app.app import AdapterApp
    from s4node.deploy.load_app import load_app
    from s4node.process.serve import serve
    from s4node.runtime.container.container import Container

    app = load_app(target)
    if adapter and not isinstance(app, AdapterApp):
        raise ConfigError(f"{target} is no AdapterApp; run it with 's4 run' or 's4 node'")

    def announce(container: Container) -> None:
        if as_json:
            import json

            print(json.dumps({"app": app.name, "address": container.address}), flush=True)
            return
        _tell_running(app.name, container.address, container.ports)

    return serve(app, config, announce, node)


def _tell_running(app: str, address: str, streams: Iterable[str]) -> None:
    to = "" if address == DEFAULT_ADDRESS else f" --to {address}"
    sends = [f"  send events:  s4 send {name}{to}" for name in streams]
    lines = [f"{app} runs at {address} (Ctrl-C stops it)", *sends]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _send(parsed: argparse.Namespace) -> int:
    from s4node.cli.running_apps import addresses_to_send
    from s4node.cli.send import send

    addresses = parsed.to or addresses_to_send(parsed.stream)
    return send(parsed.stream, addresses, parsed.type, parsed.timeout, as_json=parsed.json)


def _tail(parsed: argparse.Namespace) -> int:
    from s4node.cli.running_apps import addresses_to_read
    from s4node.cli.tail import tail

    addresses = parsed.to or addresses_to_read(parsed.stream)
    return tail(parsed.stream, addresses, parsed.count, parsed.timeout)


def _health(parsed: argparse.Namespace) -> int:
    from s4node.cli.health import check

    check(parsed.address, parsed.timeout)
    print(f"{parsed.address} answers", file=sys.stderr)
    return 0


def _new_app(parsed: argparse.Namespace) -> int:
    from pathlib import Path

    from s4node.cli.new_app import new_app

    return new_app(parsed.name, Path(parsed.folder) if parsed.folder else None)


def _graph(parsed: argparse.Namespace) -> int:
    from s4node.cli.graph import draw
    from s4node.deploy.load_app import load_app

    config = _load(parsed.config, parsed.settings)
    app = load_app(parsed.app)
    return draw(app, config, as_mermaid=parsed.mermaid, as_json=parsed.json)


def _bench(parsed: argparse.Namespace) -> int:
    from s4node.bench import command

    return command.bench(
        parsed.name, everything=parsed.all, as_json=parsed.json, quick=parsed.quick
    )
