"""``s4 graph``: draws an app without running it."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial

import trio

from s4node.app.app import AdapterApp, App
from s4node.cli.render.diagram import diagram_of
from s4node.cli.render.mermaid import mermaid
from s4node.cli.render.picture import picture
from s4node.config import settings
from s4node.config.config import Config
from s4node.runtime.container.hooks import declare

_WIDTH = 100
"""Columns where the output is no terminal."""


def draw(app: App, config: Config, *, as_mermaid: bool = False, as_json: bool = False) -> int:
    """Print the app's graph; returns the exit status. Calls its ``on_init``."""
    if isinstance(app, AdapterApp) and not app.output_stream:
        app.output_stream = settings.ADAPTER_OUTPUT_STREAM.name  # says what its name will be
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
    """Whether standard output takes the characters of a drawing."""
    try:
        "┌╎◀↺".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
