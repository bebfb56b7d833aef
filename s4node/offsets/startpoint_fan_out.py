"""The fan-out of requested startpoints to tasks. Pure.

Rules
- A startpoint is requested for a partition of an input, for all tasks that read it or for one task.
  The later request holds; of two at the same moment, the one for a task.
- An expired request is ignored, and never hides another.
- When a job starts, requests are fanned out: each task has its own pending startpoints. A task
  keeps a pending startpoint until a later one is requested for the same partition, so that an
  additional start of the job does not lose it.
- Of two requests the one that was written later is the later one, even if the clock went backwards.
- A pending startpoint has an id. A task turns it into an offset once, and commits that with the id
  before it reads anything. From then on the startpoint is consumed, wherever it is still stored.
- A position that a task or the settings give for a start of the job also holds once: its id has the
  name of the start, and is saved as long as that start lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from s4node.offsets.startpoint import Startpoint

EXPIRY_MS = 12 * 3600 * 1000
"""The age at which a request expires."""

Place = tuple[str, str, int]
"""System, stream, partition."""


_START = "start "


def id_of_start(start: str, place: Place) -> str:
    """The id of a position given for a start of the job."""
    return f"{_START}{start} {place[0]}.{place[1]}[{place[2]}]"


def ids_of_start(ids: Iterable[str], start: str = "") -> frozenset[str]:
    return frozenset(each for each in ids if each.startswith(f"{_START}{start}"))


class Request(msgspec.Struct, frozen=True):
    """A requested startpoint. ``task`` is empty for all tasks that read the partition."""

    id: str
    system: str
    stream: str
    partition: int
    startpoint: Startpoint
    created_ms: int
    task: str = ""

    @property
    def place(self) -> Place:
        return self.system, self.stream, self.partition

    @property
    def rank(self) -> tuple[int, bool]:
        """The request with the highest rank holds for a partition of a task."""
        return self.created_ms, bool(self.task)


class Fanned(msgspec.Struct, frozen=True):
    """The result of a fan-out: the new ``pending`` startpoints, and the ``spent`` ids."""

    pending: dict[str, tuple[Request, ...]]
    spent: frozenset[str]


def fan_out(
    tasks: Mapping[str, Iterable[Place]],
    requests: Iterable[Request],
    pending: Mapping[str, Iterable[Request]],
    now_ms: int,
) -> Fanned:
    """Give each task the startpoint that holds for each of its partitions.

    ``spent`` are the requests that were considered for a task, even if another one holds. Requests
    that have expired, or that no task reads, stay.
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
    over = set(consumed)
    return tuple(request for request in pending if request.id not in over)


class Requests(msgspec.Struct, frozen=True):
    """The startpoints of a job. ``asked`` has one for each partition and task, ``pending`` has
    those of each task. Every change returns a new object."""

    asked: tuple[Request, ...] = ()
    pending: dict[str, tuple[Request, ...]] = {}

    @property
    def waiting(self) -> list[tuple[str, Request]]:
        """The pending startpoints, each with its task."""
        return [(task, request) for task, mine in self.pending.items() for request in mine]

    def put(self, new: Iterable[Request]) -> tuple[Requests, list[Request]]:
        """Add ``new`` requests, each replacing one for the same partition and task. Also returns
        them as they were added."""
        asked = {(request.place, request.task): request for request in self.asked}
        written = []
        for request in new:
            known = [*asked.values(), *(each for _, each in self.waiting)]
            latest = max((r.created_ms for r in known if r.place == request.place), default=0)
            if request.created_ms < latest:  # the clock went backwards
                request = msgspec.structs.replace(request, created_ms=latest + 1)
            asked[request.place, request.task] = request
            written.append(request)
        return Requests(tuple(asked.values()), self.pending), written

    def delete(
        self, places: Collection[Place] | None = None, task: str | None = None
    ) -> tuple[Requests, int]:
        """Delete the requests and pending startpoints of these partitions (None: of all).

        With a ``task``, delete only its pending startpoints, and requests for this task alone. Also
        returns how many were deleted.
        """

        def stays(owner: str, request: Request) -> bool:
            meant = places is None or request.place in places
            return not (meant and task in (None, owner))

        asked = tuple(request for request in self.asked if stays(request.task, request))
        pending = {
            owner: left
            for owner, mine in self.pending.items()
            if (left := tuple(request for request in mine if stays(owner, request)))
        }
        after = Requests(asked, pending)
        return after, self.count - after.count

    def fan_out(self, tasks: Mapping[str, Collection[Place]], now_ms: int) -> Requests:
        fanned = fan_out(tasks, self.asked, self.pending, now_ms)
        left = without(self.asked, fanned.spent)
        return Requests(left, {**self.pending, **fanned.pending})

    def pending_of(
        self, task: str, consumed: Collection[str]
    ) -> tuple[Requests, tuple[Request, ...]]:
        left = without(self.pending.get(task, ()), consumed)
        others = {owner: mine for owner, mine in self.pending.items() if owner != task}
        return Requests(self.asked, {**others, **({task: left} if left else {})}), left

    @property
    def count(self) -> int:
        return len(self.asked) + len(self.waiting)


def later(requests: Requests, by_ms: int) -> Requests:
    """The same startpoints as if they had been requested so much later."""

    def moved(them: Iterable[Request]) -> tuple[Request, ...]:
        return tuple(
            msgspec.structs.replace(each, created_ms=each.created_ms + by_ms) for each in them
        )

    pending = {task: moved(mine) for task, mine in requests.pending.items()}
    return Requests(moved(requests.asked), pending)
