"""The book of one partition of the log: which offsets frames get, and what was there before. Pure.

Rules
- Offsets are given out one after another, without holes. The time of appending never goes back,
  whatever the clock does.
- Of each producer what was there before is trimmed at the front. It may go on at a higher number
  than the next: what it passes over was refused, was given up by it, or was acknowledged by a file
  of which this one is an older copy. None of it will come. The caller hands in frames and leaves
  out none that may (:mod:`s4node.log.hosted`), for here it would count as there.
- What is sent again has its place here. Where there are not as many offsets, the book and the
  producer are at odds: StoreCorrupt, and nothing is appended.
- A frame that was taken apart by key has holes in its numbers; it is trimmed by each event's own.
- Each producer's row says which life has sent, and whether the id is its own (see
  :class:`s4node.offsets.producer_offsets.KeptProducer`). None is forgotten here.
- Its part for another partition is known there by the producer's id, a tab and the number of its
  lane. So no producer has an id of that form: what it sends would be taken for such parts.
- ``plan`` changes nothing. What it planned counts from ``settle`` on, which is called when it is on
  the disk, or never.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s4node.errors import StoreCorrupt
from s4node.events.schema import TypeDecl
from s4node.net.wire.frame import Section
from s4node.offsets.producer_offsets import KeptProducer

_PART = re.compile(r"(.*)\t([0-9]{1,4})", re.DOTALL)  # a stream has up to 4096 partitions


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """A frame that is to be appended: ``count`` events of ``producer``, numbered from ``first``.

    ``types`` has the declarations of (at least) its sections, by fingerprint. Where the frame is a
    part of what its producer sent, ``numbers`` are those of its events, rising, and ``end`` is the
    number behind the whole. Without events only the number moves. ``life``, ``incarnation`` and
    ``own_id`` are those of its producer.
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
    end: int | None = None
    numbers: Sequence[int] | None = None
    life: int = 0
    incarnation: str = ""
    own_id: bool = False

    @property
    def behind(self) -> int:
        """The number that its producer goes on with."""
        return self.first + self.count if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a frame: ``count`` events appended from ``offset`` on.

    ``expected`` is the number that its producer goes on with. A count of 0 means that all of it was
    there before.
    """

    offset: int
    count: int
    expected: int


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
    producers: dict[str, KeptProducer]
    types: dict[int, TypeDecl]
    answers: list[Appended | StoreCorrupt]
    upcoming: int
    last_ms: int


class Ledger:
    """One partition's book, as it stands on the disk."""

    __slots__ = ("last_ms", "producers", "types", "upcoming")

    def __init__(
        self,
        upcoming: int = 0,
        last_ms: int = 0,
        producers: Mapping[str, KeptProducer] = {},
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
            expected = frame.first if known is None else known.number
            skip = _before(frame, expected) if frame.first < expected else 0
            if skip > upcoming:
                plan.answers.append(_at_odds(frame, expected, skip, upcoming))
                continue
            behind = max(frame.behind, expected)
            plan.producers[frame.producer] = KeptProducer(
                behind, frame.life, frame.incarnation, frame.own_id
            )
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


def part_name(producer: str, lane: int) -> str:
    """Under which name a partition knows what a producer sent to the lane of another one."""
    return f"{producer}\t{lane}"


def part_of(name: str) -> tuple[str, int] | None:
    """Producer and lane of such a name; None for any other."""
    part = _PART.fullmatch(name)
    return None if part is None else (part[1], int(part[2]))


def unfit(producer: str) -> str:
    """Why the log takes nothing of a producer by its id; empty if it does."""
    if part_of(producer) is None:
        return ""
    return (
        f"the producer id {producer!r} ends in a tab and a number, as the log calls parts of what "
        f"others send; give the producer another id"
    )


def _at_odds(frame: Incoming, expected: int, skip: int, upcoming: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"{frame.producer!r} sends from number {frame.first} on, and {skip} of these events, which "
        f"are below the number {expected} that it goes on with, should be here already; but "
        f"{upcoming} is the upcoming offset. Take another producer id, or put back the file that "
        f"it has appended to"
    )


def _before(frame: Incoming, number: int) -> int:
    """How many of the frame's events have a number below this one."""
    if frame.numbers is not None:
        return bisect_left(frame.numbers, number)
    return min(number - frame.first, frame.count)
