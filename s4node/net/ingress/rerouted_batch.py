"""Batches with events of several tasks, which the receiving task sends on. Pure.

Rules
- The events of other tasks are sent on as the task passes them, in their order among its own. So
  the same commit covers them and the position after them.
- They are done then: the task's outbox has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from s4node.events.routing import placed

Send = Callable[[int, list[Any]], None]
"""Sends events to the task of a partition."""


class SortedOut(NamedTuple):
    """A sorted batch: the task's own ``events`` with their ``numbers``, and the ``strays``.

    A stray has number, partition and event. ``good`` are the numbers of both. ``seen`` events were
    sorted.
    """

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
    """Sort events by task, and refuse those whose key is not found.

    Refusing is slow, so sorting stops after ``most_refused`` refusals.
    """
    places, failures = placed(events, partition_of, most_refused)
    here = list(zip(numbers, places, events, strict=False))  # only the events that were sorted
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
