"""The ledger of one partition: assigns offsets to frames and detects repetitions. Pure.

Rules
- Offsets are assigned without gaps. The time of appending never decreases, even if the clock does.
- Events that a producer sends again are skipped. A producer may also skip numbers: those events
  were refused, were dropped by the producer, or were acknowledged by a file of which this is an
  older copy. They never arrive, and later count as repetitions. So :mod:`s4node.log.hosted` must
  not pass a frame while an earlier one may still arrive.
- A repeated event has an offset here already. If the partition holds fewer events than that, its
  file does not belong to this producer: StoreCorrupt, and nothing is appended.
- A part of a split frame has gaps in its numbers; repetitions are found by the number of each
  event.
- The row of a producer has its current life, and whether the id is its own (see
  :class:`s4node.offsets.checkpoint.SavedProducer`). The ledger forgets no producer.
- A part that came by the lane of another partition is recorded under the producer's id, a tab and
  that lane's number. So a producer's own id must not have this form.
- ``plan`` changes nothing. ``apply`` applies a plan once it is on disk.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s4node.errors import StoreCorrupt
from s4node.events.type_declaration import TypeDecl
from s4node.net.wire.frame import Section
from s4node.offsets.checkpoint import SavedProducer

_PART = re.compile(r"(.*)\t([0-9]{1,4})", re.DOTALL)  # a stream has up to 4096 partitions


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """A frame to append: ``count`` events of ``producer``, numbered from ``first``.

    ``types`` declares the types of its sections, by fingerprint. If the frame is a part of a split
    frame, ``numbers`` are those of its events, rising, and ``end`` is the number after the whole
    frame. A frame without events only advances the number. ``life``, ``incarnation`` and ``own_id``
    describe the producer.
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
        """The producer's next number."""
        return self.first + self.count if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to a frame: ``count`` events were appended, the first at ``offset``.

    ``expected`` is the producer's next number. A count of 0 means that all events were here
    already.
    """

    offset: int
    count: int
    expected: int


class Entry(NamedTuple):
    """A frame with its offsets: the body begins at ``first``, the new events at ``start``."""

    start: int
    first: int
    appended_ms: int
    frame: Incoming

    @property
    def end(self) -> int:
        """The offset after its last event."""
        return self.first + self.frame.count


class Plan(NamedTuple):
    """The plan for a group of frames: the rows to write, and one answer for each frame."""

    entries: list[Entry]
    producers: dict[str, SavedProducer]
    types: dict[int, TypeDecl]
    answers: list[Appended | StoreCorrupt]
    upcoming: int
    last_ms: int


class Ledger:
    __slots__ = ("last_ms", "producers", "types", "upcoming")

    def __init__(
        self,
        upcoming: int = 0,
        last_ms: int = 0,
        producers: Mapping[str, SavedProducer] = {},
        types: Mapping[int, TypeDecl] = {},
    ) -> None:
        self.upcoming = upcoming
        self.last_ms = last_ms
        self.producers = dict(producers)
        self.types = dict(types)

    def plan(self, frames: Iterable[Incoming], now_ms: int) -> Plan:
        """Plan how to append these frames, in this order, at ``now_ms`` (Unix time)."""
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
            plan.producers[frame.producer] = SavedProducer(
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

    def apply(self, plan: Plan) -> None:
        self.upcoming = plan.upcoming
        self.last_ms = plan.last_ms
        self.producers.update(plan.producers)
        self.types.update(plan.types)


def part_name(producer: str, lane: int) -> str:
    """The name under which a partition records parts that came by another partition's lane."""
    return f"{producer}\t{lane}"


def part_of(name: str) -> tuple[str, int] | None:
    """The producer and lane of a :func:`part_name`; None for any other name."""
    part = _PART.fullmatch(name)
    return None if part is None else (part[1], int(part[2]))


def unfit(producer: str) -> str:
    """The reason to refuse this producer id; empty if the log accepts it."""
    if part_of(producer) is None:
        return ""
    return (
        f"the producer id {producer!r} ends in a tab and a number, which the log uses for parts of "
        f"frames; choose another producer id"
    )


def _at_odds(frame: Incoming, expected: int, skip: int, upcoming: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"{frame.producer!r} sends events from number {frame.first}, and {skip} of them are below "
        f"its next number {expected}, so they should be here; but the partition has only "
        f"{upcoming} offsets. Choose another producer id, or put back the file that the producer "
        f"appended to"
    )


def _before(frame: Incoming, number: int) -> int:
    if frame.numbers is not None:
        return bisect_left(frame.numbers, number)
    return min(number - frame.first, frame.count)
