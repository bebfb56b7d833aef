"""``s4 graph``: draws an app without running it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from functools import partial

import trio

from s4node.app.app import AdapterApp
from s4node.cli.arguments import setting_options
from s4node.cli.render.diagram import diagram_of
from s4node.cli.render.mermaid import mermaid
from s4node.cli.render.picture import picture
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.load_app import load_app
from s4node.runtime.container.hooks import declare

_WIDTH = 100
"""The columns of a drawing that is not for a terminal."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="APP", help="as for s4 run; its on_init is called")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--mermaid", dest="as_mermaid", action="store_true", help="print a Mermaid flowchart"
    )
    form.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    setting_options(parser)
    parser.set_defaults(function=graph)


def graph(target: str, config: Config, *, as_mermaid: bool, as_json: bool) -> int:
    """Print the app's graph; returns the exit status. Calls its ``on_init``."""
    app = load_app(target)
    if isinstance(app, AdapterApp) and not app.output_stream:
        app.output_stream = settings.ADAPTER_OUTPUT_STREAM.name  # shows what gives it its name
    trio.run(partial(declare, app, config, config[settings.CLUSTER_PARTITIONS]))
    diagram = diagram_of(app)
    if as_json:
        print(json.dumps(diagram.as_json(), indent=2))
    elif as_mermaid:
        print(mermaid(diagram), end="")
    else:
        width = shutil.get_terminal_size((_WIDTH, 0)).columns if sys.stdout.isatty() else _WIDTH
        print(picture(diagram, width, ascii_only=not _draws_boxes()), end="")
    return 0


def _draws_boxes() -> bool:
    """Return True if standard output can encode the characters of a drawing."""
    try:
        "┌╎◀↺".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
