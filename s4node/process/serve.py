"""Runs a container in this process: logs and exit status.

Rules
- The exit status is 0 after an orderly stop, 1 if the app failed or a stop lost events, 2 if it
  could not start, and 130 if it was stopped at once.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from s4node.app.app import App
from s4node.config import settings
from s4node.config.config import Config
from s4node.process import log_setup
from s4node.process.container_entry import listed
from s4node.process.exit_status import exit_status
from s4node.process.stopping import run_until_signal, tune_python
from s4node.runtime.container.container import Container


def serve(app: App, config: Config, on_ready: Callable[[Container], None], node: str = "") -> int:
    """Run ``app`` on the named node until a signal or a failure; returns the exit status."""
    log_setup.configure_from(config)
    log_setup.print_whole_lines()
    try:
        return trio.run(_serve, app, config, on_ready, node)
    except BaseException as error:
        return exit_status(error)


async def _serve(app: App, config: Config, on_ready: Callable[[Container], None], node: str) -> int:
    container = Container(app, config, node=node)

    def ready() -> None:
        tune_python()
        on_ready(container)

    async with listed(container):
        return await run_until_signal(container, ready, config[settings.TASK_SHUTDOWN_MS])
