"""The commands behind ``s4 log``, as :mod:`s4node.cli.main` has the others."""

from __future__ import annotations

import argparse

from s4node.cli.arguments import (
    command,
    count,
    group,
    start,
    timeout_option,
    to_option,
    utf8,
    whole,
)


def log_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``s4 log``, and what comes behind it."""
    actions = group(
        commands,
        "log",
        "create, append to, read and trim the streams of a node's log",
        "s4 log create clicks --partitions 4 --key user",
        description="The streams of a node's log: a node has one that runs with the setting "
        "s4.log.folder.",
    )

    create = command(
        actions, "create", _log_create, "create a stream", "s4 log create clicks --partitions 4 "
        "--key user --retention-ms 86400000",
    )  # fmt: skip
    create.add_argument(
        "stream", type=utf8, metavar="NAME", help="letters, digits, '_', '-' and '.'"
    )
    create.add_argument("--partitions", type=count, default=1, metavar="N",
                        help="never changes (default %(default)s)")  # fmt: skip
    create.add_argument("--key", type=utf8, default="", metavar="ATTRIBUTE",
                        help="the attribute that tells an event's partition, or several with + "
                        "between; without one, events go round robin")  # fmt: skip
    create.add_argument("--retention-ms", type=whole, metavar="MS",
                        help="how long events are kept, 0 for ever (default: as the "
                        "node says)")  # fmt: skip
    create.add_argument("--retention-bytes", type=whole, metavar="BYTES",
                        help="how much a partition keeps, 0 without a bound (default: as the node "
                        "says)")  # fmt: skip
    create.add_argument("--json", action="store_true", help="print the stream as a JSON object")

    append = command(
        actions, "append", _log_append,
        "append events from standard input, one JSON object a line",
        """echo '{"user": "joe"}' | s4 log append clicks""",
    )  # fmt: skip
    append.add_argument("stream", type=utf8, metavar="NAME")
    append.add_argument("--type", default="",
                        help="event type, where the stream has several")  # fmt: skip
    append.add_argument("--json", action="store_true", help="print the outcome as a JSON object")

    tail = command(
        actions, "tail", _log_tail, "print a stream's events as JSON lines, and what comes",
        "s4 log tail clicks --from oldest --count 10",
    )  # fmt: skip
    tail.add_argument("stream", type=utf8, metavar="NAME")
    tail.add_argument("--from", dest="start", type=start, default="upcoming", metavar="START",
                      help="oldest, newest (the last event of each partition), "
                      "upcoming, an offset, or ms:MILLISECONDS since 1970 "
                      "(default %(default)s)")  # fmt: skip
    tail.add_argument("--partition", type=whole, metavar="P", help="this one only")
    tail.add_argument("--count", type=count, default=0, metavar="N", help="end after N events")
    tail.add_argument("--json", action="store_true",
                      help="print each event's partition and offset, too")  # fmt: skip

    describe = command(
        actions, "describe", _log_describe,
        "show streams: key, retention, types, and offsets and bytes of each partition",
        "s4 log describe clicks --json",
    )  # fmt: skip
    describe.add_argument(
        "stream", type=utf8, metavar="NAME", nargs="?", default="", help="(default: all)"
    )
    describe.add_argument("--json", action="store_true", help="print JSON")

    trim = command(
        actions, "trim", _log_trim,
        "delete the oldest events of a stream; whole frames only, so a few may stay",
        "s4 log trim clicks --older-than-ms 3600000",
    )  # fmt: skip
    trim.add_argument("stream", type=utf8, metavar="NAME")
    trim.add_argument("--partition", type=whole, metavar="P", help="this one only")
    what = trim.add_mutually_exclusive_group(required=True)
    what.add_argument("--to-offset", type=whole, metavar="OFFSET",
                      help="what lies before this offset")  # fmt: skip
    what.add_argument("--older-than-ms", type=whole, metavar="MS",
                      help="what was appended longer ago")  # fmt: skip
    what.add_argument("--everything", action="store_true", help="all that is there")
    trim.add_argument("--json", action="store_true", help="print the outcome as a JSON object")

    for action in (create, append, tail, describe, trim):
        to_option(action, "where the log's node listens", "that of your running log", several=False)
        timeout_option(action, "the node's answers")


def _address(parsed: argparse.Namespace) -> str:
    from s4node.cli.running_apps import address_of_log

    return parsed.to or address_of_log()


def _log_create(parsed: argparse.Namespace) -> int:
    from s4node.cli import log

    return log.create(
        parsed.stream,
        _address(parsed),
        parsed.timeout,
        partitions=parsed.partitions,
        key=parsed.key,
        retention_ms=parsed.retention_ms,
        retention_bytes=parsed.retention_bytes,
        as_json=parsed.json,
    )


def _log_append(parsed: argparse.Namespace) -> int:
    from s4node.cli import log

    return log.append(
        parsed.stream, _address(parsed), parsed.type, parsed.timeout, as_json=parsed.json
    )  # fmt: skip


def _log_tail(parsed: argparse.Namespace) -> int:
    from s4node.cli import log

    return log.tail(
        parsed.stream,
        _address(parsed),
        parsed.timeout,
        start=parsed.start,
        partition=parsed.partition,
        count=parsed.count,
        as_json=parsed.json,
    )


def _log_describe(parsed: argparse.Namespace) -> int:
    from s4node.cli import log

    return log.describe(parsed.stream, _address(parsed), parsed.timeout, as_json=parsed.json)


def _log_trim(parsed: argparse.Namespace) -> int:
    from s4node.cli import log

    return log.trim(
        parsed.stream,
        _address(parsed),
        parsed.timeout,
        partition=parsed.partition,
        offset=parsed.to_offset,
        older_than_ms=parsed.older_than_ms,
        everything=parsed.everything,
        as_json=parsed.json,
    )
