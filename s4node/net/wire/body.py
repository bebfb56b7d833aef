"""The body of a data frame: encodes events into it, and decodes it again. Pure.

Rules
- A section has the events of one type, and takes one encode or decode call. If there are several
  sections, ``order`` has the section of each event. Most frames have one section.
- The caller gives a type for each class of events, or a reader for each fingerprint.
- If a section does not decode in one call, it is decoded event by event: bad events are refused,
  the others keep their places. That is slow, so the caller says how many events to take at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from s4node.errors import EventError
from s4node.events.schema import EventType, JsonType, Refusals, TypeReader, raws_in
from s4node.net.wire import frame as wire


def encoded(
    types: Mapping[type, EventType | JsonType], events: Sequence[Any], *, checked: bool = False
) -> tuple[int, tuple[wire.Section, ...], bytes, bytes]:
    """Encoding, sections, order and body of a frame of these events.

    Raises EventError for a value that msgpack cannot encode; ``checked``: also for one that is not
    of its field's type.
    """
    classes = list(types) if len(types) == 1 else list(set(map(type, events)))
    if len(classes) == 1:
        kind = types[classes[0]]
        body = kind.encode_checked(events) if checked else kind.encode(events)
        return kind.encoding, (wire.Section(kind.fingerprint, len(events), len(body)),), b"", body
    if len(classes) > wire.MAX_SECTIONS:
        raise EventError(f"{len(classes)} event types do not fit into one frame")
    index = {cls: i for i, cls in enumerate(classes)}
    order = bytes([index[type(event)] for event in events])
    shares: list[list[Any]] = [[] for _ in classes]
    for event, at in zip(events, order, strict=True):
        shares[at].append(event)
    kinds = [types[cls] for cls in classes]
    bodies = [
        kind.encode_checked(share) if checked else kind.encode(share)
        for kind, share in zip(kinds, shares, strict=True)
    ]
    sections = tuple(
        wire.Section(kind.fingerprint, len(share), len(body))
        for kind, share, body in zip(kinds, shares, bodies, strict=True)
    )
    return wire.MSGPACK, sections, order, b"".join(bodies)


class FrameDecoder:
    """Decodes with ``readers``, by fingerprint; their owner may change them."""

    __slots__ = ("_readers",)

    def __init__(self, readers: Mapping[int, TypeReader]) -> None:
        self._readers = readers

    def decode(self, data: wire.Data, body: memoryview) -> tuple[list[Any], Refusals]:
        """The frame's events in order (None if refused), and the refusals."""
        events = self.at_once(data, body)
        return (
            (events, []) if events is not None else self.apart(data, body).next_events(data.count)
        )

    def at_once(self, data: wire.Data, body: memoryview) -> list[Any] | None:
        """All events in one call; None if the frame has to be decoded event by event."""
        if len(data.sections) == 1:
            reader = self._readers.get(data.sections[0].fingerprint)
            if reader is not None:
                decode = reader.decode_json if data.encoding == wire.JSON else reader.decode
                try:
                    events = decode(body)
                except Exception:  # an event class may raise anything
                    return None
                if len(events) == data.count:
                    return events
        return None

    def apart(self, data: wire.Data, body: memoryview) -> Apart:
        """The frame, to be decoded a few events at a time."""
        return Apart(self._readers, data, body)


class _Section:
    """One section of a frame that is decoded event by event, and how far."""

    __slots__ = ("_at", "_json", "_raws", "_reader", "_reason")

    def __init__(
        self, reader: TypeReader | None, section: wire.Section, body: memoryview, *, json: bool
    ) -> None:
        self._at = 0
        self._json = json
        self._reader = reader
        self._raws: Sequence[Any] = ()
        self._reason = f"no event type of fingerprint {section.fingerprint} was declared in a hello"
        if reader is None:
            return
        try:
            self._raws = raws_in(body, json=json)
        except Exception as error:
            self._reason = f"a section does not decode: {error}"
        else:
            self._reason = ""
            if len(self._raws) != section.count:
                self._reason = (
                    f"a section announces {section.count} events and holds {len(self._raws)}"
                )

    def skip(self, count: int) -> None:
        self._at += count

    def next_events(self, count: int) -> tuple[list[Any], Refusals]:
        first, self._at = self._at, self._at + count
        if self._reader is None or self._reason:
            return [None] * count, [(index, self._reason) for index in range(count)]
        return self._reader.decode_each(self._raws[first : self._at], json=self._json)


class Apart:
    """A frame that is decoded a few events at a time."""

    __slots__ = ("_at", "_order", "_sections")

    def __init__(
        self, readers: Mapping[int, TypeReader], data: wire.Data, body: memoryview
    ) -> None:
        self._at = 0
        self._order = data.order
        self._sections: list[_Section] = []
        begin, json = 0, data.encoding == wire.JSON
        for section in data.sections:
            end = begin + section.size
            reader = readers.get(section.fingerprint)
            self._sections.append(_Section(reader, section, body[begin:end], json=json))
            begin = end

    def skip(self, count: int) -> None:
        if len(self._sections) == 1:
            self._sections[0].skip(count)
        else:
            for which, section in enumerate(self._sections):
                section.skip(self._order.count(which, self._at, self._at + count))
        self._at += count

    def next_events(self, count: int) -> tuple[list[Any], Refusals]:
        """The next events in order (None if refused), and the refusals by index in the frame."""
        at, self._at = self._at, self._at + count
        if len(self._sections) == 1:
            events, refusals = self._sections[0].next_events(count)
            return events, [(at + index, reason) for index, reason in refusals] if at else refusals
        order = self._order[at : self._at]
        shares = [part.next_events(order.count(which)) for which, part in enumerate(self._sections)]
        merged: list[Any] = []
        found: Refusals = []
        cursors = [0] * len(shares)
        reasons = [dict(refused) for _, refused in shares]
        for index, which in enumerate(order):
            cursor = cursors[which]
            cursors[which] += 1
            merged.append(shares[which][0][cursor])
            if cursor in reasons[which]:
                found.append((at + index, reasons[which][cursor]))
        return merged, found


class Decoded:
    """A frame that was decoded in one call and is taken a few events at a time."""

    __slots__ = ("_at", "_events")

    def __init__(self, events: list[Any], at: int) -> None:
        self._events, self._at = events, at

    def next_events(self, count: int) -> tuple[list[Any], Refusals]:
        at, self._at = self._at, self._at + count
        return self._events[at : self._at], []


def raws_of(data: wire.Data, body: memoryview) -> list[bytes]:
    """The bytes of each event of a frame; empty if its section is not an array."""
    shares: list[list[bytes]] = []
    at = 0
    for section in data.sections:
        try:
            raws = raws_in(body[at : at + section.size], json=data.encoding == wire.JSON)
            found = [bytes(raw) for raw in raws]
        except Exception:
            found = []
        shares.append(found if len(found) == section.count else [b""] * section.count)
        at += section.size
    if len(shares) == 1:
        return shares[0]
    turns = [iter(share) for share in shares]
    return [next(turns[which]) for which in data.order]
