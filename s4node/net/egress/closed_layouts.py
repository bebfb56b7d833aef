"""Layouts that have ended, as a producer counts its events through them. Pure.

Rules
- When a layout of a durable stream ends, the node keeps each producer's final number in each
  partition. A producer drops its events below that number, which count already, and routes the
  others again, in the next layout. There its numbers begin at 0.
- A program that sends everything ``again`` routes each event through the layouts that have ended,
  one after the other. The first in which its number is below the final one has counted it. This
  holds for events put later, too: the program may not yet have sent as many as have been counted.
- Both need the same order: which events of a partition have the first numbers says which count. So
  events are routed again in the order in which they were put. A producer of which later lives may
  send again remembers, for its events without a verdict, to which partition each went.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from s4node.events.keys import Partitioner, crc32m, hasher_named
from s4node.events.routing import KeyRule, Router
from s4node.events.schema import UNREADABLE, EventType, raws_in
from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox_rows import data_of
from s4node.net.egress.stream_types import StreamTypes
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.offsets.checkpoint import Closing, Closings

Place = Callable[[Sequence[Any]], list[int]]
"""The partitions of events, -1 for an event without one."""


_CHUNK = 4096
"""The events after which a producer looks for settled ones, to forget their order."""


class Put(NamedTuple):
    """An event of a lane, with its place."""

    number: int
    partition: int
    event: Any


class RoundRobin:
    """The places of events without a key over ``partitions``."""

    __slots__ = ("_partitions", "_turn")

    def __init__(self, partitions: int, turn: int) -> None:
        self._partitions = partitions
        self._turn = turn

    def __call__(self, events: Sequence[Any]) -> list[int]:
        first, self._turn = self._turn, (self._turn + len(events)) % self._partitions
        return [(first + step) % self._partitions for step in range(len(events))]


class ClosedLayout:
    """A layout that has ended, with ``lanes`` in which events are known below a final number."""

    __slots__ = ("_lanes", "_place")

    def __init__(self, lanes: Sequence[Lane], place: Place) -> None:
        self._lanes = lanes
        self._place = place

    @classmethod
    def of_earlier_life(cls, finals: Sequence[int], place: Place) -> ClosedLayout:
        lanes = [Lane(partition) for partition in range(len(finals))]
        for lane, final in zip(lanes, finals, strict=True):
            lane.known = final
        return cls(lanes, place)

    @property
    def is_over(self) -> bool:
        """True if no event put from now on has been counted here."""
        return all(lane.next_number >= lane.known for lane in self._lanes)

    def route_by(self, place_over: Callable[[int], Place]) -> None:
        """Route events otherwise; none has been routed yet."""
        self._place = place_over(len(self._lanes))

    def uncounted(self, events: list[Any], count_off: Callable[[Lane], None]) -> list[Any]:
        """The events that were not counted here, in order. ``count_off`` numbers a lane's waiting
        events up to the known number, and leaves the others."""
        if self.is_over:
            return events
        places = self._place(events)
        shares: dict[int, list[Any]] = {}
        for place, event in zip(places, events, strict=True):
            shares.setdefault(place, []).append(event)
        taken = dict.fromkeys(shares, 0)
        for lane in self._lanes:
            share = shares.get(lane.partition, [])
            if share and lane.next_number < lane.known:
                lane.pending = share
                before = len(share)
                count_off(lane)
                taken[lane.partition] = before - len(share)
                lane.pending = []
        left = []
        for place, event in zip(places, events, strict=True):
            if taken[place]:
                taken[place] -= 1
            else:
                left.append(event)
        return left


def closed_layouts(
    closings: Iterable[Closing], place_over: Callable[[int], Place]
) -> list[ClosedLayout]:
    """The layouts in which earlier lives were counted; ``place_over(partitions)`` routes events."""
    return [
        ClosedLayout.of_earlier_life(each.numbers, place_over(len(each.numbers)))
        for each in closings
        if each.numbers  # else the producer was unknown in it
    ]


def placing(
    partitions: int, rule: KeyRule | None, hasher: str, only: str | None, turn: int
) -> Place:
    """How events are routed over so many partitions: to one if they come from the producer ``only``
    or there is no other, by the key of ``rule``, or round robin, as from ``turn`` on."""
    if partitions == 1 or only is not None:
        at = crc32m(only or "") % partitions
        return lambda events: [at] * len(events)
    if rule is None:
        return RoundRobin(partitions, turn)
    router = Router(rule, Partitioner(partitions, hasher_named(hasher)))
    return lambda events: router.places(events)[0]


def last_ruling(ended: Closing, partition: int) -> wire.Ruling:
    final = ended.numbers[partition] if partition < len(ended.numbers) else 0
    unreported = [each[1:] for each in ended.unreported if each[0] == partition]
    refused = tuple(each[:3] for each in unreported if not each[3])
    shed = tuple(each[:3] for each in unreported if each[3])
    return wire.Ruling(partition, wire.REFUSED, final, 0, final, refused, "", shed)


def closings_in(headers: wire.Headers) -> Closings:
    """The layouts that have ended, from a node's hello; none if a peer sent anything else."""
    try:
        return msgspec.convert(headers.get(wire.CLOSED, ()), Closings, strict=False)
    except msgspec.ValidationError:
        return ()


def layout_in(headers: wire.Headers) -> int | None:
    """The number of the layout in a node's hello, if any."""
    number = headers.get(wire.LAYOUT)
    return number if isinstance(number, int) and number >= 0 else None


class PutOrder:
    """The partitions of a producer's events in the order in which these were put, from the first
    one without a verdict on."""

    __slots__ = ("_bases", "_chunks", "_latest", "note")

    def __init__(self, partitions: int) -> None:
        self._bases = [0] * partitions  # the number of each lane's first event here
        self._chunks: deque[tuple[array[int], list[int]]] = deque()  # with the end of each lane
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._latest = array("H")
        self.note: Callable[[int], None] = self._latest.append

    def put(self, lanes: Sequence[Lane]) -> None:
        """Forget what is settled, after so many events."""
        if len(self._latest) < _CHUNK:
            return
        self._chunks.append((self._latest, [one.next_number + len(one.pending) for one in lanes]))
        self._begin_chunk()
        while self._chunks:
            ends = self._chunks[0][1]
            if any(end > lane.upto for end, lane in zip(ends, lanes, strict=True)):
                break
            self._bases = self._chunks.popleft()[1]

    def leave_out(self, partition: int, number: int) -> None:
        """Forget an event of a lane that gets no number."""
        at = self._bases[partition]
        for places, ends in [*self._chunks, (self._latest, [])]:
            if number >= 0:
                for index, place in enumerate(places):
                    at += place == partition
                    if at > number and place == partition:
                        del places[index]
                        number = -1
                        break
            if number < 0 and ends:
                ends[partition] -= 1

    def ranks(self) -> dict[tuple[int, int], int]:
        """The rank of each event, by number and partition."""
        at = list(self._bases)
        found: dict[tuple[int, int], int] = {}
        for places in [*(chunk for chunk, _ in self._chunks), self._latest]:
            for place in places:
                found[at[place], place] = len(found)
                at[place] += 1
        return found


def in_order(puts: Iterable[Put], order: PutOrder | None) -> list[Any]:
    """The events in the order in which they were put. If that is not remembered, it is that of
    the numbers of each partition, and without a key the former one."""
    if order is None:
        return [event for _, _, event in sorted(puts, key=itemgetter(0, 1))]
    ranks = order.ranks()
    return [put.event for put in sorted(puts, key=lambda put: ranks[put[:2]])]


def unsettled_events(
    lane: Lane, types: StreamTypes, refuse: Callable[[Lane, str], None]
) -> list[Put]:
    """The events of a lane that have no verdict. A frame that was sent is read again, and an event
    that cannot be read is refused."""
    found: list[Put] = []
    for frame in lane.frames:
        events, reasons = _events_in(frame.data, types)
        for reason in reasons:
            refuse(lane, reason)
        found += [
            Put(number, lane.partition, event)
            for number, event in enumerate(events, frame.first)
            if number >= lane.upto and event is not None
        ]
    waiting = enumerate(lane.pending, lane.next_number)
    return found + [Put(number, lane.partition, event) for number, event in waiting]


def _events_in(data: bytes, types: StreamTypes) -> tuple[list[Any], list[str]]:
    header, body = data_of(data)
    if header.encoding == wire.JSON:
        try:
            return [bytes(raw) for raw in raws_in(body, json=True)], []
        except UNREADABLE as error:
            return [], [f"a frame cannot be read again: {error}"]
    kinds = {k.fingerprint: k for k in types.kinds.values() if isinstance(k, EventType)}
    events, refusals = FrameDecoder(kinds).decode(header, body)
    return events, [reason for _, reason in refusals]
