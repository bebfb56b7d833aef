"""The book of one partition of the log: which offsets frames get, and what was there before. Pure.

Rules
- Offsets are given out one after another, without holes. The time of appending never goes back,
  whatever the clock does.
- Of each producer only the number that is expected next is appended: what was there before is
  trimmed at the front, and a gap is refused. A producer that is not known begins where it likes,
  and one that keeps nothing below ``floor`` may jump there: what is missing can never come.
- A frame that was taken apart by key has holes in its numbers; it is trimmed by each event's own.
- ``plan`` changes nothing. What it planned counts from ``settle`` on, which is called when it is on
  the disk, or never.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s4node.comm.frame import Section
from s4node.schema import TypeDecl


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """A frame that is to be appended: ``count`` events of ``producer``, numbered from ``first``.

    ``types`` has the declarations of (at least) its sections, by fingerprint. ``floor`` is the
    producer's first number that it still keeps. Where the frame is a part of what its producer
    sent, ``numbers`` are those of its events, rising, and ``end`` is the number behind the whole.
    Without events only the number moves.
    """

    producer: str
    first: int
    count: int
    body: bytes
    sections: Sequence[Section]
    order: bytes = b""
    encoding: int = 0
    routing: str = ""
    created_ms: int = 0
    headers: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[int, TypeDecl] = field(default_factory=dict)
    floor: int = 0
    end: int | None = None
    numbers: Sequence[int] | None = None

    @property
    def behind(self) -> int:
        """The number that its producer goes on with."""
        return self.first + self.count if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a frame: ``count`` events appended from ``offset`` on.

    ``expected`` is the number that its producer goes on with. A count of 0 means that all of it was
    there before, or, with ``gap``, that something before it is missing.
    """

    offset: int
    count: int
    expected: int
    gap: bool = False


class Known(NamedTuple):
    """What is known of a producer: its next number, and when it last appended (Unix time, ms)."""

    next: int
    seen_ms: int


class Entry(NamedTuple):
    """A frame with its place: its body begins at the offset ``first`` and counts from ``start``."""

    start: int
    first: int
    appended_ms: int
    frame: Incoming

    @property
    def end(self) -> int:
        """The offset behind its last event."""
        return self.first + self.frame.count


class Plan(NamedTuple):
    """What a group of frames comes to: what is to be written, and the answers, frame by frame."""

    entries: list[Entry]
    producers: dict[str, Known]
    types: dict[int, TypeDecl]
    answers: list[Appended]
    upcoming: int
    last_ms: int


class Ledger:
    """One partition's book, as it stands on the disk."""

    __slots__ = ("last_ms", "producers", "types", "upcoming")

    def __init__(
        self,
        upcoming: int = 0,
        last_ms: int = 0,
        producers: Mapping[str, Known] = {},
        types: Mapping[int, TypeDecl] = {},
    ) -> None:
        self.upcoming = upcoming
        self.last_ms = last_ms
        self.producers = dict(producers)
        self.types = dict(types)

    def plan(self, frames: Iterable[Incoming], now_ms: int) -> Plan:
        """Give these frames their places, in this order, as of ``now_ms`` (Unix time)."""
        upcoming, now_ms = self.upcoming, max(now_ms, self.last_ms)
        plan = Plan([], {}, {}, [], upcoming, now_ms)
        for frame in frames:
            known = plan.producers.get(frame.producer) or self.producers.get(frame.producer)
            expected = frame.first if known is None else max(known.next, frame.floor)
            skip = 0
            if frame.first < expected:
                skip = _before(frame, expected)
            if frame.first > expected or skip > upcoming:
                plan.answers.append(Appended(upcoming, 0, expected, gap=True))
                continue
            behind = max(frame.behind, expected)
            plan.producers[frame.producer] = Known(behind, now_ms)
            count = frame.count - skip
            plan.answers.append(Appended(upcoming, count, behind))
            if count == 0:
                continue
            plan.entries.append(Entry(upcoming, upcoming - skip, now_ms, frame))
            upcoming += count
            for section in frame.sections:
                mark = section.fingerprint
                if mark not in self.types and mark in frame.types:
                    plan.types[mark] = frame.types[mark]
        last_ms = now_ms if plan.entries else self.last_ms
        return plan._replace(upcoming=upcoming, last_ms=last_ms)

    def settle(self, plan: Plan) -> None:
        """The plan is on the disk."""
        self.upcoming = plan.upcoming
        self.last_ms = plan.last_ms
        self.producers.update(plan.producers)
        self.types.update(plan.types)

    def silent_since(self, before_ms: int) -> list[str]:
        """The producers that were last seen before that time (Unix time, ms)."""
        return [name for name, known in self.producers.items() if known.seen_ms < before_ms]


def _before(frame: Incoming, number: int) -> int:
    """How many of the frame's events have a number below this one."""
    if frame.numbers is not None:
        return bisect_left(frame.numbers, number)
    return min(number - frame.first, frame.count)
