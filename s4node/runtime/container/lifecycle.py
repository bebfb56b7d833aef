"""The life of a container: its steps told to listeners, and everything closed at its end.

Rules
- The steps of a start come in their order, each once; listeners are told when one is done, one
  listener after the other. Then comes ``after_start``.
- Whatever began is ended by exactly one of ``after_stop`` and ``after_failure``, after everything
  has been closed; also if it fails before ``after_start``, and if it is stopped at once, which is a
  failure.
- What is to be closed is closed in reverse order. One that fails, or takes too long, skips no
  other; the first failure is the container's.
- A listener that raises before the end fails the container as any part does. One that raises at the
  end keeps no other from being told.
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
    """What a start does, in order."""

    OFFSETS = "offsets"
    """Where each input goes on is known."""
    READERS = "readers"
    """There is a reader for each partition of the inputs."""
    REPORTERS = "reporters"
    """Metrics are reported."""
    COMMIT_TIMER = "commit timer"
    """Commits come due."""
    WINDOW_TIMER = "window timer"
    """Windows come due."""
    TASKS = "tasks"
    """The tasks are made and initialized."""
    LOOP = "loop"
    """Events are taken and given to the tasks."""


_STEPS = list(Step)


class ContainerListener:
    """Is told of a container's life. Derive from it, or have any of its methods.

    They may be ``async``. An author's is made with the app's parameters as its only argument.
    """

    def before_start(self) -> Any:
        """Nothing has been started."""

    def on_step(self, step: str) -> Any:
        """A step of the start is done; ``step`` is the value of a :class:`Step`."""

    def after_start(self) -> Any:
        """Events are processed."""

    def after_stop(self) -> Any:
        """It was stopped in order, and all is closed."""

    def after_failure(self, error: BaseException) -> Any:
        """It failed, and all is closed."""


_METHODS = ("before_start", "on_step", "after_start", "after_stop", "after_failure")
_AT_THE_END = {
    "after_stop": "the container had stopped in order",
    "after_failure": "the container had failed before",
}


def listeners_of(config: Config) -> list[object]:
    """The listeners as configured; raises ConfigError for one that cannot be."""
    setting, what = settings.LIFECYCLE_LISTENERS.name, "listener"
    found = []
    for named in config[settings.LIFECYCLE_LISTENERS]:
        listener = plugins.made(named, setting, what, config.matching(settings.APP_PARAMETER))
        if not any(callable(getattr(listener, method, None)) for method in _METHODS):
            raise ConfigError(
                f"{what} {named!r} of {setting} hears of nothing; give it one of "
                f"{', '.join(_METHODS)}"
            )
        found.append(listener)
    return found


@dataclass(eq=False, repr=False)
class Closing:
    """Something that is to be closed once; it may be awaited before the end."""

    name: str
    _function: Callable[[], Any]
    _closed: bool = False

    async def __call__(self) -> None:
        """Close it, unless that has been begun before."""
        if not self._closed:
            self._closed = True
            result = self._function()
            if inspect.isawaitable(result):
                await result


@dataclass(eq=False, repr=False)
class Lifecycle:
    """Tells ``listeners``; closing one thing takes at most ``limit`` seconds."""

    _listeners: Sequence[object]
    _limit: float
    _told: int = 0
    _closings: list[Closing] = field(default_factory=list)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Around a container's life; raises what ended it, but for an orderly stop."""
        failure: BaseException | None = None
        try:
            await self._tell_all("before_start")
            yield
        except BaseException as error:
            failure = error
        closing = await self._close()
        failure = failure or closing
        trouble = await self._tell_end(failure)
        if failure is not None:
            raise failure
        if trouble is not None:
            raise trouble

    async def reached(self, step: Step) -> None:
        """This step of the start is done, and so are those before it; again tells nothing."""
        done = _STEPS.index(step) + 1
        while self._told < done:
            self._told += 1
            await self._tell_all("on_step", _STEPS[self._told - 1].value)

    async def started(self) -> None:
        """All steps are done, and so is what the app does at its start."""
        await self.reached(_STEPS[-1])
        await self._tell_all("after_start")

    def closes(self, name: str, function: Callable[[], Any]) -> Closing:
        """Have ``function``, plain or ``async``, called at the end unless it was before."""
        closing = Closing(name, function)
        self._closings.append(closing)
        return closing

    async def close(self, closing: Closing) -> None:
        """Close it now, and forget it."""
        self._closings.remove(closing)
        await closing()

    def forget(self, *but: str) -> None:
        """Close nothing at the end but what has these names."""
        self._closings = [closing for closing in self._closings if closing.name in but]

    # -- the end -----------------------------------------------------------------------------

    async def _close(self) -> BaseException | None:
        """Close everything; returns the first failure."""
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

    async def _tell_end(self, failure: BaseException | None) -> LifecycleError | None:
        """Tell all listeners the end; returns what the first that fails at it raised."""
        first: LifecycleError | None = None
        for listener in self._listeners:

            async def tell(listener: object = listener) -> None:
                if failure is None:
                    await _tell(listener, "after_stop")
                else:
                    await _tell(listener, "after_failure", _cause(failure))

            try:
                if not await self._within_limit(tell):
                    log.warning("a listener did not end in time", listener=_name(listener))
            except LifecycleError as error:
                log.error(str(error))
                first = first or error
        return first

    async def _within_limit(self, function: Callable[[], Awaitable[None]]) -> bool:
        """Call it whatever has been cancelled; False if it took too long."""
        with trio.move_on_after(self._limit, shield=True) as scope:
            await function()
        return not scope.cancelled_caught

    # -- telling -----------------------------------------------------------------------------

    async def _tell_all(self, method: str, *arguments: Any) -> None:
        for listener in self._listeners:
            await _tell(listener, method, *arguments)


async def _tell(listener: object, method: str, *arguments: Any) -> None:
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
            f"{_AT_THE_END.get(method, 'the container cannot run')}: fix it, or take it out of "
            f"{settings.LIFECYCLE_LISTENERS.name}"
        ) from error


def _name(listener: object) -> str:
    return type(listener).__qualname__


def _cause(failure: BaseException) -> BaseException:
    """What the listeners are told: what failed, rather than what that has cancelled."""
    found = [leaf for leaf in leaves(failure) if not isinstance(leaf, trio.Cancelled)]
    failed = [leaf for leaf in found if isinstance(leaf, Exception)]
    if failed:
        return failed[0]
    return ContainerStopped("the container was stopped at once; what it had not committed is lost")
