"""``s4 config``: shows and checks the settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from s4node.cli.arguments import command, group, json_option, setting_options
from s4node.cli.output import counted, report
from s4node.config.config import Config
from s4node.config.properties import Problem
from s4node.config.render import render
from s4node.errors import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = group(parser)
    shown = command(
        actions,
        "show",
        show,
        "print the settings in force, and the origin of those that are not defaults",
        "s4 config show --config config/flights.properties -p s4.hasher=s4",
    )
    checked = command(
        actions,
        "check",
        check,
        "report all mistakes, and nothing else",
        "s4 config check --config config/flights.properties",
    )
    setting_options(shown)
    setting_options(checked, names=("paths", "lines"))
    json_option(shown, "print a JSON list")
    json_option(checked, "print the mistakes as a JSON list, which may be empty")
    command(
        actions,
        "default",
        default,
        "print default.s4.comm.properties",
        "s4 config default > my.properties",
    )


def show(config: Config, *, as_json: bool) -> int:
    entries = list(config.items())
    if as_json:
        rows = [{"key": e.name, "value": e.text, "origin": e.origin} for e in entries]
        print(json.dumps(rows, indent=2))
        return 0
    width = max(len(f"{e.name} = {e.text}") for e in entries)
    for entry in entries:
        text = f"{entry.name} = {entry.text}"
        print(f"{text:<{width}}  # {entry.origin}" if entry.origin != "default" else text)
    return 0


def check(paths: Sequence[str], lines: Sequence[str], *, as_json: bool) -> int:
    if not (paths or lines):
        raise ConfigError(
            "nothing to check; name a property file with --config, or settings with -p"
        )
    try:
        Config.load([Path(file) for file in paths], settings=lines)
    except ConfigError as error:
        if as_json:
            problems = [asdict(each) for each in error.problems if isinstance(each, Problem)]
            print(json.dumps(problems))
        raise
    report(f"{counted(len(paths), 'file')}, no mistakes")
    if as_json:
        print("[]")
    return 0


def default() -> int:
    print(render(), end="")
    return 0
