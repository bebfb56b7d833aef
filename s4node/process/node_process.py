"""Runs an empty node as a process: signals, logs, exit status, as for :mod:`s4node.process.serve`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from s4node.cluster.node.node import Node
from s4node.cluster.node.redirector import Door
from s4node.config import settings
from s4node.config.settings import Config
from s4node.log.host import LogHost
from s4node.process import log_setup as logging
from s4node.process.serve import exit_status, run_until_signal


def run_node(config: Config, name: str, on_ready: Callable[[Node], None]) -> int:
    """Run a node until a signal or a failure; returns the exit status."""
    logging.configure(config[settings.LOGGER_LEVEL], config[settings.LOGGER_FORMAT])
    try:
        return trio.run(_run, config, name, on_ready)
    except BaseException as error:
        return exit_status(error)


async def _run(config: Config, name: str, on_ready: Callable[[Node], None]) -> int:
    node = Node(config, partial(Door, config, make_log=LogHost.of), name)
    return await run_until_signal(node, partial(on_ready, node))
