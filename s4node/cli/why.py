"""``s4 why`` says what holds up the apps that run: up to three reasons for each.

Rules
- What runs is found as for ``s4 status``, twice, some seconds apart; the rules are those of
  :mod:`s4node.monitoring.why`.
- If nothing that was asked for is running, that is printed, with status 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec
import trio

from s4node.cli import arguments as kinds
from s4node.cli.arguments import json_option
from s4node.cli.output import report
from s4node.cli.status import Seen, look, seen_options
from s4node.config.config import Config
from s4node.deploy.cluster_snapshot import Snapshot
from s4node.monitoring.why import Look, Reason, reasons_of


class AppReasons(msgspec.Struct, frozen=True):
    """The reasons that hold up an app of a cluster; ``busy`` is the part of the time that its
    busiest container worked."""

    cluster: str
    app: str
    busy: float
    reasons: Sequence[Reason]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", default="", metavar="APP", help="(default: all apps)")
    seen_options(parser)
    parser.add_argument(
        "--seconds",
        type=kinds.seconds,
        default=2.0,
        metavar="SECONDS",
        help="how long to look (default %(default)g)",
    )
    json_option(parser, "print a JSON list, with an object for each app")
    parser.set_defaults(function=why)


def why(config: Config, *, app: str, seconds: float, as_json: bool) -> int:
    """Print the reasons; returns 1 if nothing is running."""
    seen, found = trio.run(_look_twice, config, app, seconds)
    if not seen.lives:
        report(seen.nothing)
        return 1
    if app and not found:
        report(f"no app {app!r} is running; s4 status lists those that are")
        return 1
    if as_json:
        print(msgspec.json.encode(found).decode())
        return 0
    for each in found:
        for reason in each.reasons:
            print(f"{each.app}: {reason.text}\n  {reason.do}")
        if not each.reasons:
            works = f"its busiest container works {each.busy:.0%} of the time"
            print(f"{each.app}: nothing holds it up; {works}")
    return 0


async def _look_twice(config: Config, app: str, seconds: float) -> tuple[Seen, list[AppReasons]]:
    first = await look(config, "why")
    if not first.lives:
        return first, []
    await trio.sleep(seconds)
    second = await look(config, "why")
    before = {each.key: each for each in first.shown}
    return second, [
        of_app(row.name, now, before[now.key])
        for now in second.shown
        if now.key in before
        for row in now.apps
        if app in ("", row.name)
    ]


def of_app(app: str, now: Snapshot, before: Snapshot) -> AppReasons:
    return AppReasons(now.cluster, app, Look(app, now, before).busy, reasons_of(app, now, before))
