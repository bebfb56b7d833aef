"""``s4 log sinks``: the sinks of a node's log, such as Spark jobs."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from s4node.cli.arguments import command, json_option, utf8
from s4node.cli.log_connection import with_log
from s4node.cli.output import give, report
from s4node.cli.running_apps import Nodes
from s4node.systems.embedded_log import EmbeddedLog


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = command(
        actions,
        "sinks",
        sinks,
        "list the sinks that write to the log, such as Spark jobs, with their last batch and what "
        "they have staged; or forget some",
        "s4 log sinks --forget job/nightly",
    )
    gone = (
        "forget a sink that does not return, with its staged rows; a batch that it writes again is "
        "published again; may be repeated"
    )
    parser.add_argument(
        "--forget", type=utf8, metavar="SINK", action="append", default=[], help=gone
    )
    json_option(parser, "print a JSON object for each sink")
    return parser


def sinks(forget: list[str], to: Nodes, timeout: float, *, as_json: bool) -> int:
    async def show(log: EmbeddedLog) -> int:
        sinks = (await log.ask("sink.list", {}))["sinks"]
        for sink in sinks:
            print(json.dumps(sink) if as_json else _shown(sink))
        if not sinks and not as_json:
            report(f"no sink has written to {log.address}")
        return 0

    async def remove(log: EmbeddedLog) -> int:
        for sink in forget:
            found = await log.ask("sink.forget", {"sink": sink})
            part = "; a part of its last batch is visible" if found["open"] else ""
            give({"sink": sink, **found}, f"{sink} is forgotten{part}", as_json=as_json)
        return 0

    return with_log(to.to_log(), timeout, remove if forget else show)


def _shown(sink: Mapping[str, Any]) -> str:
    staged = f"; {sink['staged_bytes']:,} bytes are staged" if sink["staged_bytes"] else ""
    if sink["batch"] < 0:
        return f"{sink['sink']} to {sink['stream']}: nothing is published{staged}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(sink["decided_ms"] / 1000))
    state = "is being carried into the stream" if sink["open"] else "is published"
    return (
        f"{sink['sink']} to {sink['stream']}: batch {sink['batch']} of {sink['events']:,} events "
        f"{state} ({when}), {sink['total']:,} events in all{staged}"
    )
