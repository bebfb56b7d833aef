"""The commands behind ``s4 config``, as :mod:`s4node.cli.main` has the others."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from s4node.cli.arguments import command, group, setting_options
from s4node.errors import ConfigError

if TYPE_CHECKING:
    from s4node.cli.job_parsers import Load


def config_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], load: Load
) -> None:
    """``s4 config``, and what comes behind it."""
    actions = group(
        commands, "config", "show or check the configuration",
        "s4 config check --config config/flights.properties",
    )  # fmt: skip
    show = command(
        actions, "show", partial(_show, load),
        "print the settings in force, and who set those that are not defaults",
        "s4 config show --config config/flights.properties -p s4.hasher=s4",
    )  # fmt: skip
    check = command(
        actions, "check", partial(_check, load), "report all mistakes, and nothing else",
        "s4 config check --config config/flights.properties",
    )  # fmt: skip
    for action in (show, check):
        setting_options(action)
    show.add_argument("--json", action="store_true", help="print a JSON list")
    check.add_argument("--json", action="store_true",
                       help="print the mistakes as a JSON list, empty where there are "
                       "none")  # fmt: skip
    command(
        actions, "default", _default, "print default.s4.comm.properties",
        "s4 config default > my.properties",
    )  # fmt: skip


def _show(load: Load, parsed: argparse.Namespace) -> int:
    import json

    entries = list(load(parsed.config, parsed.settings).items())
    if parsed.json:
        print(json.dumps([
            {"key": e.name, "value": e.text, "origin": e.origin} for e in entries
        ], indent=2))  # fmt: skip
        return 0
    width = max(len(f"{e.name} = {e.text}") for e in entries)
    for entry in entries:
        text = f"{entry.name} = {entry.text}"
        print(f"{text:<{width}}  # {entry.origin}" if entry.origin != "default" else text)
    return 0


def _check(load: Load, parsed: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from s4node.config.properties import Problem

    if not (parsed.config or parsed.settings):
        raise ConfigError(
            "nothing to check; name a property file with --config, or settings with -p"
        )
    try:
        load(parsed.config, parsed.settings)
    except ConfigError as error:
        if parsed.json:
            problems = [asdict(each) for each in error.problems if isinstance(each, Problem)]
            print(json.dumps(problems))
        raise
    files = "1 file" if len(parsed.config) == 1 else f"{len(parsed.config)} files"
    print(f"{files}, no mistakes", file=sys.stderr)
    if parsed.json:
        print("[]")
    return 0


def _default(_: argparse.Namespace) -> int:
    from s4node.config.render import render

    print(render(), end="")
    return 0
