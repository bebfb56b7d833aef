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
from s4node.net.wire.decoder import FrameDecoder, raws_of


class Part(NamedTuple):
    """The events of a frame for one partition: their numbers, and a body with only these events."""

    partition: int
    numbers: list[int]
    sections: tuple[wire.Section, ...]
    order: bytes
    body: bytes


def take_apart(
    data: wire.Data,
    body: memoryview,
    readers: Mapping[int, TypeReader],
    router: Router | None,
    skip: int = 0,
) -> tuple[list[Part], Refusals]:
    """Split a frame from the index ``skip`` on; refused events are given by index and reason.

    Without a router, all events go to the frame's partition.
    """
    events, refusals = FrameDecoder(readers).decode(data, body)
    refusals = [refused for refused in refusals if refused[0] >= skip]
    bad = {index for index, _ in refusals}
    good = [index for index in range(skip, len(events)) if index not in bad]
    places = [data.partition] * len(good)
    if router is not None:
        places, failures = router.places([events[index] for index in good])
        refusals += [(good[at], reason) for at, reason in failures]
    raws = raws_of(data, body)
    picked: dict[int, list[int]] = {}
    for index, place in zip(good, places, strict=True):
        if place >= 0:
            picked.setdefault(place, []).append(index)
    return [
        Part(
            partition,
            [data.first + index for index in indices],
            *_assembled(data, raws, indices),
        )
        for partition, indices in picked.items()
    ], refusals


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
    """An array of encoded events."""
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
