"""The ``s4`` command.

Rules
- This module imports nothing heavy: only the requested command is loaded, so ``--help`` is quick.
- What a command loads stays, so it is no work of the garbage collector: not while it is loaded, and
  not when Python ends, either. That is a fifth of the CPU of ``s4 status``.
- An argument has the name of the parameter that takes it, or of the setting that it sets.
- Every command has an example in its help, reports progress on standard error, and writes only its
  results to standard output.
- The exit status is 0 if the command succeeded, 1 if something was refused or failed, 2 if the
  command line or the configuration is wrong, and 130 after an interrupt.
- A command whose output is closed ends quietly with 1 as soon as it prints something; if its output
  cannot be written, it says so. Commands that serve continue without an output. See
  :mod:`s4node.process.stdio`.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from s4node.errors import S4Error
from s4node.process import stdio
from s4node.process.loading import interruptible, loaded
from s4node.version import __version__

if TYPE_CHECKING:
    from s4node.config.config import Config


class Command(NamedTuple):
    """A command in the list; ``place`` is the function that adds its arguments."""

    place: str
    summary: str
    example: str


COMMANDS = {
    "run": Command(
        "s4node.cli.run:run_arguments",
        "run an app, in this process or on nodes of its own",
        "s4 run hello.py --nodes 3",
    ),
    "node": Command(
        "s4node.cli.run:node_arguments",
        "run a node of a cluster; apps are deployed to it while it runs",
        "s4 node flights --name east, then s4 deploy apps.flights.app --cluster flights",
    ),
    "deploy": Command(
        "s4node.cli.deploy:deploy_arguments",
        "package an app, and run it on the nodes of a cluster",
        "s4 deploy apps.flights.app --cluster flights -p s4.app.threshold=42",
    ),
    "undeploy": Command(
        "s4node.cli.deploy:undeploy_arguments",
        "stop an app on all nodes of a cluster, and remove it",
        "s4 undeploy flights --cluster flights",
    ),
    "rollback": Command(
        "s4node.cli.deploy:rollback_arguments",
        "go back to the version of an app before this one, and to its state then",
        "s4 rollback flights --cluster flights --outputs again --accept-loss",
    ),
    "drain": Command(
        "s4node.cli.drain:arguments",
        "move the partitions of a node to others, one after the other, before it is stopped",
        "s4 drain one --cluster flights",
    ),
    "status": Command(
        "s4node.cli.status:status_arguments",
        "show what is running: nodes, apps, containers, stages",
        "s4 status --cluster flights",
    ),
    "top": Command(
        "s4node.cli.status:top_arguments",
        "show what is running, live: depth, rate and waiting time of each stage",
        "s4 top --cluster flights",
    ),
    "send": Command(
        "s4node.cli.send:arguments",
        "send events from standard input, one JSON object per line",
        """echo '{"name": "joe"}' | s4 send names""",
    ),
    "tail": Command(
        "s4node.cli.tail:arguments",
        "print events of an app's stream from now on, as JSON lines",
        "s4 tail totals --count 10",
    ),
    "log": Command(
        "s4node.cli.log:arguments",
        "create, append to, read and trim the streams of a node's log",
        "s4 log create clicks --partitions 4 --key user",
    ),
    "startpoint": Command(
        "s4node.cli.startpoint:arguments",
        "set where an app's tasks begin to read at its next start",
        "s4 startpoint set clicks 'log.clicks[0]' --oldest",
    ),
    "savepoint": Command(
        "s4node.cli.savepoint:arguments",
        "take, list, show, remove, export and import the savepoints of an app",
        "s4 savepoint take clicks --name before-the-upgrade",
    ),
    "bootstrap": Command(
        "s4node.cli.bootstrap:arguments",
        "run an app's PEs over its history on Spark; the result is a savepoint",
        "s4 bootstrap clicks.py --config clicks.properties --name history",
    ),
    "repartition": Command(
        "s4node.cli.repartition:arguments",
        "give a stopped app another number of partitions",
        "s4 repartition clicks 6",
    ),
    "state": Command(
        "s4node.cli.state:arguments",
        "show the state of an app's tasks, as of the last commits; empty it",
        "s4 state get clicks joe",
    ),
    "dead-letter": Command(
        "s4node.cli.dead_letter:arguments",
        "show the events that an app could not process, send them again, or skip them",
        "s4 dead-letter list clicks --config clicks.properties",
    ),
    "new-app": Command(
        "s4node.cli.new_app:arguments",
        "create the project of a new app, with a test",
        "s4 new-app clicks",
    ),
    "why": Command(
        "s4node.cli.why:arguments",
        "say what holds up the apps that run, and what to do",
        "s4 why clicks",
    ),
    "graph": Command(
        "s4node.cli.graph:arguments",
        "print an app's streams and PEs as a Mermaid flowchart",
        "s4 graph apps.flights.app",
    ),
    "health": Command(
        "s4node.cli.health:arguments",
        "ask whether a node answers; for health checks",
        "s4 health tcp://127.0.0.1:12000",
    ),
    "certs": Command(
        "s4node.cli.certs:arguments",
        "make an authority and certificates for a development cluster",
        "s4 certs certs s4://demo/node/node1 s4://demo/producer/bank s4://demo/operator/ops",
    ),
    "config": Command(
        "s4node.cli.config_command:arguments",
        "show or check the configuration",
        "s4 config check --config config/flights.properties",
    ),
}

_PRIVATE = 0o077
"""The umask of a command and of the processes that it starts: others may do nothing."""

_SERVING = ("run", "node")
_OURS = ("command", "action", "function")


def main(arguments: Sequence[str] | None = None) -> int:
    closed = stdio.provide()
    if arguments is None:
        gc.disable()
    before = os.umask(_PRIVATE)
    os.umask(before | _PRIVATE)
    try:
        try:
            return _done(arguments, closed)
        finally:  # an error at the end of the interpreter would not be reported
            sys.stdout.flush()
    except OSError as error:  # perhaps of that output
        return _failed(error)
    finally:
        os.umask(before)
        if arguments is None:  # then the process ends
            gc.freeze()


def _done(arguments: Sequence[str] | None, closed: bool) -> int:
    try:
        given = sys.argv[1:] if arguments is None else arguments
        with interruptible():
            parser = _parser(
                next((argument for argument in given if not argument.startswith("-")), "")
            )
        parsed = parser.parse_args(given)
        if parsed.command is None:
            parser.print_help()
            return 2
        if closed and parsed.command in _SERVING:
            stdio.discard()
        _allow_files()
        if parsed.command not in _SERVING:  # which load more
            loaded()
        return _call(parsed)
    except (S4Error, BaseExceptionGroup) as error:
        return _failed(error)
    except KeyboardInterrupt:  # maybe within an import, which cannot be done again
        return 130


def _failed(error: BaseException) -> int:
    from s4node.process.exit_status import exit_status

    return exit_status(error)


def _allow_files() -> None:
    """Raise the limit of open files, which connections and databases need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # then the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _parser(asked: str) -> argparse.ArgumentParser:
    """The parser for the command ``asked``, or for all, without arguments, if there is no such."""
    from s4node.cli.arguments import command  # not before Ctrl-C can end it quietly

    parser = argparse.ArgumentParser(
        prog="s4",
        description="Run event-processing apps on nodes, and send events to them.",
        epilog="example: s4 run hello.py, then in another terminal: "
        """echo '{"name": "joe"}' | s4 send names""",
    )
    parser.add_argument("--version", action="version", version=f"s4node {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in [asked] if asked in COMMANDS else COMMANDS:
        place, summary, example = COMMANDS[name]
        made = command(commands, name, None, summary, example)
        if name == asked:
            module, _, function = place.partition(":")
            getattr(import_module(module), function)(made)
    return parser


def _config(files: list[str], settings: list[str], overrides: dict[str, str]) -> Config:
    """The settings, which may name classes of modules beside the files or in the working folder."""
    from s4node.config.config import Config

    paths = [Path(file) for file in files]
    config = Config.load(paths, overrides, settings=settings)
    sys.path += [*(str(path.parent) for path in paths), ""]
    return config


def _call(parsed: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(parsed).items() if name not in _OURS}
    set_here = {name: given.pop(name) for name in list(given) if "." in name}
    overrides = {name: value for name, value in set_here.items() if value is not None}
    if "files" in given:
        given["config"] = _config(given.pop("files"), given.pop("settings"), overrides)
    if "to_files" in given:
        from s4node.cli.running_apps import Nodes

        config = _config(given.pop("to_files"), given.pop("to_settings"), overrides)
        given["to"] = Nodes(given["to"], config)
    status: int = parsed.function(**given)
    return status
