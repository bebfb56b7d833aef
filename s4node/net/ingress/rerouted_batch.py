"""Batches with events of several tasks: the one that gets them sends on what is not its own. Pure.

Rules
- Others' events are put on the way as the task comes past them, in their order among its own. So
  they are part of the same commit as the position behind them, wherever that commit is taken.
- They are done with then: the way has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from s4node.errors import is_signal
from s4node.events.routing import key_failure
from s4node.net.ingress.durable_admission import DurableReceipt
from s4node.offsets.input_progress import InputPart, InputReceipt, PartReceipt

Send = Callable[[int, list[Any]], None]
"""Puts events on the way to the task of a partition."""


class SortedOut(NamedTuple):
    """The ``events`` that are a task's own, with their ``numbers``; ``strays`` are the others:
    number, partition and event. ``good`` are the numbers of both. ``seen`` events were sorted."""

    events: list[Any]
    numbers: list[int]
    strays: list[tuple[int, int, Any]]
    good: list[int]
    seen: int


def sorted_out(
    numbers: Iterable[int],
    events: Sequence[Any],
    partition_of: Callable[[Any], int],
    home: int,
    refuse: Callable[[int, str, Any], None],
    most_refused: int = sys.maxsize,
) -> SortedOut:
    """Sort events by whose they are; one whose key is not found is refused. Stops after
    ``most_refused`` of those, which take long."""
    own: list[Any] = []
    own_numbers: list[int] = []
    strays: list[tuple[int, int, Any]] = []
    good: list[int] = []
    refused = 0
    for number, event in zip(numbers, events, strict=True):
        try:
            partition = partition_of(event)
        except BaseException as error:  # a KeyFinder of the app's may raise anything
            if is_signal(error):
                raise
            refuse(number, f"{key_failure(error)} (event {event!r})", event)
            refused += 1
            if refused == most_refused:
                break
            continue
        good.append(number)
        if partition == home:
            own.append(event)
            own_numbers.append(number)
        else:
            strays.append((number, partition, event))
    return SortedOut(own, own_numbers, strays, good, len(good) + refused)


class _Strays:
    """Others' events of a batch, and how far they have been sent."""

    __slots__ = ("_next", "_send", "_strays", "at")

    def __init__(self, strays: list[tuple[int, int, Any]], at: int, send: Send) -> None:
        self.at = at
        self._strays = strays
        self._next = 0
        self._send = send

    def send_below(self, end: int) -> int:
        """Send those below a number; returns the number below which that was done before."""
        at, self.at = self.at, end
        shares: dict[int, list[Any]] = {}
        strays = self._strays
        while self._next < len(strays) and strays[self._next][0] < end:
            _, partition, event = strays[self._next]
            shares.setdefault(partition, []).append(event)
            self._next += 1
        for partition, events in shares.items():
            self._send(partition, events)
        return at


class MixedPart(PartReceipt):
    """What a task owes for a batch with events of others."""

    __slots__ = ("_strays",)

    _whole: InputReceipt | DurableReceipt

    def __init__(self, whole: InputReceipt | DurableReceipt, found: SortedOut, send: Send) -> None:
        super().__init__(whole, found.good)
        self._strays = _Strays(found.strays, whole.first, send)

    @property
    def past(self) -> int:
        """All below this number is done: own events, those of others, and what was left out."""
        return self._strays.at

    def passed(self, first: int, end: int) -> None:  # noqa: ARG002 - where it is, is known
        """The task has processed its own below ``end``; it says so in order."""
        super().passed(self._strays.send_below(end), end)

    def without(self, reasons: Mapping[int, str], numbers: list[int], /) -> MixedPart:  # noqa: ARG002
        """Events are left out, and done as the task comes past them."""
        return self

    def done(self) -> None:
        """The task has processed all of its own."""
        self.passed(self._strays.at, self._whole.end)
        super().done()


class MixedInputPart(MixedPart, InputPart):
    """What it owes for a batch of an input."""

    __slots__ = ()


class MixedFramePart(MixedPart):
    """What it owes for a frame of a producer of a durable stream."""

    __slots__ = ()

    def without(self, reasons: Mapping[int, str], numbers: list[int], /) -> MixedPart:
        """The same, and their producer is told why."""
        for number, reason in reasons.items():
            self.refuse(number, reason)
        return super().without(reasons, numbers)
