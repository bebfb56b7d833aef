"""The life of a container: reports its steps to listeners, and closes everything at its end.

Rules
- The steps of a start come in order, each once. Listeners are called when a step is done, one after
  the other; ``after_start`` follows.
- Each life ends with exactly one of ``after_stop`` and ``after_failure``, after everything was
  closed; also if it fails before ``after_start``. A container that is cancelled has failed.
- Parts are closed in reverse order. If closing one fails or takes too long, the others are still
  closed; the first failure is the container's.
- A listener that raises before the end fails the container, as any part does. At the end, the
  other listeners are still called.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import trio

from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.errors import (
    ConfigError,
    ContainerStopped,
    LifecycleError,
    described,
    is_signal,
    leaves,
)
from s4node.logger import get_logger

log = get_logger("s4node.runtime")


class Step(Enum):
    """The steps of a start, in order."""

    OFFSETS = "offsets"
    """The offset at which each input resumes is known."""
    READERS = "readers"
    """Each partition of the inputs has a reader."""
    REPORTERS = "reporters"
    """Metrics are reported."""
    COMMIT_TIMER = "commit timer"
    """Commits fall due."""
    WINDOW_TIMER = "window timer"
    """Windows fall due."""
    TASKS = "tasks"
    """The tasks are made and initialized."""
    LOOP = "loop"
    """Events are taken and given to the tasks."""


_STEPS = list(Step)


class ContainerListener:
    """A listener to a container's life. Derive from it, or define any of its methods.

    The methods may be ``async``. An author's class is called with the app's parameters.
    """

    def before_start(self) -> Any:
        """Called before anything is started."""

    def on_step(self, step: str) -> Any:
        """Called when a step of the start is done; ``step`` is the value of a :class:`Step`."""

    def after_start(self) -> Any:
        """Called when events are processed."""

    def after_stop(self) -> Any:
        """Called after an orderly stop, once everything is closed."""

    def after_failure(self, error: BaseException) -> Any:
        """Called after a failure, once everything is closed."""


_METHODS = ("before_start", "on_step", "after_start", "after_stop", "after_failure")
_AT_THE_END = {
    "after_stop": "the container had stopped in order",
    "after_failure": "the container had failed before",
}


def listeners_of(config: Config) -> list[object]:
    """The configured listeners; raises ConfigError for one that cannot be made."""
    setting, what = settings.LIFECYCLE_LISTENERS.name, "listener"
    found = []
    for named in config[settings.LIFECYCLE_LISTENERS]:
        listener = plugins.made(named, setting, what, config.matching(settings.APP_PARAMETER))
        if not any(callable(getattr(listener, method, None)) for method in _METHODS):
            raise ConfigError(
                f"{what} {named!r} of {setting} has no method to call; give it one of "
                f"{', '.join(_METHODS)}"
            )
        found.append(listener)
    return found


@dataclass(eq=False, repr=False)
class Closing:
    """A part that is closed once, at the end or earlier by awaiting this."""

    name: str
    _function: Callable[[], Any]
    _closed: bool = False

    async def __call__(self) -> None:
        """Close the part, unless closing has begun before."""
        if not self._closed:
            self._closed = True
            result = self._function()
            if inspect.isawaitable(result):
                await result


@dataclass(eq=False, repr=False)
class Lifecycle:
    """Calls ``listeners`` and closes parts; each closing takes at most ``limit`` seconds."""

    _listeners: Sequence[object]
    _limit: float
    _notified: int = 0
    _closings: list[Closing] = field(default_factory=list)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Surround a container's life; raises the error that ended it, if any."""
        failure: BaseException | None = None
        try:
            await self._notify_all("before_start")
            yield
        except BaseException as error:
            failure = error
        closing = await self._close()
        failure = failure or closing
        trouble = await self._notify_end(failure)
        if failure is not None:
            raise failure
        if trouble is not None:
            raise trouble

    async def reached(self, step: Step) -> None:
        """Report a step of the start and those before it, unless they were reported."""
        done = _STEPS.index(step) + 1
        while self._notified < done:
            self._notified += 1
            await self._notify_all("on_step", _STEPS[self._notified - 1].value)

    async def started(self) -> None:
        """Report the remaining steps and the end of the start, after the app's ``on_start``."""
        await self.reached(_STEPS[-1])
        await self._notify_all("after_start")

    def closes(self, name: str, function: Callable[[], Any]) -> Closing:
        """Have ``function``, plain or ``async``, called at the end, unless it was called before."""
        closing = Closing(name, function)
        self._closings.append(closing)
        return closing

    async def close(self, closing: Closing) -> None:
        self._closings.remove(closing)
        await closing()

    def keep_only(self, *but: str) -> None:
        """Close only the parts with these names at the end."""
        self._closings = [closing for closing in self._closings if closing.name in but]

    # -- the end -----------------------------------------------------------------------------

    async def _close(self) -> BaseException | None:
        """Close everything; return the first failure."""
        first: BaseException | None = None
        for closing in reversed(self._closings):
            try:
                in_time = await self._within_limit(closing)
            except Exception as error:
                log.error("closing failed", part=closing.name, error=described(error))
                first = first or error
            else:
                if not in_time:
                    log.warning("not closed in time", part=closing.name, seconds=self._limit)
        return first

    async def _notify_end(self, failure: BaseException | None) -> LifecycleError | None:
        """Report the end to all listeners; return the error of the first that fails."""
        first: LifecycleError | None = None
        for listener in self._listeners:

            async def notify(listener: object = listener) -> None:
                if failure is None:
                    await _notify(listener, "after_stop")
                else:
                    await _notify(listener, "after_failure", _cause(failure))

            try:
                if not await self._within_limit(notify):
                    log.warning("a listener did not end in time", listener=_name(listener))
            except LifecycleError as error:
                log.error(str(error))
                first = first or error
        return first

    async def _within_limit(self, function: Callable[[], Awaitable[None]]) -> bool:
        """Call ``function`` shielded from cancellation; return False if it took too long."""
        with trio.move_on_after(self._limit, shield=True) as scope:
            await function()
        return not scope.cancelled_caught

    # -- listeners -----------------------------------------------------------------------------

    async def _notify_all(self, method: str, *arguments: Any) -> None:
        for listener in self._listeners:
            await _notify(listener, method, *arguments)


async def _notify(listener: object, method: str, *arguments: Any) -> None:
    function = getattr(listener, method, None)
    if function is None:
        return
    try:
        result = function(*arguments)
        if inspect.isawaitable(result):
            await result
    except BaseException as error:
        if is_signal(error):
            raise
        raise LifecycleError(
            f"{method} of listener {_name(listener)} raised {described(error)}; "
            f"{_AT_THE_END.get(method, 'the container cannot run')}: fix it, or remove it from "
            f"{settings.LIFECYCLE_LISTENERS.name}"
        ) from error


def _name(listener: object) -> str:
    return type(listener).__qualname__


def _cause(failure: BaseException) -> BaseException:
    """The error for listeners: the failure, rather than the cancellations that it caused."""
    found = [leaf for leaf in leaves(failure) if not isinstance(leaf, trio.Cancelled)]
    failed = [leaf for leaf in found if isinstance(leaf, Exception)]
    if failed:
        return failed[0]
    return ContainerStopped("the container was stopped at once; uncommitted work is lost")
