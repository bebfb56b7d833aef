"""Which requested startpoint holds for which task, and when it is done. Pure.

Rules
- A startpoint is requested for a partition of an input, for all tasks that read it or for one. The
  later request holds; of two at the same moment the one for the task.
- A request that is older than the expiry is ignored. It never hides another.
- When a job starts, requests are fanned out: each task has its own pending startpoints. A task that
  has one pending for a partition keeps it until a later one is requested, so that another start
  between does not lose it.
- Of two requests the one that was written later is the later one, whatever the clock did between.
- A pending startpoint has an id. A task turns it into an offset once, and commits that with the id
  before it reads anything; from then on it is consumed, wherever it is still written.
- A position that a task or the settings give for a start of the job also holds once: its id is made
  of the start's name, and is saved as long as that start lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from s4node.offsets.startpoint import Startpoint

EXPIRY_MS = 12 * 3600 * 1000
"""How long a request waits for a start."""

Place = tuple[str, str, int]
"""System, stream, partition."""


_START = "start "


def id_of_start(start: str, place: Place) -> str:
    """The id of a position that is given for a start of the job."""
    return f"{_START}{start} {place[0]}.{place[1]}[{place[2]}]"


def ids_of_start(ids: Iterable[str], start: str = "") -> frozenset[str]:
    """The ids that belong to this start of the job, or without one to any."""
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
        """Of two requests for a partition of a task the higher one holds."""
        return self.created_ms, bool(self.task)


class Fanned(msgspec.Struct, frozen=True):
    """The result of a fan-out: the new ``pending`` ones, and the ``spent`` ids."""

    pending: dict[str, tuple[Request, ...]]
    spent: frozenset[str]


def fan_out(
    tasks: Mapping[str, Iterable[Place]],
    requests: Iterable[Request],
    pending: Mapping[str, Iterable[Request]],
    now_ms: int,
) -> Fanned:
    """Give each task the startpoint that holds for each of its partitions.

    ``spent`` are the requests that were considered for some task, also the losers; those that no
    task reads, or that have expired, stay where they are.
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
    """A task's pending startpoints without the consumed ones."""
    over = set(consumed)
    return tuple(request for request in pending if request.id not in over)


class Requests(msgspec.Struct, frozen=True):
    """The startpoints of a job: those that are ``asked`` for, one for each partition and task, and
    by task those that are ``pending``. Each change makes new ones."""

    asked: tuple[Request, ...] = ()
    pending: dict[str, tuple[Request, ...]] = {}

    @property
    def waiting(self) -> list[tuple[str, Request]]:
        """The pending startpoints, each with its task."""
        return [(task, request) for task, mine in self.pending.items() for request in mine]

    def put(self, new: Iterable[Request]) -> tuple[Requests, list[Request]]:
        """Ask for ``new`` ones, each in place of one for the same partition and task. Returns them
        as they are asked for."""
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
        """Delete those for these partitions (all, if None), asked for and pending.

        With a ``task``, only those that are for that task alone, and what is pending for it.
        Returns also how many were deleted.
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
        return after, self._count() - after._count()

    def fan_out(self, tasks: Mapping[str, Collection[Place]], now_ms: int) -> Requests:
        """Give each task of the job what holds for its partitions."""
        fanned = fan_out(tasks, self.asked, self.pending, now_ms)
        left = without(self.asked, fanned.spent)
        return Requests(left, {**self.pending, **fanned.pending})

    def take(self, task: str, consumed: Collection[str]) -> tuple[Requests, tuple[Request, ...]]:
        """The pending startpoints of a task, without those it has ``consumed``."""
        left = without(self.pending.get(task, ()), consumed)
        others = {owner: mine for owner, mine in self.pending.items() if owner != task}
        return Requests(self.asked, {**others, **({task: left} if left else {})}), left

    def _count(self) -> int:
        return len(self.asked) + len(self.waiting)
