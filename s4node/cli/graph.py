"""``s4 graph``: an app's graph, as a Mermaid flowchart or as JSON, without running it."""

from __future__ import annotations

import argparse
import json
from functools import partial

import trio

from s4node.app.app import AdapterApp
from s4node.cli.arguments import json_option, setting_options
from s4node.cli.render.diagram import diagram_of
from s4node.cli.render.mermaid import mermaid
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.load_app import load_app
from s4node.runtime.container.hooks import declare


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="APP", help="FILE.py or package.module; calls its on_init"
    )
    json_option(parser)
    setting_options(parser)
    parser.set_defaults(function=graph)


def graph(target: str, config: Config, *, as_json: bool) -> int:
    """Print the app's graph; returns the exit status. Calls its ``on_init``."""
    app = load_app(target)
    if isinstance(app, AdapterApp) and not app.output_stream:
        app.output_stream = settings.ADAPTER_OUTPUT_STREAM.name  # shows what gives it its name
    trio.run(partial(declare, app, config, config[settings.CLUSTER_PARTITIONS]))
    diagram = diagram_of(app)
    if as_json:
        print(json.dumps(diagram.as_json(), indent=2))
    else:
        print(mermaid(diagram), end="")
    return 0
