"""``s4 why`` says what holds up the apps that run: up to three reasons for each.

Rules
- What runs is found as for ``s4 status``, twice, some seconds apart; the rules are those of
  :mod:`s4node.monitoring.why`.
- If nothing that was asked for is running, that is printed, with status 1.
"""

from __future__ import annotations

import argparse

import msgspec
import trio

from s4node.cli import arguments as kinds
from s4node.cli.arguments import json_option
from s4node.cli.output import report
from s4node.cli.status import Seen, look, seen_options
from s4node.config.config import Config
from s4node.monitoring.why import AppReasons, of_apps


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
        found
        for now in second.shown
        if now.key in before
        for found in of_apps(now, before[now.key])
        if app in ("", found.app)
    ]
