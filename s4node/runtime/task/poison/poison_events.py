"""Poison events: events at which a task has failed, and which it skips from then on. Pure.

Rules
- An event is identified by its origin and its number there. The task's own events have no numbers:
  a hash of the bytes stands for one, and of equal events as many are skipped as have failed.
- A poison event is skipped when its batch is loaded, before anything of the batch is processed. Its
  number counts as done.
- A skipped event is forgotten once no rollback can replay it.
- After a poison event a task commits often, so that many of them do not roll it back far each time.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

from s4node.errors import (
    EventError,
    EventTimeout,
    NotSaveable,
    ProcessingError,
    described,
    presentable,
)
from s4node.events.event import LIVE, EventBatch, GenericEvent
from s4node.net.ingress.report import shortened
from s4node.offsets.deaths import OWN
from s4node.runtime.task.poison.dead_letter import dead_letter, raw_of

MAX_TRACE = 2000
"""Characters of a traceback in a dead letter: its end, which says most."""

MAX_PLACES = 10_000
"""Poison events that are remembered for one origin; older ones are found again by failing."""


LONGEST_BACKOFF = 16_384
"""The most events between two commits; then the back-off ends."""

ROUNDS_AFTER_DEATHS = 600
"""After a death the longest back-off is repeated so often. Ten million events are more than a task
processes between two commits otherwise, so the next death is certain to be near its last commit."""


class Place(NamedTuple):
    """The identity of an event: its ``origin``, and its number there or a hash of its bytes."""

    origin: str
    number: int

    @property
    def own(self) -> bool:
        return self.origin.endswith(OWN)

    def __str__(self) -> str:
        return self.origin if self.own else f"{self.origin}:{self.number}"


class Fault(NamedTuple):
    """The failure of an event: the reason, and the PE, its key and traceback if any."""

    reason: str
    pe: str = ""
    key: str = ""
    trace: str = ""


DIED = Fault("the process has died while this event was processed")
"""The fault of an event that ``s4 dead-letter skip`` names."""


class LeftOut(NamedTuple):
    """A skipped event and its dead letter; ``at`` is the index of the next event in its batch."""

    place: Place
    at: int
    stream: str
    reason: str
    dead_letter: GenericEvent


def place_of(batch: EventBatch, index: int) -> Place:
    if batch.receipt is None:
        return Place(origin_of(batch), _digest(batch.events[index]))
    return Place(batch.receipt.origin, batch.number(index))


def origin_of(batch: EventBatch) -> str:
    return f"{batch.stream}{OWN}" if batch.receipt is None else batch.receipt.origin


def _digest(event: Any) -> int:
    try:
        raw = raw_of(event)
    except EventError:  # the task's own event, which was never encoded
        raw = repr(event).encode(errors="backslashreplace")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


def fault_of(error: ProcessingError) -> Fault:
    cause = error.__cause__ or error
    if isinstance(error, EventTimeout):
        return Fault(error.fact)
    ours = isinstance(cause, NotSaveable)  # the traceback would show no line of the app
    trace = "" if ours else presentable("".join(traceback.format_exception(cause)))
    if len(trace) > MAX_TRACE:
        trace = f"[...] {trace[-MAX_TRACE:]}"
    key = "" if error.key is None else repr(error.key)
    reason = shortened(described(cause))
    return Fault(reason, error.pe, shortened(key), trace)


class PoisonEvents:
    def __init__(self) -> None:
        self.unsafe = 0  # dead letters of skipped events that are not stored yet
        self.numbered: dict[str, dict[int, Fault]] = {}
        self.own: dict[str, dict[int, list[Fault]]] = {}  # a fault for each equal event
        self.gone: list[tuple[Place, Fault]] = []  # own ones, since the last commit
        self.going: list[tuple[Place, Fault]] = []  # own ones, in the commit being written

    def add(self, place: Place, fault: Fault) -> None:
        if place.own:
            self.own.setdefault(place.origin, {}).setdefault(place.number, []).append(fault)
            return
        numbers = self.numbered.setdefault(place.origin, {})
        numbers[place.number] = fault
        if len(numbers) > MAX_PLACES:
            del numbers[next(iter(numbers))]

    def leave_out(self, batch: EventBatch) -> list[LeftOut]:
        """Take poison events out of a batch that has just been loaded, and return them."""
        faults = self._taken_from(batch) if batch.receipt is None else self._of(batch)
        if not faults:
            return []
        found: list[LeftOut] = []
        for index in faults:
            place = place_of(batch, index)
            fault = faults[index]
            dead_letter = _dead_letter(batch, index, fault)
            behind = index - len(found)
            found.append(LeftOut(place, behind, batch.stream, fault.reason, dead_letter))
            if place.own:
                self.gone.append((place, fault))
        left = [index for index in range(len(batch.events)) if index not in faults]
        if batch.receipt is not None:
            numbers = [batch.number(index) for index in left]
            gone = [batch.number(index) for index in faults]
            if batch.receipt.ssp[0] == LIVE:  # refuse it to its producer, in order
                for number, index in sorted(zip(gone, faults, strict=True)):
                    batch.receipt.refuse(number, faults[index].reason)
            batch.receipt = batch.receipt.without(gone, numbers)
            batch.numbers = numbers
        batch.events = [batch.events[index] for index in left]
        return found

    def _taken_from(self, batch: EventBatch) -> dict[int, Fault]:
        """The faults of a batch of the task's own events, by index; each is used once."""
        own = self.own.get(origin_of(batch))
        found: dict[int, Fault] = {}
        if own:
            for index, event in enumerate(batch.events):
                digest = _digest(event)
                if digest in own:
                    found[index] = own[digest].pop(0)
                    if not own[digest]:
                        del own[digest]
        return found

    def _of(self, batch: EventBatch) -> dict[int, Fault]:
        numbers = self.numbered.get(origin_of(batch))
        if not numbers:
            return {}
        number = batch.number
        return {i: numbers[n] for i in range(len(batch.events)) if (n := number(i)) in numbers}

    def taken(self) -> None:
        self.going += self.gone
        self.gone.clear()

    def written(self) -> list[Place]:
        """Note that the commit was written: the skipped own events that are returned will not be
        replayed."""
        gone, self.going = self.going, []
        return [place for place, _ in gone]

    def going_back(self, positions: Mapping[str, int]) -> None:
        """Prepare for the replay of all events after the last commit, at ``positions``."""
        for place, fault in self.going + self.gone:
            self.add(place, fault)
        self.going.clear()
        self.gone.clear()
        for origin, position in positions.items():
            numbers = self.numbered.get(origin)
            if numbers:
                self.numbered[origin] = {n: f for n, f in numbers.items() if n >= position}


class CommitBackoff:
    """The number of events that a task processes before it commits: 1, 2, 4 ...

    The last number is repeated for ``rounds`` commits. ``covered`` counts the events of commits.
    """

    __slots__ = ("_done", "_length", "_rounds", "covered")

    def __init__(self, rounds: int = 1) -> None:
        self.covered = 0
        self._rounds = rounds
        self._length = 1
        self._done = 0

    @property
    def left(self) -> int:
        """The number of events that the next slice may take; 1 while a commit is due."""
        return max(1, self._length - self._done)

    def pulls(self, count: int) -> bool:
        """Count processed events; return True if a commit is due."""
        self._done += count
        return self._done >= self._length

    def commit_taken(self) -> bool:
        """Note a commit; return True if the back-off ends. A commit without events is ignored."""
        if not self._done:
            return False
        self.covered += self._done
        self._done = 0
        if self._length < LONGEST_BACKOFF:
            self._length *= 2
        else:
            self._rounds -= 1
        return not self._rounds


def _dead_letter(batch: EventBatch, index: int, fault: Fault) -> GenericEvent:
    receipt, event = batch.receipt, batch.events[index]
    if receipt is None:
        home, offset = (LIVE, batch.stream, batch.partition), -1
    else:
        home, offset = receipt.ssp, batch.number(index)
    more = {"pe": fault.pe, "key": fault.key, "trace": fault.trace}
    if receipt is not None and home[0] == LIVE:
        [(more["producer"], _)] = receipt.senders(offset, offset + 1)
    return dead_letter(home, origin_of(batch), offset, fault.reason, event, more)
