"""Executors: what a stage does when it is full. Pure.

Rules
- An executor decides twice: how many of the arriving events are admitted (``admits``), and how many
  of the waiting ones may leave now (``allowance``). It sees how full its stage is and the time.
- Of events that arrive together the oldest are admitted; the rest is dropped, counted, and reported
  to the sender.
- No built-in executor drops events that wait. One that does is for ``STREAM`` only: the
  deserializer counts and has no queue, and while there is an allowance, events skip those of
  senders.
- An executor that ``withholds`` drops nothing: without room, producers get no credit, sources and
  tasks wait, and a frame that arrives all the same is left to its producer, which resends it.
- Blocking withholds. Shedding drops what does not fit. Throttling lets ``max_rate`` events a second
  leave, and drops what producers send beyond a full queue.
- Only an executor that never makes tasks wait drops events of the app itself. Any other takes all
  of them, also those of a timer, which cannot wait.
- On a durable stream and a replayable input throttling withholds, too, and an executor that drops
  is refused.
- Your own policy is a subclass of :class:`Executor`, named as ``package.module:Class``. If it
  raises, or does not return a number, the app stops, because the stage's capacity is unknown.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from s4node.config import plugins
from s4node.errors import ConfigError, S4Error, described

UNLIMITED = 1 << 62
"""An allowance without a limit, in events."""

DESERIALIZER, STREAM, SENDER, REMOTE_SENDER = "deserializer", "stream", "sender", "remoteSender"
"""The stages: undecoded frames of a stream in a container; events of a stream in a partition;
events of a stream for other nodes of the cluster; events of an output stream for other clusters."""

STAGES = (DESERIALIZER, STREAM, SENDER, REMOTE_SENDER)

SUBSCRIBER = "subscriber"
"""The pseudo-stage of a stream's subscribers; it has no settings and no queue."""


_ASK_SECONDS = 0.01
"""An executor that does not say when there is an allowance again is asked so often."""


@dataclass(frozen=True)
class StageSettings:
    """The settings of one stage of one stream: events, bytes, events a second."""

    stage: str = STREAM
    stream: str = ""
    executor: str = "block"
    capacity: int = 10_000
    max_bytes: int = 1 << 62
    max_rate: float = math.inf
    lossless: str = ""
    """The reason to drop nothing: the stream is "durable" or "replayable"."""
    named_by: str = "s4.stream.executor"
    """The configuration key that says which executor it is."""


class Load(Protocol):
    """The load of a stage: its events and bytes, and its capacity."""

    @property
    def depth(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...

    @property
    def withheld(self) -> bool: ...


class Executor:
    """The base of the policies: admits all events, and lets all leave.

    ``reason`` is reported to the senders of dropped events, and names the drops in statistics.
    """

    withholds = False
    reason = "shed"
    waits_from = math.inf
    """Tasks and sources of this process wait from so full on (1 is the capacity; infinity: never).

    Events that they put before they wait are admitted.
    """

    def __init__(self, settings: StageSettings) -> None:
        self.settings = settings

    def admits(self, load: Load, events: int, size: int, now: float) -> int:
        """The number of ``events``, of ``size`` bytes together, to admit, the oldest first."""
        return events

    def admits_put(self, load: Load, events: int, size: int, now: float) -> int:
        """As ``admits``, for events of the app itself: all of them if tasks are made to wait."""
        if self.withholds or self.waits_from <= 1:
            return events
        return max(0, min(events, self.admits(load, events, size, now)))

    def allowance(self, now: float) -> int:
        """The number of waiting events that may leave now."""
        return UNLIMITED

    def left(self, events: int) -> None:
        """Note that ``events`` events have left."""

    def next_at(self, now: float) -> float:
        """The time at which to ask for an allowance again, if there is none now."""
        return now + _ASK_SECONDS


def fitting(load: Load, events: int, size: int) -> int:
    """The number of ``events``, of ``size`` bytes together, that fit into a stage.

    Bytes fit all or not at all: a frame that is not decoded cannot be cut.
    """
    if load.bytes + size > load.max_bytes and load.depth:
        return 0
    return max(min(events, load.capacity - load.depth), 0)


def all_or_none(load: Load, events: int, size: int) -> int:
    if not load.depth:
        return events
    over = load.withheld or load.bytes + size > load.max_bytes
    return 0 if over else events


class Block(Executor):
    """Drops nothing: the sender waits.

    Credit keeps producers within the capacity. If more was promised than fits now (many producers
    woke up at once, or events grew), a frame is left to its producer, unless the stage is below its
    capacity: so it holds its capacity and one frame more.
    """

    withholds = True
    waits_from = 1.0

    def admits(self, load: Load, events: int, size: int, now: float) -> int:
        return all_or_none(load, events, size)


class Shed(Executor):
    """Drops the newest events that do not fit."""

    reason = "shed: the stage is full"

    def admits(self, load: Load, events: int, size: int, now: float) -> int:
        return fitting(load, events, size)


_ROUNDING = 1e-6
"""A part of a token, so that a token that was added up in parts counts as whole."""


class Throttle(Executor):
    """Lets ``max_rate`` events a second leave; drops the newest that do not fit.

    Tasks and sources wait for a token once the stage is half full, so that only events of producers
    are dropped. The bucket holds the tokens of a tenth of a second, so that a busy stage leaves in
    batches.
    """

    reason = "throttled: the stage is full"
    waits_from = 0.5

    def __init__(self, settings: StageSettings) -> None:
        super().__init__(settings)
        self._rate = settings.max_rate
        self._depth = max(1.0, self._rate / 10)
        self._tokens = self._depth
        self._filled_at = -math.inf

    def admits(self, load: Load, events: int, size: int, now: float) -> int:
        return fitting(load, events, size)

    def allowance(self, now: float) -> int:
        """The whole tokens in the bucket."""
        if self._rate == math.inf:
            return UNLIMITED
        if now > self._filled_at:
            if self._filled_at > -math.inf:
                more = (now - self._filled_at) * self._rate
                self._tokens = min(self._depth, self._tokens + more)
            self._filled_at = now
        return max(0, int(self._tokens + _ROUNDING))

    def left(self, events: int) -> None:
        """Take the tokens of these events; a batch may overdraw the bucket."""
        self._tokens -= events

    def next_at(self, now: float) -> float:
        """The time when the tokens of about a hundredth of a second have gathered."""
        wanted = min(self._depth, max(1.0, self._rate / 100))
        return now + max(0.0, wanted - self._tokens) / self._rate


class LosslessThrottle(Throttle):
    """Throttles a stream that may not drop: without room, producers wait."""

    withholds = True

    def admits(self, load: Load, events: int, size: int, now: float) -> int:
        return all_or_none(load, events, size)


BUILT_IN: dict[str, type[Executor]] = {"block": Block, "shed": Shed, "throttle": Throttle}


def executor_of(settings: StageSettings) -> Executor:
    """The executor that ``settings`` name; raises ConfigError if there is none."""
    executor = _named(settings)
    if settings.lossless and settings.executor == "throttle":
        executor = LosslessThrottle(settings)
    if settings.lossless and not executor.withholds:
        key = f"s4.{settings.stage}.{settings.stream}.executor"
        fast = f", or s4.stream.{settings.stream}.grade = fast"
        raise ConfigError(
            f"stream {settings.stream!r} is {settings.lossless}, but the executor "
            f"{settings.executor!r} of its {settings.stage} stage drops events; set {key} = block"
            f"{fast if settings.lossless == 'durable' else ''}"
        )
    return executor


def _named(settings: StageSettings) -> Executor:
    cls = BUILT_IN.get(settings.executor)
    if cls is not None:
        return cls(settings)
    named, setting = settings.executor, settings.named_by
    found = plugins.found(named, setting, "executor")
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise ConfigError(
            f"executor {named!r} of {setting} is not a subclass of s4node.Executor; derive it from "
            f"that"
        )
    own = [each for each in found.__mro__ if not each.__module__.startswith("s4node.")]
    for name in dict.fromkeys(name for each in own for name in vars(each)):
        public = not name.startswith("_") and inspect.isfunction(getattr(found, name))
        if public and not hasattr(Executor, name):
            known = ", ".join(n for n in vars(Executor) if not n.startswith("_"))
            raise ConfigError(
                f"executor {named!r} of {setting} has a method {name!r}, which is never called; "
                f"the methods of an Executor are {known}. Let the name of one of your own begin "
                f"with _"
            )
    made: Executor = plugins.made(named, setting, "executor", settings)
    for method in _ANSWERS:
        if getattr(found, method) is not getattr(Executor, method):
            blamed = f"{method} of executor {named!r} of {setting}"
            setattr(made, method, _checked(getattr(made, method), blamed, _ANSWERS[method]))
    return made


def _events(answer: Any) -> int:
    """A number of events; raises TypeError if ``answer`` is not one."""
    if isinstance(answer, float) and answer == math.inf:
        return UNLIMITED
    return operator.index(answer)


def _time(answer: Any) -> float:
    if not isinstance(answer, numbers.Real):
        raise TypeError
    return float(answer)


def _nothing(answer: Any) -> None:
    """Ignore the answer."""


_ANSWERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "admits": (_events, "a number of events"),
    "admits_put": (_events, "a number of events"),
    "allowance": (_events, "a number of events"),
    "left": (_nothing, "nothing"),
    "next_at": (_time, "a time"),
}
"""The conversions of the results of an executor's methods, and their types as text."""


def _checked(
    method: Callable[..., Any], blamed: str, wanted: tuple[Callable[[Any], Any], str]
) -> Callable[..., Any]:
    """A method of an author's executor; its errors say which setting named it."""
    of_answer, expected = wanted

    def called(*arguments: Any, **named: Any) -> Any:
        try:
            answer = method(*arguments, **named)
        except Exception as error:
            raise S4Error(
                f"{blamed} raised {described(error)}; the capacity of the stage is unknown: fix "
                f"it, or remove the setting"
            ) from error
        try:
            return of_answer(answer)
        except TypeError:
            raise S4Error(f"{blamed} returned {answer!r}; it has to return {expected}") from None

    return called
