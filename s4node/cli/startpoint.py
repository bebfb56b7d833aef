"""``s4 startpoint``: where the tasks of an app begin to read at its next start.

Rules
- A request does not touch a running job or its checkpoints: it waits for a start.
- A mistake that can be found now is reported now: an unknown input or task, or a partition that the
  task does not read. Other mistakes are reported at the start.
"""

from __future__ import annotations

import argparse
import json
import re
from functools import partial
from typing import Any

import msgspec

from s4node import tokens
from s4node.cli.arguments import command, group, millis, whole
from s4node.cli.job import app_argument, find_job, job_options, task_option, where_of
from s4node.cli.output import counted, give, moment, report
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, StartpointError
from s4node.offsets.startpoint import Oldest, Specific, Startpoint, Timestamp, Upcoming, describe
from s4node.offsets.startpoint_fan_out import EXPIRY_MS, Place, Request
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import now_ms
from s4node.runtime.inputs.grouper import BY_PARTITION, reader_of

_NUMBERED = re.compile(r"Partition (0|[1-9][0-9]*)", re.ASCII)
_HOURS = EXPIRY_MS // 3_600_000


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = group(parser)
    asked = command(
        actions,
        "set",
        set_,
        "request a startpoint; it waits for the next start",
        "s4 startpoint set clicks log.clicks --all-partitions --timestamp 2026-01-31T08:00:00Z",
    )
    app_argument(asked)
    asked.add_argument("place", metavar="INPUT", help="such as 'log.clicks[0]'")
    what = asked.add_mutually_exclusive_group(required=True)
    add = partial(what.add_argument, dest="startpoint")
    first = "the first event that still exists"
    add("--oldest", action="store_const", const=Oldest(), help=first)
    after = "events appended after the start"
    add("--upcoming", action="store_const", const=Upcoming(), help=after)
    at = "the first event appended at or after a time: ISO 8601, or milliseconds since 1970"
    add("--timestamp", type=lambda text: Timestamp(millis(text)), metavar="TIME", help=at)
    at = "the event at this offset"
    add("--offset", type=lambda text: Specific(whole(text)), metavar="OFFSET", help=at)
    task_option(asked, "only this task, such as 'Partition 0' (default: all that read it)")
    _all_partitions_option(asked)

    shown = command(
        actions,
        "show",
        show,
        "list the requested startpoints, and those that are pending for tasks",
        "s4 startpoint show clicks --json",
    )
    app_argument(shown)

    taken = command(
        actions,
        "delete",
        delete,
        "delete startpoints",
        "s4 startpoint delete clicks 'log.clicks[0]'",
    )
    app_argument(taken)
    taken.add_argument(
        "place", metavar="INPUT", nargs="?", default="", help="such as 'log.clicks[0]'"
    )
    taken.add_argument("--everything", action="store_true", help="all startpoints of the app")
    task_option(taken, "only those for this task alone (default: all)")
    _all_partitions_option(taken)
    for action in (asked, shown, taken):
        job_options(action)


def _all_partitions_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all-partitions", action="store_true", help="INPUT is a stream, such as log.clicks"
    )


def set_(
    target: str,
    place: str,
    startpoint: Startpoint,
    config: Config,
    *,
    task: str,
    all_partitions: bool,
    as_json: bool,
) -> int:
    job = find_job(target, config, shipped=True)
    places = job.places_of(task, job.places(where_of(place, all_partitions=all_partitions)))
    if task and not job.tasks:
        places = _readable(job.name, task, places, job.config)
    now = now_ms()
    new = [Request(tokens.fresh(6), *each, startpoint, now, task) for each in places]
    written = job.change_startpoints(lambda them: them.put(new))
    running = job.running
    if as_json:
        print(json.dumps([_row("requested", request.task, request) for request in written]))
        return 0
    for request in written:
        report(f"{_ssp(request)}: {describe(startpoint)} for {_who(task)} (id {request.id})")
    for request in written:
        if job.inputs.get(f"{request.system}.{request.stream}") is None:
            since = "has not run" if job.guard is None else "has not run with this input"
            report(f"{job.name} {since}, so {_ssp(request)} may not exist; its start reports that")
    if running:
        report(
            f"{job.name} is running and is not moved: this takes effect at its next start, if "
            f"that is within {_HOURS} hours"
        )
    else:
        report(f"takes effect when {job.name} next starts, if that is within {_HOURS} hours")
    return 0


def _readable(app: str, task: str, places: list[Place], config: Config) -> list[Place]:
    """The ``places`` that a task of an app that has not run will or may read. Raises ConfigError if
    there are none."""
    readers = {place: _reader(place, task, config) for place in places}
    read = [place for place, reader in readers.items() if reader in ("", task)]
    if not read:
        place, reader = next(iter(readers.items()))
        raise ConfigError(
            f"task {task!r} of app {app!r} would not read {SystemStreamPartition(*place)}, "
            f"{reader!r} would ({settings.GROUPER.name} = {config[settings.GROUPER]}); name that "
            f"task, or leave --task out"
        )
    return read


def _reader(place: Place, task: str, config: Config) -> str:
    """The other task that will read a partition; empty if this task may, or if it is unknown."""
    grouper, (system, stream, number) = config[settings.GROUPER], place
    if not any(
        (each.system, each.stream) == (system, stream) and each.first <= number <= each.last
        for each in config[settings.BROADCAST_INPUTS]
    ):
        return reader_of(grouper, SystemStreamPartition(*place))
    return "Partition 0" if grouper == BY_PARTITION and not _NUMBERED.fullmatch(task) else ""


def show(target: str, config: Config, *, as_json: bool) -> int:
    job = find_job(target, config, shipped=True)
    now = now_ms()
    there = job.startpoints()
    rows: list[dict[str, Any]] = []
    for request in there.asked:
        expired = now - request.created_ms >= EXPIRY_MS
        rows.append(_row("expired" if expired else "requested", request.task, request))
    for task, request in there.waiting:
        rows.append(_row("pending", task, request))
    if as_json:
        print(json.dumps(rows))
        return 0
    if not rows:
        report(f"no startpoints are set for {job.name}")
    for row in rows:
        ssp = SystemStreamPartition(row["system"], row["stream"], row["partition"])
        print(
            f"{row['state']:<9}  {ssp}  {row['text']}  {_who(row['task'])}  "
            f"{moment(row['created_ms'])}  {row['id']}"
        )
    return 0


def delete(
    target: str,
    place: str,
    config: Config,
    *,
    task: str,
    all_partitions: bool,
    everything: bool,
    as_json: bool,
) -> int:
    if bool(place) == everything:
        raise ConfigError("name a partition, such as 'log.clicks[0]', or give --everything")
    where = None if everything else where_of(place, all_partitions=all_partitions)
    job = find_job(target, config, shipped=True)
    there = job.startpoints()
    known = {request.place for request in (*there.asked, *(each for _, each in there.waiting))}
    meant = [each for each in known if where is None or where.has(each)]
    count = (
        0 if not meant else job.change_startpoints(lambda them: them.delete(meant, task or None))
    )
    if not count:
        raise StartpointError(
            f"no startpoint is set for {where or job.name}{f' and task {task!r}' if task else ''}; "
            f"s4 startpoint show {target} lists the existing ones"
        )
    text = f"{counted(count, 'startpoint')} of {job.name} deleted"
    give({"deleted": count}, text, as_json=as_json)
    return 0


def _row(state: str, task: str, request: Request) -> dict[str, Any]:
    return {
        "state": state,
        "id": request.id,
        "system": request.system,
        "stream": request.stream,
        "partition": request.partition,
        "task": task,
        "startpoint": msgspec.to_builtins(request.startpoint),
        "text": describe(request.startpoint),
        "created_ms": request.created_ms,
    }


def _ssp(request: Request) -> str:
    return str(SystemStreamPartition(*request.place))


def _who(task: str) -> str:
    return f"task {task!r}" if task else "all tasks that read it"
