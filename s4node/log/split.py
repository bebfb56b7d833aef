"""Splitting frames: each event of a frame goes to the partition of its own key. Pure.

Rules
- An event is passed on as the bytes that arrived; only its key is decoded, by attribute name.
- An event without the key, of an undeclared type, or that does not decode is refused; the others
  are passed on.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from s4node.events.routing import Router
from s4node.events.schema import Refusals, TypeReader
from s4node.net.wire import frame as wire
from s4node.net.wire.body import Apart, Decoded, FrameDecoder, raws_of


class Part(NamedTuple):
    """The events of a frame for one partition: their numbers, and a body with only these events."""

    partition: int
    numbers: list[int]
    sections: tuple[wire.Section, ...]
    order: bytes
    body: bytes


PIECE = 128
"""Events that are decoded one by one, or refused for lack of a key, in one piece: about 1 ms."""


class Splitting:
    """A frame that is being split from the index ``skip`` on, a piece at a time.

    ``refusals`` are events by index and reason. Without a ``router``, all events go to the frame's
    partition.
    """

    def __init__(
        self,
        data: wire.Data,
        body: memoryview,
        readers: Mapping[int, TypeReader],
        router: Router | None,
        skip: int = 0,
    ) -> None:
        self.refusals: Refusals = []
        self._data, self._body = data, body
        self._readers = readers
        self._router = router
        self._at = skip
        self._source: Apart | Decoded | None = None
        self._picked: dict[int, list[int]] = {}

    def next_piece(self) -> bool:
        """Decode and place some of the events; return True when all are placed."""
        data = self._data
        if self._source is None:
            decoder = FrameDecoder(self._readers)
            events = decoder.at_once(data, self._body)
            if events is None:
                self._source = decoder.apart(data, self._body)
                self._source.skip(self._at)
            else:
                self._source = Decoded(events, self._at)
        whole = isinstance(self._source, Decoded)
        first, left = self._at, max(0, data.count - self._at)
        events, refusals = self._source.next_events(left if whole else min(left, PIECE))
        bad = {index for index, _ in refusals}
        good = [first + at for at in range(len(events)) if first + at not in bad]
        taken = [events[index - first] for index in good] if bad else events
        places = [data.partition] * len(good)
        failures: Refusals = []
        if self._router is not None:
            places, failures = self._router.places(taken, PIECE)
        self.refusals += refusals
        self.refusals += [(good[at], reason) for at, reason in failures]
        for index, place in zip(good, places, strict=False):  # places end after many failures
            if place >= 0:
                self._picked.setdefault(place, []).append(index)
        self._at = first + len(events)
        if len(places) < len(good):
            self._at = good[len(places)]
            self._source = Decoded(events, self._at - first) if whole else self._source
        return self._at >= data.count

    def parts(self) -> list[Part]:
        raws = raws_of(self._data, self._body)
        return [
            Part(
                partition,
                [self._data.first + index for index in indices],
                *_assembled(self._data, raws, indices),
            )
            for partition, indices in self._picked.items()
        ]


def _assembled(
    data: wire.Data, raws: Sequence[bytes], indices: Sequence[int]
) -> tuple[tuple[wire.Section, ...], bytes, bytes]:
    """Sections, order and body for some events of a frame."""
    several = len(data.sections) > 1
    used = sorted({data.order[index] for index in indices}) if several else [0]
    place = {section: at for at, section in enumerate(used)}
    shares: list[list[bytes]] = [[] for _ in used]
    for index in indices:
        shares[place[data.order[index]] if several else 0].append(raws[index])
    bodies = [array_of(share, json=data.encoding == wire.JSON) for share in shares]
    sections = tuple(
        wire.Section(data.sections[section].fingerprint, len(share), len(body))
        for section, share, body in zip(used, shares, bodies, strict=True)
    )
    order = bytes(place[data.order[index]] for index in indices) if len(used) > 1 else b""
    return sections, order, b"".join(bodies)


def array_of(events: Sequence[bytes], *, json: bool = False) -> bytes:
    if json:
        return b"[" + b",".join(events) + b"]"
    count = len(events)
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 1 << 16:
        head = struct.pack(">BH", 0xDC, count)
    else:
        head = struct.pack(">BI", 0xDD, count)
    return head + b"".join(events)
