"""``s4 sink``: the sinks of a node's log, such as Spark jobs, from the command line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from s4node.cli.arguments import (
    cluster_option,
    command,
    folder_option,
    group,
    json_option,
    timeout_option,
    to_option,
    utf8,
)
from s4node.cli.log import with_log
from s4node.cli.output import give, tell
from s4node.cli.running_apps import Nodes
from s4node.systems.embedded_log import EmbeddedLog


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The sinks of a node's log: Spark queries and jobs whose batches become visible whole. The "
        "log knows each of them for ever, so that no batch is published twice."
    )
    actions = group(parser)
    listed = command(
        actions,
        "list",
        list_,
        "list the sinks with their last batch and what they have staged",
        "s4 sink list --json",
    )
    json_option(listed, "print a JSON object for each sink")
    forgotten = command(
        actions,
        "forget",
        forget,
        "forget sinks that never return, with what they have staged; a job of that name can run "
        "again, and a batch that is written again is published again",
        "s4 sink forget job/nightly",
    )
    forgotten.add_argument(
        "sinks", type=utf8, metavar="SINK", nargs="+", help="as s4 sink list shows it"
    )
    json_option(forgotten, "print the outcome as a JSON object")
    for action in (listed, forgotten):
        to_option(action, "where the log's node listens", "that of your running log", several=False)
        cluster_option(action, "all that run here")
        folder_option(action, "none: logs that run here")
        timeout_option(action, "the node's answers")


def list_(to: Nodes, timeout: float, *, as_json: bool) -> int:
    """List the sinks; returns the exit status."""

    async def work(log: EmbeddedLog) -> int:
        sinks = (await log.ask("sink.list", {}))["sinks"]
        for sink in sinks:
            print(json.dumps(sink) if as_json else _shown(sink))
        if not sinks and not as_json:
            tell(f"no sink has written to {log.address}")
        return 0

    return with_log(to.to_log(), timeout, work)


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


def forget(sinks: list[str], to: Nodes, timeout: float, *, as_json: bool) -> int:
    """Forget sinks; returns the exit status."""

    async def work(log: EmbeddedLog) -> int:
        for sink in sinks:
            found = await log.ask("sink.forget", {"sink": sink})
            part = "; a part of its last batch is visible" if found["open"] else ""
            give({"sink": sink, **found}, f"{sink} is forgotten{part}", as_json=as_json)
        return 0

    return with_log(to.to_log(), timeout, work)
