"""The process of a node: signals, logs and exit status, as in :mod:`s4node.process.stopping`."""

from __future__ import annotations

import os
from collections.abc import Callable

import trio

from s4node.cluster.node.node import Node
from s4node.cluster.node.running import Running, RunningEntry, running_entry, settings_for_commands
from s4node.config import settings
from s4node.config.config import Config
from s4node.logger import get_logger
from s4node.process import log_setup
from s4node.process.exit_status import exit_status
from s4node.process.loading import loaded
from s4node.process.stopping import run_until_signal, tune_python

log = get_logger("s4node.process")


def run_node(config: Config, name: str, on_ready: Callable[[Node], None]) -> int:
    """Run a node until a signal or a failure; returns the exit status."""
    loaded()
    log_setup.configure_from(config)
    try:
        return trio.run(_run, config, name, on_ready)
    except BaseException as error:
        return exit_status(error)


async def _run(config: Config, name: str, on_ready: Callable[[Node], None]) -> int:
    node = Node(config, name)
    server = None
    if config[settings.HTTP_ADDRESS]:
        from s4node.http.site import server_of  # late: many nodes do not serve it

        server = server_of(node, config)
        await server.listen()
    with running_entry() as entry:

        def ready() -> None:
            tune_python()
            list_node(entry, node)
            on_ready(node)

        async with trio.open_nursery() as nursery:
            if server is not None:
                nursery.start_soon(server.run)
                log.info("HTTP is served", node=node.name, url=server.url)
            status = await run_until_signal(node, ready)
            if server is not None:
                server.end_with("the node stops")
        return status


def list_node(entry: RunningEntry, node: Node) -> None:
    entry.write(
        Running(
            pid=os.getpid(),
            cluster=node.cluster,
            node=node.name,
            place=node.place,
            address=node.address,
            log=bool(node.config[settings.LOG_FOLDER]),
            settings=settings_for_commands(node.config, node.address),
        )
    )
