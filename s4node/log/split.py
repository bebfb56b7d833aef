"""Taking frames apart: each event of a frame to the partition of its own key. Pure.

Rules
- An event travels as the bytes that came; only its key is looked at, by the attribute's name.
- What has no key, does not decode, or is of a type that nobody has declared is refused; the others
  go on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from s4node.events.routing import placed
from s4node.events.schema import Refusals, TypeReader
from s4node.net.wire import frame as wire
from s4node.net.wire.decoder import FrameDecoder, raws_of


class Part(NamedTuple):
    """The events of a frame that go to one partition: their numbers, and a body of them alone."""

    partition: int
    numbers: list[int]
    sections: tuple[wire.Section, ...]
    order: bytes
    body: bytes


def take_apart(
    data: wire.Data,
    body: memoryview,
    readers: Mapping[int, TypeReader],
    partition_of: Callable[[Any], int],
    skip: int = 0,
) -> tuple[list[Part], Refusals]:
    """A frame's events from the index ``skip`` on by partition; index and reason of the others."""
    events, refusals = FrameDecoder(readers).decode(data, body)
    refusals = [refused for refused in refusals if refused[0] >= skip]
    bad = {index for index, _ in refusals}
    good = [index for index in range(skip, len(events)) if index not in bad]
    places, failures = placed((events[index] for index in good), partition_of)
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
    """Sections, order and body of some of a frame's events."""
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
    """Encoded events as one array."""
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
