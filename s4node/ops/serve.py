"""Runs a container as a process: signals, logs, exit status.

Rules
- SIGTERM and the first Ctrl-C stop in order (drain within ``task.shutdown.ms``); a second one
  stops at once.
- Exit status 0 after an orderly stop, 1 when the app failed, 2 when it could not start.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import trio

from s4node import config as settings
from s4node.app import App
from s4node.config import Config
from s4node.container.container import Container
from s4node.errors import ConfigError, GraphError, S4Error
from s4node.ops import logging


def serve(app: App, config: Config, on_ready: Callable[[Container], None]) -> int:
    """Run ``app`` until a signal or a failure; returns the exit status."""
    logging.configure(config[settings.LOGGER_LEVEL], config[settings.LOGGER_FORMAT])
    try:
        return trio.run(_serve, app, config, on_ready)
    except* (ConfigError, GraphError) as group:
        _print(group)
        return 2
    except* S4Error as group:
        _print(group)
        return 1
    except* KeyboardInterrupt:
        return 130


async def _serve(app: App, config: Config, on_ready: Callable[[Container], None]) -> int:
    container = Container(app, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, container, nursery.cancel_scope)
        nursery.start_soon(_announce, container, on_ready)
        await container.run()
        nursery.cancel_scope.cancel()
    return 0


async def _announce(container: Container, on_ready: Callable[[Container], None]) -> None:
    await container.ready.wait()
    on_ready(container)


async def _watch_signals(
    container: Container,
    scope: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        asked = False
        async for number in signals:
            if asked:
                print("stopping at once", file=sys.stderr)
                scope.cancel()
                return
            asked = True
            name = signal.Signals(number).name
            print(f"{name}: draining; once more to stop at once", file=sys.stderr)
            container.stop()


def _print(group: BaseExceptionGroup[S4Error]) -> None:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _print(error)
            continue
        cause = error.__cause__
        if cause is not None and not isinstance(cause, (S4Error, OSError)):
            import traceback

            traceback.print_exception(cause, limit=-4, file=sys.stderr)
        print(f"s4: {error}", file=sys.stderr)
