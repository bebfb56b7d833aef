"""Runs a container in this process: logs and exit status.

Rules
- The exit status is 0 after an orderly stop, 1 if the app failed or a stop lost events, 2 if it
  could not start, and 130 if it was stopped at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from s4node.app.app import App
from s4node.config import settings
from s4node.config.config import Config
from s4node.process import log_setup
from s4node.process.container_entry import listed, running_of
from s4node.process.exit_status import exit_status
from s4node.process.stopping import run_until_signal, tune_python
from s4node.runtime.container.container import Container


class OnReady(Protocol):
    """Called when the app runs; ``url`` is that of HTTP, empty if it is not served."""

    def __call__(self, container: Container, /, url: str) -> None: ...


def serve(
    app: App,
    config: Config,
    on_ready: OnReady,
    node: str = "",
    *,
    http: bool,
) -> int:
    """Run ``app`` on the named node until a signal or a failure; returns the exit status.

    With ``http`` it serves HTTP, at the URL that ``on_ready`` gets, too.
    """
    log_setup.configure_from(config)
    log_setup.print_whole_lines()
    made: list[Container] = []
    try:
        if not http:
            return trio.run(_serve, app, config, partial(on_ready, url=""), node, made)
        from s4node.http.site import server_of_process  # late: not every process serves it
        from s4node.process.http_thread import served_in_thread

        server = server_of_process(config, lambda: running_of(made[0]) if made else None)
        with served_in_thread(server):
            return trio.run(_serve, app, config, partial(on_ready, url=server.url), node, made)
    except BaseException as error:
        return exit_status(error)


async def _serve(
    app: App,
    config: Config,
    on_ready: Callable[[Container], None],
    node: str,
    made: list[Container],
) -> int:
    container = Container(app, config, node=node)
    made.append(container)

    def ready() -> None:
        tune_python()
        on_ready(container)

    async with listed(container):
        return await run_until_signal(container, ready, config[settings.TASK_SHUTDOWN_MS])
