"""From the body of a data frame to its events. Pure.

Rules
- One decode call a section, and most frames have one. Only when that fails is a section taken
  apart, and then only the culprits are refused: the others keep their places.
- Whoever has the types gives a reader for each fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from s4node.events.schema import Refusals, TypeReader, raw_events
from s4node.net.wire import frame as wire


class FrameDecoder:
    """Decodes with ``readers``, by fingerprint; they may change."""

    __slots__ = ("_readers",)

    def __init__(self, readers: Mapping[int, TypeReader]) -> None:
        self._readers = readers

    def decode(self, data: wire.Data, body: memoryview) -> tuple[list[Any], Refusals]:
        """The frame's events in order (None where refused), and what did not decode."""
        try:
            return self._decode(data, body)
        except Exception as error:
            reason = f"the frame's body does not decode: {error}"
            return [None] * data.count, [(index, reason) for index in range(data.count)]

    def _decode(self, data: wire.Data, body: memoryview) -> tuple[list[Any], Refusals]:
        if len(data.sections) == 1 and data.encoding == wire.MSGPACK:
            reader = self._readers.get(data.sections[0].fingerprint)
            if reader is not None:
                try:
                    events = reader.decode(body)
                except Exception:
                    events = []  # the slow path below finds the culprits
                if len(events) == data.count:
                    return events, []
        decoded: list[tuple[list[Any], Refusals]] = []
        at = 0
        for section in data.sections:
            decoded.append(self._section(data, section, body[at : at + section.size]))
            at += section.size
        if len(decoded) == 1:
            return decoded[0]
        merged: list[Any] = []
        refusals: Refusals = []
        cursors = [0] * len(decoded)
        reasons = [dict(refused) for _, refused in decoded]
        for index, which in enumerate(data.order):
            at, cursors[which] = cursors[which], cursors[which] + 1
            merged.append(decoded[which][0][at])
            if at in reasons[which]:
                refusals.append((index, reasons[which][at]))
        return merged, refusals

    def _section(
        self, data: wire.Data, section: wire.Section, body: memoryview
    ) -> tuple[list[Any], Refusals]:
        reader = self._readers.get(section.fingerprint)
        reason = f"no event type of fingerprint {section.fingerprint} was declared in a hello"
        if reader is not None:
            try:
                json = data.encoding == wire.JSON
                events, refusals = reader.decode_json(body) if json else reader.decode_slowly(body)
                if len(events) == section.count:
                    return events, refusals
                reason = f"a section announces {section.count} events and holds {len(events)}"
            except Exception as error:
                reason = f"a section does not decode: {error}"
        return [None] * section.count, [(index, reason) for index in range(section.count)]


def raws_of(data: wire.Data, body: memoryview) -> list[bytes]:
    """Each event of a frame as it stands in the body; empty where its section is no array."""
    shares: list[list[bytes]] = []
    at = 0
    for section in data.sections:
        try:
            found = raw_events(body[at : at + section.size], json=data.encoding == wire.JSON)
        except Exception:
            found = []
        shares.append(found if len(found) == section.count else [b""] * section.count)
        at += section.size
    if len(shares) == 1:
        return shares[0]
    turns = [iter(share) for share in shares]
    return [next(turns[which]) for which in data.order]
