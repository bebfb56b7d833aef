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

from s4node.events.routing import placed

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
    places, failures = placed(events, partition_of, most_refused)
    here = list(zip(numbers, places, events, strict=False))  # of those that were looked at
    for index, reason in failures:
        number, _, event = here[index]
        refuse(number, f"{reason} (event {event!r})", event)
    return SortedOut(
        [event for _, place, event in here if place == home],
        [number for number, place, _ in here if place == home],
        [one for one in here if one[1] not in (home, -1)],
        [number for number, place, _ in here if place >= 0],
        len(here),
    )
