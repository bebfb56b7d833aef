"""Runs a container as a process: signals, logs, exit status.

Rules
- SIGTERM and the first Ctrl-C stop in order (drain within ``task.shutdown.ms``); a second one
  stops at once.
- Exit status 0 after an orderly stop, 1 when the app failed, 2 when it could not start.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from collections.abc import Callable

import trio

from s4node import config as settings
from s4node.app import App
from s4node.config import Config
from s4node.container.container import Container
from s4node.errors import ConfigError, GraphError, ProcessingError, S4Error, leaves
from s4node.ops import logging


def serve(app: App, config: Config, on_ready: Callable[[Container], None]) -> int:
    """Run ``app`` until a signal or a failure; returns the exit status."""
    logging.configure(config[settings.LOGGER_LEVEL], config[settings.LOGGER_FORMAT])
    try:
        return trio.run(_serve, app, config, on_ready)
    except BaseException as error:
        return exit_status(error)


def exit_status(error: BaseException) -> int:
    """Print our own errors and return the exit status; raises what is not ours."""
    found = leaves(error)
    for leaf in found:
        if isinstance(leaf, S4Error):
            cause = leaf.__cause__
            if isinstance(leaf, ProcessingError) and cause is not None:
                traceback.print_exception(cause, limit=-4, file=sys.stderr)
            print(f"s4: {leaf}", file=sys.stderr)
        elif not isinstance(leaf, (KeyboardInterrupt, trio.Cancelled)):
            raise error
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return 130
    return 2 if any(isinstance(leaf, (ConfigError, GraphError)) for leaf in found) else 1


async def _serve(app: App, config: Config, on_ready: Callable[[Container], None]) -> int:
    container = Container(app, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, container, nursery.cancel_scope)
        nursery.start_soon(_announce, container, on_ready)
        await container.run()
        nursery.cancel_scope.cancel()
    return 0


def tune_gc(config: Config) -> None:
    """Let the garbage collector look at what comes and goes, not at what was made at the start."""
    threshold = config[settings.GC_THRESHOLD]
    if threshold:
        gc.collect()
        gc.freeze()
        gc.set_threshold(threshold, 50, 20)


async def _announce(container: Container, on_ready: Callable[[Container], None]) -> None:
    await container.ready.wait()
    tune_gc(container.config)
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
                scope.cancel()
                return
            asked = True
            if sys.stderr.isatty():
                name = signal.Signals(number).name
                print(f"\n{name}: draining; once more to stop at once", file=sys.stderr)
            container.stop()
