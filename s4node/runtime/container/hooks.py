"""The hooks of an app's life: prepared, called, and named in errors. Pure.

Rules
- An app gets its parameters and its number of partitions, and an adapter its output stream's name,
  before ``on_init``. Its graph is checked and frozen right after.
- The error of a hook or a source names it and the app; our own errors say enough by themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from s4node.app.app import AdapterApp, App
from s4node.app.in_order import InOrder
from s4node.app.plan import graph
from s4node.app.plan.window_dispatch import take_times_of_sending
from s4node.app.stream import InputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import (
    ConfigError,
    GraphError,
    LifecycleError,
    S4Error,
    SourceError,
    described,
    is_signal,
    leaves,
)
from s4node.runtime.inputs.binding import bind


async def declare(app: App, config: Config, partitions: int) -> None:
    """Have the app declare its graph, bind its inputs, and check it.

    Raises GraphError or ConfigError with all mistakes.
    """
    app.parameters = config.matching(settings.APP_PARAMETER)
    app.partitions = partitions
    if isinstance(app, AdapterApp) and config[settings.ADAPTER_OUTPUT_STREAM]:
        app.output_stream = config[settings.ADAPTER_OUTPUT_STREAM]
    graph.check_hooks(app)  # first, because a broken on_init declares nothing to check
    await call(app, app.on_init)
    bind(app, config)
    take_times_of_sending(app)
    graph.check(app)
    _bound_drift(app, config)
    app.freeze()
    _bound_held_back(app, config)


def _bound_drift(app: App, config: Config) -> None:
    """Bound how far inputs run ahead of others; raises ConfigError for streams without time."""
    drifts = config.matching(settings.MAX_DRIFT)
    timed = {
        name: (stream, stream.time)
        for name, stream in app.streams.items()
        if isinstance(stream, InputStream) and not stream.is_live and stream.time is not None
    }
    problems = [
        f"s4.stream.{name}.maxDrift: app {app.name!r} reads these inputs with time=: "
        f"{', '.join(sorted(timed)) or 'none'}"
        for name in sorted(drifts.keys() - timed)
    ]
    if problems:
        raise ConfigError("\n".join(problems), tuple(problems))
    for name, seconds in drifts.items():
        stream, time = timed[name]
        stream.time = time._replace(drift=float(seconds))


def _bound_held_back(app: App, config: Config) -> None:
    """Bound what streams with ``order="time"`` hold back; raises ConfigError for other streams."""
    most = config.matching(settings.HELD_BACK)
    known = {name for stream in app.streams.values() for name in stream.in_order_of}
    problems = [
        f"s4.stream.{name}: nothing is held back on it; app {app.name!r} has these streams with "
        f"order='time': {', '.join(sorted(known)) or 'none'}"
        for name in sorted(most.keys() - known)
    ]
    if problems:
        raise ConfigError("\n".join(problems), tuple(problems))
    for prototype, element in app.prototypes.values():
        if isinstance(element, InOrder):
            cls: Any = prototype.cls
            names = element.out.in_order_of
            cls.most = min((most[name] for name in names if name in most), default=cls.most)


async def call(app: App, hook: Callable[[], Any]) -> None:
    """Call one of the app's own methods, and await what it returns if that can be awaited."""
    try:
        result = hook()
        if inspect.isawaitable(result):
            await result
    except S4Error:
        raise
    except BaseException as error:
        if is_signal(error):
            raise
        said = f"{hook.__name__} of app {app.name!r} raised {described(error)}"
        if hook == app.on_close:
            raise LifecycleError(
                f"{said}; the rest of the app has ended: fix it, or catch the exception in it"
            ) from error
        raise GraphError(f"{said}; the app cannot run") from error


def source(app: App, function: Any, *arguments: Any) -> Callable[[], Awaitable[None]]:
    """Make a function that runs a source of the app, and raises SourceError for its errors.

    ``function`` is called at once, as trio does, so that TypeError is raised where a function that
    is not async is started.
    """
    running = function(*arguments) if callable(function) else None
    name = _name(function)
    if not inspect.isawaitable(running):
        if inspect.iscoroutine(function):
            function.close()  # or Python warns that it was never awaited
        raise TypeError(f"{name} is not async; write start_soon(async_function, *arguments)")

    async def run() -> None:
        try:
            await running
        except BaseException as error:
            found = leaves(error)
            theirs = [e for e in found if not isinstance(e, S4Error) and not is_signal(e)]
            if not theirs or any(isinstance(e, (KeyboardInterrupt, GeneratorExit)) for e in found):
                raise  # a signal, also beside the cancellation that a source's nurseries add
            raise SourceError(app.name, name, type(app).__name__, theirs) from theirs[0]

    return run


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
