"""Batches with events of several tasks: the one that gets them sends on what is not its own. Pure.

Rules
- Others' events are put on the way as the task comes past them, in their order among its own. So
  they are part of the same commit as the position behind them, wherever that commit is taken.
- They are done with then: the way has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from s4node.errors import is_signal
from s4node.events.routing import key_failure

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
