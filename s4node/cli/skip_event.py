"""``s4 dead-letter skip``: has the next start of an app skip an event at which it dies.

Rules
- The event is named by its place, as ``s4 status`` and the supervisor's log print it. It has to be
  one at which a process has died, so a wrong place skips nothing later.
- Deaths are in the state folder of the machine where the process died.
"""

from __future__ import annotations

import argparse

import msgspec

from s4node.cli.arguments import command
from s4node.cli.job import FIX, app_argument, find_job, job_options
from s4node.cli.output import give
from s4node.config.config import Config
from s4node.config.paths import looking
from s4node.errors import ConfigError
from s4node.offsets import death_files


def arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = command(
        actions,
        "skip",
        skip,
        "from the next start on, skip an event that kills the app's processes",
        "s4 dead-letter skip clicks 'Partition 0/log.clicks[0]:17'",
    )
    app_argument(parser)
    text = "the event, as s4 status and the log of the supervisor print it"
    parser.add_argument("place", metavar="PLACE", help=text)
    job_options(parser)


def skip(target: str, place: str, config: Config, *, as_json: bool) -> int:
    """Have the next start of an app skip an event at which it dies; returns the exit status."""
    job = find_job(target, config)
    with looking(job.folder, FIX):
        found = {str(each): (task, each) for task, each in death_files.found(job.folder)}
        if place not in found:
            raise ConfigError(
                f"no process of {job.name} has died at event {place!r} on this machine; events at "
                f"which one has died: {', '.join(map(repr, found)) or 'none'}"
            )
        task, event = found[place]
        death_files.skip(task, event)
    text = f"the next start of {job.name} skips event {event.number} of {event.origin}"
    give(msgspec.to_builtins(event), text, as_json=as_json)
    return 0
