"""``s4 log``: the streams of a node's log, from the command line.

Rules
- Everything goes through the node's socket, so it works from any machine; no file is opened. With
  ``--system``, ``tail`` and ``describe`` read a system of the settings instead.
- Results go to standard output, with ``--json`` one JSON object per line; messages go to standard
  error.
- A command that has to wait says why, for example because the node's disk is full.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import trio

from s4node.cli import arguments as kinds
from s4node.cli import log_sinks, log_systems
from s4node.cli.arguments import (
    cluster_option,
    command,
    folder_option,
    group,
    json_option,
    timeout_option,
    to_option,
    utf8,
    whole,
)
from s4node.cli.log_connection import with_log
from s4node.cli.output import counted, give, report
from s4node.cli.running_apps import Nodes
from s4node.cli.send import Sending
from s4node.cli.tail import placed, print_events
from s4node.errors import S4Error, StartpointError
from s4node.net.client.client import Client
from s4node.offsets.startpoint import FORMS, Startpoint, Upcoming
from s4node.offsets.system import SystemStreamPartition
from s4node.systems.embedded_log import EmbeddedLog

_TROUBLE_SECONDS = 2.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The streams of a node's log. A node has a log if it runs with the setting s4.log.folder."
    )
    actions = group(parser)
    created = command(
        actions,
        "create",
        create,
        "create a stream",
        "s4 log create clicks --partitions 4 --key user --retention-ms 86400000",
    )
    created.add_argument(
        "stream", type=utf8, metavar="NAME", help="letters, digits, '_', '-' and '.'"
    )
    created.add_argument(
        "--partitions",
        type=kinds.count,
        default=1,
        metavar="N",
        help="never changes (default %(default)s)",
    )
    created.add_argument(
        "--key",
        type=utf8,
        default="",
        metavar="ATTRIBUTE",
        help="the attribute that decides an event's partition, or several joined by "
        "+ (default: none; events go round robin)",
    )
    created.add_argument(
        "--retention-ms",
        type=whole,
        metavar="MS",
        help="how long events are retained; 0 means forever (default: the node's setting)",
    )
    created.add_argument(
        "--retention-bytes",
        type=whole,
        metavar="BYTES",
        help="bytes that each partition retains; 0 means no bound (default: the node's setting)",
    )
    json_option(created, "print the stream as a JSON object")

    appended = command(
        actions,
        "append",
        append,
        "append events from standard input, one JSON object per line",
        """echo '{"user": "joe"}' | s4 log append clicks""",
    )
    appended.add_argument("stream", type=utf8, metavar="NAME")
    appended.add_argument(
        "--type",
        dest="type_name",
        metavar="TYPE",
        default="",
        help="event type, if the stream has several",
    )
    json_option(appended, "print the outcome as a JSON object")

    tailed = command(
        actions,
        "tail",
        tail,
        "print the events of a stream as JSON lines, also new ones",
        "s4 log tail clicks --from oldest --count 10",
    )
    tailed.add_argument("stream", type=utf8, metavar="NAME")
    tailed.add_argument(
        "--from",
        dest="start",
        type=kinds.start,
        default="upcoming",
        metavar="START",
        help=f"newest (the last event of each partition), {FORMS} (default %(default)s)",
    )
    tailed.add_argument("--partition", type=whole, metavar="P", help="only this one")
    tailed.add_argument(
        "--count", type=kinds.count, default=0, metavar="N", help="end after N events"
    )
    json_option(tailed, "print the partition and offset of each event, too")

    described = command(
        actions,
        "describe",
        describe,
        "show streams: key, retention, types, and offsets and bytes of each partition",
        "s4 log describe clicks --json",
    )
    described.add_argument(
        "stream", type=utf8, metavar="NAME", nargs="?", default="", help="(default: all)"
    )
    json_option(described, "print JSON")

    for reading in (tailed, described):
        place = "a system of the settings in place of a node's log, such as kafka"
        reading.add_argument("--system", type=utf8, default="", metavar="SYSTEM", help=place)

    trimmed = command(
        actions,
        "trim",
        trim,
        "delete the oldest events of a stream; only whole frames, so a few more may stay",
        "s4 log trim clicks --older-than-ms 3600000",
    )
    trimmed.add_argument("stream", type=utf8, metavar="NAME")
    trimmed.add_argument("--partition", type=whole, metavar="P", help="only this one")
    what = trimmed.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--to-offset",
        dest="offset",
        type=whole,
        metavar="OFFSET",
        help="events before this offset",
    )
    what.add_argument(
        "--older-than-ms", type=whole, metavar="MS", help="events appended longer ago"
    )
    what.add_argument("--everything", action="store_true", help="all events")
    json_option(trimmed, "print the outcome as a JSON object")

    dropped = command(
        actions,
        "drop",
        drop,
        "remove a stream with all of its events",
        "s4 log drop clicks",
    )
    dropped.add_argument("stream", type=utf8, metavar="NAME")
    json_option(dropped, "print the outcome as a JSON object")

    forgotten = command(
        actions,
        "forget",
        forget,
        "forget producers that do not return; events that they resend are appended again",
        "s4 log forget import-2025 --stream clicks",
    )
    forgotten.add_argument(
        "producers",
        type=utf8,
        metavar="PRODUCER",
        nargs="+",
        help="a producer id; for a task, the part before # is enough",
    )
    forgotten.add_argument(
        "--stream", type=utf8, metavar="NAME", default="", help="only this one (default: all)"
    )
    json_option(forgotten, "print the outcome as a JSON object")

    sinks = log_sinks.add(actions)

    for action in (created, appended, tailed, described, trimmed, dropped, forgotten, sinks):
        to_option(action, "where the log's node listens", "that of your running log", several=False)
        cluster_option(action, "all that run here")
        folder_option(action, "none: logs that run here")
        timeout_option(action, "the node's answers")


def create(
    stream: str,
    to: Nodes,
    timeout: float,
    *,
    partitions: int,
    key: str,
    retention_ms: int | None,
    retention_bytes: int | None,
    as_json: bool,
) -> int:
    async def work(log: EmbeddedLog) -> int:
        made = await log.create(
            stream,
            partitions,
            key=key,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
        )
        give(made, f"{_headline(made)} at {log.address}", as_json=as_json)
        return 0

    return with_log(to.to_log(), timeout, work)


def append(stream: str, to: Nodes, type_name: str, timeout: float, *, as_json: bool) -> int:
    """Append standard input; returns the exit status."""
    reach = to.to_log()

    async def work(log: EmbeddedLog) -> int:
        await log.describe(stream)  # if there is no such stream, the error lists the others
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_report_trouble, log)
            status = await Sending(stream, reach, type_name, timeout, as_json).run()
            nursery.cancel_scope.cancel()
        return status

    return with_log(reach, timeout, work)


async def _report_trouble(log: EmbeddedLog) -> None:
    """Print why the log cannot append, and when it can again."""
    reported = ""
    while True:
        await trio.sleep(_TROUBLE_SECONDS)
        try:
            trouble = (await log.streams())["trouble"]
        except S4Error:  # the node is away: the client waits for it
            continue
        if trouble != reported:
            report(f"the log is waiting: {trouble}" if trouble else "the log has resumed")
            reported = trouble


def tail(
    stream: str,
    to: Nodes,
    timeout: float,
    *,
    system: str,
    start: Startpoint | Literal["newest"],
    partition: int | None,
    count: int,
    as_json: bool,
) -> int:
    if system:
        reading = log_systems.Reading(to.config, system, stream, timeout, as_json=as_json)
        return trio.run(reading.print_tail, stream, start, partition, count)
    reach = to.to_log()

    async def work(log: EmbeddedLog) -> int:
        described = await log.describe(stream)
        where = await log_systems.start_of(log, described, start, partition)
        async with (
            Client(log.address, timeout=timeout, credentials=reach.credentials) as client,
            client.subscribe(stream, start=where) as events,
        ):
            if sys.stderr.isatty() or isinstance(start, Upcoming):  # earlier events are missed
                report(f"reading {stream} from {log.address}; Ctrl-C ends")
            await print_events(placed(events), count, with_place=as_json)
        return 0

    return with_log(reach, timeout, work)


def describe(stream: str, to: Nodes, timeout: float, *, system: str, as_json: bool) -> int:
    if system:
        reading = log_systems.Reading(to.config, system, stream, timeout, as_json=as_json)
        return trio.run(reading.print_streams, stream)

    async def work(log: EmbeddedLog) -> int:
        if stream:
            found = await log.describe(stream)
            streams, trouble = [found], found.pop("trouble")
        else:
            every = await log.streams()
            streams, trouble = every["streams"], every["trouble"]
        if as_json:
            shown = streams[0] if stream else streams
            print(json.dumps(shown))
        else:
            for one in streams:
                _show(one)
            if not streams:
                report(f"no streams at {log.address}; create one: s4 log create")
        if trouble:
            report(f"the log is waiting: {trouble}")
        return 0

    return with_log(to.to_log(), timeout, work)


def _headline(stream: Mapping[str, Any]) -> str:
    parts = counted(len(stream["partitions"]), "partition")
    key = f"key {stream['key'].replace('+', ', ')}" if stream["key"] else "no key"
    kept = []
    if stream["retention_ms"] is not None:
        kept.append(f"{stream['retention_ms']} ms" if stream["retention_ms"] else "for ever")
    if stream["retention_bytes"]:
        kept.append(f"{stream['retention_bytes']} bytes a partition")
    retention = f", kept: {', '.join(kept)}" if kept else ""
    return f"{stream['stream']}: {parts}, {key}{retention}"


def _show(stream: Mapping[str, Any]) -> None:
    print(_headline(stream))
    if stream["types"]:
        print(f"  types: {', '.join(stream['types'])}")
    for each in stream["partitions"]:
        if "damage" in each:
            print(f"  {each['partition']}: {each['damage']}")
            continue
        events = each["upcoming"] - each["oldest"]
        newest = ""
        if each["last_ms"]:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["last_ms"] / 1000))
            newest = f", newest {stamp}"
        print(
            f"  {each['partition']}: offsets {each['oldest']} to {each['upcoming']} "
            f"({events:,} events, {each['bytes']:,} bytes{newest})"
        )


def trim(
    stream: str,
    to: Nodes,
    timeout: float,
    *,
    partition: int | None,
    offset: int | None,
    older_than_ms: int | None,
    everything: bool,
    as_json: bool,
) -> int:
    async def work(log: EmbeddedLog) -> int:
        if older_than_ms is not None:
            before = max(0, int(time.time() * 1000) - older_than_ms)
            oldest = await log.trim(stream, partition=partition, before_ms=before)
        else:
            partitions = (await log.describe(stream))["partitions"]
            wanted = range(len(partitions)) if partition is None else [partition]
            if not everything and len(wanted) > 1:
                raise StartpointError(
                    f"stream {stream!r} has {len(partitions)} partitions, each with its own "
                    f"offsets; choose one with --partition"
                )
            oldest = {}
            for number in wanted:
                below = offset
                if everything:
                    ssp = SystemStreamPartition(log.name, stream, number)
                    below = (await log.bounds(ssp)).upcoming
                oldest |= await log.trim(stream, partition=number, offset=below)
        if as_json:
            print(json.dumps({"stream": stream, "oldest": oldest}))
        for number, first in oldest.items() if not as_json else ():
            report(f"{stream}[{number}] begins at {first}")
        return 0

    return with_log(to.to_log(), timeout, work)


def drop(stream: str, to: Nodes, timeout: float, *, as_json: bool) -> int:
    async def work(log: EmbeddedLog) -> int:
        dropped = (await log.ask("drop", {"stream": stream}))["dropped"]
        if as_json:
            print(json.dumps({"stream": stream, "dropped": dropped}))
        else:
            outcome = "is dropped" if dropped else "does not exist"
            report(f"stream {stream} {outcome} at {log.address}")
        return 0

    return with_log(to.to_log(), timeout, work)


def forget(
    producers: Sequence[str], to: Nodes, timeout: float, *, stream: str, as_json: bool
) -> int:
    async def work(log: EmbeddedLog) -> int:
        for producer in producers:
            found = await log.forget(producer, stream)
            give(
                {"producer": producer, "forgotten": found},
                f"{producer} is forgotten on {', '.join(found)}",
                as_json=as_json,
            )
        return 0

    return with_log(to.to_log(), timeout, work)
