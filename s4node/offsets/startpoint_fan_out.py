"""Which requested startpoint holds for which task, and when it is done with. Pure.

Rules
- A startpoint is requested for a partition of an input, for all tasks that read it or for one. Of
  two the one that was requested later holds; of two of the same moment the one for the task.
- A request that is older than the expiry is no longer taken. It is never in the way of another.
- When a job starts, requests are fanned out: each task has its own pending startpoints. A task
  that has one pending for a partition keeps it until a later one is requested, so that another
  start between does not lose it.
- A pending startpoint has an id. A task takes it over by its id and says so with the commit that
  covers the first event read from there; from then on it is over, wherever it is still written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from s4node.offsets.startpoint import Startpoint

EXPIRY_MS = 12 * 3600 * 1000
"""How long a request waits for a start."""

Place = tuple[str, str, int]
"""System, stream, partition."""


class Request(msgspec.Struct, frozen=True):
    """A startpoint that somebody wants. ``task`` is empty for all tasks that read the partition."""

    id: str
    system: str
    stream: str
    partition: int
    startpoint: Startpoint
    created_ms: int
    task: str = ""

    @property
    def place(self) -> Place:
        """The partition that it is for."""
        return self.system, self.stream, self.partition

    @property
    def rank(self) -> tuple[int, bool]:
        """Of two requests for a partition of a task the higher holds."""
        return self.created_ms, bool(self.task)


class Fanned(msgspec.Struct, frozen=True):
    """What a start makes of the requests: the new ``pending`` ones, and the ``spent`` ids."""

    pending: dict[str, tuple[Request, ...]]
    spent: frozenset[str]


def fan_out(
    tasks: Mapping[str, Iterable[Place]],
    requests: Iterable[Request],
    pending: Mapping[str, Iterable[Request]],
    now_ms: int,
) -> Fanned:
    """Give each task the startpoint that holds for each of its partitions.

    ``spent`` are the requests that were looked at for some task, the losers among them; those
    that nobody reads, or that have expired, stay where they are.
    """
    alive = [request for request in requests if now_ms - request.created_ms < EXPIRY_MS]
    result: dict[str, tuple[Request, ...]] = {}
    spent: set[str] = set()
    for task, places in tasks.items():
        waiting = {request.place: request for request in pending.get(task, ())}
        for place in places:
            fitting = [r for r in alive if r.place == place and r.task in ("", task)]
            spent.update(request.id for request in fitting)
            if place in waiting:
                fitting.append(waiting[place])
            if fitting:
                waiting[place] = max(fitting, key=lambda request: request.rank)
        if waiting:
            result[task] = tuple(waiting.values())
    return Fanned(result, frozenset(spent))


def without(pending: Iterable[Request], consumed: Iterable[str]) -> tuple[Request, ...]:
    """What is still to be done of a task's pending startpoints."""
    over = set(consumed)
    return tuple(request for request in pending if request.id not in over)
