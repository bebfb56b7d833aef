"""Encodes events into the body of a data frame. Pure.

Rules
- A section has the events of one type, and takes one encode call. If there are several sections,
  ``order`` has the section of each event.
- The caller gives a type for each class of the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from s4node.errors import EventError
from s4node.events.schema import EventType, JsonType
from s4node.net.wire import frame as wire


def encoded(
    types: Mapping[type, EventType | JsonType], events: Sequence[Any]
) -> tuple[int, tuple[wire.Section, ...], bytes, bytes]:
    """Encoding, sections, order and body of a frame of these events.

    Raises EventError for a value that msgpack cannot encode.
    """
    classes = list(types) if len(types) == 1 else list(set(map(type, events)))
    if len(classes) == 1:
        kind = types[classes[0]]
        body = kind.encode(events)
        return kind.encoding, (wire.Section(kind.fingerprint, len(events), len(body)),), b"", body
    if len(classes) > wire.MAX_SECTIONS:
        raise EventError(f"{len(classes)} event types do not fit into one frame")
    index = {cls: i for i, cls in enumerate(classes)}
    order = bytes([index[type(event)] for event in events])
    shares: list[list[Any]] = [[] for _ in classes]
    for event, at in zip(events, order, strict=True):
        shares[at].append(event)
    kinds = [types[cls] for cls in classes]
    bodies = [kind.encode(share) for kind, share in zip(kinds, shares, strict=True)]
    sections = tuple(
        wire.Section(kind.fingerprint, len(share), len(body))
        for kind, share, body in zip(kinds, shares, bodies, strict=True)
    )
    return wire.MSGPACK, sections, order, b"".join(bodies)
